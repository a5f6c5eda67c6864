/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between a device's channels and the code that they serve. Every channel has a
 * purpose, and each purpose has a client: the user's handlers (handlers.c), groups
 * (group/run/client.c) or stores (store/client.c). A client registers itself when the library is loaded, because a peer may
 * connect for it before anybody here does.
 */
#ifndef RDT_CORE_CLIENT_H
#define RDT_CORE_CLIENT_H

#include "core/objects.h"

/* Functions marked optional may be NULL. */
struct rdt_client {
  /* While device->throttled is set, its notifications stay with their senders. */
  bool throttled;

  /* Creates the client's state for a new device; rdt_client_state returns it. */
  rdt_status (*open)(rdt_device *device, void **state);
  void (*free)(void *state);
  /* Optional: ends waits before the device is closed. May run on any thread. */
  void (*interrupt)(rdt_device *device);
  /* Optional: ends the client's operations and waits for them. The progress thread still runs. */
  void (*stop)(rdt_device *device);
  /* Optional: runs after the progress thread has ended. */
  void (*closed)(rdt_device *device);

  /* Run on the progress thread: the channel is up; it is down; its peer can reach no memory of
   * ours any more. */
  void (*connected)(rdt_channel *channel);
  void (*down)(rdt_channel *channel);
  void (*released)(rdt_channel *channel);
  /* Takes a notification. Runs on the thread that polls the channel. */
  void (*take)(rdt_channel *channel, uint64_t immediate, const void *data, size_t size);
  /* Optional: runs on the progress thread while device->client_work is not 0. Returns the number
   * of operations that moved. */
  int (*progress)(rdt_device *device);
};

/* Call it from a constructor, before any device is open. */
void rdt_client_register(rdt_purpose purpose, const rdt_client *client);
const rdt_client *rdt_client_of(rdt_purpose purpose);
static inline void *rdt_client_state(const rdt_device *device, rdt_purpose purpose) {
  return device->client_states[purpose];
}

/* Call the function of that name of every client. */
rdt_status rdt_clients_open(rdt_device *device);
void rdt_clients_interrupt(rdt_device *device);
void rdt_clients_stop(rdt_device *device);
void rdt_clients_closed(rdt_device *device);
void rdt_clients_free(rdt_device *device);
int rdt_clients_progress(rdt_device *device);

#endif
