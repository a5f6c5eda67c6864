/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults of the device itself, below the transport: it refuses work, or reports it twice.
 */
#ifndef RDT_TRANSPORT_VERBS_FAULTS_H
#define RDT_TRANSPORT_VERBS_FAULTS_H

#include "transport/verbs/library.h"

/* From now on the context's device has the faults of the setting FAULTS. Before its first queue. */
void verbs_faults_install(struct ibv_context *context);

#endif
