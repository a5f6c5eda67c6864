/* SPDX-License-Identifier: Apache-2.0
 *
 * rdmatensor treats a remote machine as a device whose memory you allocate, read and write one-sidedly.
 *
 * This header includes those of its parts, in the folder rdmatensor. They are the whole public interface: Python (cffi reads
 * these very files) and the TensorFlow plugin use nothing else of the core.
 *
 * Example. The owner of the memory allocates a region under a name and waits for a notification; the other
 * process connects, finds the region, and writes into it. examples/c/hello.c is the whole program.
 *
 *     rdt_region_alloc(device, ROOM, RDT_ACCESS_WRITE, "mailbox", &region)
 *     rdt_device_next_notification(device, PATIENCE_MS, &news)
 *
 *     rdt_device_connect(device, address, RDT_TIMEOUT_DEFAULT, &channel)
 *     rdt_remote_region_find(channel, "mailbox", RDT_TIMEOUT_DEFAULT, &mailbox)
 *     rdt_channel_submit(channel, &op, 1, &transfer)
 *     rdt_transfer_wait(transfer, RDT_TIMEOUT_DEFAULT)
 *
 * Objects. A *device* is one local endpoint with one progress thread. It owns *regions*, memory that
 * peers may read or write, and *channels*, connections to devices of other processes. A *remote region*
 * is a peer's region opened over a channel. A *transfer* is the completion of posted operations.
 *
 * Threads. Every function may be called from any thread unless it says otherwise. Handlers run on the
 * device's progress thread, one at a time; they must not block, and must not close the device. (On a
 * device without on_notify, `done` may also run on a thread that waits for a transfer.)
 *
 * Completion. A function that posts returns RDT_OK when the operations are complete (`done` will not
 * be called), RDT_IN_PROGRESS when `done` will be called exactly once on the progress thread, or an
 * error (< 0) when nothing is under way: of a batch, operations before the one that failed may have been
 * executed. Until completion the local buffers belong to the core.
 *
 * Errors. Functions return rdt_status; rdt_last_error() describes the calling thread's last failure: cause,
 * device, peer, remedy. Output parameters are set only on success. Nothing aborts.
 *
 * Time. All time-outs are in milliseconds; RDT_TIMEOUT_DEFAULT means the setting DEADLINE_MS.
 */
#ifndef RDMATENSOR_H
#define RDMATENSOR_H

#include "rdmatensor/base.h"
#include "rdmatensor/device.h"
#include "rdmatensor/group.h"
#include "rdmatensor/plan.h"
#include "rdmatensor/store.h"

#endif
