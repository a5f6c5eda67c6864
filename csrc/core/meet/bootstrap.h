/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_MEET_BOOTSTRAP_H
#define RDT_CORE_MEET_BOOTSTRAP_H

#include "core/objects.h"

rdt_status rdt_bootstrap_start(rdt_device *device);
/* Ends all handshakes, incoming and outgoing, and lets no new ones begin. */
void rdt_bootstrap_interrupt(rdt_device *device);
void rdt_bootstrap_stop(rdt_device *device);

#endif
