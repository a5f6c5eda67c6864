/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMATENSOR_SHIM_LAYOUT_H
#define RDMATENSOR_SHIM_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the TensorFlow `version` in this process has the layout in the file `record`, which
 * csrc/cmake/record_tensorflow.py wrote when the plugin was built. If not, `why` gets one line. */
bool layout_fits(const char* record, const char* version, char* why, size_t size);

#endif
