/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs, opened at run time: a machine without it runs everything else.
 *
 * Verbs report failure in three ways (NULL with errno, -1 with errno, the errno value itself). The
 * functions here know which is whose: they return rdt_status, and rdt_last_error() says what failed and
 * why. Callers never look at errno. Statuses, besides those named below:
 *
 *   RDT_ERR_NO_MEMORY    ENOMEM: of the machine, or a table of the device is full
 *   RDT_ERR_LIMIT        EAGAIN: the cgroup's rdma.max
 *   RDT_ERR_UNSUPPORTED  EOPNOTSUPP, ENOSYS: the device, its driver or this libibverbs cannot do it
 *   RDT_ERR_SYSTEM       everything else
 *
 * What <infiniband/verbs.h> implements inline over the context (ibv_post_send, ibv_post_recv,
 * ibv_post_srq_recv, ibv_poll_cq, ibv_req_notify_cq, ibv_alloc_mw) is called directly: it needs no symbol.
 *
 * Threads: every function may be called from any thread; objects follow libibverbs' own rules (an
 * object is not destroyed while another thread uses it). A destroy function that fails leaves the
 * object as it was, usually because something still refers to it.
 */
#ifndef RDT_TRANSPORT_VERBS_LIBRARY_H
#define RDT_TRANSPORT_VERBS_LIBRARY_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#include "rdmatensor.h"

/* The symbols used of libibverbs.so.1: NEEDED(result, name, version, arguments) for ibv_<name>.
 * The version matters: several symbols have an older one with other arguments. */
#define RDT_VERBS_SYMBOLS(NEEDED, OPTIONAL)                                                        \
  NEEDED(struct ibv_device **, get_device_list, "IBVERBS_1.1", (int *count))                       \
  NEEDED(void, free_device_list, "IBVERBS_1.1", (struct ibv_device * *list))                       \
  NEEDED(const char *, get_device_name, "IBVERBS_1.1", (struct ibv_device * device))               \
  NEEDED(struct ibv_context *, open_device, "IBVERBS_1.1", (struct ibv_device * device))           \
  NEEDED(int, close_device, "IBVERBS_1.1", (struct ibv_context * context))                         \
  NEEDED(int, query_device, "IBVERBS_1.1",                                                         \
         (struct ibv_context * context, struct ibv_device_attr * attr))                            \
  NEEDED(int, query_port, "IBVERBS_1.1",                                                           \
         (struct ibv_context * context, uint8_t port, struct _compat_ibv_port_attr *attr))         \
  NEEDED(int, query_gid, "IBVERBS_1.1",                                                            \
         (struct ibv_context * context, uint8_t port, int index, union ibv_gid *gid))              \
  NEEDED(struct ibv_pd *, alloc_pd, "IBVERBS_1.1", (struct ibv_context * context))                 \
  NEEDED(int, dealloc_pd, "IBVERBS_1.1", (struct ibv_pd * pd))                                     \
  NEEDED(struct ibv_mr *, reg_mr, "IBVERBS_1.1",                                                   \
         (struct ibv_pd * pd, void *address, size_t size, int access))                             \
  NEEDED(int, dereg_mr, "IBVERBS_1.1", (struct ibv_mr * mr))                                       \
  NEEDED(struct ibv_comp_channel *, create_comp_channel, "IBVERBS_1.0",                            \
         (struct ibv_context * context))                                                           \
  NEEDED(int, destroy_comp_channel, "IBVERBS_1.0", (struct ibv_comp_channel * channel))            \
  NEEDED(struct ibv_cq *, create_cq, "IBVERBS_1.1",                                                \
         (struct ibv_context * context, int cqe, void *cq_context,                                 \
          struct ibv_comp_channel *channel, int vector))                                           \
  NEEDED(int, destroy_cq, "IBVERBS_1.1", (struct ibv_cq * cq))                                     \
  NEEDED(int, get_cq_event, "IBVERBS_1.1",                                                         \
         (struct ibv_comp_channel * channel, struct ibv_cq * *cq, void **cq_context))              \
  NEEDED(void, ack_cq_events, "IBVERBS_1.1", (struct ibv_cq * cq, unsigned int count))             \
  NEEDED(struct ibv_qp *, create_qp, "IBVERBS_1.1",                                                \
         (struct ibv_pd * pd, struct ibv_qp_init_attr * attr))                                     \
  NEEDED(int, modify_qp, "IBVERBS_1.1", (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask)) \
  NEEDED(int, query_qp, "IBVERBS_1.1",                                                             \
         (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask, struct ibv_qp_init_attr *init)) \
  NEEDED(int, destroy_qp, "IBVERBS_1.1", (struct ibv_qp * qp))                                     \
  NEEDED(struct ibv_srq *, create_srq, "IBVERBS_1.1",                                              \
         (struct ibv_pd * pd, struct ibv_srq_init_attr * attr))                                    \
  NEEDED(int, modify_srq, "IBVERBS_1.1",                                                           \
         (struct ibv_srq * srq, struct ibv_srq_attr * attr, int mask))                             \
  NEEDED(int, destroy_srq, "IBVERBS_1.1", (struct ibv_srq * srq))                                  \
  NEEDED(int, get_async_event, "IBVERBS_1.1",                                                      \
         (struct ibv_context * context, struct ibv_async_event * event))                           \
  NEEDED(void, ack_async_event, "IBVERBS_1.1", (struct ibv_async_event * event))                   \
  NEEDED(int, fork_init, "IBVERBS_1.1", (void))                                                    \
  NEEDED(const char *, wc_status_str, "IBVERBS_1.1", (enum ibv_wc_status status))                  \
  NEEDED(const char *, event_type_str, "IBVERBS_1.1", (enum ibv_event_type event))                 \
  NEEDED(const char *, port_state_str, "IBVERBS_1.1", (enum ibv_port_state state))                 \
  NEEDED(const char *, node_type_str, "IBVERBS_1.1", (enum ibv_node_type type))                    \
  OPTIONAL(struct ibv_mr *, reg_mr_iova2, "IBVERBS_1.8",                                           \
           (struct ibv_pd * pd, void *address, size_t size, uint64_t iova, unsigned int access))   \
  OPTIONAL(int, is_fork_initialized, "IBVERBS_1.13", (void))

typedef struct rdt_verbs_functions {
#define RDT_VERBS_MEMBER(result, name, version, arguments) result(*name) arguments;
  RDT_VERBS_SYMBOLS(RDT_VERBS_MEMBER,
                    RDT_VERBS_MEMBER) /* an OPTIONAL one is NULL where it is missing */
#undef RDT_VERBS_MEMBER
  /* _ibv_query_gid_table, rdma-core 32 and newer; else NULL. */
  ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries,
                             size_t capacity, uint32_t flags, size_t entry_size);
} rdt_verbs_functions;

/* Returns the library's functions. The first call opens the library, which is never closed.
 * Returns NULL if it is not installed or too old; rdt_last_error() then says so, with the
 * remedy, on every call. Callers of the functions in the table must mind their return
 * conventions. The first call also makes fork safe, before any memory is registered. That is
 * needed below Linux 5.12 only, where a child's copy-on-write would move pages from under the
 * device: libibverbs withholds registered pages from children. If other code of the process
 * registered memory first, it is too late, and a warning is logged. */
const rdt_verbs_functions *rdt_verbs_library(void);

/* Devices */

/* Opens the device called `name`, with an asynchronous event queue that never blocks. The caller
 * closes the device after everything created from it. Returns RDT_ERR_INVALID if there is no
 * such device (the message lists those there are), and RDT_ERR_UNSUPPORTED as rdt_verbs_library()
 * does. */
rdt_status rdt_verbs_open_device(const char *name, struct ibv_context **context);
/* Lists the machine's devices, NULL-terminated. An empty list is no error. The caller frees the
 * list with rdt_verbs_free_devices; devices stay valid while opened. Returns RDT_ERR_UNSUPPORTED as
 * rdt_verbs_library() does. */
rdt_status rdt_verbs_list_devices(struct ibv_device ***list, int *count);
/* Ignores NULL. */
void rdt_verbs_free_devices(struct ibv_device **list);
/* Opens an entry of the list, as rdt_verbs_open_device does. */
rdt_status rdt_verbs_open(struct ibv_device *device, struct ibv_context **context);
rdt_status rdt_verbs_close_device(struct ibv_context *context);
/* Fills all of `attr`; what an old library or driver does not report is zero. */
rdt_status rdt_verbs_query_device(struct ibv_context *context, struct ibv_device_attr_ex *attr);
/* Fills all of `attr`; ports count from 1. */
rdt_status rdt_verbs_query_port(struct ibv_context *context, uint8_t port,
                                struct ibv_port_attr *attr);
/* RDT_OK: the caller must acknowledge `event`, or destroying its object blocks. RDT_IN_PROGRESS:
 * there is none; context->async_fd becomes readable at the next. */
rdt_status rdt_verbs_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
void rdt_verbs_ack_async_event(struct ibv_async_event *event);

/* Objects of a device */

rdt_status rdt_verbs_alloc_pd(struct ibv_context *context, struct ibv_pd **pd);
rdt_status rdt_verbs_dealloc_pd(struct ibv_pd *pd);
/* rdt_verbs_register (registration.h) registers memory. */
rdt_status rdt_verbs_dereg_mr(struct ibv_mr *mr);
/* Creates a memory window of type 2 that is not bound. */
rdt_status rdt_verbs_alloc_mw(struct ibv_pd *pd, struct ibv_mw **mw);
/* Frees the window. Its key is invalid from then on. */
rdt_status rdt_verbs_dealloc_mw(struct ibv_mw *mw);

/* The channel's fd never blocks. */
rdt_status rdt_verbs_create_comp_channel(struct ibv_context *context,
                                         struct ibv_comp_channel **channel);
rdt_status rdt_verbs_destroy_comp_channel(struct ibv_comp_channel *channel);
/* Creates a queue of at least `entries` completions. `channel` may be NULL. */
rdt_status rdt_verbs_create_cq(struct ibv_context *context, int entries, void *cq_context,
                               struct ibv_comp_channel *channel, struct ibv_cq **cq);
/* Blocks until every event taken from the queue is acknowledged. */
rdt_status rdt_verbs_destroy_cq(struct ibv_cq *cq);
/* RDT_OK: one event was taken, and the caller must acknowledge it. RDT_IN_PROGRESS: there is
 * none. */
rdt_status rdt_verbs_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
                                  void **cq_context);
void rdt_verbs_ack_cq_events(struct ibv_cq *cq, unsigned int count);

/* Writes the granted limits, which may exceed the requested ones, into attr->cap. */
rdt_status rdt_verbs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
                               struct ibv_qp **qp);
/* The message names the requested state and, for RTR, the usual causes. Returns
 * RDT_ERR_UNREACHABLE if the peer's address does not resolve (no route, no answer to ARP). */
rdt_status rdt_verbs_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
rdt_status rdt_verbs_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                              struct ibv_qp_init_attr *init);
/* Blocks until every asynchronous event about it is acknowledged. */
rdt_status rdt_verbs_destroy_qp(struct ibv_qp *qp);

rdt_status rdt_verbs_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr,
                                struct ibv_srq **srq);
rdt_status rdt_verbs_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
rdt_status rdt_verbs_destroy_srq(struct ibv_srq *srq);

/* Results of verbs called directly */

/* Converts the result of ibv_post_* and ibv_req_notify_cq, which is 0, an errno value, or, in
 * old drivers, -1 with errno set. Returns RDT_OK or a status of the table above. `what` is a
 * phrase such as "post a write". */
rdt_status rdt_verbs_result(int result, const char *what);

/* Words and properties */

/* Return libibverbs' names; static storage, never NULL. */
const char *rdt_verbs_wc_status_text(enum ibv_wc_status status);
const char *rdt_verbs_event_text(enum ibv_event_type event);
/* "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR". */
const char *rdt_verbs_qp_state_text(enum ibv_qp_state state);

#endif
