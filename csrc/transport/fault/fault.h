/* SPDX-License-Identifier: Apache-2.0
 *
 * Any transport with the faults of the setting FAULTS: a decorator around its endpoints, for tests.
 * Domains, registrations and mappings are the transport's own. It keeps the contract of transport.h, except
 * that with `drop` a completion comes only when the endpoint is aborted.
 */
#ifndef RDT_TRANSPORT_FAULT_FAULT_H
#define RDT_TRANSPORT_FAULT_FAULT_H

#include "transport/registry.h"

/* Transport `index` of rdt_transports, wrapped. */
const rdt_transport *rdt_fault_wrap(size_t index);

#endif
