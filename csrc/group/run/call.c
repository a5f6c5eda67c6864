/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call of an operation says: how many elements it reads and writes, and whether it can run.
 */
#include "base/status.h"
#include "group/run/run.h"
#include "group/schedule/reduce.h"

bool rdt_group_call_reduces(rdt_collective_kind kind) {
  return kind == RDT_ALL_REDUCE || kind == RDT_REDUCE_SCATTER || kind == RDT_REDUCE;
}

bool rdt_group_call_is_pair(rdt_collective_kind kind) {
  return kind == RDT_SEND || kind == RDT_RECEIVE;
}

bool rdt_group_call_has_root(rdt_collective_kind kind) {
  return kind == RDT_BROADCAST || kind == RDT_GATHER || kind == RDT_SCATTER || kind == RDT_REDUCE;
}

uint64_t rdt_group_call_sum(const uint64_t *counts, uint32_t size) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < size; i++)
    if (__builtin_add_overflow(sum, counts[i], &sum)) return UINT64_MAX;
  return sum;
}

static bool overlap(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes) {
  return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

uint64_t rdt_group_call_input(const rdt_group *group, const rdt_collective *call) {
  const bool root = call->root == group->rank;
  if (((call->kind == RDT_BROADCAST || call->kind == RDT_SCATTER) && !root) ||
      call->kind == RDT_RECEIVE)
    return 0;
  if (call->kind == RDT_ALL_TO_ALL && call->counts)
    return rdt_group_call_sum(call->counts, group->size);
  return call->count;
}

static uint64_t output_count(const rdt_group *group, const rdt_collective *call) {
  const bool root = call->root == group->rank;
  switch (call->kind) {
    case RDT_GATHER:
      if (!root) return 0; /* fall through */
    case RDT_ALL_GATHER:
      return call->counts ? rdt_group_call_sum(call->counts, group->size)
                          : call->count * group->size;
    case RDT_REDUCE_SCATTER:
    case RDT_SCATTER:
      return call->counts ? call->counts[group->rank] : call->count / group->size;
    case RDT_ALL_TO_ALL:
      return call->counts ? rdt_group_call_sum(call->receive_counts, group->size) : call->count;
    case RDT_REDUCE:
      return root ? call->count : 0;
    case RDT_SEND:
      return 0;
    default:
      return call->count;
  }
}

/* Returns the number of elements that come before this member's part. */
static uint64_t before_own(const rdt_group *group, const rdt_collective *call, uint64_t part) {
  return call->counts ? rdt_group_call_sum(call->counts, group->rank) : group->rank * part;
}

bool rdt_group_call_in_place(const rdt_group *group, const rdt_collective *call, size_t element) {
  const char *input = call->input, *output = call->output;
  if (rdt_group_call_input(group, call) == 0 || output_count(group, call) == 0) return true;
  if (call->kind == RDT_ALL_GATHER || call->kind == RDT_GATHER)
    output += before_own(group, call, call->count) * element;
  if (call->kind == RDT_SCATTER)
    input += before_own(group, call, call->count / group->size) * element;
  return input == output;
}

static rdt_status check_buffers(const rdt_group *group, const rdt_collective *call) {
  size_t element = rdt_dtype_size(call->dtype);
  uint64_t limit = (uint64_t)INT64_MAX / element / group->size;
  if (call->count > limit || rdt_group_call_input(group, call) > limit ||
      output_count(group, call) > limit)
    return rdt_fail(RDT_ERR_INVALID, "%llu elements exceed the address space",
                    (unsigned long long)call->count);
  uint64_t input = rdt_group_call_input(group, call) * element,
           output = output_count(group, call) * element;
  if ((input && !call->input) || (output && !call->output))
    return rdt_fail(RDT_ERR_INVALID, "input and output must not be NULL");
  const bool same = rdt_group_call_in_place(group, call, element);
  if (!same && overlap(call->input, input, call->output, output))
    return rdt_fail(RDT_ERR_INVALID, "input and output overlap, but are not the same");
  if (same && input && output && call->receive_counts)
    return rdt_fail(RDT_ERR_INVALID, "an all_to_all of unequal parts does not run in place");
  return RDT_OK;
}

static rdt_status check_counts(const rdt_group *group, const rdt_collective *call) {
  const bool sums = call->kind == RDT_REDUCE_SCATTER || call->kind == RDT_SCATTER;
  const bool own = call->kind == RDT_ALL_GATHER || call->kind == RDT_GATHER;
  if (!call->counts && !call->receive_counts) return RDT_OK;
  if (call->kind == RDT_ALL_TO_ALL ? !call->counts || !call->receive_counts
                                   : !(sums || own) || call->receive_counts)
    return rdt_fail(RDT_ERR_INVALID, "this operation has no such unequal parts");
  if ((sums && call->count != rdt_group_call_sum(call->counts, group->size)) ||
      (own && call->count != call->counts[group->rank]))
    return rdt_fail(RDT_ERR_INVALID, "%llu elements are not what the parts say",
                    (unsigned long long)call->count);
  return RDT_OK;
}

static rdt_status check_members(const rdt_group *group, const rdt_collective *call) {
  const bool any = call->kind == RDT_RECEIVE && call->root == RDT_ANY_MEMBER;
  if (rdt_group_call_has_root(call->kind) && call->root >= group->size)
    return rdt_fail(RDT_ERR_INVALID, "the root %u is no member: there are %u", call->root,
                    group->size);
  if (rdt_group_call_is_pair(call->kind) && !any &&
      (call->root >= group->size || call->root == group->rank))
    return rdt_fail(RDT_ERR_INVALID, "%u is no other member: there are %u, and this is %u",
                    call->root, group->size, group->rank);
  return RDT_OK;
}

static rdt_status check_call(const rdt_group *group, const rdt_collective *call) {
  if (call->struct_size != sizeof(*call))
    return rdt_fail(RDT_ERR_INVALID,
                    "rdt_collective has %zu bytes: set struct_size, and use the header this "
                    "library was built with",
                    call->struct_size);
  if ((int)call->kind < RDT_ALL_REDUCE || call->kind > RDT_RECEIVE)
    return rdt_fail(RDT_ERR_INVALID, "%d is not a collective operation", (int)call->kind);
  if ((int)call->algorithm < 0 || call->algorithm >= RDT_ALGORITHM_COUNT)
    return rdt_fail(RDT_ERR_INVALID, "%d is not an algorithm", (int)call->algorithm);
  if (call->kind == RDT_BARRIER) return RDT_OK;
  if (rdt_dtype_size(call->dtype) == 0)
    return rdt_fail(RDT_ERR_INVALID, "%d is not a type of elements", (int)call->dtype);
  if (rdt_group_call_reduces(call->kind)) {
    rdt_status status = rdt_group_reduce_check(call->dtype, call->op);
    if (status != RDT_OK) return status;
  }
  const bool divided =
      call->kind == RDT_REDUCE_SCATTER || call->kind == RDT_ALL_TO_ALL || call->kind == RDT_SCATTER;
  if (divided && !call->counts && call->count % group->size)
    return rdt_fail(RDT_ERR_INVALID, "%llu elements cannot be divided among %u members",
                    (unsigned long long)call->count, group->size);
  rdt_status status = check_members(group, call);
  if (status == RDT_OK) status = check_counts(group, call);
  if (status != RDT_OK) return status;
  return check_buffers(group, call);
}

rdt_status rdt_group_operation_check(const rdt_group *group, const rdt_collective *call) {
  if (!group || !call) return rdt_fail(RDT_ERR_INVALID, "group and collective must not be NULL");
  rdt_status status = rdt_device_check(group->device);
  return status == RDT_OK ? check_call(group, call) : status;
}
