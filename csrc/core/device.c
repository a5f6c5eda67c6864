/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens and closes devices, and notices their use after fork.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/config.h"
#include "base/faults.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "base/text.h"
#include "core/client.h"
#include "core/meet/bootstrap.h"
#include "core/meet/encrypt.h"
#include "core/memory/region.h"
#include "core/post/overdue.h"
#include "core/progress.h"
#include "core/workers.h"
#include "transport/fault/fault.h"
#include "transport/registry.h"

static void close_transports(rdt_device *device) {
  for (size_t i = 0; i < rdt_transport_count; i++)
    if (device->transports[i].open)
      device->transports[i].ops->domain_close(device->transports[i].domain);
}

static void device_free(rdt_device *device) {
  close_transports(device); /* endpoints outlive the closed device while their channels are held */
  rdt_clients_free(device);
  rdt_secret_free(device->secret);
  rdt_admission_destroy(&device->admission);
  pthread_cond_destroy(&device->workers_done);
  pthread_mutex_destroy(&device->lock);
  if (device->wake_fd >= 0) close(device->wake_fd);
  if (device->tick.fd >= 0) close(device->tick.fd);
  if (device->bootstrap_wake >= 0) close(device->bootstrap_wake);
  free(device);
}

/* Processes can share memory if they have the same boot id, hence the same machine, and the same
 * network namespace, hence the same unix sockets. */
static void read_host_id(char *host_id) {
  struct stat space;
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  size_t length = file ? fread(host_id, 1, RDT_HOST_ID_SIZE - 1, file) : 0;
  if (file) fclose(file);
  host_id[length] = '\0';
  host_id[strcspn(host_id, "\n")] = '\0';
  if (host_id[0] == '\0') gethostname(host_id, RDT_HOST_ID_SIZE - 1);
  if (stat("/proc/self/ns/net", &space) == 0)
    rdt_text_append(host_id, RDT_HOST_ID_SIZE, "/%llu", (unsigned long long)space.st_ino);
}

static void choose_name(rdt_device *device, const char *given) {
  char host[128] = "";
  if (given && given[0]) {
    snprintf(device->name, sizeof(device->name), "%s", given);
    return;
  }
  gethostname(host, sizeof(host) - 1);
  snprintf(device->name, sizeof(device->name), "%s:%d", host, (int)getpid());
}

static rdt_status fill(rdt_device *device, const rdt_device_options *options) {
  if (options) memcpy(&device->options, options, options->struct_size);
  choose_name(device, device->options.name);
  read_host_id(device->host_id);
  rdt_status status = rdt_random(&device->generation, sizeof(device->generation));
  if (status != RDT_OK) return status;
  device->fork_epoch = rdt_forks_epoch();
  device->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (device->wake_fd < 0) return rdt_fail_errno(errno, "cannot create an eventfd");
  device->tick.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (device->tick.fd < 0) return rdt_fail_errno(errno, "cannot create a timer");
  return RDT_OK;
}

static void open_transport(rdt_device *device, size_t index, const char *wanted) {
  rdt_device_transport *own = &device->transports[index];
  const rdt_transport *transport = rdt_transports[index];
  own->ops = rdt_faults_wanted() ? rdt_fault_wrap(index) : transport;
  if (!rdt_text_lists(wanted, ',', transport->name)) {
    snprintf(own->why_not, sizeof(own->why_not), "not in %sTRANSPORTS", RDT_ENV_PREFIX);
  } else if (device->encrypts && !transport->encrypts) {
    snprintf(own->why_not, sizeof(own->why_not), "it cannot encrypt, and %sENCRYPT is on",
             RDT_ENV_PREFIX);
  } else if (own->ops->domain_open(&own->domain) == RDT_OK) {
    own->open = true;
    return;
  } else {
    snprintf(own->why_not, sizeof(own->why_not), "%s", rdt_last_error());
  }
  rdt_log(RDT_LOG_DEBUG, "device %s: no transport %s: %s", device->name, transport->name,
          own->why_not);
}

/* Opens the transports that are wanted and that this machine has. There must be at least one. */
static rdt_status open_transports(rdt_device *device) {
  char wanted[64], reasons[640] = "";
  bool any = false;
  rdt_config_text(RDT_CONFIG_TRANSPORTS, wanted, sizeof(wanted));
  rdt_status status = rdt_transports_check(RDT_ENV_PREFIX "TRANSPORTS", wanted);
  if (status != RDT_OK) return status;
  for (size_t i = 0; i < rdt_transport_count; i++) {
    open_transport(device, i, wanted);
    any |= device->transports[i].open;
    rdt_text_append(reasons, sizeof(reasons), "%s%s: %s", reasons[0] ? "; " : "",
                    rdt_transports[i]->name, device->transports[i].why_not);
  }
  if (any) return RDT_OK;
  return rdt_fail(RDT_ERR_UNSUPPORTED, "no transport of %sTRANSPORTS=%s can be used here (%s)",
                  RDT_ENV_PREFIX, wanted, reasons);
}

/* The secret is read here, so that whoever opens the device learns what is wrong with its file. */
static rdt_status read_secret(rdt_device *device) {
  rdt_status status = rdt_secret_configured(&device->secret);
  if (status == RDT_OK && !device->secret && rdt_config_number(RDT_CONFIG_INSECURE))
    rdt_log(RDT_LOG_WARN,
            "device %s: " RDT_ENV_PREFIX "INSECURE=1 and no " RDT_ENV_PREFIX
            "SECRET_FILE: everybody who reaches its port may read and write its regions",
            device->name);
  return status;
}

static rdt_device *new_device(void) {
  rdt_device *device = calloc(1, sizeof(*device));
  if (!device) return NULL;
  pthread_mutex_init(&device->lock, NULL);
  pthread_cond_init(&device->workers_done, NULL);
  rdt_admission_init(&device->admission);
  atomic_init(&device->refs, 1);
  device->free = device_free;
  device->wake_fd = device->tick.fd = device->epoll_fd = device->bootstrap_wake = -1;
  device->tcp_socket = device->local_socket = -1;
  return device;
}

static void warn_of_variable(const char *name, const char *nearest) {
  rdt_log(RDT_LOG_WARN, "%s%s is not a setting; the nearest is %s%s", RDT_ENV_PREFIX, name,
          RDT_ENV_PREFIX, nearest);
}

static rdt_status check_settings(void) {
  static atomic_flag warned = ATOMIC_FLAG_INIT;
  rdt_status status = rdt_config_check();
  if (!atomic_flag_test_and_set(&warned)) rdt_config_unknown_variables(warn_of_variable);
  return status;
}

static rdt_status check_options(const rdt_device_options *options) {
  if (options &&
      (options->struct_size < sizeof(size_t) || options->struct_size > sizeof(rdt_device_options)))
    return rdt_fail(RDT_ERR_INVALID,
                    "rdt_device_options has %zu bytes: set struct_size, and use "
                    "the header this library was built with",
                    options->struct_size);
  if (options && options->name && strlen(options->name) >= RDT_NAME_SIZE)
    return rdt_fail(RDT_ERR_INVALID, "a device's name has at most %d bytes", RDT_NAME_SIZE - 1);
  for (const char *at = options && options->name ? options->name : ""; *at; at++)
    if (iscntrl((unsigned char)*at))
      return rdt_fail(RDT_ERR_INVALID, "a device's name cannot have control characters");
  return check_settings();
}

rdt_status rdt_device_open(const rdt_device_options *options, rdt_device **device_out) {
  if (!device_out) return rdt_fail(RDT_ERR_INVALID, "device must not be NULL");
  rdt_status status = check_options(options);
  if (status != RDT_OK) return status;
  rdt_forks_watch();
  rdt_device *device = new_device();
  if (!device) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  status = rdt_clients_open(device);
  if (status == RDT_OK) status = fill(device, options);
  if (status == RDT_OK) status = read_secret(device);
  if (status == RDT_OK) status = rdt_encrypt_configure(device);
  if (status == RDT_OK) status = open_transports(device);
  if (status != RDT_OK) goto err_unref;
  status = rdt_progress_start(device);
  if (status != RDT_OK) goto err_unref;
  status = rdt_bootstrap_start(device);
  if (status != RDT_OK) goto err_stop_progress;
  *device_out = device;
  return RDT_OK;

err_stop_progress:
  rdt_progress_stop(device);
err_unref:
  rdt_device_unref(device);
  return status;
}

void rdt_device_interrupt(rdt_device *device) {
  if (!device || device->fork_epoch != rdt_forks_epoch()) return;
  rdt_bootstrap_interrupt(device);
  rdt_clients_interrupt(device);
}

void rdt_device_close(rdt_device *device) {
  if (!device) return;
  /* In a forked child the threads, and whatever they locked, exist only in the parent. */
  if (device->fork_epoch != rdt_forks_epoch()) return;
  pthread_mutex_lock(&device->lock);
  device->closing = true;
  pthread_mutex_unlock(&device->lock);
  rdt_bootstrap_stop(device);
  rdt_clients_stop(device);
  rdt_workers_wait(device);
  rdt_progress_stop(device);
  rdt_clients_closed(device);
  rdt_regions_free(device, NULL);
  rdt_device_unref(device);
}

const char *rdt_device_address(const rdt_device *device) { return device->address; }
const char *rdt_device_name(const rdt_device *device) { return device->name; }

rdt_status rdt_device_get_transport(const rdt_device *device, size_t index,
                                    rdt_transport_info *info) {
  if (!device || !info) return rdt_fail(RDT_ERR_INVALID, "device and info must not be NULL");
  if (index >= rdt_transport_count)
    return rdt_fail(RDT_ERR_INVALID, "this build has %zu transports", rdt_transport_count);
  const rdt_transport *transport = rdt_transports[index];
  const rdt_device_transport *own = &device->transports[index];
  *info = (rdt_transport_info){.name = transport->name,
                               .usable = own->open,
                               .text = own->why_not,
                               .memory_kinds = transport->memory_kinds};
  if (own->open) info->text = transport->domain_text ? transport->domain_text(own->domain) : "";
  return RDT_OK;
}

uint64_t rdt_device_registrable(const rdt_device *device) {
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; device && i < rdt_transport_count; i++) {
    if (!device->transports[i].open || !rdt_transports[i]->registrable) continue;
    uint64_t bytes = rdt_transports[i]->registrable();
    if (bytes < least) least = bytes;
  }
  return least;
}

rdt_status rdt_device_stats(const rdt_device *device, rdt_stats *stats) {
  if (!device || !stats) return rdt_fail(RDT_ERR_INVALID, "device and stats must not be NULL");
  /* In a forked child a thread that only the parent has may hold the lock. */
  bool here = device->fork_epoch == rdt_forks_epoch();
  stats->pending = here ? rdt_overdue_pending((rdt_device *)device) : 0;
  const rdt_counters *now = &device->counters;
#define LOAD(field) stats->field = atomic_load_explicit(&now->field, memory_order_relaxed)
  LOAD(writes);
  LOAD(write_bytes);
  LOAD(reads);
  LOAD(read_bytes);
  LOAD(atomics);
  LOAD(notifies_sent);
  LOAD(notifies_received);
  LOAD(notify_bytes_sent);
  LOAD(notify_bytes_received);
  LOAD(queued);
  LOAD(doorbells);
  LOAD(wakeups);
  LOAD(channels_opened);
  LOAD(channels_lost);
  LOAD(regions);
  LOAD(region_bytes);
#undef LOAD
  return RDT_OK;
}
