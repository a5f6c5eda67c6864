/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/socket_io.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include "base/config.h"
#include "base/status.h"

/* Short messages are one buffer. They need no list of buffers, which the kernel would copy. */
#define SEND_FLAGS (MSG_NOSIGNAL | MSG_DONTWAIT)

/* Returns whether both ends of the connection are at one address. */
static bool stays_here(int socket) {
  struct sockaddr_storage near = {0}, far = {0};
  socklen_t size = sizeof(near);
  if (getsockname(socket, (struct sockaddr *)&near, &size) != 0) return false;
  size = sizeof(far);
  if (getpeername(socket, (struct sockaddr *)&far, &size) != 0) return false;
  if (near.ss_family != far.ss_family) return false;
  const struct sockaddr_in *const near4 = (const void *)&near, *const far4 = (const void *)&far;
  const struct sockaddr_in6 *const near6 = (const void *)&near, *const far6 = (const void *)&far;
  if (near.ss_family == AF_INET) return near4->sin_addr.s_addr == far4->sin_addr.s_addr;
  return near.ss_family == AF_INET6 &&
         memcmp(&near6->sin6_addr, &far6->sin6_addr, sizeof(near6->sin6_addr)) == 0;
}

rdt_status rdt_tcp_socket_open(int socket) {
  int one = 1, flags = fcntl(socket, F_GETFL);
  /* Probes come every third of the deadline; what they find must end within the rest of it. */
  unsigned timeout_ms = (unsigned)(rdt_config_number(RDT_CONFIG_DEADLINE_MS) * 2 / 3 + 1);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
  /* Such a connection shares no network, where a control that sends by a clock, like bbr, would only delay it.
   * Every program may choose this one. */
  static const char prompt[] = "reno";
  if (stays_here(socket))
    setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, prompt, sizeof(prompt) - 1);
  if (flags >= 0 && fcntl(socket, F_SETFL, flags | O_NONBLOCK) == 0) return RDT_OK;
  return rdt_fail_errno(errno, "cannot prepare a socket");
}

ssize_t rdt_tcp_socket_send(rdt_socket socket, struct iovec *parts, int count) {
  if (socket.tls) return rdt_tls_send(socket.tls, parts, count);
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
  for (;;) {
    ssize_t done = count == 1 ? send(socket.fd, parts->iov_base, parts->iov_len, SEND_FLAGS)
                              : sendmsg(socket.fd, &message, SEND_FLAGS);
    if (done >= 0) return done;
    if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) return 0;
    if (errno != EINTR) return -1;
  }
}

ssize_t rdt_tcp_socket_receive_held(rdt_socket socket, struct iovec *parts, int count) {
  return socket.tls ? rdt_tls_receive_held(socket.tls, parts, count) : 0;
}

ssize_t rdt_tcp_socket_receive(rdt_socket socket, struct iovec *parts, int count) {
  if (socket.tls) return rdt_tls_receive(socket.tls, parts, count);
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
  for (;;) {
    ssize_t done = count == 1 ? recv(socket.fd, parts->iov_base, parts->iov_len, MSG_DONTWAIT)
                              : recvmsg(socket.fd, &message, MSG_DONTWAIT);
    if (done > 0) return done;
    if (done == 0) errno = ECONNRESET;
    if (done < 0 && errno == EAGAIN) return 0;
    if (done == 0 || errno != EINTR) return -1;
  }
}

void rdt_tcp_socket_quiet(rdt_socket socket, bool quiet) {
  const int bytes = quiet ? RDT_TCP_QUIET_BYTES : 1;
  setsockopt(socket.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
}

/* Since Linux 4.18, bytes that are there make an event when the limit falls below them. */
bool rdt_tcp_socket_can_be_quiet(void) {
  struct utsname name;
  int major = 0, minor = 0;
  return uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
         (major > 4 || (major == 4 && minor >= 18));
}

uint64_t rdt_tcp_socket_unconfirmed(int socket) {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? (uint64_t)bytes : 0;
}
