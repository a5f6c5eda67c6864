/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs and this machine's RDMA devices, for real: each is opened, its objects are made and
 * unmade, memory is registered. Skips, with the reason, after what can be tested without a device.
 */
#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "transport/verbs/library.h"
#include "transport/verbs/ports.h"
#include "transport/verbs/registration.h"
#include "unit.h"

#define MIB (1024ull * 1024)
#define SKIP 77

static int skip(const char *why) {
  printf("skipped: %s\n", why);
  return SKIP;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *load(void *unused) {
  (void)unused;
  return (void *)rdt_verbs_library();
}

/* The first call from many threads at once gives all of them one table, or none. */
static void test_loading(void) {
  pthread_t threads[8];
  void *table;
  for (size_t i = 0; i < 8; i++) EXPECT(pthread_create(&threads[i], NULL, load, NULL) == 0);
  for (size_t i = 0; i < 8; i++) {
    EXPECT(pthread_join(threads[i], &table) == 0);
    EXPECT(table == (const void *)rdt_verbs_library());
  }
}

static void test_without_devices(void) {
  struct ibv_context *context;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_open_device("no_such_device", &context));
  EXPECT(strstr(rdt_last_error(), "no RDMA device no_such_device; available: "));
  EXPECT(strcmp(rdt_verbs_wc_status_text(IBV_WC_RETRY_EXC_ERR),
                "transport retry counter exceeded") == 0);
  EXPECT(strlen(rdt_verbs_event_text(IBV_EVENT_PORT_ERR)) > 0);
  EXPECT(strcmp(rdt_verbs_qp_state_text(IBV_QPS_RTS), "RTS") == 0);
  EXPECT(strcmp(rdt_verbs_qp_state_text(IBV_QPS_UNKNOWN), "UNKNOWN") == 0);
}

/* Every convention by which a verb says that it failed. */
static void test_results(void) {
  EXPECT_STATUS(RDT_OK, rdt_verbs_result(0, "post"));
  EXPECT_STATUS(RDT_ERR_NO_MEMORY, rdt_verbs_result(ENOMEM, "post a write"));
  EXPECT(strstr(rdt_last_error(), "cannot post a write: Cannot allocate memory"));
  EXPECT_STATUS(RDT_ERR_NO_MEMORY, rdt_verbs_result(-ENOMEM, "post"));
  errno = EOPNOTSUPP;
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, rdt_verbs_result(-1, "post"));
  errno = 0;
  EXPECT_STATUS(RDT_ERR_SYSTEM, rdt_verbs_result(-1, "post"));
  EXPECT_STATUS(RDT_ERR_UNREACHABLE, rdt_verbs_result(ETIMEDOUT, "connect"));
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_verbs_result(EAGAIN, "create"));
}

/* ---- On a device -------------------------------------------------------------------------------- */

static void test_queries(struct ibv_context *context) {
  struct ibv_device_attr_ex device;
  struct ibv_port_attr port;
  struct ibv_async_event event;
  EXPECT_STATUS(RDT_OK, rdt_verbs_query_device(context, &device));
  EXPECT(device.orig_attr.phys_port_cnt >= 1 && device.orig_attr.max_qp > 0);
  EXPECT_STATUS(RDT_OK, rdt_verbs_query_port(context, 1, &port));
  EXPECT(port.state >= IBV_PORT_DOWN && port.max_mtu >= IBV_MTU_256);
  EXPECT(rdt_verbs_query_port(context, 200, &port) < 0);
  EXPECT(strstr(rdt_last_error(), "cannot query port"));
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_verbs_get_async_event(context, &event));
}

static struct ibv_qp *make_queue_pair(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq) {
  struct ibv_qp *qp;
  struct ibv_qp_init_attr attr = {
      .qp_type = IBV_QPT_RC,
      .send_cq = cq,
      .recv_cq = cq,
      .srq = srq,
      .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
  EXPECT_STATUS(RDT_OK, rdt_verbs_create_qp(pd, &attr, &qp));
  EXPECT(attr.cap.max_send_wr >= 16);
  return qp;
}

static void test_queue_pair(struct ibv_pd *pd, struct ibv_cq *cq) {
  struct ibv_srq *srq;
  struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 64, .max_sge = 1}};
  EXPECT_STATUS(RDT_OK, rdt_verbs_create_srq(pd, &srq_attr, &srq));
  struct ibv_qp *qp = make_queue_pair(pd, cq, srq);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
  struct ibv_qp_init_attr init;
  /* From RESET one cannot go to RTS: the error must not be taken for success. */
  EXPECT(rdt_verbs_modify_qp(qp, &attr, IBV_QP_STATE) < 0);
  EXPECT(strstr(rdt_last_error(), "to state RTS: Invalid argument"));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
  EXPECT_STATUS(
      RDT_OK, rdt_verbs_modify_qp(
                  qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  EXPECT_STATUS(RDT_OK, rdt_verbs_query_qp(qp, &attr, IBV_QP_STATE, &init));
  EXPECT(attr.qp_state == IBV_QPS_INIT);
  EXPECT(rdt_verbs_destroy_srq(srq) < 0); /* the queue pair uses it */
  EXPECT(strstr(rdt_last_error(), "something made from it still exists"));
  EXPECT_STATUS(RDT_OK, rdt_verbs_destroy_qp(qp));
  EXPECT_STATUS(RDT_OK, rdt_verbs_destroy_srq(srq));
}

static void test_objects(struct ibv_context *context) {
  struct ibv_pd *pd;
  struct ibv_comp_channel *channel;
  struct ibv_cq *cq, *event_cq;
  void *event_context;
  EXPECT_STATUS(RDT_OK, rdt_verbs_alloc_pd(context, &pd));
  EXPECT_STATUS(RDT_OK, rdt_verbs_create_comp_channel(context, &channel));
  EXPECT_STATUS(RDT_OK, rdt_verbs_create_cq(context, 64, NULL, channel, &cq));
  EXPECT_STATUS(RDT_OK, rdt_verbs_result(ibv_req_notify_cq(cq, 0), "arm a queue"));
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_verbs_get_cq_event(channel, &event_cq, &event_context));
  EXPECT(rdt_verbs_create_cq(context, 1 << 30, NULL, channel, &event_cq) < 0);
  EXPECT(strstr(rdt_last_error(), "cannot create a completion queue on "));
  test_queue_pair(pd, cq);
  EXPECT_STATUS(RDT_OK, rdt_verbs_destroy_cq(cq));
  EXPECT_STATUS(RDT_OK, rdt_verbs_destroy_comp_channel(channel));
  EXPECT_STATUS(RDT_OK, rdt_verbs_dealloc_pd(pd));
}

/* ---- Registering -------------------------------------------------------------------------------- */

static double time_to_register(struct ibv_pd *pd, void *address, uint64_t size) {
  struct ibv_mr *mr;
  double start = seconds();
  EXPECT_STATUS(RDT_OK, rdt_verbs_register(pd, address, size, RDT_ACCESS_READ | RDT_ACCESS_WRITE,
                                           RDT_VERBS_LOCAL_TARGET, &mr));
  double taken = seconds() - start;
  EXPECT(mr->addr == address && mr->length == size);
  EXPECT_STATUS(RDT_OK, rdt_verbs_dereg_mr(mr));
  return taken;
}

static void test_sizes(struct ibv_pd *pd) {
  void *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(64 * MIB, &block));
  double untouched = time_to_register(pd, block, 64 * MIB);
  double touched = time_to_register(pd, block, 64 * MIB);
  printf("  registering 64 MiB: %.1f ms untouched, %.1f ms touched\n", untouched * 1e3,
         touched * 1e3);
  time_to_register(pd, (char *)block + 4097, 1);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
}

static void test_kinds_of_memory(struct ibv_pd *pd) {
  static const char constant[4096] = {1};
  struct ibv_mr *mr;
  /* Read-only memory is a source, and nothing else. */
  EXPECT_STATUS(RDT_OK, rdt_verbs_register(pd, (void *)constant, sizeof(constant), RDT_ACCESS_READ,
                                           RDT_VERBS_LOCAL_SOURCE, &mr));
  EXPECT_STATUS(RDT_OK, rdt_verbs_dereg_mr(mr));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_register(pd, (void *)constant, sizeof(constant),
                                                    RDT_ACCESS_READ, RDT_VERBS_LOCAL_TARGET, &mr));
  EXPECT(strstr(rdt_last_error(), "are read-only"));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_register(pd, (void *)constant, sizeof(constant),
                                                    RDT_ACCESS_WRITE, RDT_VERBS_LOCAL_SOURCE, &mr));
  void *hole = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(hole != MAP_FAILED && munmap((char *)hole + 4096, 4096) == 0);
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_register(pd, hole, 4 * 4096, RDT_ACCESS_READ,
                                                    RDT_VERBS_LOCAL_TARGET, &mr));
  EXPECT_STATUS(RDT_ERR_INVALID,
                rdt_verbs_register(pd, hole, 0, RDT_ACCESS_READ, RDT_VERBS_LOCAL_TARGET, &mr));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_register(pd, hole, UINT64_MAX, RDT_ACCESS_READ,
                                                    RDT_VERBS_LOCAL_TARGET, &mr));
  munmap(hole, 4 * 4096);
}

/* Gives up the right to pin without limit, which this thread may do by itself. */
static void drop_ipc_lock(void) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  EXPECT(syscall(SYS_capget, &header, data) == 0);
  data[0].effective &= ~(1u << CAP_IPC_LOCK);
  EXPECT(syscall(SYS_capset, &header, data) == 0);
}

/* Our arithmetic says what the kernel does, to the page. */
static void test_limit(struct ibv_pd *pd) {
  struct rlimit before, limit;
  struct ibv_mr *first, *mr;
  char *block;
  drop_ipc_lock();
  EXPECT(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
  limit = before;
  if (limit.rlim_cur > 8 * MIB) limit.rlim_cur = 8 * MIB;
  EXPECT(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
  uint64_t half = limit.rlim_cur / 2 / 4096 * 4096;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(16 * MIB, (void **)&block));
  EXPECT_STATUS(RDT_OK, rdt_verbs_register(pd, block, half, 0, RDT_VERBS_LOCAL_TARGET, &first));
  EXPECT_STATUS(RDT_OK, rdt_verbs_check_memlock(half));
  EXPECT_STATUS(RDT_OK, rdt_verbs_register(pd, block, half, 0, RDT_VERBS_LOCAL_TARGET, &mr));
  EXPECT_STATUS(RDT_OK, rdt_verbs_dereg_mr(mr));
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_verbs_check_memlock(half + 8192));
  EXPECT_STATUS(RDT_ERR_LIMIT,
                rdt_verbs_register(pd, block, half + 8192, 0, RDT_VERBS_LOCAL_TARGET, &mr));
  printf("  %s\n", rdt_last_error());
  errno = 0;
  EXPECT(!rdt_verbs_library()->reg_mr(pd, block, half + 8192, IBV_ACCESS_LOCAL_WRITE));
  EXPECT(errno == ENOMEM);
  EXPECT_STATUS(RDT_OK, rdt_verbs_dereg_mr(first));
  EXPECT(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
}

static void test_registration(struct ibv_context *context) {
  struct ibv_pd *pd;
  struct ibv_mr *mr;
  static char buffer[4096];
  EXPECT_STATUS(RDT_OK, rdt_verbs_alloc_pd(context, &pd));
  test_sizes(pd);
  test_kinds_of_memory(pd);
  test_limit(pd);
  EXPECT_STATUS(RDT_OK,
                rdt_verbs_register(pd, buffer, sizeof(buffer), 0, RDT_VERBS_LOCAL_TARGET, &mr));
  EXPECT(rdt_verbs_dealloc_pd(pd) < 0);
  EXPECT(strstr(rdt_last_error(), "something made from it still exists"));
  EXPECT_STATUS(RDT_OK, rdt_verbs_dereg_mr(mr));
  EXPECT_STATUS(RDT_OK, rdt_verbs_dealloc_pd(pd));
}

/* ---- The machine's ports ------------------------------------------------------------------------ */

/* Without the function of newer libraries, sysfs gives the same table. */
static void test_scan_by_sysfs(const rdt_verbs_port *ports, size_t count) {
  rdt_verbs_functions *library = (rdt_verbs_functions *)rdt_verbs_library();
  rdt_verbs_port *again;
  size_t again_count;
  void *saved = (void *)library->query_gid_table;
  library->query_gid_table = NULL;
  EXPECT_STATUS(RDT_OK, rdt_verbs_ports_scan(&again, &again_count));
  memcpy(&library->query_gid_table, &saved, sizeof(saved));
  EXPECT(again_count == count);
  for (size_t i = 0; i < count; i++) {
    EXPECT(strcmp(ports[i].device, again[i].device) == 0 && ports[i].number == again[i].number);
    EXPECT(ports[i].gid_count == again[i].gid_count);
    for (size_t j = 0; j < ports[i].gid_count; j++) {
      const rdt_verbs_gid *left = &ports[i].gids[j], *right = &again[i].gids[j];
      EXPECT(left->index == right->index && memcmp(left->raw, right->raw, 16) == 0);
      EXPECT(left->type == right->type && strcmp(left->netdev, right->netdev) == 0);
      EXPECT(rdt_verbs_gid_rank(left) == rdt_verbs_gid_rank(right));
    }
  }
  rdt_verbs_ports_free(again, again_count);
}

static void print_line(void *context, const char *line) {
  (void)context;
  printf("  %s\n", line);
}

static void test_device(const rdt_verbs_port *port) {
  struct ibv_context *context;
  printf("%s: %zu GIDs, %u work requests, %u completions, paging on demand: %s\n", port->device,
         port->gid_count, port->limits.max_qp_wr, port->limits.max_cqe,
         port->limits.on_demand_paging ? "yes" : "no");
  EXPECT_STATUS(RDT_OK, rdt_verbs_open_device(port->device, &context));
  test_queries(context);
  test_objects(context);
  test_registration(context);
  EXPECT_STATUS(RDT_OK, rdt_verbs_close_device(context));
}

int main(void) {
  rdt_verbs_port *ports;
  size_t count;
  rdt_verbs_choice choice;
  char text[256];
  test_loading();
  if (!rdt_verbs_library()) return skip(rdt_last_error());
  test_without_devices();
  test_results();
  EXPECT_STATUS(RDT_OK, rdt_verbs_ports_scan(&ports, &count));
  test_scan_by_sysfs(ports, count);
  rdt_status status = rdt_verbs_ports_choose(ports, count, "", "", print_line, NULL, &choice);
  if (status == RDT_OK) {
    rdt_verbs_choice_text(&choice, text, sizeof(text));
    printf("chosen: %s\n", text);
    status = rdt_verbs_check_memlock(64 * MIB);
  }
  if (status != RDT_OK) {
    EXPECT(status == RDT_ERR_UNSUPPORTED || status == RDT_ERR_LIMIT);
    rdt_verbs_ports_free(ports, count);
    return skip(rdt_last_error());
  }
  for (size_t i = 0; i < count; i++)
    if (ports[i].number == 1 && ports[i].transport == IBV_TRANSPORT_IB) test_device(&ports[i]);
  rdt_verbs_ports_free(ports, count);
  return 0;
}
