/* SPDX-License-Identifier: Apache-2.0
 *
 * Injects faults of the device itself, below the transport: it refuses work, or reports it twice.
 */
#ifndef RDT_TRANSPORT_VERBS_FAULTS_H
#define RDT_TRANSPORT_VERBS_FAULTS_H

#include "transport/verbs/library.h"

/* Gives the context's device the faults of the setting FAULTS. Call it before the first queue is
 * created. */
void rdt_verbs_faults_install(struct ibv_context *context);

#endif
