// SPDX-License-Identifier: Apache-2.0
#include "calls/worker_cache.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/task_name.h"
#include "calls/eager_client.h"
#include "calls/logged_worker_cache.h"
#include "calls/recv_tensor.h"
#include "calls/remote_task.h"
#include "calls/run_graph.h"
#include "stats/control_stats.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

using tensorflow::CallOptions;
using tensorflow::StatusCallback;
using tensorflow::WorkerInterface;

// A task of the cluster. What is not overridden for a reason goes to TensorFlow's client as it is.
class ControlWorker final : public WorkerInterface {
 public:
  ControlWorker(std::shared_ptr<RemoteTask> task, StepFailures* ended_early, WorkerInterface* stock)
      : task_(std::move(task)), ended_early_(ended_early), stock_(stock) {}
  ~ControlWorker() override = default;
  WorkerInterface* stock() const { return stock_; }

  // Requests and responses in memory, because tensors go beside the messages.
  tensorflow::MutableRunGraphRequestWrapper* CreateRunGraphRequest() override {
    return new tensorflow::InMemoryRunGraphRequest;
  }
  tensorflow::MutableRunGraphResponseWrapper* CreateRunGraphResponse() override {
    return new tensorflow::InMemoryRunGraphResponse;
  }

  void RegisterGraphAsync(const tensorflow::RegisterGraphRequest* request,
                          tensorflow::RegisterGraphResponse* response,
                          StatusCallback done) override {
    (void)task_->Ready();  // steps will follow
    stock_->RegisterGraphAsync(request, response, std::move(done));
  }

  // If one part of a step fails, the master cancels the others, and TensorFlow forgets that where a part has not begun
  // yet. The part would wait for ever if the failed part's task has never heard of the step.
  void RunGraphAsync(CallOptions* options, tensorflow::RunGraphRequestWrapper* request,
                     tensorflow::MutableRunGraphResponseWrapper* response,
                     StatusCallback done) override {
    const int64_t step_id = request->step_id();
    const auto use = std::make_shared<OptionsUse>();
    RunGraph(options, request, response,
             [ended_early = ended_early_, step_id, use, response,
              done = std::move(done)](const absl::Status& status) {
               // Before the master cancels. A part that ran has its error in the response.
               if (!status.ok() || response->status_code() != absl::StatusCode::kOk) {
                 ended_early->AddStep(step_id, tsl::StatusGroup::MakeDerived(absl::CancelledError(
                                                   "Another part of the step failed.")));
               }
               use->End();
               done(status);
             });
    use->Do([&] {
      if (!ended_early_->OfStep(step_id).ok()) options->StartCancel();
    });
  }

  void CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                         tensorflow::CleanupGraphResponse* response, StatusCallback done) override {
    if (const std::shared_ptr<Calls> calls = task_->Ready()) {
      CallBody body;
      // Nothing waits for the end. As over gRPC, a call that is lost is not repeated: then that task keeps what
      // is left of the step.
      if (Pack(*request, &body) && calls->Tell(Method::kCleanupGraph, body)) {
        CountCall(task_->task(), ControlWay::kChannel);
        done(absl::OkStatus());
        return;
      }
    }
    CountCall(task_->task(), ControlWay::kGrpc);
    stock_->CleanupGraphAsync(request, response, std::move(done));
  }

  void GetStatusAsync(CallOptions* options, const tensorflow::GetStatusRequest* request,
                      tensorflow::GetStatusResponse* response, bool fail_fast,
                      StatusCallback done) override {
    stock_->GetStatusAsync(options, request, response, fail_fast, std::move(done));
  }
  void CreateWorkerSessionAsync(const tensorflow::CreateWorkerSessionRequest* request,
                                tensorflow::CreateWorkerSessionResponse* response,
                                StatusCallback done) override {
    stock_->CreateWorkerSessionAsync(request, response, std::move(done));
  }
  void DeleteWorkerSessionAsync(CallOptions* options,
                                const tensorflow::DeleteWorkerSessionRequest* request,
                                tensorflow::DeleteWorkerSessionResponse* response,
                                StatusCallback done) override {
    stock_->DeleteWorkerSessionAsync(options, request, response, std::move(done));
  }
  void DeregisterGraphAsync(const tensorflow::DeregisterGraphRequest* request,
                            tensorflow::DeregisterGraphResponse* response,
                            StatusCallback done) override {
    stock_->DeregisterGraphAsync(request, response, std::move(done));
  }
  void CleanupAllAsync(const tensorflow::CleanupAllRequest* request,
                       tensorflow::CleanupAllResponse* response, StatusCallback done) override {
    stock_->CleanupAllAsync(request, response, std::move(done));
  }
  void RecvTensorAsync(CallOptions* options, const tensorflow::RecvTensorRequest* request,
                       tensorflow::TensorResponse* response, StatusCallback done) override {
    if (task_->settings().by_rpc) {
      const std::shared_ptr<RemoteTask> task = task_;  // this object may go with the answer
      const std::shared_ptr<Calls> calls = task->Ready();
      const bool called = calls != nullptr &&
                          CallRecvTensor(calls, task->task(), options, *request, response, done);
      CountCall(task->task(), called ? ControlWay::kChannel : ControlWay::kGrpc);
      if (called) return;
    }
    stock_->RecvTensorAsync(options, request, response, std::move(done));
  }
  void LoggingAsync(const tensorflow::LoggingRequest* request,
                    tensorflow::LoggingResponse* response, StatusCallback done) override {
    stock_->LoggingAsync(request, response, std::move(done));
  }
  void TracingAsync(const tensorflow::TracingRequest* request,
                    tensorflow::TracingResponse* response, StatusCallback done) override {
    stock_->TracingAsync(request, response, std::move(done));
  }
  void RecvBufAsync(CallOptions* options, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response, StatusCallback done) override {
    stock_->RecvBufAsync(options, request, response, std::move(done));
  }
  void CompleteGroupAsync(CallOptions* options, const tensorflow::CompleteGroupRequest* request,
                          tensorflow::CompleteGroupResponse* response,
                          StatusCallback done) override {
    stock_->CompleteGroupAsync(options, request, response, std::move(done));
  }
  void CompleteInstanceAsync(CallOptions* options,
                             const tensorflow::CompleteInstanceRequest* request,
                             tensorflow::CompleteInstanceResponse* response,
                             StatusCallback done) override {
    stock_->CompleteInstanceAsync(options, request, response, std::move(done));
  }
  void GetStepSequenceAsync(const tensorflow::GetStepSequenceRequest* request,
                            tensorflow::GetStepSequenceResponse* response,
                            StatusCallback done) override {
    stock_->GetStepSequenceAsync(request, response, std::move(done));
  }

 private:
  // A call's options, which live until the call has ended.
  class OptionsUse {
   public:
    // Runs `use`, unless the call has ended. It does not end meanwhile.
    void Do(const std::function<void()>& use) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!ended_) use();
    }
    void End() {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }

   private:
    std::mutex mutex_;
    bool ended_ = false;
  };

  void RunGraph(CallOptions* options, tensorflow::RunGraphRequestWrapper* request,
                tensorflow::MutableRunGraphResponseWrapper* response, StatusCallback done) {
    if (const std::shared_ptr<Calls> calls = task_->Ready()) {
      CallBody body;
      Calls::Done answered = [response, done](const absl::Status& status, const CallBody& answer) {
        done(status.ok() ? UnpackRunGraph(answer, response) : status);
      };
      if (PackRunGraph(*request, &body).ok() &&
          calls->Call(Method::kRunGraph, task_->task(), body, options, Calls::DoneRuns::kAnywhere,
                      &answered)) {
        CountCall(task_->task(), ControlWay::kChannel);
        return;
      }
    }
    CountCall(task_->task(), ControlWay::kGrpc);
    auto* const stock = stock_->CreateRunGraphResponse();
    stock_->RunGraphAsync(options, request, stock,
                          [stock, response, done = std::move(done)](const absl::Status& status) {
                            const absl::Status copied =
                                status.ok() ? Copy(stock, response) : status;
                            delete stock;
                            done(copied);
                          });
  }

  // TensorFlow's client wants a response of its own making.
  static absl::Status Copy(tensorflow::MutableRunGraphResponseWrapper* from,
                           tensorflow::MutableRunGraphResponseWrapper* to) {
    for (size_t i = 0; i < from->num_recvs(); ++i) {
      tensorflow::Tensor value;
      const std::string key = from->recv_key(i);
      if (absl::Status status = from->RecvValue(i, &value); !status.ok()) return status;
      to->AddRecv(key, value);
    }
    to->mutable_step_stats()->Swap(from->mutable_step_stats());
    to->mutable_cost_graph()->Swap(from->mutable_cost_graph());
    for (size_t i = 0; i < from->num_partition_graphs(); ++i) {
      to->AddPartitionGraph(*from->mutable_partition_graph(i));
    }
    if (from->status_code() != absl::StatusCode::kOk) to->set_status(from->status());
    return absl::OkStatus();
  }

  const std::shared_ptr<RemoteTask> task_;
  StepFailures* const ended_early_;
  WorkerInterface* const stock_;  // belongs to the cache of its making
};

// The tasks of a cluster. Clients of eager contexts may outlive the cache that they came from.
class Tasks {
 public:
  Tasks(TensorService* service, Schedule schedule,
        std::shared_ptr<tensorflow::WorkerCacheInterface> stock)
      : service_(service), schedule_(std::move(schedule)), stock_(std::move(stock)) {}

  std::shared_ptr<RemoteTask> Of(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<RemoteTask>& task = tasks_[name];
    if (task == nullptr) task = std::make_shared<RemoteTask>(service_, schedule_, name, stock_);
    return task;
  }

 private:
  TensorService* const service_;
  const Schedule schedule_;
  const std::shared_ptr<tensorflow::WorkerCacheInterface> stock_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<RemoteTask>> tasks_;
};

class ControlWorkerCache final : public LoggedWorkerCache {
 public:
  ControlWorkerCache(TensorService* service, Schedule schedule, const WorkerInterface* local,
                     std::shared_ptr<tensorflow::WorkerCacheInterface> stock)
      : LoggedWorkerCache(stock),
        own_task_(service->task()),
        ended_early_(&service->ended_early()),
        local_(local),
        tasks_(std::make_shared<Tasks>(service, std::move(schedule), std::move(stock))) {}

  WorkerInterface* GetOrCreateWorker(const std::string& target) override {
    WorkerInterface* const worker = stock()->GetOrCreateWorker(target);
    if (worker == nullptr || worker == local_) return worker;
    return new ControlWorker(tasks_->Of(target), ended_early_, worker);
  }

  void ReleaseWorker(const std::string& target, WorkerInterface* worker) override {
    if (worker != nullptr && worker != local_) {
      auto* const wrapper = static_cast<ControlWorker*>(worker);
      worker = wrapper->stock();
      delete wrapper;
    }
    stock()->ReleaseWorker(target, worker);
  }

  absl::Status GetEagerClientCache(
      std::unique_ptr<tensorflow::eager::EagerClientCache>* clients) override {
    std::unique_ptr<tensorflow::eager::EagerClientCache> stock;
    const absl::Status status = this->stock()->GetEagerClientCache(&stock);
    if (!status.ok()) return status;
    *clients = NewControlEagerClientCache(
        [tasks = tasks_, own = own_task_](const std::string& name) {
          // TensorFlow names devices, too.
          const std::string task(TaskOf(name));
          return task == own ? nullptr : tasks->Of(task);
        },
        std::move(stock));
    return status;
  }

 private:
  const std::string own_task_;
  StepFailures* const ended_early_;
  const WorkerInterface* const local_;
  const std::shared_ptr<Tasks> tasks_;
};

}  // namespace

tensorflow::WorkerCacheInterface* NewControlWorkerCache(
    TensorService* service, Schedule schedule, const tensorflow::WorkerInterface* local,
    std::unique_ptr<tensorflow::WorkerCacheInterface> stock) {
  return new ControlWorkerCache(service, std::move(schedule), local, std::move(stock));
}

}  // namespace rdmatensor
