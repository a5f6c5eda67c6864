/* SPDX-License-Identifier: Apache-2.0
 *
 * What RDMA devices do and shared memory does not: a library that is loaded before librdmatensor.so.0
 * (LD_PRELOAD) and stands between the plugin and the real functions. Bytes are still moved, regions
 * still registered, by the real ones. Environment:
 *
 *   FAULTS_NO_MAP=1          remote memory cannot be mapped
 *   FAULTS_READ_MS=n         a READ completes after n ms, on another thread
 *   FAULTS_FAIL_READ=n       the n-th READ of the process completes with LIMIT
 *   FAULTS_REGISTER_MS=n     registering a region takes n ms
 *   FAULTS_REGISTER_LIMIT=n  regions beyond n bytes in all cannot be registered
 *   FAULTS_HOLD_ALLOC=path   while this file exists memory to be shared is not allocated; path.held is made
 *   FAULTS_HOLD_CREDIT=path  the first short write while this file exists, as of a credit, is not posted until it is
 *                            gone; path.held is made
 *   FAULTS_NO_CREDITS=path   a peer's memory that may be written cannot be opened, once this file is gone
 *   FAULTS_CUT=path          while this file exists connections fail, and those that the process opened
 *                            are closed
 *   FAULTS_DIVERT=host:port  all connections of the process lead there
 *   FAULTS_CALLS=n           of 1000 messages of calls n come late by up to 9 ms, n end their channel, and n are
 *                            sent twice
 *   FAULTS_CALM=path         calls go undisturbed while this file exists
 *   FAULTS_OTHER_PLAN=1      planned edges look different than to other processes
 *   FAULTS_BAD_PLANNED=n:i:v the n-th announcement of a planned tensor has v at byte i; if i is negative
 *                            it is that much shorter
 *   FAULTS_FLIP=path         where this file exists, a bit of the next tensor that is lent, or was put into
 *                            its mapped place, turns over before it is announced; the file is removed
 *   FAULTS_LOST_NAME=name    the name server never answers a question about this host
 */
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rdmatensor.h"

static _Thread_local const char *own_error;

static long setting(const char *name) {
  const char *text = getenv(name);
  return text ? atol(text) : 0;
}

static void *real(const char *name) {
  void *library = dlopen("librdmatensor.so.0", RTLD_NOW | RTLD_NOLOAD);
  void *found = library ? dlsym(library, name) : NULL;
  if (!found) abort();
  return found;
}

RDT_API int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                        struct addrinfo **found) {
  int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
  const char *lost = getenv("FAULTS_LOST_NAME");
  int asks = !hints || !(hints->ai_flags & AI_NUMERICHOST);
  while (lost && asks && host && strcmp(host, lost) == 0) sleep(1);
  return next(host, port, hints, found);
}

RDT_API const char *rdt_last_error(void) {
  const char *(*next)(void) = (const char *(*)(void))real("rdt_last_error");
  const char *said = own_error ? own_error : next();
  own_error = NULL;
  return said;
}

/* Returns once the file that this setting names does not exist. */
static void hold(const char *name) {
  const char *path = getenv(name);
  char held[4096];
  if (!path || access(path, F_OK) != 0) return;
  snprintf(held, sizeof(held), "%s.held", path);
  FILE *file = fopen(held, "w");
  if (!file) abort();
  fclose(file);
  while (access(path, F_OK) == 0) usleep(1000);
}

RDT_API rdt_status rdt_memory_alloc(size_t size, void **address) {
  hold("FAULTS_HOLD_ALLOC");
  return ((rdt_status (*)(size_t, void **))real("rdt_memory_alloc"))(size, address);
}

RDT_API rdt_status rdt_channel_get_info(const rdt_channel *channel, rdt_channel_info *info) {
  rdt_status (*next)(const rdt_channel *, rdt_channel_info *) =
      (rdt_status (*)(const rdt_channel *, rdt_channel_info *))real("rdt_channel_get_info");
  rdt_status status = next(channel, info);
  if (status == RDT_OK && setting("FAULTS_NO_MAP")) info->capabilities &= ~(uint32_t)RDT_CAP_MAP;
  return status;
}

/* Memory in which a bit may turn over: registered here, or the peer's and mapped here. */
typedef struct memory {
  uint64_t key, size;
  char *bytes;
  char *before; /* mapped: as it was when the last tensor was announced */
} memory;

enum { MOST_MEMORIES = 256 };
static pthread_mutex_t memories_lock = PTHREAD_MUTEX_INITIALIZER;
static memory memories[MOST_MEMORIES];
static size_t memory_count;

static void remember(uint64_t key, void *bytes, uint64_t size, int mapped) {
  if (!getenv("FAULTS_FLIP")) return;
  pthread_mutex_lock(&memories_lock);
  if (memory_count == MOST_MEMORIES) abort();
  memory *added = &memories[memory_count++];
  *added = (memory){key, size, bytes, mapped ? malloc(size) : NULL};
  if (added->before) memcpy(added->before, bytes, size);
  pthread_mutex_unlock(&memories_lock);
}

RDT_API rdt_status rdt_region_register(rdt_device *device, void *address, uint64_t size,
                                       uint32_t access, const char *name, rdt_region **region) {
  static _Atomic uint64_t registered;
  rdt_status (*next)(rdt_device *, void *, uint64_t, uint32_t, const char *, rdt_region **) =
      (rdt_status (*)(rdt_device *, void *, uint64_t, uint32_t, const char *, rdt_region **))real(
          "rdt_region_register");
  uint64_t limit = (uint64_t)setting("FAULTS_REGISTER_LIMIT");
  usleep((useconds_t)setting("FAULTS_REGISTER_MS") * 1000);
  if (limit && atomic_fetch_add(&registered, size) + size > limit) {
    own_error = "the limit of locked memory is reached";
    return RDT_ERR_LIMIT;
  }
  rdt_status status = next(device, address, size, access, name, region);
  rdt_region_info info;
  if (status == RDT_OK && ((rdt_status (*)(const rdt_region *, rdt_region_info *))real(
                              "rdt_region_get_info"))(*region, &info) == RDT_OK)
    remember(info.key, address, size, 0);
  return status;
}

RDT_API rdt_status rdt_remote_region_map(rdt_remote_region *region, uint64_t offset, uint64_t size,
                                         void **address) {
  rdt_status (*next)(rdt_remote_region *, uint64_t, uint64_t, void **) = (rdt_status (*)(
      rdt_remote_region *, uint64_t, uint64_t, void **))real("rdt_remote_region_map");
  rdt_region_info info;
  rdt_status status = next(region, offset, size, address);
  if (status == RDT_OK &&
      ((rdt_status (*)(const rdt_remote_region *, rdt_region_info *))real(
          "rdt_remote_region_get_info"))(region, &info) == RDT_OK &&
      (info.access & RDT_ACCESS_WRITE) && getenv("FAULTS_FLIP")) {
    ((void (*)(rdt_remote_region *))real("rdt_remote_region_ref"))(region); /* stays mapped */
    remember(info.key, *address, size, 1);
  }
  return status;
}

RDT_API rdt_status rdt_remote_region_open(rdt_channel *channel, uint64_t key, int timeout_ms,
                                          rdt_remote_region **region) {
  const char *path = getenv("FAULTS_NO_CREDITS");
  rdt_status (*next)(rdt_channel *, uint64_t, int, rdt_remote_region **) = (rdt_status (*)(
      rdt_channel *, uint64_t, int, rdt_remote_region **))real("rdt_remote_region_open");
  rdt_region_info info;
  rdt_status status = next(channel, key, timeout_ms, region);
  if (status != RDT_OK || !path ||
      ((rdt_status (*)(const rdt_remote_region *, rdt_region_info *))real(
          "rdt_remote_region_get_info"))(*region, &info) != RDT_OK ||
      !(info.access & RDT_ACCESS_WRITE))
    return status;
  while (access(path, F_OK) == 0) usleep(1000);
  ((void (*)(rdt_remote_region *))real("rdt_remote_region_unref"))(*region);
  *region = NULL;
  own_error = "credits cannot be opened";
  return RDT_ERR_LIMIT;
}

static int is_cut(void) {
  const char *path = getenv("FAULTS_CUT");
  return path && access(path, F_OK) == 0;
}

enum { MOST_CONNECTIONS = 4096, LOOK_US = 2000 };
static pthread_mutex_t connections_lock = PTHREAD_MUTEX_INITIALIZER;
static rdt_channel *connections[MOST_CONNECTIONS];
static size_t connection_count;

static void *cut_connections(void *unused) {
  (void)unused;
  for (;;) {
    usleep(LOOK_US);
    if (!is_cut()) continue;
    pthread_mutex_lock(&connections_lock);
    for (size_t i = 0; i < connection_count; i++) {
      ((void (*)(rdt_channel *))real("rdt_channel_close"))(connections[i]);
      ((void (*)(rdt_channel *))real("rdt_channel_unref"))(connections[i]);
    }
    connection_count = 0;
    pthread_mutex_unlock(&connections_lock);
  }
  return NULL;
}

static void start_cutting(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, cut_connections, NULL) != 0) abort();
  pthread_detach(thread);
}

RDT_API rdt_status rdt_device_connect_to(rdt_device *device, const char *address, const char *name,
                                         const char *transports, int timeout_ms,
                                         rdt_channel **channel) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  typedef rdt_status (*connect_fn)(rdt_device *, const char *, const char *, const char *, int,
                                   rdt_channel **);
  connect_fn next = (connect_fn)real("rdt_device_connect_to");
  const char *diverted = getenv("FAULTS_DIVERT");
  if (is_cut()) {
    own_error = "the path is cut";
    return RDT_ERR_UNREACHABLE;
  }
  rdt_status status =
      next(device, diverted ? diverted : address, name, transports, timeout_ms, channel);
  if (status != RDT_OK || !getenv("FAULTS_CUT")) return status;
  pthread_once(&once, start_cutting);
  pthread_mutex_lock(&connections_lock);
  if (connection_count == MOST_CONNECTIONS) abort();
  ((void (*)(rdt_channel *))real("rdt_channel_ref"))(*channel);
  connections[connection_count++] = *channel;
  pthread_mutex_unlock(&connections_lock);
  return status;
}

RDT_API uint64_t rdt_plan_edge_hash(const rdt_plan_edge *edge) {
  uint64_t (*next)(const rdt_plan_edge *) =
      (uint64_t (*)(const rdt_plan_edge *))real("rdt_plan_edge_hash");
  return next(edge) ^ (setting("FAULTS_OTHER_PLAN") ? 1 : 0);
}

typedef rdt_status (*post_fn)(rdt_channel *, const rdt_op *, size_t, rdt_done_fn, void *);

typedef struct read {
  rdt_channel *channel;
  rdt_op op;
  rdt_done_fn done;
  void *context;
  int fails;
} read_job;

static void *run_read(void *argument) {
  read_job *job = argument;
  usleep((useconds_t)setting("FAULTS_READ_MS") * 1000);
  rdt_status status = RDT_ERR_LIMIT;
  if (!job->fails)
    status =
        ((post_fn)real("rdt_channel_post"))(job->channel, &job->op, 1, job->done, job->context);
  if (status != RDT_IN_PROGRESS) job->done(job->context, status);
  ((void (*)(rdt_remote_region *))real("rdt_remote_region_unref"))(job->op.remote);
  ((void (*)(rdt_channel *))real("rdt_channel_unref"))(job->channel);
  free(job);
  return NULL;
}

static rdt_status read_later(rdt_channel *channel, const rdt_op *op, rdt_done_fn done,
                             void *context, int fails) {
  pthread_t thread;
  read_job *job = malloc(sizeof(*job));
  if (!job) return RDT_ERR_NO_MEMORY;
  *job = (read_job){channel, *op, done, context, fails};
  ((void (*)(rdt_channel *))real("rdt_channel_ref"))(channel);
  ((void (*)(rdt_remote_region *))real("rdt_remote_region_ref"))(op->remote);
  if (pthread_create(&thread, NULL, run_read, job) != 0) abort();
  pthread_detach(thread);
  return RDT_IN_PROGRESS;
}

/* True if `op` is the announcement to be spoilt; then `bad` is to be sent in its place. */
static int spoil(const rdt_op *op, rdt_op *bad, char *bytes, size_t room) {
  enum { PLANNED = 8 }; /* MessageKind::kPlanned */
  static atomic_long announced;
  long number = 0, at = 0, value = 0;
  const char *text = getenv("FAULTS_BAD_PLANNED");
  if (!text || op->kind != RDT_OP_NOTIFY || (op->immediate & 0xff) != PLANNED || op->size > room)
    return 0;
  sscanf(text, "%ld:%ld:%ld", &number, &at, &value);
  if (atomic_fetch_add(&announced, 1) + 1 != number) return 0;
  memcpy(bytes, op->local, op->size);
  *bad = *op;
  bad->local = bytes;
  if (at < 0)
    bad->size -= (size_t)-at;
  else
    bytes[at] = (char)value;
  return 1;
}

/* The first byte of a lent tensor. `where`: its region's key, and its offset there. */
static char *lent_byte(const char *where) {
  uint64_t key, offset;
  memcpy(&key, where, sizeof(key));
  memcpy(&offset, where + sizeof(key), sizeof(offset));
  for (size_t i = 0; i < memory_count; i++)
    if (!memories[i].before && memories[i].key == key) return memories[i].bytes + offset;
  return NULL;
}

/* A byte that was put into a mapped place since the last call. */
static char *new_byte(void) {
  char *found = NULL;
  for (size_t i = 0; i < memory_count; i++) {
    memory *each = &memories[i];
    for (uint64_t at = 0; each->before && !found && at < each->size; at++)
      if (each->bytes[at] != each->before[at]) found = &each->bytes[at];
    if (each->before) memcpy(each->before, each->bytes, each->size);
  }
  return found;
}

static void flip(const rdt_op *op) {
  enum { TENSOR = 1, PLANNED = 8 };                                    /* MessageKind */
  enum { DEAD = 1, INLINE = 2, LENT = 8, IN_SLOT = 16, CHECKED = 64 }; /* flags of either message */
  const char *path = getenv("FAULTS_FLIP"), *message = op->local;
  uint64_t kind = op->immediate & 0xff;
  if (!path || op->kind != RDT_OP_NOTIFY || (kind != TENSOR && kind != PLANNED)) return;
  char *byte = NULL;
  int flags = message[12];
  pthread_mutex_lock(&memories_lock);
  if (kind == TENSOR && !(flags & (DEAD | INLINE)))
    byte = lent_byte(message + op->size - 24);
  else if (kind == PLANNED && flags & LENT)
    byte = lent_byte(message + op->size - 32 - (flags & CHECKED ? 5 : 0));
  else if (kind == PLANNED && flags & IN_SLOT)
    byte = new_byte();
  if (byte && unlink(path) == 0) *byte ^= 1;
  pthread_mutex_unlock(&memories_lock);
}

static void free_copy(void *copy, rdt_status status) {
  (void)status;
  free(copy);
}

/* The repetition comes last: if the channel is lost in between, the caller must know that the message was sent. */
static rdt_status post_twice(rdt_channel *channel, const rdt_op *op, rdt_done_fn done,
                             void *context) {
  const post_fn post = (post_fn)real("rdt_channel_post");
  rdt_op again = *op;
  void *copy = malloc(op->size + 1);
  if (!copy) abort();
  if (op->size) memcpy(copy, op->local, op->size);
  if (op->local) again.local = copy;
  rdt_status status = post(channel, op, 1, done, context);
  if (status < RDT_OK || post(channel, &again, 1, free_copy, copy) != RDT_IN_PROGRESS) free(copy);
  return status;
}

/* Before a message of a call is posted. Returns whether it is to be posted twice. */
static int disturb_call(rdt_channel *channel, const rdt_op *op) {
  enum { CALL = 19, CANCEL = 22 }; /* MessageKind, and those between them */
  static atomic_uint posted;
  const uint64_t kind = op->immediate & 0xff;
  const unsigned often = (unsigned)setting("FAULTS_CALLS");
  if (!often || op->kind != RDT_OP_NOTIFY || kind < CALL || kind > CANCEL) return 0;
  const char *calm = getenv("FAULTS_CALM");
  if (calm && access(calm, F_OK) == 0) return 0;
  const unsigned chance = (atomic_fetch_add(&posted, 1) + (unsigned)getpid()) * 2654435761u >> 16;
  if (chance % 1000 < often)
    usleep(1000 * (chance % 10));
  else if (chance % 1000 < 2 * often)
    ((void (*)(rdt_channel *))real("rdt_channel_close"))(channel);
  return chance % 1000 >= 2 * often && chance % 1000 < 3 * often;
}

RDT_API rdt_status rdt_channel_post(rdt_channel *channel, const rdt_op *ops, size_t count,
                                    rdt_done_fn done, void *context) {
  static atomic_flag holds = ATOMIC_FLAG_INIT;
  static atomic_long reads;
  static char spoilt[256]; /* only one ever is */
  /* Where tensors are written into their places, the announcement follows the bytes. */
  rdt_op bad[2];
  if (count == 1 && ops[0].kind == RDT_OP_WRITE && ops[0].size <= 64 &&
      !atomic_flag_test_and_set(&holds)) {
    hold("FAULTS_HOLD_CREDIT");
    atomic_flag_clear(&holds);
  }
  if (count == 1) flip(ops);
  if (count == 1 && disturb_call(channel, ops)) return post_twice(channel, ops, done, context);
  if ((count == 1 || count == 2) &&
      spoil(&ops[count - 1], &bad[count - 1], spoilt, sizeof(spoilt))) {
    if (count == 2) bad[0] = ops[0];
    return ((post_fn)real("rdt_channel_post"))(channel, bad, count, done, context);
  }
  if (count == 1 && ops[0].kind == RDT_OP_READ) {
    int fails = atomic_fetch_add(&reads, 1) + 1 == setting("FAULTS_FAIL_READ");
    if (fails || setting("FAULTS_READ_MS")) return read_later(channel, ops, done, context, fails);
  }
  return ((post_fn)real("rdt_channel_post"))(channel, ops, count, done, context);
}
