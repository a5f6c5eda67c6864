/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/frame.h"

#include <string.h>

#include "base/status.h"

static void put(uint8_t *to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *from, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; i++) value |= (uint64_t)from[i] << 8 * i;
  return value;
}

void rdt_tcp_frame_put(const rdt_tcp_frame *frame, uint8_t header[RDT_TCP_HEADER_SIZE]) {
  put(header, frame->kind, 4);
  put(header + 4, frame->size, 4);
  put(header + 8, frame->index, 4);
  put(header + 12, 0, 4);
  put(header + 16, frame->key, 8);
  put(header + 24, frame->value, 8);
}

static bool is_sound(const rdt_tcp_frame *frame, uint64_t reserved, uint64_t ring) {
  if (frame->kind < RDT_TCP_WRITE || frame->kind > RDT_TCP_COMPARE_SWAP || reserved != 0)
    return false;
  switch (frame->kind) {
    case RDT_TCP_WRITE:
    case RDT_TCP_READ:
    case RDT_TCP_DATA:
      return frame->size > 0 && frame->size <= RDT_TCP_PIECE_BYTES;
    case RDT_TCP_NOTIFY:
      return frame->size > 0 && frame->size <= ring;
    case RDT_TCP_FETCH_ADD:
    case RDT_TCP_COMPARE_SWAP:
      return frame->size == RDT_TCP_OPERANDS_BYTES;
    default:
      return frame->size == 0;
  }
}

rdt_status rdt_tcp_frame_get(const uint8_t header[RDT_TCP_HEADER_SIZE], uint64_t ring,
                             rdt_tcp_frame *frame) {
  *frame = (rdt_tcp_frame){.kind = (uint32_t)get(header, 4),
                           .size = (uint32_t)get(header + 4, 4),
                           .index = (uint32_t)get(header + 8, 4),
                           .key = get(header + 16, 8),
                           .value = get(header + 24, 8)};
  if (is_sound(frame, get(header + 12, 4), ring)) return RDT_OK;
  return rdt_fail(RDT_ERR_PROTOCOL, "the peer sent a malformed frame (kind %u, %u bytes)",
                  frame->kind, frame->size);
}
