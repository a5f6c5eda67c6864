/* SPDX-License-Identifier: Apache-2.0
 *
 * Unix sockets on this kernel, and on one that is older than 6.16, where they lie in a folder.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/forks.h"
#include "base/local.h"
#include "unit.h"

#define PATIENCE_MS 10000

static bool older_kernel;

/* Stands before libc's. */
int setsockopt(int socket, int level, int name, const void *value, socklen_t size) {
  if (!older_kernel || level != SOL_SOCKET || name != 83)
    return (int)syscall(SYS_setsockopt, socket, level, name, value, size);
  errno = ENOPROTOOPT;
  return -1;
}

static void expect_refused(const char *name, const char *text) {
  int socket = -1;
  EXPECT_STATUS(RDT_ERR_REFUSED, rdt_local_connect(name, rdt_deadline_after(PATIENCE_MS), &socket));
  EXPECT(socket == -1 && strstr(rdt_last_error(), text));
}

/* A connection that carries descriptors, once both ends know each other's user. */
static void meet(const char *name, int listener) {
  int ours, theirs, pipes[2];
  rdt_wire wire;
  EXPECT_STATUS(RDT_OK, rdt_local_connect(name, rdt_deadline_after(PATIENCE_MS), &ours));
  theirs = rdt_forks_accept(listener);
  EXPECT(theirs >= 0 && pipe(pipes) == 0);
  EXPECT_STATUS(RDT_OK, rdt_local_admit(theirs));
  rdt_fds sent = {.fd = {pipes[1]}, .count = 1}, got;
  rdt_wire_begin(&wire, RDT_MESSAGE_READY, 0);
  EXPECT_STATUS(RDT_OK, rdt_wire_end(&wire));
  int from[] = {ours, theirs}, to[] = {theirs, ours};
  for (int i = 0; i < 2; i++) {
    EXPECT_STATUS(RDT_OK, rdt_net_send(rdt_socket_of(from[i]), &wire, &sent,
                                       rdt_deadline_after(PATIENCE_MS)));
    EXPECT_STATUS(RDT_OK, rdt_net_receive(rdt_socket_of(to[i]), &wire, &got,
                                          rdt_deadline_after(PATIENCE_MS)));
    EXPECT(got.count == 1 && !got.lost && write(got.fd[0], "x", 1) == 1);
    rdt_fds_close(&got);
  }
  rdt_fds_close(&sent);
  close(pipes[0]);
  rdt_forks_close(ours);
  rdt_forks_close(theirs);
}

static void test_this_kernel(void) {
  char name[RDT_LOCAL_NAME_SIZE];
  int listener;
  EXPECT_STATUS(RDT_OK, rdt_local_listen(name, &listener));
  meet(name, listener);
  rdt_local_unlisten(name, listener);
  EXPECT(name[0] != '/' || access(name, F_OK) != 0);
}

static void test_folder(void) {
  char name[RDT_LOCAL_NAME_SIZE], folder[RDT_LOCAL_NAME_SIZE];
  struct stat found;
  int listener;
  EXPECT_STATUS(RDT_OK, rdt_local_listen(name, &listener));
  EXPECT(name[0] == '/' && strrchr(name, '/'));
  snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(name, '/') - name), name);
  EXPECT(stat(folder, &found) == 0 && (found.st_mode & 0777) == 0700);
  meet(name, listener);

  /* Whoever could enter it could have put the socket there. */
  EXPECT(chmod(folder, 0755) == 0);
  expect_refused(name, "is open to other users");
  EXPECT(chmod(folder, 0700) == 0);
  meet(name, listener);

  char other[RDT_LOCAL_NAME_SIZE] = "/tmp/rdmatensor-link-XXXXXX";
  EXPECT(mkdtemp(other) && rmdir(other) == 0 && symlink(folder, other) == 0);
  char by_link[RDT_LOCAL_NAME_SIZE + 8];
  snprintf(by_link, sizeof(by_link), "%s/socket", other);
  expect_refused(by_link, "cannot be found");
  if (geteuid() == 0) {
    EXPECT(chown(folder, 65534, 65534) == 0);
    expect_refused(name, "the peer runs as user 65534");
    EXPECT(chown(folder, 0, 0) == 0);
  }
  EXPECT(unlink(other) == 0);

  rdt_local_unlisten(name, listener);
  EXPECT(stat(folder, &found) != 0 && errno == ENOENT);
  expect_refused(name, "cannot be found");
}

/* They come from peers, who may say anything. */
static void test_names(void) {
  static const char *const names[] = {"/",
                                      "/socket",
                                      "/tmp/rdmatensor-x",
                                      "/tmp/rdmatensor-x/",
                                      "/tmp/x/socket",
                                      "/etc/socket",
                                      "/tmp/rdmatensor-x/../../run/socket",
                                      "/dev/shm/rdmatensor-x/socket/socket"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    expect_refused(names[i], "is no name of a unix socket");
  expect_refused("", "has no unix socket");
  expect_refused("rdmatensor-0123", "is no name"); /* it could be anybody's */
}

int main(void) {
  test_this_kernel();
  older_kernel = true;
  test_folder();
  test_names();
  return 0;
}
