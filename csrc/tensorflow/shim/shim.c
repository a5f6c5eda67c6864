/* SPDX-License-Identifier: Apache-2.0
 *
 * TensorFlow loads every library in site-packages/tensorflow-plugins, and `import tensorflow` fails
 * if one of them does not load. This one always does: it uses no TensorFlow symbol. It looks which
 * TensorFlow is there and loads the plugin, which subclasses C++ classes of exactly one minor
 * version, only into that version. Whatever goes wrong costs one line on standard error.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef RDT_TENSORFLOW_MINOR
#error "define RDT_TENSORFLOW_MINOR: the minor version of TensorFlow 2 that the plugin is built for"
#endif
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define SUPPORTED "2." TEXT(RDT_TENSORFLOW_MINOR) "."
#define PLUGIN "/../rdmatensor/librdmatensor_tensorflow.so"

/* Why the plugin is not loaded, for rdmatensor.tensorflow.why_not(); "" when it is. */
__attribute__((visibility("default"))) char rdt_shim_reason[1024];

static int log_level_asks_for_info(void) {
  const char *level = getenv("RDMATENSOR_LOG_LEVEL");
  return level && (strcmp(level, "info") == 0 || strcmp(level, "debug") == 0);
}

static void refuse(const char *cause, const char *detail) {
  snprintf(rdt_shim_reason, sizeof rdt_shim_reason, "%s%s", cause, detail);
  fprintf(stderr, "rdmatensor: grpc+rdma is not available: %s\n", rdt_shim_reason);
}

/* The version of the TensorFlow in this process, or NULL. TF_Version lives in libtensorflow_cc. */
static const char *tensorflow_version(void) {
  void *library = dlopen("libtensorflow_cc.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return NULL;
  const char *(*version)(void);
  *(void **)&version = dlsym(library, "TF_Version");
  const char *text = version ? version() : NULL;
  dlclose(library); /* only the reference taken above */
  return text;
}

/* The plugin's path beside this library's own. */
static int plugin_path(char *path, size_t size) {
  Dl_info self;
  if (!dladdr((void *)&rdt_shim_reason, &self) || !self.dli_fname) return 0;
  const char *slash = strrchr(self.dli_fname, '/');
  int folder = slash ? (int)(slash - self.dli_fname) : 1;
  int written = snprintf(path, size, "%.*s%s", folder, slash ? self.dli_fname : ".", PLUGIN);
  return written > 0 && (size_t)written < size;
}

__attribute__((constructor)) static void load_plugin(void) {
  const char *disabled = getenv("RDMATENSOR_DISABLE");
  if (disabled && *disabled && strcmp(disabled, "0") != 0) {
    snprintf(rdt_shim_reason, sizeof rdt_shim_reason, "RDMATENSOR_DISABLE is set");
    return;
  }
  const char *version = tensorflow_version();
  if (!version) {
    refuse("no TensorFlow with libtensorflow_cc.so.2 is loaded in this process", "");
    return;
  }
  if (strncmp(version, SUPPORTED, strlen(SUPPORTED)) != 0) {
    refuse("this build supports TensorFlow " SUPPORTED "x, this is ", version);
    return;
  }
  char path[4096];
  if (!plugin_path(path, sizeof path)) {
    refuse("cannot tell where the plugin is installed", "");
    return;
  }
  if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    const char *error = dlerror();
    refuse("", error ? error : "the plugin does not load");
    return;
  }
  if (log_level_asks_for_info())
    fprintf(stderr, "rdmatensor: plugin loaded into TensorFlow %s\n", version);
}
