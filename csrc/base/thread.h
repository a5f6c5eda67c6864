/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that nobody joins.
 */
#ifndef RDT_BASE_THREAD_H
#define RDT_BASE_THREAD_H

/* Runs `run` on a thread that nobody joins. Returns 0 or an errno value. */
int rdt_thread_detached(void *(*run)(void *argument), void *argument);

#endif
