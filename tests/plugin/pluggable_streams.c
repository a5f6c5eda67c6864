// SPDX-License-Identifier: Apache-2.0
//
// Streams of the tests' device, which are threads, and its events.
#include <pthread.h>

#include "pluggable_device.h"

struct SP_Stream_st {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  task *first, **last;
  uint64_t given, done;  // tasks
  bool ends;
  SP_Stream next;  // of all streams
};

static pthread_mutex_t streams_mutex = PTHREAD_MUTEX_INITIALIZER;
static SP_Stream streams;

struct SP_Event_st {
  SP_Stream stream;  // NULL: not recorded
  uint64_t target;
};

static void await(SP_Stream stream, uint64_t target) {
  pthread_mutex_lock(&stream->mutex);
  while (stream->done < target) pthread_cond_wait(&stream->changed, &stream->mutex);
  pthread_mutex_unlock(&stream->mutex);
}

static void *work(void *argument) {
  SP_Stream stream = argument;
  pthread_mutex_lock(&stream->mutex);
  for (;;) {
    while (!stream->first && !stream->ends) pthread_cond_wait(&stream->changed, &stream->mutex);
    task *next = stream->first;
    if (!next) break;
    stream->first = next->next;
    if (!stream->first) stream->last = &stream->first;
    pthread_mutex_unlock(&stream->mutex);
    if (next->late) usleep(next->late);
    next->run(next);
    free(next);
    pthread_mutex_lock(&stream->mutex);
    stream->done++;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->mutex);
  return NULL;
}

void give(SP_Stream stream, task described) {
  task *added = malloc(sizeof *added);
  if (!added) abort();
  *added = described;
  added->next = NULL;
  pthread_mutex_lock(&stream->mutex);
  *stream->last = added;
  stream->last = &added->next;
  stream->given++;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
}

static uint64_t given(SP_Stream stream) {
  pthread_mutex_lock(&stream->mutex);
  uint64_t count = stream->given;
  pthread_mutex_unlock(&stream->mutex);
  return count;
}

static void create_stream(const SP_Device *device, SP_Stream *out, TF_Status *status) {
  (void)device;
  SP_Stream stream = calloc(1, sizeof *stream);
  if (!stream) abort();
  pthread_mutex_init(&stream->mutex, NULL);
  pthread_cond_init(&stream->changed, NULL);
  stream->last = &stream->first;
  if (pthread_create(&stream->thread, NULL, work, stream)) {
    TF_SetStatus(status, TF_INTERNAL, "no thread for a stream");
    free(stream);
    return;
  }
  pthread_mutex_lock(&streams_mutex);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&streams_mutex);
  *out = stream;
  TF_SetStatus(status, TF_OK, "");
}

// Events may still name the stream, so it is not freed.
static void destroy_stream(const SP_Device *device, SP_Stream stream) {
  (void)device;
  pthread_mutex_lock(&stream->mutex);
  stream->ends = true;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
  pthread_join(stream->thread, NULL);
}

static void run_wait(task *task) { await(task->stream, task->target); }

static void create_stream_dependency(const SP_Device *device, SP_Stream dependent, SP_Stream other,
                                     TF_Status *status) {
  (void)device;
  give(dependent, (task){.run = run_wait, .stream = other, .target = given(other)});
  TF_SetStatus(status, TF_OK, "");
}

static void get_stream_status(const SP_Device *device, SP_Stream stream, TF_Status *status) {
  (void)device, (void)stream;
  TF_SetStatus(status, TF_OK, "");
}

static void block_host_until_done(const SP_Device *device, SP_Stream stream, TF_Status *status) {
  (void)device;
  await(stream, given(stream));
  TF_SetStatus(status, TF_OK, "");
}

static void synchronize_all_activity(const SP_Device *device, TF_Status *status) {
  pthread_mutex_lock(&streams_mutex);
  SP_Stream first = streams;
  pthread_mutex_unlock(&streams_mutex);
  for (SP_Stream stream = first; stream; stream = stream->next) {
    block_host_until_done(device, stream, status);
  }
}

static void run_callback(task *task) {
  TF_Status *status = TF_NewStatus();
  task->callback(task->to, status);
  TF_DeleteStatus(status);
}

static TF_Bool host_callback(const SP_Device *device, SP_Stream stream,
                             SE_StatusCallbackFn callback, void *argument) {
  (void)device;
  give(stream, (task){.run = run_callback, .callback = callback, .to = argument});
  return true;
}

// ---- Events -------------------------------------------------------------------------------------

static void create_event(const SP_Device *device, SP_Event *event, TF_Status *status) {
  (void)device;
  *event = calloc(1, sizeof **event);
  if (!*event) abort();
  TF_SetStatus(status, TF_OK, "");
}

static void destroy_event(const SP_Device *device, SP_Event event) {
  (void)device;
  free(event);
}

static SE_EventStatus get_event_status(const SP_Device *device, SP_Event event) {
  (void)device;
  if (!event->stream) return SE_EVENT_COMPLETE;
  pthread_mutex_lock(&event->stream->mutex);
  bool is_done = event->stream->done >= event->target;
  pthread_mutex_unlock(&event->stream->mutex);
  return is_done ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

static void record_event(const SP_Device *device, SP_Stream stream, SP_Event event,
                         TF_Status *status) {
  (void)device;
  event->target = given(stream);
  event->stream = stream;
  TF_SetStatus(status, TF_OK, "");
}

static void wait_for_event(const SP_Device *device, SP_Stream stream, SP_Event event,
                           TF_Status *status) {
  (void)device;
  if (event->stream) {
    give(stream, (task){.run = run_wait, .stream = event->stream, .target = event->target});
  }
  TF_SetStatus(status, TF_OK, "");
}

static void block_host_for_event(const SP_Device *device, SP_Event event, TF_Status *status) {
  (void)device;
  if (event->stream) await(event->stream, event->target);
  TF_SetStatus(status, TF_OK, "");
}

void fill_in_streams(SP_StreamExecutor *executor) {
  executor->create_stream = create_stream;
  executor->destroy_stream = destroy_stream;
  executor->create_stream_dependency = create_stream_dependency;
  executor->get_stream_status = get_stream_status;
  executor->create_event = create_event;
  executor->destroy_event = destroy_event;
  executor->get_event_status = get_event_status;
  executor->record_event = record_event;
  executor->wait_for_event = wait_for_event;
  executor->block_host_for_event = block_host_for_event;
  executor->block_host_until_done = block_host_until_done;
  executor->synchronize_all_activity = synchronize_all_activity;
  executor->host_callback = host_callback;
}
