/* SPDX-License-Identifier: Apache-2.0
 *
 * The rival of tcp's short writes: a ping-pong over one bare socket, whose ends poll for as long as the
 * transport's do, and then sleep.
 *
 * `bare serve HOST` prints the port that `bare HOST PORT SIZE SAMPLES EACH` connects to. Each of the SAMPLES
 * lines is a mean of EACH round trips, in microseconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SERVER_US 20.0 /* two fifths of SPIN_US */
#define CLIENT_US 50.0 /* the default of SPIN_US */
#define MOST 65536

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void check(int result, const char *what) {
  if (result >= 0) return;
  perror(what);
  exit(1);
}

/* Returns the number of bytes, or 0 at the end. */
static ssize_t receive(int socket, char *bytes, size_t size, double spin_us, int yields) {
  for (double end = now_us() + spin_us;;) {
    ssize_t got = recv(socket, bytes, size, MSG_DONTWAIT);
    if (got >= 0 || errno != EAGAIN) return got < 0 ? 0 : got;
    if (now_us() < end) {
      if (yields) sched_yield();
      continue;
    }
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    poll(&wait, 1, -1);
  }
}

static void echo(int socket) {
  static char bytes[MOST];
  for (ssize_t got; (got = receive(socket, bytes, sizeof(bytes), SERVER_US, 1)) > 0;)
    check((int)send(socket, bytes, (size_t)got, MSG_NOSIGNAL), "send");
  close(socket);
}

static int open_socket(const char *host, int port, struct sockaddr_in *address) {
  *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  inet_pton(AF_INET, host, &address->sin_addr);
  int made = socket(AF_INET, SOCK_STREAM, 0);
  check(made, "socket");
  return made;
}

static void set_no_delay(int socket) {
  int one = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void serve(const char *host) {
  struct sockaddr_in address;
  socklen_t length = sizeof(address);
  int listener = open_socket(host, 0, &address);
  check(bind(listener, (struct sockaddr *)&address, length), "bind");
  check(listen(listener, 1), "listen");
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    int socket = accept(listener, NULL, NULL);
    check(socket, "accept");
    set_no_delay(socket);
    echo(socket);
  }
}

static void turn(int socket, char *bytes, size_t size) {
  check((int)send(socket, bytes, size, MSG_NOSIGNAL), "send");
  for (size_t have = 0; have < size;) {
    ssize_t got = receive(socket, bytes + have, size - have, CLIENT_US, 0);
    if (got == 0) exit(1);
    have += (size_t)got;
  }
}

int main(int count, char **words) {
  static char bytes[MOST];
  struct sockaddr_in address;
  if (count == 3 && strcmp(words[1], "serve") == 0) serve(words[2]);
  if (count != 6) return 2;
  size_t size = strtoull(words[3], NULL, 10);
  long samples = atol(words[4]), each = atol(words[5]);
  int socket = open_socket(words[1], atoi(words[2]), &address);
  check(connect(socket, (struct sockaddr *)&address, sizeof(address)), "connect");
  set_no_delay(socket);
  for (long i = 0; size <= MOST && i < samples; i++) {
    double begin = now_us();
    for (long k = 0; k < each; k++) turn(socket, bytes, size);
    printf("%.4f\n", (now_us() - begin) / (double)each);
  }
  return 0;
}
