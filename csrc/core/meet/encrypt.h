/* SPDX-License-Identifier: Apache-2.0
 *
 * Encryption of a connection over TCP, if ENCRYPT is on: TLS begins with its first byte, so there is nothing to
 * agree on, and nothing that somebody on the way could take out. docs/protocol.md defines it.
 */
#ifndef RDT_CORE_MEET_ENCRYPT_H
#define RDT_CORE_MEET_ENCRYPT_H

#include "core/objects.h"

/* Reads the setting. RDT_ERR_INVALID if it needs a secret, or if only transports are wanted that cannot
 * encrypt; RDT_ERR_UNSUPPORTED without libssl. */
rdt_status rdt_encrypt_configure(rdt_device *device);
/* Makes a new connection to `address` what the setting wants. */
rdt_status rdt_encrypt_connect(const rdt_device *device, const char *address, rdt_deadline deadline,
                               rdt_socket *socket);
/* Does the same for an accepted one. RDT_ERR_REFUSED if the peer's setting is another; it can be told so in
 * clear text then. */
rdt_status rdt_encrypt_accept(const rdt_device *device, rdt_deadline deadline, rdt_socket *socket);

#endif
