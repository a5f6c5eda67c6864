/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores of two devices of this process, so that sanitizers see both ends: readers beside a writer, pushes
 * beside their receiver, clocks, and a member that breaks the protocol.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/ending.h"
#include "core/meet/connect.h"
#include "store/store.h"
#include "unit.h"

#define WORDS 2048u
#define ROUNDS 300
#define MANY 512
#define PATIENCE_MS (PATIENCE_S * 1000)

typedef struct {
  rdt_device *device;
  rdt_store *store;
} end;

static atomic_int stop, pulls;
static _Atomic uint64_t published, clocks;

static rdt_store_options options_of(uint32_t rank) {
  return (rdt_store_options){.struct_size = sizeof(rdt_store_options),
                             .name = "parameters",
                             .rank = rank,
                             .size = 2,
                             .bytes = WORDS * sizeof(uint64_t),
                             .slot_bytes = 64,
                             .buffers = 2};
}

static void open_ends(end ends[2]) {
  for (uint32_t i = 0; i < 2; i++) {
    const rdt_store_options options = options_of(i);
    EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &ends[i].device));
    EXPECT_STATUS(RDT_OK, rdt_store_open(ends[i].device, &options, &ends[i].store));
  }
  for (uint32_t i = 0; i < 2; i++)
    EXPECT_STATUS(RDT_OK, rdt_store_connect(ends[i].store, 1 - i,
                                            rdt_device_address(ends[1 - i].device), PATIENCE_MS));
}

static void close_ends(end ends[2]) {
  for (uint32_t i = 0; i < 2; i++) rdt_store_close(ends[i].store);
  for (uint32_t i = 0; i < 2; i++) rdt_device_close(ends[i].device);
}

static rdt_store_member member_of(const end *e, uint32_t rank) {
  rdt_store_member member;
  EXPECT_STATUS(RDT_OK, rdt_store_get_member(e->store, rank, &member));
  return member;
}

static void publish(rdt_store *store, uint64_t number) {
  void *memory;
  EXPECT_STATUS(RDT_OK, rdt_store_begin(store, &memory));
  for (size_t i = 0; i < WORDS; i++) ((uint64_t *)memory)[i] = number;
  EXPECT_STATUS(RDT_OK, rdt_store_publish(store, number, NULL));
}

/* Bursts with pauses of any length. When a pull has met many versions, it waits until that pull has ended, so
 * that a reader of any speed finds some versions whole. */
static void *hammer(void *argument) {
  end *e = argument;
  int seen = 0, met = 0;
  for (uint64_t number = 2; !atomic_load(&stop); number++) {
    publish(e->store, number);
    if (number % 16 == 0) usleep((useconds_t)(number % 512));
    met = atomic_load(&pulls) == seen ? met + 1 : 0;
    while (met >= MANY && !atomic_load(&stop) && atomic_load(&pulls) == seen) usleep(10);
    seen = atomic_load(&pulls);
  }
  return NULL;
}

static void test_versions_are_whole(end ends[2]) {
  static uint64_t found[WORDS];
  pthread_t writer;
  publish(ends[0].store, 1);
  pthread_create(&writer, NULL, hammer, &ends[0]);
  for (int round = 0; round < ROUNDS; round++) {
    rdt_store_pulled pulled;
    EXPECT_STATUS(RDT_OK,
                  rdt_store_pull(ends[1].store, 0, 0, sizeof(found), found, PATIENCE_MS, &pulled));
    atomic_fetch_add(&pulls, 1);
    for (size_t i = 0; i < WORDS; i++) EXPECT(found[i] == pulled.mark);
    EXPECT(pulled.version == pulled.mark);
  }
  atomic_store(&stop, 1);
  pthread_join(writer, NULL);
}

static void *publish_numbers(void *argument) {
  rdt_store *store = argument;
  while (!atomic_load(&stop)) {
    void *memory;
    uint64_t version;
    EXPECT_STATUS(RDT_OK, rdt_store_begin(store, &memory));
    EXPECT_STATUS(RDT_OK, rdt_store_publish(store, atomic_fetch_add(&published, 1) + 1, &version));
    EXPECT(version == atomic_load(&published));
  }
  return NULL;
}

/* Versions that cost nothing follow each other while one head is read. */
static void test_version_and_mark_are_of_one_publication(end ends[2]) {
  rdt_store *stores[2];
  rdt_store_pulled pulled;
  pthread_t writer;
  for (uint32_t i = 0; i < 2; i++) {
    rdt_store_options options = options_of(i);
    options.name = "numbers";
    options.bytes = 8;
    options.buffers = 3;
    EXPECT_STATUS(RDT_OK, rdt_store_open(ends[i].device, &options, &stores[i]));
  }
  EXPECT_STATUS(RDT_OK,
                rdt_store_connect(stores[1], 0, rdt_device_address(ends[0].device), PATIENCE_MS));
  atomic_store(&stop, 0);
  pthread_create(&writer, NULL, publish_numbers, stores[0]);
  for (const time_t end = time(NULL) + 3; time(NULL) < end;) {
    EXPECT_STATUS(RDT_OK, rdt_store_pull(stores[1], 0, 0, 0, NULL, PATIENCE_MS, &pulled));
    EXPECT(pulled.version == pulled.mark);
  }
  atomic_store(&stop, 1);
  pthread_join(writer, NULL);
  /* The longest time-out is no less than others. */
  EXPECT_STATUS(RDT_OK, rdt_store_pull(stores[1], 0, 0, 0, NULL, INT_MAX, &pulled));
  EXPECT(rdt_deadline_left_plus(rdt_deadline_after(INT_MAX), 1000) == INT_MAX);
  for (uint32_t i = 0; i < 2; i++) rdt_store_close(stores[i]);
}

static void *push_all(void *argument) {
  end *e = argument;
  for (uint64_t number = 1; number <= ROUNDS;) {
    int sent;
    EXPECT_STATUS(
        RDT_OK, rdt_store_push(e->store, 0, &number, sizeof(number), ~number, PATIENCE_MS, &sent));
    number += (uint64_t)sent;
    EXPECT_STATUS(RDT_OK, rdt_store_set_clock(e->store, number));
  }
  return NULL;
}

static void test_each_push_arrives_once(end ends[2]) {
  pthread_t sender;
  pthread_create(&sender, NULL, push_all, &ends[1]);
  for (uint64_t number = 1; number <= ROUNDS; number++) {
    rdt_store_arrival arrival;
    uint64_t value;
    EXPECT_STATUS(RDT_OK, rdt_store_take(ends[0].store, PATIENCE_MS, &arrival));
    EXPECT(arrival.rank == 1 && arrival.size == sizeof(value) && arrival.mark == ~number);
    memcpy(&value, arrival.data, sizeof(value));
    EXPECT(value == number);
    EXPECT_STATUS(RDT_OK, rdt_store_release(ends[0].store, 1));
  }
  EXPECT_STATUS(RDT_OK, rdt_store_wait_clocks(ends[0].store, ROUNDS + 1, PATIENCE_MS));
  pthread_join(sender, NULL);
  rdt_store_arrival arrival;
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_store_take(ends[0].store, 0, &arrival));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_store_release(ends[0].store, 1));
}

static void *set_clocks(void *argument) {
  rdt_store *store = argument;
  while (!atomic_load(&stop)) {
    const uint64_t clock = atomic_fetch_add(&clocks, 1) + 1;
    rdt_status status = rdt_store_set_clock(store, clock);
    EXPECT(status == RDT_OK || status == RDT_ERR_INVALID); /* another thread has set a later one */
    if (clock % 64 == 0) usleep(100);
  }
  return NULL;
}

/* Threads set a member's clock while another one connects anew, which tells it too. The other end must know the last
 * one that was set. */
static void test_clocks_do_not_go_back(end ends[2]) {
  atomic_store(&clocks, ROUNDS + 1);
  for (int round = 0; round < ROUNDS; round++) {
    pthread_t setters[2];
    atomic_store(&stop, 0);
    for (int i = 0; i < 2; i++) pthread_create(&setters[i], NULL, set_clocks, ends[1].store);
    if (round % 8 == 0)
      EXPECT_STATUS(RDT_OK, rdt_store_connect(ends[1].store, 0, rdt_device_address(ends[0].device),
                                              PATIENCE_MS));
    else
      usleep(200);
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(setters[i], NULL);
    EXPECT_STATUS(RDT_OK, rdt_store_wait_clocks(ends[0].store, atomic_load(&clocks), PATIENCE_MS));
    EXPECT(member_of(&ends[0], 1).clock == atomic_load(&clocks));
  }
}

static void *wait_for_clock(void *argument) {
  EXPECT_STATUS(RDT_ERR_CLOSED,
                rdt_store_wait_clocks(((end *)argument)->store, UINT64_MAX, PATIENCE_MS));
  return NULL;
}

/* The only call of this store: it ends with the store. */
static void test_closing_ends_a_wait(end *e) {
  pthread_t waiter;
  const rdt_store_options options = {
      .struct_size = sizeof(options), .name = "other", .size = 2, .buffers = 2};
  end other = {.device = e->device};
  EXPECT_STATUS(RDT_OK, rdt_store_open(e->device, &options, &other.store));
  pthread_create(&waiter, NULL, wait_for_clock, &other);
  int users = 0;
  while (users == 0) {
    pthread_mutex_lock(&other.store->stores->lock);
    users = other.store->users;
    pthread_mutex_unlock(&other.store->stores->lock);
  }
  rdt_store_close(other.store);
  pthread_join(waiter, NULL);
}

/* A push that was never written: its number is the last one's. */
static void test_malformed_messages_end_the_connection(end ends[2]) {
  rdt_store_link link;
  rdt_op op = {.kind = RDT_OP_NOTIFY, .immediate = RDT_STORE_IMMEDIATE(RDT_STORE_PUSHED)};
  EXPECT_STATUS(RDT_OK, rdt_store_link_take(ends[1].store, 0, &link));
  EXPECT(rdt_channel_post(link.channel, &op, 1, NULL, NULL) >= 0);
  rdt_store_link_drop(&link);
  UNTIL(member_of(&ends[0], 1).gone);
  UNTIL(!member_of(&ends[1], 0).connected);
  uint64_t word;
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST,
                rdt_store_pull(ends[1].store, 0, 0, sizeof(word), &word, PATIENCE_MS, NULL));
  EXPECT_STATUS(
      RDT_OK, rdt_store_connect(ends[1].store, 0, rdt_device_address(ends[0].device), PATIENCE_MS));
  UNTIL(member_of(&ends[0], 1).present);
  EXPECT_STATUS(RDT_OK,
                rdt_store_pull(ends[1].store, 0, 0, sizeof(word), &word, PATIENCE_MS, NULL));
}

static void greet(rdt_channel *channel, uint64_t number) {
  uint8_t bytes[128];
  rdt_wire wire;
  rdt_op op = {
      .kind = RDT_OP_NOTIFY, .local = bytes, .immediate = RDT_STORE_IMMEDIATE(RDT_STORE_HELLO)};
  rdt_wire_begin(&wire, (rdt_message_type)0, 0);
  rdt_wire_put_text(&wire, "parameters");
  rdt_wire_put_u32(&wire, 1);
  rdt_wire_put_u32(&wire, 2);
  rdt_wire_put_u64(&wire, number);
  EXPECT_STATUS(RDT_OK, rdt_wire_unload(&wire, bytes, sizeof(bytes), &op.size));
  EXPECT(rdt_channel_post(channel, &op, 1, NULL, NULL) >= 0);
}

/* What is under way over the first channel would be written into the slot that the second one fills. So the
 * receiver ends the first, and welcomes the second only then. */
static void test_a_second_channel_ends_the_first(end ends[2]) {
  const _Atomic uint64_t *welcomed = &rdt_store_slot_of(ends[0].store, 1)->welcomed;
  rdt_store_peer *peer = &ends[0].store->peers[1];
  rdt_store_link first;
  rdt_channel *received, *seconds[2];
  EXPECT_STATUS(RDT_OK, rdt_store_link_take(ends[1].store, 0, &first));
  pthread_mutex_lock(&ends[0].store->stores->lock);
  received = peer->in;
  rdt_channel_ref(received);
  pthread_mutex_unlock(&ends[0].store->stores->lock);
  for (uint64_t i = 0; i < 2; i++) {
    const rdt_expected any = {0};
    EXPECT_STATUS(RDT_OK, rdt_connect_for(ends[1].device, rdt_device_address(ends[0].device), any,
                                          RDT_PURPOSE_STORES, PATIENCE_MS, &seconds[i]));
    greet(seconds[i], 77 + i);
    UNTIL(atomic_load(welcomed) == 77 + i);
    EXPECT(atomic_load(&received->down));
  }
  UNTIL(atomic_load(&first.channel->down));
  UNTIL(atomic_load(&seconds[0]->down));
  EXPECT(member_of(&ends[0], 1).present && !member_of(&ends[1], 0).connected);
  rdt_channel_unref(received);
  rdt_store_link_drop(&first);

  /* Connected anew, it pushes: nothing of what came in between has made the slot look taken. */
  const uint64_t sent_value = 5;
  int sent;
  EXPECT_STATUS(
      RDT_OK, rdt_store_connect(ends[1].store, 0, rdt_device_address(ends[0].device), PATIENCE_MS));
  UNTIL(atomic_load(&seconds[1]->down));
  EXPECT_STATUS(RDT_OK, rdt_store_push(ends[1].store, 0, &sent_value, sizeof(sent_value), 6,
                                       PATIENCE_MS, &sent));
  EXPECT(sent == 1);
  rdt_store_arrival arrival;
  EXPECT_STATUS(RDT_OK, rdt_store_take(ends[0].store, PATIENCE_MS, &arrival));
  EXPECT(arrival.mark == 6);
  EXPECT_STATUS(RDT_OK, rdt_store_release(ends[0].store, 1));
  for (size_t i = 0; i < 2; i++) rdt_channel_unref(seconds[i]);
}

/* A device may execute what has come until its queue pair is destroyed, so an old clock could replace a newer one. */
static void test_a_second_channel_waits_for_the_end_of_the_first(void) {
  end ends[2];
  const rdt_expected any = {0};
  rdt_channel *received, *second;
  EXPECT_STATUS(RDT_OK,
                rdt_config_set("FAULTS", "post=#1000000000")); /* wrapped, and nothing happens */
  open_ends(ends);
  const _Atomic uint64_t *welcomed = &rdt_store_slot_of(ends[0].store, 1)->welcomed;
  UNTIL(member_of(&ends[0], 1).present);
  pthread_mutex_lock(&ends[0].store->stores->lock);
  received = ends[0].store->peers[1].in;
  rdt_channel_ref(received);
  pthread_mutex_unlock(&ends[0].store->stores->lock);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", "destroy=1:600s"));
  EXPECT_STATUS(RDT_OK, rdt_connect_for(ends[1].device, rdt_device_address(ends[0].device), any,
                                        RDT_PURPOSE_STORES, PATIENCE_MS, &second));
  greet(second, 77);
  if (!received->transport->local) {
    UNTIL(rdt_channel_runs_task(received));
    EXPECT(atomic_load(welcomed) != 77);
    EXPECT(member_of(&ends[0], 1).gone && !member_of(&ends[0], 1).present);
    EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", ""));
  }
  UNTIL(atomic_load(welcomed) == 77);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", ""));
  UNTIL(member_of(&ends[0], 1).present);
  rdt_channel_unref(received);
  rdt_channel_unref(second);
  close_ends(ends);
}

static void test_arguments(end *e) {
  uint64_t values, slots;
  rdt_store *store;
  void *memory;
  rdt_store_options options = options_of(0);
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_store_open(e->device, &options, &store)); /* its name */
  EXPECT(strstr(rdt_last_error(), "has a store named \"parameters\" already"));
  options.buffers = 1;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_store_sizes(&options, &values, &slots));
  options = options_of(2);
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_store_sizes(&options, &values, &slots));
  EXPECT_STATUS(RDT_OK, rdt_store_begin(e->store, &memory));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_store_begin(e->store, &memory));
  EXPECT_STATUS(RDT_OK, rdt_store_publish(e->store, 0, NULL));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_store_publish(e->store, 0, NULL));
  EXPECT_STATUS(RDT_ERR_RANGE, rdt_store_pull(e->store, 1, 8, UINT64_MAX, memory, 0, NULL));
}

int main(void) {
  end ends[2];
  /* There are few receives then, so that those which an ended channel keeps are missed. */
  setenv("RDMATENSOR_CONNECTIONS", "8", 1);
  open_ends(ends);
  test_versions_are_whole(ends);
  test_each_push_arrives_once(ends);
  test_version_and_mark_are_of_one_publication(ends);
  test_clocks_do_not_go_back(ends);
  test_closing_ends_a_wait(&ends[0]);
  test_arguments(&ends[1]);
  test_malformed_messages_end_the_connection(ends);
  test_a_second_channel_ends_the_first(ends);
  close_ends(ends);
  test_a_second_channel_waits_for_the_end_of_the_first();
  return 0;
}
