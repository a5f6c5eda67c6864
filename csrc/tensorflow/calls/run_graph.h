// SPDX-License-Identifier: Apache-2.0
//
// RunGraph and CleanupGraph, which start and end a step at a task, as calls. Fed and fetched tensors go beside the
// messages where that is possible.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_RUN_GRAPH_H_
#define RDMATENSOR_TENSORFLOW_CALLS_RUN_GRAPH_H_

#include "absl/status/status.h"
#include "calls/call_body.h"
#include "calls/callee.h"
#include "channel/step_failures.h"
#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace rdmatensor {

// The caller's half. An error means that the request cannot be a call.
absl::Status PackRunGraph(const tensorflow::RunGraphRequestWrapper& request, CallBody* body);
absl::Status UnpackRunGraph(const CallBody& body,
                            tensorflow::MutableRunGraphResponseWrapper* response);

// The callee's half: lets `worker` execute the calls. `ended_early` gets the steps that are cancelled before they
// began. Both live as long as the process.
void ServeRunGraph(tensorflow::WorkerInterface* worker, StepFailures* ended_early,
                   CallTable* table);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_RUN_GRAPH_H_
