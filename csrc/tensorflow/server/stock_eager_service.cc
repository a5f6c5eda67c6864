// SPDX-License-Identifier: Apache-2.0
#include "server/stock_eager_service.h"

#include "tensorflow/core/distributed_runtime/rpc/eager/grpc_eager_service_impl.h"

namespace rdmatensor {
namespace {

using tensorflow::GrpcServer;
using tensorflow::eager::EagerServiceImpl;
using tensorflow::eager::GrpcEagerServiceImpl;

// Both members are private, and TensorFlow hands neither out. C++ permits an explicit instantiation to name a private
// member, and a friend function can hand the pointer on. The shim has compared the classes' descriptions before.
template <typename Which, typename Which::Pointer member>
struct Named {
  friend typename Which::Pointer MemberOf(Which) { return member; }
};
struct ServersService {
  using Pointer = tsl::AsyncServiceInterface* GrpcServer::*;
  friend Pointer MemberOf(ServersService);
};
struct ServicesContexts {
  using Pointer = EagerServiceImpl GrpcEagerServiceImpl::*;
  friend Pointer MemberOf(ServicesContexts);
};
template struct Named<ServersService, &GrpcServer::eager_service_>;
template struct Named<ServicesContexts, &GrpcEagerServiceImpl::local_impl_>;

}  // namespace

EagerServiceImpl* StockEagerService(GrpcServer* server) {
  auto* const service = dynamic_cast<GrpcEagerServiceImpl*>(server->*MemberOf(ServersService()));
  return service != nullptr ? &(service->*MemberOf(ServicesContexts())) : nullptr;
}

}  // namespace rdmatensor
