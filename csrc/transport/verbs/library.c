/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"

#define LIBRARY "libibverbs.so.1"

static const struct {
  const char *name, *version;
  size_t offset; /* in rdt_verbs_functions */
  bool needed;
} symbols[] = {
#define NEEDED_ROW(result, name, version, arguments) \
  {"ibv_" #name, version, offsetof(rdt_verbs_functions, name), true},
#define OPTIONAL_ROW(result, name, version, arguments) \
  {"ibv_" #name, version, offsetof(rdt_verbs_functions, name), false},
    RDT_VERBS_SYMBOLS(NEEDED_ROW, OPTIONAL_ROW){"_ibv_query_gid_table", "IBVERBS_1.11",
                                                offsetof(rdt_verbs_functions, query_gid_table),
                                                false}};

static rdt_verbs_functions functions;
static char load_error[384]; /* "" once loaded */
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

static bool find_symbols(void *library) {
  for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
    void *found = dlvsym(library, symbols[i].name, symbols[i].version);
    if (!found && symbols[i].needed) {
      snprintf(load_error, sizeof(load_error),
               LIBRARY " is too old, it lacks %s (%s): install rdma-core 17 or newer",
               symbols[i].name, symbols[i].version);
      return false;
    }
    memcpy((char *)&functions + symbols[i].offset, &found, sizeof(found));
  }
  return true;
}

static void make_fork_safe(void) {
  if (functions.is_fork_initialized && functions.is_fork_initialized() != IBV_FORK_DISABLED) return;
  errno = 0;
  int error = functions.fork_init();
  if (error == -1) error = errno;
  if (error == EINVAL)
    rdt_log(RDT_LOG_WARN,
            "this process registered RDMA memory before rdmatensor was loaded: on this kernel, "
            "older than 5.12, it must not fork");
  else if (error)
    rdt_log(RDT_LOG_WARN, "fork is not safe while RDMA is in use: %s", strerror(error));
}

static void load(void) {
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *reason = dlerror();
    if (!reason || strstr(reason, LIBRARY ": cannot open shared object file"))
      snprintf(load_error, sizeof(load_error),
               LIBRARY " is not installed: apt install libibverbs1 ibverbs-providers");
    else
      snprintf(load_error, sizeof(load_error), LIBRARY " does not load: %s", reason);
  } else if (find_symbols(library)) {
    make_fork_safe();
  }
}

const rdt_verbs_functions *rdt_verbs_library(void) {
  pthread_once(&load_once, load);
  if (!load_error[0]) return &functions;
  rdt_fail(RDT_ERR_UNSUPPORTED, "%s", load_error);
  return NULL;
}

static rdt_status status_of(int error) {
  switch (error) {
    case ENOMEM:
      return RDT_ERR_NO_MEMORY;
    case EAGAIN:
      return RDT_ERR_LIMIT;
    case EOPNOTSUPP:
    case ENOSYS:
    case EPROTONOSUPPORT:
      return RDT_ERR_UNSUPPORTED;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ETIMEDOUT:
      return RDT_ERR_UNREACHABLE;
    default:
      return RDT_ERR_SYSTEM;
  }
}

static const char *hint_for(int error) {
  switch (error) {
    case EAGAIN:
      return " (the limit rdma.max of this cgroup)";
    case ENODEV:
    case EIO:
      return " (the device was removed, or failed)";
    default:
      return "";
  }
}

/* Records "<what>: <reason><hint>" for the errno value `error`. */
__attribute__((format(printf, 3, 4))) static rdt_status fail(int error, const char *hint,
                                                             const char *format, ...) {
  char what[256], reason[128];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof(what), format, args);
  va_end(args);
  return rdt_fail(status_of(error), "%s: %s%s", what, strerror_r(error, reason, sizeof(reason)),
                  hint ? hint : hint_for(error));
}

/* Returns the errno value behind the result of a verb that returns int, or 0 if it succeeded.
 * Most verbs return the value itself, some return -1 and set errno, and a few drivers return the
 * negated value. */
static int error_of(int result) {
  if (result == -1) return errno ? errno : EIO;
  return result < 0 ? -result : result;
}

/* Does the same for a verb that returned NULL. */
static int error_of_null(void) { return errno ? errno : EIO; }

static const char *name_of(struct ibv_context *context) {
  return functions.get_device_name(context->device);
}

rdt_status rdt_verbs_result(int result, const char *what) {
  int error = error_of(result);
  return error ? fail(error, NULL, "cannot %s", what) : RDT_OK;
}

/* Checks the result of a create verb: `object` is NULL on failure. */
static rdt_status created(const void *object, struct ibv_context *context, const char *what) {
  if (object) return RDT_OK;
  return fail(error_of_null(), NULL, "cannot create a %s on %s", what, name_of(context));
}

/* Checks the result of a destroy verb. `device` was read before the call, because the object may
 * be gone. */
static rdt_status destroyed(int result, const char *device, const char *what) {
  int error = error_of(result);
  if (!error) return RDT_OK;
  return fail(error, error == EBUSY ? " (something made from it still exists)" : NULL,
              "cannot destroy a %s of %s", what, device);
}

static rdt_status never_block(int fd, const char *what) {
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return fail(errno, "", "cannot make the %s non-blocking", what);
  return RDT_OK;
}

rdt_status rdt_verbs_list_devices(struct ibv_device ***list_out, int *count_out) {
  if (!rdt_verbs_library()) return RDT_ERR_UNSUPPORTED;
  int count = 0;
  errno = 0;
  struct ibv_device **list = functions.get_device_list(&count);
  /* ENOSYS means that the kernel's RDMA modules are missing or not loaded, so there is no
   * device. */
  if (!list && errno != ENOSYS) return fail(error_of_null(), "", "cannot list the RDMA devices");
  *list_out = list;
  *count_out = list ? count : 0;
  return RDT_OK;
}

void rdt_verbs_free_devices(struct ibv_device **list) {
  if (list) functions.free_device_list(list);
}

/* libibverbs tries several ways to open a device and reports only how the last one failed. The
 * device node itself tells more. */
static rdt_status cannot_open(struct ibv_device *device, int error) {
  char path[sizeof("/dev/infiniband/") + IBV_SYSFS_NAME_MAX];
  const char *hint = NULL;
  snprintf(path, sizeof(path), "/dev/infiniband/%s", device->dev_name);
  if (access(path, R_OK | W_OK) != 0) {
    error = errno;
    hint = error == EACCES ? " (this user may not read and write it)"
                           : " (in a container, pass --device=/dev/infiniband)";
  }
  return fail(error, hint, "cannot open %s by %s", functions.get_device_name(device), path);
}

rdt_status rdt_verbs_open(struct ibv_device *device, struct ibv_context **context_out) {
  errno = 0;
  struct ibv_context *context = functions.open_device(device);
  if (!context) return cannot_open(device, error_of_null());
  rdt_status status = never_block(context->async_fd, "event queue of an RDMA device");
  if (status == RDT_OK)
    *context_out = context;
  else
    functions.close_device(context);
  return status;
}

static rdt_status no_such_device(struct ibv_device **list, int count, const char *name) {
  char names[256] = "none";
  for (int i = 0, used = 0; i < count && used < (int)sizeof(names); i++)
    used += snprintf(names + used, sizeof(names) - (size_t)used, "%s%s", i ? ", " : "",
                     functions.get_device_name(list[i]));
  return rdt_fail(RDT_ERR_INVALID, "there is no RDMA device %s; available: %s", name, names);
}

rdt_status rdt_verbs_open_device(const char *name, struct ibv_context **context) {
  struct ibv_device **list;
  int count, i = 0;
  rdt_status status = rdt_verbs_list_devices(&list, &count);
  if (status != RDT_OK) return status;
  while (i < count && strcmp(functions.get_device_name(list[i]), name) != 0) i++;
  status = i < count ? rdt_verbs_open(list[i], context) : no_such_device(list, count, name);
  rdt_verbs_free_devices(list);
  return status;
}

rdt_status rdt_verbs_close_device(struct ibv_context *context) {
  char device[IBV_SYSFS_NAME_MAX];
  snprintf(device, sizeof(device), "%s", name_of(context));
  int error = error_of(functions.close_device(context));
  return error ? fail(error, NULL, "cannot close %s", device) : RDT_OK;
}

/* verbs.h implements the next two inline, in terms of symbols that would then have to be linked. */
rdt_status rdt_verbs_query_device(struct ibv_context *context, struct ibv_device_attr_ex *attr) {
  struct verbs_context *extended = verbs_get_ctx_op(context, query_device_ex);
  memset(attr, 0, sizeof(*attr));
  int error = EOPNOTSUPP;
  if (extended) error = error_of(extended->query_device_ex(context, NULL, attr, sizeof(*attr)));
  if (error == EOPNOTSUPP || error == ENOSYS) {
    memset(attr, 0, sizeof(*attr));
    error = error_of(functions.query_device(context, &attr->orig_attr));
  }
  return error ? fail(error, NULL, "cannot query %s", name_of(context)) : RDT_OK;
}

rdt_status rdt_verbs_query_port(struct ibv_context *context, uint8_t port,
                                struct ibv_port_attr *attr) {
  struct verbs_context *extended = verbs_get_ctx_op(context, query_port);
  memset(attr, 0, sizeof(*attr));
  int error = error_of(
      extended ? extended->query_port(context, port, attr, sizeof(*attr))
               : functions.query_port(context, port, (struct _compat_ibv_port_attr *)attr));
  return error ? fail(error, NULL, "cannot query port %s:%u", name_of(context), port) : RDT_OK;
}

/* The event verbs return -1 with errno; both queues are non-blocking. */
static rdt_status event_taken(int result, struct ibv_context *context, const char *what) {
  if (result == 0) return RDT_OK;
  int error = error_of(result);
  if (error == EAGAIN || error == EINTR) return RDT_IN_PROGRESS;
  return fail(error, NULL, "cannot take %s of %s", what, name_of(context));
}

rdt_status rdt_verbs_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  return event_taken(functions.get_async_event(context, event), context, "an asynchronous event");
}

void rdt_verbs_ack_async_event(struct ibv_async_event *event) { functions.ack_async_event(event); }

rdt_status rdt_verbs_alloc_pd(struct ibv_context *context, struct ibv_pd **pd) {
  errno = 0;
  struct ibv_pd *made = functions.alloc_pd(context);
  if (made) *pd = made;
  return created(made, context, "protection domain");
}

rdt_status rdt_verbs_dealloc_pd(struct ibv_pd *pd) {
  const char *device = name_of(pd->context);
  return destroyed(functions.dealloc_pd(pd), device, "protection domain");
}

rdt_status rdt_verbs_dereg_mr(struct ibv_mr *mr) {
  const char *device = name_of(mr->context);
  return destroyed(functions.dereg_mr(mr), device, "memory registration");
}

rdt_status rdt_verbs_alloc_mw(struct ibv_pd *pd, struct ibv_mw **mw) {
  errno = 0;
  struct ibv_mw *made = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  if (made) *mw = made;
  return created(made, pd->context, "memory window");
}

rdt_status rdt_verbs_dealloc_mw(struct ibv_mw *mw) {
  const char *device = name_of(mw->context);
  return destroyed(ibv_dealloc_mw(mw), device, "memory window");
}

rdt_status rdt_verbs_create_comp_channel(struct ibv_context *context,
                                         struct ibv_comp_channel **channel) {
  errno = 0;
  struct ibv_comp_channel *made = functions.create_comp_channel(context);
  rdt_status status = created(made, context, "completion channel");
  if (status != RDT_OK) return status;
  status = never_block(made->fd, "completion channel");
  if (status == RDT_OK)
    *channel = made;
  else
    functions.destroy_comp_channel(made);
  return status;
}

rdt_status rdt_verbs_destroy_comp_channel(struct ibv_comp_channel *channel) {
  const char *device = name_of(channel->context);
  return destroyed(functions.destroy_comp_channel(channel), device, "completion channel");
}

rdt_status rdt_verbs_create_cq(struct ibv_context *context, int entries, void *cq_context,
                               struct ibv_comp_channel *channel, struct ibv_cq **cq) {
  errno = 0;
  struct ibv_cq *made = functions.create_cq(context, entries, cq_context, channel, 0);
  if (made) *cq = made;
  return created(made, context, "completion queue");
}

rdt_status rdt_verbs_destroy_cq(struct ibv_cq *cq) {
  const char *device = name_of(cq->context);
  return destroyed(functions.destroy_cq(cq), device, "completion queue");
}

rdt_status rdt_verbs_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
                                  void **cq_context) {
  return event_taken(functions.get_cq_event(channel, cq, cq_context), channel->context,
                     "a completion event");
}

void rdt_verbs_ack_cq_events(struct ibv_cq *cq, unsigned int count) {
  functions.ack_cq_events(cq, count);
}

rdt_status rdt_verbs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
                               struct ibv_qp **qp) {
  errno = 0;
  struct ibv_qp *made = functions.create_qp(pd, attr);
  if (made) *qp = made;
  return created(made, pd->context, "queue pair");
}

static const char *hint_for_modify(int error, enum ibv_qp_state state) {
  if (state != IBV_QPS_RTR) return NULL;
  switch (error) {
    case EINVAL:
      return " (our GID index, the path MTU or the peer's address does not fit this port)";
    case ENETUNREACH:
    case EHOSTUNREACH:
      return " (no route from our GID's network to the peer's GID)";
    case ETIMEDOUT:
      return " (the peer's GID does not answer to ARP or neighbour discovery)";
    default:
      return NULL;
  }
}

rdt_status rdt_verbs_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
  int error = error_of(functions.modify_qp(qp, attr, mask));
  if (!error) return RDT_OK;
  const char *device = name_of(qp->context);
  if (!(mask & IBV_QP_STATE))
    return fail(error, NULL, "cannot modify queue pair 0x%x of %s", qp->qp_num, device);
  return fail(error, hint_for_modify(error, attr->qp_state),
              "cannot move queue pair 0x%x of %s to state %s", qp->qp_num, device,
              rdt_verbs_qp_state_text(attr->qp_state));
}

rdt_status rdt_verbs_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                              struct ibv_qp_init_attr *init) {
  int error = error_of(functions.query_qp(qp, attr, mask, init));
  if (!error) return RDT_OK;
  return fail(error, NULL, "cannot query queue pair 0x%x of %s", qp->qp_num, name_of(qp->context));
}

rdt_status rdt_verbs_destroy_qp(struct ibv_qp *qp) {
  const char *device = name_of(qp->context);
  return destroyed(functions.destroy_qp(qp), device, "queue pair");
}

rdt_status rdt_verbs_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr,
                                struct ibv_srq **srq) {
  errno = 0;
  struct ibv_srq *made = functions.create_srq(pd, attr);
  if (made) *srq = made;
  return created(made, pd->context, "shared receive queue");
}

rdt_status rdt_verbs_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) {
  int error = error_of(functions.modify_srq(srq, attr, mask));
  if (!error) return RDT_OK;
  return fail(error, NULL, "cannot modify a shared receive queue of %s", name_of(srq->context));
}

rdt_status rdt_verbs_destroy_srq(struct ibv_srq *srq) {
  const char *device = name_of(srq->context);
  return destroyed(functions.destroy_srq(srq), device, "shared receive queue");
}

static const char *or_unknown(const char *text) { return text ? text : "unknown"; }

const char *rdt_verbs_wc_status_text(enum ibv_wc_status status) {
  return or_unknown(functions.wc_status_str(status));
}

const char *rdt_verbs_event_text(enum ibv_event_type event) {
  return or_unknown(functions.event_type_str(event));
}

const char *rdt_verbs_qp_state_text(enum ibv_qp_state state) {
  static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  size_t row = (size_t)state;
  return row < sizeof(names) / sizeof(names[0]) ? names[row] : "UNKNOWN";
}
