/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C (RFC 3720). Where the processor has an instruction for it, three streams run side by
 * side: the instruction takes three cycles, but one can start in each (Gopal et al., "Fast CRC
 * Computation for iSCSI Polynomial Using CRC32 Instruction", Intel, 2011). Elsewhere by tables,
 * eight bytes at a time (Kounavis and Berry, "A Systematic Approach to Building High Performance
 * Software-based CRC Generators", ISCC 2005). Registers are reflected: bit 31 is the coefficient
 * of x^0.
 */
#include "base/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#define INSTRUCTION __attribute__((target("sse4.2")))
#define ADD_WORD(crc, word) _mm_crc32_u64(crc, word) /* 64 bits wide, to avoid moves between two */
#define ADD_BYTE(crc, byte) _mm_crc32_u8(crc, byte)
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define INSTRUCTION __attribute__((target("+crc")))
#define ADD_WORD(crc, word) __crc32cd((uint32_t)(crc), word)
#define ADD_BYTE(crc, byte) __crc32cb(crc, byte)
#endif

#define POLYNOMIAL 0x82f63b78u
#define X0 0x80000000u
#define X8 0x00800000u

/* The number of bytes in each of three streams; powers of two. */
#define LONG 8192
#define SHORT 256

/* by_byte[k][b]: the register after byte b and k bytes of zeros. */
static uint32_t by_byte[8][256];

static uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = X0; bit; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1 ? (b >> 1) ^ POLYNOMIAL : b >> 1;
  }
  return product;
}

/* The instructions take the first byte of memory from the lowest bits. */
static uint64_t load(const uint8_t *at) {
  uint64_t word;
  memcpy(&word, at, sizeof(word));
  return le64toh(word);
}

#ifdef INSTRUCTION
/* Each byte of a register, advanced by that many bytes of zeros. */
typedef uint32_t shift_table[4][256];
static shift_table by_long, by_short;
static bool has_instruction;

static void fill_shift(shift_table table, uint32_t bytes) {
  uint32_t power = X8;
  for (; bytes > 1; bytes >>= 1) power = multiply(power, power);
  for (int at = 0; at < 4; at++)
    for (uint32_t byte = 0; byte < 256; byte++) table[at][byte] = multiply(byte << 8 * at, power);
}

static void prepare_instruction(void) {
  fill_shift(by_long, LONG);
  fill_shift(by_short, SHORT);
#if defined(__x86_64__)
  has_instruction = __builtin_cpu_supports("sse4.2");
#else
  has_instruction = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

static uint32_t shift(shift_table table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
         table[3][crc >> 24];
}

/* Processes whole blocks of three streams of `length` bytes, and moves *at and *size behind
 * them. */
INSTRUCTION static inline uint32_t three_streams(uint32_t crc, const uint8_t **at, uint64_t *size,
                                                 uint64_t length, shift_table by_length) {
  for (; *size >= 3 * length; *at += 3 * length, *size -= 3 * length) {
    uint64_t first = crc, second = 0, third = 0;
    for (const uint8_t *word = *at, *end = word + length; word < end; word += 8) {
      first = ADD_WORD(first, load(word));
      second = ADD_WORD(second, load(word + length));
      third = ADD_WORD(third, load(word + 2 * length));
    }
    crc = shift(by_length, (uint32_t)first) ^ (uint32_t)second;
    crc = shift(by_length, crc) ^ (uint32_t)third;
  }
  return crc;
}

INSTRUCTION static uint32_t by_instruction(uint32_t crc, const uint8_t *at, uint64_t size) {
  crc = three_streams(crc, &at, &size, LONG, by_long);
  crc = three_streams(crc, &at, &size, SHORT, by_short);
  for (; size >= 8; at += 8, size -= 8) crc = (uint32_t)ADD_WORD(crc, load(at));
  for (; size; at++, size--) crc = ADD_BYTE(crc, *at);
  return crc;
}
#endif

static void prepare(void) {
  for (uint32_t byte = 0; byte < 256; byte++) by_byte[0][byte] = multiply(byte, X8);
  for (int zeros = 1; zeros < 8; zeros++)
    for (uint32_t byte = 0; byte < 256; byte++)
      by_byte[zeros][byte] = multiply(by_byte[zeros - 1][byte], X8);
#ifdef INSTRUCTION
  prepare_instruction();
#endif
}

static void prepare_once(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, prepare);
}

static uint32_t by_tables(uint32_t crc, const uint8_t *at, uint64_t size) {
  for (; size >= 8; at += 8, size -= 8) {
    uint64_t word = load(at) ^ crc;
    crc = 0;
    for (int i = 0; i < 8; i++) crc ^= by_byte[7 - i][word >> 8 * i & 0xff];
  }
  for (; size; at++, size--) crc = by_byte[0][(crc ^ *at) & 0xff] ^ crc >> 8;
  return crc;
}

uint32_t rdt_crc32c_portable(uint32_t crc, const void *data, uint64_t size) {
  prepare_once();
  return ~by_tables(~crc, data, size);
}

uint32_t rdt_crc32c(uint32_t crc, const void *data, uint64_t size) {
  prepare_once();
#ifdef INSTRUCTION
  if (has_instruction) return ~by_instruction(~crc, data, size);
#endif
  return ~by_tables(~crc, data, size);
}
