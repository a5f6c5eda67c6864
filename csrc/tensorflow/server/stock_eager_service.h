// SPDX-License-Identifier: Apache-2.0
//
// Finds the service of eager contexts inside TensorFlow's server.
#ifndef RDMATENSOR_TENSORFLOW_SERVER_STOCK_EAGER_SERVICE_H_
#define RDMATENSOR_TENSORFLOW_SERVER_STOCK_EAGER_SERVICE_H_

#include "tensorflow/core/distributed_runtime/eager/eager_service_impl.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"

namespace rdmatensor {

// The service that `server`, which is initialised, has for gRPC. It lives as long as the server. nullptr if the server
// has one of another class.
tensorflow::eager::EagerServiceImpl* StockEagerService(tensorflow::GrpcServer* server);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVER_STOCK_EAGER_SERVICE_H_
