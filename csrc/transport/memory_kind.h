/* SPDX-License-Identifier: Apache-2.0
 *
 * Names the kinds of memory, and checks whether a transport takes one.
 */
#ifndef RDT_TRANSPORT_MEMORY_KIND_H
#define RDT_TRANSPORT_MEMORY_KIND_H

#include "base/status.h"
#include "transport/transport.h"

static inline const char *rdt_memory_kind_name(rdt_memory_kind kind) {
  return kind == RDT_MEMORY_HOST ? "host" : kind == RDT_MEMORY_CUDA ? "cuda" : "other";
}

static inline rdt_status rdt_memory_kind_check(const rdt_transport *transport,
                                               rdt_memory_kind kind) {
  if (transport->memory_kinds & kind) return RDT_OK;
  return rdt_fail(RDT_ERR_UNSUPPORTED,
                  "transport %s takes no memory of kind %s: shm and tcp take that of CUDA devices",
                  transport->name, rdt_memory_kind_name(kind));
}

#endif
