/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS between two threads: bytes pass whole and unreadable, keys that differ are refused, and whatever
 * somebody on the way does to the bytes ends the connection.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "base/tls.h"
#include "unit.h"

#define PATIENCE_MS 20000
#define LONG (3u << 20)

typedef struct side {
  int socket;
  bool connecting;
  uint8_t key[RDT_TLS_KEY_SIZE];
  rdt_status status;
  char text[512];
  rdt_tls *tls;
} side;

static uint8_t sent[LONG], received[LONG];

static void *open_side(void *argument) {
  side *this = argument;
  this->status = rdt_tls_open(this->socket, this->connecting, this->key,
                              rdt_deadline_after(PATIENCE_MS), &this->tls);
  snprintf(this->text, sizeof(this->text), "%s", this->status == RDT_OK ? "" : rdt_last_error());
  /* As the core does, so that the other side need not wait for more. */
  if (this->status != RDT_OK) shutdown(this->socket, SHUT_RDWR);
  return NULL;
}

/* Makes a handshake between both; the other side's key has `differs` added. */
static void open_both(side both[2], uint8_t differs) {
  int ends[2];
  pthread_t other;
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  for (int i = 0; i < 2; i++) {
    both[i] = (side){.socket = ends[i], .connecting = i == 0};
    memset(both[i].key, 7 + i * differs, sizeof(both[i].key));
  }
  EXPECT(pthread_create(&other, NULL, open_side, &both[1]) == 0);
  open_side(&both[0]);
  pthread_join(other, NULL);
}

static void close_both(side both[2]) {
  for (int i = 0; i < 2; i++) {
    rdt_tls_free(both[i].tls);
    close(both[i].socket);
  }
}

static void await(const side *this, short events) {
  struct pollfd look = {.fd = this->socket, .events = events};
  EXPECT(poll(&look, 1, PATIENCE_MS) == 1);
}

static void *send_long(void *argument) {
  side *this = argument;
  for (size_t at = 0; at < LONG;) {
    /* A header, a body, and what else there is, as a transport has them. */
    size_t left = LONG - at, head = left < 32 ? left : 32, body = left - head;
    if (body > 500000) body = 500000;
    struct iovec parts[] = {{sent + at, head}, {sent + at + head, 0}, {sent + at + head, body}};
    ssize_t done = rdt_tls_send(this->tls, parts, 3);
    EXPECT(done >= 0);
    if (done == 0) await(this, POLLOUT);
    at += (size_t)done;
  }
  return NULL;
}

static void take(side *this, size_t size, size_t step) {
  for (size_t at = 0; at < size;) {
    size_t room = size - at < step ? size - at : step;
    struct iovec parts[] = {{received + at, room / 2}, {received + at + room / 2, room - room / 2}};
    bool held = rdt_tls_holds(this->tls);
    ssize_t done = rdt_tls_receive(this->tls, parts, 2);
    EXPECT(done >= 0);
    if (done == 0 && !held) await(this, POLLIN);
    at += (size_t)done;
  }
}

static void test_both_ways(void) {
  side both[2];
  pthread_t other;
  open_both(both, 0);
  for (int i = 0; i < 2; i++) EXPECT_STATUS(RDT_OK, both[i].status);
  for (size_t i = 0; i < LONG; i++) sent[i] = (uint8_t)(i * 2654435761u >> 13);
  for (int i = 0; i < 2; i++) {
    memset(received, 0, LONG);
    EXPECT(pthread_create(&other, NULL, send_long, &both[i]) == 0);
    take(&both[1 - i], LONG, i ? 777 : 100000);
    pthread_join(other, NULL);
    EXPECT(memcmp(sent, received, LONG) == 0);
  }
  /* What was received and not taken is told. */
  struct iovec two = {sent, 2}, one = {received, 1};
  EXPECT(rdt_tls_send(both[0].tls, &two, 1) == 2);
  await(&both[1], POLLIN);
  EXPECT(rdt_tls_receive(both[1].tls, &one, 1) == 1 && rdt_tls_holds(both[1].tls));
  EXPECT(rdt_tls_receive(both[1].tls, &one, 1) == 1 && received[0] == sent[1]);
  EXPECT(rdt_tls_receive(both[1].tls, &one, 1) == 0 && !rdt_tls_holds(both[1].tls));
  close_both(both);
}

/* What the peer can read was told to be sent, also if the socket took a part of what there was. */
static void test_what_was_sent_is_told(void) {
  side both[2];
  open_both(both, 0);
  size_t told = 0, read = 0;
  for (ssize_t done = 1; done > 0; told += (size_t)done) {
    struct iovec all = {sent + told, LONG - told};
    done = rdt_tls_send(both[0].tls, &all, 1);
    EXPECT(done >= 0);
  }
  EXPECT(told > 0 && told < LONG);
  while (told < LONG) {
    for (ssize_t done = 1; done > 0; read += (size_t)done) {
      struct iovec room = {received + read, LONG - read};
      done = rdt_tls_receive(both[1].tls, &room, 1);
      EXPECT(done >= 0);
    }
    EXPECT(read == told);
    struct iovec rest = {sent + told, LONG - told};
    ssize_t done = rdt_tls_send(both[0].tls, &rest, 1);
    EXPECT(done >= 0);
    told += (size_t)done;
  }
  take(&both[1], LONG - read, 100000);
  close_both(both);
}

static void test_end_of_stream(void) {
  side both[2];
  struct iovec one = {received, 1};
  open_both(both, 0);
  shutdown(both[0].socket, SHUT_RDWR);
  EXPECT(rdt_tls_receive(both[1].tls, &one, 1) == -1 && errno == ECONNRESET);
  EXPECT(rdt_tls_send(both[1].tls, &one, 1) == -1 && (errno == EPIPE || errno == ECONNRESET));
  close_both(both);
}

static void test_other_key(void) {
  side both[2];
  open_both(both, 1);
  for (int i = 0; i < 2; i++) {
    EXPECT_STATUS(RDT_ERR_REFUSED, both[i].status);
    EXPECT(strstr(both[i].text, "does not have our secret") != NULL);
    EXPECT(strstr(both[i].text, "sha256sum") != NULL);
  }
  close_both(both);
}

/* Bytes between the two that neither sent. */
static void test_changed_bytes(void) {
  uint8_t record[200];
  struct iovec some = {sent, 100}, room = {received, 100};
  for (int change = 0; change < 3; change++) {
    side both[2];
    open_both(both, 0);
    EXPECT(rdt_tls_send(both[0].tls, &some, 1) == 100);
    ssize_t size = recv(both[1].socket, record, sizeof(record), 0);
    EXPECT(size == 5 + 100 + 1 + 16);
    int from = both[0].socket;
    if (change == 0) record[60] ^= 1;
    if (change == 1) EXPECT(send(from, "\x17\x03\x03\0\7garbage", 12, 0) == 12);
    EXPECT(send(from, record, (size_t)size, 0) == size);
    if (change == 2) { /* the same again */
      EXPECT(rdt_tls_receive(both[1].tls, &room, 1) == 100);
      EXPECT(send(from, record, (size_t)size, 0) == size);
    }
    EXPECT(rdt_tls_receive(both[1].tls, &room, 1) == -1 && errno == EBADMSG);
    EXPECT(rdt_tls_receive(both[1].tls, &room, 1) == -1);
    close_both(both);
  }
}

/* A part of a record is no event for ever: the rest never comes. */
static void test_truncated_record(void) {
  side both[2];
  uint8_t record[200];
  struct iovec some = {sent, 100}, room = {received, 100};
  open_both(both, 0);
  EXPECT(rdt_tls_send(both[0].tls, &some, 1) == 100);
  ssize_t size = recv(both[1].socket, record, sizeof(record), 0);
  EXPECT(send(both[0].socket, record, (size_t)size - 1, 0) == size - 1);
  EXPECT(rdt_tls_receive(both[1].tls, &room, 1) == 0 && !rdt_tls_holds(both[1].tls));
  shutdown(both[0].socket, SHUT_RDWR);
  EXPECT(rdt_tls_receive(both[1].tls, &room, 1) == -1 && errno == ECONNRESET);
  close_both(both);
}

/* Who does not speak TLS, at either end. */
static void test_clear_text(void) {
  for (int connecting = 0; connecting < 2; connecting++) {
    int ends[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    side this = {.socket = ends[0], .connecting = connecting};
    EXPECT(send(ends[1], "RDT1 and so on, for more than a header", 38, 0) == 38);
    open_side(&this);
    EXPECT_STATUS(RDT_ERR_REFUSED, this.status);
    EXPECT(strstr(this.text, "ENCRYPT=on") != NULL);
    close(ends[0]);
    close(ends[1]);
  }
}

static void test_silence(void) {
  int ends[2];
  rdt_tls *tls;
  uint8_t key[RDT_TLS_KEY_SIZE] = {1};
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_tls_open(ends[0], true, key, rdt_deadline_after(50), &tls));
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_tls_open(ends[1], false, key, rdt_deadline_after(50), &tls));
  close(ends[0]);
  close(ends[1]);
}

int main(void) {
  if (rdt_tls_load() != RDT_OK) {
    printf("skipped: %s\n", rdt_last_error());
    return 0;
  }
  test_both_ways();
  test_what_was_sent_is_told();
  test_end_of_stream();
  test_other_key();
  test_changed_bytes();
  test_truncated_record();
  test_clear_text();
  test_silence();
  return 0;
}
