/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions, bit by bit, against an element-by-element computation that shares nothing with them.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "group/schedule/reduce.h"
#include "unit.h"

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

/* ---- Floating point formats, from their definition --------------------------------------------------- */

typedef struct format {
  int mantissa, exponent; /* bits */
} format;

static const format formats[] = {[RDT_FLOAT32] = {23, 8},
                                 [RDT_FLOAT64] = {52, 11},
                                 [RDT_FLOAT16] = {10, 5},
                                 [RDT_BFLOAT16] = {7, 8}};

static bool is_float(rdt_dtype dtype) { return dtype <= RDT_BFLOAT16; }

static uint64_t infinity_of(format f) { return ((UINT64_C(1) << f.exponent) - 1) << f.mantissa; }
static uint64_t nan_of(format f) { return infinity_of(f) | UINT64_C(1) << (f.mantissa - 1); }

static double decode(format f, uint64_t bits) {
  const uint64_t one = UINT64_C(1) << f.mantissa;
  const uint64_t unsigned_bits = bits & ((UINT64_C(1) << (f.mantissa + f.exponent)) - 1);
  const bool negative = bits >> (f.mantissa + f.exponent) & 1;
  const int exponent = (int)(unsigned_bits >> f.mantissa), bias = (1 << (f.exponent - 1)) - 1;
  const uint64_t mantissa = unsigned_bits & (one - 1);
  double value = exponent == 0 ? ldexp((double)mantissa, 1 - bias - f.mantissa)
                               : ldexp((double)(mantissa + one), exponent - bias - f.mantissa);
  if (unsigned_bits == infinity_of(f)) value = INFINITY;
  if (unsigned_bits > infinity_of(f)) value = NAN;
  return negative ? -value : value;
}

/* The nearest number of the format, found by halving: bits of positive numbers are ordered as they are. */
static uint64_t encode(format f, double value) {
  if (isnan(value)) return nan_of(f);
  const double size = fabs(value);
  const uint64_t sign = (uint64_t)(signbit(value) != 0) << (f.mantissa + f.exponent);
  uint64_t low = 0, high = infinity_of(f); /* low <= size < high, but for what overflows */
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    if (decode(f, middle) <= size) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const double below = decode(f, low);
  /* The number that infinity's place would have, were it one. */
  const double above = high == infinity_of(f) ? ldexp(1, 1 << (f.exponent - 1)) : decode(f, high);
  const double down = size - below, up = above - size;
  const bool higher = up < down || (up == down && low % 2 == 1);
  return sign | (higher ? high : low);
}

/* ---- What each element should be ---------------------------------------------------------------------- */

static double compute(rdt_reduction reduction, double a, double b) {
  if (isnan(a) || isnan(b)) return NAN;
  const bool a_first = a == b ? signbit(a) != 0 : a < b; /* -0 before +0 */
  switch (reduction) {
    case RDT_SUM:
      return a + b;
    case RDT_PRODUCT:
      return a * b;
    case RDT_MIN:
      return a_first ? a : b;
    default:
      return a_first ? b : a;
  }
}

/* Sums and products of two floats, or of less, are exact enough in double to be rounded once more. */
static uint64_t wanted_float(rdt_dtype dtype, rdt_reduction reduction, uint64_t a, uint64_t b) {
  const format f = formats[dtype];
  const double value = compute(reduction, decode(f, a), decode(f, b));
  if (isnan(value)) return nan_of(f);
  uint64_t bits = 0;
  const float single = (float)value;
  uint32_t single_bits;
  memcpy(&bits, &value, sizeof bits);
  memcpy(&single_bits, &single, sizeof single_bits);
  return dtype == RDT_FLOAT64 ? bits : dtype == RDT_FLOAT32 ? single_bits : encode(f, single);
}

static uint64_t wanted_integer(rdt_dtype dtype, rdt_reduction reduction, uint64_t a, uint64_t b) {
  const unsigned shift = 64 - 8 * (unsigned)rdt_dtype_size(dtype);
  const bool is_signed = dtype <= RDT_INT64;
  const uint64_t flip = is_signed ? UINT64_C(1) << 63 : 0; /* makes unsigned order the signed one */
  const bool a_first = ((a << shift) ^ flip) < ((b << shift) ^ flip);
  switch (reduction) {
    case RDT_SUM:
      return a + b;
    case RDT_PRODUCT:
      return a * b;
    case RDT_MIN:
      return a_first ? a : b;
    default:
      return a_first ? b : a;
  }
}

static uint64_t element(const void *data, size_t size, size_t i) {
  uint64_t bits = 0; /* little-endian, as the format on the wire is */
  memcpy(&bits, (const char *)data + i * size, size);
  return bits;
}

static void check(rdt_dtype dtype, rdt_reduction reduction, const void *to, const void *left,
                  const void *right, size_t count) {
  const size_t size = rdt_dtype_size(dtype);
  for (size_t i = 0; i < count; i++) {
    const uint64_t a = element(left, size, i), b = element(right, size, i);
    uint64_t wanted = is_float(dtype) ? wanted_float(dtype, reduction, a, b)
                                      : wanted_integer(dtype, reduction, a, b);
    if (size < 8) wanted &= (UINT64_C(1) << 8 * size) - 1;
    if (element(to, size, i) == wanted) continue;
    fprintf(stderr, "dtype %d reduction %d element %zu: %llx, %llx give %llx, not %llx\n", dtype,
            reduction, i, (unsigned long long)a, (unsigned long long)b,
            (unsigned long long)element(to, size, i), (unsigned long long)wanted);
    exit(1);
  }
}

/* ---- What is tried ------------------------------------------------------------------------------------- */

static uint64_t special(rdt_dtype dtype) {
  if (!is_float(dtype)) return next_random() % 3 ? UINT64_MAX >> next_random() % 64 : 0;
  const format f = formats[dtype];
  const uint64_t one = ((UINT64_C(1) << (f.exponent - 1)) - 1) << f.mantissa;
  const uint64_t values[] = {0,
                             infinity_of(f),
                             nan_of(f),
                             infinity_of(f) + 1, /* a signalling NaN */
                             1,                  /* the least subnormal */
                             UINT64_C(1) << f.mantissa,
                             infinity_of(f) - 1,
                             one};
  const uint64_t sign = next_random() % 2 << (f.mantissa + f.exponent);
  return values[next_random() % (sizeof values / sizeof *values)] | sign;
}

/* Specials, any bits, and, for floats, numbers of similar size, whose sums are rounded. */
static void fill(rdt_dtype dtype, char *data, size_t count) {
  const size_t size = rdt_dtype_size(dtype);
  for (size_t i = 0; i < count; i++) {
    uint64_t bits = next_random();
    if (bits % 4 == 0) {
      bits = special(dtype);
    } else if (bits % 4 == 1 && is_float(dtype)) {
      const format f = formats[dtype];
      const uint64_t one = ((UINT64_C(1) << (f.exponent - 1)) - 1) << f.mantissa;
      bits = one + (bits >> 8) % (UINT64_C(6) << f.mantissa);
    }
    memcpy(data + i * size, &bits, size);
  }
}

#define ELEMENTS 3000u

/* At any alignment; nothing beside the result is written; operands may be the result, or swapped. */
static void try_count(rdt_dtype dtype, rdt_reduction reduction, size_t count, size_t shift) {
  static char left[8 * ELEMENTS + 16], right[8 * ELEMENTS + 16], to[8 * ELEMENTS + 16],
      other[8 * ELEMENTS + 16];
  const size_t bytes = count * rdt_dtype_size(dtype);
  fill(dtype, left, count + 1);
  fill(dtype, right + shift, count);
  memset(to, 0x5a, sizeof to);
  rdt_group_reduce(dtype, reduction, to + shift + 1, left, right + shift, count);
  check(dtype, reduction, to + shift + 1, left, right + shift, count);
  for (size_t i = 0; i < sizeof to; i++) EXPECT((i > shift && i <= shift + bytes) || to[i] == 0x5a);
  memcpy(other, left, bytes);
  rdt_group_reduce(dtype, reduction, other, right + shift, other, count);
  EXPECT(memcmp(other, to + shift + 1, bytes) == 0);
  rdt_group_reduce(dtype, reduction, left, left, right + shift, count);
  EXPECT(memcmp(left, to + shift + 1, bytes) == 0);
}

static void test_all_types(void) {
  for (rdt_dtype dtype = RDT_FLOAT32; dtype <= RDT_UINT64; dtype++) {
    for (rdt_reduction reduction = RDT_SUM; reduction <= RDT_MAX; reduction++) {
      EXPECT_STATUS(RDT_OK, rdt_group_reduce_check(dtype, reduction));
      for (size_t count = 0; count < 70; count++) try_count(dtype, reduction, count, count % 8);
      for (size_t shift = 0; shift < 3; shift++)
        try_count(dtype, reduction, ELEMENTS - 7 * shift, shift);
    }
  }
}

/* Every number of the 16 bit types, with a few others. */
static void test_every_half(rdt_dtype dtype) {
  static uint16_t all[65536], others[65536], to[65536];
  for (int again = 0; again < 4; again++) {
    for (uint32_t i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    fill(dtype, (char *)others, 65536);
    for (rdt_reduction reduction = RDT_SUM; reduction <= RDT_MAX; reduction++) {
      rdt_group_reduce(dtype, reduction, to, all, others, 65536);
      check(dtype, reduction, to, all, others, 65536);
    }
  }
}

/* Large results, which take another way to memory, are those of many small calls. */
static void test_large(void) {
  const size_t size = (5u << 20) + 4 * 777, count = size / 4;
  char *left = malloc(size), *right = malloc(size), *to = malloc(size + 16), *other = malloc(size);
  EXPECT(left != NULL && right != NULL && to != NULL && other != NULL);
  for (size_t i = 0; i < size; i++) {
    left[i] = (char)next_random();
    right[i] = (char)next_random();
  }
  memset(to, 0x5a, size + 16);
  rdt_group_reduce(RDT_INT32, RDT_SUM, to + 5, left, right, count);
  for (size_t i = 0; i < size; i += 4 * 777)
    rdt_group_reduce(RDT_INT32, RDT_SUM, other + i, left + i, right + i,
                     i + 4 * 777 > size ? (size - i) / 4 : 777);
  EXPECT(memcmp(to + 5, other, size) == 0);
  EXPECT(to[4] == 0x5a && to[size + 5] == 0x5a);
  free(left);
  free(right);
  free(to);
  free(other);
}

/* 3 and 5, as numbers of each type, times a quarter. */
static void test_scaled(void) {
  enum { COUNT = (5 << 20) / 4 + 3 };
  static const uint64_t three[] = {0, 0x40400000, UINT64_C(0x4008000000000000), 0x4200, 0x4040};
  static const uint64_t five[] = {0, 0x40a00000, UINT64_C(0x4014000000000000), 0x4500, 0x40a0};
  static const uint64_t two[] = {0, 0x40000000, UINT64_C(0x4000000000000000), 0x4000, 0x4000};
  static char left[8 * COUNT], right[8 * COUNT], to[8 * COUNT];
  for (rdt_dtype dtype = RDT_FLOAT32; dtype <= RDT_BFLOAT16; dtype++) {
    const size_t size = rdt_dtype_size(dtype);
    for (size_t i = 0; i < COUNT; i++) {
      memcpy(left + i * size, &three[dtype], size);
      memcpy(right + i * size, &five[dtype], size);
    }
    rdt_group_reduce_scaled(dtype, to, left, right, COUNT, 0.25);
    rdt_group_reduce_scaled(dtype, left, left, right, COUNT - 1, 0.25);
    for (size_t i = 0; i < COUNT; i++) {
      EXPECT(memcmp(to + i * size, &two[dtype], size) == 0);
      EXPECT(memcmp(left + i * size, i + 1 < COUNT ? &two[dtype] : &three[dtype], size) == 0);
    }
  }
}

static void test_bitwise(void) {
  enum { COUNT = 1003 };
  static uint64_t left[COUNT], right[COUNT], to[COUNT];
  for (size_t i = 0; i < COUNT; i++) {
    left[i] = next_random();
    right[i] = next_random();
  }
  for (rdt_dtype dtype = RDT_INT8; dtype <= RDT_UINT64; dtype++) {
    EXPECT_STATUS(RDT_OK, rdt_group_reduce_check(dtype, RDT_AND));
    for (rdt_reduction op = RDT_AND; op <= RDT_XOR; op++) {
      rdt_group_reduce(dtype, op, to, left, right, sizeof to / rdt_dtype_size(dtype));
      for (size_t i = 0; i < COUNT; i++)
        EXPECT(to[i] == (op == RDT_AND  ? left[i] & right[i]
                         : op == RDT_OR ? left[i] | right[i]
                                        : left[i] ^ right[i]));
    }
  }
}

static void test_unknown(void) {
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_reduce_check((rdt_dtype)0, RDT_SUM));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_reduce_check((rdt_dtype)13, RDT_SUM));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_reduce_check(RDT_INT8, (rdt_reduction)0));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_reduce_check(RDT_INT8, (rdt_reduction)10));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_reduce_check(RDT_INT8, RDT_MEAN));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_reduce_check(RDT_INT8, RDT_SCALED_SUM));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_reduce_check(RDT_BFLOAT16, RDT_AND));
  EXPECT_STATUS(RDT_OK, rdt_group_reduce_check(RDT_BFLOAT16, RDT_MEAN));
  EXPECT(rdt_dtype_size((rdt_dtype)-1) == 0 && rdt_dtype_size((rdt_dtype)13) == 0);
  EXPECT(strcmp(rdt_algorithm_name(RDT_ALGORITHM_HIERARCHICAL), "hierarchical") == 0);
  EXPECT(strcmp(rdt_algorithm_name(RDT_ALGORITHM_COUNT), "") == 0);
}

int main(void) {
  test_all_types();
  test_every_half(RDT_FLOAT16);
  test_every_half(RDT_BFLOAT16);
  test_large();
  test_scaled();
  test_bitwise();
  test_unknown();
  return 0;
}
