/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_WORKERS_H
#define RDT_CORE_WORKERS_H

#include "core/objects.h"

/* Runs `run` on a thread of its own. Returns false if there are too many of the kind, or if the
 * device is closing. Too many endings wait for a thread instead. */
bool rdt_worker_start(rdt_device *device, rdt_task_kind kind, void (*run)(void *argument),
                      void *argument);
/* Waits until no worker is left. None starts once the device is closing. */
void rdt_workers_wait(rdt_device *device);

#endif
