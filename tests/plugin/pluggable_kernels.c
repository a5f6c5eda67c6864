// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the tests' device, for floats.
#include "pluggable_device.h"
#include "tensorflow/c/kernels.h"

static void give_kernel(TF_OpKernelContext *context, void (*run)(task *task)) {
  TF_Status *status = TF_NewStatus();
  TF_Tensor *inputs[2] = {NULL, NULL}, *output = NULL;
  int64_t dims[8];
  int rank = 0;
  for (int i = 0; i < 2 && TF_GetCode(status) == TF_OK; i++) {
    TF_GetInput(context, i, &inputs[i], status);
  }
  if (TF_GetCode(status) == TF_OK) {
    rank = TF_NumDims(inputs[0]);
    size_t size = TF_TensorByteSize(inputs[0]), other = TF_TensorByteSize(inputs[1]);
    if (rank > 8 || (other != size && other != sizeof(float))) {
      TF_SetStatus(status, TF_INVALID_ARGUMENT,
                   "the test's device does not broadcast these shapes");
    }
  }
  if (TF_GetCode(status) == TF_OK) {
    for (int i = 0; i < rank; i++) dims[i] = TF_Dim(inputs[0], i);
    // The operations within a collective one must write where they read.
    const int first = 0;
    int forwarded;
    output = TF_ForwardInputOrAllocateOutput(context, &first, 1, 0, dims, rank, &forwarded, status);
  }
  SP_Stream stream = TF_GetCode(status) == TF_OK ? TF_GetStream(context, status) : NULL;
  if (TF_GetCode(status) != TF_OK) {
    TF_OpKernelContext_Failure(context, status);
  } else if (TF_TensorByteSize(output) > 0) {
    give(stream, (task){.run = run,
                        .late = kernel_us,
                        .to = reach(TF_TensorData(output)),
                        .from = reach(TF_TensorData(inputs[0])),
                        .other = reach(TF_TensorData(inputs[1])),
                        .other_step = TF_TensorElementCount(inputs[1]) != 1,
                        .size = TF_TensorByteSize(output)});
  }
  for (int i = 0; i < 2; i++) {
    if (inputs[i]) TF_DeleteTensor(inputs[i]);
  }
  if (output) TF_DeleteTensor(output);
  TF_DeleteStatus(status);
}

// The second input `b` has the first one's shape or is one number.
#define BINARY(name, result)                                    \
  static void run_##name(task *task) {                          \
    float *to = task->to;                                       \
    const float *from = task->from, *other = task->other;       \
    for (uint64_t i = 0; i < task->size / sizeof *to; i++) {    \
      float a = from[i], b = other[i * task->other_step];       \
      to[i] = (result);                                         \
    }                                                           \
  }                                                             \
  static void name(void *kernel, TF_OpKernelContext *context) { \
    (void)kernel;                                               \
    give_kernel(context, run_##name);                           \
  }

BINARY(add, a + b)
BINARY(multiply, a *b)
BINARY(divide, a / b)
BINARY(minimum, a < b ? a : b)
BINARY(maximum, a > b ? a : b)

static void register_kernel(const char *operation, void (*compute)(void *, TF_OpKernelContext *)) {
  TF_Status *status = TF_NewStatus();
  TF_KernelBuilder *builder = TF_NewKernelBuilder(operation, device_type(), NULL, compute, NULL);
  TF_KernelBuilder_TypeConstraint(builder, "T", TF_FLOAT, status);
  if (TF_GetCode(status) == TF_OK) TF_RegisterKernelBuilder(operation, builder, status);
  if (TF_GetCode(status) != TF_OK) abort();
  TF_DeleteStatus(status);
}

EXPORT void TF_InitKernel(void) {
  register_kernel("Add", add);
  register_kernel("AddV2", add);
  register_kernel("Mul", multiply);
  register_kernel("Div", divide);
  register_kernel("Minimum", minimum);
  register_kernel("Maximum", maximum);
}
