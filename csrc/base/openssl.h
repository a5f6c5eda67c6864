/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenSSL's libraries, opened when they are first needed, and kept apart from TensorFlow's BoringSSL. That
 * exports many of the same names; where its symbols are global, an OpenSSL that was opened without care
 * calls BoringSSL's functions with its own data, and crashes.
 */
#ifndef RDT_BASE_OPENSSL_H
#define RDT_BASE_OPENSSL_H

#include <stdbool.h>

/* Opens a library, which stays open. NULL if this machine has none of that name. */
void *rdt_openssl_open(const char *name);
/* Sets the pointer to a function at `function`. Returns false if the library does not have it. */
bool rdt_openssl_find(void *library, const char *name, void *function);
/* Reports whether every function that `library` calls by a name of its own, or of `other` unless that is NULL,
 * is that function. Something else in this process can have opened the library without care. */
bool rdt_openssl_is_apart(void *library, void *other);

#endif
