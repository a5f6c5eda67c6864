/* SPDX-License-Identifier: Apache-2.0
 *
 * The C unit programs' one tool: EXPECT says what did not hold, and where, and ends with status 1.
 */
#ifndef RDT_TESTS_UNIT_H
#define RDT_TESTS_UNIT_H

#include <stdio.h>
#include <stdlib.h>

#include "rdmatensor.h"

#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      fprintf(stderr, "%s:%d: does not hold: %s (last error: %s)\n", __FILE__, __LINE__, \
              #condition, rdt_last_error());                                             \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)

#define EXPECT_STATUS(wanted, call)                                                     \
  do {                                                                                  \
    rdt_status unit_status = (call);                                                    \
    if (unit_status != (wanted)) {                                                      \
      fprintf(stderr, "%s:%d: %s is %s, not %s (%s)\n", __FILE__, __LINE__, #call,      \
              rdt_status_name(unit_status), rdt_status_name(wanted), rdt_last_error()); \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

#endif
