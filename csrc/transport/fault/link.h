/* SPDX-License-Identifier: Apache-2.0
 *
 * The link that FAULTS=rate= and latency= emulate: one for this process, with two directions.
 */
#ifndef RDT_TRANSPORT_FAULT_LINK_H
#define RDT_TRANSPORT_FAULT_LINK_H

#include <stdbool.h>
#include <stdint.h>

/* Sleeps until `bytes` have come in, or gone out, behind those of other threads. What follows at
 * once does not pay the latency again. Thread-safe. */
void rdt_fault_pass_link(bool incoming, uint64_t bytes);

#endif
