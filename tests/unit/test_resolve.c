/* SPDX-License-Identifier: Apache-2.0
 *
 * A name server that does not answer: every call ends at its deadline, or with its device, and what hangs is
 * limited. A name with an address that does not answer: the other one is reached.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "unit.h"

#define HANGING "hangs.test:1"
#define MOST 64 /* lookups that were given up */
#define SILENT "127.0.0.2"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answers = PTHREAD_COND_INITIALIZER;
static bool answering;
static atomic_int asked;

/* Stands before libc's: of one name it knows nothing until the server answers. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **found) {
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
  if (strcmp(host, "two.test") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
    int error = real(SILENT, port, hints, found);
    return error ? error : real("127.0.0.1", port, hints, &(*found)->ai_next);
  }
  if (strcmp(host, "hangs.test") != 0 || (hints->ai_flags & AI_NUMERICHOST))
    return real(host, port, hints, found);
  atomic_fetch_add(&asked, 1);
  pthread_mutex_lock(&lock);
  while (!answering) pthread_cond_wait(&answers, &lock);
  pthread_mutex_unlock(&lock);
  return real("127.0.0.1", port, hints, found);
}

static int count_threads(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/task");
  EXPECT(folder);
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

static rdt_device *open_device(const char *address) {
  rdt_device *device;
  const rdt_device_options options = {.struct_size = sizeof(options), .bind_address = address};
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &device));
  return device;
}

/* Returns a socket that tells nobody who connects to it that it takes no more connections. */
static int listen_silently(uint16_t port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, SILENT, &at.sin_addr);
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(listener, 0) == 0);
  for (int i = 0; i < 4; i++) { /* these fill its queue; the process keeps them */
    int filler = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(filler, (struct sockaddr *)&at, sizeof(at));
  }
  return listener;
}

static void test_two_addresses(rdt_device *device) {
  rdt_channel *channel;
  char address[64];
  rdt_device *other = open_device("127.0.0.1");
  const char *port = strrchr(rdt_device_address(other), ':') + 1;
  int listener = listen_silently((uint16_t)atoi(port));
  snprintf(address, sizeof(address), "two.test:%s", port);
  EXPECT_STATUS(RDT_OK, rdt_device_connect(device, address, 4000, &channel));
  rdt_channel_unref(channel);
  rdt_device_close(other);
  EXPECT(rdt_device_connect(device, address, 400, &channel) < 0);
  close(listener);
}

static void test_deadline(rdt_device *device) {
  rdt_channel *channel;
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_device_connect(device, HANGING, 50, &channel));
  EXPECT(strstr(rdt_last_error(), "hangs.test was not resolved within the deadline"));
}

static void *connect_for_long(void *device) {
  rdt_channel *channel;
  EXPECT_STATUS(RDT_ERR_CLOSED, rdt_device_connect(device, HANGING, 1000000, &channel));
  return NULL;
}

static void test_close(void) {
  pthread_t thread;
  rdt_device *device = open_device("localhost");
  int before = atomic_load(&asked);
  EXPECT(pthread_create(&thread, NULL, connect_for_long, device) == 0);
  UNTIL(atomic_load(&asked) != before);
  rdt_device_interrupt(device);
  pthread_join(thread, NULL);
  rdt_device_close(device);
}

static void test_listening(void) {
  rdt_device *device;
  const rdt_device_options options = {.struct_size = sizeof(options), .bind_address = "hangs.test"};
  EXPECT_STATUS(RDT_OK, rdt_config_set("DEADLINE_MS", "50"));
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_device_open(&options, &device));
  EXPECT_STATUS(RDT_OK, rdt_config_set("DEADLINE_MS", "10000"));
}

/* The threads that hang are so many and no more; names that are addresses need none. */
static void test_limit(rdt_device *device, rdt_device *other) {
  rdt_channel *channel;
  int before = count_threads();
  for (int i = 0; i < 2 * MOST; i++) EXPECT(rdt_device_connect(device, HANGING, 1, &channel) < 0);
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_device_connect(device, HANGING, 1, &channel));
  EXPECT(strstr(rdt_last_error(), "the name server does not answer"));
  EXPECT(count_threads() <= before + MOST);
  EXPECT_STATUS(RDT_OK, rdt_device_connect(device, rdt_device_address(other), 20000, &channel));
  rdt_channel_close(channel);
  rdt_channel_unref(channel);
}

/* Once the server answers again, names can be looked up again. */
static void test_recovery(rdt_device *device, rdt_device *other) {
  rdt_channel *channel = NULL;
  char address[64];
  rdt_status status;
  rdt_deadline deadline = rdt_deadline_after(60000);
  pthread_mutex_lock(&lock);
  answering = true;
  pthread_cond_broadcast(&answers);
  pthread_mutex_unlock(&lock);
  snprintf(address, sizeof(address), "hangs.test%s", strrchr(rdt_device_address(other), ':'));
  while ((status = rdt_device_connect(device, address, 20000, &channel)) == RDT_ERR_LIMIT &&
         rdt_deadline_left(deadline) > 0)
    usleep(1000);
  EXPECT_STATUS(RDT_OK, status);
  rdt_channel_close(channel);
  rdt_channel_unref(channel);
}

int main(void) {
  EXPECT_STATUS(RDT_OK, rdt_config_set("TRANSPORTS", "shm"));
  rdt_device *device = open_device("localhost"), *other = open_device("127.0.0.1");
  test_two_addresses(device);
  test_deadline(device);
  test_close();
  test_listening();
  test_limit(device, other);
  test_recovery(device, other);
  rdt_device_close(device);
  rdt_device_close(other);
  return 0;
}
