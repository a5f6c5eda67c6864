/* SPDX-License-Identifier: Apache-2.0
 *
 * Shareable memory: who may map it, and memory of a peer that must not be trusted.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "unit.h"

static void test_readonly_stays_readonly(void) {
  void *own, *theirs;
  int fd, readonly;
  EXPECT_STATUS(RDT_OK, rdt_memory_create(8192, &fd, &own));
  EXPECT_STATUS(RDT_OK, rdt_memory_reopen_readonly(fd, &readonly));
  EXPECT_STATUS(RDT_ERR_NO_MEMORY, rdt_memory_map(readonly, 0, 8192, true, &theirs));
  EXPECT_STATUS(RDT_OK, rdt_memory_map(readonly, 0, 8192, false, &theirs));
  memcpy((char *)own + 5000, "shared", 7);
  EXPECT(strcmp((char *)theirs + 5000, "shared") == 0);
  /* Sealed: no holder can make the other's mapping fault. */
  EXPECT(ftruncate(fd, 4096) != 0);
  munmap(own, 8192);
  munmap(theirs, 8192);
  close(fd);
  close(readonly);
}

static void test_a_part(void) {
  void *own, *part;
  int fd;
  EXPECT_STATUS(RDT_OK, rdt_memory_create(8192, &fd, &own));
  memcpy((char *)own + 4100, "shared", 7);
  EXPECT_STATUS(RDT_OK, rdt_memory_map(fd, 4096, 4096, false, &part));
  EXPECT(strcmp((char *)part + 4, "shared") == 0);
  munmap(part, 4096);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_memory_map(fd, 4096, 4097, false, &part));
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_memory_map(fd, 12288, 1, false, &part));
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_memory_map(fd, UINT64_MAX - 4095, 8192, false, &part));
  munmap(own, 8192);
  close(fd);
}

static void test_untrusted_memory(void) {
  void *mapped;
  int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING), sealed, pipes[2];
  EXPECT(unsealed >= 0 && ftruncate(unsealed, 8192) == 0 && pipe(pipes) == 0);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_memory_map(unsealed, 0, 8192, false, &mapped));
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_memory_map(pipes[0], 0, 8192, false, &mapped));
  EXPECT_STATUS(RDT_OK, rdt_memory_create(8192, &sealed, &mapped));
  munmap(mapped, 8192);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_memory_map(sealed, 0, 8193, false, &mapped));
  close(unsealed);
  close(sealed);
  close(pipes[0]);
  close(pipes[1]);
}

/* The machine may have no huge page left when it is touched: that would kill us. */
static void test_huge_pages(void) {
  void *mapped;
  int huge = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (huge < 0) return; /* not on this machine */
  EXPECT(ftruncate(huge, 2 << 20) == 0 && fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_memory_map(huge, 0, 8192, false, &mapped));
  EXPECT(strstr(rdt_last_error(), "unknown kind"));
  close(huge);
}

static void test_registry(void) {
  char *block;
  int fd;
  uint64_t offset;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(10000, (void **)&block));
  EXPECT_STATUS(RDT_OK, rdt_memory_find(block + 100, 50, &fd, &offset));
  EXPECT(offset == 100);
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, rdt_memory_find(block + 12000, 500, &fd, &offset));
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, rdt_memory_find(&fd, sizeof(fd), &fd, &offset));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_memory_free(block + 4096));
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, rdt_memory_find(block, 1, &fd, &offset));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_memory_alloc(0, (void **)&block));
}

/* What each block holds goes when it is freed, and the descriptor with the last one. */
static void test_many_blocks_have_one_descriptor(void) {
  char *blocks[3] = {NULL};
  int fds[3];
  uint64_t offset;
  struct stat file;
  for (int i = 0; i < 3; i++) {
    EXPECT_STATUS(RDT_OK, rdt_memory_alloc_beside(i ? blocks[0] : NULL, 5000, (void **)&blocks[i]));
    EXPECT_STATUS(RDT_OK, rdt_memory_find(blocks[i] + 100, 50, &fds[i], &offset));
    EXPECT(fds[i] == fds[0] && offset == 8192 * (uint64_t)i + 100);
    memset(blocks[i], 'a' + i, 5000);
  }
  EXPECT_STATUS(RDT_OK, rdt_memory_free(blocks[0]));
  EXPECT(blocks[1][0] == 'b' && blocks[2][4999] == 'c');
  EXPECT(fstat(fds[0], &file) == 0 && file.st_blocks * 512 == 2 * 8192);
  EXPECT(ftruncate(fds[0], 4096) != 0);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(blocks[1]));
  EXPECT_STATUS(RDT_OK, rdt_memory_free(blocks[2]));
  EXPECT(fcntl(fds[0], F_GETFD) == -1);
}

/* The kernel would kill the process for growing a file past the limit. */
static void test_file_size_limit(void) {
  void *block, *other;
  struct rlimit small = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
  EXPECT(setrlimit(RLIMIT_FSIZE, &small) == 0);
  EXPECT_STATUS(RDT_ERR_NO_MEMORY, rdt_memory_alloc(2 << 20, &block));
  EXPECT(strstr(rdt_last_error(), "ulimit -f"));
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc_beside(NULL, 1 << 20, &block));
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc_beside(block, 1 << 20, &other)); /* in another file */
  EXPECT_STATUS(RDT_ERR_NO_MEMORY, rdt_memory_alloc_beside(block, 2 << 20, &other));
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
}

/* Ends a child by whether all that it saw was right. */
static int ended_well(pid_t child) {
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

static void in_grandchild(char *block) {
  int right = strcmp(block, "child") == 0 && strcmp(block + 4096, "parent") == 0;
  memcpy(block, "grand", 6);
  _exit(right ? 0 : 1);
}

static void in_child(char *block) {
  int fd;
  uint64_t offset;
  void *own;
  int right = strcmp(block, "parent") == 0;
  memcpy(block, "child", 6);
  /* Peers would get the parent's bytes. */
  right = right && rdt_memory_find(block, 8, &fd, &offset) == RDT_ERR_UNSUPPORTED;
  right = right && rdt_memory_alloc(4096, &own) == RDT_OK && own != block &&
          rdt_memory_find(own, 8, &fd, &offset) == RDT_OK;
  pid_t grandchild = fork();
  if (grandchild == 0) in_grandchild(block);
  right = right && ended_well(grandchild) && strcmp(block, "child") == 0;
  right = right && rdt_memory_free(own) == RDT_OK && rdt_memory_free(block) == RDT_OK;
  _exit(right ? 0 : 1);
}

static void test_forked_child_writes_its_own(void) {
  char *first, *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc_beside(NULL, 4096, (void **)&first));
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc_beside(first, 8192, (void **)&block));
  memcpy(block, "parent", 7);
  memcpy(block + 4096, "parent", 7);
  pid_t child = fork();
  if (child == 0) in_child(block);
  EXPECT(ended_well(child));
  EXPECT(strcmp(block, "parent") == 0);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  EXPECT_STATUS(RDT_OK, rdt_memory_free(first));
}

int main(void) {
  test_readonly_stays_readonly();
  test_a_part();
  test_untrusted_memory();
  test_huge_pages();
  test_registry();
  test_many_blocks_have_one_descriptor();
  test_forked_child_writes_its_own();
  test_file_size_limit();
  return 0;
}
