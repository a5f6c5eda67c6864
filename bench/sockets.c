/* SPDX-License-Identifier: Apache-2.0
 *
 * The rival of tcp: bare sockets with the same buffers.
 *
 *   turn    a ping-pong over one socket, whose ends poll for as long as the transport's do, and then sleep;
 *           in microseconds
 *   stream  a buffer of SIZE bytes over two sockets, with one thread at each end; in microseconds. It shows
 *           what copies from and to such buffers cost; iperf3 uses the same short one again and again.
 *
 * `sockets serve TEST HOST SIZE` prints the port that `sockets TEST HOST PORT SIZE SAMPLES EACH` connects to.
 * Each of the SAMPLES lines is a mean of EACH turns or buffers.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SERVER_US 20.0 /* two fifths of SPIN_US */
#define CLIENT_US 50.0 /* the default of SPIN_US */
#define SOCKETS 2
#define MOST (1u << 20) /* bytes moved by one call */

static size_t size, at;
static char *buffer;

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int check(int result, const char *what) {
  if (result >= 0) return result;
  perror(what);
  exit(1);
}

static int open_socket(const char *host, int port, struct sockaddr_in *address) {
  *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  inet_pton(AF_INET, host, &address->sin_addr);
  return check(socket(AF_INET, SOCK_STREAM, 0), "socket");
}

static void set_no_delay(int socket) {
  int one = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* Returns the number of bytes, or 0 at the end. */
static size_t receive(int socket, char *bytes, size_t most, double spin_us, bool yields) {
  for (double end = now_us() + spin_us;;) {
    ssize_t got = recv(socket, bytes, most, MSG_DONTWAIT);
    if (got >= 0 || errno != EAGAIN) return got < 0 ? 0 : (size_t)got;
    if (now_us() < end) {
      if (yields) sched_yield();
      continue;
    }
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    poll(&wait, 1, -1);
  }
}

static void echo(int socket) {
  for (size_t got; (got = receive(socket, buffer, size, SERVER_US, true)) > 0;)
    check((int)send(socket, buffer, got, MSG_NOSIGNAL), "send");
}

static void turn(int socket) {
  check((int)send(socket, buffer, size, MSG_NOSIGNAL), "send");
  for (size_t have = 0; have < size;) {
    size_t got = receive(socket, buffer + have, size - have, CLIENT_US, false);
    if (got == 0) exit(1);
    have += got;
  }
}

/* Sends or receives at the next place of the buffer, over whatever socket can. Returns false if the other end
 * has closed one. */
static bool move(const int *sockets, bool sends, size_t left) {
  struct pollfd waits[SOCKETS];
  for (int i = 0; i < SOCKETS; i++)
    waits[i] = (struct pollfd){.fd = sockets[i], .events = sends ? POLLOUT : POLLIN};
  while (left > 0) {
    check(poll(waits, SOCKETS, -1), "poll");
    for (int i = 0; i < SOCKETS && left > 0; i++) {
      if (!waits[i].revents) continue;
      size_t part = size - at < MOST ? size - at : MOST;
      if (part > left) part = left;
      ssize_t done = sends ? send(waits[i].fd, buffer + at, part, MSG_DONTWAIT | MSG_NOSIGNAL)
                           : recv(waits[i].fd, buffer + at, part, MSG_DONTWAIT);
      if (done > 0) {
        at = (at + (size_t)done) % size;
        left -= (size_t)done;
      } else if (done == 0 || errno != EAGAIN) {
        return false;
      }
    }
  }
  return true;
}

static void serve(const char *host, int count) {
  struct sockaddr_in address;
  socklen_t length = sizeof(address);
  int listener = open_socket(host, 0, &address), sockets[SOCKETS];
  check(bind(listener, (struct sockaddr *)&address, length), "bind");
  check(listen(listener, SOCKETS), "listen");
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    for (int i = 0; i < count; i++) sockets[i] = check(accept(listener, NULL, NULL), "accept");
    for (int i = 0; i < count; i++) set_no_delay(sockets[i]);
    if (count == 1) echo(sockets[0]);
    while (count > 1 && move(sockets, false, size))
      check((int)send(sockets[0], "", 1, MSG_NOSIGNAL), "send");
    for (int i = 0; i < count; i++) close(sockets[i]);
  }
}

/* The mean time of EACH turns or buffers, in microseconds. */
static double sample(const int *sockets, int count, long each) {
  char arrived;
  double begin = now_us();
  for (long i = 0; i < each && count == 1; i++) turn(sockets[0]);
  if (count > 1 && !move(sockets, true, size * (size_t)each)) check(-1, "send");
  for (long i = 0; i < each && count > 1; i++)
    if (recv(sockets[0], &arrived, 1, 0) != 1) exit(1);
  return (now_us() - begin) / (double)each;
}

int main(int count, char **words) {
  bool serves = count == 5 && strcmp(words[1], "serve") == 0;
  if (!serves && count != 7) return 2;
  int several = strcmp(words[serves ? 2 : 1], "turn") == 0 ? 1 : SOCKETS, sockets[SOCKETS];
  size = strtoull(words[4], NULL, 10);
  buffer = size > 0 ? malloc(size) : NULL;
  if (!buffer) return 2;
  memset(buffer, 1, size);
  if (serves) serve(words[3], several);
  for (int i = 0; i < several; i++) {
    struct sockaddr_in to;
    sockets[i] = open_socket(words[2], atoi(words[3]), &to);
    check(connect(sockets[i], (struct sockaddr *)&to, sizeof(to)), "connect");
    set_no_delay(sockets[i]);
  }
  for (long i = 0; i < atol(words[5]); i++)
    printf("%.4f\n", sample(sockets, several, atol(words[6])));
  return 0;
}
