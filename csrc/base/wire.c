/* SPDX-License-Identifier: Apache-2.0 */
#include "base/wire.h"

#include <ctype.h>
#include <string.h>

#include "base/status.h"

static void store(uint8_t *at, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t fetch(const uint8_t *at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
  return value;
}

/* Moves over the next `size` bytes. Returns NULL and sets `bad` if they are not there. */
static uint8_t *advance(rdt_wire *wire, size_t size, size_t limit) {
  if (wire->bad || size > limit - wire->at) {
    wire->bad = true;
    return NULL;
  }
  uint8_t *at = wire->data + wire->at;
  wire->at += size;
  return at;
}

static void put(rdt_wire *wire, uint64_t value, size_t bytes) {
  uint8_t *at = advance(wire, bytes, sizeof(wire->data));
  if (at) store(at, value, bytes);
}

static uint64_t get(rdt_wire *wire, size_t bytes) {
  const uint8_t *at = advance(wire, bytes, wire->size);
  return at ? fetch(at, bytes) : 0;
}

void rdt_wire_begin(rdt_wire *wire, rdt_message_type type, uint32_t sequence) {
  wire->at = RDT_WIRE_HEADER_SIZE;
  wire->size = 0;
  wire->bad = false;
  wire->type = (uint16_t)type;
  wire->sequence = sequence;
}

void rdt_wire_put_u32(rdt_wire *wire, uint32_t value) { put(wire, value, 4); }
void rdt_wire_put_u64(rdt_wire *wire, uint64_t value) { put(wire, value, 8); }

void rdt_wire_put_bytes(rdt_wire *wire, const void *bytes, size_t size) {
  put(wire, size, 4);
  uint8_t *at = advance(wire, size, sizeof(wire->data));
  if (at && size) memcpy(at, bytes, size);
}

void rdt_wire_put_text(rdt_wire *wire, const char *text) {
  rdt_wire_put_bytes(wire, text, strlen(text));
}

rdt_status rdt_wire_end(rdt_wire *wire) {
  if (wire->bad)
    return rdt_fail(RDT_ERR_RANGE, "a control message exceeds %d bytes", RDT_WIRE_MESSAGE_SIZE);
  wire->size = wire->at;
  store(wire->data, RDT_WIRE_MAGIC, 4);
  store(wire->data + 4, RDT_WIRE_VERSION, 2);
  store(wire->data + 6, wire->type, 2);
  store(wire->data + 8, wire->size - RDT_WIRE_HEADER_SIZE, 4);
  store(wire->data + 12, wire->sequence, 4);
  return RDT_OK;
}

rdt_status rdt_wire_unload(const rdt_wire *wire, void *bytes, size_t capacity, size_t *size) {
  *size = wire->at - RDT_WIRE_HEADER_SIZE;
  if (wire->bad || *size > capacity)
    return rdt_fail(RDT_ERR_RANGE, "a part of a control message exceeds %zu bytes", capacity);
  memcpy(bytes, wire->data + RDT_WIRE_HEADER_SIZE, *size);
  return RDT_OK;
}

void rdt_wire_load(rdt_wire *wire, const void *bytes, size_t size) {
  rdt_wire_begin(wire, 0, 0);
  wire->bad = size > sizeof(wire->data) - RDT_WIRE_HEADER_SIZE;
  wire->size = RDT_WIRE_HEADER_SIZE + (wire->bad ? 0 : size);
  memcpy(wire->data + RDT_WIRE_HEADER_SIZE, bytes, wire->size - RDT_WIRE_HEADER_SIZE);
}

rdt_status rdt_wire_body_size(const uint8_t *header, size_t *size) {
  unsigned version = (unsigned)fetch(header + 4, 2);
  size_t body = (size_t)fetch(header + 8, 4);
  if (fetch(header, 4) != RDT_WIRE_MAGIC)
    return rdt_fail(RDT_ERR_PROTOCOL, "the other end does not speak rdmatensor's protocol");
  if (version != RDT_WIRE_VERSION)
    return rdt_fail(RDT_ERR_PROTOCOL,
                    "the peer speaks protocol version %u, this library version %u: install the "
                    "same rdmatensor on both machines",
                    version, RDT_WIRE_VERSION);
  if (body > RDT_WIRE_MESSAGE_SIZE - RDT_WIRE_HEADER_SIZE)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer announces a control message of %zu bytes", body);
  *size = body;
  return RDT_OK;
}

rdt_status rdt_wire_open(rdt_wire *wire, size_t size) {
  size_t body;
  if (size < RDT_WIRE_HEADER_SIZE)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer sent a control message of only %zu bytes", size);
  rdt_status status = rdt_wire_body_size(wire->data, &body);
  if (status != RDT_OK) return status;
  if (body != size - RDT_WIRE_HEADER_SIZE)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer announces %zu bytes and sends %zu", body,
                    size - RDT_WIRE_HEADER_SIZE);
  wire->at = RDT_WIRE_HEADER_SIZE;
  wire->size = size;
  wire->bad = false;
  wire->type = (uint16_t)fetch(wire->data + 6, 2);
  wire->sequence = (uint32_t)fetch(wire->data + 12, 4);
  return RDT_OK;
}

uint32_t rdt_wire_get_u32(rdt_wire *wire) { return (uint32_t)get(wire, 4); }
uint64_t rdt_wire_get_u64(rdt_wire *wire) { return get(wire, 8); }

size_t rdt_wire_get_bytes(rdt_wire *wire, void *bytes, size_t capacity) {
  size_t size = rdt_wire_get_u32(wire);
  if (size > capacity) wire->bad = true;
  const uint8_t *at = advance(wire, size, wire->size);
  if (!at) return 0;
  if (size) memcpy(bytes, at, size);
  return size;
}

void rdt_wire_get_text(rdt_wire *wire, char *text, size_t size) {
  size_t length = rdt_wire_get_bytes(wire, text, size - 1);
  text[length] = '\0';
  for (size_t i = 0; i < length; i++)
    if (iscntrl((unsigned char)text[i])) wire->bad = true;
}

rdt_status rdt_wire_close(const rdt_wire *wire) {
  if (wire->bad || wire->at != wire->size)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer sent a malformed control message of type %u",
                    wire->type);
  return RDT_OK;
}

rdt_status rdt_wire_get_refusal(rdt_wire *wire, const char *who) {
  char text[512];
  rdt_status status = (rdt_status)(int32_t)rdt_wire_get_u32(wire);
  rdt_wire_get_text(wire, text, sizeof(text));
  if (rdt_wire_close(wire) != RDT_OK) return RDT_ERR_PROTOCOL;
  return rdt_fail(rdt_status_refused(status), "%s refused: %s", who, text);
}
