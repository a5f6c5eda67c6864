/* SPDX-License-Identifier: Apache-2.0 */
#include "core/meet/lines.h"

#include <string.h>

#include "base/status.h"
#include "core/meet/encrypt.h"

static uint32_t wanted_by(const rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  return transport->line_count ? transport->line_count(channel->endpoint) : 0;
}

static rdt_status send_ready(rdt_socket socket, rdt_deadline deadline) {
  rdt_wire wire;
  rdt_wire_begin(&wire, RDT_MESSAGE_READY, 0);
  rdt_status status = rdt_wire_end(&wire);
  return status == RDT_OK ? rdt_net_send(socket, &wire, NULL, deadline) : status;
}

/* ---- the connecting side ----------------------------------------------------------------------------- */

static rdt_status name_channel(const rdt_greeting *greeting, uint32_t index, rdt_socket socket,
                               rdt_deadline deadline) {
  rdt_wire wire;
  uint8_t proof[RDT_MAC_SIZE];
  size_t size;
  rdt_status status = rdt_greeting_prove_line(greeting, index, proof, &size);
  if (status != RDT_OK) return status;
  rdt_wire_begin(&wire, RDT_MESSAGE_LINE, 0);
  rdt_wire_put_bytes(&wire, greeting->peer.nonce, RDT_NONCE_SIZE);
  rdt_wire_put_u32(&wire, index);
  rdt_wire_put_bytes(&wire, proof, size);
  status = rdt_wire_end(&wire);
  if (status == RDT_OK) status = rdt_net_send(socket, &wire, NULL, deadline);
  if (status == RDT_OK) status = rdt_net_receive(socket, &wire, NULL, deadline);
  if (status == RDT_OK && wire.type != RDT_MESSAGE_READY)
    status = rdt_fail(RDT_ERR_REFUSED, "%s refused a data connection: its log says why",
                      greeting->peer.address);
  return status == RDT_OK ? rdt_wire_close(&wire) : status;
}

rdt_status rdt_lines_connect(const rdt_greeting *greeting, rdt_channel *channel,
                             rdt_deadline deadline) {
  rdt_status status = RDT_OK;
  for (uint32_t i = 0; i < wanted_by(channel) && status == RDT_OK; i++) {
    rdt_socket socket = RDT_NO_SOCKET;
    status =
        rdt_net_connect_again(&greeting->reached, greeting->peer.address, deadline, &socket.fd);
    if (status == RDT_OK)
      status = rdt_encrypt_connect(channel->device, greeting->peer.address, deadline, &socket);
    if (status == RDT_OK) status = name_channel(greeting, i, socket, deadline);
    if (status == RDT_OK) status = channel->transport->line_add(channel->endpoint, i, socket);
    if (status != RDT_OK) rdt_socket_close(&socket);
  }
  return status;
}

/* ---- the listening side ------------------------------------------------------------------------------ */

void rdt_lines_begin(rdt_lines *lines, const rdt_greeting *greeting, rdt_channel *channel,
                     const char *network) {
  rdt_device *device = channel->device;
  *lines = (rdt_lines){
      .greeting = greeting, .channel = channel, .network = network, .wanted = wanted_by(channel)};
  pthread_mutex_lock(&device->lock);
  lines->next = device->expected;
  device->expected = lines;
  pthread_mutex_unlock(&device->lock);
}

rdt_status rdt_lines_end(rdt_lines *lines) {
  rdt_device *device = lines->channel->device;
  pthread_mutex_lock(&device->lock);
  rdt_lines **link = &device->expected;
  while (*link != lines) link = &(*link)->next;
  *link = lines->next;
  pthread_mutex_unlock(&device->lock);
  if (lines->taken == (1u << lines->wanted) - 1) return RDT_OK;
  return rdt_fail(RDT_ERR_PROTOCOL, "the peer made fewer data connections than agreed");
}

uint32_t rdt_lines_expected(const rdt_device *device, const char *network) {
  uint32_t count = 0;
  for (const rdt_lines *each = device->expected; each; each = each->next)
    if (strcmp(each->network, network) == 0)
      count += each->wanted - (uint32_t)__builtin_popcount(each->taken);
  return count;
}

static rdt_status check(const rdt_lines *lines, uint32_t index, const uint8_t *proof, size_t size) {
  uint8_t wanted[RDT_MAC_SIZE];
  size_t wanted_size;
  if (index >= lines->wanted || (lines->taken >> index & 1))
    return rdt_fail(RDT_ERR_REFUSED, "data connection %u is one too many", index);
  rdt_status status = rdt_greeting_prove_line(lines->greeting, index, wanted, &wanted_size);
  if (status != RDT_OK) return status;
  if (size == wanted_size && (size == 0 || rdt_mac_equal(wanted, proof))) return RDT_OK;
  return rdt_fail(RDT_ERR_REFUSED, "a data connection does not prove that it belongs to %s",
                  lines->greeting->peer.name);
}

/* The peer waits for the answer, which an empty socket takes at once. Until the channel opens, nothing
 * else is sent. */
static rdt_status take(rdt_lines *lines, uint32_t index, rdt_socket socket) {
  rdt_channel *channel = lines->channel;
  rdt_status status = send_ready(socket, 0);
  if (status == RDT_OK) status = channel->transport->line_add(channel->endpoint, index, socket);
  if (status == RDT_OK) lines->taken |= 1u << index;
  return status;
}

rdt_status rdt_lines_take(rdt_device *device, rdt_wire *wire, rdt_socket socket) {
  uint8_t nonce[RDT_NONCE_SIZE], proof[RDT_MAC_SIZE];
  if (rdt_wire_get_bytes(wire, nonce, sizeof(nonce)) != sizeof(nonce)) wire->bad = true;
  uint32_t index = rdt_wire_get_u32(wire);
  size_t size = rdt_wire_get_bytes(wire, proof, sizeof(proof));
  rdt_status status = rdt_wire_close(wire);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&device->lock);
  rdt_lines *lines = device->expected;
  while (lines && memcmp(lines->greeting->nonce, nonce, sizeof(nonce)) != 0) lines = lines->next;
  status = lines ? check(lines, index, proof, size)
                 : rdt_fail(RDT_ERR_REFUSED, "a data connection belongs to no channel");
  if (status == RDT_OK) status = take(lines, index, socket);
  pthread_mutex_unlock(&device->lock);
  return status;
}
