// SPDX-License-Identifier: Apache-2.0
//
// The server behind protocol="grpc+rdma": TensorFlow's gRPC server with the plugin's rendezvous, collectives and
// worker, which starts and ends the steps of other tasks over channels. Everything else stays as it is.
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "base/settings.h"
#include "calls/callee.h"
#include "calls/eager_service.h"
#include "calls/logged_worker_cache.h"
#include "calls/recv_tensor.h"
#include "calls/run_graph.h"
#include "calls/worker_cache.h"
#include "channel/listen_address.h"
#include "channel/message.h"
#include "collective/collective_manager.h"
#include "rows/row_kernels.h"
#include "server/driver.h"
#include "server/planned_kernels.h"
#include "server/rendezvous.h"
#include "server/stock_eager_service.h"
#include "server/worker.h"
#include "service/tensor_service.h"
#include "stats/path_stats.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace rdmatensor {
namespace {

constexpr char kProtocol[] = "grpc+rdma";
// How long a client waits for the tasks that it will drive.
constexpr std::chrono::minutes kStartOfTasks{1};
// TensorFlow packs what its eager client sends to tasks into EagerService's RPC, unless this variable is "0".
constexpr char kPacks[] = "TF_EAGER_REMOTE_USE_SEND_TENSOR_RPC";

// Returns whether the user has set kPacks. The first call sets it otherwise: a name that is new may move the
// environment while another thread reads it, so this comes before the threads of a server.
bool UserSetPacks() {
  static const bool set = [] {
    if (::getenv(kPacks) != nullptr) return true;
    ::setenv(kPacks, "0", 1);
    return false;
  }();
  return set;
}

// The servers by which this process drives clusters, by task. An eager context that ends leaks its server, which
// answers for ever. Its peers must not mistake it for its successor, which may have the same name: they would
// send the successor's tensors to it.
struct Drivers {
  std::mutex mutex;
  std::map<std::string, TensorService*> by_task;
  static Drivers& Get() {
    static Drivers* drivers = new Drivers;
    return *drivers;
  }
};

void RecordDriver(TensorService* service) {
  Drivers& drivers = Drivers::Get();
  std::lock_guard<std::mutex> lock(drivers.mutex);
  drivers.by_task[service->task()] = service;
}

// Retires the task's server, because another one replaces it.
void RetireDriver(const std::string& task) {
  Drivers& drivers = Drivers::Get();
  std::lock_guard<std::mutex> lock(drivers.mutex);
  auto found = drivers.by_task.find(task);
  if (found == drivers.by_task.end()) return;
  found->second->Retire();
  drivers.by_task.erase(found);
}

class RdmaServer : public tensorflow::GrpcServer {
 public:
  RdmaServer(const tensorflow::ServerDef& server_def, TensorService* service)
      : GrpcServer(server_def, tensorflow::Env::Default()), service_(service) {}

  ~RdmaServer() override {
    // TensorFlow destroys only servers that never ran; running ones live as long as the process.
    if (!started_ && service_ != nullptr) service_->Close();
  }

  absl::Status Start() override {
    started_ = true;
    // A started server lives as long as the process.
    if (service_ != nullptr) service_->WatchReceivers([this] { ReachAgain(); });
    return GrpcServer::Start();
  }

  absl::Status AddMasterEagerContextToEagerService(const uint64_t context_id,
                                                   tensorflow::EagerContext* context) override {
    if (service_ != nullptr) {
      Drive(absl::StrCat("eager_", context_id));
      RecordDriver(service_);
    }
    return GrpcServer::AddMasterEagerContextToEagerService(context_id, context);
  }

  // TensorFlow calls this when an eager context ends.
  absl::Status StopCoordinationService() override {
    if (service_ != nullptr) {
      {
        std::lock_guard<std::mutex> lock(driven_mutex_);
        driven_.clear();
      }
      service_->Retire();
    }
    return GrpcServer::StopCoordinationService();
  }

  // TensorFlow's implementation replaces the manager of collectives by a stock one.
  absl::Status UpdateServerDef(const tensorflow::ServerDef& server_def) override {
    absl::Status status = GrpcServer::UpdateServerDef(server_def);
    if (!status.ok() || service_ == nullptr) return status;
    worker_env()->collective_executor_mgr = NewCollectiveManager(
        server_def.default_session_config(), worker_env(), master_env()->worker_cache, service_);
    master_env()->collective_executor_mgr = worker_env()->collective_executor_mgr.get();
    Reach(server_def);
    return status;
  }

  absl::Status InitRdma(tensorflow::DeviceMgr* devices) {
    tensorflow::GrpcServerOptions options;
    options.local_device_mgr = devices;
    if (service_ != nullptr) {
      options.rendezvous_mgr_func =
          [this](const tensorflow::WorkerEnv* env) -> tensorflow::RendezvousMgrInterface* {
        return new RdmaRendezvousMgr(env, service_);
      };
      options.collective_mgr_func = [this](const tensorflow::ConfigProto& config,
                                           const tensorflow::WorkerEnv* env,
                                           tensorflow::WorkerCacheInterface* workers) {
        return NewCollectiveManager(config, env, workers, service_).release();
      };
    }
    options.worker_func = [this](tensorflow::WorkerEnv* env,
                                 const tensorflow::ConfigProto& config) {
      for (const tensorflow::Device* device : env->device_mgr->ListDevices()) {
        incarnations_.push_back(device->attributes().incarnation());
        if (service_ == nullptr) continue;
        RegisterTransferKernels(device->device_type());
        if (service_->settings().row_kernels) UseRowKernels(incarnations_.back());
      }
      return NewRdmaWorker(env, config, service_, OwnQuestions());
    };
    const absl::Status status = GrpcServer::Init(options);
    // Callers have settings of their own.
    if (status.ok() && service_ != nullptr) {
      tensorflow::eager::EagerServiceImpl* const eager = StockEagerService(this);
      if (eager == nullptr) {
        return absl::InternalError(
            "rdmatensor: this build of TensorFlow has another eager service than the one that the "
            "plugin was made for: install rdmatensor from its sources beside it");
      }
      eager_.emplace(eager);
      ServeRunGraph(worker_impl(), &service_->ended_early(), &calls_);
      ServeRecvTensor(worker_env(), &calls_);
      eager_->Serve(&calls_);
      service_->ServeCalls([this](const std::shared_ptr<PeerChannel>& channel,
                                  const std::string& caller) -> std::shared_ptr<ChannelEnd> {
        return std::make_shared<Callee>(&service_->server(), &calls_, SchedulesOnPool(), channel,
                                        caller);
      });
    }
    return status;
  }

 protected:
  absl::Status WorkerCacheFactory(const tensorflow::WorkerCacheFactoryOptions& options,
                                  tensorflow::WorkerCacheInterface** workers) override {
    const absl::Status status = GrpcServer::WorkerCacheFactory(options, workers);
    if (!status.ok() || service_ == nullptr) return status;
    std::unique_ptr<tensorflow::WorkerCacheInterface> stock(*workers);
    *workers = service_->settings().calls ? NewControlWorkerCache(service_, SchedulesOnPool(),
                                                                  worker_impl(), std::move(stock))
                                          : new LoggedWorkerCache(std::move(stock));
    return status;
  }

 private:
  // This process is about to drive its cluster by eager operations. TensorFlow reads kPacks after this.
  void Drive(const std::string& session) {
    {
      std::lock_guard<std::mutex> lock(driven_mutex_);
      driven_ = session;
      driven_cluster_ = server_def();
    }
    // TensorFlow waits for tasks, too, but after this call.
    const absl::Status status = ReachTasks(kStartOfTasks);
    if (!UserSetPacks()) ::setenv(kPacks, status.ok() ? "0" : "1", 1);
    if (!status.ok()) {
      rdt_log_line(RDT_LOG_WARN, absl::StrCat("tensorflow: what this client sends to tasks goes by "
                                              "grpc: no channel to ",
                                              status.message())
                                     .c_str());
    }
  }

  // Called when the cluster has changed, which this process may drive.
  void Reach(const tensorflow::ServerDef& server_def) {
    {
      std::lock_guard<std::mutex> lock(driven_mutex_);
      if (driven_.empty()) return;
      driven_cluster_ = server_def;
    }
    if (absl::Status reached = ReachTasks({}); !reached.ok()) {
      rdt_log_line(RDT_LOG_WARN,
                   absl::StrCat("tensorflow: no channel to ", reached.message()).c_str());
    }
  }

  // Called when a channel was lost. Never blocks.
  void ReachAgain() {
    std::lock_guard<std::mutex> lock(lost_mutex_);
    ++losses_;
    lost_.notify_all();
    if (std::exchange(reaching_, true)) return;
    tensorflow::Env::Default()->SchedClosure([this] { ReachLost(); });
  }

  // Tasks cannot ask for another channel, so this tries until all are reached, or the cluster is driven no more.
  void ReachLost() {
    Backoff backoff(Backoff::Milliseconds(service_->settings().failback_ms));
    std::unique_lock<std::mutex> lock(lost_mutex_);
    for (;;) {
      const uint64_t seen = losses_;
      lock.unlock();
      const absl::Status reached = ReachTasks({});
      lock.lock();
      if (losses_ != seen) continue;
      if (reached.ok() || !backoff.enabled()) break;
      rdt_log_line(RDT_LOG_DEBUG,
                   absl::StrCat("tensorflow: no channel yet to ", reached.message()).c_str());
      backoff.Failed();
      lost_.wait_until(lock, backoff.next(), [&] { return losses_ != seen; });
    }
    reaching_ = false;
  }

  // Opens missing channels to the tasks of the cluster that this process drives.
  absl::Status ReachTasks(std::chrono::milliseconds patience) {
    std::string session;
    tensorflow::ServerDef cluster;
    {
      std::lock_guard<std::mutex> lock(driven_mutex_);
      if (driven_.empty()) return absl::OkStatus();
      session = driven_;
      cluster = driven_cluster_;
    }
    tensorflow::WorkerCacheInterface* workers = nullptr;
    const absl::Status made =
        WorkerCacheFactory(tensorflow::WorkerCacheFactoryOptions(cluster), &workers);
    if (!made.ok()) return made;
    return OpenChannels(service_, session,
                        std::shared_ptr<tensorflow::WorkerCacheInterface>(workers),
                        OtherTasks(cluster, service_->task()), Self(), patience);
  }

  // What may block runs where TensorFlow runs what came by gRPC.
  Schedule SchedulesOnPool() {
    return [env = worker_env()](std::function<void()> run) {
      env->compute_pool->Schedule(std::move(run));
    };
  }

  // Where this task's device is, if it has one.
  AddressAnswer Self() const {
    AddressAnswer self;
    self.incarnations = incarnations_;
    if (service_ == nullptr) return self;
    self.address = service_->address();
    self.region_keys = service_->server().exports->Keys();
    self.device_name = rdt_device_name(service_->device());
    return self;
  }

  Questions OwnQuestions() {
    Questions all;
    all[kAddressKey] = [this](const std::string&, const TaskAnswered& answer) {
      answer(Encode(Self()));
    };
    if (service_ == nullptr) return all;
    all[kStreamKey] = [this](const std::string& question, TaskAnswered answer) {
      eager_->EndStream(question, std::move(answer));
    };
    return all;
  }

  // Of TensorFlow's devices. A client's devices end with its eager context, but its server answers for ever.
  std::vector<uint64_t> incarnations_;
  std::optional<EagerService> eager_;  // before the server serves anything
  CallTable calls_;
  std::mutex driven_mutex_;
  std::string driven_;  // the session by which it drives its cluster; empty: it does not
  tensorflow::ServerDef driven_cluster_;
  std::mutex lost_mutex_;
  std::condition_variable lost_;
  uint64_t losses_ = 0;           // of channels
  bool reaching_ = false;         // the tasks whose channels were lost
  TensorService* const service_;  // nullptr: everything goes by RPC
  bool started_ = false;
};

// Returns the name of this task in rendezvous keys.
std::string TaskName(const tensorflow::ServerDef& server_def) {
  return absl::StrCat("/job:", server_def.job_name(), "/replica:", server_def.replica(),
                      "/task:", server_def.task_index());
}

// Returns the host of this task's own entry in the cluster.
std::string TaskHost(const tensorflow::ServerDef& server_def) {
  for (const tensorflow::JobDef& job : server_def.cluster().job()) {
    if (job.name() != server_def.job_name()) continue;
    auto task = job.tasks().find(server_def.task_index());
    if (task != job.tasks().end()) return HostOf(task->second);
  }
  return "localhost";
}

class RdmaServerFactory : public tensorflow::ServerFactory {
 public:
  // It accepts exactly this protocol, because TensorFlow refuses to choose between two factories.
  bool AcceptsOptions(const tensorflow::ServerDef& server_def) override {
    return server_def.protocol() == kProtocol;
  }

  absl::Status NewServer(const tensorflow::ServerDef& server_def, const Options& options,
                         std::unique_ptr<tensorflow::ServerInterface>* out_server) override {
    const Settings settings = Settings::Read();
    TensorService* service = nullptr;
    RetireDriver(TaskName(server_def));
    if (settings.policy != Policy::kGrpc) {
      absl::StatusOr<TensorService*> opened =
          TensorService::Open(TaskName(server_def), TaskHost(server_def), settings);
      if (opened.ok()) {
        service = *opened;
      } else if (settings.policy == Policy::kRdma) {
        return opened.status();
      } else {
        rdt_log_line(RDT_LOG_WARN, absl::StrCat("tensorflow: all tensors of ", TaskName(server_def),
                                                " go by grpc: ", opened.status().message())
                                       .c_str());
      }
    }
    const bool is_clients = options.local_device_mgr != nullptr;
    if (is_clients && service != nullptr) UserSetPacks();
    auto server = std::make_unique<RdmaServer>(server_def, service);
    if (absl::Status status = server->InitRdma(options.local_device_mgr); !status.ok())
      return status;
    RecordServer(TaskName(server_def));
    *out_server = std::move(server);
    return absl::OkStatus();
  }
};

const bool server_registered = [] {
  tensorflow::ServerFactory::Register("RDMATENSOR_SERVER", new RdmaServerFactory);
  return true;
}();

}  // namespace
}  // namespace rdmatensor
