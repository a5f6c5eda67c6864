/* SPDX-License-Identifier: Apache-2.0
 *
 * The listening side of connections; connect.c is the other side, and docs/protocol.md draws both.
 * Each incoming connection is a handshake on a worker with a deadline, so a peer that connects and
 * sends nothing delays nobody. There are so many places for handshakes. A peer that has proven that
 * it has the secret keeps its own, and its data connections need none. Strangers contend for the
 * rest: for a newer one, a network that has many places loses its oldest, and so does whoever has
 * had his time. Whoever finds no place is hung up on, and comes again: connect.c.
 */
#include "core/meet/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "base/wait.h"
#include "core/meet/data_connections.h"
#include "core/meet/encrypt.h"
#include "core/meet/handshake.h"
#include "core/post/channel.h"
#include "core/workers.h"
#include "transport/registry.h"

#define MAX_HANDSHAKES 256
#define MANY (MAX_HANDSHAKES / 4) /* of one network */
#define FAIR_MS 500               /* a network with fewer keeps a place for so long */
#define WORKER_MS 100             /* the time to wait for a free worker */

/* `next` and what follows `local` are under device->lock. */
struct rdt_handshake {
  rdt_handshake *next; /* in device->handshakes, newest first */
  rdt_device *device;
  rdt_origin origin;
  rdt_socket socket;
  bool local;              /* a unix socket */
  int64_t since;           /* ms */
  bool listed, evicted;    /* evicted: its socket was shut down for a newer one */
  bool is_data_connection; /* probably, because some are expected from there: it takes no place */
  bool proven;             /* the peer has the secret: it is not evicted */
};

static rdt_status answer_hello(rdt_greeting *greeting, const rdt_handshake *handshake,
                               rdt_wire *wire, rdt_deadline deadline) {
  rdt_status status = rdt_greeting_take_hello(greeting, wire);
  if (status == RDT_OK) status = rdt_greeting_check_trust(greeting, &handshake->origin);
  return status == RDT_OK ? rdt_greeting_send_hello(greeting, deadline) : status;
}

static void refuse(rdt_socket socket, rdt_status status, rdt_deadline deadline) {
  rdt_wire wire;
  char text[512];
  snprintf(text, sizeof(text), "%s", rdt_last_error());
  rdt_wire_begin(&wire, RDT_MESSAGE_REFUSAL, 0);
  rdt_wire_put_u32(&wire, (uint32_t)status);
  rdt_wire_put_text(&wire, text);
  if (rdt_wire_end(&wire) == RDT_OK) rdt_net_send(socket, &wire, NULL, deadline);
}

/* TCP does not prove who the peer's user is. A local transport always needs that proof; other
 * transports need it if there is no secret. */
static rdt_status check_socket(const rdt_device *device, const rdt_transport *transport,
                               bool local) {
  if (local) return RDT_OK;
  if (transport->local)
    return rdt_fail(RDT_ERR_PROTOCOL, "transport %s is not attached over a socket of this kind",
                    transport->name);
  if (device->secret || rdt_config_number(RDT_CONFIG_INSECURE)) return RDT_OK;
  return rdt_fail(
      RDT_ERR_REFUSED,
      "without a secret %s is only for processes of its own user, over its unix socket: "
      "set " RDT_ENV_PREFIX "SECRET_FILE for both (docs/security.md)",
      device->name);
}

static rdt_status check_transport(const rdt_device *device, const rdt_transport *transport,
                                  bool local) {
  const rdt_device_transport *own = &device->transports[rdt_transport_index(transport)];
  rdt_status status = check_socket(device, transport, local);
  if (status != RDT_OK || own->open) return status;
  return rdt_fail(RDT_ERR_NO_TRANSPORT, "device %s does not have transport %s (%s)", device->name,
                  transport->name, own->why_not);
}

/* Creates our end for a valid ATTACH. */
static rdt_status create_channel(const rdt_handshake *handshake, const rdt_attach *asked,
                                 rdt_bundle *offer, rdt_channel **channel) {
  rdt_device *device = handshake->device;
  rdt_guest *guest = NULL;
  rdt_status status = check_transport(device, asked->transport, handshake->local);
  if (status == RDT_OK)
    status = rdt_admission_enter(&device->admission, handshake->origin.host, &guest);
  if (status == RDT_OK)
    status = rdt_channel_create(device, asked->transport, asked->purpose, offer, channel);
  if (status != RDT_OK) {
    rdt_admission_leave(&device->admission, guest);
    return status;
  }
  (*channel)->guest = guest;
  (*channel)->accepted = true;
  return RDT_OK;
}

static rdt_status was_dropped(void) {
  return rdt_fail(RDT_ERR_CONNECTION_LOST, "it was dropped in favour of a newer one");
}

/* The peer has proven that it has our secret. */
static rdt_status trust(rdt_handshake *handshake) {
  rdt_device *device = handshake->device;
  pthread_mutex_lock(&device->lock);
  handshake->proven = true;
  bool evicted = handshake->evicted;
  pthread_mutex_unlock(&device->lock);
  return evicted ? was_dropped() : RDT_OK;
}

/* Creates our end and joins it to the peer's. Fills `offer` with what the peer's end needs. */
static rdt_status accept_channel(rdt_greeting *greeting, rdt_handshake *handshake, rdt_wire *wire,
                                 rdt_fds *fds, rdt_bundle *offer, rdt_channel **channel) {
  rdt_attach asked;
  rdt_status status = rdt_greeting_take_attach(greeting, wire, &asked);
  if (status == RDT_OK && handshake->device->secret) status = trust(handshake);
  if (status == RDT_OK) status = create_channel(handshake, &asked, offer, channel);
  if (status != RDT_OK) return status;
  asked.bundle.fds = *fds;
  status = (*channel)->transport->endpoint_connect((*channel)->endpoint, greeting->peer.name,
                                                   &asked.bundle);
  *fds = asked.bundle.fds;
  if (status == RDT_OK) {
    rdt_greeting_introduce(greeting, *channel);
    return RDT_OK;
  }
  rdt_fds_close(&offer->fds);
  rdt_channel_unref(*channel);
  return status;
}

static rdt_status await_ready(rdt_channel *channel, rdt_deadline deadline) {
  rdt_wire wire;
  rdt_status status = rdt_net_receive(channel->control, &wire, NULL, deadline);
  if (status == RDT_OK && wire.type != RDT_MESSAGE_READY)
    status = rdt_fail(RDT_ERR_PROTOCOL,
                      "message %u came instead of ready: install the same rdmatensor at both ends",
                      wire.type);
  return status == RDT_OK ? rdt_wire_close(&wire) : status;
}

/* Gives up the place. Returns false if the handshake was evicted. */
static bool settle(rdt_handshake *handshake) {
  rdt_device *device = handshake->device;
  pthread_mutex_lock(&device->lock);
  rdt_handshake **link = &device->handshakes;
  while (*link && *link != handshake) link = &(*link)->next;
  if (handshake->listed) {
    *link = handshake->next;
    device->handshake_count -= !handshake->is_data_connection;
  }
  handshake->listed = false;
  pthread_mutex_unlock(&device->lock);
  return !handshake->evicted;
}

/* The peer makes its data connections between these two messages. */
static rdt_status introduce(rdt_greeting *greeting, rdt_channel *channel, const rdt_bundle *offer,
                            rdt_deadline deadline) {
  rdt_status status =
      rdt_greeting_send_attach(greeting, channel->transport, offer, channel->purpose, deadline);
  return status == RDT_OK ? await_ready(channel, deadline) : status;
}

static rdt_status keep(rdt_handshake *handshake) {
  return settle(handshake) ? RDT_OK : was_dropped();
}

/* On success the channel owns the socket. */
static rdt_status open_channel(rdt_handshake *handshake, rdt_channel *channel) {
  rdt_status status = keep(handshake);
  return status == RDT_OK ? rdt_device_adopt(channel) : status;
}

/* On success the channel that the first message names owns the socket. */
static rdt_status take_data_connection(rdt_handshake *handshake, rdt_wire *wire) {
  rdt_status status = keep(handshake);
  return status == RDT_OK ? rdt_data_connections_take(handshake->device, wire, handshake->socket)
                          : status;
}

static rdt_status answer_attach(rdt_greeting *greeting, rdt_handshake *handshake,
                                rdt_deadline deadline) {
  rdt_wire wire;
  rdt_bundle offer;
  rdt_channel *channel = NULL;
  rdt_fds fds = {.count = 0};
  rdt_status status =
      rdt_net_receive(handshake->socket, &wire, handshake->local ? &fds : NULL, deadline);
  if (status == RDT_OK) status = accept_channel(greeting, handshake, &wire, &fds, &offer, &channel);
  rdt_fds_close(&fds);
  if (status != RDT_OK) return status;
  rdt_data_connections connections;
  rdt_data_connections_begin(&connections, greeting, channel, handshake->origin.network);
  status = introduce(greeting, channel, &offer, deadline);
  rdt_status complete = rdt_data_connections_end(&connections);
  if (status == RDT_OK) status = complete;
  if (status == RDT_OK) status = open_channel(handshake, channel);
  rdt_fds_close(&offer.fds);
  if (status != RDT_OK) {
    channel->control = RDT_NO_SOCKET; /* the caller's again */
    rdt_channel_unref(channel);
  }
  return status;
}

/* Logs that a connection was refused, with the last error as the reason; as a warning now and
 * then. */
static void report(rdt_device *device, const char *who, const char *network, rdt_status status) {
  bool refused = status == RDT_ERR_REFUSED;
  bool loud = refused && rdt_admission_may_complain(&device->admission, network);
  rdt_log(loud ? RDT_LOG_WARN : RDT_LOG_DEBUG, "device %s: a connection from %s %s: %s",
          device->name, who, refused ? "was refused" : "came to nothing", rdt_last_error());
}

static void run_handshake(void *argument) {
  rdt_handshake *handshake = argument;
  rdt_greeting greeting;
  rdt_deadline deadline = rdt_deadline_after((int)rdt_config_number(RDT_CONFIG_DEADLINE_MS));
  rdt_wait_interrupt_by(handshake->device->bootstrap_wake);
  rdt_status status = handshake->local
                          ? RDT_OK
                          : rdt_encrypt_accept(handshake->device, deadline, &handshake->socket);
  if (status == RDT_OK && handshake->socket.tls)
    status = trust(handshake); /* else TLS had not begun */
  rdt_greeting_begin(&greeting, handshake->device, RDT_SIDE_LISTENING, handshake->socket);
  rdt_wire first;
  if (status == RDT_OK) status = rdt_net_receive(handshake->socket, &first, NULL, deadline);
  if (status == RDT_OK && first.type == RDT_MESSAGE_DATA) {
    status = take_data_connection(handshake, &first);
  } else {
    if (status == RDT_OK) status = answer_hello(&greeting, handshake, &first, deadline);
    if (status == RDT_OK) status = answer_attach(&greeting, handshake, deadline);
  }
  if (status != RDT_OK) {
    report(handshake->device, handshake->origin.host, handshake->origin.network, status);
    if (status != RDT_ERR_CONNECTION_LOST && status != RDT_ERR_DEADLINE)
      refuse(handshake->socket, status, deadline);
    settle(handshake);
    rdt_socket_close(&handshake->socket);
  }
  free(handshake);
}

static bool may_go(const rdt_handshake *each) {
  return !each->evicted && !each->proven && !each->is_data_connection;
}

/* Counts a network's handshakes that may be evicted, and finds the oldest. */
static int count_of(rdt_handshake *all, const char *network, rdt_handshake **oldest) {
  int count = 0;
  for (rdt_handshake *each = all; each; each = each->next) {
    if (!may_go(each) || strcmp(each->origin.network, network) != 0) continue;
    *oldest = each;
    count++;
  }
  return count;
}

/* Finds the oldest handshake of the network that has most, if these are many, else the oldest of all. NULL: everybody
 * stays. *due: it has had its time. */
static rdt_handshake *find_victim(const rdt_device *device, bool *due) {
  rdt_handshake *victim = NULL, *oldest = NULL;
  int most = MANY - 1;
  for (rdt_handshake *each = device->handshakes; each; each = each->next) {
    if (!may_go(each)) continue;
    int count = count_of(device->handshakes, each->origin.network, &oldest);
    if (count <= most && most >= MANY) continue;
    victim = count > most ? oldest : each; /* newest first */
    if (count > most) most = count;
  }
  *due = victim && (most >= MANY || rdt_now_ms() - victim->since >= FAIR_MS);
  return victim;
}

static void evict(rdt_handshake *victim) {
  victim->evicted = true;
  shutdown(victim->socket.fd, SHUT_RDWR); /* its worker finds that the peer is gone */
}

/* Returns false if nobody has to go yet. */
static bool make_room(const rdt_device *device) {
  bool due;
  rdt_handshake *victim = find_victim(device, &due);
  if (due) evict(victim);
  return due;
}

/* Whether the peer's network owes us more data connections than are being taken. */
static bool is_expected(const rdt_device *device, const char *network) {
  uint32_t taken = 0;
  for (const rdt_handshake *each = device->handshakes; each; each = each->next)
    taken += each->is_data_connection && strcmp(each->origin.network, network) == 0;
  return taken < rdt_data_connections_expected(device, network);
}

/* Returns RDT_ERR_LIMIT if there is no place. */
static rdt_status list(rdt_handshake *handshake) {
  rdt_device *device = handshake->device;
  pthread_mutex_lock(&device->lock);
  handshake->since = rdt_now_ms();
  handshake->is_data_connection =
      !handshake->local && is_expected(device, handshake->origin.network);
  handshake->listed = handshake->is_data_connection || device->handshake_count < MAX_HANDSHAKES ||
                      make_room(device);
  if (handshake->listed) {
    handshake->next = device->handshakes;
    device->handshakes = handshake;
    device->handshake_count += !handshake->is_data_connection;
  }
  pthread_mutex_unlock(&device->lock);
  return handshake->listed
             ? RDT_OK
             : rdt_fail(RDT_ERR_LIMIT, "too many peers connect at once; they may try again");
}

/* Takes over the socket. */
static rdt_status start_handshake(rdt_device *device, int socket, bool local) {
  rdt_handshake *handshake = calloc(1, sizeof(*handshake));
  rdt_status status = handshake ? RDT_OK : rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  if (status == RDT_OK) status = rdt_origin_of(socket, &handshake->origin);
  if (status == RDT_OK) {
    handshake->device = device;
    handshake->socket = rdt_socket_of(socket);
    handshake->local = local;
    status = list(handshake);
  }
  if (status == RDT_OK) {
    /* Evicted handshakes end soon. */
    for (int i = 0; i < WORKER_MS; i++, poll(NULL, 0, 1))
      if (rdt_worker_start(device, RDT_TASK_HANDSHAKE, run_handshake, handshake)) return RDT_OK;
    settle(handshake);
    status = rdt_fail(RDT_ERR_LIMIT, "too many peers connect at once; they may try again");
  }
  free(handshake);
  rdt_forks_close(socket);
  return status;
}

static void accept_one(rdt_device *device, int listener, bool local) {
  int socket = rdt_forks_accept(listener);
  rdt_status admitted = socket >= 0 && local ? rdt_local_admit(socket) : RDT_OK;
  if (admitted != RDT_OK) {
    /* Another user takes no place among the guests, and nothing that it sent is read. */
    report(device, "another user", "another user", admitted);
    rdt_forks_close(socket);
  } else if (socket >= 0) {
    rdt_status status = start_handshake(device, socket, local);
    bool loud = status == RDT_ERR_LIMIT && rdt_admission_may_complain(&device->admission, "");
    if (status != RDT_OK)
      rdt_log(loud ? RDT_LOG_WARN : RDT_LOG_DEBUG, "device %s: a connection was dropped: %s",
              device->name, rdt_last_error());
  } else if (errno == EMFILE || errno == ENFILE) {
    /* The connection stays in the backlog until a descriptor is free. Sleep, so as not to spin
     * on it. */
    bool due;
    pthread_mutex_lock(&device->lock);
    rdt_handshake *victim = find_victim(device, &due);
    if (victim) evict(victim);
    pthread_mutex_unlock(&device->lock);
    poll(NULL, 0, 100);
  }
}

static void *run_bootstrap(void *argument) {
  rdt_device *device = argument;
  struct pollfd wait[] = {{.fd = device->bootstrap_wake, .events = POLLIN},
                          {.fd = device->tcp_socket, .events = POLLIN},
                          {.fd = device->local_socket, .events = POLLIN}};
  for (;;) {
    if (poll(wait, 3, -1) < 0) {
      /* A limit of fewer than three descriptors, for example, may be raised again. Sleep, so as
       * not to spin on it. */
      if (errno != EINTR) usleep(100000);
      continue;
    }
    if (wait[0].revents) return NULL;
    if (wait[1].revents) accept_one(device, device->tcp_socket, false);
    if (wait[2].revents) accept_one(device, device->local_socket, true);
  }
}

static void close_sockets(rdt_device *device) {
  rdt_forks_close(device->tcp_socket);
  rdt_local_unlisten(device->local_name, device->local_socket);
  device->tcp_socket = device->local_socket = -1;
}

/* Failure is not fatal: a peer that has the secret and uses verbs, for example, needs no unix
 * socket. */
static void listen_locally(rdt_device *device) {
  if (rdt_local_listen(device->local_name, &device->local_socket) != RDT_OK)
    rdt_log(RDT_LOG_WARN, "device %s: processes of this host cannot use shared memory with it: %s",
            device->name, rdt_last_error());
}

static rdt_status listen_for_hosts(rdt_device *device) {
  char setting[RDT_CONFIG_TEXT_SIZE], ports[64];
  const char *host = device->options.bind_address;
  uint16_t first = device->options.port, last = first;
  rdt_config_text(RDT_CONFIG_BIND_ADDRESS, setting, sizeof(setting));
  rdt_config_text(RDT_CONFIG_BIND_PORT, ports, sizeof(ports));
  if (!host) host = setting[0] ? setting : "127.0.0.1";
  if (!first) rdt_text_ports(ports, &first, &last);
  int patience_ms = (int)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  rdt_status status = rdt_net_listen(host, first, last, rdt_deadline_after(patience_ms),
                                     &device->tcp_socket, device->address);
  if (status != RDT_ERR_LIMIT || device->options.port) return status;
  return rdt_fail(status,
                  "device %s cannot listen on %s: " RDT_ENV_PREFIX
                  "BIND_PORT is %s, and %s in use. Each device needs a port of its own, also "
                  "within one process: give a range with enough ports, such as %u-%u, or end the "
                  "program that listens there (ss -ltnp)",
                  device->name, host, ports, first == last ? "that port is" : "all these ports are",
                  first, first <= UINT16_MAX - 31 ? first + 31 : UINT16_MAX);
}

rdt_status rdt_bootstrap_start(rdt_device *device) {
  rdt_status status = listen_for_hosts(device);
  if (status == RDT_OK) listen_locally(device);
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
