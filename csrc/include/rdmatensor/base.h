/* SPDX-License-Identifier: Apache-2.0
 *
 * Statuses, settings, the log and memory: what every other part of the library uses. rdmatensor.h includes this
 * file, and says what holds for all functions.
 */
#ifndef RDMATENSOR_BASE_H
#define RDMATENSOR_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RDT_API __attribute__((visibility("default")))

/* Status */

/* Grouped by the largest thing that broke, so a caller knows what to rebuild: its call (-1..), the
 * local device (-20..), the connection (-40..), the region (-60..). */
typedef enum rdt_status {
  RDT_OK = 0,
  RDT_IN_PROGRESS = 1,
  RDT_ERR_INVALID = -1,
  RDT_ERR_UNSUPPORTED = -2,
  RDT_ERR_CANCELLED = -3,
  RDT_ERR_FORKED = -4,
  RDT_ERR_NO_MEMORY = -20,
  RDT_ERR_SYSTEM = -21,
  RDT_ERR_LIMIT = -22,
  RDT_ERR_CLOSED = -23,
  RDT_ERR_UNREACHABLE = -40,
  RDT_ERR_CONNECTION_LOST = -41,
  RDT_ERR_DEADLINE = -42,
  RDT_ERR_PROTOCOL = -43,
  RDT_ERR_REFUSED = -44,
  RDT_ERR_NO_TRANSPORT = -45,
  RDT_ERR_CORRUPTED = -46,
  RDT_ERR_NO_REGION = -60,
  RDT_ERR_ACCESS = -61,
  RDT_ERR_RANGE = -62
} rdt_status;

/* Returns the name, such as "CONNECTION_LOST", or "UNKNOWN" for a number outside the table; never NULL. Static
 * storage. */
RDT_API const char *rdt_status_name(rdt_status status);
/* Returns one sentence about the code itself. Static storage. */
RDT_API const char *rdt_status_text(rdt_status status);
/* Returns "ok", "caller", "device", "connection" or "region". Static storage. */
RDT_API const char *rdt_status_group(rdt_status status);
/* Describes the calling thread's last failure; "" if there was none. Valid until the thread's next call. */
RDT_API const char *rdt_last_error(void);
/* Returns the library's version, "0.1.0". */
RDT_API const char *rdt_version(void);

/* Configuration: one table; each entry is also the environment variable RDMATENSOR_<NAME> */

typedef struct rdt_config_entry {
  const char *name;          /* "SPIN_US" */
  const char *default_value; /* as text */
  const char *range;         /* "0..1000000", "auto|rdma|grpc", "text" */
  const char *doc;           /* one sentence, with the unit */
} rdt_config_entry;

/* Returns the number of entries. */
RDT_API size_t rdt_config_count(void);
/* Describes entry `index` of the table. RDT_ERR_INVALID past its end. */
RDT_API rdt_status rdt_config_describe(size_t index, rdt_config_entry *entry);
/* Room for the text of any setting, with its terminating zero: FAULTS with all its kinds is the longest. */
#define RDT_CONFIG_TEXT_SIZE 512
/* Writes the value in force as text, with its terminating zero, into `value`. RDT_ERR_INVALID if `size` is too
 * small, or for an unknown name (the message names the nearest). */
RDT_API rdt_status rdt_config_get(const char *name, char *value, size_t size);
/* Gives the value in force of a numeric entry. Errors as rdt_config_get. */
RDT_API rdt_status rdt_config_get_u64(const char *name, uint64_t *value);
/* Overrides default and environment for this process. Devices read their settings when opened.
 * RDT_ERR_INVALID for an unknown name or a bad value. */
RDT_API rdt_status rdt_config_set(const char *name, const char *value);

/* For tests: returns how many faults of kind `index` the setting FAULTS has injected into this
 * process. RDT_ERR_INVALID past the last kind. */
RDT_API rdt_status rdt_fault_count(size_t index, const char **name, uint64_t *count);
/* For clients of a device that inject faults into their own messages: -1 if this occasion of `kind`
 * ("call_delay"), on a channel over `transport` to the peer called `whom`, has no fault. Otherwise the fault is
 * counted, and this is how long it lasts, in microseconds; 0 for kinds without a time. Thread-safe. */
RDT_API int64_t rdt_fault_occasion(const char *kind, const char *transport, const char *whom);

/* Checksums */

/* Returns the CRC32C (RFC 3720) of `size` bytes that follow those whose checksum is `crc`; 0 if they are the
 * first. `data` may be NULL if `size` is 0. Never fails. */
RDT_API uint32_t rdt_crc32c(uint32_t crc, const void *data, uint64_t size);

/* Log */

typedef enum rdt_log_level {
  RDT_LOG_ERROR = 0,
  RDT_LOG_WARN = 1,
  RDT_LOG_INFO = 2,
  RDT_LOG_DEBUG = 3
} rdt_log_level;

/* Receives each line at or below LOG_LEVEL, without newline. Called from any thread. */
typedef void (*rdt_log_fn)(void *context, rdt_log_level level, const char *line);
/* Replaces the sink (NULL: standard error). Process-wide; set it before opening devices. */
RDT_API void rdt_log_set_sink(rdt_log_fn sink, void *context);
/* Writes one line into the sink if `level` is enabled. The plugin logs through it too. */
RDT_API void rdt_log_line(rdt_log_level level, const char *line);

/* Shareable memory */

/* Reserves `size` bytes (rounded up to pages) of memory that any transport can hand to peers; pages
 * are taken from the machine on first touch. Zero-filled, page-aligned. The caller frees it, after
 * closing every region registered over it. In a child of fork the block is memory of its own: writes of the
 * child do not reach the parent, but pages that the child has not written show what the parent writes.
 * RDT_ERR_NO_MEMORY, RDT_ERR_SYSTEM. */
RDT_API rdt_status rdt_memory_alloc(size_t size, void **address);
/* RDT_ERR_INVALID if `address` did not come from rdt_memory_alloc. */
RDT_API rdt_status rdt_memory_free(void *address);

/* Memory of CUDA devices. The driver, libcuda.so.1, is opened by the first of these calls. Where there is none, or it
 * shows no device, they return RDT_ERR_UNSUPPORTED; in a child of fork, if its parent called one, RDT_ERR_FORKED; for
 * what the driver reports, RDT_ERR_SYSTEM with its words. `device` is the driver's number, from 0. Any thread; not from a
 * handler, because they wait for the device: each wait for DEADLINE_MS at most, then they return RDT_ERR_DEADLINE. What
 * still runs then keeps the memory that it uses. */

/* Allocates `size` > 0 bytes, zero-filled, on a device. RDT_ERR_INVALID if there is no such device,
 * RDT_ERR_NO_MEMORY. Free them with rdt_cuda_free, after closing every region registered over them. */
RDT_API rdt_status rdt_cuda_alloc(int device, uint64_t size, void **address);
/* Does nothing for NULL, and in a child of fork. */
RDT_API void rdt_cuda_free(void *address);
/* Copies `size` bytes between host memory and a device, in either direction, or between devices. Waits for what was
 * queued before on the default stream and on that of rdt_cuda_stream. On return the bytes are there; after an error
 * any part of them may be, and host memory is not touched any more. RDT_ERR_INVALID if neither address is of a device. */
RDT_API rdt_status rdt_cuda_copy(void *to, const void *from, uint64_t size);
/* Sets *stream to the CUstream on which rdt_cuda_copy copies for the device: work on other streams that must come
 * before the copy, that stream has to wait for. */
RDT_API rdt_status rdt_cuda_stream(int device, uint64_t *stream);
/* Waits until what was queued on a CUstream of the device that has `address` is done. */
RDT_API rdt_status rdt_cuda_wait(const void *address, uint64_t stream);
/* Lets devices copy directly to and from the block of rdt_memory_alloc at `address`, all of whose pages stay in memory
 * then, until it is freed. RDT_ERR_UNSUPPORTED if this process does not use CUDA yet: nothing is opened then. Blocks of
 * which much is copied need no call. */
RDT_API rdt_status rdt_cuda_pin(void *address);
/* Writes the driver's version and the devices' names, for people, into `text` of `size` bytes; cut if too long. */
RDT_API rdt_status rdt_cuda_describe(char *text, size_t size);
/* Returns RDT_OK if the driver lets other processes of this host use memory of the device (CUDA IPC), so that regions in
 * it can be reached over shm; RDT_ERR_UNSUPPORTED, with the driver's words, if peers have to connect over tcp. */
RDT_API rdt_status rdt_cuda_check_sharing(int device);

#ifdef __cplusplus
}
#endif

#endif
