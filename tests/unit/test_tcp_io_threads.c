/* SPDX-License-Identifier: Apache-2.0
 *
 * I/O threads, which serve the sockets after the first one on threads of their own, against a peer that is played
 * here.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>

#include "tcp_peer.h"
#include "transport/tcp/socket_io.h"

enum { LARGE = 20 << 20 };

static void connect_carried(void) {
  connect_over(pair_over_tcp, 1);
  EXPECT(atomic_load(&end->streams[1].carried) && !atomic_load(&end->streams[0].carried));
}

/* Waits for an event, as the device's thread does, before it looks. */
static void sleep_until(const int *count, int wanted) {
  while (*count < wanted) {
    if (rdt_tcp_arm(end, true, true)) EXPECT(has_event(20000));
    rdt_tcp_disarm(end);
    EXPECT(poll_end() >= 0);
  }
}

/* Nobody polls, and the bytes arrive and are acknowledged. */
static void test_io_thread_serves_writes(void) {
  static const uint8_t bytes[100000] = {1, 2, 3};
  rdt_tcp_frame frame;
  uint8_t header[RDT_TCP_HEADER_SIZE];
  connect_carried();
  rdt_registration *region = open_region(BOTH, false);
  memset(memory, 0, SIZE);
  say_frame(1, to(region, RDT_TCP_WRITE, sizeof(bytes), 7));
  say(1, bytes, sizeof(bytes));
  EXPECT(recv(peer[1], header, sizeof(header), MSG_WAITALL) == sizeof(header));
  EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, UINT32_MAX, &frame));
  EXPECT(frame.kind == RDT_TCP_ACK && frame.value == 1);
  EXPECT(memcmp(memory + 7, bytes, sizeof(bytes)) == 0);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* A notification that is staged behind a fence makes an event when the I/O thread passes the fence. */
static void test_io_thread_passes_fences(void) {
  static const uint8_t bytes[100000];
  connect_carried();
  rdt_registration *region = open_region(BOTH, false);
  for (int i = 0; i < 100; i++) {
    say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = (uint64_t)i + 1});
    /* Sometimes the fence is there first, sometimes what it waits for. */
    if (i % 2) sleep_until(&notifications, i);
    say_frame(1, to(region, RDT_TCP_WRITE, sizeof(bytes), 0));
    say(1, bytes, sizeof(bytes));
    say_notification((uint64_t)i);
    sleep_until(&notifications, i + 1);
    EXPECT(last_notification == (uint64_t)i);
    for (uint64_t value = 0; value < 2 * (uint64_t)i + 2;) value = hear_frame(0).value;
  }
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* Writes pass a fence, notifications and acknowledgements do not. There may be as many as operations. */
static void test_writes_pass_fences(void) {
  static const uint8_t bytes[100000] = {5};
  connect_carried();
  rdt_registration *region = open_region(BOTH, false);
  const uint64_t fences = end->depth;
  memset(memory, 0, SIZE);
  for (uint64_t i = 0; i < fences; i++) {
    say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = i + 1});
    say_notification(i);
  }
  say_frame(0, to(region, RDT_TCP_WRITE, 1, 200000));
  say(0, bytes, 1);
  while (memory[200000] != 5) EXPECT(poll_end() >= 0);
  EXPECT(notifications == 0);
  for (uint64_t i = 0; i < fences; i++) {
    say_frame(1, to(region, RDT_TCP_WRITE, 1000, 0));
    say(1, bytes, 1000);
    sleep_until(&notifications, (int)i + 1);
    EXPECT(notifications == (int)i + 1 && last_notification == i);
    uint64_t acknowledged = 2 * i + 2 + (i + 1 == fences);
    for (uint64_t value = 0; value < acknowledged;) {
      value = hear_frame(0).value;
      EXPECT(value <= acknowledged);
    }
  }
  /* One more than agreed. */
  for (uint64_t i = 0; i <= fences; i++)
    say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = fences + 1});
  int polled = 0;
  while ((polled = poll_end()) >= 0) usleep(1000);
  EXPECT(polled == RDT_ERR_CONNECTION_LOST);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* More notifications than staging holds wait behind the fence. */
static void test_fence_before_more_than_staging_holds(void) {
  enum { COUNT = 4000 };
  static const uint8_t bytes[100000];
  connect_carried();
  rdt_registration *region = open_region(BOTH, false);
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = 1});
  for (int i = 0; i < COUNT; i++) say_notification((uint64_t)i);
  while (atomic_load(&end->streams[0].served) <= COUNT) EXPECT(poll_end() >= 0);
  EXPECT(notifications == 0);
  say_frame(1, to(region, RDT_TCP_WRITE, sizeof(bytes), 0));
  say(1, bytes, sizeof(bytes));
  sleep_until(&notifications, COUNT);
  EXPECT(notifications == COUNT && last_notification == COUNT - 1);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* What the peer acknowledges on a attached stream wakes whoever sleeps, once the request may be complete. */
static void test_io_thread_notes_acknowledgements(void) {
  static uint8_t large[LARGE], got[RDT_TCP_PIECE_BYTES];
  rdt_request request = {.holds = 0};
  rdt_mapping mapping = {.key = 1};
  rdt_op op = {.local = large, .size = LARGE};
  uint64_t pieces = 0, bytes = 0;
  connect_carried();
  for (size_t i = 0; i < LARGE; i++) large[i] = (uint8_t)(i * 31 >> 3);
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_tcp_write(end, &mapping, &op, &request));
  rdt_tcp_doorbell(end);
  uint64_t posted[STREAMS] = {atomic_load(&end->streams[0].posted),
                              atomic_load(&end->streams[1].posted)};
  for (; pieces < posted[1]; pieces++) { /* nobody polls here */
    uint8_t header[RDT_TCP_HEADER_SIZE];
    rdt_tcp_frame frame;
    EXPECT(recv(peer[1], header, sizeof(header), MSG_WAITALL) == sizeof(header));
    EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, UINT32_MAX, &frame));
    EXPECT(recv(peer[1], got, frame.size, MSG_WAITALL) == (ssize_t)frame.size);
    EXPECT(memcmp(got, large + frame.value, frame.size) == 0);
    say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = pieces + 1});
    bytes += frame.size;
  }
  sleep_until(&completions, (int)posted[1]);
  for (pieces = 0; pieces < posted[0]; pieces++) {
    rdt_tcp_frame frame = hear_frame(0);
    hear_bytes(0, got, frame.size);
    bytes += frame.size;
  }
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = pieces});
  sleep_until(&completions, (int)(posted[0] + posted[1]));
  EXPECT(bytes == LARGE && last_status == RDT_OK && atomic_load(&request.holds) == 0);
  disconnect_end();
}

/* What is acknowledged counts, also if nobody has polled since; the rest fails with the channel. */
static void test_stop_settles_what_was_acknowledged(void) {
  static uint8_t large[LARGE];
  rdt_request request = {.holds = 0};
  rdt_mapping mapping = {.key = 1};
  rdt_op op = {.local = large, .size = LARGE};
  uint8_t header[RDT_TCP_HEADER_SIZE];
  rdt_tcp_frame frame;
  connect_carried();
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_tcp_write(end, &mapping, &op, &request));
  rdt_tcp_doorbell(end);
  EXPECT(recv(peer[1], header, sizeof(header), MSG_WAITALL) == sizeof(header));
  EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, UINT32_MAX, &frame));
  EXPECT(recv(peer[1], large, frame.size, MSG_WAITALL) == (ssize_t)frame.size);
  say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 1});
  while (atomic_load(&end->streams[1].acknowledged) == 0) usleep(100);
  EXPECT(completions == 0);
  rdt_tcp_io_detach(end); /* no I/O thread comes to the next one */
  EXPECT(recv(peer[1], header, sizeof(header), MSG_WAITALL) == sizeof(header));
  EXPECT(recv(peer[1], large, frame.size, MSG_WAITALL) == (ssize_t)frame.size);
  say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 2});
  disconnect_end();
  EXPECT(completions == LARGE / (int)RDT_TCP_PIECE_BYTES && successes == 2);
  EXPECT(atomic_load(&request.holds) == 0);
}

/* A lie, and the end of the socket, on a attached stream wake whoever sleeps. */
static void test_failure_on_a_carried_stream(void) {
  for (int ends = 0; ends < 2; ends++) {
    connect_carried();
    EXPECT(rdt_tcp_arm(end, true, true));
    if (ends)
      shutdown(peer[1], SHUT_WR);
    else
      say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 9});
    EXPECT(has_event(20000));
    int polled = 0;
    while ((polled = poll_end()) >= 0) usleep(1000);
    EXPECT(polled == RDT_ERR_CONNECTION_LOST);
    disconnect_end();
  }
}

/* ---- the end, beside threads that move bytes ---------------------------------------------------------- */

enum { GIVEN_BACK = 99 }; /* in no frame and no body here */

static void *drain(void *stream) {
  static _Thread_local uint8_t got[1 << 16];
  uintptr_t found = 0;
  for (ssize_t size; (size = recv(peer[*(int *)stream], got, sizeof(got), 0)) > 0;)
    found |= memchr(got, GIVEN_BACK, (size_t)size) != NULL;
  return (void *)found;
}

static void *poll_until_drained(void *buffer) {
  while (!end->drained) poll_end();
  memset(buffer, GIVEN_BACK, LARGE);
  return NULL;
}

/* A buffer whose write has failed belongs to the user, so nothing of what he writes there leaves. */
static void test_stop_beside_senders(void) {
  static uint8_t large[LARGE];
  for (int round = 0; round < 40; round++) {
    rdt_request request = {.holds = 0};
    rdt_mapping mapping = {.key = 1};
    rdt_op op = {.local = large, .size = LARGE};
    pthread_t drains[STREAMS], poller;
    int numbers[STREAMS] = {0, 1};
    memset(large, 0, LARGE);
    connect_carried();
    for (int i = 0; i < STREAMS; i++)
      EXPECT(pthread_create(&drains[i], NULL, drain, &numbers[i]) == 0);
    EXPECT_STATUS(RDT_IN_PROGRESS, rdt_tcp_write(end, &mapping, &op, &request));
    EXPECT(pthread_create(&poller, NULL, poll_until_drained, large) == 0);
    rdt_tcp_doorbell(end);
    rdt_tcp_endpoint_stop(end);
    pthread_join(poller, NULL);
    EXPECT(atomic_load(&request.holds) == 0);
    for (int i = 0; i < STREAMS; i++) {
      void *found;
      pthread_join(drains[i], &found);
      EXPECT(!found);
    }
    disconnect_end();
  }
}

/* Returns the processor time of all threads but the first one, in nanoseconds. */
static uint64_t time_of_others(void) {
  char path[300];
  uint64_t all = 0;
  DIR *tasks = opendir("/proc/self/task");
  EXPECT(tasks);
  for (struct dirent *entry; (entry = readdir(tasks));) {
    if (atoi(entry->d_name) <= 0 || atoi(entry->d_name) == getpid()) continue;
    snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", entry->d_name);
    FILE *file = fopen(path, "re");
    unsigned long long own = 0;
    if (file && fscanf(file, "%llu", &own) == 1) all += own;
    if (file) fclose(file);
  }
  closedir(tasks);
  return all;
}

/* Somebody who hands over to an I/O thread wakes it, and still holds the output's lock. If they share a core, he goes on
 * only when the I/O thread sleeps. */
static void test_io_thread_sleeps_while_another_hands_over(void) {
  uint64_t before;
  connect_carried();
  rdt_tcp_stream *stream = &end->streams[1];
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = stream};
  pthread_mutex_lock(&stream->out_lock);
  stream->out.full = true;
  EXPECT(epoll_ctl(stream->epoll_fd, EPOLL_CTL_MOD, stream->socket.fd, &event) == 0);
  UNTIL((before = time_of_others(), usleep(20000), time_of_others() - before < 1000000));
  pthread_mutex_unlock(&stream->out_lock);
  for (bool full = true; full; usleep(500)) { /* until the I/O thread found nothing to send */
    pthread_mutex_lock(&stream->out_lock);
    full = stream->out.full;
    pthread_mutex_unlock(&stream->out_lock);
  }
  disconnect_end();
}

/* ---- one I/O thread, many streams -------------------------------------------------------------------------- */

static rdt_endpoint *other;
static atomic_int others_done;

/* Connects another endpoint to the same I/O thread, and ends it. */
static void *connect_and_end(void *argument) {
  rdt_bundle offer;
  int ends[STREAMS][2];
  (void)argument;
  EXPECT_STATUS(RDT_OK, rdt_tcp_endpoint_create(domain, &other, &offer));
  EXPECT_STATUS(RDT_OK, rdt_tcp_endpoint_connect(other, "other", &offer));
  for (uint32_t i = 0; i < STREAMS; i++) {
    pair_in_host(ends[i]);
    EXPECT_STATUS(RDT_OK, rdt_tcp_socket_add(other, i, rdt_socket_of(ends[i][0])));
  }
  EXPECT(atomic_load(&other->streams[1].carried));
  EXPECT(send(ends[1][1], "x", 1, 0) == 1);
  rdt_tcp_endpoint_stop(other);
  rdt_tcp_poll(other, 64, &events);
  rdt_tcp_endpoint_destroy(other);
  for (uint32_t i = 0; i < STREAMS; i++) close(ends[i][1]);
  atomic_fetch_add(&others_done, 1);
  return NULL;
}

/* An I/O thread that is kept by one stream keeps nobody who brings another one or takes it back. */
static void test_connecting_and_ending_wait_for_no_stream(void) {
  pthread_t thread;
  connect_carried();
  rdt_tcp_stream *stream = &end->streams[1];
  pthread_mutex_lock(&stream->out_lock);
  say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_PROBE});
  UNTIL(atomic_load(&stream->served) == 1); /* the I/O thread is about to acknowledge it */
  usleep(20000);
  EXPECT(pthread_create(&thread, NULL, connect_and_end, NULL) == 0);
  EXPECT(becomes(&others_done, 1));
  pthread_mutex_unlock(&stream->out_lock);
  pthread_join(thread, NULL);
  EXPECT(hear_frame(1).kind == RDT_TCP_ACK);
  disconnect_end();
}

static rdt_tls *encrypted;

static void *open_encrypted(void *key) {
  EXPECT_STATUS(
      RDT_OK, rdt_tls_open(peer[1], true, key, rdt_deadline_after(PATIENCE_S * 1000), &encrypted));
  return NULL;
}

enum { FLOOD = 96 << 20 };

static void *flood(void *frame) {
  static uint8_t body[RDT_TCP_PIECE_BYTES];
  uint8_t header[RDT_TCP_HEADER_SIZE];
  rdt_tcp_frame_put(frame, header);
  for (size_t sent = 0; sent < FLOOD; sent += sizeof(body)) {
    struct iovec parts[] = {{header, sizeof(header)}, {body, sizeof(body)}};
    while (parts[1].iov_len > 0) {
      ssize_t done = rdt_tls_send(encrypted, parts, 2);
      EXPECT(done >= 0);
      struct pollfd room = {.fd = peer[1], .events = POLLOUT};
      if (done == 0) poll(&room, 1, 1000);
      for (int i = 0; i < 2; i++) {
        size_t gone = (size_t)done < parts[i].iov_len ? (size_t)done : parts[i].iov_len;
        parts[i] = (struct iovec){(uint8_t *)parts[i].iov_base + gone, parts[i].iov_len - gone};
        done -= (ssize_t)gone;
      }
    }
  }
  return NULL;
}

/* One that sends without pause cannot make a pass longer: the pass ends after so many bytes, and all that is left makes
 * an event. */
static void test_a_pass_over_an_encrypted_stream_ends(void) {
  uint8_t key[RDT_TLS_KEY_SIZE] = {1, 2, 3};
  pthread_t thread;
  uint64_t all = 0;
  EXPECT_STATUS(RDT_OK, rdt_tls_load());
  connect_over(pair_in_host, 0);
  rdt_tcp_stream *stream = &end->streams[1];
  EXPECT(pthread_create(&thread, NULL, open_encrypted, key) == 0);
  EXPECT_STATUS(RDT_OK, rdt_tls_open(stream->socket.fd, false, key,
                                     rdt_deadline_after(PATIENCE_S * 1000), &stream->socket.tls));
  pthread_join(thread, NULL);
  fcntl(peer[1], F_SETFL, O_NONBLOCK);
  /* To no region: such bytes cost the receiver less than the sender, and are refused. */
  rdt_tcp_frame frame = {.kind = RDT_TCP_WRITE, .size = RDT_TCP_PIECE_BYTES, .key = 1};
  EXPECT(pthread_create(&thread, NULL, flood, &frame) == 0);
  for (uint64_t before = 0; before < FLOOD; before = all) {
    struct pollfd some = {.fd = stream->socket.fd, .events = POLLIN};
    EXPECT(poll(&some, 1, PATIENCE_S * 1000) == 1);
    rdt_tcp_receive(end, 1);
    all = atomic_load(&end->received);
    EXPECT(all - before <= 6u << 20);
    EXPECT(!rdt_tcp_socket_holds(stream->socket));
    atomic_store(&stream->given, atomic_load(&stream->owed)); /* as if the refusals had been sent */
  }
  pthread_join(thread, NULL);
  rdt_tls_free(encrypted);
  disconnect_end();
}

int main(void) {
  EXPECT_STATUS(RDT_OK, rdt_config_set("QUEUE_PAIRS", "2"));
  EXPECT_STATUS(RDT_OK, rdt_config_set("STRIPE_BYTES", "131072"));
  test_io_thread_serves_writes();
  test_io_thread_passes_fences();
  test_writes_pass_fences();
  test_fence_before_more_than_staging_holds();
  test_io_thread_notes_acknowledgements();
  test_stop_settles_what_was_acknowledged();
  test_failure_on_a_carried_stream();
  test_stop_beside_senders();
  test_io_thread_sleeps_while_another_hands_over();
  test_connecting_and_ending_wait_for_no_stream();
  test_a_pass_over_an_encrypted_stream_ends();
  return 0;
}
