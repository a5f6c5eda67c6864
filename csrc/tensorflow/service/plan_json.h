// SPDX-License-Identifier: Apache-2.0
//
// The plan in force, for people and for graph_analyzer, which has the same format.
#ifndef RDMATENSOR_TENSORFLOW_SERVICE_PLAN_JSON_H_
#define RDMATENSOR_TENSORFLOW_SERVICE_PLAN_JSON_H_

#include <string>

#include "channel/server_context.h"

namespace rdmatensor {

// Returns the plan of the edges that enter the server's task.
std::string PlanAsJson(const ServerContext& server);
// Returns the counters of the devices of all servers of this process, as a JSON list.
std::string DevicesAsJson();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVICE_PLAN_JSON_H_
