/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire format of bootstrap and control messages: a 16-byte header and a body of fixed-width
 * little-endian fields, written and read one by one so that no compiler's layout reaches the wire.
 * docs/protocol.md lists the messages.
 */
#ifndef RDT_BASE_WIRE_H
#define RDT_BASE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDT_WIRE_MAGIC 0x31544452u /* "RDT1" */
#define RDT_WIRE_VERSION 5
#define RDT_WIRE_HEADER_SIZE 16
#define RDT_WIRE_MESSAGE_SIZE 2048 /* header and body of the largest message */

typedef enum rdt_message_type {
  RDT_MESSAGE_HELLO = 1,   /* the sender's name, its transports, a nonce */
  RDT_MESSAGE_ATTACH = 2,  /* what the transport's peer endpoint needs, purpose, proof */
  RDT_MESSAGE_FIND = 3,    /* a region by key or by name */
  RDT_MESSAGE_ALLOC = 4,   /* a new region for the sender */
  RDT_MESSAGE_REGION = 5,  /* answer to FIND and ALLOC */
  RDT_MESSAGE_REFUSAL = 6, /* in place of an answer: status and text */
  RDT_MESSAGE_GOODBYE = 7, /* no more traffic; bytes in use stay leased until end of stream */
  RDT_MESSAGE_READY = 8,   /* the connecting end can receive; answers DATA */
  RDT_MESSAGE_DATA = 9,    /* a data connection of a channel that is being attached */
  RDT_MESSAGE_FREE = 10    /* a region that ALLOC made is used no more; has no answer */
} rdt_message_type;

/* Writes or reads a message in place. Overrun and underrun set `bad`, once, instead of failing each
 * call, so that encoders and decoders are straight lines with one check at the end. */
typedef struct rdt_wire {
  uint8_t data[RDT_WIRE_MESSAGE_SIZE];
  size_t at, size;
  bool bad;
  uint16_t type;
  uint32_t sequence;
} rdt_wire;

void rdt_wire_begin(rdt_wire *wire, rdt_message_type type, uint32_t sequence);
void rdt_wire_put_u32(rdt_wire *wire, uint32_t value);
void rdt_wire_put_u64(rdt_wire *wire, uint64_t value);
/* Length-prefixed. */
void rdt_wire_put_bytes(rdt_wire *wire, const void *bytes, size_t size);
void rdt_wire_put_text(rdt_wire *wire, const char *text);
/* Completes the header. RDT_ERR_RANGE if the message did not fit. */
rdt_status rdt_wire_end(rdt_wire *wire);

/* For fields inside another message. Unload copies out what was put since rdt_wire_begin,
 * without a header, and returns RDT_ERR_RANGE if it exceeds `capacity`. Load makes it readable
 * with get_ and close. */
rdt_status rdt_wire_unload(const rdt_wire *wire, void *bytes, size_t capacity, size_t *size);
void rdt_wire_load(rdt_wire *wire, const void *bytes, size_t size);

/* Checks the header in data[0..size) and moves behind it. `size` must be the message's size.
 * Returns RDT_ERR_PROTOCOL with the cause. */
rdt_status rdt_wire_open(rdt_wire *wire, size_t size);
/* Reads the body's length from a header, for streams. Returns the same errors. */
rdt_status rdt_wire_body_size(const uint8_t *header, size_t *size);
uint32_t rdt_wire_get_u32(rdt_wire *wire);
uint64_t rdt_wire_get_u64(rdt_wire *wire);
/* Returns the number of bytes. More than `capacity` sets `bad`. */
size_t rdt_wire_get_bytes(rdt_wire *wire, void *bytes, size_t capacity);
/* Reads and terminates a text. A text of `size` or more bytes sets `bad`, and so do control
 * characters, with which a peer could write lines of its own into our log. */
void rdt_wire_get_text(rdt_wire *wire, char *text, size_t size);
/* Reads a peer's refusal, which is a status and a text, to the end of the message. Fails with that status, and with the
 * message "<who> refused: <text>". */
rdt_status rdt_wire_get_refusal(rdt_wire *wire, const char *who);
/* Returns RDT_ERR_PROTOCOL if any read was bad or bytes are left over. */
rdt_status rdt_wire_close(const rdt_wire *wire);

#endif
