/* SPDX-License-Identifier: Apache-2.0
 *
 * A device whose driver says that it is gone: SoftRoCE's never does, so a pipe stands in for the file through
 * which the kernel tells. What is behind the file is real. Skips without a device.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "core/objects.h"
#include "transport/registry.h"
#include "transport/verbs/objects.h"
#include "unit.h"

#define SKIP 77

/* As the kernel writes it: struct ib_uverbs_async_event_desc. */
typedef struct told {
  uint64_t element;
  uint32_t type, reserved;
} told;

static atomic_int down;

static void on_down(void *context, rdt_channel *channel, rdt_status why) {
  (void)context, (void)channel;
  EXPECT(why == RDT_ERR_CONNECTION_LOST);
  atomic_fetch_add(&down, 1);
}

static double cpu_seconds(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* Whether a second passes in which this process does next to nothing. */
static bool is_idle(void) {
  double before = cpu_seconds();
  usleep(1000000); /* silence is what is measured */
  return cpu_seconds() - before < 0.3;
}

/* The end of a pipe through which the device can be told what the kernel would tell. */
static int replace_kernel(rdt_device *device) {
  rdt_device_transport *own = &device->transports[rdt_transport_index(rdt_transport_find("verbs"))];
  int ends[2], file = own->domain->context->async_fd;
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &own->watch};
  EXPECT(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  EXPECT(dup2(ends[0], file) == file && close(ends[0]) == 0);
  EXPECT(epoll_ctl(device->epoll_fd, EPOLL_CTL_ADD, file, &event) == 0);
  return ends[1];
}

int main(void) {
  rdt_device *removed, *other;
  rdt_channel *channel;
  rdt_device_options options = {.struct_size = sizeof(options), .on_down = on_down};
  rdt_config_set("TRANSPORTS", "verbs");
  if (rdt_device_open(&options, &removed) == RDT_ERR_UNSUPPORTED) {
    printf("skipped: %s\n", rdt_last_error());
    return SKIP;
  }
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &other));
  EXPECT_STATUS(RDT_OK, rdt_device_connect(removed, rdt_device_address(other), -1, &channel));
  int kernel = replace_kernel(removed);
  told fatal = {.type = IBV_EVENT_DEVICE_FATAL};
  EXPECT(write(kernel, &fatal, sizeof(fatal)) == sizeof(fatal));
  /* From now on there is always something to read, as of a device that is gone. */
  EXPECT(close(kernel) == 0);
  EXPECT(becomes(&down, 1));
  rdt_op op = {.kind = RDT_OP_NOTIFY};
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, rdt_channel_post(channel, &op, 1, NULL, NULL));
  /* What the kernel said; that it says no more, of a channel that came in between; or, where both were faster
   * than the new channel, that the device failed. */
  EXPECT(strstr(rdt_last_error(), "local catastrophic error") ||
         strstr(rdt_last_error(), "the device was removed, or failed") ||
         strstr(rdt_last_error(), "its device failed meanwhile"));
  rdt_channel_unref(channel);
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST,
                rdt_device_connect(removed, rdt_device_address(other), -1, &channel));
  EXPECT(strstr(rdt_last_error(), "failed and was not opened again"));
  UNTIL(is_idle()); /* once what was begun has ended, the progress thread sleeps */
  rdt_device_close(other);
  rdt_device_close(removed);
  return 0;
}
