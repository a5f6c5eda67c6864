/* SPDX-License-Identifier: Apache-2.0
 *
 * The frames of the TCP transport: a header of fixed size, and for some kinds a body. Every frame of
 * a stream that asks something of the target is an operation; the target acknowledges operations by
 * their number. docs/protocol.md lists the fields.
 */
#ifndef RDT_TRANSPORT_TCP_FRAME_H
#define RDT_TRANSPORT_TCP_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDT_TCP_HEADER_SIZE 32u
#define RDT_TCP_OPERANDS_BYTES 16u
#define RDT_TCP_PIECE_BYTES (512u * 1024) /* the longest body of a write or of an answer */

typedef enum rdt_tcp_kind {
  /* Operations. */
  RDT_TCP_WRITE = 1,  /* the body goes to `value` in region `key` */
  RDT_TCP_READ = 2,   /* asks for `size` bytes from there; DATA answers */
  RDT_TCP_NOTIFY = 3, /* the body is the next bytes of the ring of records */
  RDT_TCP_FENCE =
      4, /* hides later notifications until `value` operations of stream `index` are done */
  RDT_TCP_PROBE = 5, /* asks for an acknowledgement only */
  /* Answers. */
  RDT_TCP_DATA = 6,   /* the body answers the oldest READ without an answer */
  RDT_TCP_ACK = 7,    /* the first `value` operations of this stream are done */
  RDT_TCP_REFUSE = 8, /* operation `value` reached for memory that it may not access */
  RDT_TCP_CREDIT = 9, /* the first `value` bytes of the ring were consumed */
  /* Operations on the word at `value` in region `key`. The body has the operand and what is expected; DATA
   * answers with the old value. */
  RDT_TCP_FETCH_ADD = 10,
  RDT_TCP_COMPARE_SWAP = 11
} rdt_tcp_kind;

typedef struct rdt_tcp_frame {
  uint32_t kind;  /* rdt_tcp_kind */
  uint32_t size;  /* bytes: of the body, or of what READ asks for */
  uint32_t index; /* of the region in the target's table, or a stream */
  uint64_t key;   /* of the region */
  uint64_t value;
} rdt_tcp_frame;

void rdt_tcp_frame_put(const rdt_tcp_frame *frame, uint8_t header[RDT_TCP_HEADER_SIZE]);
/* Returns RDT_ERR_PROTOCOL for a frame that no peer of this version sends. `ring` is the capacity of
 * the ring of records. */
rdt_status rdt_tcp_frame_get(const uint8_t header[RDT_TCP_HEADER_SIZE], uint64_t ring,
                             rdt_tcp_frame *frame);

static inline bool rdt_tcp_is_atomic(uint32_t kind) {
  return kind == RDT_TCP_FETCH_ADD || kind == RDT_TCP_COMPARE_SWAP;
}
static inline bool rdt_tcp_has_body(uint32_t kind) {
  return kind == RDT_TCP_WRITE || kind == RDT_TCP_NOTIFY || kind == RDT_TCP_DATA ||
         rdt_tcp_is_atomic(kind);
}
/* Returns the bytes of DATA that answer the operation; 0: none does. */
static inline uint32_t rdt_tcp_data_bytes(const rdt_tcp_frame *operation) {
  if (rdt_tcp_is_atomic(operation->kind)) return RDT_ATOMIC_SIZE;
  return operation->kind == RDT_TCP_READ ? operation->size : 0;
}

#endif
