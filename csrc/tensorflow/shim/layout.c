/* SPDX-License-Identifier: Apache-2.0
 *
 * Distributions and vendors build a version of TensorFlow with different libraries, switches and patches. The
 * dynamic linker notices a missing symbol, but not an additional virtual function of a class or field of a message,
 * with which the plugin would call the wrong function or write past the end of an object. The sizes of exported
 * objects show such changes. The functions of libdl find the size of an object only by visiting every symbol, of
 * which TensorFlow has half a million, so this file reads the library's hash table.
 */
#include "layout.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LIBRARIES 2

/* In the order in which record_tensorflow.py searches. */
static const char *const names[LIBRARIES] = {"libtensorflow_framework.so.2",
                                             "libtensorflow_cc.so.2"};

/* The exports of a library. `hashes` is NULL if the library is not loaded or has no such table. */
typedef struct exports {
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *hashes; /* DT_GNU_HASH */
} exports;

static void find_exports(exports *found, const char *name) {
  memset(found, 0, sizeof *found);
  void *library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  struct link_map *map = NULL;
  if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return;
  for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
    /* The dynamic linker has added the base already, unless it could not write there. */
    ElfW(Addr) address = entry->d_un.d_ptr;
    const void *at = (const void *)(address < map->l_addr ? address + map->l_addr : address);
    if (entry->d_tag == DT_SYMTAB) found->symbols = at;
    if (entry->d_tag == DT_STRTAB) found->strings = at;
    if (entry->d_tag == DT_GNU_HASH) found->hashes = at;
  }
  dlclose(library); /* only the reference taken above */
}

/* The size of the object `name`; -1 if the library does not export it. */
static int64_t size_of(const exports *library, const char *name) {
  if (!library->hashes || !library->symbols || !library->strings) return -1;
  uint32_t hash = 5381;
  for (const char *at = name; *at; at++) hash = hash * 33 + (unsigned char)*at;
  const uint32_t count = library->hashes[0], first = library->hashes[1];
  const uint32_t filter = library->hashes[2] * (uint32_t)(sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *buckets = library->hashes + 4 + filter, *chains = buckets + count;
  uint32_t index = count ? buckets[hash % count] : 0;
  if (index < first) return -1;
  for (;; index++) {
    const ElfW(Sym) *symbol = &library->symbols[index];
    const uint32_t entry = chains[index - first];
    if ((entry | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
        strcmp(library->strings + symbol->st_name, name) == 0)
      return (int64_t)symbol->st_size;
    if (entry & 1) return -1; /* the chain ends */
  }
}

static bool fits(FILE *record, const char *version, char *why, size_t size) {
  char built[64], name[1024], what[64];
  unsigned long long wanted;
  exports libraries[LIBRARIES];
  for (int i = 0; i < LIBRARIES; i++) find_exports(&libraries[i], names[i]);
  int read = fscanf(record, "TensorFlow %63s", built) == 1 ? 2 : 0;
  while (read == 2 && (read = fscanf(record, "%llu %1023s", &wanted, name)) == 2) {
    int64_t found = size_of(&libraries[0], name);
    if (found < 0) found = size_of(&libraries[1], name);
    if (found == (int64_t)wanted) continue;
    snprintf(what, sizeof what, "has %lld bytes, not %llu", (long long)found, wanted);
    snprintf(
        why, size,
        "this TensorFlow %s is another build than the %s that the plugin was made for (%s %s): "
        "install rdmatensor from its sources beside this TensorFlow",
        version, built, name, found < 0 ? "is missing" : what);
    return false;
  }
  if (read == EOF && !ferror(record)) return true;
  snprintf(why, size,
           "the plugin's record of TensorFlow's layout is damaged: install rdmatensor again");
  return false;
}

bool layout_fits(const char *path, const char *version, char *why, size_t size) {
  FILE *record = fopen(path, "re");
  if (!record) {
    snprintf(why, size, "%s is missing: install rdmatensor again", path);
    return false;
  }
  bool fit = fits(record, version, why, size);
  fclose(record);
  return fit;
}
