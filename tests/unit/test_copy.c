/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies past the cache and into it: every alignment of both ends, sizes around a line and a piece, and nothing
 * beside them.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "unit.h"

#define SIZE 5000
#define LINE 64
#define PAGE 4096

/* In the same places of their pages. */
static _Alignas(PAGE) char from[SIZE + LINE], to[SIZE + 2 * LINE];

static void expect_copied(size_t to_at, size_t from_at, size_t size, size_t streamed) {
  memset(to, 0x5a, sizeof(to));
  rdt_copy(to + 1 + to_at, from + from_at, size, streamed);
  EXPECT(memcmp(to + 1 + to_at, from + from_at, size) == 0);
  EXPECT(to[to_at] == 0x5a && to[1 + to_at + size] == 0x5a);
}

static void test_alignments(size_t streamed) {
  for (size_t i = 0; i < sizeof(from); i++) from[i] = (char)(i * 31 + i / 251);
  for (size_t to_at = 0; to_at < LINE; to_at++)
    for (size_t from_at = 0; from_at < LINE; from_at += 7)
      expect_copied(to_at, from_at, SIZE, streamed);
  for (size_t size = 0; size <= 3 * LINE; size++) expect_copied(size % LINE, 3, size, streamed);
  for (size_t size = 1; size <= SIZE; size += RDT_COPY_SMALL - 1)
    for (size_t more = 0; more < 3 && size + more <= SIZE; more++)
      expect_copied(20, 3, size + more, streamed);
}

/* Less than `streamed`, and more than a cache holds. */
static void test_sizes(void) {
  const size_t half = rdt_streamed_from(), size = half + 12345;
  char *source = malloc(size), *target = calloc(1, size);
  EXPECT(half >= 64 << 10 && half == rdt_streamed_from());
  EXPECT(source && target);
  for (size_t i = 0; i < size; i++) source[i] = (char)(i * 31 + i / 251);
  /* Pages side by side, and in sequence. */
  for (size_t at = 0; at < 4096; at += 509) {
    rdt_copy(target, source + at, size - at, 1);
    EXPECT(memcmp(target, source + at, size - at) == 0);
  }
  memset(target, 0, size);
  rdt_copy(target, source, half - 1, half);
  EXPECT(memcmp(target, source, half - 1) == 0 && target[half - 1] == 0);
  rdt_copy(target, source, size, half);
  EXPECT(memcmp(target, source, size) == 0);
  free(source);
  free(target);
}

int main(void) {
  test_alignments(1);
  test_alignments(SIZE_MAX);
  test_sizes();
  return 0;
}
