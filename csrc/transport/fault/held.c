/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fault/held.h"

#include <stdlib.h>

#include "base/config.h"
#include "base/status.h"

typedef struct rdt_held_piece {
  struct rdt_held_piece *next;
  rdt_request *request;
  rdt_status status;
  int64_t due_us;
} piece;

void rdt_held_init(rdt_held *held) { pthread_mutex_init(&held->lock, NULL); }

void rdt_held_destroy(rdt_held *held) { pthread_mutex_destroy(&held->lock); }

bool rdt_held_add(rdt_held *held, rdt_request *request, bool fresh, rdt_status status,
                  int64_t due_us) {
  piece *added = malloc(sizeof(*added));
  if (!added) return false;
  if (fresh) rdt_request_hold(request); /* before poll can find the piece */
  pthread_mutex_lock(&held->lock);
  *added = (piece){held->first, request, status, due_us};
  held->first = added;
  atomic_fetch_add(&held->count, 1);
  if (due_us != RDT_HELD_NEVER) atomic_fetch_add(&held->due, 1);
  pthread_mutex_unlock(&held->lock);
  return true;
}

/* Takes the pieces that are due by `now_us` off the list. */
static piece *take_due(rdt_held *held, int64_t now_us) {
  piece *due = NULL;
  pthread_mutex_lock(&held->lock);
  for (piece **link = &held->first; *link;) {
    piece *each = *link;
    if (each->due_us > now_us) {
      link = &each->next;
      continue;
    }
    *link = each->next;
    each->next = due;
    due = each;
    if (each->due_us != RDT_HELD_NEVER) atomic_fetch_sub(&held->due, 1);
  }
  pthread_mutex_unlock(&held->lock);
  return due;
}

int rdt_held_report(rdt_held *held, int64_t now_us, const char *peer, const rdt_events *events) {
  int count = 0;
  if (rdt_held_none(held)) return 0;
  for (piece *each = take_due(held, now_us), *next; each; each = next, count++) {
    next = each->next;
    rdt_status status = each->due_us == RDT_HELD_NEVER ? RDT_ERR_CONNECTION_LOST : each->status;
    if (status < 0) rdt_held_broken(peer);
    events->completed(events->context, each->request, status);
    atomic_fetch_sub(&held->count, 1); /* only now is the endpoint idle */
    free(each);
  }
  return count;
}

bool rdt_held_none(const rdt_held *held) { return atomic_load(&held->count) == 0; }

bool rdt_held_due(const rdt_held *held) { return atomic_load(&held->due) > 0; }

rdt_status rdt_held_broken(const char *peer) {
  return rdt_fail(RDT_ERR_CONNECTION_LOST,
                  "a fault was injected into the connection to %s (%sFAULTS)", peer,
                  RDT_ENV_PREFIX);
}
