/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that nobody joins, and threads that poll.
 */
#ifndef RDT_BASE_THREAD_H
#define RDT_BASE_THREAD_H

#include <stdbool.h>

/* Runs `run` on a thread that nobody joins. Returns 0 or an errno value. */
int rdt_thread_detached(void *(*run)(void *argument), void *argument);

/* For threads that poll: lets another thread have the core, as the awaited one may need it. Returns false if a
 * program that computes has kept the core of late, so that the caller should sleep until its event instead. Each
 * thread has a record of its own. */
bool rdt_yield(void);

#endif
