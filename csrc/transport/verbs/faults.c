/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/faults.h"

#include <errno.h>
#include <pthread.h>

#include "base/faults.h"
#include "base/log.h"
#include "transport/verbs/objects.h"

/* The provider's functions. If there are several providers, those of the first one. */
static int (*real_poll)(struct ibv_cq *, int, struct ibv_wc *);
static int (*real_post)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);

static int poll_cq(struct ibv_cq *cq, int limit, struct ibv_wc *completions) {
  int found = real_poll(cq, limit, completions), count = found;
  for (int i = 0; i < found && count < limit; i++)
    if (completions[i].wr_id != RDT_VERBS_RECEIVE_ID &&
        rdt_fault_happens(RDT_FAULT_DUPLICATE, "a completion"))
      completions[count++] = completions[i];
  return count;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *requests, struct ibv_send_wr **bad) {
  if (!rdt_fault_happens(RDT_FAULT_REFUSE, "a list of work requests"))
    return real_post(qp, requests, bad);
  *bad = requests;
  return ENOMEM;
}

void rdt_verbs_faults_install(struct ibv_context *context) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (!real_poll) {
    real_poll = context->ops.poll_cq;
    real_post = context->ops.post_send;
  }
  bool known = context->ops.poll_cq == real_poll && context->ops.post_send == real_post;
  pthread_mutex_unlock(&lock);
  if (known) {
    context->ops.poll_cq = poll_cq;
    context->ops.post_send = post_send;
  } else {
    rdt_log(RDT_LOG_DEBUG, "verbs: faults of the device can be injected for one provider only");
  }
}
