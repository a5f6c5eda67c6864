// SPDX-License-Identifier: Apache-2.0
#include "worker.h"

#include "message.h"
#include "plan_book.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/device_attributes.pb.h"

namespace rdmatensor {
namespace {

class RdmaWorker : public tensorflow::GrpcWorker {
 public:
  RdmaWorker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config, Endpoint* endpoint)
      : GrpcWorker(env, config), endpoint_(endpoint) {}

  void RecvBufAsync(tensorflow::CallOptions* options, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response,
                    tensorflow::StatusCallback done) override {
    if (endpoint_ != nullptr && request->buf_rendezvous_key() == kPlanKey &&
        request->transport_options().type_url() == kPlanKey) {
      response->mutable_transport_options()->set_type_url(kPlanKey);
      response->mutable_transport_options()->set_value(PlanBook::Get()->AsJson(endpoint_));
      done(absl::OkStatus());
      return;
    }
    if (request->buf_rendezvous_key() != kAddressKey ||
        request->transport_options().type_url() != kAddressKey) {
      GrpcWorker::RecvBufAsync(options, request, response, std::move(done));
      return;
    }
    AddressAnswer answer;
    if (endpoint_ != nullptr) {
      answer.address = endpoint_->address();
      answer.region_keys = endpoint_->exports().Keys();
      answer.device_name = rdt_device_name(endpoint_->device());
    }
    for (const tensorflow::Device* device : env_->device_mgr->ListDevices()) {
      answer.incarnations.push_back(device->attributes().incarnation());
    }
    response->mutable_transport_options()->set_type_url(kAddressKey);
    response->mutable_transport_options()->set_value(Encode(answer));
    done(absl::OkStatus());
  }

 private:
  Endpoint* const endpoint_;
};

}  // namespace

std::unique_ptr<tensorflow::GrpcWorker> NewRdmaWorker(tensorflow::WorkerEnv* env,
                                                      const tensorflow::ConfigProto& config,
                                                      Endpoint* endpoint) {
  return std::make_unique<RdmaWorker>(env, config, endpoint);
}

}  // namespace rdmatensor
