/* SPDX-License-Identifier: Apache-2.0
 *
 * What a harness is made of. Each defines LLVMFuzzerTestOneInput, which libFuzzer, or driver.c where there is
 * no libFuzzer, calls again and again in one process, and fuzz_seed, whose real messages are where the
 * corpus came from. What must hold is said with FUZZ_EXPECT; sanitizers say the rest.
 */
#ifndef RDT_TESTS_FUZZ_H
#define RDT_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *count, char ***arguments); /* seeds.c */
/* The seed with this number, from 0 on; its size, at most `capacity`, or 0 after the last. */
size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity);

#ifdef __cplusplus
}
#endif

#define FUZZ_SEED_MOST 65536u

#define FUZZ_EXPECT(condition)                                                       \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                       \
    }                                                                                \
  } while (0)

/* The input, taken piece by piece; zeros once it is used up. */
typedef struct fuzz_input {
  const uint8_t *data;
  size_t left;
} fuzz_input;

static inline uint64_t fuzz_number(fuzz_input *input, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes && input->left > 0; i++, input->data++, input->left--)
    number |= (uint64_t)*input->data << (8 * i);
  return number;
}

static inline uint8_t fuzz_u8(fuzz_input *input) { return (uint8_t)fuzz_number(input, 1); }
static inline uint16_t fuzz_u16(fuzz_input *input) { return (uint16_t)fuzz_number(input, 2); }
static inline uint32_t fuzz_u32(fuzz_input *input) { return (uint32_t)fuzz_number(input, 4); }
static inline uint64_t fuzz_u64(fuzz_input *input) { return fuzz_number(input, 8); }
static inline uint64_t fuzz_below(fuzz_input *input, uint64_t limit) {
  return fuzz_number(input, limit > 256 ? 4 : 1) % limit;
}

/* The next bytes, as many as there are up to `most`. */
static inline const uint8_t *fuzz_bytes(fuzz_input *input, size_t most, size_t *size) {
  const uint8_t *bytes = input->data;
  *size = input->left < most ? input->left : most;
  input->data += *size;
  input->left -= *size;
  return bytes;
}

/* The same, with their number before them: 16 bits. */
static inline const uint8_t *fuzz_chunk(fuzz_input *input, size_t *size) {
  return fuzz_bytes(input, fuzz_u16(input), size);
}

/* A copy with nothing around it, for the sanitizer; free it. */
static inline void *fuzz_copy(const void *bytes, size_t size) {
  void *copy = malloc(size ? size : 1);
  FUZZ_EXPECT(copy);
  if (size) memcpy(copy, bytes, size);
  return copy;
}

/* Writes seeds. */
typedef struct fuzz_output {
  uint8_t *data;
  size_t size, capacity;
} fuzz_output;

static inline void fuzz_put(fuzz_output *output, const void *bytes, size_t size) {
  FUZZ_EXPECT(size <= output->capacity - output->size);
  if (size) memcpy(output->data + output->size, bytes, size);
  output->size += size;
}

static inline void fuzz_put_number(fuzz_output *output, uint64_t number, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    uint8_t byte = (uint8_t)(number >> (8 * i));
    fuzz_put(output, &byte, 1);
  }
}

static inline void fuzz_put_chunk(fuzz_output *output, const void *bytes, size_t size) {
  fuzz_put_number(output, size, 2);
  fuzz_put(output, bytes, size);
}

#endif
