/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of memory windows, where a driver takes long to free one: others go on meanwhile, and neither the queue pair
 * nor the registration ends before. The device below is made up, since it must be slow when it is told to.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "transport/verbs/objects.h"
#include "unit.h"

#define SKIP 77
#define QUEUES 2u

static struct ibv_device device = {.name = "made_up"};
static struct ibv_context context;
static struct ibv_pd pd = {.context = &context};
static atomic_int windows;  /* that exist */
static atomic_bool is_slow; /* freeing one takes until this is false */
static atomic_int hindered; /* threads that free one */
static atomic_int ended;    /* threads that were told to end something, and have */

static struct ibv_mw *alloc_mw(struct ibv_pd *in, enum ibv_mw_type type) {
  struct ibv_mw *made = calloc(1, sizeof(*made));
  made->pd = in;
  made->context = in->context;
  made->type = type;
  atomic_fetch_add(&windows, 1);
  return made;
}

static int dealloc_mw(struct ibv_mw *mw) {
  atomic_fetch_add(&hindered, 1);
  UNTIL(!atomic_load(&is_slow));
  atomic_fetch_sub(&hindered, 1);
  atomic_fetch_sub(&windows, 1);
  free(mw);
  return 0;
}

static rdt_domain domain = {.pd = &pd,
                            .windows_lock = PTHREAD_MUTEX_INITIALIZER,
                            .windows_ended = PTHREAD_COND_INITIALIZER};

static rdt_endpoint *endpoint(void) {
  rdt_endpoint *made = calloc(1, sizeof(*made));
  made->domain = &domain;
  made->queue_count = QUEUES;
  return made;
}

static rdt_registration *granted_to(rdt_endpoint *peer) {
  rdt_registration *made = calloc(1, sizeof(*made));
  made->domain = &domain;
  EXPECT_STATUS(RDT_OK, rdt_verbs_grant_open(peer, made));
  return made;
}

static rdt_status keys_of(const rdt_registration *registration) {
  rdt_verbs_keys keys;
  rdt_status status = rdt_verbs_grant_keys(registration, &keys);
  EXPECT(keys.count == (status == RDT_OK ? QUEUES : 0));
  return status;
}

static void *end_registration(void *argument) {
  rdt_verbs_grant_close(argument);
  atomic_fetch_add(&ended, 1);
  return NULL;
}

static void *end_endpoint(void *argument) {
  rdt_verbs_endpoint_close_windows(argument);
  atomic_fetch_add(&ended, 1);
  return NULL;
}

/* Two threads end a registration and its peer's endpoint, in that order or the other one. */
static void test_slow_driver(bool registration_first) {
  rdt_endpoint *leaving = endpoint(), *other = endpoint();
  rdt_registration *last = granted_to(leaving), *kept = granted_to(other);
  pthread_t threads[2];
  EXPECT(atomic_load(&windows) == 2 * QUEUES);
  atomic_store(&is_slow, true);
  atomic_store(&ended, 0);
  for (int i = 0; i < 2; i++) {
    const bool ends_registration = registration_first == (i == 0);
    EXPECT(pthread_create(&threads[i], NULL, ends_registration ? end_registration : end_endpoint,
                          ends_registration ? (void *)last : (void *)leaving) == 0);
    UNTIL(atomic_load(&hindered) == 1);
  }
  EXPECT_STATUS(RDT_ERR_ACCESS, keys_of(last));
  EXPECT_STATUS(RDT_OK, keys_of(kept));
  rdt_registration *added = granted_to(other);
  EXPECT_STATUS(RDT_OK, keys_of(added));
  usleep(20000); /* for whoever ends too early */
  EXPECT(atomic_load(&ended) == 0 && atomic_load(&windows) == 3 * QUEUES);
  atomic_store(&is_slow, false);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  EXPECT(atomic_load(&ended) == 2 && atomic_load(&windows) == 2 * QUEUES);
  EXPECT(!leaving->grants && !last->grant);
  rdt_verbs_endpoint_close_windows(other);
  EXPECT(atomic_load(&windows) == 0);
  EXPECT_STATUS(RDT_ERR_ACCESS, keys_of(kept));
  rdt_verbs_grant_close(kept);
  rdt_verbs_grant_close(added);
  free(kept);
  free(added);
  free(last);
  free(leaving);
  free(other);
}

int main(void) {
  if (!rdt_verbs_library()) {
    puts("libibverbs is not here");
    return SKIP;
  }
  context.device = &device;
  context.ops.alloc_mw = alloc_mw;
  context.ops.dealloc_mw = dealloc_mw;
  test_slow_driver(true);
  test_slow_driver(false);
  return 0;
}
