/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends messages of operations, keeps the credit of eager ones and the peers' regions that
 * messages name, and compares checksums.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "group/run/run.h"

#define SHORT_PAYLOAD 256u
#define FREE_PARTS 256u /* kept of each kind */

/* How much a peer may have sent eagerly that is not done with. Beyond it messages are lent or
 * pushed. */
#define EAGER_WINDOW (1024u * 1024)
#define EAGER_COST 256u    /* of a message, besides its payload */
#define EMPTY_LIMIT 65536u /* of messages without payload, which are sent without credit */

static uint64_t capacity_of(const rdt_group *group, bool whole) {
  return whole ? group->eager : SHORT_PAYLOAD;
}

rdt_group_part *rdt_group_part_new(rdt_group *group, uint64_t payload) {
  bool whole = payload > SHORT_PAYLOAD;
  uint64_t capacity = capacity_of(group, whole);
  if (capacity < payload) capacity = payload;
  pthread_mutex_lock(&group->lock);
  rdt_group_part *part = group->free_parts[whole];
  if (part && part->capacity >= payload) {
    group->free_parts[whole] = part->next;
    group->free_counts[whole]--;
  } else {
    part = NULL;
  }
  pthread_mutex_unlock(&group->lock);
  if (!part) {
    part = malloc(sizeof(*part) + capacity);
    if (!part) return NULL;
    part->capacity = capacity;
  }
  part->next = NULL;
  part->group = group;
  part->operation = NULL;
  part->size = payload;
  return part;
}

void rdt_group_part_free(rdt_group *group, rdt_group_part *part) {
  if (!part) return;
  bool whole = part->capacity > SHORT_PAYLOAD;
  pthread_mutex_lock(&group->lock);
  bool keep = group->free_counts[whole] < FREE_PARTS && part->capacity == capacity_of(group, whole);
  if (keep) {
    part->next = group->free_parts[whole];
    group->free_parts[whole] = part;
    group->free_counts[whole]++;
  }
  pthread_mutex_unlock(&group->lock);
  if (!keep) free(part);
}

void rdt_group_message_begin(rdt_group_operation *operation, rdt_group_part *part,
                             rdt_group_message_kind kind, const rdt_group_program_step *step) {
  part->kind = kind;
  part->head = (rdt_group_message){.group = operation->group->id,
                                   .tag = {operation->tag[0], operation->tag[1]},
                                   .shape = operation->shape,
                                   .from = operation->group->rank,
                                   .lane = step->step.lane,
                                   .number = step->number};
  if (operation->by_pair) part->head.shape.count = step->step.count;
}

static void sent(void *context, rdt_status status) {
  rdt_group_part *part = context;
  rdt_group *group = part->group;
  (void)status; /* on failure the channel is down, and everybody learns it from that */
  rdt_group_part_free(group, part);
  rdt_group_unref(group);
}

void rdt_group_credit_tell(rdt_group *group, uint32_t peer, rdt_group_message *message) {
  rdt_group_link *link = &group->links[peer];
  uint64_t taken = atomic_load_explicit(&link->eager_taken, memory_order_relaxed);
  message->credit = taken;
  atomic_store_explicit(&link->eager_announced, taken, memory_order_relaxed);
}

rdt_status rdt_group_part_send(rdt_group *group, uint32_t peer, rdt_group_part *part) {
  rdt_group_credit_tell(group, peer, &part->head);
  rdt_op op = {.kind = RDT_OP_NOTIFY,
               .local = &part->head,
               .size = sizeof(part->head) + part->size,
               .immediate = part->kind};
  part->group = group;
  rdt_group_ref(group);
  rdt_status status = rdt_channel_post(group->links[peer].channel, &op, 1, sent, part);
  if (status != RDT_IN_PROGRESS) sent(part, status);
  return status < 0 ? status : RDT_OK;
}

/* `head` has the fields in which ABORTs differ. */
static void send_abort(rdt_group *group, uint32_t peer, rdt_group_message head, const char *detail,
                       const char *text) {
  size_t length = strnlen(text, RDT_GROUP_REASON - 1), used = sizeof(head) + length;
  uint64_t most = group->links[peer].channel->max_notify;
  size_t size = strnlen(detail, RDT_GROUP_DETAIL - 1);
  if (size + used > most) size = most > used ? most - used : 0;
  rdt_group_part *part = rdt_group_part_new(group, size + length);
  if (!part) return; /* the peer learns it when its own deadline passes */
  part->kind = RDT_GROUP_ABORT;
  part->head = head;
  part->head.group = group->id;
  part->head.from = group->rank;
  part->head.size = size;
  char *payload = rdt_group_part_payload(part);
  memcpy(payload, detail, size);
  memcpy(payload + size, text, length);
  rdt_group_part_send(group, peer, part);
}

void rdt_group_abort_send(rdt_group *group, uint32_t peer, const uint64_t tag[2], rdt_status status,
                          const char *text, rdt_group_abort_kind which) {
  const rdt_group_message head = {.tag = {tag[0], tag[1]}, .status = status, .number = which};
  send_abort(group, peer, head, "", text);
}

void rdt_group_operation_abort_send(const rdt_group_operation *operation, uint32_t peer) {
  rdt_group_message head = {.tag = {operation->tag[0], operation->tag[1]},
                            .shape = operation->shape,
                            .status = operation->status,
                            .number = RDT_ABORT_OPERATION};
  /* Members agree about this one, and where it is complete no further operation has to fail. */
  if (operation->regrets) head.shape = (rdt_group_shape){0};
  send_abort(operation->group, peer, head, operation->detail.text, operation->text);
}

bool rdt_group_credit_take(rdt_group_link *link, uint64_t bytes, bool always) {
  uint64_t cost = bytes + EAGER_COST;
  uint64_t before = atomic_fetch_add_explicit(&link->eager_sent, cost, memory_order_relaxed);
  uint64_t returned = atomic_load_explicit(&link->eager_returned, memory_order_relaxed);
  if (always || (int64_t)(before - returned) + (int64_t)cost <= (int64_t)EAGER_WINDOW) return true;
  atomic_fetch_sub_explicit(&link->eager_sent, cost, memory_order_relaxed);
  return false;
}

void rdt_group_credit_return(rdt_group *group, uint32_t peer, uint64_t bytes) {
  rdt_group_link *link = &group->links[peer];
  uint64_t cost = bytes + EAGER_COST;
  uint64_t taken = atomic_fetch_add_explicit(&link->eager_taken, cost, memory_order_relaxed) + cost;
  uint64_t announced = atomic_load_explicit(&link->eager_announced, memory_order_relaxed);
  if ((int64_t)(taken - announced) < (int64_t)EAGER_WINDOW / 2 || atomic_load(&link->down)) return;
  rdt_group_part *part = rdt_group_part_new(group, 0);
  if (!part) return; /* the next message returns the credit */
  part->kind = RDT_GROUP_CREDIT;
  part->head = (rdt_group_message){.group = group->id, .from = group->rank};
  rdt_group_part_send(group, peer, part);
}

bool rdt_group_credit_charge(rdt_group_link *link, uint64_t bytes) {
  uint64_t taken = atomic_load_explicit(&link->eager_taken, memory_order_relaxed);
  link->eager_received += bytes + EAGER_COST;
  return link->eager_received - taken <= EAGER_WINDOW + (uint64_t)EMPTY_LIMIT * EAGER_COST;
}

void rdt_group_credit_learn(rdt_group_link *link, uint64_t returned) {
  uint64_t sent = atomic_load_explicit(&link->eager_sent, memory_order_relaxed);
  uint64_t known = atomic_load_explicit(&link->eager_returned, memory_order_relaxed);
  while ((int64_t)(returned - known) > 0 && (int64_t)(sent - returned) >= 0)
    if (atomic_compare_exchange_weak(&link->eager_returned, &known, returned)) return;
}

static rdt_remote_region *find_open(rdt_group *group, rdt_group_link *link, uint64_t key) {
  rdt_remote_region *found = NULL;
  pthread_mutex_lock(&group->lock);
  for (size_t i = 0; i < RDT_LINK_REMOTES && !found; i++) {
    rdt_group_link_remote *each = &link->remotes[i];
    if (!each->region || each->key != key) continue;
    found = each->region;
    each->used = ++link->clock;
    rdt_remote_region_ref(found);
  }
  pthread_mutex_unlock(&group->lock);
  return found;
}

/* Keeps the region open for the next message, in place of the least recently used one. */
static void keep_open(rdt_group *group, rdt_group_link *link, uint64_t key,
                      rdt_remote_region *region) {
  rdt_remote_region *dropped = NULL;
  pthread_mutex_lock(&group->lock);
  rdt_group_link_remote *oldest = &link->remotes[0];
  for (size_t i = 1; i < RDT_LINK_REMOTES; i++)
    if (link->remotes[i].used < oldest->used) oldest = &link->remotes[i];
  if (!atomic_load(&link->down)) {
    dropped = oldest->region;
    *oldest = (rdt_group_link_remote){key, ++link->clock, region};
    rdt_remote_region_ref(region);
  }
  pthread_mutex_unlock(&group->lock);
  rdt_remote_region_unref(dropped);
}

rdt_status rdt_group_link_open(rdt_group *group, uint32_t peer, uint64_t key,
                               rdt_remote_region **region) {
  rdt_group_link *link = &group->links[peer];
  *region = find_open(group, link, key);
  if (*region) return RDT_OK;
  if (rdt_on_progress_thread()) return RDT_IN_PROGRESS;
  rdt_status status = rdt_remote_region_open(link->channel, key, RDT_TIMEOUT_DEFAULT, region);
  if (status == RDT_OK) keep_open(group, link, key, *region);
  return status;
}

void rdt_group_link_forget(rdt_group_link *link) {
  for (size_t i = 0; i < RDT_LINK_REMOTES; i++) {
    rdt_remote_region_unref(link->remotes[i].region);
    link->remotes[i] = (rdt_group_link_remote){0};
  }
}

/* CHECKSUM=crc32c: the sender announces bytes with their CRC32C (RFC 3720), computed in place
 * before they are copied, lent or written. The receiver compares it before the bytes are reduced
 * or the operation completes. A difference fails the operation at all members. */

/* 0 stands for no checksum, so a checksum of 0 is sent as 1. */
static uint32_t announced(uint32_t crc) { return crc ? crc : 1; }

void rdt_group_checksum_set(const rdt_group *group, rdt_group_message *head, const void *bytes) {
  if (group->checks && head->size)
    head->status = (int32_t)announced(rdt_crc32c(0, bytes, head->size));
}

bool rdt_group_checksum_present(const rdt_group_operation *operation,
                                const rdt_group_message *head) {
  return operation->group->checks && head->status != 0;
}

void rdt_group_checksum_compare(rdt_group_operation *operation, const rdt_group_message *head,
                                uint32_t crc) {
  uint32_t sent = (uint32_t)head->status, found = announced(crc);
  if (!rdt_group_checksum_present(operation, head) || found == sent) return;
  rdt_group_operation_fail(
      operation, RDT_ERR_CORRUPTED,
      "group %s: what member %u sent to member %u arrived corrupted: message %u of "
      "lane %u, %llu bytes from byte %llu on, CRC32C %08x when sent and %08x when "
      "received",
      operation->group->name, head->from, operation->group->rank, head->number, head->lane,
      (unsigned long long)head->size, (unsigned long long)head->at, sent, found);
  rdt_log(RDT_LOG_ERROR, "%s", operation->text);
}

bool rdt_group_checksum_verify(rdt_group_operation *operation, const rdt_group_message *head,
                               const void *bytes) {
  if (rdt_group_checksum_present(operation, head))
    rdt_group_checksum_compare(operation, head, rdt_crc32c(0, bytes, head->size));
  return operation->status == RDT_IN_PROGRESS;
}
