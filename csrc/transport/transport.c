/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/transport.h"

#include <string.h>

#include "transport/shm/shm.h"

const rdt_transport *const rdt_transports[] = {&rdt_transport_shm};
const size_t rdt_transport_count = sizeof(rdt_transports) / sizeof(rdt_transports[0]);

const rdt_transport *rdt_transport_find(const char *name) {
  for (size_t i = 0; i < rdt_transport_count; i++)
    if (strcmp(rdt_transports[i]->name, name) == 0) return rdt_transports[i];
  return NULL;
}
