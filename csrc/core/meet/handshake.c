/* SPDX-License-Identifier: Apache-2.0
 *
 * A proof is an HMAC over the label of the side that makes it and over all messages of the
 * connection so far: both HELLOs with their nonces, and the ATTACHes with what the transports
 * need. So a proof is invalid on another connection, for the other side, and if any bit was
 * changed. The connecting side proves first, so that whoever only opens a connection gets nothing
 * to try secrets on.
 */
#include "core/meet/handshake.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/random.h"
#include "base/status.h"
#include "base/text.h"
#include "transport/registry.h"

void rdt_hello_put(rdt_wire *wire, const rdt_hello *hello) {
  rdt_wire_put_text(wire, hello->name);
  rdt_wire_put_text(wire, hello->address);
  rdt_wire_put_text(wire, hello->host_id);
  rdt_wire_put_text(wire, hello->local_name);
  rdt_wire_put_text(wire, hello->transports);
  rdt_wire_put_u64(wire, hello->generation);
  rdt_wire_put_bytes(wire, hello->nonce, sizeof(hello->nonce));
  rdt_wire_put_u32(wire, hello->has_secret);
}

void rdt_hello_get(rdt_wire *wire, rdt_hello *hello) {
  rdt_wire_get_text(wire, hello->name, sizeof(hello->name));
  rdt_wire_get_text(wire, hello->address, sizeof(hello->address));
  rdt_wire_get_text(wire, hello->host_id, sizeof(hello->host_id));
  rdt_wire_get_text(wire, hello->local_name, sizeof(hello->local_name));
  rdt_wire_get_text(wire, hello->transports, sizeof(hello->transports));
  hello->generation = rdt_wire_get_u64(wire);
  if (rdt_wire_get_bytes(wire, hello->nonce, sizeof(hello->nonce)) != sizeof(hello->nonce))
    wire->bad = true;
  uint32_t has_secret = rdt_wire_get_u32(wire);
  if (has_secret > 1) wire->bad = true;
  hello->has_secret = has_secret == 1;
}

void rdt_attach_get(rdt_wire *wire, rdt_attach *attach) {
  char name[32];
  rdt_wire_get_text(wire, name, sizeof(name));
  attach->bundle.size =
      rdt_wire_get_bytes(wire, attach->bundle.bytes, sizeof(attach->bundle.bytes));
  uint32_t purpose = rdt_wire_get_u32(wire);
  size_t proof = rdt_wire_get_bytes(wire, attach->proof, sizeof(attach->proof));
  /* An unknown transport makes the message malformed, because we offered the choice. */
  attach->transport = wire->bad ? NULL : rdt_transport_find(name);
  attach->purpose = (rdt_purpose)purpose;
  attach->proven = proof == sizeof(attach->proof);
  if (!attach->transport || purpose >= RDT_PURPOSE_COUNT || (proof && !attach->proven))
    wire->bad = true;
}

static void write_down(rdt_greeting *greeting, const void *data, size_t size) {
  memcpy(greeting->transcript + greeting->said, data, size);
  greeting->said += size;
}

static rdt_status check_room(const rdt_greeting *greeting) {
  size_t left = sizeof(greeting->transcript) - greeting->said;
  if (left >= RDT_WIRE_MESSAGE_SIZE + RDT_LABEL_SIZE) return RDT_OK;
  return rdt_fail(
      RDT_ERR_PROTOCOL,
      "the peer says more than a handshake has: install the same rdmatensor at both ends");
}

static rdt_status hear(rdt_greeting *greeting, const rdt_wire *wire) {
  rdt_status status = check_room(greeting);
  if (status == RDT_OK) write_down(greeting, wire->data, wire->size);
  return status;
}

/* Computes the proof of `side` over the transcript and the body in `wire` up to `end`. */
static rdt_status prove(rdt_greeting *greeting, rdt_side side, const rdt_wire *wire, size_t end,
                        uint8_t proof[RDT_MAC_SIZE]) {
  static const char labels[][RDT_LABEL_SIZE] = {"rdmatensor 4 connecting",
                                                "rdmatensor 4 listening"};
  size_t said = greeting->said;
  rdt_status status = check_room(greeting);
  if (status != RDT_OK) return status;
  write_down(greeting, wire->data + RDT_WIRE_HEADER_SIZE, end - RDT_WIRE_HEADER_SIZE);
  write_down(greeting, labels[side], RDT_LABEL_SIZE);
  status = rdt_secret_mac(greeting->device->secret, greeting->transcript, greeting->said, proof);
  greeting->said = said;
  return status;
}

static rdt_status check_proof(rdt_greeting *greeting, const rdt_wire *wire,
                              const rdt_attach *attach, size_t end) {
  uint8_t wanted[RDT_MAC_SIZE];
  rdt_side theirs = greeting->side == RDT_SIDE_LISTENING ? RDT_SIDE_CONNECTING : RDT_SIDE_LISTENING;
  if (!greeting->device->secret) return RDT_OK;
  rdt_status status = prove(greeting, theirs, wire, end, wanted);
  if (status != RDT_OK) return status;
  if (attach->proven && rdt_mac_equal(wanted, attach->proof)) return RDT_OK;
  return rdt_fail(RDT_ERR_REFUSED,
                  "%s does not have the secret of %s: the files that " RDT_ENV_PREFIX
                  "SECRET_FILE names on the two machines must be the same (compare with sha256sum)",
                  greeting->peer.name, greeting->device->name);
}

void rdt_greeting_begin(rdt_greeting *greeting, rdt_device *device, rdt_side side,
                        rdt_socket socket) {
  greeting->device = device;
  greeting->side = side;
  greeting->socket = socket;
  greeting->said = 0;
  greeting->heard = false;
}

static rdt_status describe_us(const rdt_device *device, rdt_hello *hello) {
  memset(hello, 0, sizeof(*hello));
  memcpy(hello->name, device->name, sizeof(hello->name));
  memcpy(hello->address, device->address, sizeof(hello->address));
  memcpy(hello->host_id, device->host_id, sizeof(hello->host_id));
  memcpy(hello->local_name, device->local_name, sizeof(hello->local_name));
  for (size_t i = 0; i < rdt_transport_count; i++)
    if (device->transports[i].open)
      rdt_text_append(hello->transports, sizeof(hello->transports), "%s%s",
                      hello->transports[0] ? "," : "", rdt_transports[i]->name);
  hello->generation = device->generation;
  hello->has_secret = device->secret != NULL;
  return rdt_random(hello->nonce, sizeof(hello->nonce));
}

rdt_status rdt_greeting_send_hello(rdt_greeting *greeting, rdt_deadline deadline) {
  rdt_hello hello;
  rdt_wire wire;
  rdt_status status = describe_us(greeting->device, &hello);
  if (status != RDT_OK) return status;
  memcpy(greeting->nonce, hello.nonce, sizeof(hello.nonce));
  rdt_wire_begin(&wire, RDT_MESSAGE_HELLO, 0);
  rdt_hello_put(&wire, &hello);
  status = rdt_wire_end(&wire);
  if (status == RDT_OK) status = hear(greeting, &wire);
  return status == RDT_OK ? rdt_net_send(greeting->socket, &wire, NULL, deadline) : status;
}

rdt_status rdt_greeting_take_hello(rdt_greeting *greeting, rdt_wire *wire) {
  if (wire->type != RDT_MESSAGE_HELLO || wire->sequence != 0)
    return rdt_fail(RDT_ERR_PROTOCOL,
                    "message %u came instead of a hello: install the same rdmatensor at both ends",
                    wire->type);
  rdt_hello_get(wire, &greeting->peer);
  rdt_status status = rdt_wire_close(wire);
  greeting->heard = status == RDT_OK;
  return status == RDT_OK ? hear(greeting, wire) : status;
}

rdt_status rdt_greeting_send_attach(rdt_greeting *greeting, const rdt_transport *transport,
                                    const rdt_bundle *bundle, rdt_purpose purpose,
                                    rdt_deadline deadline) {
  rdt_wire wire;
  uint8_t proof[RDT_MAC_SIZE];
  bool proven = greeting->device->secret != NULL;
  rdt_status status = RDT_OK;
  rdt_wire_begin(&wire, RDT_MESSAGE_ATTACH, 0);
  rdt_wire_put_text(&wire, transport->name);
  rdt_wire_put_bytes(&wire, bundle->bytes, bundle->size);
  rdt_wire_put_u32(&wire, purpose);
  if (proven) status = prove(greeting, greeting->side, &wire, wire.at, proof);
  rdt_wire_put_bytes(&wire, proof, proven ? sizeof(proof) : 0);
  if (status == RDT_OK) status = rdt_wire_end(&wire);
  if (status == RDT_OK) status = hear(greeting, &wire);
  if (status == RDT_OK) status = rdt_net_send(greeting->socket, &wire, &bundle->fds, deadline);
  return status;
}

rdt_status rdt_greeting_take_attach(rdt_greeting *greeting, rdt_wire *wire, rdt_attach *attach) {
  if (wire->type != RDT_MESSAGE_ATTACH || wire->sequence != 0)
    return rdt_fail(
        RDT_ERR_PROTOCOL,
        "message %u came instead of an attach: install the same rdmatensor at both ends",
        wire->type);
  rdt_attach_get(wire, attach);
  rdt_status status = rdt_wire_close(wire);
  size_t proof = attach->proven ? sizeof(attach->proof) : 0;
  if (status == RDT_OK) status = check_proof(greeting, wire, attach, wire->size - proof - 4);
  return status == RDT_OK ? hear(greeting, wire) : status;
}

rdt_status rdt_greeting_prove_data_connection(const rdt_greeting *greeting, uint32_t index,
                                              uint8_t proof[RDT_MAC_SIZE], size_t *size) {
  static const char label[RDT_LABEL_SIZE] = "rdmatensor 4 data";
  uint8_t said[RDT_LABEL_SIZE + 2 * RDT_NONCE_SIZE + 1];
  bool connecting = greeting->side == RDT_SIDE_CONNECTING;
  *size = 0;
  if (!greeting->device->secret) return RDT_OK;
  *size = RDT_MAC_SIZE;
  memcpy(said, label, RDT_LABEL_SIZE);
  memcpy(said + RDT_LABEL_SIZE, connecting ? greeting->nonce : greeting->peer.nonce,
         RDT_NONCE_SIZE);
  memcpy(said + RDT_LABEL_SIZE + RDT_NONCE_SIZE,
         connecting ? greeting->peer.nonce : greeting->nonce, RDT_NONCE_SIZE);
  said[sizeof(said) - 1] = (uint8_t)index;
  return rdt_secret_mac(greeting->device->secret, said, sizeof(said), proof);
}

void rdt_greeting_introduce(const rdt_greeting *greeting, rdt_channel *channel) {
  const rdt_hello *peer = &greeting->peer;
  channel->control = greeting->socket;
  channel->peer_generation = peer->generation;
  memcpy(channel->peer_name, peer->name, sizeof(peer->name));
  memcpy(channel->peer_address, peer->address, sizeof(peer->address));
}

rdt_status rdt_greeting_check_trust(const rdt_greeting *greeting, const rdt_origin *origin) {
  const rdt_device *device = greeting->device;
  const rdt_hello *peer = &greeting->peer;
  if (peer->has_secret != (device->secret != NULL))
    return rdt_fail(RDT_ERR_REFUSED,
                    "%s has a secret, and %s has none: set " RDT_ENV_PREFIX
                    "SECRET_FILE for both, to files with the same secret",
                    peer->has_secret ? peer->name : device->name,
                    peer->has_secret ? device->name : peer->name);
  return device->secret ? RDT_OK : rdt_origin_check(origin, device->name);
}
