/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ERROR_TEXT_SIZE 1024

static const struct {
  rdt_status status;
  const char *name, *group, *text;
} status_table[] = {
    {RDT_OK, "OK", "ok", "complete"},
    {RDT_IN_PROGRESS, "IN_PROGRESS", "ok", "not complete yet"},
    {RDT_ERR_INVALID, "INVALID", "caller", "an argument is not valid"},
    {RDT_ERR_UNSUPPORTED, "UNSUPPORTED", "caller", "the transport cannot do this"},
    {RDT_ERR_CANCELLED, "CANCELLED", "caller", "the channel was closed on this side"},
    {RDT_ERR_FORKED, "FORKED", "caller", "the device was opened before fork"},
    {RDT_ERR_NO_MEMORY, "NO_MEMORY", "device", "no memory left"},
    {RDT_ERR_SYSTEM, "SYSTEM", "device", "a system call failed"},
    {RDT_ERR_LIMIT, "LIMIT", "device", "a configured limit is reached"},
    {RDT_ERR_CLOSED, "CLOSED", "device", "the device or region is closed"},
    {RDT_ERR_UNREACHABLE, "UNREACHABLE", "connection", "the peer cannot be reached"},
    {RDT_ERR_CONNECTION_LOST, "CONNECTION_LOST", "connection",
     "the connection to the peer is lost"},
    {RDT_ERR_DEADLINE, "DEADLINE", "connection", "the deadline passed"},
    {RDT_ERR_PROTOCOL, "PROTOCOL", "connection", "the peer broke the protocol"},
    {RDT_ERR_REFUSED, "REFUSED", "connection", "the peer refused"},
    {RDT_ERR_NO_TRANSPORT, "NO_TRANSPORT", "connection", "no transport reaches the peer"},
    {RDT_ERR_CORRUPTED, "CORRUPTED", "connection", "bytes changed on their way"},
    {RDT_ERR_NO_REGION, "NO_REGION", "region", "there is no such region"},
    {RDT_ERR_ACCESS, "ACCESS", "region", "the region does not permit this access"},
    {RDT_ERR_RANGE, "RANGE", "region", "outside the permitted range"},
};

static _Thread_local char last_error[ERROR_TEXT_SIZE];

static size_t status_row(rdt_status status) {
  size_t count = sizeof(status_table) / sizeof(status_table[0]), i = 0;
  while (i < count && status_table[i].status != status) i++;
  return i;
}

static int status_known(size_t row) { return row < sizeof(status_table) / sizeof(status_table[0]); }

const char *rdt_status_name(rdt_status status) {
  size_t row = status_row(status);
  return status_known(row) ? status_table[row].name : "UNKNOWN";
}

const char *rdt_status_text(rdt_status status) {
  size_t row = status_row(status);
  return status_known(row) ? status_table[row].text : "not a status of this library";
}

const char *rdt_status_group(rdt_status status) {
  size_t row = status_row(status);
  return status_known(row) ? status_table[row].group : "caller";
}

rdt_status rdt_status_refused(rdt_status status) {
  /* The peer's device is closed, not this one. */
  if (status == RDT_ERR_CLOSED) return RDT_ERR_CONNECTION_LOST;
  return status < 0 && status_known(status_row(status)) ? status : RDT_ERR_REFUSED;
}

const char *rdt_last_error(void) { return last_error; }

const char *rdt_version(void) { return RDT_VERSION; }

rdt_status rdt_fail(rdt_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof(last_error), format, args);
  va_end(args);
  return status;
}

/* Names the remedy for errors that users can fix. */
static const char *remedy(int error) {
  switch (error) {
    case EMFILE:
      return " (this process has as many as it may: raise the limit with ulimit -n)";
    case ENFILE:
      return " (this machine has as many as it may: raise fs.file-max)";
    case EADDRINUSE:
      return " (another process listens there: end it, or take another port)";
    default:
      return "";
  }
}

rdt_status rdt_fail_errno(int error, const char *format, ...) {
  char reason[128];
  va_list args;
  va_start(args, format);
  int used = vsnprintf(last_error, sizeof(last_error), format, args);
  va_end(args);
  if (used >= 0 && (size_t)used < sizeof(last_error))
    snprintf(last_error + used, sizeof(last_error) - (size_t)used, ": %s%s",
             strerror_r(error, reason, sizeof(reason)), remedy(error));
  return RDT_ERR_SYSTEM;
}
