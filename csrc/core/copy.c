/* SPDX-License-Identifier: Apache-2.0 */
#include "core/copy.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE ((size_t)64)
#define AHEAD 512 /* bytes that are on their way from memory while others are copied */
#define USUAL_CACHE (32u << 20)

#if defined(__x86_64__)
void rdt_stream(void *to, const void *from, size_t size) {
  char *target = to;
  const char *source = from;
  /* Lines that are not written as a whole are read first. */
  const size_t gap = -(uintptr_t)target % LINE, head = gap < size ? gap : size;
  memcpy(target, source, head);
  size_t i = head;
  for (; i + LINE <= size; i += LINE) {
    _mm_prefetch(source + i + AHEAD, _MM_HINT_NTA);
    for (size_t k = i; k < i + LINE; k += sizeof(__m128i))
      _mm_stream_si128((void *)(target + k), _mm_loadu_si128((const void *)(source + k)));
  }
  memcpy(target + i, source + i, size - i);
}

void rdt_stream_end(void) { _mm_sfence(); }
#else
void rdt_stream(void *to, const void *from, size_t size) { memcpy(to, from, size); }
void rdt_stream_end(void) {}
#endif

void rdt_copy(void *to, const void *from, size_t size, size_t streamed) {
  if (size < streamed) {
    memcpy(to, from, size);
    return;
  }
  rdt_stream(to, from, size);
  rdt_stream_end();
}

size_t rdt_half_of_cache(void) {
  static atomic_size_t known; /* asking takes a microsecond or more in virtual machines */
  size_t half = atomic_load_explicit(&known, memory_order_relaxed);
  if (half == 0) {
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    half = (cache > 0 ? (size_t)cache : USUAL_CACHE) / 2;
    atomic_store_explicit(&known, half, memory_order_relaxed);
  }
  return half;
}
