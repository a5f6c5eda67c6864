/* SPDX-License-Identifier: Apache-2.0
 *
 * The transports of this build.
 */
#ifndef RDT_TRANSPORT_REGISTRY_H
#define RDT_TRANSPORT_REGISTRY_H

#include "transport/transport.h"

/* Every transport of this build, best first. rdt_transport_find returns the one called `name`,
 * or NULL. */
extern const rdt_transport *const rdt_transports[];
extern const size_t rdt_transport_count;
const rdt_transport *rdt_transport_find(const char *name);
/* Returns the transport's index in rdt_transports. A transport with faults has the name, and so
 * the index, of the one it wraps. */
size_t rdt_transport_index(const rdt_transport *transport);
/* Checks names that are separated by commas: a misspelt one would otherwise disable a transport without a word.
 * `what` they are is for the error, RDT_ERR_INVALID. */
rdt_status rdt_transports_check(const char *what, const char *names);

#endif
