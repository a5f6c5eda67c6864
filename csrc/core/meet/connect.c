/* SPDX-License-Identifier: Apache-2.0
 *
 * The connecting side. Over TCP both devices send HELLO, which lists their transports. Then the
 * connecting device attaches a transport that both can use (choice.c); if that fails, it begins
 * anew with another one. A local transport is attached over a unix socket, after another HELLO
 * there, and so is any transport if only the user proves who the peer is. Otherwise it is attached
 * over the same TCP connection. That socket stays as the channel's control connection.
 * docs/protocol.md draws this; bootstrap.c is the other side.
 */
#include "core/meet/connect.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "base/text.h"
#include "base/wait.h"
#include "core/meet/choice.h"
#include "core/meet/data_connections.h"
#include "core/meet/encrypt.h"
#include "core/meet/handshake.h"
#include "core/post/channel.h"
#include "transport/registry.h"

#define PATIENCE_MS 3000 /* with a peer that hangs up */
#define SHORTEST_PAUSE_MS 20
#define LONGEST_PAUSE_MS 320

typedef struct attempts {
  rdt_device *device;
  const char *address;
  rdt_expected expected;
  rdt_purpose purpose;
  rdt_choice choice;
  rdt_deadline deadline, patience;
  int pause_ms;
} attempts;

/* Receives the answer to our message. A refusal is an error. */
static rdt_status receive_answer(rdt_greeting *greeting, const char *address, rdt_wire *wire,
                                 rdt_fds *fds, rdt_deadline deadline) {
  rdt_status status = rdt_net_receive(greeting->socket, wire, fds, deadline);
  if (status == RDT_OK && wire->type == RDT_MESSAGE_REFUSAL)
    status = rdt_wire_get_refusal(wire, address);
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

static uint16_t port_of(const struct sockaddr_storage *address) {
  return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                              : ((const struct sockaddr_in *)address)->sin_port);
}

/* A device may connect to itself where it listens. Elsewhere it meets itself only if somebody on the way, who need not
 * have the secret, leads its own bytes back. Call it before the greeting moves to another socket. */
static bool is_led_back(const rdt_greeting *greeting) {
  const rdt_device *device = greeting->device;
  struct sockaddr_storage own;
  socklen_t length = sizeof(own);
  rdt_origin origin;
  if (greeting->peer.generation != device->generation) return false;
  return rdt_origin_of(greeting->socket.fd, &origin) != RDT_OK || !origin.this_host ||
         getsockname(device->tcp_socket, (struct sockaddr *)&own, &length) != 0 ||
         port_of(&own) != port_of(&greeting->reached.address);
}

/* With a secret, the peer proves its generation later. Another transport would not reach a device that is gone either,
 * so none is tried. */
static rdt_status check_generation(const rdt_greeting *greeting, const attempts *all) {
  uint64_t expected = all->expected.generation;
  if (expected == 0 || greeting->peer.generation == expected) return RDT_OK;
  return rdt_fail(RDT_ERR_CONNECTION_LOST, "another device than the one that joined is at %s",
                  all->address);
}

/* Checks what the peer says of itself, once that is proven. */
static rdt_status check_identity(const rdt_greeting *greeting, const char *address,
                                 const rdt_expected *expected) {
  const rdt_hello *peer = &greeting->peer;
  if (greeting->led_back)
    return rdt_fail(
        RDT_ERR_REFUSED,
        "that address leads back to %s itself: somebody on the way diverts connections, "
        "or forwards that port to here",
        greeting->device->name);
  if (expected->name && strcmp(peer->name, expected->name) != 0)
    return rdt_fail(RDT_ERR_REFUSED,
                    "the device at %s is %s as seen from here, not %s: that address leads "
                    "elsewhere from here (set " RDT_ENV_PREFIX
                    "BIND_ADDRESS of the other to one that this host reaches), or somebody on the "
                    "way diverts connections",
                    address, peer->name, expected->name);
  return RDT_OK;
}

/* Joins `channel` to the answer of the peer's device. */
static rdt_status join_answer(rdt_channel *channel, rdt_greeting *greeting, const attempts *all,
                              rdt_wire *wire, rdt_fds *fds) {
  rdt_attach answer;
  rdt_status status = rdt_greeting_take_attach(greeting, wire, &answer);
  if (status != RDT_OK) return status;
  status = check_identity(greeting, all->address, &all->expected);
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

/* That both ends were prepared does not mean that packets reach the peer: there may be no route between
 * the cards, or a firewall. Nobody else uses the endpoint yet. */
static rdt_status prove_path(rdt_channel *channel, rdt_deadline limit) {
  const rdt_transport *transport = channel->transport;
  const rdt_events none = {0};
  if (!transport->probe || !transport->endpoint_idle || transport->data_connection_count)
    return RDT_OK;
  rdt_status status = transport->probe(channel->endpoint);
  if (status == RDT_OK) transport->doorbell(channel->endpoint);
  while (status == RDT_OK) {
    int taken = transport->poll(channel->endpoint, 0, &none);
    if (taken < 0) return (rdt_status)taken;
    if (transport->endpoint_idle(channel->endpoint)) return RDT_OK;
    if (rdt_deadline_left(limit) == 0)
      return rdt_fail(RDT_ERR_DEADLINE, "the peer does not answer: no packet comes back from it");
    status = rdt_wait_ready(-1, 0, rdt_deadline_after(1), "waiting for the peer's card");
    if (status == RDT_ERR_DEADLINE) status = RDT_OK;
  }
  return status;
}

static rdt_status attach(rdt_channel *channel, rdt_greeting *greeting, const rdt_bundle *offer,
                         const attempts *all) {
  const rdt_deadline deadline = all->deadline;
  rdt_wire wire;
  rdt_fds fds = {.count = 0};
  rdt_status status =
      rdt_greeting_send_attach(greeting, channel->transport, offer, channel->purpose, deadline);
  if (status == RDT_OK)
    status = receive_answer(greeting, greeting->peer.address, &wire, &fds, deadline);
  if (status == RDT_OK) status = join_answer(channel, greeting, all, &wire, &fds);
  if (status == RDT_OK) status = rdt_data_connections_connect(greeting, channel, deadline);
  if (status == RDT_OK) status = prove_path(channel, rdt_choice_limit(&all->choice, deadline));
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
static rdt_status make_channel(attempts *all, rdt_greeting *greeting, rdt_channel **channel_out) {
  rdt_choice *choice = &all->choice;
  rdt_bundle offer;
  rdt_channel *channel;
  int local = -1;
  rdt_status status = rdt_choice_make(choice, all->device, &greeting->peer, all->deadline, &local);
  if (status == RDT_OK && local >= 0) status = switch_to_local(greeting, local, all->deadline);
  if (status == RDT_OK)
    status =
        rdt_channel_create(all->device, rdt_transports[choice->at], all->purpose, &offer, &channel);
  if (status != RDT_OK) return status;
  rdt_greeting_introduce(greeting, channel);
  status = attach(channel, greeting, &offer, all);
  rdt_fds_close(&offer.fds);
  if (status == RDT_OK) {
    rdt_choice_explain(choice, &greeting->peer, channel);
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

/* A device that too many connect to hangs up on some before it has said anything. They come again, at different times.
 * So does whoever finds an end that hangs up on everybody, for a while. */
static bool comes_again(attempts *all, const rdt_greeting *greeting, rdt_status status) {
  if (status != RDT_ERR_CONNECTION_LOST || greeting->heard || rdt_deadline_left(all->patience) == 0)
    return false;
  int pause = all->pause_ms + (int)(rdt_now_ns() % all->pause_ms);
  if (all->pause_ms < LONGEST_PAUSE_MS) all->pause_ms *= 2;
  char why[384];
  snprintf(why, sizeof(why), "%s", rdt_last_error());
  status = rdt_wait_ready(-1, 0, rdt_deadline_after(pause), "connecting");
  rdt_fail(RDT_ERR_CONNECTION_LOST, "%s", why);
  return status == RDT_ERR_DEADLINE && rdt_deadline_left(all->deadline) > 0;
}

/* *again: another attempt may be made. */
static rdt_status connect_once(attempts *all, rdt_channel **channel, bool *again) {
  rdt_greeting greeting;
  rdt_socket socket = RDT_NO_SOCKET;
  rdt_choice *choice = &all->choice;
  *again = choice->made = false;
  rdt_status status = rdt_net_connect(all->address, all->deadline, &socket.fd);
  if (status != RDT_OK) return status;
  status = rdt_encrypt_connect(all->device, all->address, all->deadline, &socket);
  rdt_greeting_begin(&greeting, all->device, RDT_SIDE_CONNECTING, socket);
  if (status == RDT_OK) status = rdt_net_reached(socket.fd, &greeting.reached);
  if (status == RDT_OK) status = exchange_hello(&greeting, all->address, all->deadline);
  if (status == RDT_OK) status = check_generation(&greeting, all);
  greeting.led_back = status == RDT_OK && is_led_back(&greeting);
  if (status == RDT_OK) status = make_channel(all, &greeting, channel);
  if (status == RDT_OK) return RDT_OK;
  rdt_socket_close(&greeting.socket);
  *again = comes_again(all, &greeting, status) ||
           (rdt_choice_fails(choice, all->device, &greeting.peer, &status) &&
            rdt_deadline_left(all->deadline) > 0);
  return status;
}

static rdt_status connect_over(rdt_device *device, const char *address, rdt_expected expected,
                               const char *permitted, rdt_purpose purpose, int timeout_ms,
                               rdt_channel **channel) {
  bool again;
  rdt_status status = rdt_device_check(device);
  if (status != RDT_OK) return status;
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID,
                    "rdt_device_connect waits: it cannot be called from a handler");
  if (timeout_ms < 0) timeout_ms = (int)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  attempts all = {.device = device,
                  .address = address,
                  .expected = expected,
                  .purpose = purpose,
                  .choice.permitted = permitted,
                  .deadline = rdt_deadline_after(timeout_ms),
                  .patience = rdt_deadline_after(PATIENCE_MS),
                  .pause_ms = SHORTEST_PAUSE_MS};
  rdt_wait_interrupt_by(device->bootstrap_wake);
  do {
    status = connect_once(&all, channel, &again);
  } while (again);
  rdt_wait_interrupt_by(-1);
  return status;
}

rdt_status rdt_device_connect_to(rdt_device *device, const char *address, const char *name,
                                 const char *transports, int timeout_ms, rdt_channel **channel) {
  if (!device || !address || !channel)
    return rdt_fail(RDT_ERR_INVALID, "device, address and channel must not be NULL");
  rdt_status status = transports ? rdt_transports_check("transports", transports) : RDT_OK;
  if (status != RDT_OK) return status;
  return connect_over(device, address, (rdt_expected){.name = name}, transports, RDT_PURPOSE_USER,
                      timeout_ms, channel);
}

rdt_status rdt_device_connect(rdt_device *device, const char *address, int timeout_ms,
                              rdt_channel **channel) {
  return rdt_device_connect_to(device, address, NULL, NULL, timeout_ms, channel);
}

rdt_status rdt_connect_for(rdt_device *device, const char *address, rdt_expected expected,
                           rdt_purpose purpose, int timeout_ms, rdt_channel **channel) {
  return connect_over(device, address, expected, NULL, purpose, timeout_ms, channel);
}
