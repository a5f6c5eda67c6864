/* SPDX-License-Identifier: Apache-2.0
 *
 * Which transport a connection takes; an addition to rdmatensor.h, whose rules hold here too.
 */
#ifndef RDMATENSOR_CHOICE_H
#define RDMATENSOR_CHOICE_H

#include "rdmatensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Connects as rdt_device_connect does, but over one of these transports only: names separated by
 * commas. */
RDT_API rdt_status rdt_device_connect_over(rdt_device *device, const char *address,
                                           const char *transports, int timeout_ms,
                                           rdt_channel **channel);

/* Tells why the channel uses no better transport, if this process connected: for each of them a line
 * with its name, a colon and the reason. "" otherwise. Valid while the channel handle is. */
RDT_API const char *rdt_channel_passed_over(const rdt_channel *channel);

#ifdef __cplusplus
}
#endif

#endif
