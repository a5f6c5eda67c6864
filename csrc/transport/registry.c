/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/registry.h"

#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#ifdef RDT_HAVE_VERBS
#include "transport/verbs/verbs.h"
#endif

const rdt_transport *const rdt_transports[] = {
    &rdt_transport_shm,
#ifdef RDT_HAVE_VERBS
    &rdt_transport_verbs,
#endif
    &rdt_transport_tcp,
};
const size_t rdt_transport_count = sizeof(rdt_transports) / sizeof(rdt_transports[0]);

const rdt_transport *rdt_transport_find(const char *name) {
  for (size_t i = 0; i < rdt_transport_count; i++)
    if (strcmp(rdt_transports[i]->name, name) == 0) return rdt_transports[i];
  return NULL;
}

size_t rdt_transport_index(const rdt_transport *transport) {
  size_t i = 0;
  while (i + 1 < rdt_transport_count && rdt_transports[i]->name != transport->name) i++;
  return i;
}

rdt_status rdt_transports_check(const char *what, const char *names) {
  char name[64];
  for (const char *at = names; rdt_text_next(&at, name, sizeof(name));) {
    if (!rdt_text_lists(RDT_TRANSPORT_NAMES, ',', name))
      return rdt_fail(RDT_ERR_INVALID, "%s=%s: there is no transport \"%s\"; choose from %s", what,
                      names, name, RDT_TRANSPORT_NAMES);
  }
  return RDT_OK;
}
