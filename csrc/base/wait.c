/* SPDX-License-Identifier: Apache-2.0 */
#include "base/wait.h"

#include <errno.h>
#include <poll.h>

#include "base/status.h"

static _Thread_local int interrupt = -1;

void rdt_wait_interrupt_by(int fd) { interrupt = fd; }

rdt_status rdt_wait_ready(int fd, short events, rdt_deadline deadline, const char *what) {
  struct pollfd wait[] = {{.fd = fd, .events = events}, {.fd = interrupt, .events = POLLIN}};
  for (;;) {
    int ready = poll(wait, 2, rdt_deadline_left(deadline));
    if (ready > 0 && wait[1].revents) return rdt_fail(RDT_ERR_CLOSED, "the device is being closed");
    if (ready > 0) return RDT_OK;
    if (ready == 0) return rdt_fail(RDT_ERR_DEADLINE, "the peer did not answer in time (%s)", what);
    if (errno != EINTR) return rdt_fail_errno(errno, "poll");
  }
}
