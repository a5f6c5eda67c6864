/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom a device's channels serve. A channel has a purpose, and the client of that purpose gets what the channel
 * brings: the user's handlers (handlers.c), or groups (group/client.c).
 *
 * A client registers itself when the library is loaded, as a peer may connect for it before anybody here does.
 */
#ifndef RDT_CORE_CLIENT_H
#define RDT_CORE_CLIENT_H

#include "core/objects.h"

/* Functions marked optional may be NULL. */
struct rdt_client {
  /* Its notifications stay with their senders while device->throttled. */
  bool throttled;

  /* Creates its state for a device that is being opened, for rdt_client_state. */
  rdt_status (*open)(rdt_device *device, void **state);
  void (*free)(void *state);
  /* Optional: ends waits, before a device is closed. From any thread. */
  void (*interrupt)(rdt_device *device);
  /* Optional: ends what is under way and waits for it. The progress thread still runs. */
  void (*stop)(rdt_device *device);
  /* Optional: the progress thread has ended. */
  void (*closed)(rdt_device *device);

  /* On the progress thread: a channel is up; is down; its peer reaches no memory of ours any more. */
  void (*connected)(rdt_channel *channel);
  void (*down)(rdt_channel *channel);
  void (*released)(rdt_channel *channel);
  /* Takes a notification, on the thread that polls the channel. */
  void (*take)(rdt_channel *channel, uint64_t immediate, const void *data, size_t size);
  /* Optional: works on the progress thread, which calls it while device->client_work is not 0. Returns how much
   * it did. */
  int (*progress)(rdt_device *device);
};

/* Called by constructors, so before any device is open. */
void rdt_client_register(rdt_purpose purpose, const rdt_client *client);
const rdt_client *rdt_client_of(rdt_purpose purpose);
static inline void *rdt_client_state(const rdt_device *device, rdt_purpose purpose) {
  return device->client_states[purpose];
}

/* Do the same for all clients of a device. */
rdt_status rdt_clients_open(rdt_device *device);
void rdt_clients_interrupt(rdt_device *device);
void rdt_clients_stop(rdt_device *device);
void rdt_clients_closed(rdt_device *device);
void rdt_clients_free(rdt_device *device);
int rdt_clients_progress(rdt_device *device);

#endif
