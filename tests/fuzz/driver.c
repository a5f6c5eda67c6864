/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a harness where there is no libFuzzer: replays files and folders, then mutates what it replayed for
 * `-seconds=N`. It knows nothing of coverage, so it finds less in more time.
 */
#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>
#include <time.h>

#include "fuzz.h"

#define MOST_INPUTS 4096u
#define MOST_MUTATIONS 8u

typedef struct input {
  uint8_t *data;
  size_t size;
} input;

static input inputs[MOST_INPUTS];
static size_t input_count;
static uint64_t state = 0x9e3779b97f4a7c15ull;
static unsigned long long executed;

/* xorshift64*. Source: Vigna, An experimental exploration of Marsaglia's xorshift generators (2016). */
static uint64_t next_random(void) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545f4914f6cdd1dull;
}

static size_t below(size_t limit) { return limit ? (size_t)(next_random() % limit) : 0; }

static void execute(const uint8_t *data, size_t size) {
  void *copy = fuzz_copy(data, size);
  LLVMFuzzerTestOneInput(copy, size);
  free(copy);
  executed++;
}

/* What is being executed, for whoever looks at a crash. */
static void keep_last(const uint8_t *data, size_t size) {
  const char *path = getenv("FUZZ_LAST_INPUT");
  FILE *file = path ? fopen(path, "wb") : NULL;
  if (!file) return;
  fwrite(data, 1, size, file);
  fclose(file);
}

static void load_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || input_count == MOST_INPUTS) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(2);
  }
  uint8_t *data = malloc(FUZZ_SEED_MOST);
  FUZZ_EXPECT(data);
  inputs[input_count].size = fread(data, 1, FUZZ_SEED_MOST, file);
  inputs[input_count++].data = data;
  fclose(file);
}

static void load(const char *path) {
  struct stat about;
  if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
    load_file(path);
    return;
  }
  struct dirent **entries;
  int count = scandir(path, &entries, NULL, alphasort);
  for (int i = 0; i < count; i++) {
    char name[PATH_MAX];
    snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.') load_file(name);
    free(entries[i]);
  }
  if (count >= 0) free(entries);
}

/* One change of `data`, which has room for FUZZ_SEED_MOST bytes; its new size. */
static size_t mutate(uint8_t *data, size_t size) {
  static const uint8_t telling[] = {0, 1, 2, 7, 8, 15, 16, 0x7f, 0x80, 0xfe, 0xff};
  size_t at = below(size + 1), span = 1 + below(8);
  if (size - at < span) span = size - at;
  switch (below(6)) {
    case 0: /* cut out */
      memmove(data + at, data + at + span, size - at - span);
      return size - span;
    case 1: /* put in */
      if (size + span > FUZZ_SEED_MOST) return size;
      memmove(data + at + span, data + at, size - at);
      for (size_t i = 0; i < span; i++) data[at + i] = (uint8_t)next_random();
      return size + span;
    case 2:
      for (size_t i = 0; i < span; i++) data[at + i] = (uint8_t)next_random();
      return size;
    case 3:
      for (size_t i = 0; i < span; i++) data[at + i] = telling[below(sizeof(telling))];
      return size;
    case 4:
      if (at < size) data[at] ^= (uint8_t)(1u << below(8));
      return size;
    default: { /* take from another */
      const input *other = &inputs[below(input_count)];
      size_t from = below(other->size);
      if (other->size == 0) return size;
      size_t count = 1 + below(other->size - from);
      if (at + count > FUZZ_SEED_MOST) count = FUZZ_SEED_MOST - at;
      memcpy(data + at, other->data + from, count);
      return at + count > size ? at + count : size;
    }
  }
}

static void fuzz_for(int seconds) {
  static uint8_t data[FUZZ_SEED_MOST];
  time_t end = time(NULL) + seconds;
  while (time(NULL) < end) {
    const input *base = &inputs[below(input_count)];
    size_t size = base->size;
    memcpy(data, base->data, size);
    for (size_t changes = 1 + below(MOST_MUTATIONS); changes > 0; changes--)
      size = mutate(data, size);
    keep_last(data, size);
    execute(data, size);
  }
}

int main(int count, char **arguments) {
  int seconds = 0;
  LLVMFuzzerInitialize(&count, &arguments);
  for (int i = 1; i < count; i++) {
    const char *argument = arguments[i];
    if (strncmp(argument, "-seconds=", 9) == 0)
      seconds = atoi(argument + 9);
    else if (strncmp(argument, "-random=", 8) == 0)
      state ^= strtoull(argument + 8, NULL, 10) * 0x2545f4914f6cdd1dull;
    else
      load(argument);
  }
  static const input nothing = {(uint8_t *)"", 0};
  if (input_count == 0) inputs[input_count++] = nothing;
  for (size_t i = 0; i < input_count; i++) {
    keep_last(inputs[i].data, inputs[i].size);
    execute(inputs[i].data, inputs[i].size);
  }
  if (seconds > 0) fuzz_for(seconds);
  printf("executed %llu\n", executed);
  return 0;
}
