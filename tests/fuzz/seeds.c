/* SPDX-License-Identifier: Apache-2.0
 *
 * With FUZZ_SEEDS=FOLDER a harness writes its seeds there, and does nothing else.
 */
#include <limits.h>

#include "fuzz.h"

static void write_seeds(const char *folder) {
  static uint8_t seed[FUZZ_SEED_MOST];
  for (unsigned number = 0;; number++) {
    char path[PATH_MAX];
    size_t size = fuzz_seed(number, seed, sizeof(seed));
    if (size == 0) return;
    snprintf(path, sizeof(path), "%s/seed-%02u", folder, number);
    FILE *file = fopen(path, "wb");
    FUZZ_EXPECT(file && fwrite(seed, 1, size, file) == size && fclose(file) == 0);
  }
}

/* Called before the first input. */
int LLVMFuzzerInitialize(int *count, char ***arguments) {
  const char *folder = getenv("FUZZ_SEEDS");
  (void)count, (void)arguments;
  if (!folder) return 0;
  write_seeds(folder);
  exit(0);
}
