/* SPDX-License-Identifier: Apache-2.0
 *
 * Small helpers for texts and lists of words.
 */
#ifndef RDT_BASE_TEXT_H
#define RDT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reports whether `word` is an item of a list such as "shm,verbs", whose items `separator` divides. */
bool rdt_text_lists(const char *list, char separator, const char *word);
/* Copies the next item of a list that commas divide, cut to `size`, and moves *at behind it. False at the end. */
bool rdt_text_next(const char **at, char *item, size_t size);
/* Appends to the text in `text`, cut to `size`. */
void rdt_text_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads "7000" or "7000-7010", a port or a range of ports. "" and "0" stand for any port: both are 0. False for
 * anything else. */
bool rdt_text_ports(const char *text, uint16_t *first, uint16_t *last);
/* Replaces control characters in a peer's text, which could otherwise write lines of its own into our log. */
void rdt_text_clean(char *text, size_t size);

#endif
