/* SPDX-License-Identifier: Apache-2.0
 *
 * The data connections of a channel whose transport uses some: the connecting side makes them, to
 * the port that it reached, and the listening side finds the channel by a nonce of its greeting.
 * docs/protocol.md draws this.
 */
#ifndef RDT_CORE_MEET_LINES_H
#define RDT_CORE_MEET_LINES_H

#include "core/meet/handshake.h"

/* What the listening side expects for one channel. Under the device's lock. */
struct rdt_lines {
  rdt_lines *next;
  const rdt_greeting *greeting;
  rdt_channel *channel;
  uint32_t wanted, taken; /* `taken` has a bit for each */
};

/* The connecting side: makes the channel's data connections. */
rdt_status rdt_lines_connect(const rdt_greeting *greeting, rdt_channel *channel,
                             rdt_deadline deadline);

/* The listening side: from begin to end, data connections for the channel are taken. End returns
 * RDT_ERR_PROTOCOL unless all came. */
void rdt_lines_begin(rdt_lines *lines, const rdt_greeting *greeting, rdt_channel *channel);
rdt_status rdt_lines_end(rdt_lines *lines);
/* Gives the socket, whose first message is in `wire`, to the channel that it names. */
rdt_status rdt_lines_take(rdt_device *device, rdt_wire *wire, rdt_socket socket);

#endif
