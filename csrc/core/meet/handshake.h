/* SPDX-License-Identifier: Apache-2.0
 *
 * What two devices tell each other when they meet, and how they prove that they have the same secret:
 * docs/protocol.md, docs/security.md. connect.c and bootstrap.c are the two sides.
 */
#ifndef RDT_CORE_MEET_HANDSHAKE_H
#define RDT_CORE_MEET_HANDSHAKE_H

#include "core/meet/secret.h"
#include "core/objects.h"

#define RDT_NONCE_SIZE 32
#define RDT_LABEL_SIZE 32 /* of a side, in its proofs */

typedef struct rdt_hello {
  char name[RDT_NAME_SIZE], address[RDT_ADDRESS_SIZE], host_id[RDT_HOST_ID_SIZE];
  char local_name[RDT_LOCAL_NAME_SIZE], transports[64];
  uint64_t generation;
  uint8_t nonce[RDT_NONCE_SIZE]; /* new on every connection */
  bool has_secret;
} rdt_hello;

typedef struct rdt_attach {
  const rdt_transport *transport;
  rdt_bundle bundle; /* without its descriptors */
  rdt_purpose purpose;
  uint8_t proof[RDT_MAC_SIZE];
  bool proven; /* it has a proof, good or bad */
} rdt_attach;

/* The two sides of a connection. */
typedef enum rdt_side { RDT_SIDE_CONNECTING, RDT_SIDE_LISTENING } rdt_side;

/* One connection until it is a channel: what was said on it so far, whole, is what proofs are made of. */
typedef struct rdt_greeting {
  rdt_device *device;
  int socket;
  rdt_side side; /* ours */
  rdt_hello peer;
  size_t said;
  uint8_t transcript[4 * RDT_WIRE_MESSAGE_SIZE + RDT_LABEL_SIZE]; /* it has four messages */
} rdt_greeting;

/* Encoders and decoders of the bodies. A decoder's caller asks rdt_wire_close whether it was well-formed. */
void rdt_hello_put(rdt_wire *wire, const rdt_hello *hello);
void rdt_hello_get(rdt_wire *wire, rdt_hello *hello);
void rdt_attach_get(rdt_wire *wire, rdt_attach *attach);

void rdt_greeting_begin(rdt_greeting *greeting, rdt_device *device, rdt_side side, int socket);
/* Messages of the greeting, one after the other; what is sent and received is what was said. */
rdt_status rdt_greeting_send_hello(rdt_greeting *greeting, rdt_deadline deadline);
/* Decodes the message in `wire` into greeting->peer. */
rdt_status rdt_greeting_take_hello(rdt_greeting *greeting, rdt_wire *wire);
/* With a proof, if the device has a secret. Descriptors of `bundle` stay the caller's. */
rdt_status rdt_greeting_send_attach(rdt_greeting *greeting, const rdt_transport *transport,
                                    const rdt_bundle *bundle, rdt_purpose purpose,
                                    rdt_deadline deadline);
/* Decodes the message in `wire`. RDT_ERR_REFUSED if the peer does not prove that it has our secret. */
rdt_status rdt_greeting_take_attach(rdt_greeting *greeting, rdt_wire *wire, rdt_attach *attach);
/* The socket becomes the channel's control connection, and the peer its peer. */
void rdt_greeting_introduce(const rdt_greeting *greeting, rdt_channel *channel);
/* RDT_ERR_REFUSED, with the remedy, if one of the two has a secret and the other not, or if none has and
 * the peer is on another host. */
rdt_status rdt_greeting_check_trust(const rdt_greeting *greeting, const rdt_origin *origin);

#endif
