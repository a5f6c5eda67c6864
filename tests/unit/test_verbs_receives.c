/* SPDX-License-Identifier: Apache-2.0
 *
 * Receives that all peers share: what one took is posted anew, however it ends. The device below is made up, since
 * none would take part in this: a completion queue that is filled here, and a receive queue that counts.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "transport/verbs/objects.h"
#include "unit.h"

#define CAPACITY 200 /* of the receive queue */

static int arrived; /* receives that are complete and that nobody has polled */
static int sends;   /* the same of what was posted here */
static int posted;  /* receives posted anew */
static unsigned flags = IBV_WC_WITH_IMM;

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions) {
  int given = 0;
  (void)cq;
  for (; given < count && arrived > 0; given++, arrived--)
    completions[given] = (struct ibv_wc){.wr_id = RDT_VERBS_RECEIVE_ID,
                                         .status = IBV_WC_SUCCESS,
                                         .wc_flags = flags,
                                         .imm_data = htonl(16)};
  for (; given < count && sends > 0; given++, sends--)
    completions[given] = (struct ibv_wc){.status = IBV_WC_WR_FLUSH_ERR};
  return given;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *first, struct ibv_recv_wr **bad) {
  (void)srq;
  for (struct ibv_recv_wr *each = first; each; each = each->next) {
    *bad = each;
    if (posted == CAPACITY) return ENOMEM;
    posted++;
  }
  return 0;
}

static struct ibv_context context = {.ops = {.poll_cq = poll_cq, .post_srq_recv = post_srq_recv}};
static struct ibv_cq cq = {.context = &context, .cqe = 150};
static struct ibv_srq srq = {.context = &context};
static rdt_domain domain = {
    .context = &context, .srq = &srq, .lock = PTHREAD_MUTEX_INITIALIZER, .max_receives = 1000};
static rdt_verbs_credit credits[2];

static rdt_endpoint endpoint(bool stopped) {
  posted = 0;
  return (rdt_endpoint){.domain = &domain,
                        .cq = &cq,
                        .credit_in = &credits[0],
                        .credit_out = &credits[1],
                        .stopped = stopped};
}

static int take(rdt_endpoint *polled) {
  const rdt_events events = {.context = NULL};
  return rdt_verbs_poll(polled, 0, &events);
}

/* It goes on sending while its channel comes to its end. */
static void test_stopped(void) {
  rdt_endpoint flooded = endpoint(true);
  arrived = 70;
  take(&flooded);
  EXPECT(arrived == 0 && posted == 70);
  arrived = 1;
  take(&flooded);
  EXPECT(posted == 71);
}

static void test_what_is_no_notification(void) {
  rdt_endpoint live = endpoint(false);
  flags = 0;
  arrived = RDT_VERBS_REPOST;
  EXPECT(take(&live) == RDT_ERR_CONNECTION_LOST);
  flags = IBV_WC_WITH_IMM;
  EXPECT(posted == RDT_VERBS_REPOST);
}

/* Nobody polls it any more. */
static void test_end(void) {
  rdt_endpoint ended = endpoint(true);
  arrived = 100;
  sends = 40;
  ended.stashed = true;
  ended.stash = (struct ibv_wc){.wr_id = RDT_VERBS_RECEIVE_ID};
  rdt_verbs_return_receives(&ended);
  EXPECT(arrived == 0 && sends == 0 && posted == 101);
}

/* So many that its completion queue overflowed: nobody knows how many. */
static void test_overflow(void) {
  rdt_endpoint ended = endpoint(true);
  atomic_store(&ended.broken, true);
  rdt_verbs_return_receives(&ended);
  EXPECT(posted == CAPACITY);
}

/* The same, before the device's event has said so. */
static void test_full(void) {
  rdt_endpoint ended = endpoint(true);
  arrived = cq.cqe;
  rdt_verbs_return_receives(&ended);
  EXPECT(posted == CAPACITY);
}

int main(void) {
  test_stopped();
  test_what_is_no_notification();
  test_end();
  test_overflow();
  test_full();
  return 0;
}
