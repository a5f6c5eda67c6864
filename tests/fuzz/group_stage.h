/* SPDX-License-Identifier: Apache-2.0
 *
 * A device whose groups' peers are played by a harness: channels of the real transport, to whose far ends
 * nobody listens, and remote regions in memory that the sanitizer watches. One thread does everything.
 */
#ifndef RDT_TESTS_FUZZ_GROUP_STAGE_H
#define RDT_TESTS_FUZZ_GROUP_STAGE_H

#include "base/config.h"
#include "base/status.h"
#include "core/memory/region.h"
#include "core/post/channel.h"
#include "core/post/posting.h"
#include "fuzz.h"
#include "group/run/run.h"
#include "transport/shm/shm.h"

#define PEERS 5u   /* with this device's own place */
#define REGIONS 2u /* of each peer, with keys from 1 on */
#define REGION_BYTES 8192u
#define STAGE_ADDRESS "127.0.0.1:%u" /* where nobody listens */
#define STAGE_ROOT "127.0.0.1:1"

typedef struct stage {
  rdt_device *device;
  rdt_channel *channels[PEERS];
  rdt_endpoint *far[PEERS];
} stage;

static inline void stage_remote(rdt_device *device, rdt_channel *channel, uint64_t key) {
  rdt_region *region;
  rdt_region_info info;
  rdt_region_atomics atomics;
  rdt_bundle bundle = {.size = 0};
  rdt_remote_region *remote = calloc(1, sizeof(*remote));
  const uint32_t access = RDT_ACCESS_READ | RDT_ACCESS_WRITE;
  FUZZ_EXPECT(remote && rdt_region_alloc(device, REGION_BYTES, access, NULL, &region) == RDT_OK);
  FUZZ_EXPECT(rdt_region_get_info(region, &info) == RDT_OK);
  FUZZ_EXPECT(rdt_region_export(channel, info.key, "", &info, &atomics, &bundle) == RDT_OK);
  rdt_region_memory claimed = {.size = REGION_BYTES, .access = access};
  FUZZ_EXPECT(channel->transport->region_import(&claimed, &bundle, &remote->mapping) == RDT_OK);
  atomic_init(&remote->refs, 1);
  remote->channel = channel;
  rdt_channel_ref(channel);
  remote->info = (rdt_region_info){.key = key, .size = REGION_BYTES, .access = access};
  remote->info.address = calloc(1, REGION_BYTES);
  remote->next = channel->remote_regions;
  channel->remote_regions = remote;
}

static inline void stage_channel(stage *s, uint32_t peer) {
  rdt_bundle ours = {.size = 0}, theirs = {.size = 0};
  rdt_channel *channel;
  const rdt_transport *shm = &rdt_transport_shm;
  FUZZ_EXPECT(rdt_channel_create(s->device, shm, RDT_PURPOSE_GROUPS, &ours, &channel) == RDT_OK);
  FUZZ_EXPECT(shm->endpoint_create(NULL, &s->far[peer], &theirs) == RDT_OK);
  FUZZ_EXPECT(shm->endpoint_connect(channel->endpoint, "peer", &theirs) == RDT_OK);
  FUZZ_EXPECT(shm->endpoint_connect(s->far[peer], "device", &ours) == RDT_OK);
  snprintf(channel->peer_name, sizeof(channel->peer_name), "peer-%u", peer);
  snprintf(channel->peer_address, sizeof(channel->peer_address), STAGE_ADDRESS, 1 + peer);
  channel->peer_generation = 1000 + peer;
  channel->max_notify = shm->max_notify(channel->endpoint);
  for (uint64_t key = 1; key <= REGIONS; key++) stage_remote(s->device, channel, key);
  s->channels[peer] = channel;
}

static inline void stage_open(stage *s) {
  FUZZ_EXPECT(rdt_config_set("LOG_LEVEL", "error") == RDT_OK);
  FUZZ_EXPECT(rdt_config_set("TRANSPORTS", "shm") == RDT_OK);
  FUZZ_EXPECT(rdt_config_set("RING_BYTES", "1M") == RDT_OK);
  FUZZ_EXPECT(rdt_device_open(NULL, &s->device) == RDT_OK);
  for (uint32_t peer = 0; peer < PEERS; peer++) stage_channel(s, peer);
}

static inline void stage_ignore(void *unused, uint64_t immediate, const void *data, size_t size) {
  (void)unused, (void)immediate, (void)data, (void)size;
}

/* Takes what was sent to the peers, and has the channels as new. */
static inline void stage_drain(stage *s) {
  const rdt_events events = {NULL, stage_ignore, NULL};
  for (uint32_t peer = 0; peer < PEERS; peer++) {
    rdt_channel *channel = s->channels[peer];
    while (rdt_transport_shm.poll(s->far[peer], 1000, &events) > 0) continue;
    rdt_channel_end_queue(channel, RDT_ERR_CANCELLED);
    atomic_store(&channel->broken, false);
    channel->cause[0] = '\0';
  }
}

/* A group that nobody has met for yet. */
static inline rdt_group *stage_group(stage *s, const char *name, uint32_t rank, uint32_t size) {
  rdt_group *group = calloc(1, sizeof(*group));
  FUZZ_EXPECT(group && size <= PEERS);
  atomic_init(&group->refs, 1);
  group->device = s->device;
  group->groups = rdt_groups_of(s->device);
  snprintf(group->name, sizeof(group->name), "%s", name);
  group->rank = rank;
  group->size = size;
  group->posted.tail = &group->posted.head;
  group->unmatched.tail = &group->unmatched.head;
  group->hosts = calloc(size, sizeof(*group->hosts));
  group->links = calloc(size, sizeof(*group->links));
  FUZZ_EXPECT(group->hosts && group->links);
  pthread_mutex_init(&group->lock, NULL);
  rdt_cond_init(&group->changed);
  pthread_mutex_lock(&group->groups->lock);
  group->next = group->groups->list;
  group->groups->list = group;
  pthread_mutex_unlock(&group->groups->lock);
  return group;
}

#endif
