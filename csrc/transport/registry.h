/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_TRANSPORT_REGISTRY_H
#define RDT_TRANSPORT_REGISTRY_H

#include "transport/transport.h"

/* Every transport of this build, best first, and the one called `name` (NULL if none is). */
extern const rdt_transport *const rdt_transports[];
extern const size_t rdt_transport_count;
const rdt_transport *rdt_transport_find(const char *name);
/* Its place in rdt_transports, or that of the one it wraps, whose very name it has. */
size_t rdt_transport_index(const rdt_transport *transport);

#endif
