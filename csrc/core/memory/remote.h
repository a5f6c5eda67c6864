/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_MEMORY_REMOTE_H
#define RDT_CORE_MEMORY_REMOTE_H

#include "core/objects.h"

/* Reports whether any of the peer's regions is open. */
bool rdt_channel_holds_regions(rdt_channel *channel);

#endif
