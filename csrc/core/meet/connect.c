/* SPDX-License-Identifier: Apache-2.0
 *
 * The connecting side. Over TCP both devices send HELLO, which lists their transports. Then the
 * connecting device attaches a transport that both can use. A local transport is attached over a
 * unix socket, after another HELLO there, and so is any transport if only the user proves who the
 * peer is. Otherwise it is attached over the same TCP connection. That socket stays as the
 * channel's control connection. docs/protocol.md draws this; bootstrap.c is the other side.
 */
#include "core/meet/connect.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "base/text.h"
#include "base/wait.h"
#include "core/meet/encrypt.h"
#include "core/meet/handshake.h"
#include "core/meet/lines.h"
#include "core/post/channel.h"
#include "transport/registry.h"

/* Records a peer's refusal in its own words. */
static rdt_status read_refusal(rdt_wire *wire, const char *address) {
  char text[512];
  rdt_status status = (rdt_status)(int32_t)rdt_wire_get_u32(wire);
  rdt_wire_get_text(wire, text, sizeof(text));
  if (rdt_wire_close(wire) != RDT_OK) return RDT_ERR_PROTOCOL;
  return rdt_fail(rdt_status_refused(status), "%s refused: %s", address, text);
}

/* Receives the answer to our message. A refusal is an error. */
static rdt_status receive_answer(rdt_greeting *greeting, const char *address, rdt_wire *wire,
                                 rdt_fds *fds, rdt_deadline deadline) {
  rdt_status status = rdt_net_receive(greeting->socket, wire, fds, deadline);
  if (status == RDT_OK && wire->type == RDT_MESSAGE_REFUSAL) status = read_refusal(wire, address);
  return status;
}

static rdt_status exchange_hello(rdt_greeting *greeting, const char *address,
                                 rdt_deadline deadline) {
  rdt_wire wire;
  rdt_origin origin;
  rdt_status status = rdt_origin_of(greeting->socket.fd, &origin);
  if (status == RDT_OK && !greeting->device->secret)
    status = rdt_origin_check(&origin, greeting->device->name);
  if (status == RDT_OK) status = rdt_greeting_send_hello(greeting, deadline);
  if (status == RDT_OK) status = receive_answer(greeting, address, &wire, NULL, deadline);
  if (status == RDT_OK) status = rdt_greeting_take_hello(greeting, &wire);
  return status == RDT_OK ? rdt_greeting_check_trust(greeting, &origin) : status;
}

/* A local transport needs a peer of our user, and so do others if there is no secret. Connects
 * *local to the peer's unix socket in these cases. Returns RDT_ERR_REFUSED if the transport is
 * not for this peer. */
static rdt_status check_user(const rdt_device *device, const rdt_hello *peer,
                             const rdt_transport *transport, rdt_deadline deadline, int *local) {
  if (!transport->local && device->secret) return RDT_OK;
  bool near = strcmp(device->host_id, peer->host_id) == 0;
  rdt_status status = near ? rdt_local_connect(peer->local_name, deadline, local) : RDT_ERR_REFUSED;
  if (status != RDT_ERR_REFUSED || transport->local) return status;
  if (rdt_config_number(RDT_CONFIG_INSECURE)) return RDT_OK;
  return rdt_fail(RDT_ERR_REFUSED,
                  "without a secret it is only for processes of one user on one host: "
                  "set " RDT_ENV_PREFIX "SECRET_FILE for both (docs/security.md)");
}

/* Chooses the first transport that both devices have and that reaches the peer, which depends on
 * the peer's user. *local is the unix socket over which the transport must be attached, or -1. */
static rdt_status choose_transport(const rdt_device *device, const rdt_hello *peer,
                                   rdt_deadline deadline, const rdt_transport **chosen,
                                   int *local) {
  char why[256], reasons[768] = "";
  for (size_t i = 0; i < rdt_transport_count; i++) {
    const rdt_transport *each = rdt_transports[i];
    if (!device->transports[i].open) {
      snprintf(why, sizeof(why), "%s", device->transports[i].why_not);
    } else if (!rdt_text_lists(peer->transports, ',', each->name)) {
      snprintf(why, sizeof(why), "the peer does not have it");
    } else if (each->usable(device->host_id, peer->host_id, why, sizeof(why))) {
      rdt_status status = check_user(device, peer, each, deadline, local);
      *chosen = each;
      if (status != RDT_ERR_REFUSED) return status;
      snprintf(why, sizeof(why), "%s", rdt_last_error());
    }
    rdt_text_append(reasons, sizeof(reasons), "%s%s: %s", reasons[0] ? "; " : "", each->name, why);
  }
  return rdt_fail(RDT_ERR_NO_TRANSPORT, "no transport reaches %s at %s (%s)", peer->name,
                  peer->address, reasons);
}

/* Joins `channel` to the answer of the peer's device. */
static rdt_status join_answer(rdt_channel *channel, rdt_greeting *greeting, rdt_wire *wire,
                              rdt_fds *fds) {
  rdt_attach answer;
  rdt_status status = rdt_greeting_take_attach(greeting, wire, &answer);
  if (status != RDT_OK) return status;
  if (rdt_transport_index(answer.transport) != rdt_transport_index(channel->transport) ||
      answer.purpose != channel->purpose)
    return rdt_fail(
        RDT_ERR_PROTOCOL,
        "%s answered for another transport or purpose than it was asked for: install the "
        "same rdmatensor at both ends",
        greeting->peer.address);
  answer.bundle.fds = *fds;
  status =
      channel->transport->endpoint_connect(channel->endpoint, greeting->peer.name, &answer.bundle);
  *fds = answer.bundle.fds;
  return status;
}

/* From this message the peer learns that we receive its messages. */
static rdt_status send_ready(rdt_channel *channel, rdt_deadline deadline) {
  rdt_wire wire;
  rdt_wire_begin(&wire, RDT_MESSAGE_READY, 0);
  rdt_status status = rdt_wire_end(&wire);
  return status == RDT_OK ? rdt_net_send(channel->control, &wire, NULL, deadline) : status;
}

static rdt_status attach(rdt_channel *channel, rdt_greeting *greeting, const rdt_bundle *offer,
                         rdt_deadline deadline) {
  rdt_wire wire;
  rdt_fds fds = {.count = 0};
  rdt_status status =
      rdt_greeting_send_attach(greeting, channel->transport, offer, channel->purpose, deadline);
  if (status == RDT_OK)
    status = receive_answer(greeting, greeting->peer.address, &wire, &fds, deadline);
  if (status == RDT_OK) status = join_answer(channel, greeting, &wire, &fds);
  if (status == RDT_OK) status = rdt_lines_connect(greeting, channel, deadline);
  if (status == RDT_OK) status = send_ready(channel, deadline);
  rdt_fds_close(&fds);
  return status;
}

/* Replaces the TCP connection by the unix socket, and repeats the greeting there with the same
 * peer. */
static rdt_status switch_to_local(rdt_greeting *greeting, int local, rdt_deadline deadline) {
  const rdt_hello known = greeting->peer;
  rdt_socket_close(&greeting->socket);
  rdt_greeting_begin(greeting, greeting->device, RDT_SIDE_CONNECTING, rdt_socket_of(local));
  rdt_status status = exchange_hello(greeting, known.address, deadline);
  if (status == RDT_OK && greeting->peer.generation != known.generation)
    status =
        rdt_fail(RDT_ERR_PROTOCOL,
                 "%s was replaced by another device while it was being connected to: connect again",
                 known.address);
  return status;
}

/* On success the channel takes over the greeting's socket. */
static rdt_status make_channel(rdt_greeting *greeting, rdt_purpose purpose, rdt_deadline deadline,
                               rdt_channel **channel_out) {
  const rdt_transport *transport = NULL;
  rdt_bundle offer;
  rdt_channel *channel;
  int local = -1;
  rdt_status status =
      choose_transport(greeting->device, &greeting->peer, deadline, &transport, &local);
  if (status == RDT_OK && local >= 0) status = switch_to_local(greeting, local, deadline);
  if (status == RDT_OK)
    status = rdt_channel_create(greeting->device, transport, purpose, &offer, &channel);
  if (status != RDT_OK) return status;
  rdt_greeting_introduce(greeting, channel);
  status = attach(channel, greeting, &offer, deadline);
  rdt_fds_close(&offer.fds);
  if (status == RDT_OK) {
    rdt_channel_ref(channel); /* the progress thread's */
    status = rdt_device_adopt(channel);
    if (status != RDT_OK) rdt_channel_unref(channel);
  }
  if (status != RDT_OK) {
    channel->control = RDT_NO_SOCKET; /* the caller's again */
    rdt_channel_unref(channel);
    return status;
  }
  *channel_out = channel;
  return RDT_OK;
}

static rdt_status connect_to(rdt_device *device, const char *address, rdt_purpose purpose,
                             rdt_deadline deadline, rdt_channel **channel) {
  rdt_greeting greeting;
  rdt_socket socket = RDT_NO_SOCKET;
  rdt_status status = rdt_net_connect(address, deadline, &socket.fd);
  if (status != RDT_OK) return status;
  status = rdt_encrypt_connect(device, address, deadline, &socket);
  rdt_greeting_begin(&greeting, device, RDT_SIDE_CONNECTING, socket);
  if (status == RDT_OK) status = rdt_net_reached(socket.fd, &greeting.reached);
  if (status == RDT_OK) status = exchange_hello(&greeting, address, deadline);
  if (status == RDT_OK) status = make_channel(&greeting, purpose, deadline, channel);
  if (status != RDT_OK) rdt_socket_close(&greeting.socket);
  return status;
}

rdt_status rdt_device_connect(rdt_device *device, const char *address, int timeout_ms,
                              rdt_channel **channel) {
  if (!device || !address || !channel)
    return rdt_fail(RDT_ERR_INVALID, "device, address and channel must not be NULL");
  return rdt_connect_for(device, address, RDT_PURPOSE_USER, timeout_ms, channel);
}

rdt_status rdt_connect_for(rdt_device *device, const char *address, rdt_purpose purpose,
                           int timeout_ms, rdt_channel **channel) {
  rdt_status status = rdt_device_check(device);
  if (status != RDT_OK) return status;
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID,
                    "rdt_device_connect waits: it cannot be called from a handler");
  if (timeout_ms < 0) timeout_ms = (int)rdt_config_number(RDT_CONFIG_CONNECT_TIMEOUT_MS);
  rdt_wait_interrupt_by(device->bootstrap_wake);
  status = connect_to(device, address, purpose, rdt_deadline_after(timeout_ms), channel);
  rdt_wait_interrupt_by(-1);
  return status;
}
