/* SPDX-License-Identifier: Apache-2.0
 *
 * Output of the streams. Frames are built from the queues and sent with one system call as far as
 * the socket takes them; nobody ever waits for a socket. Whoever has something to send flushes, and
 * if another thread is at it, that thread sends it. A attached stream is sent by its I/O thread only.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "transport/tcp/objects.h"
#include "transport/tcp/socket_io.h"

#define BATCH_BYTES (1u << 20) /* built at once: acknowledgements wait for no more */
#define FLUSH_BYTES (8u << 20) /* sent of a stream before another thread or stream gets its turn */
#define TURNS 4                /* for others who hand over meanwhile, before an event does it */
#define INLINE_BYTES 1024u     /* a short body is copied behind its header */

/* Sent instead of a region that was closed after its header left. */
static const uint8_t nothing[RDT_TCP_PIECE_BYTES];

static bool has_room(const rdt_tcp_output *out) {
  return out->count + 4 <= RDT_TCP_PARTS && out->slab_used + 2 * RDT_TCP_SHORT <= RDT_TCP_SLAB;
}

static void add_part(rdt_tcp_output *out, const void *start, size_t size, rdt_registration *held) {
  out->built_bytes += size;
  if (!held && out->count > 0 && !out->held[out->count - 1]) {
    struct iovec *last = &out->parts[out->count - 1];
    if ((const uint8_t *)last->iov_base + last->iov_len == start) {
      last->iov_len += size;
      return;
    }
  }
  out->held[out->count] = held;
  out->parts[out->count++] = (struct iovec){.iov_base = (void *)start, .iov_len = size};
}

static void add_header(rdt_tcp_output *out, const rdt_tcp_frame *frame) {
  uint8_t *header = out->slab + out->slab_used;
  rdt_tcp_frame_put(frame, header);
  out->slab_used += RDT_TCP_HEADER_SIZE;
  add_part(out, header, RDT_TCP_HEADER_SIZE, NULL);
}

static void add_copy(rdt_tcp_output *out, const void *body, uint32_t size) {
  uint8_t *copy = out->slab + out->slab_used;
  memcpy(copy, body, size);
  out->slab_used += size;
  add_part(out, copy, size, NULL);
}

static void add_word(rdt_tcp_output *out, rdt_tcp_kind kind, uint64_t value) {
  add_header(out, &(rdt_tcp_frame){.kind = kind, .value = value});
}

/* An operation whose answer is not built, or lies in a region that may still close, is not done. Those behind a
 * fence wait for it, which bounds how many fences there are. */
static uint64_t acknowledgeable(const rdt_endpoint *endpoint, const rdt_tcp_stream *stream) {
  uint64_t served = atomic_load(&stream->served), given = atomic_load(&stream->given);
  if (given != atomic_load(&stream->owed)) {
    uint64_t front = stream->answers[given & (endpoint->depth - 1)].operation;
    if (front < served) served = front;
  }
  if (stream->out.answering && stream->out.operation < served) served = stream->out.operation;
  if (stream != &endpoint->streams[0]) return served;
  uint64_t fenced_from = atomic_load(&endpoint->fenced_from); /* after `served` */
  return fenced_from < served ? fenced_from : served;
}

static void build_acknowledgement(const rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  rdt_tcp_output *out = &stream->out;
  uint64_t done = acknowledgeable(endpoint, stream);
  if (done <= out->acknowledged) return;
  out->acknowledged = done;
  add_word(out, RDT_TCP_ACK, done);
}

static void build_refusal(rdt_tcp_output *out, uint64_t operation) {
  add_word(out, RDT_TCP_REFUSE, operation);
  if (out->acknowledged < operation + 1) out->acknowledged = operation + 1;
}

static void build_word(rdt_tcp_output *out, uint64_t word) {
  add_header(out, &(rdt_tcp_frame){.kind = RDT_TCP_DATA, .size = sizeof(word)});
  add_copy(out, &word, sizeof(word));
}

static void build_data(rdt_tcp_output *out, rdt_tcp_answer answer) {
  rdt_registration *registration = answer.registration;
  const uint8_t *body = registration->start + answer.offset;
  bool is_short = answer.size <= RDT_TCP_SHORT;
  if (is_short && !rdt_tcp_region_pin(registration)) {
    build_refusal(out, answer.operation);
    rdt_tcp_registration_unref(registration);
    return;
  }
  add_header(out, &(rdt_tcp_frame){.kind = RDT_TCP_DATA, .size = answer.size});
  if (is_short) {
    add_copy(out, body, answer.size);
    rdt_tcp_region_unpin(registration);
    rdt_tcp_registration_unref(registration);
    return;
  }
  if (!out->answering) out->operation = answer.operation;
  out->answering = true;
  add_part(out, body, answer.size, registration);
}

/* No system call sends bytes of a CUDA device. */
static void fetch(rdt_tcp_answer *answer) {
  rdt_registration *registration = answer->registration;
  answer->registration = rdt_tcp_region_fetch(registration, answer->offset, answer->size);
  answer->offset = 0;
  rdt_tcp_registration_unref(registration);
}

static bool build_answer(const rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  uint64_t given = atomic_load(&stream->given);
  if (given == atomic_load(&stream->owed)) return false;
  rdt_tcp_answer answer = stream->answers[given & (endpoint->depth - 1)];
  if (answer.registration && answer.registration->on_device) fetch(&answer);
  if (answer.is_word)
    build_word(&stream->out, answer.word);
  else if (answer.registration)
    build_data(&stream->out, answer);
  else
    build_refusal(&stream->out, answer.operation);
  atomic_store(&stream->given, given + 1);
  return true;
}

static bool build_operation(const rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  uint64_t built = atomic_load(&stream->built);
  if (built == atomic_load(&stream->posted)) return false;
  rdt_tcp_piece *piece = &stream->pieces[built & (endpoint->depth - 1)];
  rdt_tcp_output *out = &stream->out;
  add_header(out, &piece->frame);
  if (rdt_tcp_is_atomic(piece->frame.kind))
    add_copy(out, piece->operands, RDT_TCP_OPERANDS_BYTES);
  else if (rdt_tcp_has_body(piece->frame.kind) && piece->frame.size <= INLINE_BYTES)
    add_copy(out, piece->local, piece->frame.size);
  else if (rdt_tcp_has_body(piece->frame.kind))
    add_part(out, piece->local, piece->frame.size, NULL);
  piece->end = out->built_bytes;
  atomic_store(&stream->built, built + 1);
  return true;
}

static bool build(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  rdt_tcp_output *out = &stream->out;
  uint64_t before = out->built_bytes, credit = 0;
  out->first = out->count = 0;
  out->slab_used = 0;
  if (out->spoiled) build_refusal(out, out->operation);
  out->spoiled = out->answering = false;
  build_acknowledgement(endpoint, stream);
  if (stream == &endpoint->streams[0]) credit = atomic_exchange(&endpoint->credit_due, 0);
  if (credit) add_word(out, RDT_TCP_CREDIT, credit);
  while (has_room(out) && out->built_bytes - before < BATCH_BYTES) {
    bool answered = build_answer(endpoint, stream);
    if (!build_operation(endpoint, stream) && !answered) break;
  }
  build_acknowledgement(endpoint, stream);
  return out->count > 0;
}

static void set_full(rdt_tcp_stream *stream, bool full) {
  if (stream->out.full == full) return;
  struct epoll_event event = {.events = EPOLLIN | (full ? EPOLLOUT : 0), .data.ptr = stream};
  stream->out.full = full;
  epoll_ctl(stream->epoll_fd, EPOLL_CTL_MOD, stream->socket.fd, &event);
}

/* Bytes of a region that closed meanwhile are not sent; the peer learns it with a refusal. */
static void pin_parts(rdt_tcp_output *out) {
  for (int i = out->first; i < out->count; i++) {
    if (!out->held[i] || rdt_tcp_region_pin(out->held[i])) continue;
    rdt_tcp_registration_unref(out->held[i]);
    out->held[i] = NULL;
    out->parts[i].iov_base = (void *)nothing;
    out->spoiled = true;
  }
}

static void unpin_parts(rdt_tcp_output *out) {
  for (int i = out->first; i < out->count; i++)
    if (out->held[i]) rdt_tcp_region_unpin(out->held[i]);
}

static void advance(rdt_tcp_output *out, size_t sent) {
  while (out->first < out->count && sent >= out->parts[out->first].iov_len) {
    sent -= out->parts[out->first].iov_len;
    rdt_tcp_registration_unref(out->held[out->first]);
    out->held[out->first++] = NULL;
  }
  if (sent == 0) return;
  struct iovec *part = &out->parts[out->first];
  part->iov_base = (uint8_t *)part->iov_base + sent;
  part->iov_len -= sent;
}

/* Returns the number of bytes sent, 0 if the socket takes none, or -1. */
static ssize_t send_parts(rdt_tcp_stream *stream) {
  rdt_tcp_output *out = &stream->out;
  pin_parts(out);
  ssize_t sent =
      rdt_tcp_socket_send(stream->socket, out->parts + out->first, out->count - out->first);
  unpin_parts(out);
  if (sent > 0) {
    advance(out, (size_t)sent);
    atomic_fetch_add(&stream->sent_bytes, (uint64_t)sent);
  }
  return sent;
}

static int send_stream(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  rdt_tcp_output *out = &stream->out;
  int calls = 0;
  for (ssize_t total = 0, sent; !out->dead && !atomic_load(&endpoint->stopped);
       total += sent, calls++) {
    if (out->first == out->count && !build(endpoint, stream)) {
      set_full(stream, false);
      return calls;
    }
    sent = total < FLUSH_BYTES ? send_parts(stream) : 0;
    if (sent < 0) {
      atomic_store(&endpoint->send_error, errno);
      out->dead = true;
    } else if (out->first < out->count) {
      set_full(stream, true);
      return calls + 1;
    }
  }
  return calls;
}

/* Call it under the lock. Whoever hands over again and again cannot keep a thread here: in the end, an event brings
 * the one that looks after the stream. */
static int take_turn(rdt_tcp_stream *stream, int turn) {
  atomic_store(&stream->out_wanted, false);
  if (turn < TURNS) return send_stream(stream);
  set_full(stream, true);
  return 0;
}

int rdt_tcp_flush_stream(rdt_tcp_stream *stream) {
  int calls = 0;
  atomic_store(&stream->out_wanted, true);
  for (int turn = 0;
       atomic_load(&stream->out_wanted) && pthread_mutex_trylock(&stream->out_lock) == 0; turn++) {
    calls += take_turn(stream, turn);
    pthread_mutex_unlock(&stream->out_lock);
  }
  return calls;
}

void rdt_tcp_flush_attached(rdt_tcp_stream *stream) {
  int turn = 0;
  do {
    pthread_mutex_lock(&stream->out_lock);
    take_turn(stream, turn++);
    pthread_mutex_unlock(&stream->out_lock);
  } while (atomic_load(&stream->out_wanted));
}

/* The I/O thread comes as it does for a socket that was full. If it is sending now, it looks again. */
static int hand_over(rdt_tcp_stream *stream) {
  if (atomic_load(&stream->posted) == atomic_load(&stream->built)) return 0;
  atomic_store(&stream->out_wanted, true);
  if (pthread_mutex_trylock(&stream->out_lock) != 0) return 0;
  set_full(stream, true);
  pthread_mutex_unlock(&stream->out_lock);
  return 1;
}

int rdt_tcp_flush(rdt_endpoint *endpoint, uint32_t from) {
  int calls = 0;
  for (uint32_t i = endpoint->stream_count; i-- > from;) {
    rdt_tcp_stream *stream = &endpoint->streams[i];
    calls += atomic_load(&stream->carried) ? hand_over(stream) : rdt_tcp_flush_stream(stream);
  }
  return calls;
}

bool rdt_tcp_is_flushed(const rdt_endpoint *endpoint) {
  bool flushed = true;
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    rdt_tcp_stream *stream = &endpoint->streams[i];
    const rdt_tcp_output *out = &stream->out;
    pthread_mutex_lock(&stream->out_lock);
    flushed &= out->dead || (out->first == out->count && !out->spoiled &&
                             out->acknowledged >= atomic_load(&stream->served));
    pthread_mutex_unlock(&stream->out_lock);
  }
  return flushed;
}
