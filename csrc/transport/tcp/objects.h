/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects of the TCP transport, and who may access what. An endpoint has streams to its peer,
 * and each stream a queue of pieces in both directions: what was posted here, and answers to what
 * the peer posted. Pieces of a stream are sent, done and acknowledged in order. The send side of an
 * endpoint belongs to whoever holds the channel's send lock, the receive side to whoever polls. The input of a
 * stream belongs to its I/O thread (io_threads.h), or without one to whoever polls; its output to whoever holds its
 * out_lock. They meet in the atomics.
 */
#ifndef RDT_TRANSPORT_TCP_OBJECTS_H
#define RDT_TRANSPORT_TCP_OBJECTS_H

#include "transport/records.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/regions.h"

#define RDT_TCP_PARTS 64       /* of one system call */
#define RDT_TCP_SLAB 16384u    /* headers and short bodies of one system call */
#define RDT_TCP_SHORT 4096u    /* a body that is copied there */
#define RDT_TCP_AHEAD 4u       /* operations under way, behind which a short one waits for more */
#define RDT_TCP_STAGING 32768u /* received bytes that have no other place yet */

typedef struct rdt_tcp_piece {
  rdt_request *request; /* NULL: notifications, fences, probes */
  uint8_t *local;
  uint64_t operands[2]; /* of an atomic operation: the body */
  uint64_t end;         /* of its last byte in the stream, once it was built */
  rdt_tcp_frame frame;
} rdt_tcp_piece;

/* What the target owes for an operation besides its acknowledgement. */
typedef struct rdt_tcp_answer {
  uint64_t operation;
  rdt_registration *registration; /* held; NULL without `is_word`: the operation is refused */
  uint64_t offset;
  uint32_t size;
  bool is_word; /* the answer is `word`, not bytes of a region */
  uint64_t word;
} rdt_tcp_answer;

/* A fence hides the notifications that begin at `position` of the ring or later. */
typedef struct rdt_tcp_fence {
  uint64_t operation; /* its own number */
  uint64_t position, value;
  uint32_t stream;
} rdt_tcp_fence;

/* Under the stream's out_lock. Frames are built, then sent, perhaps in several system calls. */
typedef struct rdt_tcp_output {
  int first, count; /* parts that are not sent */
  uint32_t slab_used;
  struct iovec parts[RDT_TCP_PARTS];
  rdt_registration *held[RDT_TCP_PARTS]; /* of a part in a region */
  uint64_t operation;                    /* that the parts in regions answer, the first of them */
  bool answering, spoiled;               /* such parts are here; one was closed meanwhile */
  uint64_t built_bytes;
  uint64_t acknowledged;
  bool full; /* epoll says when the socket takes bytes again */
  bool dead;
  uint8_t slab[RDT_TCP_SLAB];
} rdt_tcp_output;

typedef struct rdt_tcp_input {
  uint32_t begin, end;            /* of what is in staging */
  uint32_t left;                  /* bytes of the body that are to come */
  rdt_tcp_frame frame;            /* of that body */
  uint8_t *to;                    /* NULL: it is discarded */
  uint64_t operands[2];           /* the body of an atomic operation */
  rdt_registration *registration; /* held while the body goes into a region */
  uint8_t *gathered;              /* a long body for a CUDA device, which gets it as a whole */
  uint64_t answered;              /* pieces below this have their data, if they get any */
  uint64_t shorts;                /* bytes of frames since the last long body */
  bool in_body, ended;
  bool ack_due, quick_ack;
  bool pending_events; /* of a attached stream: the polling thread has something to do */
  uint8_t staging[RDT_TCP_STAGING];
} rdt_tcp_input;

typedef struct rdt_tcp_stream {
  rdt_endpoint *endpoint;
  rdt_socket socket;
  int epoll_fd; /* which looks at the socket: the endpoint's, or its I/O thread's */
  rdt_tcp_io_thread *io_thread;
  atomic_bool carried;
  rdt_tcp_piece *pieces; /* [completed, posted), modulo depth */
  _Atomic uint64_t posted, completed;
  _Atomic uint64_t built;        /* handed to output */
  _Atomic uint64_t acknowledged; /* pieces below this are done, and may be completed */
  _Atomic uint64_t refused;      /* one more than the piece that the peer refused; 0: none */
  _Atomic uint64_t sent_bytes;
  rdt_tcp_answer *answers; /* [given, owed), modulo depth */
  _Atomic uint64_t owed, given;
  _Atomic uint64_t served; /* operations of the peer */
  _Atomic uint64_t probed; /* those of them that are probes */
  uint64_t bytes;          /* send side: posted */
  _Atomic uint64_t done_bytes;
  bool fenced; /* send side: it carried writes since the last fence */
  pthread_mutex_t out_lock;
  atomic_bool out_wanted;
  rdt_tcp_output out;
  rdt_tcp_input in;
} rdt_tcp_stream;

struct rdt_endpoint {
  rdt_domain *domain;
  uint64_t number; /* never reused in this process */
  char peer[64];
  int epoll_fd; /* of the streams without an I/O thread, and of nudge_fd */
  int event_fd; /* epoll_fd, if armed */
  int nudge_fd; /* readable once an I/O thread had news, until poll looks */
  atomic_bool nudged;
  uint32_t stream_count, depth;
  rdt_tcp_stream *streams;
  uint64_t stripe; /* bytes; longer operations go over any stream */
  uint64_t peer_ring;
  atomic_bool stopped;

  /* Send side. */
  rdt_records mirror; /* of the peer's ring */
  uint64_t published;
  atomic_uint notifying;     /* notifications on their way */
  atomic_bool stalled;       /* notifications wait for room in a queue */
  _Atomic uint64_t consumed; /* of the mirror, as the peer said */
  uint32_t silent;           /* probes since the peer last moved */
  uint64_t moved;            /* at the last probe */
  uint64_t timed;            /* an operation of the first stream, posted at timed_us */
  int64_t timed_us;
  bool prompt;               /* the one before was acknowledged soon */
  atomic_bool gathers;       /* what is posted on the first stream waits for more */
  _Atomic uint64_t received; /* bytes */
  _Atomic int64_t ended_ms;  /* when the first stream ended; 0: none has */

  atomic_bool starved; /* an operation waits for room in a queue */

  atomic_int send_error;       /* errno */
  _Atomic uint64_t credit_due; /* bytes of the ring to tell the peer; 0: none */

  /* Receive side. */
  rdt_records receive;
  uint64_t told_consumed;
  uint64_t landed;       /* bytes of the ring; those before receive.seen are visible */
  rdt_tcp_fence *fences; /* [passed, set), modulo depth */
  uint64_t fences_passed, fences_set;
  /* The oldest fence waits until `fence` operations of stream fence_of are done; 0: there is no fence. The
   * I/O thread of that stream reads it. The output reads fenced_from, the fence's own number, or UINT64_MAX. */
  _Atomic uint64_t fence, fenced_from;
  _Atomic uint32_t fence_of;
  bool look_everywhere;
  unsigned rounds;
  bool armed;
  bool may_be_quiet, quiet; /* the first stream */
  uint64_t spread;          /* operations posted on further streams, when it was last silenced */
  bool reported, drained;
  atomic_flag failing; /* whoever sets it writes the failure */
  atomic_bool failed;  /* it is written */
  char failure[384];
};

/* endpoint.c: connecting and ending */

rdt_status rdt_tcp_endpoint_create(rdt_domain *domain, rdt_endpoint **endpoint, rdt_bundle *offer);
rdt_status rdt_tcp_endpoint_connect(rdt_endpoint *endpoint, const char *peer, rdt_bundle *offer);
uint32_t rdt_tcp_socket_count(const rdt_endpoint *endpoint);
rdt_status rdt_tcp_socket_add(rdt_endpoint *endpoint, uint32_t index, rdt_socket socket);
void rdt_tcp_endpoint_stop(rdt_endpoint *endpoint);
/* Waits for whoever still moves bytes of a stopped endpoint, whose buffers may be given back then. */
void rdt_tcp_endpoint_still(rdt_endpoint *endpoint);
bool rdt_tcp_endpoint_idle(const rdt_endpoint *endpoint);
void rdt_tcp_endpoint_abort(rdt_endpoint *endpoint, const rdt_events *events);
void rdt_tcp_endpoint_destroy(rdt_endpoint *endpoint);
uint64_t rdt_tcp_max_notify(const rdt_endpoint *endpoint);

/* post.c: the send side */

rdt_status rdt_tcp_write(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                         rdt_request *request);
rdt_status rdt_tcp_read(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                        rdt_request *request);
rdt_status rdt_tcp_atomic(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                          rdt_request *request);
rdt_status rdt_tcp_region_grant(rdt_endpoint *endpoint, rdt_registration *registration,
                                rdt_request *request);
rdt_status rdt_tcp_notify(rdt_endpoint *endpoint, uint64_t immediate, const void *data,
                          uint64_t size);
int rdt_tcp_doorbell(rdt_endpoint *endpoint);
bool rdt_tcp_wants_doorbell(const rdt_endpoint *endpoint);
bool rdt_tcp_delivering(const rdt_endpoint *endpoint);
rdt_status rdt_tcp_probe(rdt_endpoint *endpoint);

/* output.c */

/* Sends what the sockets take of all that is due, from stream `from` on. What carried streams have to send, their
 * I/O threads do. Any thread. Returns the number of system calls. */
int rdt_tcp_flush(rdt_endpoint *endpoint, uint32_t from);
int rdt_tcp_flush_stream(rdt_tcp_stream *stream);
/* For its I/O thread, which waits for whoever hands over to it. To look again instead would keep the core from that
 * thread, if they share one. */
void rdt_tcp_flush_attached(rdt_tcp_stream *stream);
/* Reports whether everything that is due, acknowledgements too, is sent. */
bool rdt_tcp_is_flushed(const rdt_endpoint *endpoint);

/* input.c */

/* Receives and handles what is there, up to a limit. Returns how many frames or parts of bodies that was. */
int rdt_tcp_receive(rdt_endpoint *endpoint, uint32_t index);
/* Handles what was received. `moved` counts likewise. */
void rdt_tcp_parse(rdt_endpoint *endpoint, uint32_t index, int *moved);
/* Notes the first failure, in words. Any thread. */
void rdt_tcp_fail(rdt_endpoint *endpoint, const char *text);

/* poll.c */

int rdt_tcp_poll(rdt_endpoint *endpoint, int budget, const rdt_events *events);
bool rdt_tcp_arm(rdt_endpoint *endpoint, bool may_take, bool completions);
void rdt_tcp_disarm(rdt_endpoint *endpoint);
uint64_t rdt_tcp_silence(rdt_endpoint *endpoint);
int rdt_tcp_event_fd(const rdt_endpoint *endpoint);
/* Makes the polling thread look at what an I/O thread noted, and wakes it if it sleeps. */
void rdt_tcp_nudge(rdt_endpoint *endpoint);

/* Reports whether enough is under way for short operations to wait behind it. */
static inline bool rdt_tcp_is_ahead(const rdt_tcp_stream *stream) {
  return atomic_load(&stream->built) >= atomic_load(&stream->acknowledged) + RDT_TCP_AHEAD;
}

static inline uint64_t rdt_tcp_outstanding(const rdt_tcp_stream *stream) {
  return atomic_load(&stream->posted) - atomic_load(&stream->completed);
}

#endif
