/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_MEET_CONNECT_H
#define RDT_CORE_MEET_CONNECT_H

#include "core/objects.h"

/* rdt_device_connect for a purpose. */
rdt_status rdt_connect_for(rdt_device *device, const char *address, rdt_purpose purpose,
                           int timeout_ms, rdt_channel **channel);

#endif
