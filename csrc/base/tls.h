/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS 1.3 on a stream socket, with a key that both ends have instead of certificates, by OpenSSL's libssl,
 * which is opened when it is first used. The session's keys come from an ephemeral exchange too, so whoever
 * learns the key later cannot decrypt what was recorded.
 */
#ifndef RDT_BASE_TLS_H
#define RDT_BASE_TLS_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/status.h"

#define RDT_TLS_KEY_SIZE 32
#define RDT_TLS_FIRST_BYTE 0x16 /* of what a client of TLS sends, and a server that goes along */

typedef struct rdt_tls rdt_tls;

/* Opens libssl. Returns RDT_ERR_UNSUPPORTED, with the remedy, if none is usable. Thread-safe. */
rdt_status rdt_tls_load(void);
/* Makes the handshake on a connected socket, which the caller keeps, and which may not be used otherwise from
 * then on. RDT_ERR_REFUSED if the peer does not have the key, or answers in clear text. Call rdt_tls_load first. */
rdt_status rdt_tls_open(int socket, bool connecting, const uint8_t key[RDT_TLS_KEY_SIZE],
                        rdt_deadline deadline, rdt_tls **tls);
/* Frees it without a word to the peer, and without closing the socket. Ignores NULL. */
void rdt_tls_free(rdt_tls *tls);

/* Move bytes without blocking, as sendmsg and recvmsg do. They return the number of bytes, 0 if the socket takes
 * or has none now, or -1 with errno: ECONNRESET at the end of the stream, EBADMSG for bytes that the peer did
 * not send. After send took less than all, the next call must begin with what is left. Thread-safe. */
ssize_t rdt_tls_send(rdt_tls *tls, const struct iovec *parts, int count);
ssize_t rdt_tls_receive(rdt_tls *tls, const struct iovec *parts, int count);
/* Does the same with what was taken from the socket already: when it returns less than all, the socket shows
 * whether there is more. */
ssize_t rdt_tls_receive_held(rdt_tls *tls, const struct iovec *parts, int count);
/* Reports whether bytes may be here that the socket does not show any more: the last receive found all that it
 * wanted. */
bool rdt_tls_holds(const rdt_tls *tls);

#endif
