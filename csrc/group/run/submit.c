/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts an operation of a group as a transfer that a thread can wait for.
 */
#include "base/status.h"
#include "core/post/transfer.h"

rdt_status rdt_group_submit(rdt_group *group, const rdt_collective *collective,
                            rdt_transfer **transfer) {
  if (!transfer) return rdt_fail(RDT_ERR_INVALID, "transfer must not be NULL");
  rdt_transfer *waitable = rdt_transfer_new(NULL);
  if (!waitable) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = rdt_group_start(group, collective, rdt_transfer_complete, waitable);
  if (status == RDT_IN_PROGRESS) {
    *transfer = waitable;
  } else {
    rdt_transfer_drop(waitable);
  }
  return status;
}
