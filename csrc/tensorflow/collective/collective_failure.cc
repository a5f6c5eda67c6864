// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_failure.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rdmatensor {
namespace {

using tensorflow::CollectiveParams;

// The core quotes details in its messages, where these characters delimit them.
constexpr char kDetailBegins = '{', kDetailEnds = '}';
constexpr absl::string_view kShapeBegins = " and shape ";
// What stands before the code and the text of another member's error.
constexpr absl::string_view kToldBegins = "TensorFlow's error ";
constexpr absl::string_view kToldGoesOn = ": ";
// The longest text that the core passes on.
constexpr size_t kLongestWords = 511;

struct Detail {
  absl::string_view types, shape;
};

bool Parse(absl::string_view text, Detail* detail) {
  const size_t shape = text.find(kShapeBegins);
  if (shape == absl::string_view::npos) return false;
  *detail = {text.substr(0, shape), text.substr(shape + kShapeBegins.size())};
  return true;
}

// Removes the next text in braces from `error` and returns it; empty if there is none.
absl::string_view NextDetail(absl::string_view* error) {
  const size_t begin = error->find(kDetailBegins);
  if (begin == absl::string_view::npos) return "";
  const size_t end = error->find(kDetailEnds, begin);
  if (end == absl::string_view::npos) return "";
  const absl::string_view detail = error->substr(begin + 1, end - begin - 1);
  error->remove_prefix(end + 1);
  return detail;
}

absl::Status Disagreement(absl::string_view error, const CollectiveParams& params,
                          const std::string& device) {
  const std::string words = absl::StrCat(" rdmatensor: ", error);
  const std::string described = DetailOf(params);
  const absl::string_view all = described;
  Detail own, other;
  (void)NextDetail(&error);
  const absl::string_view found = NextDetail(&error);
  const int key = params.instance.instance_key;
  if (!Parse(all.substr(1, all.size() - 2), &own) || !Parse(found, &other) ||
      (own.types == other.types && own.shape == other.shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Mismatch in the collective instance ", key, ".", words));
  }
  if (own.types != other.types) {
    return absl::InternalError(absl::StrCat("Collective instance ", key, " expected ", other.types,
                                            " but got ", own.types, ".", words));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Shape mismatch in the collective instance ", key, ". Op at device ", device,
      " expected shape ", own.shape, " but another member in the group expected shape ",
      other.shape,
      ". This is likely due to different input shapes at different members of the collective op.",
      words));
}

// Finds the error that another member sent; false if there is none.
bool Told(absl::string_view error, absl::Status* status) {
  const size_t begin = error.find(kToldBegins);
  if (begin == absl::string_view::npos) return false;
  error.remove_prefix(begin + kToldBegins.size());
  const size_t end = error.find(kToldGoesOn);
  int code = 0;
  if (end == absl::string_view::npos || !absl::SimpleAtoi(error.substr(0, end), &code))
    return false;
  if (code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) return false;
  *status =
      absl::Status(static_cast<absl::StatusCode>(code), error.substr(end + kToldGoesOn.size()));
  return true;
}

}  // namespace

std::string DetailOf(const CollectiveParams& params) {
  return absl::StrCat(std::string(1, kDetailBegins), "type ", params.instance.type,
                      " and data_type ", params.instance.data_type, kShapeBegins,
                      params.instance.shape.DebugString(), std::string(1, kDetailEnds));
}

absl::Status CollectiveStatus(rdt_status status, absl::string_view error,
                              const CollectiveParams& params, const std::string& device) {
  absl::Status told;
  if (status == RDT_ERR_PROTOCOL && !Told(error, &told)) return Disagreement(error, params, device);
  return GroupStatus(status, error);
}

absl::Status GroupStatus(rdt_status status, absl::string_view error) {
  if (status == RDT_OK) return absl::OkStatus();
  if (absl::Status told; Told(error, &told)) return told;
  const std::string text = absl::StrCat("rdmatensor: ", rdt_status_name(status), ": ", error);
  switch (status) {
    case RDT_ERR_DEADLINE:
      return absl::DeadlineExceededError(
          absl::StrCat("Collective has timed out during execution. ", text));
    case RDT_ERR_CANCELLED:
      return absl::CancelledError(text);
    case RDT_ERR_PROTOCOL:
    case RDT_ERR_INVALID:
      return absl::InvalidArgumentError(text);
    case RDT_ERR_CORRUPTED:
      return absl::DataLossError(text);
    case RDT_ERR_NO_MEMORY:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

std::string WordsOf(const absl::Status& status) {
  // gRPC adds the lines after the first one.
  const absl::string_view first = status.message().substr(0, status.message().find('\n'));
  const std::string words =
      absl::StrCat(kToldBegins, static_cast<int>(status.code()), kToldGoesOn, first);
  return words.substr(0, kLongestWords);
}

}  // namespace rdmatensor
