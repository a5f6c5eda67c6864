// SPDX-License-Identifier: Apache-2.0
//
// What the files of the tests' device share: pluggable_device.c (its memory, and TensorFlow's way to it),
// pluggable_streams.c (streams and events) and pluggable_kernels.c.
#ifndef RDT_TESTS_PLUGGABLE_DEVICE_H
#define RDT_TESTS_PLUGGABLE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

#define EXPORT __attribute__((visibility("default")))

// Work of a stream.
typedef struct task {
  struct task *next;
  void (*run)(struct task *task);
  useconds_t late;
  void *to;
  const void *from,
      *other;  // `other` has `other_step` floats between its elements: 0 for one number
  uint64_t size, other_step;
  uint32_t pattern;
  SP_Stream stream;  // whose `target` tasks come first
  uint64_t target;
  int64_t *hold;
  SE_StatusCallbackFn callback;
} task;

// Queues work.
void give(SP_Stream stream, task described);
void fill_in_streams(SP_StreamExecutor *executor);

extern useconds_t copy_us, kernel_us;
const char *device_type(void);
// Returns where the device finds what TensorFlow has at `address`.
uint8_t *reach(const void *address);

#endif
