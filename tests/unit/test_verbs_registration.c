/* SPDX-License-Identifier: Apache-2.0
 *
 * The limit of pinned memory, on recorded texts, and making pages resident, for real. No device needed.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transport/verbs/pretouch.h"
#include "transport/verbs/registration.h"
#include "unit.h"

#define MIB (1ull << 20)

static const char ordinary_user[] =
    "Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\nVmPeak:\t 9127424 kB\n"
    "VmLck:\t     512 kB\nVmPin:\t   65536 kB\nVmHWM:\t  812345 kB\n"
    "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n";
static const char root[] =
    "Name:\tpython3\nVmLck:\t       0 kB\nVmPin:\t       0 kB\nCapEff:\t000001ffffffffff\n";
static const char container_root[] = /* docker's default set: no CAP_IPC_LOCK */
    "Name:\tpython3\nVmPin:\t       0 kB\nCapEff:\t00000000a80425fb\n";
/* A process may call itself what it likes. */
static const char odd_name[] =
    "Name:\tVmPin: 7 kB\nVmPin:\t    2048 kB\nCapEff:\t0000000000004000\n";

static void test_parsing(void) {
  rdt_verbs_memlock memlock = {0};
  rdt_verbs_memlock_parse(ordinary_user, &memlock);
  EXPECT(memlock.pinned == 64 * MIB && !memlock.exempt);
  rdt_verbs_memlock_parse(root, &memlock);
  EXPECT(memlock.pinned == 0 && memlock.exempt);
  rdt_verbs_memlock_parse(container_root, &memlock);
  EXPECT(memlock.pinned == 0 && !memlock.exempt);
  rdt_verbs_memlock_parse(odd_name, &memlock);
  EXPECT(memlock.pinned == 2 * MIB && memlock.exempt);
  rdt_verbs_memlock_parse("", &memlock);
  EXPECT(memlock.pinned == 0 && !memlock.exempt);
}

static void test_limit(void) {
  rdt_verbs_memlock memlock = {.limit = 100 * MIB, .pinned = 64 * MIB};
  EXPECT_STATUS(RDT_OK, rdt_verbs_memlock_check(&memlock, 36 * MIB));
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_verbs_memlock_check(&memlock, 36 * MIB + 4096));
  EXPECT(strstr(rdt_last_error(), "cannot pin 37 MiB"));
  EXPECT(strstr(rdt_last_error(), "64 MiB are pinned already"));
  EXPECT(strstr(rdt_last_error(), "may pin 100 MiB"));
  EXPECT(strstr(rdt_last_error(), "ulimit -l unlimited"));
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_verbs_memlock_check(&memlock, UINT64_MAX));
  memlock.pinned = 200 * MIB; /* the limit was lowered since */
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_verbs_memlock_check(&memlock, 0));
  memlock.exempt = true;
  EXPECT_STATUS(RDT_OK, rdt_verbs_memlock_check(&memlock, UINT64_MAX));
  memlock = (rdt_verbs_memlock){.limit = RDT_VERBS_NO_LIMIT, .pinned = 1};
  EXPECT_STATUS(RDT_OK, rdt_verbs_memlock_check(&memlock, UINT64_MAX));
  memlock = (rdt_verbs_memlock){.limit = 64 << 10};
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_verbs_memlock_check(&memlock, 65 << 10));
  EXPECT(strstr(rdt_last_error(), "cannot pin 65 KiB") && strstr(rdt_last_error(), "pin 64 KiB"));
}

static void test_pages(void) {
  EXPECT(rdt_verbs_pinned_bytes(0x10000, 4096, 4096) == 4096);
  EXPECT(rdt_verbs_pinned_bytes(0x10001, 4096, 4096) == 8192);
  EXPECT(rdt_verbs_pinned_bytes(0x10fff, 1, 4096) == 4096);
  EXPECT(rdt_verbs_pinned_bytes(0x10fff, 2, 4096) == 8192);
  EXPECT(rdt_verbs_pinned_bytes(0x10000, 1, 65536) == 65536);
}

static void test_threads(void) {
  EXPECT(rdt_verbs_pretouch_threads(0, 4) == 1);
  EXPECT(rdt_verbs_pretouch_threads(31 * MIB, 4) == 1);
  EXPECT(rdt_verbs_pretouch_threads(32 * MIB, 4) == 2);
  EXPECT(rdt_verbs_pretouch_threads(1024 * MIB, 4) == 4);
  EXPECT(rdt_verbs_pretouch_threads(1024 * MIB, 96) == 8);
  EXPECT(rdt_verbs_pretouch_threads(1024 * MIB, 0) == 1);
}

static size_t resident_pages(void *address, size_t size) {
  static unsigned char map[64 * MIB / 4096];
  size_t page = (size_t)sysconf(_SC_PAGESIZE), count = 0;
  EXPECT(size / page <= sizeof(map) && mincore(address, size, map) == 0);
  for (size_t i = 0; i < size / page; i++) count += map[i] & 1;
  return count;
}

static char *map_pages(size_t size, int protection, int flags) {
  void *address = mmap(NULL, size, protection, flags | MAP_NORESERVE, -1, 0);
  EXPECT(address != MAP_FAILED);
  return address;
}

/* Every page of an unaligned range, in more than one thread where there are processors for it, and what
 * was there stays. */
static void test_resident(void) {
  size_t size = 48 * MIB, page = (size_t)sysconf(_SC_PAGESIZE);
  char *shared = map_pages(size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  shared[5 * page] = 42;
  rdt_verbs_pretouch(shared + page + 1, size - 2 * page - 1, true);
  EXPECT(resident_pages(shared, size) == size / page - 2);
  EXPECT(shared[5 * page] == 42 && shared[6 * page] == 0);
  munmap(shared, size);

  char *private = map_pages(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  rdt_verbs_pretouch(private, size, true);
  EXPECT(resident_pages(private, size) == size / page);
  munmap(private, size);

  void *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(size, &block));
  rdt_verbs_pretouch(block, size, false); /* a source */
  EXPECT(resident_pages(block, size) == size / page);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
}

/* Neither method harms what it may not touch. */
static void test_untouchable(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = map_pages(8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  EXPECT(mprotect(pages + 2 * page, page, PROT_READ) == 0);
  EXPECT(mprotect(pages + 4 * page, page, PROT_NONE) == 0);
  EXPECT(munmap(pages + 6 * page, page) == 0);
  rdt_verbs_pretouch(pages, 8 * page, true);
  rdt_verbs_pretouch(pages, 8 * page, false);
  EXPECT(rdt_verbs_touch_by_hand(pages, 2 * page, true));
  EXPECT(resident_pages(pages, 2 * page) == 2);
  EXPECT(!rdt_verbs_touch_by_hand(pages, 3 * page, true));  /* read-only */
  EXPECT(rdt_verbs_touch_by_hand(pages, 4 * page, false));  /* which is enough to be read */
  EXPECT(!rdt_verbs_touch_by_hand(pages, 5 * page, false)); /* no access */
  EXPECT(!rdt_verbs_touch_by_hand(pages + 5 * page, 2 * page, true)); /* a hole */
  EXPECT(rdt_verbs_touch_by_hand(pages + 7 * page, page, true));
  munmap(pages, 8 * page);
}

/* A file can be cut off under its mapping, and then touching it kills; blocks of ours are sealed. */
static void test_files(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  int file = memfd_create("test", MFD_CLOEXEC);
  EXPECT(file >= 0 && ftruncate(file, (off_t)page) == 0);
  char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  EXPECT(pages != MAP_FAILED);
  rdt_verbs_pretouch(pages, 2 * page, true); /* the second page lies beyond its end */
  EXPECT(!rdt_verbs_touch_by_hand(pages, 2 * page, true));
  munmap(pages, 2 * page);
  close(file);
  void *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(2 * page, &block));
  EXPECT(rdt_verbs_touch_by_hand(block, 2 * page, true));
  EXPECT(resident_pages(block, 2 * page) == 2);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
}

int main(void) {
  test_parsing();
  test_limit();
  test_pages();
  test_threads();
  test_resident();
  test_untouchable();
  test_files();
  return 0;
}
