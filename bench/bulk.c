/* SPDX-License-Identifier: Apache-2.0
 *
 * The rival of tcp's long writes: bytes of a buffer as long as theirs over two bare sockets, with one thread
 * at each end. It shows what copies from and to such buffers cost; iperf3 uses the same short one again and
 * again.
 *
 * `bulk serve HOST SIZE` prints the port that `bulk HOST PORT SIZE SAMPLES EACH` connects to. Each of the
 * SAMPLES lines is the bandwidth of EACH buffers in MB/s.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

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

static struct sockaddr_in address_of(const char *host, int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

static int watch(const int *sockets, uint32_t events) {
  int set = check(epoll_create1(0), "epoll_create1");
  for (int i = 0; i < SOCKETS; i++) {
    struct epoll_event event = {.events = events, .data.fd = sockets[i]};
    check(epoll_ctl(set, EPOLL_CTL_ADD, sockets[i], &event), "epoll_ctl");
  }
  return set;
}

/* Sends or receives at the next place of the buffer. Returns the number of bytes, 0 if the socket takes or has
 * none now, or -1 at its end. */
static ssize_t move(int socket, bool sends, size_t most) {
  size_t part = size - at < MOST ? size - at : MOST;
  if (part > most) part = most;
  ssize_t done = sends ? send(socket, buffer + at, part, MSG_DONTWAIT | MSG_NOSIGNAL)
                       : recv(socket, buffer + at, part, MSG_DONTWAIT);
  if (done <= 0) return done < 0 && errno == EAGAIN ? 0 : -1;
  at = (at + (size_t)done) % size;
  return done;
}

static void receive_all(const int *sockets) {
  struct epoll_event events[SOCKETS];
  int set = watch(sockets, EPOLLIN), open = SOCKETS;
  while (open > 0) {
    int count = check(epoll_wait(set, events, SOCKETS, -1), "epoll_wait");
    for (int i = 0; i < count; i++) {
      if (move(events[i].data.fd, false, MOST) >= 0) continue;
      epoll_ctl(set, EPOLL_CTL_DEL, events[i].data.fd, NULL);
      open--;
    }
  }
  close(set);
}

static void send_all(const int *sockets, size_t bytes) {
  struct epoll_event events[SOCKETS];
  int set = watch(sockets, EPOLLOUT);
  while (bytes > 0) {
    int count = check(epoll_wait(set, events, SOCKETS, -1), "epoll_wait");
    for (int i = 0; i < count && bytes > 0; i++) {
      ssize_t done = move(events[i].data.fd, true, bytes);
      check((int)(done < 0 ? -1 : 0), "send");
      bytes -= (size_t)done;
    }
  }
  close(set);
}

static void serve(const char *host) {
  struct sockaddr_in address = address_of(host, 0);
  socklen_t length = sizeof(address);
  int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket"), sockets[SOCKETS];
  check(bind(listener, (struct sockaddr *)&address, length), "bind");
  check(listen(listener, SOCKETS), "listen");
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    for (int i = 0; i < SOCKETS; i++) sockets[i] = check(accept(listener, NULL, NULL), "accept");
    receive_all(sockets);
    check((int)send(sockets[0], "", 1, MSG_NOSIGNAL), "send");
    for (int i = 0; i < SOCKETS; i++) close(sockets[i]);
  }
}

static double bandwidth(const struct sockaddr_in *to, long each) {
  int sockets[SOCKETS];
  char all_are_there;
  for (int i = 0; i < SOCKETS; i++) {
    sockets[i] = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    check(connect(sockets[i], (const struct sockaddr *)to, sizeof(*to)), "connect");
  }
  double begin = now_us();
  send_all(sockets, size * (size_t)each);
  for (int i = 0; i < SOCKETS; i++) shutdown(sockets[i], SHUT_WR);
  check((int)recv(sockets[0], &all_are_there, 1, 0), "recv");
  double taken = now_us() - begin;
  for (int i = 0; i < SOCKETS; i++) close(sockets[i]);
  return (double)size * (double)each / taken;
}

int main(int count, char **words) {
  bool serves = count == 4 && strcmp(words[1], "serve") == 0;
  if (!serves && count != 6) return 2;
  size = strtoull(words[3], NULL, 10);
  buffer = size > 0 ? malloc(size) : NULL;
  if (!buffer) return 2;
  memset(buffer, 1, size);
  if (serves) serve(words[2]);
  struct sockaddr_in to = address_of(words[1], atoi(words[2]));
  for (long i = 0; i < atol(words[4]); i++) printf("%.4f\n", bandwidth(&to, atol(words[5])));
  return 0;
}
