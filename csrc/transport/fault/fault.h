/* SPDX-License-Identifier: Apache-2.0
 *
 * Wraps any transport to inject the faults of the setting FAULTS, for tests. It decorates
 * endpoints; domains, registrations and mappings stay the transport's own. It keeps the contract
 * of transport.h, except that with `drop` a completion comes only when the endpoint is aborted.
 */
#ifndef RDT_TRANSPORT_FAULT_FAULT_H
#define RDT_TRANSPORT_FAULT_FAULT_H

#include "transport/registry.h"

/* Returns transport `index` of rdt_transports, wrapped. */
const rdt_transport *rdt_fault_wrap(size_t index);

#endif
