// SPDX-License-Identifier: Apache-2.0
#include "server/worker.h"

#include "collective/ballots.h"
#include "collective/collective_stats.h"
#include "plan/plan_json.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "wire/message.h"

namespace rdmatensor {
namespace {

class RdmaWorker : public tensorflow::GrpcWorker {
 public:
  RdmaWorker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config,
             TensorService* service)
      : GrpcWorker(env, config),
        service_(service),
        ballots_(service != nullptr ? Ballots::TimeoutMs(service->settings()) : 0) {}

  void RecvBufAsync(tensorflow::CallOptions* options, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response,
                    tensorflow::StatusCallback done) override {
    if (service_ != nullptr && request->buf_rendezvous_key() == kPlanKey &&
        request->transport_options().type_url() == kPlanKey) {
      response->mutable_transport_options()->set_type_url(kPlanKey);
      response->mutable_transport_options()->set_value(PlanAsJson(service_->host()));
      done(absl::OkStatus());
      return;
    }
    if (service_ != nullptr && request->buf_rendezvous_key() == kVoteKey &&
        request->transport_options().type_url() == kVoteKey) {
      Count(request->transport_options().value(), response, std::move(done));
      return;
    }
    if (request->buf_rendezvous_key() != kAddressKey ||
        request->transport_options().type_url() != kAddressKey) {
      if (request->num_bytes() > 0) CountStockBuffer(static_cast<uint64_t>(request->num_bytes()));
      GrpcWorker::RecvBufAsync(options, request, response, std::move(done));
      return;
    }
    response->mutable_transport_options()->set_type_url(kAddressKey);
    response->mutable_transport_options()->set_value(Encode(AnswerOf(service_, *env_)));
    done(absl::OkStatus());
  }

 private:
  void Count(absl::string_view encoded, tensorflow::RecvBufResponse* response,
             tensorflow::StatusCallback done) {
    Vote vote;
    if (!Parse(encoded, &vote)) {
      done(absl::InvalidArgumentError("rdmatensor: a malformed vote"));
      return;
    }
    ballots_.Cast(vote, [response, done = std::move(done)](const Verdict& verdict) {
      response->mutable_transport_options()->set_type_url(kVoteKey);
      response->mutable_transport_options()->set_value(Encode(verdict));
      done(absl::OkStatus());
    });
  }

  TensorService* const service_;
  Ballots ballots_;  // of the collective groups whose first member this task is
};

}  // namespace

AddressAnswer AnswerOf(const TensorService* service, const tensorflow::WorkerEnv& env) {
  AddressAnswer answer;
  if (service != nullptr) {
    answer.address = service->address();
    answer.region_keys = service->host().exports->Keys();
    answer.device_name = rdt_device_name(service->device());
  }
  for (const tensorflow::Device* device : env.device_mgr->ListDevices()) {
    answer.incarnations.push_back(device->attributes().incarnation());
  }
  return answer;
}

std::unique_ptr<tensorflow::GrpcWorker> NewRdmaWorker(tensorflow::WorkerEnv* env,
                                                      const tensorflow::ConfigProto& config,
                                                      TensorService* service) {
  return std::make_unique<RdmaWorker>(env, config, service);
}

}  // namespace rdmatensor
