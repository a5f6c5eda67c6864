/* SPDX-License-Identifier: Apache-2.0 */
#include "core/meet/data_connections.h"

#include <string.h>

#include "base/status.h"
#include "core/meet/encrypt.h"

static uint32_t wanted_by(const rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  return transport->data_connection_count ? transport->data_connection_count(channel->endpoint) : 0;
}

static rdt_status send_ready(rdt_socket socket, rdt_deadline deadline) {
  rdt_wire wire;
  rdt_wire_begin(&wire, RDT_MESSAGE_READY, 0);
  rdt_status status = rdt_wire_end(&wire);
  return status == RDT_OK ? rdt_net_send(socket, &wire, NULL, deadline) : status;
}

static rdt_status name_channel(const rdt_greeting *greeting, uint32_t index, rdt_socket socket,
                               rdt_deadline deadline) {
  rdt_wire wire;
  uint8_t proof[RDT_MAC_SIZE];
  size_t size;
  rdt_status status = rdt_greeting_prove_data_connection(greeting, index, proof, &size);
  if (status != RDT_OK) return status;
  rdt_wire_begin(&wire, RDT_MESSAGE_DATA, 0);
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

rdt_status rdt_data_connections_connect(const rdt_greeting *greeting, rdt_channel *channel,
                                        rdt_deadline deadline) {
  rdt_status status = RDT_OK;
  for (uint32_t i = 0; i < wanted_by(channel) && status == RDT_OK; i++) {
    rdt_socket socket = RDT_NO_SOCKET;
    status =
        rdt_net_connect_again(&greeting->reached, greeting->peer.address, deadline, &socket.fd);
    if (status == RDT_OK)
      status = rdt_encrypt_connect(channel->device, greeting->peer.address, deadline, &socket);
    if (status == RDT_OK) status = name_channel(greeting, i, socket, deadline);
    if (status == RDT_OK)
      status = channel->transport->data_connection_add(channel->endpoint, i, socket);
    if (status != RDT_OK) rdt_socket_close(&socket);
  }
  return status;
}

void rdt_data_connections_begin(rdt_data_connections *connections, const rdt_greeting *greeting,
                                rdt_channel *channel, const char *network) {
  rdt_device *device = channel->device;
  *connections = (rdt_data_connections){
      .greeting = greeting, .channel = channel, .network = network, .wanted = wanted_by(channel)};
  pthread_mutex_lock(&device->lock);
  connections->next = device->expected;
  device->expected = connections;
  pthread_mutex_unlock(&device->lock);
}

rdt_status rdt_data_connections_end(rdt_data_connections *connections) {
  rdt_device *device = connections->channel->device;
  pthread_mutex_lock(&device->lock);
  rdt_data_connections **link = &device->expected;
  while (*link != connections) link = &(*link)->next;
  *link = connections->next;
  pthread_mutex_unlock(&device->lock);
  if (connections->taken == (1u << connections->wanted) - 1) return RDT_OK;
  return rdt_fail(RDT_ERR_PROTOCOL, "the peer made fewer data connections than agreed");
}

uint32_t rdt_data_connections_expected(const rdt_device *device, const char *network) {
  uint32_t count = 0;
  for (const rdt_data_connections *each = device->expected; each; each = each->next)
    if (strcmp(each->network, network) == 0)
      count += each->wanted - (uint32_t)__builtin_popcount(each->taken);
  return count;
}

static rdt_status check(const rdt_data_connections *connections, uint32_t index,
                        const uint8_t *proof, size_t size) {
  uint8_t wanted[RDT_MAC_SIZE];
  size_t wanted_size;
  if (index >= connections->wanted || (connections->taken >> index & 1))
    return rdt_fail(RDT_ERR_REFUSED, "data connection %u is one too many", index);
  rdt_status status =
      rdt_greeting_prove_data_connection(connections->greeting, index, wanted, &wanted_size);
  if (status != RDT_OK) return status;
  if (size == wanted_size && (size == 0 || rdt_mac_equal(wanted, proof))) return RDT_OK;
  return rdt_fail(RDT_ERR_REFUSED, "a data connection does not prove that it belongs to %s",
                  connections->greeting->peer.name);
}

/* The peer waits for the answer, which an empty socket takes at once. Until the channel opens, nothing
 * else is sent. */
static rdt_status take(rdt_data_connections *connections, uint32_t index, rdt_socket socket) {
  rdt_channel *channel = connections->channel;
  rdt_status status = send_ready(socket, 0);
  if (status == RDT_OK)
    status = channel->transport->data_connection_add(channel->endpoint, index, socket);
  if (status == RDT_OK) connections->taken |= 1u << index;
  return status;
}

rdt_status rdt_data_connections_take(rdt_device *device, rdt_wire *wire, rdt_socket socket) {
  uint8_t nonce[RDT_NONCE_SIZE], proof[RDT_MAC_SIZE];
  if (rdt_wire_get_bytes(wire, nonce, sizeof(nonce)) != sizeof(nonce)) wire->bad = true;
  uint32_t index = rdt_wire_get_u32(wire);
  size_t size = rdt_wire_get_bytes(wire, proof, sizeof(proof));
  rdt_status status = rdt_wire_close(wire);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&device->lock);
  rdt_data_connections *connections = device->expected;
  while (connections && memcmp(connections->greeting->nonce, nonce, sizeof(nonce)) != 0)
    connections = connections->next;
  status = connections ? check(connections, index, proof, size)
                       : rdt_fail(RDT_ERR_REFUSED, "a data connection belongs to no channel");
  if (status == RDT_OK) status = take(connections, index, socket);
  pthread_mutex_unlock(&device->lock);
  return status;
}
