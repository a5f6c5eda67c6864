// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's types of elements, as the core numbers them.
#ifndef RDMATENSOR_TENSORFLOW_BASE_DTYPES_H_
#define RDMATENSOR_TENSORFLOW_BASE_DTYPES_H_

#include "rdmatensor.h"
#include "tensorflow/core/framework/types.pb.h"

namespace rdmatensor {

// The rdt_dtype; 0 if the core has no such type.
inline int CoreDtypeOf(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return RDT_FLOAT32;
    case tensorflow::DT_DOUBLE:
      return RDT_FLOAT64;
    case tensorflow::DT_HALF:
      return RDT_FLOAT16;
    case tensorflow::DT_BFLOAT16:
      return RDT_BFLOAT16;
    case tensorflow::DT_INT8:
      return RDT_INT8;
    case tensorflow::DT_INT16:
      return RDT_INT16;
    case tensorflow::DT_INT32:
      return RDT_INT32;
    case tensorflow::DT_INT64:
      return RDT_INT64;
    case tensorflow::DT_UINT8:
      return RDT_UINT8;
    case tensorflow::DT_UINT16:
      return RDT_UINT16;
    case tensorflow::DT_UINT32:
      return RDT_UINT32;
    case tensorflow::DT_UINT64:
      return RDT_UINT64;
    default:
      return 0;
  }
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_DTYPES_H_
