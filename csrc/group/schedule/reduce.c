/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions: one function per type and operation, whose loops GCC vectorises. A NaN result is
 * always the same NaN, and -0 is less than +0, so that swapping the operands never changes a bit.
 */
#include "group/schedule/reduce.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/copy.h"
#include "base/status.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* One version per instruction set, chosen when the library is loaded, before a sanitizer can run. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* Maps bits so that they order as the numbers do, except NaN. The function is its own inverse. */
#define ORDERED(bits, sign_shift, most) ((bits) ^ (((bits) >> (sign_shift)) & (most)))

#define DEFINE_FLOAT(type, integer, shift, most, quiet)                                        \
  INLINE integer type##_bits(type value) {                                                     \
    integer bits;                                                                              \
    memcpy(&bits, &value, sizeof bits);                                                        \
    return bits;                                                                               \
  }                                                                                            \
  INLINE type type##_from(integer bits) {                                                      \
    type value;                                                                                \
    memcpy(&value, &bits, sizeof value);                                                       \
    return value;                                                                              \
  }                                                                                            \
  INLINE type type##_plain(type value) { return value != value ? type##_from(quiet) : value; } \
  INLINE type type##_sum(type a, type b) { return type##_plain(a + b); }                       \
  INLINE type type##_product(type a, type b) { return type##_plain(a * b); }                   \
  INLINE type type##_pick(type a, type b, bool least) {                                        \
    const integer x = ORDERED(type##_bits(a), shift, most);                                    \
    const integer y = ORDERED(type##_bits(b), shift, most);                                    \
    const integer z = (least ? x < y : x > y) ? x : y;                                         \
    const integer bits = ORDERED(z, shift, most);                                              \
    return type##_from((a != a) | (b != b) ? (quiet) : bits);                                  \
  }                                                                                            \
  INLINE type type##_min(type a, type b) { return type##_pick(a, b, true); }                   \
  INLINE type type##_max(type a, type b) { return type##_pick(a, b, false); }

DEFINE_FLOAT(float, int32_t, 31, INT32_MAX, 0x7fc00000)
DEFINE_FLOAT(double, int64_t, 63, INT64_MAX, 0x7ff8000000000000)

/* Computes in `wide`, unsigned and at least as wide as int, so that nothing overflows. */
#define DEFINE_INTEGER(type, wide)                                                 \
  INLINE type type##_sum(type a, type b) { return (type)((wide)a + (wide)b); }     \
  INLINE type type##_product(type a, type b) { return (type)((wide)a * (wide)b); } \
  INLINE type type##_min(type a, type b) { return a < b ? a : b; }                 \
  INLINE type type##_max(type a, type b) { return a > b ? a : b; }                 \
  INLINE type type##_and(type a, type b) { return a & b; }                         \
  INLINE type type##_or(type a, type b) { return a | b; }                          \
  INLINE type type##_xor(type a, type b) { return a ^ b; }

DEFINE_INTEGER(int8_t, uint32_t)
DEFINE_INTEGER(int16_t, uint32_t)
DEFINE_INTEGER(int32_t, uint32_t)
DEFINE_INTEGER(int64_t, uint64_t)
DEFINE_INTEGER(uint8_t, uint32_t)
DEFINE_INTEGER(uint16_t, uint32_t)
DEFINE_INTEGER(uint32_t, uint32_t)
DEFINE_INTEGER(uint64_t, uint64_t)

typedef uint16_t bfloat16;

INLINE float bfloat16_widen(bfloat16 value) { return float_from((int32_t)((uint32_t)value << 16)); }

/* Rounds to nearest even. A NaN stays a NaN. */
INLINE bfloat16 bfloat16_narrow(float value) {
  const uint32_t bits = (uint32_t)float_bits(value);
  return (bfloat16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define DEFINE_BFLOAT16(operation)                                                   \
  INLINE bfloat16 bfloat16_##operation(bfloat16 a, bfloat16 b) {                     \
    return bfloat16_narrow(float_##operation(bfloat16_widen(a), bfloat16_widen(b))); \
  }

DEFINE_BFLOAT16(sum)
DEFINE_BFLOAT16(product)
DEFINE_BFLOAT16(min)
DEFINE_BFLOAT16(max)

typedef void (*loop_fn)(void *to, const void *left, const void *right, size_t count);

/* `to` may be an operand, element by element, so no iteration needs another's result: ivdep says
 * so. */
#define DEFINE_LOOP(type, operation)                                                               \
  FOR_EACH_PROCESSOR static void type##_##operation##_loop(void *to, const void *left,             \
                                                           const void *right, size_t count) {      \
    typedef type __attribute__((aligned(1), may_alias)) loose;                                     \
    loose *t = to;                                                                                 \
    const loose *l = left, *r = right;                                                             \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) t[i] = type##_##operation(l[i], r[i]); \
  }

#define DEFINE_LOOPS(type)   \
  DEFINE_LOOP(type, sum)     \
  DEFINE_LOOP(type, product) \
  DEFINE_LOOP(type, min)     \
  DEFINE_LOOP(type, max)

DEFINE_LOOPS(float)
DEFINE_LOOPS(double)
DEFINE_LOOPS(bfloat16)

#define DEFINE_INTEGER_LOOPS(type) \
  DEFINE_LOOPS(type)               \
  DEFINE_LOOP(type, and)           \
  DEFINE_LOOP(type, or)            \
  DEFINE_LOOP(type, xor)

DEFINE_INTEGER_LOOPS(int8_t)
DEFINE_INTEGER_LOOPS(int16_t)
DEFINE_INTEGER_LOOPS(int32_t)
DEFINE_INTEGER_LOOPS(int64_t)
DEFINE_INTEGER_LOOPS(uint8_t)
DEFINE_INTEGER_LOOPS(uint16_t)
DEFINE_INTEGER_LOOPS(uint32_t)
DEFINE_INTEGER_LOOPS(uint64_t)

#define COMMON_LOOPS(type)                                                                       \
  [RDT_SUM] = type##_sum_loop, [RDT_PRODUCT] = type##_product_loop, [RDT_MIN] = type##_min_loop, \
  [RDT_MAX] = type##_max_loop
#define LOOPS(type) {COMMON_LOOPS(type)}
#define INTEGER_LOOPS(type)                                                    \
  {COMMON_LOOPS(type), [RDT_AND] = type##_and_loop, [RDT_OR] = type##_or_loop, \
   [RDT_XOR] = type##_xor_loop}

/* float16 uses the functions of float. */
static const loop_fn loops[][RDT_XOR + 1] = {
    [RDT_FLOAT32] = LOOPS(float),           [RDT_FLOAT64] = LOOPS(double),
    [RDT_FLOAT16] = LOOPS(float),           [RDT_BFLOAT16] = LOOPS(bfloat16),
    [RDT_INT8] = INTEGER_LOOPS(int8_t),     [RDT_INT16] = INTEGER_LOOPS(int16_t),
    [RDT_INT32] = INTEGER_LOOPS(int32_t),   [RDT_INT64] = INTEGER_LOOPS(int64_t),
    [RDT_UINT8] = INTEGER_LOOPS(uint8_t),   [RDT_UINT16] = INTEGER_LOOPS(uint16_t),
    [RDT_UINT32] = INTEGER_LOOPS(uint32_t), [RDT_UINT64] = INTEGER_LOOPS(uint64_t)};

typedef void (*scaled_fn)(void *to, const void *left, const void *right, size_t count,
                          double factor);

#define DEFINE_SCALED(type, real, widen, narrow)                                                   \
  FOR_EACH_PROCESSOR static void type##_scaled_loop(void *to, const void *left, const void *right, \
                                                    size_t count, double factor) {                 \
    typedef type __attribute__((aligned(1), may_alias)) loose;                                     \
    loose *t = to;                                                                                 \
    const loose *l = left, *r = right;                                                             \
    const real by = (real)factor;                                                                  \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) t[i] =                                 \
        narrow(real##_plain((widen(l[i]) + widen(r[i])) * by));                                    \
  }

DEFINE_SCALED(float, float, , )
DEFINE_SCALED(double, double, , )
DEFINE_SCALED(bfloat16, float, bfloat16_widen, bfloat16_narrow)

static const scaled_fn scaled_loops[] = {[RDT_FLOAT32] = float_scaled_loop,
                                         [RDT_FLOAT64] = double_scaled_loop,
                                         [RDT_BFLOAT16] = bfloat16_scaled_loop};

/* What is computed: an entry of `loops`, or of `scaled_loops` with a factor. */
typedef struct reduction {
  loop_fn loop;
  scaled_fn scaled; /* NULL: loop */
  double factor;
} reduction;

static void run(const reduction *what, void *to, const void *left, const void *right,
                size_t count) {
  if (what->scaled)
    what->scaled(to, left, right, count, what->factor);
  else
    what->loop(to, left, right, count);
}

typedef uint16_t __attribute__((aligned(1), may_alias)) loose_u16;

/* Elements per block, so that the floats stay in the first-level cache. */
#define BLOCK 512

/* Exponents are re-biased by integer addition, subnormals normalised by a float subtraction. */
FOR_EACH_PROCESSOR static void widen(float *to, const void *from, size_t count) {
  const loose_u16 *f = from;
  for (size_t i = 0; i < count; i++) {
    const uint32_t half = f[i], sign = (half & 0x8000) << 16;
    const uint32_t shifted = (half & 0x7fff) << 13, exponent = shifted & (0x7c00u << 13);
    const uint32_t normal = shifted + (112u << 23);
    const uint32_t infinite = normal + (112u << 23);
    const float small = float_from((int32_t)(normal + (1u << 23))) - 0x1p-14f;
    const uint32_t finite = exponent == 0 ? (uint32_t)float_bits(small) : normal;
    to[i] = float_from((int32_t)((exponent == (0x7c00u << 13) ? infinite : finite) | sign));
  }
}

/* Rounds to nearest even: normal numbers in integers, subnormals by adding a float whose last bit is
 * theirs. */
FOR_EACH_PROCESSOR static void narrow(void *to, const float *from, size_t count) {
  loose_u16 *t = to;
  for (size_t i = 0; i < count; i++) {
    const uint32_t all = (uint32_t)float_bits(from[i]), sign = all >> 16 & 0x8000;
    const uint32_t bits = all & 0x7fffffff;
    const uint32_t normal = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    const float raised = float_from((int32_t)bits) + 0.5f;
    const uint32_t tiny = (uint32_t)float_bits(raised) - (126u << 23);
    const uint32_t large = bits > (255u << 23) ? 0x7e00 : 0x7c00;
    const uint32_t finite = bits < (113u << 23) ? tiny : normal;
    t[i] = (uint16_t)((bits >= (143u << 23) ? large : finite) | sign);
  }
}

/* Older versions of Clang do not know the processor feature by name. */
#if defined(__x86_64__) && (!defined(__clang__) || __clang_major__ >= 19)
#define HARDWARE __attribute__((target("avx,f16c")))

/* The processor's own conversion; returns how many elements it did, a multiple of 8. */
HARDWARE static size_t widen_quickly(float *to, const void *from, size_t count) {
  const loose_u16 *f = from;
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(f + i))));
  return i;
}

HARDWARE static size_t narrow_quickly(void *to, const float *from, size_t count) {
  loose_u16 *t = to;
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128((void *)(t + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
  return i;
}

static bool has_quick(void) {
  return __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
}
#else
#define widen_quickly(to, from, count) ((size_t)0)
#define narrow_quickly(to, from, count) ((size_t)0)
static bool has_quick(void) { return false; }
#endif

static void reduce_float16(const reduction *what, char *to, const char *left, const char *right,
                           size_t count) {
  const bool quick = has_quick();
  float a[BLOCK], b[BLOCK];
  for (size_t done = 0; done < count; done += BLOCK) {
    const size_t now = count - done < BLOCK ? count - done : BLOCK, at = 2 * done;
    size_t i = quick ? widen_quickly(a, left + at, now) : 0;
    widen(a + i, left + at + 2 * i, now - i);
    i = quick ? widen_quickly(b, right + at, now) : 0;
    widen(b + i, right + at + 2 * i, now - i);
    run(what, a, a, b, now);
    i = quick ? narrow_quickly(to + at, a, now) : 0;
    narrow(to + at + 2 * i, a + i, now - i);
  }
}

static void reduce(rdt_dtype dtype, const reduction *what, void *to, const void *left,
                   const void *right, size_t count) {
  if (dtype == RDT_FLOAT16) {
    reduce_float16(what, to, left, right, count);
  } else {
    run(what, to, left, right, count);
  }
}

static void reduce_streamed(rdt_dtype dtype, const reduction *what, char *to, const char *left,
                            const char *right, size_t count) {
  char results[BLOCK * 8];
  const size_t size = rdt_dtype_size(dtype);
  for (size_t done = 0; done < count; done += BLOCK) {
    const size_t now = count - done < BLOCK ? count - done : BLOCK, at = size * done;
    reduce(dtype, what, results, left + at, right + at, now);
    rdt_stream(to + at, results, size * now);
  }
  rdt_stream_end();
}

static void reduce_any(rdt_dtype dtype, const reduction *what, void *to, const void *left,
                       const void *right, size_t count) {
  /* An operand that is replaced is read in any case. */
  if (to == left || to == right || count < RDT_GROUP_STREAMED / rdt_dtype_size(dtype)) {
    reduce(dtype, what, to, left, right, count);
  } else {
    reduce_streamed(dtype, what, to, left, right, count);
  }
}

void rdt_group_reduce(rdt_dtype dtype, rdt_reduction op, void *to, const void *left,
                      const void *right, size_t count) {
  const reduction what = {.loop = loops[dtype][op]};
  reduce_any(dtype, &what, to, left, right, count);
}

void rdt_group_reduce_scaled(rdt_dtype dtype, void *to, const void *left, const void *right,
                             size_t count, double factor) {
  const rdt_dtype computed = dtype == RDT_FLOAT16 ? RDT_FLOAT32 : dtype;
  const reduction what = {.scaled = scaled_loops[computed], .factor = factor};
  reduce_any(dtype, &what, to, left, right, count);
}

rdt_status rdt_group_reduce_check(rdt_dtype dtype, rdt_reduction op) {
  if (rdt_dtype_size(dtype) == 0)
    return rdt_fail(RDT_ERR_INVALID, "%d is no element type", (int)dtype);
  if (op < RDT_SUM || op > RDT_SCALED_SUM)
    return rdt_fail(RDT_ERR_INVALID, "%d is no reduction", (int)op);
  if ((op == RDT_MEAN || op == RDT_SCALED_SUM) && dtype > RDT_BFLOAT16)
    return rdt_fail(RDT_ERR_INVALID, "the mean and scaled sums need elements of floating point");
  if (op >= RDT_AND && op <= RDT_XOR && dtype <= RDT_BFLOAT16)
    return rdt_fail(RDT_ERR_INVALID, "bitwise reductions need elements that are integers");
  return RDT_OK;
}
