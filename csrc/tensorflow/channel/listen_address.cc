// SPDX-License-Identifier: Apache-2.0
#include "channel/listen_address.h"

#include <arpa/inet.h>

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

// Debian maps a machine's own name to a loopback address, which other machines cannot use.
void HintAtLoopback(const std::string& task_host, absl::string_view listens) {
  if (!IsLoopback(HostOf(listens)) || IsNumeric(task_host) || task_host == "localhost") return;
  rdt_log_line(RDT_LOG_INFO,
               absl::StrCat("tensorflow: ", task_host, " resolves to ", HostOf(listens),
                            ", which other machines cannot reach: if the cluster has any, set "
                            "RDMATENSOR_BIND_ADDRESS to this machine's address in their network")
                   .c_str());
}

absl::StatusOr<std::string> OpenAsTheClusterSays(const std::string& task_host, const OpenFn& open) {
  const absl::StatusOr<std::string> there = open(task_host);
  if (there.ok()) {
    HintAtLoopback(task_host, *there);
    return JoinHostPort(IsWildcard(task_host) ? kLoopback : task_host, PortOf(*there));
  }
  // Another address does not help if the port is the user's choice and in use.
  if (absl::IsResourceExhausted(there.status())) return there;
  const absl::StatusOr<std::string> listens = open(kLoopback);
  if (listens.ok()) {
    rdt_log_line(
        RDT_LOG_WARN,
        absl::StrCat("tensorflow: cannot listen on this task's host in the cluster, ", task_host,
                     ", so only tasks on this machine can connect (", there.status().message(),
                     "): set RDMATENSOR_BIND_ADDRESS to an address of this machine that "
                     "the others can reach")
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

absl::StatusOr<std::string> OpenReachable(const std::string& bind_address,
                                          const std::string& task_host, const OpenFn& open) {
  if (bind_address.empty()) return OpenAsTheClusterSays(task_host, open);
  const absl::StatusOr<std::string> listens = open(HostOf(bind_address));
  if (!listens.ok() || !IsWildcard(HostOf(*listens))) return listens;
  return JoinHostPort(IsWildcard(task_host) ? kLoopback : task_host, PortOf(*listens));
}

}  // namespace rdmatensor
