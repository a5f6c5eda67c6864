/* SPDX-License-Identifier: Apache-2.0
 *
 * The data connections of a channel whose transport uses some: the connecting side makes them, to
 * the port that it reached, and the listening side finds the channel by a nonce of its greeting.
 * docs/protocol.md draws this.
 */
#ifndef RDT_CORE_MEET_DATA_CONNECTIONS_H
#define RDT_CORE_MEET_DATA_CONNECTIONS_H

#include "core/meet/handshake.h"

/* What the listening side expects for one channel. Under the device's lock. */
struct rdt_data_connections {
  rdt_data_connections *next;
  const rdt_greeting *greeting;
  rdt_channel *channel;
  const char *network;    /* from where the peer connects */
  uint32_t wanted, taken; /* `taken` has a bit for each */
};

/* The connecting side: makes the channel's data connections. */
rdt_status rdt_data_connections_connect(const rdt_greeting *greeting, rdt_channel *channel,
                                        rdt_deadline deadline);

/* The listening side: from begin to end, data connections for the channel are taken. End returns
 * RDT_ERR_PROTOCOL unless all came. `network` must live until then. */
void rdt_data_connections_begin(rdt_data_connections *connections, const rdt_greeting *greeting,
                                rdt_channel *channel, const char *network);
rdt_status rdt_data_connections_end(rdt_data_connections *connections);
/* Returns how many data connections are to come from that network. Call it under the device's lock. */
uint32_t rdt_data_connections_expected(const rdt_device *device, const char *network);
/* Gives the socket, whose first message is in `wire`, to the channel that it names. */
rdt_status rdt_data_connections_take(rdt_device *device, rdt_wire *wire, rdt_socket socket);

#endif
