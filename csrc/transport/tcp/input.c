/* SPDX-License-Identifier: Apache-2.0
 *
 * Input of a stream: frames are checked and served here. Long bodies are received straight into the
 * region, the ring or the reader's buffer; the rest is staged. One thread at a time runs it for a stream.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/atomic.h"
#include "transport/tcp/objects.h"
#include "transport/tcp/socket_io.h"

#define RECEIVE_BYTES (4u << 20) /* of one stream before the others get their turn */
/* Behind a body of this length another one is likely. Of what is staged behind it, most would be copied twice. */
#define LONG_BODY 65536u
#define LITTLE 256u       /* notifications, and a header */
#define SHORT_BYTES 1024u /* of other frames, after which all that comes is staged again */

void rdt_tcp_fail(rdt_endpoint *endpoint, const char *text) {
  if (atomic_flag_test_and_set(&endpoint->failing)) return;
  snprintf(endpoint->failure, sizeof(endpoint->failure), "%s", text);
  atomic_store(&endpoint->failed, true);
}

/* A peer that ends says so on the control connection too, and why, so that has the first word. */
static void end_stream(rdt_endpoint *endpoint, rdt_tcp_stream *stream, int error) {
  int64_t none = 0;
  if (stream->in.ended) return;
  stream->in.ended = true;
  epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
  if (error == ECONNRESET || error == EPIPE) {
    atomic_compare_exchange_strong(&endpoint->ended_ms, &none, rdt_now_ms());
    return;
  }
  if (error == EBADMSG)
    rdt_fail(RDT_ERR_CONNECTION_LOST, "bytes came that %s did not send so (TLS)", endpoint->peer);
  else
    rdt_fail_errno(error, "the network lost the connection to %s", endpoint->peer);
  rdt_tcp_fail(endpoint, rdt_last_error());
}

/* Reports whether the first `count` operations left this process, so that the peer can have done
 * them. A sender that is still at it has the lock. */
static bool were_sent(const rdt_endpoint *endpoint, rdt_tcp_stream *stream, uint64_t count) {
  for (int tries = 0; tries < 2; tries++) {
    if (count <= atomic_load(&stream->built) &&
        (count == atomic_load(&stream->acknowledged) ||
         stream->pieces[(count - 1) & (endpoint->depth - 1)].end <=
             atomic_load(&stream->sent_bytes)))
      return true;
    pthread_mutex_lock(&stream->out_lock);
    pthread_mutex_unlock(&stream->out_lock);
  }
  return false;
}

/* Operations before `count` that get data must have it. */
static bool were_answered(const rdt_endpoint *endpoint, rdt_tcp_stream *stream, uint64_t count) {
  for (uint64_t *at = &stream->in.answered; *at < count; ++*at)
    if (rdt_tcp_data_bytes(&stream->pieces[*at & (endpoint->depth - 1)].frame) > 0) return false;
  return true;
}

/* Reports whether one of the pieces [from, to) is the last of its request here, so that the request may be
 * complete now. */
static bool ends_request(const rdt_tcp_stream *stream, uint64_t from, uint64_t to) {
  uint64_t mask = stream->endpoint->depth - 1, posted = atomic_load(&stream->posted);
  for (uint64_t at = from; at < to; at++)
    if (at + 1 == posted ||
        stream->pieces[at & mask].request != stream->pieces[(at + 1) & mask].request)
      return true;
  return false;
}

static rdt_status take_acknowledgement(rdt_endpoint *endpoint, rdt_tcp_stream *stream,
                                       uint64_t count) {
  uint64_t before = atomic_load(&stream->acknowledged);
  if (count < before || !were_sent(endpoint, stream, count) ||
      !were_answered(endpoint, stream, count))
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer acknowledged operations that it cannot have done");
  if (ends_request(stream, before, count) || atomic_load(&endpoint->starved))
    stream->in.pending_events = true;
  atomic_store(&stream->acknowledged, count);
  return RDT_OK;
}

static rdt_status take_refusal(rdt_endpoint *endpoint, rdt_tcp_stream *stream, uint64_t operation) {
  if (operation >= atomic_load(&stream->posted) || !were_sent(endpoint, stream, operation + 1))
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer refused an operation that there is not");
  rdt_status status = take_acknowledgement(endpoint, stream, operation);
  if (status != RDT_OK) return status;
  atomic_store(&stream->refused, operation + 1);
  return rdt_fail(
      RDT_ERR_ACCESS,
      "%s refused an operation: it withdrew the region, its key is wrong, or its GPU failed "
      "(then its log says so)",
      endpoint->peer);
}

static void served(rdt_endpoint *endpoint, rdt_tcp_stream *stream, bool quick) {
  uint64_t count = atomic_fetch_add(&stream->served, 1) + 1;
  stream->in.ack_due = true;
  stream->in.quick_ack = quick;
  if (atomic_load(&endpoint->fence) == count &&
      &endpoint->streams[atomic_load(&endpoint->fence_of)] == stream)
    stream->in.pending_events = true;
}

static rdt_status owe(rdt_endpoint *endpoint, rdt_tcp_stream *stream, rdt_tcp_answer answer) {
  uint64_t owed = atomic_load(&stream->owed);
  if (owed - atomic_load(&stream->given) >= endpoint->depth) {
    rdt_tcp_registration_unref(answer.registration);
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer has more operations under way than agreed");
  }
  stream->answers[owed & (endpoint->depth - 1)] = answer;
  atomic_store(&stream->owed, owed + 1);
  return RDT_OK;
}

static rdt_registration *find(const rdt_endpoint *endpoint, const rdt_tcp_frame *frame,
                              uint32_t access) {
  rdt_tcp_reach wanted = {.endpoint = endpoint->number,
                          .key = frame->key,
                          .offset = frame->value,
                          .size = frame->size,
                          .index = frame->index,
                          .access = access};
  return rdt_tcp_region_find(endpoint->domain, &wanted);
}

static rdt_status refuse(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  return owe(endpoint, stream, (rdt_tcp_answer){.operation = atomic_load(&stream->served)});
}

static rdt_status serve_read(rdt_endpoint *endpoint, rdt_tcp_stream *stream,
                             const rdt_tcp_frame *frame) {
  rdt_status status = owe(endpoint, stream,
                          (rdt_tcp_answer){.operation = atomic_load(&stream->served),
                                           .registration = find(endpoint, frame, RDT_ACCESS_READ),
                                           .offset = frame->value,
                                           .size = frame->size});
  served(endpoint, stream, true);
  return status;
}

/* The word has changed when the operation is served; its answer keeps the old value until it is built. */
static rdt_status serve_atomic(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  const rdt_tcp_input *in = &stream->in;
  rdt_tcp_frame frame = in->frame;
  rdt_tcp_answer answer = {.operation = atomic_load(&stream->served)};
  frame.size = RDT_ATOMIC_SIZE;
  rdt_registration *region = find(endpoint, &frame, RDT_ACCESS_READ | RDT_ACCESS_WRITE);
  if (region && !region->on_device && rdt_atomic_aligned(region->start + frame.value) &&
      rdt_tcp_region_pin(region)) {
    void *word = region->start + frame.value;
    answer.is_word = true;
    answer.word = frame.kind == RDT_TCP_FETCH_ADD
                      ? rdt_atomic_fetch_add(word, in->operands[0])
                      : rdt_atomic_compare_swap(word, in->operands[1], in->operands[0]);
    rdt_tcp_region_unpin(region);
  }
  rdt_tcp_registration_unref(region);
  rdt_status status = owe(endpoint, stream, answer);
  served(endpoint, stream, true);
  return status;
}

static rdt_status begin_notify(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  const rdt_records *ring = &endpoint->receive;
  uint64_t at = endpoint->landed & (ring->capacity - 1);
  if (stream != &endpoint->streams[0] || stream->in.frame.size > ring->capacity - at ||
      endpoint->landed + stream->in.frame.size - ring->position > ring->capacity)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer sent more notifications than its credit covers");
  stream->in.to = ring->data + at;
  return RDT_OK;
}

/* The oldest operation that lacks its data gets it. */
static rdt_status begin_data(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  rdt_tcp_input *in = &stream->in;
  uint64_t built = atomic_load(&stream->built);
  if (were_answered(endpoint, stream, built) || in->answered < atomic_load(&stream->completed) ||
      rdt_tcp_data_bytes(&stream->pieces[in->answered & (endpoint->depth - 1)].frame) !=
          in->frame.size)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer sent data that no operation asked for");
  in->to = stream->pieces[in->answered & (endpoint->depth - 1)].local;
  return RDT_OK;
}

static rdt_status begin_body(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  rdt_tcp_input *in = &stream->in;
  in->in_body = true;
  in->left = in->frame.size;
  in->to = NULL;
  if (in->frame.kind == RDT_TCP_NOTIFY) return begin_notify(endpoint, stream);
  if (in->frame.kind == RDT_TCP_DATA) return begin_data(endpoint, stream);
  if (rdt_tcp_is_atomic(in->frame.kind)) {
    in->to = (uint8_t *)in->operands;
    return RDT_OK;
  }
  in->registration = find(endpoint, &in->frame, RDT_ACCESS_WRITE);
  if (!in->registration) return RDT_OK;
  in->to = in->registration->start + in->frame.value;
  if (in->registration->on_device && in->frame.size >= LONG_BODY)
    in->gathered = malloc(in->frame.size);
  if (in->gathered) in->to = in->gathered;
  return RDT_OK;
}

/* The rest of the body is discarded, and its operation refused. */
static void drop_body(rdt_tcp_input *in) {
  in->to = NULL;
  rdt_tcp_registration_unref(in->registration);
  in->registration = NULL;
}

/* Pins the region of the body. A region that was closed takes no more bytes. */
static bool pin(rdt_tcp_input *in) {
  if (!in->registration || rdt_tcp_region_pin(in->registration)) return in->registration != NULL;
  drop_body(in);
  return false;
}

static void store_gathered(rdt_tcp_input *in) {
  if (!in->gathered || !pin(in)) return;
  bool stored =
      rdt_tcp_region_store(in->registration->start + in->frame.value, in->gathered, in->frame.size);
  rdt_tcp_region_unpin(in->registration);
  if (!stored) drop_body(in);
}

static rdt_status end_body(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  rdt_tcp_input *in = &stream->in;
  rdt_status status = RDT_OK;
  in->in_body = false;
  in->shorts = in->frame.size >= LONG_BODY ? 0 : in->shorts + in->frame.size;
  if (in->frame.kind == RDT_TCP_DATA) {
    in->answered++;
  } else if (in->frame.kind == RDT_TCP_NOTIFY) {
    endpoint->landed += in->frame.size;
    served(endpoint, stream, false);
  } else if (rdt_tcp_is_atomic(in->frame.kind)) {
    status = serve_atomic(endpoint, stream);
  } else {
    store_gathered(in);
    if (!in->to) status = refuse(endpoint, stream);
    served(endpoint, stream, true);
  }
  rdt_tcp_registration_unref(in->registration);
  in->registration = NULL;
  free(in->gathered);
  in->gathered = NULL;
  return status;
}

/* Writes go on behind a fence; notifications stay hidden, and nothing is acknowledged from the fence on. */
static rdt_status set_fence(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  const rdt_tcp_frame *frame = &stream->in.frame;
  bool none = endpoint->fences_passed == endpoint->fences_set;
  if (stream != &endpoint->streams[0] || frame->index == 0 ||
      frame->index >= endpoint->stream_count)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer fences a stream that there is not");
  if (endpoint->fences_set - endpoint->fences_passed == endpoint->depth)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer has more operations under way than agreed");
  if (none && atomic_load(&endpoint->streams[frame->index].served) >= frame->value) {
    served(endpoint, stream, false);
    return RDT_OK;
  }
  rdt_tcp_fence fence = {.operation = atomic_load(&stream->served),
                         .position = endpoint->landed,
                         .value = frame->value,
                         .stream = frame->index};
  endpoint->fences[endpoint->fences_set++ & (endpoint->depth - 1)] = fence;
  if (none) atomic_store(&endpoint->fenced_from, fence.operation);
  served(endpoint, stream, false);
  return RDT_OK;
}

static rdt_status handle(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  const rdt_tcp_frame *frame = &stream->in.frame;
  switch (frame->kind) {
    case RDT_TCP_READ:
      return serve_read(endpoint, stream, frame);
    case RDT_TCP_FENCE:
      return set_fence(endpoint, stream);
    case RDT_TCP_PROBE:
      atomic_fetch_add(&stream->probed, 1);
      served(endpoint, stream, true);
      return RDT_OK;
    case RDT_TCP_ACK:
      return take_acknowledgement(endpoint, stream, frame->value);
    case RDT_TCP_REFUSE:
      return take_refusal(endpoint, stream, frame->value);
    case RDT_TCP_CREDIT:
      atomic_store(&endpoint->consumed, frame->value); /* the sender checks it */
      return RDT_OK;
    default:
      return begin_body(endpoint, stream);
  }
}

/* Reports whether no system call can receive the body where it belongs. */
static bool is_for_device(const rdt_tcp_input *in) {
  return in->registration && in->registration->on_device && !in->gathered;
}

static void passed(rdt_tcp_input *in, uint32_t size) {
  in->left -= size;
  if (in->to) in->to += size;
}

static void take_staged(rdt_tcp_input *in) {
  uint32_t size = in->end - in->begin < in->left ? in->end - in->begin : in->left;
  bool pinned = pin(in), stored = true;
  if (in->to && is_for_device(in))
    stored = rdt_tcp_region_store(in->to, in->staging + in->begin, size);
  else if (in->to)
    memcpy(in->to, in->staging + in->begin, size);
  if (pinned) rdt_tcp_region_unpin(in->registration);
  if (!stored) drop_body(in);
  in->begin += size;
  passed(in, size);
}

void rdt_tcp_parse(rdt_endpoint *endpoint, uint32_t index, int *moved) {
  rdt_tcp_stream *stream = &endpoint->streams[index];
  rdt_tcp_input *in = &stream->in;
  rdt_status status = RDT_OK;
  while (status == RDT_OK && !atomic_load(&endpoint->failed)) {
    if (in->in_body) {
      if (in->left > 0) take_staged(in);
      if (in->left > 0) return;
      status = end_body(endpoint, stream);
    } else if (in->end - in->begin < RDT_TCP_HEADER_SIZE) {
      return;
    } else {
      status = rdt_tcp_frame_get(in->staging + in->begin, endpoint->receive.capacity, &in->frame);
      in->begin += RDT_TCP_HEADER_SIZE;
      in->shorts += RDT_TCP_HEADER_SIZE;
      if (status == RDT_OK) status = handle(endpoint, stream);
    }
    ++*moved;
  }
  if (status != RDT_OK) rdt_tcp_fail(endpoint, rdt_last_error());
}

/* What lies in staging moves to its start, behind which the rest is received. */
static void make_room(rdt_tcp_input *in) {
  if (in->begin == 0) return;
  memmove(in->staging, in->staging + in->begin, in->end - in->begin);
  in->end -= in->begin;
  in->begin = 0;
}

/* The most bytes to be staged behind `body` bytes that have a place. */
static uint32_t staged_most(const rdt_tcp_input *in, uint32_t body) {
  if (body >= LONG_BODY) return RDT_TCP_HEADER_SIZE;
  if (in->in_body && (!in->to || is_for_device(in)))
    return RDT_TCP_STAGING; /* all goes through it */
  bool is_long = in->in_body && in->frame.size >= LONG_BODY;
  return is_long || in->shorts < SHORT_BYTES ? LITTLE : RDT_TCP_STAGING;
}

/* Returns the bytes received, 0 if there are none, or -1. *all gets how many were asked for. `held`: only of those that
 * the socket does not show any more. */
static ssize_t receive_some(rdt_endpoint *endpoint, rdt_tcp_stream *stream, bool held,
                            size_t *all) {
  rdt_tcp_input *in = &stream->in;
  struct iovec parts[2];
  int count = 0;
  make_room(in);
  bool pinned = in->left > 0 && pin(in);
  uint32_t body = in->to && !is_for_device(in) ? in->left : 0;
  uint32_t room = RDT_TCP_STAGING - in->end, most = staged_most(in, body);
  if (room > most) room = most;
  if (body > 0) parts[count++] = (struct iovec){.iov_base = in->to, .iov_len = body};
  parts[count++] = (struct iovec){.iov_base = in->staging + in->end, .iov_len = room};
  ssize_t done = held ? rdt_tcp_socket_receive_held(stream->socket, parts, count)
                      : rdt_tcp_socket_receive(stream->socket, parts, count);
  int error = errno;
  if (pinned) rdt_tcp_region_unpin(in->registration);
  if (done > 0) {
    uint32_t direct = (size_t)done < body ? (uint32_t)done : body;
    passed(in, direct);
    in->end += (uint32_t)done - direct;
    atomic_fetch_add(&endpoint->received, (uint64_t)done);
  }
  *all = body + room;
  errno = error;
  return done;
}

int rdt_tcp_receive(rdt_endpoint *endpoint, uint32_t index) {
  rdt_tcp_stream *stream = &endpoint->streams[index];
  rdt_tcp_input *in = &stream->in;
  const bool carried = atomic_load(&stream->carried);
  int moved = 0;
  /* What the socket does not show any more makes no event, so it belongs to this pass. A stream that is taken back is
   * waited for. */
  for (size_t total = 0, all;
       !in->ended && !atomic_load(&endpoint->failed) && carried == atomic_load(&stream->carried);) {
    const bool held = total >= RECEIVE_BYTES;
    if (held && !rdt_tcp_socket_holds(stream->socket)) break;
    ssize_t done = receive_some(endpoint, stream, held, &all);
    if (done < 0) end_stream(endpoint, stream, errno);
    if (done <= 0) break;
    moved++;
    total += (size_t)done;
    rdt_tcp_parse(endpoint, index, &moved);
    if ((size_t)done < all) break; /* the socket is empty */
  }
  return moved;
}
