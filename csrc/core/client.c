/* SPDX-License-Identifier: Apache-2.0 */
#include "core/client.h"

static const rdt_client *clients[RDT_PURPOSE_COUNT];

void rdt_client_register(rdt_purpose purpose, const rdt_client *client) {
  clients[purpose] = client;
}

const rdt_client *rdt_client_of(rdt_purpose purpose) { return clients[purpose]; }

rdt_status rdt_clients_open(rdt_device *device) {
  rdt_status status = RDT_OK;
  for (int i = 0; i < RDT_PURPOSE_COUNT && status == RDT_OK; i++)
    status = clients[i]->open(device, &device->client_states[i]);
  return status;
}

void rdt_clients_interrupt(rdt_device *device) {
  for (int i = 0; i < RDT_PURPOSE_COUNT; i++)
    if (clients[i]->interrupt) clients[i]->interrupt(device);
}

void rdt_clients_stop(rdt_device *device) {
  for (int i = 0; i < RDT_PURPOSE_COUNT; i++)
    if (clients[i]->stop) clients[i]->stop(device);
}

void rdt_clients_closed(rdt_device *device) {
  for (int i = 0; i < RDT_PURPOSE_COUNT; i++)
    if (clients[i]->closed) clients[i]->closed(device);
}

void rdt_clients_free(rdt_device *device) {
  for (int i = 0; i < RDT_PURPOSE_COUNT; i++)
    if (device->client_states[i]) clients[i]->free(device->client_states[i]);
}

int rdt_clients_progress(rdt_device *device) {
  int done = 0;
  for (int i = 0; i < RDT_PURPOSE_COUNT; i++)
    if (clients[i]->progress) done += clients[i]->progress(device);
  return done;
}
