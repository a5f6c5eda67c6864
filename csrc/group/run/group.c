/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups from creation to close.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "core/post/transfer.h"
#include "group/run/run.h"

#define SPINS \
  20 /* a group's operations poll for so many times SPIN_US: members seldom start at once */

static void free_parts(rdt_group_part *part) {
  while (part) {
    rdt_group_part *next = part->next;
    free(part);
    part = next;
  }
}

static void free_operations(rdt_group_operation *operation) {
  while (operation) {
    rdt_group_operation *next = operation->next;
    free_parts(operation->inbox);
    rdt_group_operation_free(operation);
    operation = next;
  }
}

static void group_free(rdt_group *group) {
  for (uint32_t i = 0; group->links && i < group->size; i++) {
    rdt_group_link_forget(&group->links[i]);
    rdt_channel_unref(group->links[i].channel);
  }
  for (size_t i = 0; i < RDT_GROUP_BUCKETS; i++) free_operations(group->table[i]);
  free_operations(group->free_operations);
  free_parts(group->free_parts[0]);
  free_parts(group->free_parts[1]);
  rdt_group_programs_clear(&group->programs);
  pthread_cond_destroy(&group->changed);
  pthread_mutex_destroy(&group->lock);
  rdt_device *device = group->device;
  free(group->links);
  free(group->hosts);
  rdt_trees_free(group->trees);
  free(group);
  rdt_device_unref(device);
}

static void wake_all(rdt_group *group) {
  for (size_t i = 0; i < RDT_GROUP_BUCKETS; i++)
    for (rdt_group_operation *each = group->table[i]; each; each = each->next)
      rdt_group_operation_wake(each);
}

void rdt_group_wake(rdt_group *group) {
  pthread_mutex_lock(&group->lock);
  if (group->started > 0) wake_all(group);
  pthread_mutex_unlock(&group->lock);
}

void rdt_group_forget_regions(rdt_group *group, rdt_group_link *link) {
  pthread_mutex_lock(&group->lock);
  rdt_group_link_forget(link);
  pthread_mutex_unlock(&group->lock);
}

static rdt_status check_options(const rdt_device *device, const rdt_group_options *options,
                                rdt_group **group) {
  if (!device || !options || !group)
    return rdt_fail(RDT_ERR_INVALID, "device, options and group must not be NULL");
  if (options->struct_size != sizeof(*options))
    return rdt_fail(RDT_ERR_INVALID,
                    "rdt_group_options has %zu bytes: set struct_size, and use the header this "
                    "library was built with",
                    options->struct_size);
  if (!options->name || !options->name[0] || strlen(options->name) >= RDT_GROUP_NAME_SIZE)
    return rdt_fail(RDT_ERR_INVALID, "a group's name has 1 to %d bytes", RDT_GROUP_NAME_SIZE - 1);
  if (options->size == 0 || options->size > RDT_GROUP_MAX_SIZE || options->rank >= options->size)
    return rdt_fail(RDT_ERR_INVALID,
                    "rank %u of %u is out of range: a group has at most %d members", options->rank,
                    options->size, RDT_GROUP_MAX_SIZE);
  if (options->rank > 0 && !options->root)
    return rdt_fail(RDT_ERR_INVALID, "the address of rank 0's device is missing");
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID, "rdt_group_create waits: it cannot be called from a handler");
  return rdt_device_check(device);
}

static rdt_algorithm forced_algorithm(void) {
  char text[32];
  rdt_config_text(RDT_CONFIG_GROUP_ALGORITHM, text, sizeof(text));
  for (int i = 1; i < RDT_ALGORITHM_COUNT; i++)
    if (strcmp(text, rdt_algorithm_name((rdt_algorithm)i)) == 0) return (rdt_algorithm)i;
  return RDT_ALGORITHM_AUTO;
}

static bool wants_checksums(void) {
  char text[16];
  rdt_config_text(RDT_CONFIG_CHECKSUM, text, sizeof(text));
  return strcmp(text, "crc32c") == 0;
}

/* The limit also has to fit into a notification to this device. */
static uint64_t eager_limit(void) {
  uint64_t wanted = rdt_config_number(RDT_CONFIG_GROUP_EAGER_BYTES);
  uint64_t room = rdt_config_number(RDT_CONFIG_RING_BYTES) / 4 - sizeof(rdt_group_message);
  return wanted < room ? wanted : room;
}

rdt_group *rdt_group_new(rdt_device *device, const rdt_group_options *options) {
  rdt_group *group = calloc(1, sizeof(*group));
  if (!group) return NULL;
  atomic_init(&group->refs, 1);
  group->free = group_free;
  group->groups = rdt_groups_of(device);
  group->device = device;
  rdt_device_ref(device);
  snprintf(group->name, sizeof(group->name), "%s", options->name);
  group->rank = options->rank;
  group->size = options->size;
  group->forced = forced_algorithm();
  group->chunk = rdt_config_number(RDT_CONFIG_GROUP_CHUNK_BYTES);
  group->eager = eager_limit();
  group->spin_us = SPINS * (int64_t)rdt_config_number(RDT_CONFIG_SPIN_US);
  group->checks = wants_checksums();
  pthread_mutex_init(&group->lock, NULL);
  rdt_cond_init(&group->changed);
  group->posted.tail = &group->posted.head;
  group->unmatched.tail = &group->unmatched.head;
  group->hosts = calloc(options->size, sizeof(*group->hosts));
  group->links = calloc(options->size, sizeof(*group->links));
  if (group->hosts && group->links) return group;
  rdt_group_unref(group);
  return NULL;
}

rdt_status rdt_group_enlist(rdt_group *group) {
  rdt_groups *groups = group->groups;
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&groups->lock);
  for (const rdt_group *each = groups->list; each; each = each->next)
    if (strcmp(each->name, group->name) == 0)
      status = rdt_fail(RDT_ERR_INVALID, "device %s is in a group named \"%s\" already",
                        group->device->name, group->name);
  if (groups->stopping)
    status = rdt_fail(RDT_ERR_CLOSED, "device %s is closing", group->device->name);
  if (status == RDT_OK) {
    group->next = groups->list;
    groups->list = group;
    groups->joining++;
  }
  pthread_mutex_unlock(&groups->lock);
  return status;
}

void rdt_group_end_joining(rdt_groups *groups) {
  pthread_mutex_lock(&groups->lock);
  groups->joining--;
  rdt_group_join_requests_forget(groups);
  pthread_cond_broadcast(&groups->join_requested);
  pthread_mutex_unlock(&groups->lock);
}

void rdt_group_delist(rdt_group *group) {
  rdt_groups *groups = group->groups;
  pthread_mutex_lock(&groups->lock);
  rdt_group **link = &groups->list;
  while (*link && *link != group) link = &(*link)->next;
  if (*link) *link = group->next;
  pthread_mutex_unlock(&groups->lock);
}

rdt_status rdt_group_create(rdt_device *device, const rdt_group_options *options,
                            rdt_group **group_out) {
  rdt_status status = check_options(device, options, group_out);
  if (status != RDT_OK) return status;
  rdt_group *group = rdt_group_new(device, options);
  if (!group) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  status = rdt_group_enlist(group);
  if (status != RDT_OK) {
    rdt_group_unref(group);
    return status;
  }
  const rdt_expected root = {.name = options->root_name};
  status = rdt_group_meet(group, options->root, root, rdt_deadline_after(options->timeout_ms));
  rdt_group_end_joining(group->groups);
  if (status != RDT_OK) {
    rdt_group_delist(group);
    rdt_group_unref(group);
    return status;
  }
  rdt_log(RDT_LOG_DEBUG,
          "device %s: member %u of the %u of group %s; latency %.0f/%.0f ns, %.3f/%.3f ns a byte, "
          "reductions %.3f ns a byte",
          device->name, group->rank, group->size, group->name, group->costs.latency_ns[0],
          group->costs.latency_ns[1], group->costs.byte_ns[0], group->costs.byte_ns[1],
          group->costs.reduce_byte_ns);
  *group_out = group;
  return RDT_OK;
}

void rdt_group_end(rdt_group *group, rdt_status status, const char *text) {
  pthread_mutex_lock(&group->lock);
  group->closing = true;
  rdt_group_abort_all(group, status, text, true);
  while (group->started > 0) pthread_cond_wait(&group->changed, &group->lock);
  pthread_mutex_unlock(&group->lock);
}

static void say_leave(rdt_group *group) {
  for (uint32_t peer = 0; peer < group->size; peer++) {
    if (peer == group->rank || atomic_load(&group->links[peer].down)) continue;
    rdt_group_part *part = rdt_group_part_new(group, 0);
    if (!part) return;
    part->kind = RDT_GROUP_LEAVE;
    part->head = (rdt_group_message){.group = group->id, .from = group->rank};
    rdt_group_part_send(group, peer, part);
  }
}

void rdt_group_close(rdt_group *group) {
  if (!group || rdt_device_check(group->device) == RDT_ERR_FORKED) return;
  rdt_group_end(group, RDT_ERR_CANCELLED, "the group is being closed");
  say_leave(group);
  rdt_group_delist(group);
  for (uint32_t i = 0; i < group->size; i++) rdt_group_forget_regions(group, &group->links[i]);
  rdt_group_unref(group);
}

rdt_status rdt_group_get_info(const rdt_group *group, rdt_group_info *info) {
  if (!group || !info) return rdt_fail(RDT_ERR_INVALID, "group and info must not be NULL");
  *info = (rdt_group_info){.name = group->name,
                           .rank = group->rank,
                           .size = group->size,
                           .reduce_byte_ns = group->costs.reduce_byte_ns,
                           .copies = atomic_load(&group->copies)};
  for (int i = 0; i < 2; i++) {
    info->latency_ns[i] = group->costs.latency_ns[i];
    info->byte_ns[i] = group->costs.byte_ns[i];
  }
  for (int i = 0; i < RDT_ALGORITHM_COUNT; i++) {
    info->operations[i] = atomic_load(&group->operations[i]);
    info->bytes[i] = atomic_load(&group->bytes[i]);
  }
  for (uint32_t i = 0; i < group->size; i++)
    if (group->hosts[i] >= info->hosts) info->hosts = group->hosts[i] + 1;
  return RDT_OK;
}

rdt_status rdt_group_choose(const rdt_group *group, rdt_collective_kind kind, uint64_t bytes,
                            rdt_algorithm *algorithm) {
  if (!group || !algorithm)
    return rdt_fail(RDT_ERR_INVALID, "group and algorithm must not be NULL");
  if ((int)kind < RDT_ALL_REDUCE || kind > RDT_BARRIER)
    return rdt_fail(RDT_ERR_INVALID, "%d is not a collective operation", (int)kind);
  rdt_status usable = rdt_group_usable(group);
  if (usable != RDT_OK) return usable;
  *algorithm = group->forced;
  if (kind == RDT_BARRIER)
    *algorithm = RDT_ALGORITHM_AUTO;
  else if (*algorithm == RDT_ALGORITHM_AUTO)
    *algorithm = rdt_group_trees_choose(group, kind, bytes);
  return RDT_OK;
}
