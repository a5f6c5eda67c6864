/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends operations from outside: one, all that run here, or the whole group for good.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "group/run/run.h"

void rdt_group_abort_all(rdt_group *group, rdt_status status, const char *text, bool early) {
  for (size_t i = 0; i < RDT_GROUP_BUCKETS; i++)
    for (rdt_group_operation *each = group->table[i]; each; each = each->next) {
      if (!early && !each->started) continue; /* this member has not started it */
      rdt_group_operation_mark_aborted(each, status, text, strlen(text));
      rdt_group_operation_wake(each);
    }
}

/* Cancels a send or receive by the caller's tag. Returns false if none that runs has it. */
static bool cancel_pair(rdt_group *group, const uint64_t tag[2]) {
  bool found = false;
  pthread_mutex_lock(&group->lock);
  for (size_t i = 0; i < RDT_GROUP_BUCKETS && tag[1]; i++)
    for (rdt_group_operation *each = group->table[i]; each; each = each->next) {
      if (!each->started || each->handle != tag[1]) continue;
      rdt_group_operation_mark_aborted(each, RDT_ERR_CANCELLED, "cancelled", strlen("cancelled"));
      rdt_group_operation_wake(each);
      found = true;
    }
  pthread_mutex_unlock(&group->lock);
  return found;
}

rdt_status rdt_group_cancel(rdt_group *group, const uint64_t tag[2]) {
  if (!group) return rdt_fail(RDT_ERR_INVALID, "group must not be NULL");
  rdt_status status = rdt_device_check(group->device);
  if (status != RDT_OK) return status;
  if (tag && cancel_pair(group, tag)) return RDT_OK;
  if (tag) {
    rdt_group_operation_abort(group, tag, RDT_ERR_CANCELLED, "cancelled");
    return RDT_OK;
  }
  pthread_mutex_lock(&group->lock);
  rdt_group_abort_all(group, RDT_ERR_CANCELLED, "cancelled", false);
  pthread_mutex_unlock(&group->lock);
  return RDT_OK;
}

rdt_status rdt_group_fail(rdt_group *group, const uint64_t tag[2], rdt_status status,
                          const char *text) {
  if (!group || !tag || !text)
    return rdt_fail(RDT_ERR_INVALID, "group, tag and text must not be NULL");
  if (status >= 0) return rdt_fail(RDT_ERR_INVALID, "%d is not an error", (int)status);
  rdt_status usable = rdt_device_check(group->device);
  if (usable == RDT_OK) usable = rdt_group_usable(group); /* else nobody waits any more */
  if (usable != RDT_OK) return usable;
  rdt_group_operation_abort(group, tag, status, text);
  return RDT_OK;
}

/* Ends the group. Returns false if it was aborted before. */
static bool end_group(rdt_group *group, uint32_t from, rdt_status status, const char *text,
                      size_t length) {
  char why[RDT_GROUP_REASON + 64];
  pthread_mutex_lock(&group->lock);
  bool first = group->aborted == RDT_OK;
  if (first) {
    snprintf(why, sizeof(why), "member %u aborted the group: %.*s", from, (int)length, text);
    snprintf(group->abort_text, sizeof(group->abort_text), "group %s: %s", group->name, why);
    group->aborted = status;
    rdt_group_abort_all(group, status, why, true);
  }
  pthread_mutex_unlock(&group->lock);
  if (first) rdt_group_operations_drop_early(group); /* nothing starts here any more */
  return first;
}

rdt_status rdt_group_usable(const rdt_group *group) {
  pthread_mutex_t *lock = (pthread_mutex_t *)&group->lock;
  pthread_mutex_lock(lock);
  rdt_status status = group->aborted;
  pthread_mutex_unlock(lock); /* the text was written once, before the status */
  return status == RDT_OK ? RDT_OK : rdt_fail(status, "%s", group->abort_text);
}

void rdt_group_aborted(rdt_group *group, uint32_t from, rdt_status status, const char *text,
                       size_t length) {
  if (end_group(group, from, status, text, length)) rdt_log(RDT_LOG_DEBUG, "%s", group->abort_text);
}

rdt_status rdt_group_abort(rdt_group *group, rdt_status status, const char *text) {
  static const uint64_t no_tag[2] = {0, 0};
  if (!group || !text) return rdt_fail(RDT_ERR_INVALID, "group and text must not be NULL");
  if (status >= 0) return rdt_fail(RDT_ERR_INVALID, "%d is not an error", (int)status);
  rdt_status usable = rdt_device_check(group->device);
  if (usable != RDT_OK) return usable;
  if (!end_group(group, group->rank, status, text, strnlen(text, RDT_GROUP_REASON - 1)))
    return RDT_OK;
  for (uint32_t peer = 0; peer < group->size; peer++)
    if (peer != group->rank && !atomic_load(&group->links[peer].down))
      rdt_group_abort_send(group, peer, no_tag, status, text, RDT_ABORT_GROUP);
  return RDT_OK;
}
