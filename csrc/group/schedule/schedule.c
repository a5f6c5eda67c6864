/* SPDX-License-Identifier: Apache-2.0 */
#include "group/schedule/schedule.h"

#include <stdlib.h>

void rdt_schedule_free(rdt_schedule *schedule) {
  if (schedule == NULL) return;
  free(schedule->steps);
  free(schedule);
}
