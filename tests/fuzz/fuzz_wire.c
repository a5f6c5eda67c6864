/* SPDX-License-Identifier: Apache-2.0
 *
 * Control messages as sockets bring them, whole and in pieces, and their fields: what is read lies inside of
 * the message, texts are terminated and have no control characters.
 */
#include <ctype.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/net.h"
#include "base/wire.h"
#include "fuzz.h"

#define STEPS 64

static void get_text(rdt_wire *wire, size_t size) {
  char *text = malloc(size);
  memset(text, 'x', size);
  rdt_wire_get_text(wire, text, size);
  FUZZ_EXPECT(memchr(text, '\0', size));
  for (const char *at = text; !wire->bad && *at; at++) FUZZ_EXPECT(!iscntrl((unsigned char)*at));
  free(text);
}

static void get_bytes(rdt_wire *wire, size_t capacity) {
  void *bytes = malloc(capacity ? capacity : 1);
  FUZZ_EXPECT(rdt_wire_get_bytes(wire, bytes, capacity) <= capacity);
  free(bytes);
}

/* Fields in the order that `script` says. */
static void read_fields(rdt_wire *wire, fuzz_input *script) {
  for (int i = 0; i < STEPS && script->left > 0; i++) {
    uint8_t field = fuzz_u8(script);
    if (field % 4 == 0)
      rdt_wire_get_u32(wire);
    else if (field % 4 == 1)
      rdt_wire_get_u64(wire);
    else if (field % 4 == 2)
      get_text(wire, 1 + fuzz_u8(script));
    else
      get_bytes(wire, fuzz_u8(script));
    FUZZ_EXPECT(wire->at <= wire->size && wire->size <= sizeof(wire->data));
  }
  if (rdt_wire_close(wire) == RDT_OK) FUZZ_EXPECT(!wire->bad && wire->at == wire->size);
}

static void load_fields(fuzz_input *input, fuzz_input *script) {
  rdt_wire wire;
  size_t size;
  const uint8_t *bytes = fuzz_bytes(input, SIZE_MAX, &size);
  uint8_t *copy = fuzz_copy(bytes, size);
  rdt_wire_load(&wire, copy, size);
  free(copy);
  read_fields(&wire, script);
}

/* What the socket brings, until it brings nothing any more. */
static void receive_all(int socket, rdt_wire *wire, size_t *have, fuzz_input *script) {
  rdt_status status;
  do {
    rdt_fds fds = {.count = 0};
    status = rdt_net_receive_part(rdt_socket_of(socket), wire, have, &fds);
    FUZZ_EXPECT(*have <= sizeof(wire->data) && fds.count == 0);
    if (status != RDT_OK) continue;
    FUZZ_EXPECT(wire->size <= sizeof(wire->data) && wire->at == RDT_WIRE_HEADER_SIZE);
    read_fields(wire, script);
  } while (status == RDT_OK);
}

static void through_socket(int type, fuzz_input *input, fuzz_input *script) {
  static rdt_wire wire;
  int ends[2];
  size_t have = 0;
  FUZZ_EXPECT(socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, ends) == 0);
  for (int i = 0; i < STEPS && input->left > 0; i++) {
    size_t size;
    const uint8_t *bytes = fuzz_chunk(input, &size);
    if (send(ends[0], bytes, size, MSG_NOSIGNAL) < 0 && size > 0) break;
    receive_all(ends[1], &wire, &have, script);
  }
  close(ends[0]);
  close(ends[1]);
}

/* How to read, then what. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size}, script;
  uint8_t way = fuzz_u8(&input);
  script.data = fuzz_chunk(&input, &script.left);
  if (way % 3 == 0)
    load_fields(&input, &script);
  else
    through_socket(way % 3 == 1 ? SOCK_STREAM : SOCK_SEQPACKET, &input, &script);
  return 0;
}

static void put_sample(rdt_wire *wire) {
  rdt_wire_begin(wire, RDT_MESSAGE_HELLO, 7);
  rdt_wire_put_text(wire, "task");
  rdt_wire_put_text(wire, "127.0.0.1:4000");
  rdt_wire_put_bytes(wire, "bytes", 5);
  rdt_wire_put_u64(wire, 0x1122334455667788u);
  rdt_wire_put_u32(wire, 9);
  FUZZ_EXPECT(rdt_wire_end(wire) == RDT_OK);
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  static const uint8_t script[] = {2, 255, 2, 255, 3, 255, 1, 0};
  fuzz_output out = {seed, 0, capacity};
  rdt_wire wire;
  if (number > 3) return 0;
  put_sample(&wire);
  fuzz_put_number(&out, number < 3 ? number : 1, 1);
  fuzz_put_chunk(&out, script, sizeof(script));
  if (number == 0) {
    fuzz_put(&out, wire.data + RDT_WIRE_HEADER_SIZE, wire.size - RDT_WIRE_HEADER_SIZE);
  } else if (number < 3) {
    fuzz_put_chunk(&out, wire.data, wire.size);
    fuzz_put_chunk(&out, wire.data, wire.size);
  } else { /* in pieces */
    for (size_t at = 0; at < wire.size; at += 10)
      fuzz_put_chunk(&out, wire.data + at, wire.size - at < 10 ? wire.size - at : 10);
  }
  return out.size;
}
