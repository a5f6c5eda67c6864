/* SPDX-License-Identifier: Apache-2.0 */
#include "core/meet/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/config.h"
#include "base/status.h"

#define ROW RDT_ENV_PREFIX "SECRET_FILE"

struct rdt_secret {
  size_t size;
  uint8_t bytes[RDT_SECRET_MAX + 1]; /* one more, to notice that a file is too long */
};

/* Checks the opened file, so that nobody can replace it between check and use. */
static rdt_status check_file(int fd, const char *path) {
  struct stat file;
  if (fstat(fd, &file) != 0) return rdt_fail_errno(errno, ROW "=%s", path);
  if (!S_ISREG(file.st_mode))
    return rdt_fail(RDT_ERR_INVALID, ROW "=%s is not a regular file", path);
  if (file.st_uid != geteuid() && file.st_uid != 0)
    return rdt_fail(RDT_ERR_INVALID,
                    ROW "=%s belongs to user %u, and this process runs as user %u: chown %u %s",
                    path, (unsigned)file.st_uid, (unsigned)geteuid(), (unsigned)geteuid(), path);
  if (file.st_mode & (S_IRWXG | S_IRWXO))
    return rdt_fail(RDT_ERR_INVALID, ROW "=%s is open to other users (mode %04o): chmod 600 %s",
                    path, (unsigned)(file.st_mode & 07777), path);
  return RDT_OK;
}

static bool ends_line(uint8_t byte) { return byte == '\n' || byte == '\r'; }

static rdt_status read_bytes(int fd, const char *path, rdt_secret *secret) {
  while (secret->size < sizeof(secret->bytes)) {
    ssize_t more = read(fd, secret->bytes + secret->size, sizeof(secret->bytes) - secret->size);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return rdt_fail_errno(errno, "cannot read " ROW "=%s", path);
    if (more == 0) break;
    secret->size += (size_t)more;
  }
  if (secret->size > RDT_SECRET_MAX)
    return rdt_fail(RDT_ERR_INVALID, ROW "=%s is longer than %d bytes", path, RDT_SECRET_MAX);
  while (secret->size > 0 && ends_line(secret->bytes[secret->size - 1])) secret->size--;
  if (secret->size < RDT_SECRET_MIN)
    return rdt_fail(RDT_ERR_INVALID,
                    ROW
                    "=%s has %zu bytes, and a secret at least %d: head -c 32 /dev/urandom | "
                    "base64 > %s",
                    path, secret->size, RDT_SECRET_MIN, path);
  return RDT_OK;
}

static rdt_status read_file(const char *path, rdt_secret *secret) {
  /* NONBLOCK, so that opening a pipe does not hang. */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    rdt_fail_errno(errno, "cannot open " ROW "=%s", path);
    return RDT_ERR_INVALID;
  }
  rdt_status status = check_file(fd, path);
  if (status == RDT_OK) status = read_bytes(fd, path, secret);
  close(fd);
  return status;
}

rdt_status rdt_secret_read(const char *path, rdt_secret **secret_out) {
  rdt_status status = rdt_mac_load();
  if (status != RDT_OK) return status;
  rdt_secret *secret = calloc(1, sizeof(*secret));
  if (!secret) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  status = read_file(path, secret);
  if (status == RDT_OK)
    *secret_out = secret;
  else
    rdt_secret_free(secret);
  return status;
}

rdt_status rdt_secret_configured(rdt_secret **secret) {
  char path[RDT_CONFIG_TEXT_SIZE];
  *secret = NULL;
  rdt_config_text(RDT_CONFIG_SECRET_FILE, path, sizeof(path));
  return path[0] ? rdt_secret_read(path, secret) : RDT_OK;
}

void rdt_secret_free(rdt_secret *secret) {
  if (secret) explicit_bzero(secret, sizeof(*secret));
  free(secret);
}

rdt_status rdt_secret_mac(const rdt_secret *secret, const void *data, size_t size,
                          uint8_t mac[RDT_MAC_SIZE]) {
  return rdt_mac(secret->bytes, secret->size, data, size, mac);
}
