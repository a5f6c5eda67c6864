/* SPDX-License-Identifier: Apache-2.0
 *
 * A library to be loaded before all others (LD_PRELOAD): the plugin's threads pause at random where they take or give
 * back a lock, so that what threads do meets in orders that are rare otherwise. Environment:
 *
 *   DELAYS_ONE_IN=n  a thread pauses at one of n locks
 *   DELAYS_MOST_US=n for at most n us
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*lock_fn)(pthread_mutex_t *);

/* The code of the plugin; `last` is set last, and 0 until the plugin is loaded. */
static atomic_uintptr_t first, last;

static unsigned setting(const char *name, unsigned otherwise) {
  const char *text = getenv(name);
  return text ? (unsigned)atoi(text) : otherwise;
}

static int look(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size;
  (void)context;
  if (!info->dlpi_name || !strstr(info->dlpi_name, "librdmatensor_tensorflow")) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD || !(info->dlpi_phdr[i].p_flags & PF_X)) continue;
    atomic_store(&first, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    atomic_store(&last, atomic_load(&first) + info->dlpi_phdr[i].p_memsz);
  }
  return 1;
}

/* Looks for the plugin now and then, and not from within the loader's own locks. */
static int is_plugins(uintptr_t caller) {
  static atomic_flag looking = ATOMIC_FLAG_INIT;
  static _Thread_local unsigned calls;
  if (!atomic_load(&last) && ++calls % 1024 == 0 && !atomic_flag_test_and_set(&looking)) {
    dl_iterate_phdr(look, NULL);
    atomic_flag_clear(&looking);
  }
  return caller >= atomic_load(&first) && caller < atomic_load(&last);
}

static void pause_at_random(uintptr_t caller) {
  static _Thread_local uint64_t state;
  if (!is_plugins(caller)) return;
  if (!state) state = (uintptr_t)&state * 0x9e3779b97f4a7c15u;
  state = state * 6364136223846793005u + 1442695040888963407u;
  const unsigned drawn = (unsigned)(state >> 33), most = setting("DELAYS_MOST_US", 3000);
  if (drawn % setting("DELAYS_ONE_IN", 60) == 0) usleep((drawn >> 8) % (most + 1));
}

static lock_fn next(_Atomic(lock_fn) *known, const char *name) {
  lock_fn found = atomic_load(known);
  if (found) return found;
  *(void **)&found = dlsym(RTLD_NEXT, name);
  atomic_store(known, found);
  return found;
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
  static _Atomic(lock_fn) real;
  pause_at_random((uintptr_t)__builtin_return_address(0));
  return next(&real, "pthread_mutex_lock")(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
  static _Atomic(lock_fn) real;
  const int status = next(&real, "pthread_mutex_unlock")(mutex);
  pause_at_random((uintptr_t)__builtin_return_address(0));
  return status;
}
