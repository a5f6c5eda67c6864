/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_PROGRESS_H
#define RDT_CORE_PROGRESS_H

#include "core/objects.h"

rdt_status rdt_progress_start(rdt_device *device);
void rdt_progress_stop(rdt_device *device);

#endif
