// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_trees.h"

#include <cstring>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rdmatensor {
namespace {

struct Trees {
  uint32_t members = 0;
  std::string encoded;
};

// The encoding: the header, `pairs` numbers (of pair_ns), then the trees, each with the parents of all members.
struct Header {
  uint64_t count = 0, pairs = 0;
};
struct Row {
  uint64_t rate = 0;
  uint32_t kind = 0, root = 0;
};

std::mutex mutex;
Trees& Known() {
  static Trees& trees = *new Trees;  // servers live until the process ends
  return trees;
}

void Append(const void* data, size_t size, std::string* out) {
  out->append(static_cast<const char*>(data), size);
}

// Takes the next bytes. The caller knows that they are there.
void Take(const char** at, void* out, size_t size) {
  if (size != 0) std::memcpy(out, *at, size);
  *at += size;
}

// False if the bytes are no encoding for a group of `members`. What the trees mean is checked by the group.
bool Decode(const std::string& encoded, uint32_t members, std::vector<rdt_group_tree>* trees,
            std::vector<uint32_t>* parents, std::vector<double>* pair_ns) {
  Header header;
  if (encoded.size() < sizeof header) return false;
  const char* at = encoded.data();
  Take(&at, &header, sizeof header);
  const uint64_t each = sizeof(Row) + members * sizeof(uint32_t);
  const uint64_t pairs = uint64_t{members} * members;
  const uint64_t left = encoded.size() - sizeof header;
  if ((header.pairs != 0 && header.pairs != pairs) || left < header.pairs * sizeof(double)) {
    return false;
  }
  const uint64_t rows = left - header.pairs * sizeof(double);
  if (rows % each != 0 || rows / each != header.count) return false;
  pair_ns->resize(header.pairs);
  Take(&at, pair_ns->data(), header.pairs * sizeof(double));
  trees->resize(header.count);
  parents->resize(header.count * members);
  for (uint64_t i = 0; i < header.count; ++i) {
    Row row;
    Take(&at, &row, sizeof row);
    uint32_t* const own = parents->data() + i * members;
    Take(&at, own, members * sizeof(uint32_t));
    (*trees)[i] = {static_cast<rdt_collective_kind>(row.kind), row.root, row.rate, own};
  }
  return true;
}

absl::Status Failed(const char* what, rdt_status status) {
  return absl::InternalError(
      absl::StrCat(what, ": ", rdt_status_name(status), ": ", rdt_last_error()));
}

}  // namespace

std::string EncodedTrees(uint32_t members) {
  std::lock_guard<std::mutex> lock(mutex);
  const Trees& known = Known();
  if (known.members != members || known.encoded.size() > kMostTreeBytes) return "";
  return known.encoded;
}

absl::Status ShareTrees(rdt_group* group, uint32_t members, std::string* encoded, int timeout_ms) {
  rdt_collective call{};
  call.struct_size = sizeof call;
  call.kind = RDT_BROADCAST;
  call.dtype = RDT_UINT8;
  call.algorithm = RDT_ALGORITHM_FLAT;
  call.input = call.output = encoded->data();
  call.count = encoded->size();
  call.timeout_ms = timeout_ms;
  const rdt_status sent = rdt_group_run(group, &call);
  if (sent != RDT_OK) return Failed("the trees of the first member did not come", sent);
  std::vector<rdt_group_tree> trees;
  std::vector<uint32_t> parents;
  std::vector<double> pair_ns;
  if (!Decode(*encoded, members, &trees, &parents, &pair_ns)) {
    return absl::InternalError("the trees of the first member are malformed");
  }
  const rdt_status used = rdt_group_use_trees(
      group, trees.data(), trees.size(), pair_ns.empty() ? nullptr : pair_ns.data(), timeout_ms);
  return used == RDT_OK ? absl::OkStatus() : Failed("the trees cannot be used", used);
}

}  // namespace rdmatensor

extern "C" void rdt_tf_set_trees(const rdt_group_tree* trees, size_t count, const double* pair_ns,
                                 uint32_t size) {
  using rdmatensor::Append;
  rdmatensor::Trees made;
  if (count != 0) {
    made.members = size;
    rdmatensor::Header header;
    header.count = count;
    header.pairs = pair_ns != nullptr ? uint64_t{size} * size : 0;
    Append(&header, sizeof header, &made.encoded);
    if (pair_ns != nullptr) Append(pair_ns, header.pairs * sizeof(double), &made.encoded);
    for (size_t i = 0; i < count; ++i) {
      rdmatensor::Row row;
      row.rate = trees[i].rate;
      row.kind = static_cast<uint32_t>(trees[i].kind);
      row.root = trees[i].root;
      Append(&row, sizeof row, &made.encoded);
      Append(trees[i].parents, size * sizeof(uint32_t), &made.encoded);
    }
  }
  std::lock_guard<std::mutex> lock(rdmatensor::mutex);
  std::swap(rdmatensor::Known(), made);
}
