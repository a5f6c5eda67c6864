/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators, and how the world's is divided. XLA divides it for each clique, the devices that a collective concerns:
 * the color is the first device's number, and the key is a device's place in the clique. It does so once for a clique, only
 * where the clique is, and does not tell its other devices: rdt_mpi_program does. Without it, all processes have to divide the
 * world at the same time, and tell each other their colors and keys.
 */
#include "mpi/communicators.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi/errors.h"
#include "mpi/mpi.h"

#define PATIENCE_NS 10000000 /* between two attempts to end what began just now */
#define COULD_NOT_CONNECT \
  "the processes of a program, which all of them have to start, could not connect"
#define NOT_BEGUN "rdmatensor.jax.use() was not called in this process before JAX began"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
/* One division of the world at a time. */
static pthread_mutex_t dividing = PTHREAD_MUTEX_INITIALIZER;
static rdt_mpi_comm world = {.size = 1, .cause = NOT_BEGUN};
static rdt_mpi_comm *others;
static int timeout_ms;
static bool begun, ended;
static uint64_t divisions;

/* A clique that a program has, with the ranks of its processes in the order of its devices. */
typedef struct clique {
  struct clique *next;
  int color;
  uint32_t size;
  int processes[];
} clique;

/* The cliques of the newest program come first. Those of one program are in the order in which XLA asks for them. */
static clique *cliques;

/* Returns the communicator; NULL if there is none with this handle. The caller has the lock. */
static rdt_mpi_comm *find(rdt_mpi_handle handle) {
  if (handle == RDT_MPI_COMM_WORLD) return &world;
  rdt_mpi_comm *each = others;
  while (each && (rdt_mpi_handle)each != handle) each = each->next;
  return each;
}

rdt_mpi_comm *rdt_mpi_comm_enter(rdt_mpi_handle handle, const char *function) {
  pthread_mutex_lock(&lock);
  rdt_mpi_comm *comm = find(handle);
  if (!comm) {
    rdt_mpi_fail("%s: the communicator does not exist, or was freed", function);
  } else if (comm->cause[0]) {
    rdt_mpi_fail("%s: %s", function, comm->cause);
    comm = NULL;
  } else {
    comm->users++;
  }
  pthread_mutex_unlock(&lock);
  return comm;
}

void rdt_mpi_comm_leave(rdt_mpi_comm *comm) {
  pthread_mutex_lock(&lock);
  if (--comm->users == 0) pthread_cond_broadcast(&left);
  pthread_mutex_unlock(&lock);
}

int rdt_mpi_timeout(void) {
  pthread_mutex_lock(&lock);
  const int found = timeout_ms;
  pthread_mutex_unlock(&lock);
  return found;
}

/* Whether the numbers of members are those of processes. */
static bool is_whole(const rdt_mpi_comm *comm) {
  bool same = comm->size == world.size;
  for (uint32_t i = 0; same && comm->processes && i < comm->size; i++)
    same = comm->processes[i] == (int)i;
  return same;
}

int rdt_mpi_comm_fail(const rdt_mpi_comm *comm, const char *function) {
  char list[128] = "";
  size_t used = 0;
  for (uint32_t i = 0; !is_whole(comm) && i < comm->size && used < sizeof(list); i++)
    used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d",
                             i ? ", " : "; its members are the processes ", comm->processes[i]);
  return rdt_mpi_fail("%s: %s%s", function, rdt_last_error(), list);
}

/* Ends what is under way, waits until nobody uses the communicator, and closes its group. The caller has the lock. */
static void close_comm(rdt_mpi_comm *comm) {
  while (comm->users) {
    if (comm->group) rdt_group_cancel(comm->group, NULL);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PATIENCE_NS;
    if (until.tv_nsec >= 1000000000) {
      until.tv_nsec -= 1000000000;
      until.tv_sec++;
    }
    pthread_cond_timedwait(&left, &lock, &until);
  }
  rdt_group *group = comm->group;
  comm->group = NULL;
  if (comm == &world || !group) return;
  pthread_mutex_unlock(&lock);
  rdt_group_close(group);
  pthread_mutex_lock(&lock);
}

rdt_status rdt_mpi_begin(rdt_group *group, int timeout) {
  rdt_group_info info;
  rdt_status status = rdt_group_get_info(group, &info);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&lock);
  if (begun || timeout <= 0) {
    status = RDT_ERR_INVALID;
  } else {
    begun = true;
    timeout_ms = timeout;
    world.group = group;
    world.rank = info.rank;
    world.size = info.size;
    world.cause[0] = '\0';
  }
  pthread_mutex_unlock(&lock);
  return status;
}

void rdt_mpi_abort(const char *text) {
  pthread_mutex_lock(&lock);
  if (world.group) rdt_group_abort(world.group, RDT_ERR_CANCELLED, text);
  for (rdt_mpi_comm *each = others; each; each = each->next)
    if (each->group) rdt_group_abort(each->group, RDT_ERR_CANCELLED, text);
  pthread_mutex_unlock(&lock);
}

bool rdt_mpi_comms_refuse(const char *cause) {
  pthread_mutex_lock(&lock);
  const bool first = begun && !ended;
  if (first) {
    ended = true;
    snprintf(world.cause, sizeof(world.cause), "%s", cause);
    for (rdt_mpi_comm *each = others; each; each = each->next)
      if (!each->cause[0]) snprintf(each->cause, sizeof(each->cause), "%s", cause);
  }
  pthread_mutex_unlock(&lock);
  return first;
}

void rdt_mpi_comms_close(void) {
  pthread_mutex_lock(&lock);
  rdt_mpi_comm *open = NULL;
  do {
    open = others;
    while (open && !open->group) open = open->next;
    if (open) {
      open->closing = true; /* MPI_Comm_free waits until this is done with it */
      close_comm(open);
      open->closing = false;
      pthread_cond_broadcast(&left);
    }
  } while (open);
  close_comm(&world);
  pthread_mutex_unlock(&lock);
}

RDT_API int MPIABI_Comm_rank(rdt_mpi_handle handle, int *rank);
int MPIABI_Comm_rank(rdt_mpi_handle handle, int *rank) {
  pthread_mutex_lock(&lock);
  const rdt_mpi_comm *comm = find(handle);
  *rank = comm ? (int)comm->rank : 0;
  pthread_mutex_unlock(&lock);
  return comm ? RDT_MPI_SUCCESS : rdt_mpi_fail("MPI_Comm_rank: the communicator does not exist");
}

RDT_API int MPIABI_Comm_size(rdt_mpi_handle handle, int *size);
int MPIABI_Comm_size(rdt_mpi_handle handle, int *size) {
  pthread_mutex_lock(&lock);
  const rdt_mpi_comm *comm = find(handle);
  *size = comm ? (int)comm->size : 1;
  pthread_mutex_unlock(&lock);
  return comm ? RDT_MPI_SUCCESS : rdt_mpi_fail("MPI_Comm_size: the communicator does not exist");
}

RDT_API int MPIABI_Comm_free(rdt_mpi_handle *handle);
int MPIABI_Comm_free(rdt_mpi_handle *handle) {
  pthread_mutex_lock(&lock);
  rdt_mpi_comm *comm = *handle == RDT_MPI_COMM_WORLD ? NULL : find(*handle);
  if (comm) {
    rdt_mpi_comm **link = &others;
    while (*link != comm) link = &(*link)->next;
    *link = comm->next;
    while (comm->closing) pthread_cond_wait(&left, &lock);
    close_comm(comm);
  }
  pthread_mutex_unlock(&lock);
  if (!comm) return rdt_mpi_fail("MPI_Comm_free: the communicator does not exist");
  free(comm->processes);
  free(comm);
  *handle = RDT_MPI_COMM_NULL;
  return RDT_MPI_SUCCESS;
}

static bool same_processes(const clique *each, const int *processes, uint32_t size) {
  return each->size == size && !memcmp(each->processes, processes, size * sizeof(*processes));
}

/* Puts a clique after those of its program that `link` has passed; it is in the list once. NULL: no memory left. The
 * caller has the lock. */
static clique **add_clique(clique **link, const int32_t *numbers) {
  const uint32_t size = (uint32_t)numbers[1];
  for (clique **old = link; *old;) {
    clique *each = *old;
    if (each->color == numbers[0] && same_processes(each, numbers + 2, size)) {
      *old = each->next;
      free(each);
    } else {
      old = &each->next;
    }
  }
  clique *made = calloc(1, sizeof(*made) + size * sizeof(*made->processes));
  if (!made) return NULL;
  made->color = numbers[0];
  made->size = size;
  memcpy(made->processes, numbers + 2, size * sizeof(*made->processes));
  made->next = *link;
  *link = made;
  return &made->next;
}

rdt_status rdt_mpi_program(const int32_t *numbers, uint32_t count) {
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&lock);
  clique **link = &cliques;
  for (uint32_t at = 0; status == RDT_OK && at < count;) {
    const uint32_t left_over = count - at;
    const uint32_t size = left_over > 2 && numbers[at + 1] > 0 ? (uint32_t)numbers[at + 1] : 0;
    bool valid = size && size <= left_over - 2;
    for (uint32_t i = 0; valid && i < size; i++)
      valid = numbers[at + 2 + i] >= 0 && (uint32_t)numbers[at + 2 + i] < world.size;
    if (!valid)
      status = RDT_ERR_INVALID;
    else if (!(link = add_clique(link, numbers + at)))
      status = RDT_ERR_NO_MEMORY;
    at += 2 + size;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

/* Whether XLA has a communicator of the clique, for which it never asks again. The caller has the lock. */
static bool is_held(const clique *each) {
  const rdt_mpi_comm *comm = others;
  while (comm && !(comm->announced && comm->color == each->color &&
                   same_processes(each, comm->processes, comm->size)))
    comm = comm->next;
  return comm != NULL;
}

/* Lets the communicator be that of the clique which XLA means. Returns 0, or the error. */
static int find_members(int color, int key, rdt_mpi_comm *comm) {
  pthread_mutex_lock(&lock);
  const clique *each = cliques;
  while (each && (each->color != color || (uint32_t)key >= each->size ||
                  each->processes[key] != (int)world.rank || is_held(each)))
    each = each->next;
  if (each) comm->processes = malloc(each->size * sizeof(*comm->processes));
  if (comm->processes) {
    memcpy(comm->processes, each->processes, each->size * sizeof(*comm->processes));
    comm->size = each->size;
    comm->rank = (uint32_t)key;
    comm->announced = true;
    comm->color = color;
  }
  pthread_mutex_unlock(&lock);
  if (comm->processes) return RDT_MPI_SUCCESS;
  if (each) return rdt_mpi_fail("no memory left");
  return rdt_mpi_fail("XLA asks for devices, the first one with number %d, that concern no program",
                      color);
}

/* Makes the group of the clique. Returns 0, or the error. */
static int connect_clique(int color, int key, rdt_mpi_comm *comm) {
  if (find_members(color, key, comm)) return RDT_MPI_ERR_OTHER;
  uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
  for (uint32_t i = 0; i < comm->size; i++)
    hash = (hash ^ (uint64_t)comm->processes[i]) * 0x100000001b3u;
  char name[48];
  snprintf(name, sizeof(name), "jax clique %llx", (unsigned long long)hash);
  if (comm->size == 1 || rdt_group_split(world.group, name, (const uint32_t *)comm->processes,
                                         comm->size, timeout_ms, &comm->group) == RDT_OK)
    return RDT_MPI_SUCCESS;
  return rdt_mpi_comm_fail(comm, COULD_NOT_CONNECT);
}

/* Each process contributes one of these when the world is divided. */
typedef struct member {
  int32_t color, key, process;
} member;
#define NUMBERS (sizeof(member) / sizeof(int32_t))

static int compare(const void *left_member, const void *right_member) {
  const member *a = left_member, *b = right_member;
  if (a->color != b->color) return (a->color > b->color) - (a->color < b->color);
  return a->key != b->key ? (a->key > b->key) - (a->key < b->key) : a->process - b->process;
}

/* Exchanges what all processes say. Returns their number; 0 after a failure. */
static uint32_t gather(rdt_mpi_comm *all, member own, member *members, uint64_t number) {
  const rdt_collective call = {.struct_size = sizeof(call),
                               .kind = RDT_ALL_GATHER,
                               .dtype = RDT_INT32,
                               .tag = {number, 0},
                               .input = &own,
                               .output = members,
                               .count = NUMBERS,
                               .timeout_ms = timeout_ms};
  if (all->size == 1) {
    members[0] = own;
  } else if (rdt_group_run(all->group, &call) != RDT_OK) {
    rdt_mpi_fail(
        "the processes could not agree on the devices of a program, which all of them have to "
        "start: %s",
        rdt_last_error());
    return 0;
  }
  return all->size;
}

/* Whether each color has all its keys; `members` are in order. Where one has not, processes mean different programs, and
 * a color that seems whole may lack members too. */
static bool are_whole(const member *members, uint32_t count) {
  int32_t key = 0;
  for (uint32_t i = 0; i < count; i++, key++) {
    if (i && members[i].color != members[i - 1].color) key = 0;
    if (members[i].color != RDT_MPI_UNDEFINED && members[i].key != key) return false;
  }
  return true;
}

/* Keeps the members of the color, in their order, and returns how many. */
static uint32_t select_color(member *members, uint32_t count, int color) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < count; i++)
    if (members[i].color == color) members[found++] = members[i];
  return found;
}

/* Makes the group of the members. Returns 0, or the error. */
static int connect_members(rdt_mpi_comm *all, rdt_mpi_comm *comm, const member *members,
                           uint32_t count, bool whole, uint64_t number) {
  uint32_t *ranks = calloc(count, sizeof(*ranks));
  comm->processes = calloc(count, sizeof(*comm->processes));
  if (!ranks || !comm->processes) {
    free(ranks);
    return rdt_mpi_fail("no memory left");
  }
  comm->size = count;
  for (uint32_t i = 0; i < count; i++) {
    ranks[i] = (uint32_t)members[i].process;
    comm->processes[i] = members[i].process;
    if (ranks[i] == all->rank) comm->rank = i;
  }
  char name[48];
  snprintf(name, sizeof(name), "jax clique %llu/%u", (unsigned long long)number, ranks[0]);
  int error = RDT_MPI_SUCCESS;
  if (!whole)
    error = rdt_mpi_fail(
        "a process has several devices, or takes no part in a program that concerns its device: "
        "start one "
        "process for each device, without --xla_force_host_platform_device_count or "
        "jax_num_cpu_devices");
  else if (count > 1 && rdt_group_split(all->group, name, ranks, count, timeout_ms, &comm->group))
    error = rdt_mpi_comm_fail(comm, COULD_NOT_CONNECT);
  free(ranks);
  return error;
}

static int divide(rdt_mpi_comm *all, member own, rdt_mpi_comm *comm) {
  member *members = calloc(all->size, sizeof(*members));
  if (!members) return rdt_mpi_fail("no memory left");
  pthread_mutex_lock(&dividing);
  const uint64_t number = ++divisions;
  uint32_t count = gather(all, own, members, number);
  int error = count ? RDT_MPI_SUCCESS : RDT_MPI_ERR_OTHER;
  if (!error && comm) {
    qsort(members, count, sizeof(*members), compare);
    const bool whole = are_whole(members, count);
    count = select_color(members, count, own.color);
    error = connect_members(all, comm, members, count, whole, number);
  }
  pthread_mutex_unlock(&dividing);
  free(members);
  return error;
}

/* Callers ignore the result, so a failure makes a communicator whose operations fail with the cause. */
RDT_API int MPIABI_Comm_split(rdt_mpi_handle handle, int color, int key, rdt_mpi_handle *part);
int MPIABI_Comm_split(rdt_mpi_handle handle, int color, int key, rdt_mpi_handle *part) {
  *part = RDT_MPI_COMM_NULL;
  rdt_mpi_comm *comm = calloc(1, sizeof(*comm));
  if (!comm) return rdt_mpi_fail("MPI_Comm_split: no memory left");
  comm->size = 1;
  int error = RDT_MPI_SUCCESS;
  rdt_mpi_comm *all = rdt_mpi_comm_enter(handle, "MPI_Comm_split");
  const bool apart = color == RDT_MPI_UNDEFINED;
  if (!all)
    error = RDT_MPI_ERR_OTHER;
  else if (all != &world)
    error = rdt_mpi_fail("MPI_Comm_split: only MPI_COMM_WORLD can be divided");
  else if (!apart && cliques)
    error = connect_clique(color, key, comm);
  else
    error = divide(all, (member){color, key, (int32_t)all->rank}, apart ? NULL : comm);
  if (all) rdt_mpi_comm_leave(all);
  if (apart) {
    free(comm);
    return error;
  }
  pthread_mutex_lock(&lock);
  if (error) snprintf(comm->cause, sizeof(comm->cause), "%s", rdt_mpi_error());
  if (ended && !comm->cause[0]) snprintf(comm->cause, sizeof(comm->cause), "%s", world.cause);
  comm->next = others;
  others = comm;
  pthread_mutex_unlock(&lock);
  *part = (rdt_mpi_handle)comm;
  return error;
}
