/* SPDX-License-Identifier: Apache-2.0
 *
 * TensorFlow loads every library in site-packages/tensorflow-plugins, and `import tensorflow` fails if one of them
 * does not load. This library always loads, because it uses no TensorFlow symbol. A plugin subclasses C++ classes
 * of exactly one minor version of TensorFlow, so the shim loads the plugin that was built for the version in this
 * process, if the layout of the classes is the one that the plugin was built with. Any failure causes one line on
 * standard error.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

#ifndef RDT_TENSORFLOW_MINORS
#error "define RDT_TENSORFLOW_MINORS: the minor versions of TensorFlow 2 for which plugins exist"
#endif
#define PLUGIN "librdmatensor_tensorflow_2_%d.%s"

static const int minors[] = {RDT_TENSORFLOW_MINORS};
#define MINORS (sizeof(minors) / sizeof(minors[0]))

/* Why the plugin is not loaded, for rdmatensor.tensorflow.why_not(); "" if it is. */
__attribute__((visibility("default"))) char rdt_shim_reason[1024];

static int log_level_asks_for_info(void) {
  const char *level = getenv("RDMATENSOR_LOG_LEVEL");
  return level && (strcmp(level, "info") == 0 || strcmp(level, "debug") == 0);
}

static void refuse(const char *cause, const char *detail) {
  snprintf(rdt_shim_reason, sizeof rdt_shim_reason, "%s%s", cause, detail);
  fprintf(stderr, "rdmatensor: grpc+rdma is not available: %s\n", rdt_shim_reason);
}

static void refuse_version(const char *version) {
  char supported[256] = "";
  size_t used = 0;
  for (size_t i = 0; i < MINORS && used < sizeof supported; i++)
    used += (size_t)snprintf(supported + used, sizeof supported - used, "2.%d.x%s", minors[i],
                             MINORS - i > 2    ? ", "
                             : MINORS - i == 2 ? " and "
                                               : "");
  char cause[512];
  snprintf(cause, sizeof cause, "this build supports TensorFlow %s, this is ", supported);
  refuse(cause, version);
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

/* The minor version in "2.<minor>.<patch>..." if there is a plugin for it, else -1. */
static int minor_of(const char *version) {
  if (strncmp(version, "2.", 2) != 0) return -1;
  char *end;
  long minor = strtol(version + 2, &end, 10);
  for (size_t i = 0; i < MINORS && *end == '.'; i++)
    if (minor == minors[i]) return minors[i];
  return -1;
}

/* The path of the plugin ("so") or its record ("layout"): in the package beside this library's folder or, for an
 * editable install, among the sources. */
static int plugin_path(char *path, size_t size, int minor, const char *kind) {
#ifdef RDT_PLUGIN_FOLDER
  int written = snprintf(path, size, RDT_PLUGIN_FOLDER "/" PLUGIN, minor, kind);
#else
  Dl_info self;
  if (!dladdr((void *)&rdt_shim_reason, &self) || !self.dli_fname) return 0;
  const char *slash = strrchr(self.dli_fname, '/');
  int folder = slash ? (int)(slash - self.dli_fname) : 1;
  int written = snprintf(path, size, "%.*s/../rdmatensor/" PLUGIN, folder,
                         slash ? self.dli_fname : ".", minor, kind);
#endif
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
  int minor = minor_of(version);
  if (minor < 0) {
    refuse_version(version);
    return;
  }
  char path[4096], record[4096], why[900];
  if (!plugin_path(path, sizeof path, minor, "so") ||
      !plugin_path(record, sizeof record, minor, "layout")) {
    refuse("cannot tell where the plugin is installed", "");
    return;
  }
  if (!layout_fits(record, version, why, sizeof why)) {
    refuse("", why);
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
