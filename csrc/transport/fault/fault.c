/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fault/fault.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/faults.h"
#include "base/status.h"
#include "transport/fault/held.h"
#include "transport/fault/link.h"

/* A byte to corrupt once its read is done. */
typedef struct misread {
  struct misread *next;
  const rdt_request *request;
  uint8_t *byte;
} misread;

struct rdt_endpoint {
  const rdt_transport *inner;
  rdt_endpoint *end; /* of `inner` */
  char peer[64];
  int64_t no_credit_until; /* us; send side */
  atomic_bool broken;      /* poll will say so, once */
  atomic_bool stopped;
  bool reported; /* receive side */
  rdt_held held;
  pthread_mutex_t lock;
  misread *misread;
  uint64_t passed; /* bytes that have passed the emulated link and wait for credit; send side */
};

static bool happens(const rdt_endpoint *endpoint, rdt_fault_kind kind) {
  return rdt_faults_concern(endpoint->inner->name) && rdt_fault_happens(kind, endpoint->peer);
}

/* Decides when to report a piece that succeeded, and with what status. 0 means now. */
static int64_t choose_report(rdt_endpoint *endpoint, rdt_status *status) {
  *status = RDT_OK;
  if (happens(endpoint, RDT_FAULT_DROP)) return RDT_HELD_NEVER;
  if (happens(endpoint, RDT_FAULT_DELAY)) return rdt_now_us() + rdt_fault_us(RDT_FAULT_DELAY);
  if (!happens(endpoint, RDT_FAULT_FAIL)) return 0;
  atomic_store(&endpoint->broken, true);
  *status = RDT_ERR_CONNECTION_LOST;
  return 0;
}

static bool short_of_credit(rdt_endpoint *endpoint) {
  int64_t now = rdt_now_us();
  if (now < endpoint->no_credit_until) return true;
  if (!happens(endpoint, RDT_FAULT_CREDIT)) return false;
  endpoint->no_credit_until = now + rdt_fault_us(RDT_FAULT_CREDIT);
  return true;
}

/* What finds no credit comes back, but passes the link once. */
static void pass_link(rdt_endpoint *endpoint, bool reads, uint64_t bytes) {
  if (bytes + 1 <= endpoint->passed || !rdt_link_emulated() ||
      !rdt_faults_concern(endpoint->inner->name))
    return;
  rdt_fault_pass_link(reads, bytes);
  endpoint->passed = bytes + 1; /* one more, so that empty messages count too */
}

/* Reports what a synchronous transport did at once through poll, as other transports do. */
static rdt_status report_later(rdt_endpoint *endpoint, rdt_request *request) {
  rdt_status status;
  int64_t due = choose_report(endpoint, &status);
  if (due == 0 && status == RDT_OK) return RDT_OK;
  return rdt_held_add(&endpoint->held, request, true, status, due) ? RDT_IN_PROGRESS : RDT_OK;
}

/* A byte of each value. They are static, because posted bytes are read when the doorbell rings,
 * or later. */
#define FOUR(n) (n), (n) + 1, (n) + 2, (n) + 3
#define SIXTEEN(n) FOUR(n), FOUR((n) + 4), FOUR((n) + 8), FOUR((n) + 12)
#define SIXTY_FOUR(n) SIXTEEN(n), SIXTEEN((n) + 16), SIXTEEN((n) + 32), SIXTEEN((n) + 48)
static const uint8_t every_byte[256] = {SIXTY_FOUR(0), SIXTY_FOUR(64), SIXTY_FOUR(128),
                                        SIXTY_FOUR(192)};

/* The last byte is written separately. */
static rdt_status write_wrongly(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                                rdt_request *request) {
  const rdt_transport *inner = endpoint->inner;
  uint64_t before = op->size - 1;
  uint8_t right = ((const uint8_t *)op->local)[before];
  rdt_op first = *op, last = *op;
  first.size = before;
  rdt_status status = before ? inner->write(endpoint->end, mapping, &first, request) : RDT_OK;
  if (status == RDT_NO_CREDIT) {
    *op = first;
    op->size++;
  }
  if (status < 0 || status == RDT_NO_CREDIT) return status;
  last.local = (void *)&every_byte[right ^ 1];
  last.size = 1;
  last.remote_offset += before;
  rdt_status ended = inner->write(endpoint->end, mapping, &last, request);
  if (ended == RDT_NO_CREDIT) {
    op->local = (uint8_t *)op->local + before;
    op->remote_offset += before;
    op->size = 1;
  }
  return ended == RDT_OK ? status : ended;
}

/* With asynchronous transports the bytes arrive later. The request's first completion reports
 * them, so the read must be one piece. */
static bool expect_misread(rdt_endpoint *endpoint, const rdt_request *request, uint8_t *byte) {
  misread *added = malloc(sizeof(*added));
  if (!added) return false;
  pthread_mutex_lock(&endpoint->lock);
  *added = (misread){endpoint->misread, request, byte};
  endpoint->misread = added;
  pthread_mutex_unlock(&endpoint->lock);
  return true;
}

/* Flips the bit once the request's read is done. */
static void misread_now(rdt_endpoint *endpoint, const rdt_request *request, bool done) {
  pthread_mutex_lock(&endpoint->lock);
  misread **link = &endpoint->misread;
  while (*link && (*link)->request != request) link = &(*link)->next;
  misread *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&endpoint->lock);
  if (found && done) *found->byte ^= 1;
  free(found);
}

static rdt_status read_wrongly(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                               rdt_request *request) {
  const rdt_transport *inner = endpoint->inner;
  uint8_t *byte = (uint8_t *)op->local + op->size - 1;
  bool expected = !inner->synchronous && expect_misread(endpoint, request, byte);
  rdt_status status = inner->read(endpoint->end, mapping, op, request);
  if (expected && status != RDT_IN_PROGRESS) misread_now(endpoint, request, false);
  if (inner->synchronous && status == RDT_OK) *byte ^= 1;
  return status;
}

typedef enum { WRITES, READS, CHANGES_WORD } deed;

/* No word is changed to a wrong value: it would be wrong for all peers, not for the one with the fault. */
static bool goes_wrong(const rdt_endpoint *endpoint, deed what, const rdt_op *op) {
  if (op->size == 0 || what == CHANGES_WORD) return false;
  if (what == WRITES) return happens(endpoint, RDT_FAULT_CORRUPT_WRITE);
  bool one_piece =
      endpoint->inner->synchronous || op->size <= rdt_config_number(RDT_CONFIG_STRIPE_BYTES);
  return one_piece && happens(endpoint, RDT_FAULT_CORRUPT_READ);
}

static rdt_status do_right(const rdt_endpoint *endpoint, deed what, rdt_mapping *mapping,
                           rdt_op *op, rdt_request *request) {
  const rdt_transport *inner = endpoint->inner;
  if (what == CHANGES_WORD) return inner->atomic(endpoint->end, mapping, op, request);
  return (what == READS ? inner->read : inner->write)(endpoint->end, mapping, op, request);
}

static rdt_status move(rdt_endpoint *endpoint, deed what, rdt_mapping *mapping, rdt_op *op,
                       rdt_request *request) {
  const rdt_transport *inner = endpoint->inner;
  if (short_of_credit(endpoint)) return RDT_NO_CREDIT;
  if (happens(endpoint, RDT_FAULT_POST))
    return rdt_fail(RDT_ERR_LIMIT, "no more memory can be pinned (a fault was injected)");
  if (happens(endpoint, RDT_FAULT_BREAK)) atomic_store(&endpoint->broken, true);
  pass_link(endpoint, what != WRITES, op->size);
  rdt_status status;
  if (goes_wrong(endpoint, what, op))
    status = (what == READS ? read_wrongly : write_wrongly)(endpoint, mapping, op, request);
  else
    status = do_right(endpoint, what, mapping, op, request);
  endpoint->passed = status == RDT_NO_CREDIT ? op->size + 1 : 0;
  return status == RDT_OK && inner->synchronous ? report_later(endpoint, request) : status;
}

static rdt_status fault_write(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                              rdt_request *request) {
  return move(endpoint, WRITES, mapping, op, request);
}

static rdt_status fault_read(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                             rdt_request *request) {
  return move(endpoint, READS, mapping, op, request);
}

static rdt_status fault_atomic(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                               rdt_request *request) {
  return move(endpoint, CHANGES_WORD, mapping, op, request);
}

static rdt_atomics fault_atomics(const rdt_endpoint *endpoint) {
  return endpoint->inner->atomics(endpoint->end);
}

static rdt_status notify_wrongly(rdt_endpoint *endpoint, uint64_t immediate, const void *data,
                                 uint64_t size) {
  uint8_t *wrong = malloc(size);
  if (wrong) {
    memcpy(wrong, data, size);
    wrong[size - 1] ^= 1;
  }
  rdt_status status = endpoint->inner->notify(endpoint->end, immediate, wrong ? wrong : data, size);
  free(wrong);
  return status;
}

static rdt_status fault_notify(rdt_endpoint *endpoint, uint64_t immediate, const void *data,
                               uint64_t size) {
  if (short_of_credit(endpoint)) return RDT_NO_CREDIT;
  if (happens(endpoint, RDT_FAULT_BREAK)) atomic_store(&endpoint->broken, true);
  pass_link(endpoint, false, size);
  bool wrong = size > 0 && happens(endpoint, RDT_FAULT_CORRUPT_NOTIFY);
  rdt_status status = wrong ? notify_wrongly(endpoint, immediate, data, size)
                            : endpoint->inner->notify(endpoint->end, immediate, data, size);
  endpoint->passed = status == RDT_NO_CREDIT ? size + 1 : 0;
  return status;
}

static rdt_status fault_grant(rdt_endpoint *endpoint, rdt_registration *registration,
                              rdt_request *request) {
  return endpoint->inner->region_grant(endpoint->end, registration, request);
}

static int fault_doorbell(rdt_endpoint *endpoint) {
  return endpoint->inner->doorbell(endpoint->end);
}

/* Reports whether poll has something to do that no event announces. */
static bool poll_is_due(const rdt_endpoint *endpoint) {
  return rdt_held_due(&endpoint->held) ||
         (atomic_load(&endpoint->broken) && !atomic_load(&endpoint->stopped));
}

static bool fault_wants_doorbell(const rdt_endpoint *endpoint) {
  const rdt_transport *inner = endpoint->inner;
  return poll_is_due(endpoint) || (inner->wants_doorbell && inner->wants_doorbell(endpoint->end));
}

static bool fault_delivering(const rdt_endpoint *endpoint) {
  return endpoint->inner->delivering(endpoint->end);
}

static rdt_status fault_probe(rdt_endpoint *endpoint) {
  return endpoint->inner->probe(endpoint->end);
}

typedef struct report {
  rdt_endpoint *endpoint;
  const rdt_events *events;
} report;

static void pass_notification(void *context, uint64_t immediate, const void *data, size_t size) {
  const rdt_events *events = ((report *)context)->events;
  events->notified(events->context, immediate, data, size);
}

static void pass_completion(void *context, rdt_request *request, rdt_status status) {
  rdt_endpoint *endpoint = ((report *)context)->endpoint;
  const rdt_events *events = ((report *)context)->events;
  misread_now(endpoint, request, status == RDT_OK);
  if (status == RDT_OK && !atomic_load(&endpoint->stopped)) {
    int64_t due = choose_report(endpoint, &status);
    if (due > 0 && rdt_held_add(&endpoint->held, request, false, status, due)) return;
    if (status < 0) rdt_held_broken(endpoint->peer);
  }
  events->completed(events->context, request, status);
}

static int fault_poll(rdt_endpoint *endpoint, int budget, const rdt_events *events) {
  report own = {endpoint, events};
  rdt_events passed = {&own, pass_notification, pass_completion};
  int taken = endpoint->inner->poll(endpoint->end, budget, &passed);
  if (taken < 0) return taken;
  taken += rdt_held_report(&endpoint->held, rdt_now_us(), endpoint->peer, events);
  if (taken > 0 && happens(endpoint, RDT_FAULT_STALL))
    usleep((useconds_t)rdt_fault_us(RDT_FAULT_STALL));
  if (!atomic_load(&endpoint->broken) || endpoint->reported || atomic_load(&endpoint->stopped))
    return taken;
  endpoint->reported = true;
  return rdt_held_broken(endpoint->peer);
}

static bool fault_arm(rdt_endpoint *endpoint, bool may_take, bool completions) {
  bool quiet = endpoint->inner->arm(endpoint->end, may_take, completions);
  return quiet && !poll_is_due(endpoint);
}

static void fault_disarm(rdt_endpoint *endpoint) { endpoint->inner->disarm(endpoint->end); }

static uint64_t fault_silence(rdt_endpoint *endpoint) {
  return endpoint->inner->silence(endpoint->end);
}

static int fault_event_fd(const rdt_endpoint *endpoint) {
  return endpoint->inner->event_fd(endpoint->end);
}

static rdt_status create(const rdt_transport *inner, rdt_domain *domain,
                         rdt_endpoint **endpoint_out, rdt_bundle *offer) {
  rdt_endpoint *endpoint = calloc(1, sizeof(*endpoint));
  offer->fds.count = 0;
  if (!endpoint) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = inner->endpoint_create(domain, &endpoint->end, offer);
  if (status != RDT_OK) {
    free(endpoint);
    return status;
  }
  endpoint->inner = inner;
  rdt_held_init(&endpoint->held);
  pthread_mutex_init(&endpoint->lock, NULL);
  *endpoint_out = endpoint;
  return RDT_OK;
}

static rdt_status fault_connect(rdt_endpoint *endpoint, const char *peer, rdt_bundle *offer) {
  snprintf(endpoint->peer, sizeof(endpoint->peer), "%s", peer);
  if (happens(endpoint, RDT_FAULT_HANG)) usleep((useconds_t)rdt_fault_us(RDT_FAULT_HANG));
  if (happens(endpoint, RDT_FAULT_CONNECT))
    return rdt_fail(RDT_ERR_UNREACHABLE, "there is no way to %s (a fault was injected)", peer);
  return endpoint->inner->endpoint_connect(endpoint->end, peer, offer);
}

static uint32_t fault_data_connection_count(const rdt_endpoint *endpoint) {
  return endpoint->inner->data_connection_count(endpoint->end);
}

static rdt_status fault_data_connection_add(rdt_endpoint *endpoint, uint32_t index,
                                            rdt_socket socket) {
  return endpoint->inner->data_connection_add(endpoint->end, index, socket);
}

static void fault_stop(rdt_endpoint *endpoint) {
  atomic_store(&endpoint->stopped, true);
  if (endpoint->inner->endpoint_stop) endpoint->inner->endpoint_stop(endpoint->end);
}

static bool fault_idle(const rdt_endpoint *endpoint) {
  const rdt_transport *inner = endpoint->inner;
  return rdt_held_none(&endpoint->held) &&
         (!inner->endpoint_idle || inner->endpoint_idle(endpoint->end));
}

static void take_long_to_destroy(const rdt_endpoint *endpoint) {
  if (!happens(endpoint, RDT_FAULT_DESTROY)) return;
  const int64_t end = rdt_now_us() + rdt_fault_us(RDT_FAULT_DESTROY);
  while (rdt_fault_possible(RDT_FAULT_DESTROY) && rdt_now_us() < end) usleep(1000);
}

static void fault_sever(rdt_endpoint *endpoint) {
  take_long_to_destroy(endpoint);
  if (endpoint->inner->endpoint_sever) endpoint->inner->endpoint_sever(endpoint->end);
}

static void fault_abort(rdt_endpoint *endpoint, const rdt_events *events) {
  if (endpoint->inner->endpoint_abort) endpoint->inner->endpoint_abort(endpoint->end, events);
  rdt_held_report(&endpoint->held, RDT_HELD_NEVER, endpoint->peer, events);
}

static void fault_destroy(rdt_endpoint *endpoint) {
  take_long_to_destroy(endpoint);
  endpoint->inner->endpoint_destroy(endpoint->end);
  while (endpoint->misread) misread_now(endpoint, endpoint->misread->request, false);
  rdt_held_destroy(&endpoint->held);
  pthread_mutex_destroy(&endpoint->lock);
  free(endpoint);
}

static uint64_t fault_max_notify(const rdt_endpoint *endpoint) {
  return endpoint->inner->max_notify(endpoint->end);
}

static rdt_status enroll(const rdt_transport *inner, rdt_domain *domain,
                         const rdt_region_memory *memory, rdt_registration **registration) {
  if (rdt_faults_concern(inner->name) && rdt_fault_happens(RDT_FAULT_REGISTER, inner->name))
    return rdt_fail(RDT_ERR_LIMIT, "cannot pin %llu bytes of memory (a fault was injected)",
                    (unsigned long long)memory->size);
  return inner->region_register(domain, memory, registration);
}

static rdt_status import(const rdt_transport *inner, const rdt_region_memory *claimed,
                         rdt_bundle *bundle, rdt_mapping **mapping) {
  if (rdt_faults_concern(inner->name) && rdt_fault_happens(RDT_FAULT_MAP, inner->name))
    return rdt_fail(RDT_ERR_NO_MEMORY, "cannot map %llu bytes of a peer (a fault was injected)",
                    (unsigned long long)claimed->size);
  return inner->region_import(claimed, bundle, mapping);
}

/* These functions have no argument that identifies the transport, so each transport gets its
 * own. */
#define BOUND(index)                                                                     \
  static rdt_status create_##index(rdt_domain *domain, rdt_endpoint **endpoint,          \
                                   rdt_bundle *offer) {                                  \
    return create(rdt_transports[index], domain, endpoint, offer);                       \
  }                                                                                      \
  static rdt_status enroll_##index(rdt_domain *domain, const rdt_region_memory *memory,  \
                                   rdt_registration **registration) {                    \
    return enroll(rdt_transports[index], domain, memory, registration);                  \
  }                                                                                      \
  static rdt_status import_##index(const rdt_region_memory *claimed, rdt_bundle *bundle, \
                                   rdt_mapping **mapping) {                              \
    return import(rdt_transports[index], claimed, bundle, mapping);                      \
  }
BOUND(0)
BOUND(1)
BOUND(2)
static const struct {
  rdt_status (*create)(rdt_domain *, rdt_endpoint **, rdt_bundle *);
  rdt_status (*enroll)(rdt_domain *, const rdt_region_memory *, rdt_registration **);
  rdt_status (*import)(const rdt_region_memory *, rdt_bundle *, rdt_mapping **);
} bound[] = {
    {create_0, enroll_0, import_0}, {create_1, enroll_1, import_1}, {create_2, enroll_2, import_2}};
_Static_assert(sizeof(bound) / sizeof(bound[0]) == RDT_MAX_TRANSPORTS, "one BOUND for each");

static rdt_transport wrapped[RDT_MAX_TRANSPORTS], unmapped[RDT_MAX_TRANSPORTS];

static void wrap(size_t index) {
  const rdt_transport *inner = rdt_transports[index];
  rdt_transport *outer = &wrapped[index];
  *outer = *inner;
  outer->synchronous = false;
  outer->endpoint_create = bound[index].create;
  outer->endpoint_connect = fault_connect;
  outer->data_connection_count = inner->data_connection_count ? fault_data_connection_count : NULL;
  outer->data_connection_add = inner->data_connection_add ? fault_data_connection_add : NULL;
  outer->endpoint_stop = fault_stop;
  outer->endpoint_idle = fault_idle;
  outer->endpoint_sever = fault_sever;
  outer->endpoint_abort = fault_abort;
  outer->endpoint_destroy = fault_destroy;
  outer->max_notify = fault_max_notify;
  outer->write = fault_write;
  outer->read = fault_read;
  outer->atomic = fault_atomic;
  outer->atomics = inner->atomics ? fault_atomics : NULL;
  outer->notify = fault_notify;
  outer->doorbell = fault_doorbell;
  outer->wants_doorbell = fault_wants_doorbell;
  outer->delivering = inner->delivering ? fault_delivering : NULL;
  outer->probe = inner->probe ? fault_probe : NULL;
  outer->region_grant = inner->region_grant ? fault_grant : NULL;
  outer->poll = fault_poll;
  outer->arm = fault_arm;
  outer->disarm = fault_disarm;
  outer->event_fd = fault_event_fd;
  outer->silence = inner->silence ? fault_silence : NULL;
  outer->region_register = bound[index].enroll;
  outer->region_import = bound[index].import;
  unmapped[index] = *outer;
  unmapped[index].capabilities &= ~(uint32_t)RDT_CAP_MAP;
}

static void wrap_all(void) {
  for (size_t i = 0; i < rdt_transport_count; i++) wrap(i);
}

const rdt_transport *rdt_fault_wrap(size_t index) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, wrap_all);
  /* What is used in place passes no link. */
  bool moved = rdt_fault_possible(RDT_FAULT_UNMAPPED) || rdt_link_emulated();
  return moved ? &unmapped[index] : &wrapped[index];
}
