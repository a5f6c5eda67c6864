/* SPDX-License-Identifier: Apache-2.0 */
#include "core/meet/choice.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "transport/registry.h"

#define PROOF_MS 2000 /* while another transport is left */
#define SLOW_MS 250   /* a failure that took longer is remembered */
#define REMEMBER_MS 10000

static bool missed(rdt_device *device, const rdt_hello *peer, size_t transport, char *why,
                   size_t size) {
  bool found = false;
  int64_t now = rdt_now_ms();
  pthread_mutex_lock(&device->lock);
  for (size_t i = 0; i < RDT_TRANSPORT_FAILURES && !found; i++) {
    const rdt_transport_failure *each = &device->transport_failures[i];
    found =
        each->until > now && each->transport == transport && each->generation == peer->generation;
    if (found) snprintf(why, size, "%s", each->why);
  }
  pthread_mutex_unlock(&device->lock);
  return found;
}

static void remember(rdt_device *device, const rdt_hello *peer, const rdt_choice *choice) {
  rdt_transport_failure *oldest = device->transport_failures;
  pthread_mutex_lock(&device->lock);
  for (size_t i = 1; i < RDT_TRANSPORT_FAILURES; i++)
    if (device->transport_failures[i].until < oldest->until)
      oldest = &device->transport_failures[i];
  *oldest = (rdt_transport_failure){peer->generation, choice->at, rdt_now_ms() + REMEMBER_MS, ""};
  memcpy(oldest->why, choice->why_not[choice->at], sizeof(oldest->why));
  pthread_mutex_unlock(&device->lock);
}

/* A local transport needs a peer of our user, and so do others if there is no secret. Connects
 * *local to the peer's unix socket in these cases. Returns RDT_ERR_REFUSED if the transport is
 * not for this peer. */
static rdt_status check_user(const rdt_device *device, const rdt_hello *peer,
                             const rdt_transport *transport, rdt_deadline deadline, int *local) {
  if (!transport->local && device->secret) return RDT_OK;
  bool near = strcmp(device->host_id, peer->host_id) == 0;
  rdt_status status = near ? rdt_local_connect(peer->local_name, deadline, local) : RDT_ERR_REFUSED;
  if (status != RDT_ERR_REFUSED || transport->local) return status;
  if (rdt_config_number(RDT_CONFIG_INSECURE)) return RDT_OK;
  return rdt_fail(RDT_ERR_REFUSED,
                  "without a secret it is only for processes of one user on one host: "
                  "set " RDT_ENV_PREFIX "SECRET_FILE for both (docs/security.md)");
}

/* Whether both devices have the transport, as far as they know. If not, `why` says what is missing. */
static bool both_have(const rdt_device *device, const rdt_hello *peer, size_t index, char *why,
                      size_t size) {
  const rdt_transport *transport = rdt_transports[index];
  if (!device->transports[index].open)
    snprintf(why, size, "%s", device->transports[index].why_not);
  else if (!rdt_text_lists(peer->transports, ',', transport->name))
    snprintf(why, size, "the peer does not have it");
  else
    return transport->usable(device->host_id, peer->host_id, why, size);
  return false;
}

static bool is_permitted(const rdt_choice *choice, size_t index) {
  return !choice->permitted || rdt_text_lists(choice->permitted, ',', rdt_transports[index]->name);
}

/* Whether this connection may use a transport that both devices have. If not, `why` says what is missing. */
static bool could_use(const rdt_choice *choice, const rdt_device *device, const rdt_hello *peer,
                      size_t index, char *why, size_t size) {
  if (choice->failed[index]) return false; /* `why` has said so */
  if (is_permitted(choice, index)) return both_have(device, peer, index, why, size);
  snprintf(why, size, "not wanted for this connection");
  return false;
}

static bool others_after(const rdt_choice *choice, const rdt_device *device, const rdt_hello *peer,
                         size_t index) {
  char why[256];
  while (++index < rdt_transport_count)
    if (could_use(choice, device, peer, index, why, sizeof(why))) return true;
  return false;
}

static void list_reasons(const rdt_choice *choice, size_t end, const char *separator, char *text,
                         size_t size) {
  for (size_t i = 0; i < end; i++)
    rdt_text_append(text, size, "%s%s: %s", i ? separator : "", rdt_transports[i]->name,
                    choice->why_not[i]);
}

rdt_status rdt_choice_make(rdt_choice *choice, rdt_device *device, const rdt_hello *peer,
                           rdt_deadline deadline, int *local) {
  choice->made = false;
  for (choice->at = 0; choice->at < rdt_transport_count; choice->at++) {
    size_t i = choice->at;
    char *why = choice->why_not[i];
    if (!could_use(choice, device, peer, i, why, sizeof(choice->why_not[i]))) continue;
    choice->others = others_after(choice, device, peer, i);
    if (choice->others && missed(device, peer, i, why, sizeof(choice->why_not[i]))) {
      choice->failed[i] = true;
      continue;
    }
    rdt_status status = check_user(device, peer, rdt_transports[i], deadline, local);
    if (status != RDT_ERR_REFUSED) {
      choice->made = status == RDT_OK;
      choice->since = rdt_now_ms();
      return status;
    }
    snprintf(why, sizeof(choice->why_not[i]), "%s", rdt_last_error());
  }
  char reasons[768] = "";
  list_reasons(choice, rdt_transport_count, "; ", reasons, sizeof(reasons));
  return rdt_fail(RDT_ERR_NO_TRANSPORT, "no transport reaches %s at %s (%s)", peer->name,
                  peer->address, reasons);
}

/* Whether the same could not happen with another transport. */
static bool is_of_transport(rdt_status status) {
  return status != RDT_ERR_REFUSED && status != RDT_ERR_PROTOCOL && status != RDT_ERR_CLOSED;
}

bool rdt_choice_fails(rdt_choice *choice, rdt_device *device, const rdt_hello *peer,
                      rdt_status *status) {
  if (!choice->made || !is_of_transport(*status)) return false;
  size_t at = choice->at;
  choice->failed[at] = true;
  snprintf(choice->why_not[at], sizeof(choice->why_not[at]), "%s", rdt_last_error());
  rdt_text_clean(choice->why_not[at], strlen(choice->why_not[at]));
  if (choice->others) {
    if (rdt_now_ms() - choice->since > SLOW_MS) remember(device, peer, choice);
    return true;
  }
  bool first = true;
  for (size_t i = 0; i < at; i++) first &= !choice->failed[i];
  if (first) return false;
  char reasons[768] = "";
  list_reasons(choice, at + 1, "; ", reasons, sizeof(reasons));
  *status = rdt_fail(RDT_ERR_NO_TRANSPORT, "no transport reaches %s at %s (%s)", peer->name,
                     peer->address, reasons);
  return false;
}

rdt_deadline rdt_choice_limit(const rdt_choice *choice, rdt_deadline deadline) {
  rdt_deadline early = rdt_deadline_after(PROOF_MS);
  return choice->others && early < deadline ? early : deadline;
}

/* Lists the better transports that may work another time: those that failed, and those that this connection was not
 * permitted to use. */
static void list_better(const rdt_choice *choice, const rdt_device *device, const rdt_hello *peer,
                        char *names, size_t size) {
  char why[256];
  for (size_t i = 0; i < choice->at; i++) {
    bool better = choice->failed[i] ||
                  (!is_permitted(choice, i) && both_have(device, peer, i, why, sizeof(why)));
    if (better) rdt_text_append(names, size, "%s%s", names[0] ? "," : "", rdt_transports[i]->name);
  }
}

void rdt_choice_explain(const rdt_choice *choice, const rdt_hello *peer, rdt_channel *channel) {
  char reasons[768] = "", line[sizeof(reasons)] = "";
  bool failed = false;
  list_better(choice, channel->device, peer, channel->better, sizeof(channel->better));
  list_reasons(choice, choice->at, "\n", reasons, sizeof(reasons));
  list_reasons(choice, choice->at, "; ", line, sizeof(line));
  for (size_t i = 0; i < choice->at; i++) failed |= choice->failed[i];
  if (choice->at > 0) channel->passed_over = strdup(reasons); /* without memory: no explanation */
  bool loud =
      failed && rdt_admission_may_complain(&channel->device->admission, channel->peer_address);
  rdt_log(loud ? RDT_LOG_WARN : RDT_LOG_DEBUG, "device %s: %s at %s is reached over %s%s%s%s",
          channel->device->name, channel->peer_name, channel->peer_address,
          channel->transport->name, choice->at ? " (" : "", line, choice->at ? ")" : "");
}
