/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_MEET_CONNECT_H
#define RDT_CORE_MEET_CONNECT_H

#include "core/objects.h"

/* Connects like rdt_device_connect, for any purpose. */
rdt_status rdt_connect_for(rdt_device *device, const char *address, rdt_purpose purpose,
                           int timeout_ms, rdt_channel **channel);

#endif
