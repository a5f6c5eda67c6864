/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_MEET_CONNECT_H
#define RDT_CORE_MEET_CONNECT_H

#include "core/objects.h"

/* Which device has to be at an address. Any other one is refused when it has proven what it says of itself, before it
 * learns of a channel. */
typedef struct rdt_expected {
  const char *name; /* NULL: any name; otherwise RDT_ERR_REFUSED */
  uint64_t
      generation; /* 0: any; otherwise RDT_ERR_CONNECTION_LOST, because the one that is meant is gone */
} rdt_expected;

/* Connects like rdt_device_connect, for any purpose. */
rdt_status rdt_connect_for(rdt_device *device, const char *address, rdt_expected expected,
                           rdt_purpose purpose, int timeout_ms, rdt_channel **channel);

#endif
