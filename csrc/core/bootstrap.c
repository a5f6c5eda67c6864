/* SPDX-License-Identifier: Apache-2.0
 *
 * How two devices meet. Over TCP they say HELLO, which tells each which transports the other has; a
 * transport that both can use is then attached: over a unix socket if it is local, else over the same
 * TCP connection. That socket stays as the channel's control connection. docs/protocol.md draws it.
 *
 * Incoming handshakes run on workers with deadlines, so that a peer that connects and
 * says nothing delays nobody.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/config.h"
#include "core/log.h"
#include "core/objects.h"
#include "core/status.h"

#define HANDSHAKE_MS 5000

typedef struct hello {
  char name[RDT_NAME_SIZE], address[RDT_ADDRESS_SIZE], host_id[RDT_HOST_ID_SIZE];
  char local_name[64], transports[64];
  uint64_t generation;
} hello;

/* "shm,verbs": the ones this device opened. */
static void list_transports(const rdt_device *device, char *text, size_t size) {
  text[0] = '\0';
  for (size_t i = 0, used = 0; i < rdt_transport_count; i++) {
    if (!device->transports[i].open) continue;
    snprintf(text + used, size - used, "%s%s", used ? "," : "", rdt_transports[i]->name);
    used = strlen(text);
  }
}

static void put_hello(rdt_wire *wire, const rdt_device *device) {
  char transports[64];
  list_transports(device, transports, sizeof(transports));
  rdt_wire_put_text(wire, device->name);
  rdt_wire_put_text(wire, device->address);
  rdt_wire_put_text(wire, device->host_id);
  rdt_wire_put_text(wire, device->local_name);
  rdt_wire_put_text(wire, transports);
  rdt_wire_put_u64(wire, device->generation);
}

static void get_hello(rdt_wire *wire, hello *peer) {
  rdt_wire_get_text(wire, peer->name, sizeof(peer->name));
  rdt_wire_get_text(wire, peer->address, sizeof(peer->address));
  rdt_wire_get_text(wire, peer->host_id, sizeof(peer->host_id));
  rdt_wire_get_text(wire, peer->local_name, sizeof(peer->local_name));
  rdt_wire_get_text(wire, peer->transports, sizeof(peer->transports));
  peer->generation = rdt_wire_get_u64(wire);
}

static void put_bundle(rdt_wire *wire, const rdt_transport *transport, const rdt_bundle *bundle) {
  rdt_wire_put_text(wire, transport->name);
  rdt_wire_put_bytes(wire, bundle->bytes, bundle->size);
}

/* An unknown transport is as malformed as a bad length: we offered the choice. */
static const rdt_transport *get_bundle(rdt_wire *wire, rdt_bundle *bundle) {
  char name[32];
  rdt_wire_get_text(wire, name, sizeof(name));
  bundle->size = rdt_wire_get_bytes(wire, bundle->bytes, sizeof(bundle->bytes));
  const rdt_transport *transport = rdt_transport_find(name);
  if (!transport) wire->bad = true;
  return transport;
}

/* A peer's refusal in its own words. */
static rdt_status read_refusal(rdt_wire *wire, const char *address) {
  char text[512];
  rdt_status status = (rdt_status)(int32_t)rdt_wire_get_u32(wire);
  rdt_wire_get_text(wire, text, sizeof(text));
  if (rdt_wire_close(wire) != RDT_OK) return RDT_ERR_PROTOCOL;
  rdt_fail(RDT_ERR_REFUSED, "%s refused: %s", address, text);
  return status < 0 ? status : RDT_ERR_REFUSED;
}

/* ---- outgoing ------------------------------------------------------------------------------------ */

/* On success the connection is open for an attach. */
static rdt_status exchange_hello(rdt_device *device, const char *address, rdt_deadline deadline,
                                 hello *peer, int *socket_out) {
  rdt_wire wire;
  int socket;
  rdt_status status = rdt_net_connect(address, deadline, &socket);
  if (status != RDT_OK) return status;
  rdt_wire_begin(&wire, RDT_MESSAGE_HELLO, 0);
  put_hello(&wire, device);
  status = rdt_wire_end(&wire);
  if (status == RDT_OK) status = rdt_net_send(socket, &wire, NULL, deadline);
  if (status == RDT_OK) status = rdt_net_receive(socket, &wire, NULL, deadline);
  if (status == RDT_OK && wire.type != RDT_MESSAGE_HELLO)
    status = rdt_fail(RDT_ERR_PROTOCOL, "%s answered a hello with message %u", address, wire.type);
  if (status == RDT_OK) {
    get_hello(&wire, peer);
    status = rdt_wire_close(&wire);
  }
  if (status == RDT_OK)
    *socket_out = socket;
  else
    close(socket);
  return status;
}

/* The first transport that this device and the peer have and that reaches it. */
static rdt_status choose_transport(const rdt_device *device, const hello *peer,
                                   const rdt_transport **chosen) {
  char why[256], reasons[640] = "";
  for (size_t i = 0; i < rdt_transport_count; i++) {
    const rdt_transport *each = rdt_transports[i];
    if (!device->transports[i].open) {
      snprintf(why, sizeof(why), "%s", device->transports[i].why_not);
    } else if (!rdt_listed(peer->transports, each->name)) {
      snprintf(why, sizeof(why), "the peer does not have it");
    } else if (each->usable(device->host_id, peer->host_id, why, sizeof(why))) {
      *chosen = each;
      return RDT_OK;
    }
    size_t used = strlen(reasons);
    snprintf(reasons + used, sizeof(reasons) - used, "%s%s: %s", used ? "; " : "", each->name, why);
  }
  return rdt_fail(RDT_ERR_NO_TRANSPORT, "no transport reaches %s at %s (%s)", peer->name,
                  peer->address, reasons);
}

/* Joins `channel` to the answer of the peer's device. */
static rdt_status join_answer(rdt_channel *channel, rdt_wire *wire, rdt_fds *fds,
                              const hello *expected) {
  hello peer;
  const char *address = expected->address;
  rdt_bundle offer = {.size = 0};
  if (wire->type == RDT_MESSAGE_REFUSAL) return read_refusal(wire, address);
  if (wire->type != RDT_MESSAGE_ATTACH)
    return rdt_fail(RDT_ERR_PROTOCOL, "%s answered an attach with message %u", address, wire->type);
  get_hello(wire, &peer);
  const rdt_transport *transport = get_bundle(wire, &offer);
  rdt_status status = rdt_wire_close(wire);
  if (status != RDT_OK) return status;
  if (transport != channel->transport || peer.generation != expected->generation)
    return rdt_fail(RDT_ERR_PROTOCOL, "%s changed its mind during the handshake", address);
  offer.fds = *fds;
  status = channel->transport->endpoint_connect(channel->endpoint, expected->name, &offer);
  *fds = offer.fds;
  return status;
}

/* Until now the peer could not know that its messages would be received. */
static rdt_status send_ready(rdt_channel *channel, rdt_deadline deadline) {
  rdt_wire wire;
  rdt_wire_begin(&wire, RDT_MESSAGE_READY, 0);
  rdt_status status = rdt_wire_end(&wire);
  return status == RDT_OK ? rdt_net_send(channel->control, &wire, NULL, deadline) : status;
}

static void introduce(rdt_channel *channel, int control, const hello *peer) {
  channel->control = control;
  channel->peer_generation = peer->generation;
  memcpy(channel->peer_name, peer->name, sizeof(peer->name));
  memcpy(channel->peer_address, peer->address, sizeof(peer->address));
}

static rdt_status attach(rdt_channel *channel, const rdt_bundle *offer, const hello *peer,
                         rdt_deadline deadline) {
  rdt_wire wire;
  rdt_fds fds = {.count = 0};
  rdt_wire_begin(&wire, RDT_MESSAGE_ATTACH, 0);
  put_hello(&wire, channel->device);
  put_bundle(&wire, channel->transport, offer);
  rdt_wire_put_u32(&wire, channel->purpose);
  rdt_status status = rdt_wire_end(&wire);
  if (status == RDT_OK && channel->transport->local)
    status = rdt_net_check_same_user(channel->control);
  if (status == RDT_OK) status = rdt_net_send(channel->control, &wire, &offer->fds, deadline);
  if (status == RDT_OK) status = rdt_net_receive(channel->control, &wire, &fds, deadline);
  if (status == RDT_OK) status = join_answer(channel, &wire, &fds, peer);
  if (status == RDT_OK) status = send_ready(channel, deadline);
  rdt_fds_close(&fds);
  return status;
}

/* A local transport's own socket instead of the TCP connection. */
static rdt_status switch_to_local(const hello *peer, rdt_deadline deadline, int *socket) {
  int local;
  rdt_status status = rdt_net_connect_local(peer->local_name, deadline, &local);
  if (status != RDT_OK) return status;
  close(*socket);
  *socket = local;
  return RDT_OK;
}

/* Takes over `socket`. */
static rdt_status connect_channel(rdt_device *device, const hello *peer, rdt_purpose purpose,
                                  int socket, rdt_deadline deadline, rdt_channel **channel_out) {
  const rdt_transport *transport = NULL;
  rdt_bundle offer;
  rdt_channel *channel;
  rdt_status status = choose_transport(device, peer, &transport);
  if (status == RDT_OK && transport->local) status = switch_to_local(peer, deadline, &socket);
  if (status == RDT_OK) status = rdt_channel_create(device, transport, &offer, &channel);
  if (status != RDT_OK) {
    close(socket);
    return status;
  }
  channel->purpose = purpose;
  introduce(channel, socket, peer);
  status = attach(channel, &offer, peer, deadline);
  rdt_fds_close(&offer.fds);
  if (status == RDT_OK) {
    rdt_channel_ref(channel); /* the progress thread's */
    status = rdt_progress_adopt(channel);
    if (status != RDT_OK) rdt_channel_unref(channel);
  }
  if (status != RDT_OK) {
    rdt_channel_unref(channel);
    return status;
  }
  *channel_out = channel;
  return RDT_OK;
}

rdt_status rdt_device_connect(rdt_device *device, const char *address, int timeout_ms,
                              rdt_channel **channel) {
  if (!device || !address || !channel)
    return rdt_fail(RDT_ERR_INVALID, "device, address and channel must not be NULL");
  return rdt_bootstrap_connect(device, address, RDT_PURPOSE_USER, timeout_ms, channel);
}

rdt_status rdt_bootstrap_connect(rdt_device *device, const char *address, rdt_purpose purpose,
                                 int timeout_ms, rdt_channel **channel) {
  hello peer;
  int socket;
  rdt_status status = rdt_device_check(device);
  if (status != RDT_OK) return status;
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID,
                    "rdt_device_connect waits: it cannot be called from a handler");
  if (timeout_ms < 0) timeout_ms = (int)rdt_config_number(RDT_CONFIG_CONNECT_TIMEOUT_MS);
  rdt_deadline deadline = rdt_deadline_after(timeout_ms);
  rdt_net_interrupt_by(device->bootstrap_wake);
  status = exchange_hello(device, address, deadline, &peer, &socket);
  if (status == RDT_OK) status = connect_channel(device, &peer, purpose, socket, deadline, channel);
  rdt_net_interrupt_by(-1);
  return status;
}

/* ---- incoming ------------------------------------------------------------------------------------ */

typedef struct handshake {
  rdt_device *device;
  int socket;
  bool local;
} handshake;

static rdt_status answer_hello(rdt_device *device, int socket, rdt_wire *wire,
                               rdt_deadline deadline) {
  hello peer;
  get_hello(wire, &peer);
  rdt_status status = rdt_wire_close(wire);
  if (status != RDT_OK) return status;
  rdt_wire_begin(wire, RDT_MESSAGE_HELLO, 0);
  put_hello(wire, device);
  status = rdt_wire_end(wire);
  return status == RDT_OK ? rdt_net_send(socket, wire, NULL, deadline) : status;
}

static void refuse(int socket, rdt_status status, rdt_deadline deadline) {
  rdt_wire wire;
  char text[512];
  snprintf(text, sizeof(text), "%s", rdt_last_error());
  rdt_wire_begin(&wire, RDT_MESSAGE_REFUSAL, 0);
  rdt_wire_put_u32(&wire, (uint32_t)status);
  rdt_wire_put_text(&wire, text);
  if (rdt_wire_end(&wire) == RDT_OK) rdt_net_send(socket, &wire, NULL, deadline);
}

/* Over TCP nothing proves the user, as a local transport needs it. */
static rdt_status check_transport(const rdt_device *device, const rdt_transport *transport,
                                  bool local) {
  const rdt_device_transport *own = &device->transports[rdt_transport_index(transport)];
  if (!own->open)
    return rdt_fail(RDT_ERR_NO_TRANSPORT, "device %s does not have transport %s (%s)", device->name,
                    transport->name, own->why_not);
  if (transport->local != local)
    return rdt_fail(RDT_ERR_PROTOCOL, "transport %s is not attached over a socket of this kind",
                    transport->name);
  return RDT_OK;
}

/* Creates our end for the ATTACH in `wire` and fills `offer` with what the peer's end needs. */
static rdt_status accept_channel(rdt_device *device, int socket, bool local, rdt_wire *wire,
                                 rdt_fds *fds, rdt_bundle *offer, rdt_channel **channel_out) {
  hello peer;
  rdt_bundle theirs = {.size = 0};
  if (wire->type != RDT_MESSAGE_ATTACH)
    return rdt_fail(RDT_ERR_PROTOCOL, "message %u came before an attach", wire->type);
  get_hello(wire, &peer);
  const rdt_transport *transport = get_bundle(wire, &theirs);
  uint32_t purpose = rdt_wire_get_u32(wire);
  rdt_channel *channel;
  rdt_status status = rdt_wire_close(wire);
  if (status == RDT_OK && purpose > RDT_PURPOSE_GROUPS)
    status = rdt_fail(RDT_ERR_PROTOCOL, "%s attaches for an unknown purpose", peer.name);
  if (status == RDT_OK) status = check_transport(device, transport, local);
  if (status == RDT_OK) status = rdt_channel_create(device, transport, offer, &channel);
  if (status != RDT_OK) return status;
  theirs.fds = *fds;
  status = transport->endpoint_connect(channel->endpoint, peer.name, &theirs);
  *fds = theirs.fds;
  if (status != RDT_OK) {
    rdt_fds_close(&offer->fds);
    rdt_channel_unref(channel);
    return status;
  }
  channel->accepted = true;
  channel->purpose = (rdt_purpose)purpose;
  introduce(channel, socket, &peer);
  *channel_out = channel;
  return RDT_OK;
}

static rdt_status send_offer(rdt_channel *channel, const rdt_bundle *offer, rdt_deadline deadline) {
  rdt_wire wire;
  rdt_wire_begin(&wire, RDT_MESSAGE_ATTACH, 0);
  put_hello(&wire, channel->device);
  put_bundle(&wire, channel->transport, offer);
  rdt_status status = rdt_wire_end(&wire);
  return status == RDT_OK ? rdt_net_send(channel->control, &wire, &offer->fds, deadline) : status;
}

static rdt_status await_ready(rdt_channel *channel, rdt_deadline deadline) {
  rdt_wire wire;
  rdt_status status = rdt_net_receive(channel->control, &wire, NULL, deadline);
  if (status == RDT_OK && wire.type != RDT_MESSAGE_READY)
    status = rdt_fail(RDT_ERR_PROTOCOL, "message %u came instead of ready", wire.type);
  return status == RDT_OK ? rdt_wire_close(&wire) : status;
}

/* On success the socket belongs to the new channel. */
static rdt_status answer_attach(rdt_device *device, const handshake *work, rdt_wire *wire,
                                rdt_fds *fds, rdt_deadline deadline) {
  rdt_bundle offer;
  rdt_channel *channel = NULL;
  rdt_status status =
      accept_channel(device, work->socket, work->local, wire, fds, &offer, &channel);
  if (status != RDT_OK) {
    refuse(work->socket, status, deadline);
    return status;
  }
  status = send_offer(channel, &offer, deadline);
  rdt_fds_close(&offer.fds);
  if (status == RDT_OK) status = await_ready(channel, deadline);
  if (status == RDT_OK) status = rdt_progress_adopt(channel);
  if (status != RDT_OK) {
    channel->control = -1; /* the caller's again */
    rdt_channel_unref(channel);
  }
  return status;
}

/* Answers hellos until an attach comes. */
static rdt_status answer(rdt_device *device, const handshake *work) {
  rdt_deadline deadline = rdt_deadline_after(HANDSHAKE_MS);
  rdt_wire wire;
  rdt_fds fds = {.count = 0};
  rdt_status status = work->local ? rdt_net_check_same_user(work->socket) : RDT_OK;
  if (status != RDT_OK) refuse(work->socket, status, deadline);
  while (status == RDT_OK) {
    status = rdt_net_receive(work->socket, &wire, work->local ? &fds : NULL, deadline);
    if (status != RDT_OK || wire.type != RDT_MESSAGE_HELLO) break;
    status = answer_hello(device, work->socket, &wire, deadline);
  }
  if (status == RDT_OK) status = answer_attach(device, work, &wire, &fds, deadline);
  rdt_fds_close(&fds);
  return status;
}

static void run_handshake(void *argument) {
  handshake *work = argument;
  rdt_net_interrupt_by(work->device->bootstrap_wake);
  rdt_status status = answer(work->device, work);
  if (status != RDT_OK) {
    rdt_log(RDT_LOG_DEBUG, "device %s: a connection came to nothing: %s", work->device->name,
            rdt_last_error());
    close(work->socket);
  }
  free(work);
}

static bool start_handshake(rdt_device *device, int socket, bool local) {
  handshake *work = malloc(sizeof(*work));
  if (!work) return false;
  *work = (handshake){device, socket, local};
  if (rdt_worker_start(device, run_handshake, work)) return true;
  free(work);
  return false;
}

static void accept_one(rdt_device *device, int listener, bool local) {
  int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) {
    /* Out of descriptors, the connection stays in the backlog: do not spin on it. */
    if (errno == EMFILE || errno == ENFILE) poll(NULL, 0, 100);
    return;
  }
  if (!start_handshake(device, socket, local)) {
    rdt_log(RDT_LOG_WARN, "device %s: too many connections at once, one was dropped", device->name);
    close(socket);
  }
}

static void *run_bootstrap(void *argument) {
  rdt_device *device = argument;
  struct pollfd wait[] = {{.fd = device->bootstrap_wake, .events = POLLIN},
                          {.fd = device->tcp_socket, .events = POLLIN},
                          {.fd = device->local_socket, .events = POLLIN}};
  for (;;) {
    if (poll(wait, 3, -1) < 0) continue;
    if (wait[0].revents) return NULL;
    if (wait[1].revents) accept_one(device, device->tcp_socket, false);
    if (wait[2].revents) accept_one(device, device->local_socket, true);
  }
}

static void close_sockets(rdt_device *device) {
  rdt_forks_forget(&device->tcp_fork);
  rdt_forks_forget(&device->local_fork);
  int *sockets[] = {&device->tcp_socket, &device->local_socket};
  for (size_t i = 0; i < 2; i++) {
    if (*sockets[i] >= 0) close(*sockets[i]);
    *sockets[i] = -1;
  }
}

rdt_status rdt_bootstrap_start(rdt_device *device) {
  char host[256];
  const char *given = device->options.bind_address;
  rdt_config_text(RDT_CONFIG_BIND_ADDRESS, host, sizeof(host));
  if (!host[0]) snprintf(host, sizeof(host), "127.0.0.1");
  rdt_status status = rdt_net_listen(given ? given : host, device->options.port,
                                     &device->tcp_socket, device->address);
  if (status == RDT_OK) status = rdt_net_listen_local(device->local_name, &device->local_socket);
  rdt_forks_close_in_child(&device->tcp_fork, &device->tcp_socket);
  rdt_forks_close_in_child(&device->local_fork, &device->local_socket);
  if (status == RDT_OK) {
    device->bootstrap_wake = eventfd(0, EFD_CLOEXEC);
    if (device->bootstrap_wake < 0) status = rdt_fail_errno(errno, "cannot create an eventfd");
  }
  if (status == RDT_OK) {
    int error = pthread_create(&device->bootstrap_thread, NULL, run_bootstrap, device);
    if (error) status = rdt_fail_errno(error, "cannot start the bootstrap thread");
  }
  if (status != RDT_OK) close_sockets(device);
  return status;
}

void rdt_bootstrap_interrupt(rdt_device *device) {
  uint64_t one = 1;
  ssize_t ignored = write(device->bootstrap_wake, &one, sizeof(one));
  (void)ignored;
}

void rdt_bootstrap_stop(rdt_device *device) {
  rdt_bootstrap_interrupt(device);
  pthread_join(device->bootstrap_thread, NULL);
  close_sockets(device);
}
