// SPDX-License-Identifier: Apache-2.0
#include "rows/rules.h"

#include <cmath>

#include "Eigen/Core"

namespace rdmatensor {
namespace {

// TensorFlow computes the inverse square roots of eight numbers at once, by an approximation, and those of the rest of
// a row exactly.
void InverseRoots(const float* from, int64_t width, float* to) {
  using Packet = Eigen::internal::packet_traits<float>::type;
  constexpr int64_t kPacket = Eigen::internal::packet_traits<float>::size;
  static_assert(8 % kPacket == 0, "packets of another size than TensorFlow's");
  const int64_t whole = width - width % 8;
  int64_t k = 0;
  for (; k < whole; k += kPacket) {
    Eigen::internal::pstoreu(to + k,
                             Eigen::internal::prsqrt(Eigen::internal::ploadu<Packet>(from + k)));
  }
  for (; k < width; ++k) to[k] = Eigen::numext::rsqrt(from[k]);
}

void AddSquares(bool wanted, int64_t width, const float* g, float* a) {
  if (!wanted) return;
  for (int64_t k = 0; k < width; ++k) a[k] += g[k] * g[k];
}

void Adagrad(const float* numbers, bool update_slots, int64_t width, const float* g, float* x,
             float* const* slots, float* scratch) {
  const float rate = numbers[0];
  AddSquares(update_slots, width, g, slots[0]);
  InverseRoots(slots[0], width, scratch);
  for (int64_t k = 0; k < width; ++k) x[k] -= rate * g[k] * scratch[k];
}

void AdagradV2(const float* numbers, bool update_slots, int64_t width, const float* g, float* x,
               float* const* slots, float*) {
  const float rate = numbers[0], epsilon = numbers[1];
  const float* const a = slots[0];
  AddSquares(update_slots, width, g, slots[0]);
  for (int64_t k = 0; k < width; ++k) x[k] -= rate * g[k] / (std::sqrt(a[k]) + epsilon);
}

void Momentum(const float* numbers, bool nesterov, int64_t width, const float* g, float* x,
              float* const* slots, float*) {
  const float rate = numbers[0], momentum = numbers[1], both = rate * momentum;
  float* const a = slots[0];
  for (int64_t k = 0; k < width; ++k) a[k] = a[k] * momentum + g[k];
  if (nesterov) {
    for (int64_t k = 0; k < width; ++k) x[k] -= rate * g[k] + both * a[k];
  } else {
    for (int64_t k = 0; k < width; ++k) x[k] -= rate * a[k];
  }
}

void KerasMomentum(const float* numbers, bool nesterov, int64_t width, const float* g, float* x,
                   float* const* slots, float*) {
  const float rate = numbers[0], momentum = numbers[1];
  float* const a = slots[0];
  for (int64_t k = 0; k < width; ++k) a[k] = a[k] * momentum - g[k] * rate;
  if (nesterov) {
    for (int64_t k = 0; k < width; ++k) x[k] += a[k] * momentum - g[k] * rate;
  } else {
    for (int64_t k = 0; k < width; ++k) x[k] += a[k];
  }
}

void RmsProp(const float* numbers, bool, int64_t width, const float* g, float* x,
             float* const* slots, float* scratch) {
  const float rate = numbers[0], rho = numbers[1], momentum = numbers[2], epsilon = numbers[3];
  const float rest = 1 - rho;
  float *const squares = slots[0], *const m = slots[1];
  for (int64_t k = 0; k < width; ++k) {
    squares[k] = squares[k] * rho + g[k] * g[k] * rest;
    scratch[k] = squares[k] + epsilon;
  }
  InverseRoots(scratch, width, scratch);
  for (int64_t k = 0; k < width; ++k) {
    m[k] = m[k] * momentum + scratch[k] * rate * g[k];
    x[k] -= m[k];
  }
}

template <bool shrinks>
void Ftrl(const float* numbers, bool, int64_t width, const float* g, float* x, float* const* slots,
          float*) {
  const float rate = numbers[0], l1 = numbers[1], twice_l2 = 2 * numbers[2];
  const float twice_shrinkage = 2 * numbers[3];
  float *const a = slots[0], *const linear = slots[1];
  for (int64_t k = 0; k < width; ++k) {
    const float shrunk = shrinks ? g[k] + twice_shrinkage * x[k] : g[k];
    const float sum = a[k] + g[k] * g[k], root = std::sqrt(sum);
    linear[k] += shrunk - (root - std::sqrt(a[k])) / rate * x[k];
    const float to_l1 = std::copysign(l1, linear[k]) - linear[k];
    x[k] = std::fabs(linear[k]) > l1 ? to_l1 / (root / rate + twice_l2) : 0.0F;
    a[k] = sum;
  }
}

// With the power of the learning rate that everybody uses, -0.5.
template <bool shrinks>
bool IsPlainFtrl(const float* numbers, bool multiplies_linear) {
  return !multiplies_linear && numbers[0] > 0 && numbers[1] >= 0 && numbers[2] >= 0 &&
         (!shrinks || numbers[3] >= 0) && numbers[shrinks ? 4 : 3] == -0.5F;
}

}  // namespace

void AddToRow(float* row, const float* values, int64_t width) {
  for (int64_t k = 0; k < width; ++k) row[k] += values[k];
}

void SubtractFromRow(float* row, const float* values, int64_t width) {
  for (int64_t k = 0; k < width; ++k) row[k] -= values[k];
}

const std::vector<UpdateRule>& UpdateRules() {
  static const auto* const rules = new std::vector<UpdateRule>{
      {"ResourceSparseApplyAdagrad", 1, 3, {2}, "update_slots", Adagrad},
      {"ResourceSparseApplyAdagradV2", 1, 4, {2, 3}, "update_slots", AdagradV2},
      {"ResourceSparseApplyMomentum", 1, 3, {2, 5}, "use_nesterov", Momentum},
      {"ResourceSparseApplyKerasMomentum", 1, 3, {2, 5}, "use_nesterov", KerasMomentum},
      {"ResourceSparseApplyRMSProp", 2, 7, {3, 4, 5, 6}, nullptr, RmsProp},
      {"ResourceSparseApplyFtrl",
       2,
       3,
       {5, 6, 7, 8},
       "multiply_linear_by_lr",
       Ftrl<false>,
       IsPlainFtrl<false>},
      {"ResourceSparseApplyFtrlV2",
       2,
       3,
       {5, 6, 7, 8, 9},
       "multiply_linear_by_lr",
       Ftrl<true>,
       IsPlainFtrl<true>},
  };
  return *rules;
}

}  // namespace rdmatensor
