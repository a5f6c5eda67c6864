// SPDX-License-Identifier: Apache-2.0
#include "receive/whereabouts.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "channel/task_call.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

Whereabouts Read(const absl::StatusOr<std::string>& encoded, const std::string& task,
                 int timeout_ms) {
  const absl::Status& status = encoded.status();
  Whereabouts found;
  if (absl::IsUnavailable(status) || absl::IsCancelled(status)) {
    found.status = absl::UnavailableError(
        absl::StrCat("rdmatensor: ", task, " does not answer: ", status.message()));
  } else if (absl::IsDeadlineExceeded(status)) {
    found.why_none = absl::StrCat("it did not answer within ", timeout_ms, " ms");
    found.may_heal = true;
  } else if (!status.ok()) {
    found.why_none =
        "its server has no grpc+rdma (stock protocol, or the plugin is not loaded there)";
  } else if (!Parse(*encoded, &found.answer)) {
    found.why_none = "its answer is malformed";
  } else if (found.answer.version != kProtocolVersion) {
    found.why_none =
        absl::StrCat("it speaks version ", found.answer.version,
                     " of the tensor protocol, this process version ", kProtocolVersion);
  } else if (found.answer.address.empty()) {
    found.why_none = "its server could not open a device";
  }
  return found;
}

}  // namespace

void AskWhereabouts(std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
                    const std::string& task, const std::string& asker, int timeout_ms,
                    std::function<void(const Whereabouts&)> done) {
  tsl::Env::Default()->SchedClosure(
      [workers = std::move(workers), task, asker, timeout_ms, done = std::move(done)] {
        AskTask(workers.get(), task, asker, kAddressKey, "", timeout_ms,
                [workers, task, timeout_ms, done](const absl::StatusOr<std::string>& encoded) {
                  // What follows blocks, and this thread belongs to TensorFlow's RPC.
                  tsl::Env::Default()->SchedClosure(
                      [workers, done, found = Read(encoded, task, timeout_ms)] { done(found); });
                });
      });
}

}  // namespace rdmatensor
