/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices with a secret, among strangers: many connect at once, some say nothing, some leave in between. For
 * sanitizers; tests/security looks at each case by itself.
 */
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

#define SILENT 280 /* more than there are handshakes at once */
#define THREADS 6
#define CONNECTIONS 8 /* of each thread */

static const char secret[] = "a secret of this test alone\n";
static rdt_device *listener, *caller;
static atomic_int connected;

/* Devices opened from now on have the secret. */
static void give_secret(char *path) {
  int file = mkstemp(path);
  EXPECT(file >= 0 && write(file, secret, sizeof(secret) - 1) == sizeof(secret) - 1);
  close(file);
  EXPECT_STATUS(RDT_OK, rdt_config_set("SECRET_FILE", path));
}

static int knock(void) {
  const char *port = strrchr(rdt_device_address(listener), ':') + 1;
  struct sockaddr_in to = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)atoi(port)),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int line = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT(line >= 0 && connect(line, (struct sockaddr *)&to, sizeof(to)) == 0);
  return line;
}

static void *connect_again_and_again(void *unused) {
  for (int i = 0; i < CONNECTIONS; i++) {
    rdt_channel *channel;
    rdt_remote_region *region;
    EXPECT_STATUS(RDT_OK,
                  rdt_device_connect(caller, rdt_device_address(listener), 20000, &channel));
    EXPECT_STATUS(RDT_OK, rdt_remote_region_alloc(channel, 4096, RDT_ACCESS_WRITE, 20000, &region));
    atomic_fetch_add(&connected, 1);
    rdt_remote_region_unref(region);
    rdt_channel_close(channel);
    rdt_channel_unref(channel);
    close(knock()); /* and somebody who leaves at once */
  }
  return unused;
}

int main(void) {
  char path[] = "/tmp/test_admission_XXXXXX";
  pthread_t threads[THREADS];
  int silent[SILENT];
  give_secret(path);
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &listener));
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &caller));
  EXPECT(unlink(path) == 0); /* it was read */
  for (int i = 0; i < SILENT; i++) silent[i] = knock();
  for (int i = 0; i < THREADS; i++)
    EXPECT(pthread_create(&threads[i], NULL, connect_again_and_again, NULL) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  EXPECT(atomic_load(&connected) == THREADS * CONNECTIONS);
  rdt_device_close(listener); /* some still say nothing */
  rdt_device_close(caller);
  for (int i = 0; i < SILENT; i++) close(silent[i]);
  return 0;
}
