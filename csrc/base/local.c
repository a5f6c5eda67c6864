/* SPDX-License-Identifier: Apache-2.0 */
#include "base/local.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/forks.h"
#include "base/random.h"
#include "base/status.h"
#include "base/wait.h"

#ifndef SO_PASSRIGHTS /* since Linux 6.16 */
#define SO_PASSRIGHTS 83
#endif
#define BACKLOG 128
#define SOCKET_FILE "socket"
#define FOLDER_PREFIX "rdmatensor-"

/* Folders with sockets are created in the first of these that is writable. */
static const char *const places[] = {"/tmp/", "/dev/shm/"};
#define PLACES (sizeof(places) / sizeof(places[0]))

static unsigned long read_number(const char *path, unsigned long otherwise) {
  unsigned long number = otherwise;
  FILE *file = fopen(path, "re");
  if (file && fscanf(file, "%lu", &number) != 1) number = otherwise;
  if (file) fclose(file);
  return number;
}

/* Reports whether every user of the system has a number of its own here, which user namespaces
 * do not guarantee. */
static bool knows_all_users(void) {
  unsigned long first = 1, count = 0;
  FILE *file = fopen("/proc/self/uid_map", "re");
  bool read = file && fscanf(file, "%lu %*u %lu", &first, &count) == 2;
  if (file) fclose(file);
  return read && first == 0 && count >= UINT32_MAX;
}

/* Lets a socket receive descriptors, or, where the kernel supports it, refuse them. */
static bool let_descriptors(int socket, int whether) {
  int now = !whether;
  socklen_t length = sizeof(now);
  return setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &whether, sizeof(whether)) == 0 &&
         getsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &now, &length) == 0 && now == whether;
}

static rdt_status refuse_user(uid_t peer) {
  return rdt_fail(RDT_ERR_REFUSED,
                  "the peer runs as user %u, this process as user %u: shared memory is only for "
                  "processes of one user: run both as one",
                  (unsigned)peer, (unsigned)geteuid());
}

static rdt_status check_user(int socket) {
  struct ucred peer;
  socklen_t length = sizeof(peer);
  uid_t own = geteuid();
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return rdt_fail_errno(errno, "cannot learn the peer's user");
  if (peer.uid != own) return refuse_user(peer.uid);
  if (own == read_number("/proc/sys/kernel/overflowuid", 65534) && !knows_all_users())
    return rdt_fail(
        RDT_ERR_REFUSED,
        "the peer runs as user %u, which in this user namespace stands for everybody "
        "whom it does not know: run both as another user, or map this one and all others "
        "(docs/containers.md)",
        (unsigned)own);
  return RDT_OK;
}

rdt_status rdt_local_admit(int socket) {
  rdt_status status = check_user(socket);
  if (status == RDT_OK) let_descriptors(socket, 1);
  return status;
}

static socklen_t abstract_address(struct sockaddr_un *to, const char *name) {
  memset(to, 0, sizeof(*to));
  to->sun_family = AF_UNIX;
  size_t length = strnlen(name, RDT_LOCAL_NAME_SIZE - 1);
  memcpy(to->sun_path + 1, name, length);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

/* Names the socket relative to the descriptor of its folder, which nobody can replace meanwhile. */
static socklen_t file_address(struct sockaddr_un *to, int folder) {
  memset(to, 0, sizeof(*to));
  to->sun_family = AF_UNIX;
  snprintf(to->sun_path, sizeof(to->sun_path), "/proc/self/fd/%d/" SOCKET_FILE, folder);
  return (socklen_t)sizeof(*to);
}

/* Extracts the folder of a peer's name such as "/tmp/rdmatensor-xxxxxx/socket". Returns false
 * for other names. */
static bool folder_of(const char *name, char folder[RDT_LOCAL_NAME_SIZE]) {
  for (size_t i = 0; i < PLACES; i++) {
    size_t start = strlen(places[i]);
    if (strncmp(name, places[i], start) != 0) continue;
    size_t length = start + strcspn(name + start, "/");
    if (strncmp(name + start, FOLDER_PREFIX, strlen(FOLDER_PREFIX)) != 0 ||
        strcmp(name + length, "/" SOCKET_FILE) != 0)
      return false;
    snprintf(folder, RDT_LOCAL_NAME_SIZE, "%.*s", (int)length, name);
    return true;
  }
  return false;
}

/* Returns RDT_ERR_REFUSED unless this is a folder of our user that nobody else can enter. */
static rdt_status open_folder(const char *path, int *folder) {
  struct stat found;
  *folder = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (*folder < 0) {
    rdt_fail_errno(
        errno,
        "%s, with the peer's unix socket, cannot be found: the peer has ended, or runs in "
        "a container whose /tmp is another one (docs/containers.md)",
        path);
    return RDT_ERR_REFUSED;
  }
  bool known = fstat(*folder, &found) == 0;
  if (known && found.st_uid == geteuid() && (found.st_mode & 077) == 0) return RDT_OK;
  close(*folder);
  *folder = -1;
  if (known && found.st_uid != geteuid()) return refuse_user(found.st_uid);
  return rdt_fail(RDT_ERR_REFUSED, "%s, with a unix socket, is open to other users", path);
}

static rdt_status listen_abstract(int socket, char name[RDT_LOCAL_NAME_SIZE]) {
  struct sockaddr_un to;
  uint64_t random[2];
  rdt_status status = rdt_random(random, sizeof(random));
  if (status != RDT_OK) return status;
  snprintf(name, RDT_LOCAL_NAME_SIZE, FOLDER_PREFIX "%016llx%016llx", (unsigned long long)random[0],
           (unsigned long long)random[1]);
  socklen_t length = abstract_address(&to, name);
  if (bind(socket, (struct sockaddr *)&to, length) == 0 && listen(socket, BACKLOG) == 0)
    return RDT_OK;
  return rdt_fail_errno(errno, "cannot listen on the unix socket %s", name);
}

static rdt_status listen_in(int socket, const char *path) {
  struct sockaddr_un to;
  int folder;
  rdt_status status = open_folder(path, &folder);
  if (status != RDT_OK) return status;
  socklen_t length = file_address(&to, folder);
  if (bind(socket, (struct sockaddr *)&to, length) != 0 || listen(socket, BACKLOG) != 0)
    status = rdt_fail_errno(errno, "cannot listen on a unix socket in %s", path);
  close(folder);
  return status;
}

static rdt_status listen_in_folder(int socket, char name[RDT_LOCAL_NAME_SIZE]) {
  rdt_status status = RDT_OK;
  for (size_t i = 0; i < PLACES; i++) {
    snprintf(name, RDT_LOCAL_NAME_SIZE, "%s" FOLDER_PREFIX "XXXXXX", places[i]);
    if (!mkdtemp(name)) {
      status = rdt_fail_errno(errno, "cannot make a folder for a unix socket in %s", places[i]);
      continue;
    }
    status = listen_in(socket, name);
    strcat(name, "/" SOCKET_FILE);
    if (status == RDT_OK) return RDT_OK;
    rdt_local_unlisten(name, -1);
  }
  return status;
}

rdt_status rdt_local_listen(char name[RDT_LOCAL_NAME_SIZE], int *socket_out) {
  int socket = rdt_forks_socket(AF_UNIX, SOCK_SEQPACKET);
  if (socket < 0) return rdt_fail_errno(errno, "cannot create a unix socket");
  rdt_status status =
      let_descriptors(socket, 0) ? listen_abstract(socket, name) : listen_in_folder(socket, name);
  if (status == RDT_OK) {
    *socket_out = socket;
  } else {
    rdt_forks_close(socket);
    name[0] = '\0';
  }
  return status;
}

void rdt_local_unlisten(const char *name, int socket) {
  char folder[RDT_LOCAL_NAME_SIZE];
  rdt_forks_close(socket);
  if (!folder_of(name, folder)) return;
  unlink(name);
  rmdir(folder);
}

/* Finds the address for a name. *folder must stay open while the address is used, unless it is
 * -1. */
static rdt_status find(const char *name, int socket, struct sockaddr_un *to, socklen_t *length,
                       int *folder) {
  char path[RDT_LOCAL_NAME_SIZE];
  bool guarded = let_descriptors(socket, 0);
  *folder = -1;
  if (name[0] == '\0')
    return rdt_fail(RDT_ERR_REFUSED, "the peer has no unix socket: its log has the reason");
  if (name[0] != '/' && guarded) {
    *length = abstract_address(to, name);
    return RDT_OK;
  }
  if (!folder_of(name, path))
    return rdt_fail(RDT_ERR_REFUSED, "%s is no name of a unix socket that only its user can reach",
                    name);
  rdt_status status = open_folder(path, folder);
  if (status == RDT_OK) *length = file_address(to, *folder);
  return status;
}

static rdt_status dial(int socket, const struct sockaddr_un *to, socklen_t length,
                       rdt_deadline deadline) {
  while (connect(socket, (const struct sockaddr *)to, length) != 0) {
    int error = errno;
    /* The peer's backlog is full for the moment; there is no event to wait for. */
    if (error == EAGAIN && rdt_deadline_left(deadline) > 0) {
      rdt_deadline soon = rdt_now_ms() + 1;
      rdt_status status = rdt_wait_ready(-1, 0, soon < deadline ? soon : deadline, "connecting");
      if (status != RDT_ERR_DEADLINE) return status;
      continue;
    }
    rdt_fail_errno(error, "cannot reach the peer's unix socket");
    return RDT_ERR_UNREACHABLE;
  }
  return RDT_OK;
}

rdt_status rdt_local_connect(const char *name, rdt_deadline deadline, int *socket_out) {
  struct sockaddr_un to;
  socklen_t length = 0;
  int folder, socket = rdt_forks_socket(AF_UNIX, SOCK_SEQPACKET);
  if (socket < 0) return rdt_fail_errno(errno, "cannot create a unix socket");
  rdt_status status = find(name, socket, &to, &length, &folder);
  if (status == RDT_OK) status = dial(socket, &to, length, deadline);
  if (folder >= 0) close(folder);
  if (status == RDT_OK) status = rdt_local_admit(socket);
  if (status == RDT_OK)
    *socket_out = socket;
  else
    rdt_forks_close(socket);
  return status;
}
