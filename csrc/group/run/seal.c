/* SPDX-License-Identifier: Apache-2.0
 *
 * CHECKSUM=crc32c: the sender announces bytes with their CRC32C (RFC 3720), computed in place
 * before they are copied, lent or written. The receiver compares it before the bytes are reduced
 * or the operation completes. A difference fails the operation at all members.
 */
#include "base/log.h"
#include "base/status.h"
#include "group/group.h"

/* 0 stands for no checksum, so a checksum of 0 is sent as 1. */
static uint32_t told(uint32_t crc) { return crc ? crc : 1; }

void rdt_group_seal(const rdt_group *group, rdt_group_message *head, const void *bytes) {
  if (group->checks && head->size) head->status = (int32_t)told(rdt_crc32c(0, bytes, head->size));
}

bool rdt_group_seal_matters(const rdt_group_operation *operation, const rdt_group_message *head) {
  return operation->group->checks && head->status != 0;
}

void rdt_group_seal_compare(rdt_group_operation *operation, const rdt_group_message *head,
                            uint32_t crc) {
  uint32_t sent = (uint32_t)head->status, found = told(crc);
  if (!rdt_group_seal_matters(operation, head) || found == sent) return;
  rdt_group_operation_fail(
      operation, RDT_ERR_CORRUPTED,
      "group %s: what member %u sent to member %u arrived corrupted: message %u of "
      "lane %u, %llu bytes from byte %llu on, CRC32C %08x when sent and %08x when "
      "received",
      operation->group->name, head->from, operation->group->rank, head->number, head->lane,
      (unsigned long long)head->size, (unsigned long long)head->at, sent, found);
  rdt_log(RDT_LOG_ERROR, "%s", operation->text);
}

bool rdt_group_seal_holds(rdt_group_operation *operation, const rdt_group_message *head,
                          const void *bytes) {
  if (rdt_group_seal_matters(operation, head))
    rdt_group_seal_compare(operation, head, rdt_crc32c(0, bytes, head->size));
  return operation->status == RDT_IN_PROGRESS;
}
