/* SPDX-License-Identifier: Apache-2.0 */
#include "base/copy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE ((size_t)64)
#define PAGE ((size_t)4096)
#define SIDE_BY_SIDE ((size_t)8) /* pages */
#define AHEAD 512                /* bytes to prefetch while others are copied */
#define USUAL_CACHE ((size_t)32 << 20)
#define MOST_CACHE ((size_t)64 << 20)

#if defined(__x86_64__)
#define INLINE static inline __attribute__((always_inline))

/* AMD processors read fastest with a hint not to cache; on Intel processors that hint halves the
 * speed of the whole copy. */
INLINE void read_soon(const char *line, bool amd) {
  if (amd)
    _mm_prefetch(line, _MM_HINT_NTA);
  else
    _mm_prefetch(line, _MM_HINT_T0);
}

INLINE void stream_line(char *to, const char *from) {
  for (size_t i = 0; i < LINE; i += sizeof(__m128i))
    _mm_stream_si128((void *)(to + i), _mm_loadu_si128((const void *)(from + i)));
}

/* The processor prefetches within each page by itself. Copying in several pages at once keeps
 * more reads in flight. */
INLINE void stream_pages(char *to, const char *from, bool amd) {
  for (size_t i = 0; i < PAGE; i += 2 * LINE) {
    for (size_t at = i; at < SIDE_BY_SIDE * PAGE; at += PAGE) {
      read_soon(from + at + 2 * LINE, amd);
      read_soon(from + at + 3 * LINE, amd);
      stream_line(to + at, from + at);
      stream_line(to + at + LINE, from + at + LINE);
    }
  }
}

/* AMD processors compare only the last 12 bits of addresses to find reads of what was just
 * written. Where these bits are equal, copying side by side loses most of the speed; copying in
 * sequence loses none. */
static bool too_alike(const char *to, const char *from) {
  const size_t apart = ((uintptr_t)to - (uintptr_t)from) % PAGE;
  return apart < 8 * LINE || apart > PAGE - 8 * LINE;
}

INLINE void stream(char *to, const char *from, size_t size, bool amd) {
  const char *const end = from + size;
  /* A cache line that is not written as a whole is read first. */
  const size_t gap = -(uintptr_t)to % LINE, head = gap < size ? gap : size;
  memcpy(to, from, head);
  to += head, from += head;
  const size_t block = amd && too_alike(to, from) ? SIZE_MAX : SIDE_BY_SIDE * PAGE;
  for (; (size_t)(end - from) >= block; to += block, from += block) stream_pages(to, from, amd);
  for (; (size_t)(end - from) >= LINE; to += LINE, from += LINE) {
    read_soon(from + AHEAD, amd);
    stream_line(to, from);
  }
  memcpy(to, from, (size_t)(end - from));
}

void rdt_stream(void *to, const void *from, size_t size) {
  if (__builtin_cpu_is("amd"))
    stream(to, from, size, true);
  else
    stream(to, from, size, false);
}

void rdt_stream_end(void) { _mm_sfence(); }

/* C libraries copy 2 KB and more, up to the size of the second-level cache, by one instruction
 * (rep movsb). AMD's Zen 3 and 4 run it at a twentieth of the speed if the target's offset in
 * its page is less than half a line above the source's. Large numpy arrays and regions have such
 * offsets. */
static bool trails(const char *to, const char *from) {
  return ((uintptr_t)to - (uintptr_t)from) % PAGE - 1 < LINE / 2 - 1;
}

/* Reads a line before it writes one, because a read waits for an earlier write to a similar
 * address. */
static void copy_line(char *to, const char *from) {
  const __m128i a = _mm_loadu_si128((const void *)from);
  const __m128i b = _mm_loadu_si128((const void *)(from + 16));
  const __m128i c = _mm_loadu_si128((const void *)(from + 32));
  const __m128i d = _mm_loadu_si128((const void *)(from + 48));
  _mm_store_si128((void *)to, a);
  _mm_store_si128((void *)(to + 16), b);
  _mm_store_si128((void *)(to + 32), c);
  _mm_store_si128((void *)(to + 48), d);
}

static void copy_lines(char *to, const char *from, size_t size) {
  const size_t gap = -(uintptr_t)to % LINE;
  memcpy(to, from, gap);
  to += gap, from += gap, size -= gap;
  for (; size >= LINE; to += LINE, from += LINE, size -= LINE) copy_line(to, from);
  memcpy(to, from, size);
}
#else
static bool trails(const char *to, const char *from) { return (void)to, (void)from, false; }
static void copy_lines(char *to, const char *from, size_t size) { memcpy(to, from, size); }
void rdt_stream(void *to, const void *from, size_t size) { memcpy(to, from, size); }
void rdt_stream_end(void) {}
#endif

void rdt_copy(void *to, const void *from, size_t size, size_t streamed) {
  if (size < streamed) {
    if (size > RDT_COPY_SMALL && trails(to, from))
      copy_lines(to, from, size);
    else
      memcpy(to, from, size);
    return;
  }
  rdt_stream(to, from, size);
  rdt_stream_end();
}

/* On some processors sysconf returns the sum of several caches, of which one thread uses one. */
static size_t last_cache(void) {
  size_t kilobytes = 0;
  FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
  if (!file) return USUAL_CACHE;
  if (fscanf(file, "%zuK", &kilobytes) != 1) kilobytes = 0;
  fclose(file);
  if (kilobytes == 0) return USUAL_CACHE;
  return kilobytes < MOST_CACHE >> 10 ? kilobytes << 10 : MOST_CACHE;
}

size_t rdt_streamed_from(void) {
  static atomic_size_t known;
  size_t half = atomic_load_explicit(&known, memory_order_relaxed);
  if (half == 0) {
    half = last_cache() / 2;
    atomic_store_explicit(&known, half, memory_order_relaxed);
  }
  return half;
}
