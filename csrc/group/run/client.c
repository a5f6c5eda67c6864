/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of groups' channels, and the state that all groups of a device share.
 */
#include "core/client.h"

#include <stdlib.h>

#include "base/status.h"
#include "group/run/run.h"

static rdt_status open_groups(rdt_device *device, void **state) {
  rdt_groups *groups = calloc(1, sizeof(*groups));
  if (!groups) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  groups->device = device;
  groups->run_runner = rdt_group_run_runner;
  pthread_mutex_init(&groups->lock, NULL);
  rdt_cond_init(&groups->join_requested);
  pthread_mutex_init(&groups->ready_lock, NULL);
  pthread_mutex_init(&groups->slab_lock, NULL);
  rdt_cond_init(&groups->ready);
  for (size_t i = 0; i < 2; i++) groups->queues[i].tail = &groups->queues[i].head;
  *state = groups;
  return RDT_OK;
}

static rdt_group *next_held(rdt_groups *groups, rdt_group *group) {
  pthread_mutex_lock(&groups->lock);
  rdt_group *next = group ? group->next : groups->list;
  if (next) rdt_group_ref(next);
  pthread_mutex_unlock(&groups->lock);
  rdt_group_unref(group);
  return next;
}

static void interrupt(rdt_device *device) {
  rdt_groups *groups = rdt_groups_of(device);
  pthread_mutex_lock(&groups->lock);
  groups->stopping = true;
  pthread_cond_broadcast(&groups->join_requested);
  pthread_mutex_unlock(&groups->lock);
}

static void stop(rdt_device *device) {
  rdt_groups *groups = rdt_groups_of(device);
  interrupt(device);
  pthread_mutex_lock(&groups->lock);
  while (groups->joining > 0) pthread_cond_wait(&groups->join_requested, &groups->lock);
  pthread_mutex_unlock(&groups->lock);
  for (rdt_group *each = next_held(groups, NULL); each; each = next_held(groups, each))
    rdt_group_end(each, RDT_ERR_CLOSED, "the device is being closed");
  rdt_group_runners_stop(groups);
  pthread_mutex_lock(&groups->lock);
  while (groups->channels) rdt_groups_forget_channel(groups, groups->channels->channel);
  rdt_group_join_requests_expire(groups, INT64_MAX);
  pthread_mutex_unlock(&groups->lock);
}

static void free_groups(void *state) {
  rdt_groups *groups = state;
  for (size_t i = 0; i < sizeof(groups->blocks) / sizeof(groups->blocks[0]); i++)
    while (groups->blocks[i]) {
      rdt_group_block *block = groups->blocks[i];
      groups->blocks[i] = block->next;
      free(block); /* its region was freed with the device's */
    }
  pthread_cond_destroy(&groups->join_requested);
  pthread_cond_destroy(&groups->ready);
  pthread_mutex_destroy(&groups->lock);
  pthread_mutex_destroy(&groups->ready_lock);
  pthread_mutex_destroy(&groups->slab_lock);
  free(groups);
}

__attribute__((constructor)) static void register_groups(void) {
  static const rdt_client groups = {.open = open_groups,
                                    .free = free_groups,
                                    .interrupt = interrupt,
                                    .stop = stop,
                                    .connected = rdt_groups_connected,
                                    .down = rdt_groups_down,
                                    .released = rdt_groups_released,
                                    .take = rdt_groups_take,
                                    .progress = rdt_groups_progress};
  rdt_client_register(RDT_PURPOSE_GROUPS, &groups);
}
