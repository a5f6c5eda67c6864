// SPDX-License-Identifier: Apache-2.0
//
// Where a server's device listens, and what peers are told: they must be able to reach it from other
// hosts, and it must not be open to more of the network than the user's cluster is.
#ifndef RDMATENSOR_TENSORFLOW_PEER_LISTEN_ADDRESS_H_
#define RDMATENSOR_TENSORFLOW_PEER_LISTEN_ADDRESS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rdmatensor {

// The host of "host:port" or "[v6]:port", without brackets; the whole text if there is no port.
std::string HostOf(absl::string_view address);
// "host:port", with brackets around a numeric IPv6 host.
std::string JoinHostPort(absl::string_view host, absl::string_view port);
// True for 127.0.0.0/8 and ::1, numeric.
bool IsLoopback(absl::string_view host);
// True for 0.0.0.0 and ::, numeric: every address of the machine.
bool IsWildcard(absl::string_view host);
// The numeric addresses of `host`, best first; empty if it cannot be resolved. May block for as long as
// the system's resolver does.
std::vector<std::string> Resolve(const std::string& host);

// Opens something that listens on a numeric host; "host:port" where it does.
using OpenFn = std::function<absl::StatusOr<std::string>(const std::string& host)>;

// Opens on `bind_address` if the user gave one, else on the first address of `task_host` (this task's
// entry in the cluster) that belongs to this machine, else, with a warning, on the loopback address.
// Returns the host:port that peers are told, which never is a wildcard.
absl::StatusOr<std::string> OpenReachable(const std::string& bind_address,
                                          const std::string& task_host, const OpenFn& open);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_PEER_LISTEN_ADDRESS_H_
