/* SPDX-License-Identifier: Apache-2.0 */
#include "core/meet/encrypt.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/config.h"
#include "base/status.h"
#include "base/text.h"
#include "base/wait.h"

#define ON RDT_ENV_PREFIX "ENCRYPT=on"

rdt_status rdt_encrypt_configure(rdt_device *device) {
  char value[8], wanted[64];
  rdt_config_text(RDT_CONFIG_ENCRYPT, value, sizeof(value));
  rdt_config_text(RDT_CONFIG_TRANSPORTS, wanted, sizeof(wanted));
  device->encrypts = strcmp(value, "on") == 0;
  if (!device->encrypts) return RDT_OK;
  if (!device->secret)
    return rdt_fail(RDT_ERR_INVALID,
                    ON " needs the cluster's secret, from which the keys come: set " RDT_ENV_PREFIX
                       "SECRET_FILE (docs/security.md)");
  if (rdt_text_lists(wanted, ',', "verbs") && !rdt_text_lists(wanted, ',', "tcp"))
    return rdt_fail(RDT_ERR_INVALID,
                    ON " and " RDT_ENV_PREFIX
                       "TRANSPORTS=%s contradict each other, because verbs cannot encrypt: "
                       "add tcp to the transports, or set " RDT_ENV_PREFIX "ENCRYPT=off",
                    wanted);
  return rdt_tls_load();
}

/* TLS has a key of its own, from which the secret and its proofs cannot be found. */
static rdt_status begin_tls(const rdt_device *device, bool connecting, rdt_deadline deadline,
                            rdt_socket *socket) {
  static const char label[32] = "rdmatensor 4 tls";
  uint8_t key[RDT_MAC_SIZE];
  rdt_status status = rdt_secret_mac(device->secret, label, sizeof(label), key);
  if (status == RDT_OK) status = rdt_tls_open(socket->fd, connecting, key, deadline, &socket->tls);
  explicit_bzero(key, sizeof(key));
  return status;
}

rdt_status rdt_encrypt_connect(const rdt_device *device, const char *address, rdt_deadline deadline,
                               rdt_socket *socket) {
  char why[512];
  if (!device->encrypts) return RDT_OK;
  rdt_status status = begin_tls(device, true, deadline, socket);
  if (status != RDT_ERR_REFUSED) return status;
  snprintf(why, sizeof(why), "%s", rdt_last_error());
  return rdt_fail(status, "%s is no peer for %s: %s", address, device->name, why);
}

/* Returns the first byte without taking it. */
static rdt_status look(int socket, rdt_deadline deadline, uint8_t *first) {
  for (;;) {
    ssize_t got = recv(socket, first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0) return RDT_OK;
    if (got == 0 || (errno != EAGAIN && errno != EINTR))
      return rdt_fail(RDT_ERR_CONNECTION_LOST, "the peer closed the connection");
    rdt_status status = rdt_wait_ready(socket, POLLIN, deadline, "receiving");
    if (status != RDT_OK) return status;
  }
}

rdt_status rdt_encrypt_accept(const rdt_device *device, rdt_deadline deadline, rdt_socket *socket) {
  uint8_t first;
  rdt_status status = look(socket->fd, deadline, &first);
  if (status != RDT_OK) return status;
  bool encrypted = first == RDT_TLS_FIRST_BYTE;
  if (encrypted == device->encrypts)
    return encrypted ? begin_tls(device, false, deadline, socket) : RDT_OK;
  return rdt_fail(RDT_ERR_REFUSED,
                  "%s has " RDT_ENV_PREFIX "ENCRYPT=%s, and the peer has " RDT_ENV_PREFIX
                  "ENCRYPT=%s: set it to the same for both",
                  device->name, device->encrypts ? "on" : "off", encrypted ? "on" : "off");
}
