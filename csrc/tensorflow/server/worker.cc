// SPDX-License-Identifier: Apache-2.0
#include "server/worker.h"

#include "channel/message.h"
#include "collective/ballots.h"
#include "collective/collective_stats.h"
#include "service/plan_json.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"

namespace rdmatensor {
namespace {

class RdmaWorker : public tensorflow::GrpcWorker {
 public:
  RdmaWorker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config,
             TensorService* service, Questions questions)
      : GrpcWorker(env, config),
        questions_(std::move(questions)),
        ballots_(service != nullptr ? Ballots::TimeoutMs(service->settings()) : 0) {
    if (service == nullptr) return;
    questions_[kPlanKey] = [service](const std::string&, const TaskAnswered& answer) {
      answer(PlanAsJson(service->server()));
    };
    questions_[kVoteKey] = [this](const std::string& vote, TaskAnswered answer) {
      Count(vote, std::move(answer));
    };
  }

  void RecvBufAsync(tensorflow::CallOptions* options, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response,
                    tensorflow::StatusCallback done) override {
    const std::string& key = request->buf_rendezvous_key();
    const auto question = questions_.find(key);
    if (question == questions_.end() || request->transport_options().type_url() != key) {
      if (request->num_bytes() > 0) CountStockBuffer(static_cast<uint64_t>(request->num_bytes()));
      GrpcWorker::RecvBufAsync(options, request, response, std::move(done));
      return;
    }
    question->second(
        std::string(request->transport_options().value()),
        [key, response, done = std::move(done)](const absl::StatusOr<std::string>& answer) {
          if (answer.ok()) {
            response->mutable_transport_options()->set_type_url(key);
            response->mutable_transport_options()->set_value(*answer);
          }
          done(answer.status());
        });
  }

 private:
  void Count(absl::string_view encoded, TaskAnswered answer) {
    Vote vote;
    if (!Parse(encoded, &vote)) {
      answer(absl::InvalidArgumentError("rdmatensor: a malformed vote"));
      return;
    }
    ballots_.Cast(
        vote, [answer = std::move(answer)](const Verdict& verdict) { answer(Encode(verdict)); });
  }

  Questions questions_;
  Ballots ballots_;  // of the collective groups whose first member this task is
};

}  // namespace

std::unique_ptr<tensorflow::GrpcWorker> NewRdmaWorker(tensorflow::WorkerEnv* env,
                                                      const tensorflow::ConfigProto& config,
                                                      TensorService* service, Questions more) {
  return std::make_unique<RdmaWorker>(env, config, service, std::move(more));
}

}  // namespace rdmatensor
