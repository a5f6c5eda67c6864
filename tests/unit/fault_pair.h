/* SPDX-License-Identifier: Apache-2.0
 *
 * Two devices of one process with a channel between them, for the tests of injected faults.
 */
#ifndef RDT_TESTS_FAULT_PAIR_H
#define RDT_TESTS_FAULT_PAIR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "unit.h"

#define BYTES 32768
#define PATIENCE_MS (1000 * PATIENCE_S)

typedef struct {
  rdt_device *device;
  atomic_int connected, notified, down, released;
  atomic_uint_fast64_t last;
  atomic_int order_broken;
  uint8_t payload[BYTES];
  size_t payload_size;
} end;

/* Two devices, a channel, and a region of the second. */
typedef struct {
  end a, b;
  rdt_channel *channel;
  rdt_region *region;
  rdt_remote_region *remote;
  uint8_t *memory;
} pair;

/* That a notification comes after what was read of the last one is known through memory that is mapped twice,
 * which ThreadSanitizer cannot know. */
static pthread_mutex_t payloads = PTHREAD_MUTEX_INITIALIZER;

static inline void on_connect(void *context, rdt_channel *channel) {
  (void)channel;
  atomic_fetch_add(&((end *)context)->connected, 1);
}

static inline void on_notify(void *context, rdt_channel *channel, uint64_t immediate,
                             const void *data, size_t size) {
  end *e = context;
  (void)channel;
  pthread_mutex_lock(&payloads);
  e->payload_size = size;
  if (size <= sizeof(e->payload) && size) memcpy(e->payload, data, size);
  pthread_mutex_unlock(&payloads);
  if (immediate != atomic_exchange(&e->last, immediate) + 1) atomic_store(&e->order_broken, 1);
  atomic_fetch_add(&e->notified, 1);
}

static inline void on_down(void *context, rdt_channel *channel, rdt_status why) {
  (void)channel;
  EXPECT(why < 0);
  atomic_fetch_add(&((end *)context)->down, 1);
}

static inline void on_released(void *context, rdt_channel *channel) {
  (void)channel;
  atomic_fetch_add(&((end *)context)->released, 1);
}

static inline void faults(const char *text) {
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", text));
}

static inline void open_end(end *e, const char *name) {
  memset(e, 0, sizeof(*e));
  rdt_device_options options = {.struct_size = sizeof(options),
                                .name = name,
                                .context = e,
                                .on_connect = on_connect,
                                .on_notify = on_notify,
                                .on_down = on_down,
                                .on_released = on_released};
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &e->device));
}

static inline void open_ends(pair *p) {
  rdt_region_info info;
  memset(p, 0, sizeof(*p));
  faults("post=#1000000000"); /* wrapped, but for the present nothing happens */
  open_end(&p->a, "a");
  open_end(&p->b, "b");
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(p->b.device, BYTES, RDT_ACCESS_READ | RDT_ACCESS_WRITE,
                                         "memory", &p->region));
  EXPECT_STATUS(RDT_OK, rdt_region_get_info(p->region, &info));
  p->memory = info.address;
}

/* A test that shortens DEADLINE_MS does so after this. The default must do: an end that answers later was held up. */
static inline void join(pair *p) {
  EXPECT_STATUS(RDT_OK,
                rdt_device_connect(p->a.device, rdt_device_address(p->b.device), -1, &p->channel));
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(p->channel, "memory", -1, &p->remote));
}

static inline void open_pair(pair *p, const char *wanted) {
  open_ends(p);
  join(p);
  faults(wanted);
}

static inline void leave(pair *p) {
  rdt_remote_region_unref(p->remote);
  rdt_channel_unref(p->channel);
  p->remote = NULL;
  p->channel = NULL;
}

static inline void close_pair(pair *p) {
  faults("");
  leave(p);
  rdt_device_close(p->a.device);
  rdt_device_close(p->b.device);
}

static inline bool over_verbs(const pair *p) {
  rdt_channel_info info;
  EXPECT_STATUS(RDT_OK, rdt_channel_get_info(p->channel, &info));
  return strcmp(info.transport, "verbs") == 0;
}

static inline uint64_t injected(const char *kind) {
  const char *name;
  uint64_t count;
  for (size_t i = 0; rdt_fault_count(i, &name, &count) == RDT_OK; i++)
    if (strcmp(name, kind) == 0) return count;
  EXPECT(!"a known kind");
  return 0;
}

typedef struct {
  atomic_int posted, done, failed, lost;
} tally;

static inline void count_done(void *context, rdt_status status) {
  tally *t = context;
  if (status != RDT_OK) atomic_fetch_add(&t->failed, 1);
  if (status == RDT_ERR_CONNECTION_LOST) atomic_fetch_add(&t->lost, 1);
  atomic_fetch_add(&t->done, 1);
}

static inline rdt_op write_op(const pair *p, uint8_t *local, uint64_t size, uint64_t offset) {
  return (rdt_op){.kind = RDT_OP_WRITE,
                  .local = local,
                  .size = size,
                  .remote = p->remote,
                  .remote_offset = offset};
}

/* Posts a write of one byte and waits for its end. */
static inline rdt_status write_byte(const pair *p, uint8_t value, uint64_t offset) {
  rdt_transfer *transfer = NULL;
  rdt_op op = write_op(p, &value, 1, offset);
  rdt_status status = rdt_channel_submit(p->channel, &op, 1, &transfer);
  if (transfer) status = rdt_transfer_wait(transfer, PATIENCE_MS);
  rdt_transfer_free(transfer);
  return status;
}

static inline void notify(const pair *p, uint64_t number, tally *t) {
  rdt_op op = {.kind = RDT_OP_NOTIFY, .immediate = number};
  rdt_status status = rdt_channel_post(p->channel, &op, 1, count_done, t);
  EXPECT(status >= 0);
  atomic_fetch_add(&t->posted, status == RDT_IN_PROGRESS);
}

#endif /* RDT_TESTS_FAULT_PAIR_H */
