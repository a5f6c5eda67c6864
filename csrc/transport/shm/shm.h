/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes of one user on one host: regions are memfds mapped by both, notifications travel through
 * a ring in the receiver's memory, a sleeping peer is woken by an eventfd.
 */
#ifndef RDT_TRANSPORT_SHM_SHM_H
#define RDT_TRANSPORT_SHM_SHM_H

#include "transport/transport.h"

extern const rdt_transport rdt_transport_shm;

#endif
