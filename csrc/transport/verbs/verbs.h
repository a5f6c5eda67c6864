/* SPDX-License-Identifier: Apache-2.0
 *
 * RDMA through libibverbs: RoCE, InfiniBand, and SoftRoCE for tests. objects.h describes its
 * parts.
 */
#ifndef RDT_TRANSPORT_VERBS_VERBS_H
#define RDT_TRANSPORT_VERBS_VERBS_H

#include "transport/transport.h"

extern const rdt_transport rdt_transport_verbs;

#endif
