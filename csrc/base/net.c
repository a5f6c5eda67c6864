/* SPDX-License-Identifier: Apache-2.0 */
#include "base/net.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/forks.h"
#include "base/resolve.h"
#include "base/status.h"
#include "base/wait.h"

void rdt_socket_close(rdt_socket *socket) {
  rdt_tls_free(socket->tls);
  rdt_forks_close(socket->fd);
  *socket = RDT_NO_SOCKET;
}

void rdt_fds_close(rdt_fds *fds) {
  while (fds->count > 0) close(fds->fd[--fds->count]);
}

int rdt_fds_take(rdt_fds *fds) {
  if (fds->count == 0) return -1;
  int fd = fds->fd[0];
  fds->count--;
  memmove(fds->fd, fds->fd + 1, (size_t)fds->count * sizeof(int));
  return fd;
}

rdt_status rdt_fds_check(const rdt_fds *fds) {
  return fds->lost ? rdt_fail(RDT_ERR_LIMIT,
                              "the peer's memory cannot be opened: this process has as many open "
                              "files as it may: raise the limit with ulimit -n")
                   : RDT_OK;
}

/* Splits "host:port" or "[v6]:port" into its parts. */
static rdt_status split_address(const char *address, char *host, size_t size, const char **port) {
  const char *colon = address ? strrchr(address, ':') : NULL;
  if (!colon || colon == address || !colon[1])
    return rdt_fail(RDT_ERR_INVALID, "\"%s\" is not an address: give host:port",
                    address ? address : "");
  /* The resolver would reduce a larger number modulo 65536. */
  if (strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
      strtoul(colon + 1, NULL, 10) > UINT16_MAX)
    return rdt_fail(RDT_ERR_INVALID, "\"%s\" is not an address: ports go up to %d", address,
                    UINT16_MAX);
  const char *start = address;
  size_t length = (size_t)(colon - address);
  if (*start == '[' && start[length - 1] == ']') {
    start++;
    length -= 2;
  }
  if (length >= size)
    return rdt_fail(RDT_ERR_INVALID, "the host name in \"%s\" is too long", address);
  memcpy(host, start, length);
  host[length] = '\0';
  *port = colon + 1;
  return RDT_OK;
}

static rdt_status describe(int socket, char *address) {
  struct sockaddr_storage bound;
  socklen_t length = sizeof(bound);
  char host[256], port[16];
  if (getsockname(socket, (struct sockaddr *)&bound, &length) != 0)
    return rdt_fail_errno(errno, "the own address cannot be told");
  int error = getnameinfo((struct sockaddr *)&bound, length, host, sizeof(host), port, sizeof(port),
                          NI_NUMERICHOST | NI_NUMERICSERV);
  if (error)
    return rdt_fail(RDT_ERR_SYSTEM, "the own address cannot be told: %s", gai_strerror(error));
  snprintf(address, RDT_ADDRESS_SIZE, bound.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
           port);
  return RDT_OK;
}

static void set_port(struct sockaddr *address, uint16_t port) {
  if (address->sa_family == AF_INET6)
    ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
  else
    ((struct sockaddr_in *)address)->sin_port = htons(port);
}

static rdt_status listen_at(const struct addrinfo *to, const char *host, uint16_t port,
                            int *socket_out, char *address) {
  int one = 1, fd = rdt_forks_socket(to->ai_family, SOCK_STREAM);
  if (fd < 0) return rdt_fail_errno(errno, "cannot create a socket");
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  rdt_status status = RDT_OK;
  set_port(to->ai_addr, port);
  if (bind(fd, to->ai_addr, to->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
    status = errno == EADDRINUSE ? RDT_ERR_LIMIT : RDT_ERR_SYSTEM;
    rdt_fail_errno(errno, "cannot listen on %s port %u", host, port);
  }
  if (status == RDT_OK) status = describe(fd, address);
  if (status == RDT_OK)
    *socket_out = fd;
  else
    rdt_forks_close(fd);
  return status;
}

rdt_status rdt_net_listen(const char *host, uint16_t first, uint16_t last, rdt_deadline deadline,
                          int *socket_out, char *address) {
  struct addrinfo *found;
  rdt_status status = rdt_resolve(host, "0", AI_PASSIVE, deadline, &found);
  if (status != RDT_OK) return status;
  for (const struct addrinfo *each = found; each; each = each->ai_next) {
    for (unsigned port = first; port <= last; port++) {
      status = listen_at(each, host, (uint16_t)port, socket_out, address);
      if (status != RDT_ERR_LIMIT) break;
    }
    if (status == RDT_OK) break;
  }
  freeaddrinfo(found);
  return status;
}

static rdt_status finish_connect(int fd, rdt_deadline deadline, const char *where) {
  int error = 0;
  socklen_t length = sizeof(error);
  rdt_status status = rdt_wait_ready(fd, POLLOUT, deadline, where);
  if (status != RDT_OK) return status;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error) {
    rdt_fail_errno(error, "cannot reach %s", where);
    return RDT_ERR_UNREACHABLE;
  }
  return RDT_OK;
}

static rdt_status connect_to(const struct sockaddr *to, socklen_t length, const char *where,
                             rdt_deadline deadline, int *socket_out) {
  int one = 1, fd = rdt_forks_socket(to->sa_family, SOCK_STREAM);
  rdt_status status = RDT_ERR_UNREACHABLE;
  if (fd < 0) return rdt_fail_errno(errno, "cannot create a socket");
  if (connect(fd, to, length) == 0 || errno == EINPROGRESS)
    status = finish_connect(fd, deadline, where);
  else
    rdt_fail_errno(errno, "cannot reach %s", where);
  if (status != RDT_OK) {
    rdt_forks_close(fd);
    return status;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  *socket_out = fd;
  return RDT_OK;
}

static int count(const struct addrinfo *each) {
  int addresses = 0;
  for (; each; each = each->ai_next) addresses++;
  return addresses;
}

/* An address that does not answer leaves the others of its name their share of the time. */
static rdt_deadline share(rdt_deadline deadline, int addresses) {
  return addresses > 1 ? rdt_deadline_after(rdt_deadline_left(deadline) / addresses) : deadline;
}

rdt_status rdt_net_connect(const char *address, rdt_deadline deadline, int *socket_out) {
  char host[256];
  const char *port = NULL;
  struct addrinfo *found;
  rdt_status status = split_address(address, host, sizeof(host), &port);
  if (status == RDT_OK) status = rdt_resolve(host, port, 0, deadline, &found);
  if (status != RDT_OK) return status;
  for (struct addrinfo *each = found; each; each = each->ai_next) {
    rdt_deadline its = share(deadline, count(each));
    status = connect_to(each->ai_addr, each->ai_addrlen, address, its, socket_out);
    if (status == RDT_OK || status == RDT_ERR_CLOSED) break;
  }
  freeaddrinfo(found);
  return status;
}

rdt_status rdt_net_reached(int other, rdt_reached *reached) {
  reached->length = sizeof(reached->address);
  if (getpeername(other, (struct sockaddr *)&reached->address, &reached->length) == 0)
    return RDT_OK;
  rdt_fail_errno(errno, "the peer is gone");
  return RDT_ERR_CONNECTION_LOST;
}

rdt_status rdt_net_connect_again(const rdt_reached *reached, const char *where,
                                 rdt_deadline deadline, int *socket_out) {
  return connect_to((const struct sockaddr *)&reached->address, reached->length, where, deadline,
                    socket_out);
}

static rdt_status lost(int error) {
  if (error == ENOMEM || error == ENOBUFS) return rdt_fail_errno(error, "no memory for a message");
  if (error == EPIPE || error == ECONNRESET || error == 0)
    return rdt_fail(RDT_ERR_CONNECTION_LOST, "the peer closed the connection");
  rdt_fail_errno(error, "the connection to the peer broke");
  return RDT_ERR_CONNECTION_LOST;
}

static void attach_fds(struct msghdr *message, const rdt_fds *fds) {
  size_t bytes = sizeof(int) * (size_t)fds->count;
  message->msg_controllen = CMSG_SPACE(bytes);
  struct cmsghdr *header = CMSG_FIRSTHDR(message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(header), fds->fd, bytes);
}

/* Returns what the result of rdt_tls_send and rdt_tls_receive means. */
static rdt_status encrypted(ssize_t done, size_t *moved) {
  if (done < 0 && errno == EBADMSG)
    return rdt_fail(RDT_ERR_CONNECTION_LOST, "bytes came that the peer did not send so (TLS)");
  if (done <= 0) return done == 0 ? RDT_IN_PROGRESS : lost(errno);
  *moved = (size_t)done;
  return RDT_OK;
}

rdt_status rdt_net_send_part(rdt_socket socket, const uint8_t *data, size_t size,
                             const rdt_fds *fds, size_t *sent) {
  union {
    char bytes[CMSG_SPACE(sizeof(int) * RDT_MAX_FDS)];
    struct cmsghdr align;
  } control = {0};
  struct iovec part = {.iov_base = (void *)data, .iov_len = size};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (socket.tls) return encrypted(rdt_tls_send(socket.tls, &part, 1), sent);
  if (fds && fds->count > 0) {
    message.msg_control = control.bytes;
    attach_fds(&message, fds);
  }
  for (;;) {
    ssize_t done = sendmsg(socket.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done > 0) {
      *sent = (size_t)done;
      return RDT_OK;
    }
    if (done < 0 && errno == EAGAIN) return RDT_IN_PROGRESS;
    if (done == 0 || errno != EINTR) return lost(done < 0 ? errno : 0);
  }
}

rdt_status rdt_net_send(rdt_socket socket, const rdt_wire *wire, const rdt_fds *fds,
                        rdt_deadline deadline) {
  for (size_t sent = 0, more = 0; sent < wire->size; more = 0) {
    rdt_status status = rdt_net_send_part(socket, wire->data + sent, wire->size - sent,
                                          sent == 0 ? fds : NULL, &more);
    if (status == RDT_IN_PROGRESS) status = rdt_wait_ready(socket.fd, POLLOUT, deadline, "sending");
    if (status != RDT_OK) return status;
    sent += more;
  }
  return RDT_OK;
}

static void collect_fds(struct msghdr *message, rdt_fds *fds) {
  for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      if (fds && fds->count < RDT_MAX_FDS)
        fds->fd[fds->count++] = fd;
      else
        close(fd);
    }
  }
}

/* A packet of no bytes looks like the end of the stream. */
static bool has_ended(rdt_socket socket) {
  struct pollfd look = {.fd = socket.fd, .events = POLLRDHUP};
  return poll(&look, 1, 0) > 0;
}

/* Receives up to `size` bytes, or one packet. Returns RDT_IN_PROGRESS if there is nothing. */
static rdt_status receive_some(rdt_socket socket, uint8_t *to, size_t size, rdt_fds *fds,
                               size_t *received) {
  union {
    char bytes[CMSG_SPACE(sizeof(int) * RDT_MAX_FDS)];
    struct cmsghdr align;
  } control;
  for (;;) {
    struct iovec part = {.iov_base = to, .iov_len = size};
    if (socket.tls) return encrypted(rdt_tls_receive(socket.tls, &part, 1), received);
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t done = recvmsg(socket.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    int error = errno;
    if (done >= 0)
      collect_fds(&message,
                  fds); /* even an empty packet may bring descriptors, which are ours now */
    if (done > 0) {
      if (fds && (message.msg_flags & MSG_CTRUNC)) fds->lost = true;
      *received = (size_t)done;
      return RDT_OK;
    }
    if (done < 0 && error == EAGAIN) return RDT_IN_PROGRESS;
    if (done == 0 && !has_ended(socket))
      return rdt_fail(RDT_ERR_PROTOCOL, "the peer sent an empty message");
    if (done == 0 || error != EINTR) return lost(done < 0 ? error : 0);
  }
}

bool rdt_net_has_packets(rdt_socket socket) {
  int type = 0;
  socklen_t length = sizeof(type);
  return getsockopt(socket.fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

/* Returns the size of the message that starts in wire->data[0..have), as far as those bytes tell
 * it. */
static rdt_status message_size(const rdt_wire *wire, size_t have, size_t *size) {
  *size = RDT_WIRE_HEADER_SIZE;
  if (have < RDT_WIRE_HEADER_SIZE) return RDT_OK;
  size_t body;
  rdt_status status = rdt_wire_body_size(wire->data, &body);
  if (status == RDT_OK) *size += body;
  return status;
}

static rdt_status receive_stream(rdt_socket socket, rdt_wire *wire, size_t *have) {
  for (;;) {
    size_t wanted, more = 0;
    rdt_status status = message_size(wire, *have, &wanted);
    if (status != RDT_OK || *have == wanted) return status;
    status = receive_some(socket, wire->data + *have, wanted - *have, NULL, &more);
    if (status != RDT_OK) return status;
    *have += more;
  }
}

rdt_status rdt_net_receive_part(rdt_socket socket, rdt_wire *wire, size_t *have, rdt_fds *fds) {
  rdt_status status = rdt_net_has_packets(socket)
                          ? receive_some(socket, wire->data, sizeof(wire->data), fds, have)
                          : receive_stream(socket, wire, have);
  if (status == RDT_OK) status = rdt_wire_open(wire, *have);
  if (status != RDT_IN_PROGRESS) *have = 0;
  return status;
}

rdt_status rdt_net_receive(rdt_socket socket, rdt_wire *wire, rdt_fds *fds, rdt_deadline deadline) {
  size_t have = 0;
  rdt_status status;
  if (fds) *fds = (rdt_fds){.count = 0};
  while ((status = rdt_net_receive_part(socket, wire, &have, fds)) == RDT_IN_PROGRESS) {
    status = rdt_wait_ready(socket.fd, POLLIN, deadline, "receiving");
    if (status != RDT_OK) break;
  }
  if (status != RDT_OK && fds) rdt_fds_close(fds);
  return status;
}
