/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"

#include <sys/random.h>

#include "base/status.h"

rdt_status rdt_random(void *bytes, size_t size) {
  if (getrandom(bytes, size, 0) == (ssize_t)size) return RDT_OK;
  return rdt_fail(RDT_ERR_SYSTEM, "the system gives no random numbers");
}

rdt_status rdt_random_id(uint64_t *id) {
  rdt_status status = rdt_random(id, sizeof(*id));
  while (status == RDT_OK && *id == 0) status = rdt_random(id, sizeof(*id));
  return status;
}
