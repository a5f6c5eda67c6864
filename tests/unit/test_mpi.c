/* SPDX-License-Identifier: Apache-2.0
 *
 * The MPI of one process, as XLA uses it: several threads, each with a communicator, which are freed late. The other
 * members are groups of this process, which call what the MPI calls at the same time.
 */
#include <sys/resource.h>

#include "group_trials.h"
#include "mpi/abi.h"
#include "mpi/errors.h"
#include "mpi/mpi.h"

int MPIABI_Init_thread(int *, char ***, int, int *);
int MPIABI_Allreduce(const void *, void *, int, rdt_mpi_handle, rdt_mpi_handle, rdt_mpi_handle);
int MPIABI_Allgather(const void *, int, rdt_mpi_handle, void *, int, rdt_mpi_handle,
                     rdt_mpi_handle);
int MPIABI_Reduce_scatter(const void *, void *, const int *, rdt_mpi_handle, rdt_mpi_handle,
                          rdt_mpi_handle);
int MPIABI_Irecv(void *, int, rdt_mpi_handle, int, int, rdt_mpi_handle, rdt_mpi_handle *);
int MPIABI_Sendrecv(const void *, int, rdt_mpi_handle, int, int, void *, int, rdt_mpi_handle, int,
                    int, rdt_mpi_handle, void *);
int MPIABI_Wait(rdt_mpi_handle *, void *);
int MPIABI_Comm_split(rdt_mpi_handle, int, int, rdt_mpi_handle *);
int MPIABI_Comm_free(rdt_mpi_handle *);
int MPIABI_Comm_rank(rdt_mpi_handle, int *);
int MPIABI_Comm_size(rdt_mpi_handle, int *);

enum { SIZE = 3, CLIQUES = 4, MOST = 100000 };
#define OK RDT_MPI_SUCCESS
#define INT RDT_MPI_INT32_T
static const uint64_t counts[] = {3, 999, MOST};
#define COUNTS (sizeof counts / sizeof *counts)

/* The devices of a clique are processes here, and its color is its number. */
static const struct {
  uint32_t size;
  int32_t processes[SIZE];
} cliques[CLIQUES] = {{2, {0, 1}}, {2, {2, 0}}, {3, {0, 1, 2}}, {3, {2, 1, 0}}};

static uint32_t rank_in(int number, uint32_t process) {
  uint32_t rank = 0;
  while (cliques[number].processes[rank] != (int32_t)process) rank++;
  return rank;
}

static bool is_in(int number, uint32_t process) {
  for (uint32_t i = 0; i < cliques[number].size; i++)
    if (cliques[number].processes[i] == (int32_t)process) return true;
  return false;
}

/* One clique, as one process sees it. */
typedef struct {
  member *member;
  int number;
  rdt_group *group; /* of the others */
  rdt_mpi_handle comm;
  rdt_mpi_handle request;
  int error;
  char text[RDT_MPI_ERROR_SIZE];
  int32_t in[MOST], out[SIZE * MOST];
  atomic_int begun;
} seat;

static void fill(seat *s, uint64_t count, uint32_t rank) {
  for (uint64_t i = 0; i < count; i++) s->in[i] = input_at(rank, i);
}

static void expect_result(const seat *s, rdt_collective_kind kind, uint64_t count, uint32_t rank) {
  const uint32_t size = cliques[s->number].size;
  const trial t = {.kind = kind, .count = count};
  for (uint64_t i = 0; i < output_count(&t, rank, size); i++)
    EXPECT(s->out[i] == expected(&t, rank, size, i));
}

static void *use_mpi(void *argument) {
  seat *s = argument;
  int rank, size;
  EXPECT(MPIABI_Comm_split(RDT_MPI_COMM_WORLD, s->number, (int)rank_in(s->number, 0), &s->comm) ==
         OK);
  EXPECT(MPIABI_Comm_rank(s->comm, &rank) == OK && MPIABI_Comm_size(s->comm, &size) == OK);
  EXPECT(size == (int)cliques[s->number].size && rank == (int)rank_in(s->number, 0));
  for (size_t c = 0; c < COUNTS; c++) {
    const int count = (int)counts[c] / size * size;
    const int parts[SIZE] = {count / size, count / size, count / size};
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    fill(s, counts[c], (uint32_t)rank);
    EXPECT(MPIABI_Allreduce(s->in, s->out, count, INT, RDT_MPI_SUM, s->comm) == OK);
    expect_result(s, RDT_ALL_REDUCE, (uint64_t)count, (uint32_t)rank);
    EXPECT(MPIABI_Allgather(s->in, count, INT, s->out, count, INT, s->comm) == OK);
    expect_result(s, RDT_ALL_GATHER, (uint64_t)count, (uint32_t)rank);
    EXPECT(MPIABI_Reduce_scatter(s->in, s->out, parts, INT, RDT_MPI_SUM, s->comm) == OK);
    expect_result(s, RDT_REDUCE_SCATTER, (uint64_t)count, (uint32_t)rank);
    EXPECT(MPIABI_Sendrecv(s->in, count, INT, next, 5, s->out, count, INT, before, 5, s->comm,
                           NULL) == OK);
    for (int i = 0; i < count; i++) EXPECT(s->out[i] == input_at((uint32_t)before, (uint64_t)i));
  }
  return NULL;
}

static void run(seat *s, rdt_collective_kind kind, uint64_t count, uint32_t peer) {
  rdt_collective call = {.struct_size = sizeof call,
                         .kind = kind,
                         .dtype = RDT_INT32,
                         .op = RDT_SUM,
                         .root = peer,
                         .tag = {peer < SIZE ? 5 : 0, 0},
                         .input = kind == RDT_RECEIVE ? NULL : s->in,
                         .output = kind == RDT_SEND ? NULL : s->out,
                         .count = count,
                         .timeout_ms = PATIENCE_MS};
  if (peer >= SIZE) call.root = 0;
  EXPECT_STATUS(RDT_OK, rdt_group_run(s->group, &call));
}

/* What use_mpi does at another member. */
static void *mirror(void *argument) {
  seat *s = argument;
  const uint32_t size = cliques[s->number].size, rank = rank_in(s->number, s->member->options.rank);
  uint64_t hash = 0xcbf29ce484222325u; /* as the MPI names the groups of cliques */
  for (uint32_t i = 0; i < size; i++)
    hash = (hash ^ (uint64_t)cliques[s->number].processes[i]) * 0x100000001b3u;
  char name[48];
  snprintf(name, sizeof name, "jax clique %llx", (unsigned long long)hash);
  EXPECT_STATUS(RDT_OK, rdt_group_split(s->member->group, name,
                                        (const uint32_t *)cliques[s->number].processes, size,
                                        PATIENCE_MS, &s->group));
  for (size_t c = 0; c < COUNTS; c++) {
    const uint64_t count = counts[c] / size * size;
    fill(s, count, rank);
    run(s, RDT_ALL_REDUCE, count, SIZE);
    expect_result(s, RDT_ALL_REDUCE, count, rank);
    run(s, RDT_ALL_GATHER, count, SIZE);
    run(s, RDT_REDUCE_SCATTER, count, SIZE);
    /* The last one receives first, so that no two wait for each other. */
    if (rank < size - 1) run(s, RDT_SEND, count, rank + 1);
    run(s, RDT_RECEIVE, count, (rank + size - 1) % size);
    if (rank == size - 1) run(s, RDT_SEND, count, 0);
  }
  return NULL;
}

/* Begins what no other member does. */
static void *wait_for_nobody(void *argument) {
  seat *s = argument;
  atomic_store(&s->begun, 1);
  s->error = s->request ? MPIABI_Wait(&s->request, NULL)
                        : MPIABI_Allreduce(s->in, s->out, 4, INT, RDT_MPI_SUM, s->comm);
  snprintf(s->text, sizeof s->text, "%s", rdt_mpi_error());
  return NULL;
}

static seat seats[SIZE][CLIQUES];

/* A communicator is freed while a thread waits for the others in it. */
static void free_in_use(seat *s) {
  pthread_t thread;
  const rdt_mpi_handle freed = s->comm;
  pthread_create(&thread, NULL, wait_for_nobody, s);
  EXPECT(becomes(&s->begun, 1));
  EXPECT(MPIABI_Comm_free(&s->comm) == OK && s->comm == RDT_MPI_COMM_NULL);
  pthread_join(thread, NULL);
  EXPECT(s->error != OK && s->text[0]);
  s->comm = freed;
  EXPECT(MPIABI_Comm_free(&s->comm) != OK && mentions(rdt_mpi_error(), "does not exist"));
}

/* Sanitizers have another malloc. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_MALLOC_OF_LIBC false
#elif defined(__has_feature)
#define HAS_MALLOC_OF_LIBC (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define HAS_MALLOC_OF_LIBC true
#endif

static long pages_provided(void) {
  struct rusage usage;
  EXPECT(getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_minflt;
}

/* The second result of a size has the pages of the first. */
static void use_freed_memory(void) {
  enum { BYTES = 24 << 20 };
  int provided;
  long provided_pages = 0;
  EXPECT(MPIABI_Init_thread(NULL, NULL, 0, &provided) == OK);
  for (int i = 0; i < 2; i++) {
    char *volatile result = malloc(BYTES);
    EXPECT(result != NULL);
    const long before = pages_provided();
    memset(result, i, BYTES);
    provided_pages = pages_provided() - before;
    free(result);
  }
  EXPECT(!HAS_MALLOC_OF_LIBC || provided_pages < 100);
}

int main(void) {
  use_freed_memory();
  member members[MEMBERS];
  pthread_t threads[SIZE][CLIQUES];
  int32_t numbers[CLIQUES * (2 + SIZE)], used = 0;
  open_group(members, SIZE, "world");
  EXPECT_STATUS(RDT_OK, rdt_mpi_begin(members[0].group, PATIENCE_MS));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_mpi_begin(members[0].group, PATIENCE_MS));
  for (int c = 0; c < CLIQUES; c++) {
    numbers[used++] = c;
    numbers[used++] = (int32_t)cliques[c].size;
    for (uint32_t i = 0; i < cliques[c].size; i++) numbers[used++] = cliques[c].processes[i];
  }
  EXPECT_STATUS(RDT_OK, rdt_mpi_program(numbers, (uint32_t)used));
  for (uint32_t m = 0; m < SIZE; m++)
    for (int c = 0; c < CLIQUES; c++) {
      seats[m][c].member = &members[m];
      seats[m][c].number = c;
      if (is_in(c, m)) pthread_create(&threads[m][c], NULL, m ? mirror : use_mpi, &seats[m][c]);
    }
  for (uint32_t m = 0; m < SIZE; m++)
    for (int c = 0; c < CLIQUES; c++)
      if (is_in(c, m)) pthread_join(threads[m][c], NULL);

  free_in_use(&seats[0][0]);
  /* The process leaves while two threads wait, and communicators are freed afterwards. */
  seat *waiting[] = {&seats[0][1], &seats[0][2]};
  const int other = 1 - (int)rank_in(1, 0);
  EXPECT(MPIABI_Irecv(waiting[0]->out, 4, INT, other, 9, waiting[0]->comm, &waiting[0]->request) ==
         OK);
  for (int i = 0; i < 2; i++) {
    pthread_create(&threads[0][i], NULL, wait_for_nobody, waiting[i]);
    EXPECT(becomes(&waiting[i]->begun, 1));
  }
  rdt_mpi_end();
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[0][i], NULL);
    EXPECT(waiting[i]->error != OK && waiting[i]->text[0]);
  }
  seat *last = &seats[0][3];
  EXPECT(MPIABI_Allreduce(last->in, last->out, 4, INT, RDT_MPI_SUM, last->comm) != OK);
  EXPECT(mentions(rdt_mpi_error(), "has left the others"));
  for (int c = 1; c < CLIQUES; c++) EXPECT(MPIABI_Comm_free(&seats[0][c].comm) == OK);
  rdt_mpi_end();
  for (uint32_t m = 1; m < SIZE; m++)
    for (int c = 0; c < CLIQUES; c++) rdt_group_close(seats[m][c].group);
  close_group(members, SIZE);
  return 0;
}
