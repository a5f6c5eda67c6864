/* SPDX-License-Identifier: Apache-2.0
 *
 * Two processes: one allocates a region, the other connects, writes into it, and notifies the first.
 *
 *   cc -I csrc/include examples/c/hello.c -o hello -L FOLDER -l:librdmatensor.so.0 -Wl,-rpath,FOLDER
 *   ./hello               listens, and prints its address
 *   ./hello HOST:PORT     connects to that address
 *
 * FOLDER is that of the Python package: python -c 'import rdmatensor; print(rdmatensor.__path__[0])'
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdmatensor.h"

#define ROOM 4096
#define PATIENCE_MS 30000

/* Ends the program with the reason if a call failed. */
static void check(rdt_status status, const char *what) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, rdt_status_name(status), rdt_last_error());
  exit(1);
}

/* Owns the memory, which the peer finds by its name. The number in the notification is the peer's word. */
static void serve(rdt_device *device) {
  rdt_region *region;
  rdt_region_info info;
  rdt_notification news;
  check(rdt_region_alloc(device, ROOM, RDT_ACCESS_WRITE, "mailbox", &region), "allocate");
  check(rdt_region_get_info(region, &info), "describe");
  printf("%s\n", rdt_device_address(device));
  fflush(stdout);
  /* The notification comes after the bytes that were written before it. */
  check(rdt_device_next_notification(device, PATIENCE_MS, &news), "wait");
  int length = news.immediate < ROOM ? (int)news.immediate : ROOM;
  printf("received: %.*s\n", length, (const char *)info.address);
  rdt_notification_clear(&news);
  rdt_region_close(region);
}

/* Writes into the peer's memory. The peer's processor takes no part in that. */
static void greet(rdt_device *device, const char *address) {
  static char text[] = "hello from another process";
  rdt_channel *channel;
  rdt_remote_region *mailbox;
  rdt_transfer *transfer;
  check(rdt_device_connect(device, address, RDT_TIMEOUT_DEFAULT, &channel), "connect");
  check(rdt_remote_region_find(channel, "mailbox", RDT_TIMEOUT_DEFAULT, &mailbox), "find");
  rdt_op op = {.kind = RDT_OP_WRITE_NOTIFY,
               .local = text,
               .size = strlen(text),
               .remote = mailbox,
               .immediate = strlen(text)};
  check(rdt_channel_submit(channel, &op, 1, &transfer), "write");
  /* NULL if the operation was complete at once. */
  if (transfer) check(rdt_transfer_wait(transfer, RDT_TIMEOUT_DEFAULT), "complete");
  rdt_transfer_free(transfer);
  rdt_remote_region_unref(mailbox);
  rdt_channel_unref(channel);
}

int main(int count, char **arguments) {
  rdt_device *device;
  check(rdt_device_open(NULL, &device), "open");
  if (count > 1)
    greet(device, arguments[1]);
  else
    serve(device);
  rdt_device_close(device);
  return 0;
}
