/* SPDX-License-Identifier: Apache-2.0 */
#include "base/openssl.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Sanitizers refuse to open libraries so. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define APART 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define APART 0
#endif
#endif
#ifndef APART
#define APART RTLD_DEEPBIND
#endif

#if defined(__x86_64__)
#define IS_FUNCTION(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#elif defined(__aarch64__)
#define IS_FUNCTION(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#else
#define IS_FUNCTION(type) false
#endif

void *rdt_openssl_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL | APART); }

bool rdt_openssl_find(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof(found));
  return found != NULL;
}

typedef struct tables {
  const char *names;
  const ElfW(Sym) * symbols;
  struct {
    const ElfW(Rela) * first;
    size_t bytes;
  } calls[2]; /* through the procedure linkage table, and others */
} tables;

/* Some C libraries relocate the entries of the dynamic section, and some do not. */
static const void *place(const struct link_map *map, ElfW(Addr) address) {
  return (const void *)(address < map->l_addr ? map->l_addr + address : address);
}

static tables tables_of(const struct link_map *map) {
  tables found = {.names = NULL};
  for (const ElfW(Dyn) *each = map->l_ld; each->d_tag != DT_NULL; each++) {
    if (each->d_tag == DT_STRTAB) found.names = place(map, each->d_un.d_ptr);
    if (each->d_tag == DT_SYMTAB) found.symbols = place(map, each->d_un.d_ptr);
    if (each->d_tag == DT_JMPREL) found.calls[0].first = place(map, each->d_un.d_ptr);
    if (each->d_tag == DT_PLTRELSZ) found.calls[0].bytes = each->d_un.d_val;
    if (each->d_tag == DT_RELA) found.calls[1].first = place(map, each->d_un.d_ptr);
    if (each->d_tag == DT_RELASZ) found.calls[1].bytes = each->d_un.d_val;
  }
  return found;
}

static bool is_right(const struct link_map *map, const tables *has, const ElfW(Rela) * call,
                     void *other) {
  if (!IS_FUNCTION(ELF64_R_TYPE(call->r_info))) return true;
  const ElfW(Sym) *symbol = &has->symbols[ELF64_R_SYM(call->r_info)];
  uintptr_t bound = *(const uintptr_t *)(map->l_addr + call->r_offset);
  if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC) return true;
  if (symbol->st_shndx != SHN_UNDEF) return bound == map->l_addr + symbol->st_value;
  void *wanted = other ? dlsym(other, has->names + symbol->st_name) : NULL;
  Dl_info from, to;
  if (!wanted || !dladdr(wanted, &from) || !dladdr((const void *)bound, &to)) return true;
  const struct link_map *others;
  if (dlinfo(other, RTLD_DI_LINKMAP, &others) != 0 ||
      from.dli_fbase != (void *)others->l_addr) /* of the C library, for example */
    return true;
  return from.dli_fbase == to.dli_fbase;
}

bool rdt_openssl_is_apart(void *library, void *other) {
  const struct link_map *map;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return false;
  tables has = tables_of(map);
  for (int i = 0; i < 2; i++)
    for (size_t at = 0; at < has.calls[i].bytes / sizeof(ElfW(Rela)); at++)
      if (!is_right(map, &has, &has.calls[i].first[at], other)) return false;
  return true;
}
