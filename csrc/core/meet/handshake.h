/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of a handshake, and the proofs that both devices have the same secret:
 * docs/protocol.md, docs/security.md. connect.c and bootstrap.c are the two sides.
 */
#ifndef RDT_CORE_MEET_HANDSHAKE_H
#define RDT_CORE_MEET_HANDSHAKE_H

#include "core/meet/secret.h"
#include "core/objects.h"

#define RDT_NONCE_SIZE 32
#define RDT_LABEL_SIZE 32 /* of the label that a proof has for its side */

typedef struct rdt_hello {
  char name[RDT_NAME_SIZE], address[RDT_ADDRESS_SIZE], host_id[RDT_HOST_ID_SIZE];
  char local_name[RDT_LOCAL_NAME_SIZE], transports[64];
  uint64_t generation;
  uint8_t nonce[RDT_NONCE_SIZE]; /* fresh for every connection */
  bool has_secret;
} rdt_hello;

typedef struct rdt_attach {
  const rdt_transport *transport;
  rdt_bundle bundle; /* without its descriptors */
  rdt_purpose purpose;
  uint8_t proof[RDT_MAC_SIZE];
  bool proven; /* it has a proof, valid or not */
} rdt_attach;

/* The two sides of a connection. */
typedef enum rdt_side { RDT_SIDE_CONNECTING, RDT_SIDE_LISTENING } rdt_side;

/* A connection until it becomes a channel. Proofs are computed from the transcript of all its
 * messages. */
typedef struct rdt_greeting {
  rdt_device *device;
  rdt_socket socket;
  rdt_side side; /* ours */
  bool heard;    /* the peer has said HELLO */
  rdt_hello peer;
  uint8_t nonce[RDT_NONCE_SIZE]; /* ours */
  rdt_reached reached;           /* the connecting side's: where the peer listens, */
  bool led_back;                 /* and whether that is somewhere else than it says, and it is us */
  size_t said;
  uint8_t transcript[4 * RDT_WIRE_MESSAGE_SIZE + RDT_LABEL_SIZE]; /* it has four messages */
} rdt_greeting;

/* Encode and decode message bodies. A decoder's caller checks with rdt_wire_close that the body
 * was well-formed. */
void rdt_hello_put(rdt_wire *wire, const rdt_hello *hello);
void rdt_hello_get(rdt_wire *wire, rdt_hello *hello);
void rdt_attach_get(rdt_wire *wire, rdt_attach *attach);

void rdt_greeting_begin(rdt_greeting *greeting, rdt_device *device, rdt_side side,
                        rdt_socket socket);
/* Send and take the messages of the greeting, in this order. Each is added to the transcript. */
rdt_status rdt_greeting_send_hello(rdt_greeting *greeting, rdt_deadline deadline);
/* Decodes the message in `wire` into greeting->peer. */
rdt_status rdt_greeting_take_hello(rdt_greeting *greeting, rdt_wire *wire);
/* Sends an ATTACH, with a proof if the device has a secret. The caller keeps the descriptors of
 * `bundle`. */
rdt_status rdt_greeting_send_attach(rdt_greeting *greeting, const rdt_transport *transport,
                                    const rdt_bundle *bundle, rdt_purpose purpose,
                                    rdt_deadline deadline);
/* Decodes the message in `wire`. Returns RDT_ERR_REFUSED if the peer does not prove that it has
 * our secret. */
rdt_status rdt_greeting_take_attach(rdt_greeting *greeting, rdt_wire *wire, rdt_attach *attach);
/* Computes the proof that data connection `index` belongs to the channel that the greeting makes.
 * Leaves `proof` alone, and sets *size to 0, if there is no secret: then the nonces, which only this
 * user's processes saw, are the proof. */
rdt_status rdt_greeting_prove_data_connection(const rdt_greeting *greeting, uint32_t index,
                                              uint8_t proof[RDT_MAC_SIZE], size_t *size);
/* Gives the channel the socket, as its control connection, and the peer's name and address. */
void rdt_greeting_introduce(const rdt_greeting *greeting, rdt_channel *channel);
/* Returns RDT_ERR_REFUSED, with the remedy, if only one of the two devices has a secret, or if
 * neither has one and the peer is on another host. */
rdt_status rdt_greeting_check_trust(const rdt_greeting *greeting, const rdt_origin *origin);

#endif
