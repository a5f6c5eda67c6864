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

#ifdef __cplusplus
}
#endif

#endif
