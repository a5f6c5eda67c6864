// SPDX-License-Identifier: Apache-2.0
//
// The functions by which rdmatensor.tensorflow reads this process's statistics and the plan in force.
#ifndef RDMATENSOR_TENSORFLOW_SERVER_STATS_REPORT_H_
#define RDMATENSOR_TENSORFLOW_SERVER_STATS_REPORT_H_

#include <cstddef>

extern "C" {
// Writes the statistics as JSON with a terminating zero if `size` allows; returns the size needed.
__attribute__((visibility("default"))) size_t rdt_tf_stats_json(char* out, size_t size);
// Sets counters to zero; peers and the arena's present use stay.
__attribute__((visibility("default"))) void rdt_tf_stats_reset(void);
// Writes the plan in force at `task` ("/job:worker/replica:0/task:0"; NULL: the only server of the process)
// as JSON in the same way; returns 0 if there is no such server.
__attribute__((visibility("default"))) size_t rdt_tf_plan_json(const char* task, char* out,
                                                               size_t size);
}

#endif  // RDMATENSOR_TENSORFLOW_SERVER_STATS_REPORT_H_
