// SPDX-License-Identifier: Apache-2.0
#include "peer/listen_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rdmatensor.h"

namespace rdmatensor {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

absl::string_view PortOf(absl::string_view address) {
  return address.substr(address.rfind(':') + 1);
}

bool IsNumeric(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// Debian gives a machine's own name a loopback address: correct here, and useless to others.
void HintAtLoopback(const std::string& task_host, absl::string_view listens) {
  if (!IsLoopback(HostOf(listens)) || IsNumeric(task_host) || task_host == "localhost") return;
  rdt_log_line(
      RDT_LOG_INFO,
      absl::StrCat("tensorflow: ", task_host, " is ", HostOf(listens),
                   " here, which other machines cannot reach: if the cluster has some, set "
                   "RDMATENSOR_BIND_ADDRESS to this machine's address in their network")
          .c_str());
}

absl::StatusOr<std::string> OpenAsTheClusterSays(const std::string& task_host, const OpenFn& open) {
  absl::Status last = absl::UnavailableError("it cannot be resolved");
  for (const std::string& address : Resolve(task_host)) {
    const absl::StatusOr<std::string> listens = open(address);
    if (listens.ok()) {
      HintAtLoopback(task_host, *listens);
      return JoinHostPort(IsWildcard(task_host) ? kLoopback : task_host, PortOf(*listens));
    }
    last = listens.status();
  }
  const absl::StatusOr<std::string> listens = open(kLoopback);
  if (listens.ok()) {
    rdt_log_line(RDT_LOG_WARN,
                 absl::StrCat("tensorflow: this task's host in the cluster, ", task_host,
                              ", is no address of this machine, so only tasks on this machine can "
                              "connect (",
                              last.message(),
                              "): set RDMATENSOR_BIND_ADDRESS to an address that others reach")
                     .c_str());
  }
  return listens;
}

}  // namespace

std::string HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || absl::EndsWith(address, "]")) {
    // No port.
  } else if (address.find(':') == colon || address[0] == '[') {
    address = address.substr(0, colon);
  }
  if (absl::StartsWith(address, "[") && absl::EndsWith(address, "]")) {
    address = address.substr(1, address.size() - 2);
  }
  return std::string(address);
}

std::string JoinHostPort(absl::string_view host, absl::string_view port) {
  return host.find(':') == absl::string_view::npos ? absl::StrCat(host, ":", port)
                                                   : absl::StrCat("[", host, "]:", port);
}

bool IsLoopback(absl::string_view host) { return absl::StartsWith(host, "127.") || host == "::1"; }

bool IsWildcard(absl::string_view host) { return host == "0.0.0.0" || host == "::"; }

std::vector<std::string> Resolve(const std::string& host) {
  std::vector<std::string> addresses;
  addrinfo hints{};
  addrinfo* found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    char numeric[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, numeric, sizeof numeric, nullptr, 0,
                    NI_NUMERICHOST) == 0 &&
        std::find(addresses.begin(), addresses.end(), numeric) == addresses.end()) {
      addresses.emplace_back(numeric);
    }
  }
  freeaddrinfo(found);
  return addresses;
}

absl::StatusOr<std::string> OpenReachable(const std::string& bind_address,
                                          const std::string& task_host, const OpenFn& open) {
  if (bind_address.empty()) return OpenAsTheClusterSays(task_host, open);
  const absl::StatusOr<std::string> listens = open(HostOf(bind_address));
  if (!listens.ok() || !IsWildcard(HostOf(*listens))) return listens;
  return JoinHostPort(IsWildcard(task_host) ? kLoopback : task_host, PortOf(*listens));
}

}  // namespace rdmatensor
