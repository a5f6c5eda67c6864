/* SPDX-License-Identifier: Apache-2.0 */
#include "core/meet/admission.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"

#define COMPLAINT_MS 60000
#define TOTAL_LIMITS 16 /* all peers together may allocate so many times the limit of one */

/* Converts an address to IPv6. Returns false for other families. */
static bool address_of(const struct sockaddr *from, struct in6_addr *address) {
  if (from && from->sa_family == AF_INET6) {
    *address = ((const struct sockaddr_in6 *)from)->sin6_addr;
    return true;
  }
  if (!from || from->sa_family != AF_INET) return false;
  memset(address, 0, sizeof(*address));
  address->s6_addr[10] = address->s6_addr[11] = 0xff;
  memcpy(address->s6_addr + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
  return true;
}

static bool is_loopback(const struct in6_addr *address) {
  return IN6_IS_ADDR_LOOPBACK(address) ||
         (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr[12] == 127);
}

static bool is_of_an_interface(const struct in6_addr *wanted) {
  struct ifaddrs *all, *each;
  struct in6_addr address;
  if (getifaddrs(&all) != 0) return false;
  for (each = all; each; each = each->ifa_next)
    if (address_of(each->ifa_addr, &address) && IN6_ARE_ADDR_EQUAL(&address, wanted)) break;
  freeifaddrs(all);
  return each != NULL;
}

/* Returns true if the address is this machine's. It is if the connection has it at both ends. */
static bool is_own(int socket, const struct in6_addr *peer) {
  struct sockaddr_storage bound;
  struct in6_addr own;
  socklen_t length = sizeof(bound);
  if (is_loopback(peer)) return true;
  if (getsockname(socket, (struct sockaddr *)&bound, &length) == 0 &&
      address_of((struct sockaddr *)&bound, &own) && IN6_ARE_ADDR_EQUAL(&own, peer))
    return true;
  return is_of_an_interface(peer);
}

rdt_status rdt_origin_of(int socket, rdt_origin *origin) {
  struct sockaddr_storage from;
  struct in6_addr peer = in6addr_any;
  socklen_t length = sizeof(from);
  if (getpeername(socket, (struct sockaddr *)&from, &length) != 0) {
    rdt_fail_errno(errno, "the peer is gone");
    return RDT_ERR_CONNECTION_LOST;
  }
  bool is_local = from.ss_family == AF_UNIX;
  origin->this_host =
      is_local || (address_of((struct sockaddr *)&from, &peer) && is_own(socket, &peer));
  if (origin->this_host)
    snprintf(origin->host, sizeof(origin->host), is_local ? "this user" : "this host");
  else if (IN6_IS_ADDR_V4MAPPED(&peer))
    inet_ntop(AF_INET, peer.s6_addr + 12, origin->host, sizeof(origin->host));
  else
    inet_ntop(AF_INET6, &peer, origin->host, sizeof(origin->host));
  memcpy(origin->network, origin->host, sizeof(origin->network));
  if (origin->this_host || IN6_IS_ADDR_V4MAPPED(&peer)) return RDT_OK;
  memset(peer.s6_addr + 8, 0, 8);
  inet_ntop(AF_INET6, &peer, origin->network, sizeof(origin->network));
  return RDT_OK;
}

rdt_status rdt_origin_check(const rdt_origin *origin, const char *device) {
  if (origin->this_host || rdt_config_number(RDT_CONFIG_INSECURE)) return RDT_OK;
  return rdt_fail(
      RDT_ERR_REFUSED,
      "%s is another host, and %s has no secret to tell its peers from others: set " RDT_ENV_PREFIX
      "SECRET_FILE on all hosts (docs/security.md), or " RDT_ENV_PREFIX
      "INSECURE=1 if everybody who reaches them may read and write their regions",
      origin->host, device);
}

void rdt_admission_init(rdt_admission *admission) { pthread_mutex_init(&admission->lock, NULL); }

void rdt_admission_destroy(rdt_admission *admission) { pthread_mutex_destroy(&admission->lock); }

static rdt_guest *find_or_add(rdt_admission *admission, const char *host) {
  rdt_guest *each = admission->guests;
  while (each && strcmp(each->host, host) != 0) each = each->next;
  if (each) return each;
  each = calloc(1, sizeof(*each));
  if (!each) return NULL;
  snprintf(each->host, sizeof(each->host), "%s", host);
  each->next = admission->guests;
  return admission->guests = each;
}

static void forget_if_gone(rdt_admission *admission, rdt_guest *guest) {
  rdt_guest **link = &admission->guests;
  if (guest->channels > 0) return;
  while (*link != guest) link = &(*link)->next;
  *link = guest->next;
  free(guest);
}

static rdt_status too_many(uint64_t limit, const char *whose) {
  return rdt_fail(RDT_ERR_REFUSED,
                  "%s has %llu connections, and may have no more: " RDT_ENV_PREFIX "CONNECTIONS",
                  whose, (unsigned long long)limit);
}

static rdt_status enter(rdt_admission *admission, rdt_guest *guest) {
  uint64_t all = rdt_config_number(RDT_CONFIG_CONNECTIONS);
  uint64_t each = (all + 1) / 2; /* one host leaves places to others */
  if (admission->channels >= all) return too_many(all, "this device");
  if (guest->channels >= each) return too_many(each, guest->host);
  admission->channels++;
  guest->channels++;
  return RDT_OK;
}

rdt_status rdt_admission_enter(rdt_admission *admission, const char *host, rdt_guest **guest) {
  rdt_status status;
  pthread_mutex_lock(&admission->lock);
  rdt_guest *found = find_or_add(admission, host);
  status = found ? enter(admission, found) : rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  if (found) forget_if_gone(admission, found);
  pthread_mutex_unlock(&admission->lock);
  if (status == RDT_OK) *guest = found;
  return status;
}

void rdt_admission_leave(rdt_admission *admission, rdt_guest *guest) {
  if (!guest) return;
  pthread_mutex_lock(&admission->lock);
  admission->channels--;
  guest->channels--;
  forget_if_gone(admission, guest);
  pthread_mutex_unlock(&admission->lock);
}

rdt_status rdt_admission_reserve(rdt_admission *admission, uint64_t bytes) {
  uint64_t limit = TOTAL_LIMITS * rdt_config_number(RDT_CONFIG_REMOTE_ALLOC_LIMIT);
  pthread_mutex_lock(&admission->lock);
  bool room = bytes <= limit && admission->tenant_bytes <= limit - bytes;
  if (room) admission->tenant_bytes += bytes;
  pthread_mutex_unlock(&admission->lock);
  if (room) return RDT_OK;
  return rdt_fail(
      RDT_ERR_LIMIT,
      "%llu bytes more would exceed the %llu that all peers together may allocate here: "
      "raise " RDT_ENV_PREFIX "REMOTE_ALLOC_LIMIT",
      (unsigned long long)bytes, (unsigned long long)limit);
}

void rdt_admission_release(rdt_admission *admission, uint64_t bytes) {
  pthread_mutex_lock(&admission->lock);
  admission->tenant_bytes -= bytes;
  pthread_mutex_unlock(&admission->lock);
}

bool rdt_admission_may_complain(rdt_admission *admission, const char *host) {
  int64_t now = rdt_now_ms();
  size_t place = RDT_COMPLAINTS;
  pthread_mutex_lock(&admission->lock);
  for (size_t i = 0; i < RDT_COMPLAINTS; i++) {
    bool waits = admission->complaints[i].until > now;
    if (waits && strcmp(admission->complaints[i].host, host) == 0) {
      place = RDT_COMPLAINTS;
      break;
    }
    if (!waits) place = i;
  }
  if (place < RDT_COMPLAINTS) {
    snprintf(admission->complaints[place].host, sizeof(admission->complaints[place].host), "%s",
             host);
    admission->complaints[place].until = now + COMPLAINT_MS;
  }
  pthread_mutex_unlock(&admission->lock);
  return place < RDT_COMPLAINTS;
}
