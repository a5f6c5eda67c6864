// SPDX-License-Identifier: Apache-2.0
//
// Where a server's device listens, and the address that peers get: other hosts must be able to reach it,
// and it must not be open to more of the network than the user's cluster is.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_LISTEN_ADDRESS_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_LISTEN_ADDRESS_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rdmatensor {

// Returns the host of "host:port" or "[v6]:port", without brackets; the whole text if there is no port.
std::string HostOf(absl::string_view address);
// "host:port", with brackets around a numeric IPv6 host.
std::string JoinHostPort(absl::string_view host, absl::string_view port);
// True for 127.0.0.0/8 and ::1, numeric.
bool IsLoopback(absl::string_view host);
// True for 0.0.0.0 and ::, numeric: every address of the machine.
bool IsWildcard(absl::string_view host);
// Opens a device that listens on `host`, a name or a numeric address, and returns its "host:port" with a
// numeric host. Must return in bounded time even when the name server does not answer, as rdt_device_open does.
using OpenFn = std::function<absl::StatusOr<std::string>(const std::string& host)>;

// Opens on `bind_address` if the user gave one, otherwise on `task_host`, this task's entry in the cluster.
// If that host cannot be resolved, or is not an address of this machine, warns and opens on the loopback
// address. Returns the host:port for peers, which is never a wildcard.
absl::StatusOr<std::string> OpenReachable(const std::string& bind_address,
                                          const std::string& task_host, const OpenFn& open);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_LISTEN_ADDRESS_H_
