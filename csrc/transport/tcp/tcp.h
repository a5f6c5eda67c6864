/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided tensors over plain TCP, for hosts without RDMA: the target's polling thread serves
 * writes and reads of registered regions. objects.h describes its parts.
 */
#ifndef RDT_TRANSPORT_TCP_TCP_H
#define RDT_TRANSPORT_TCP_TCP_H

#include "transport/transport.h"

extern const rdt_transport rdt_transport_tcp;

#endif
