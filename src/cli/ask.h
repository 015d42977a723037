/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h — questions on a terminal, or answered by lines of standard input. Questions go to stderr.
 *
 * On a terminal a choice is made with the arrow keys or a number and Enter; a wrong answer is asked
 * for again. From a pipe each question takes a line: empty is the default, a choice is its word or
 * its number from 0; a wrong line, or none, is an error that names the question. Layer: cli. */
#ifndef ZN_CLI_ASK_H
#define ZN_CLI_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct zn_asker {
    bool defaults; /* --yes: nothing is asked */
    bool terminal; /* standard input is one */
} zn_asker;

/* All errors: E_ABORTED Ctrl-C; E_CONFIG a line that is no answer, or no line. */

/** A line of text of at most n - 1 bytes; empty: `fallback` (NULL: an answer is needed). */
ZINC_MUST_CHECK zinc_status zn_ask_text(const zn_asker *asker, const char *question,
                                        const char *fallback, char *out, size_t n);
ZINC_MUST_CHECK zinc_status zn_ask_yes(const zn_asker *asker, const char *question, bool fallback,
                                       bool *out);
ZINC_MUST_CHECK zinc_status zn_ask_int(const zn_asker *asker, const char *question,
                                       int64_t fallback, int64_t min, int64_t max, int64_t *out);
ZINC_MUST_CHECK zinc_status zn_ask_real(const zn_asker *asker, const char *question,
                                        double fallback, double *out);
/** One of the words, by its index; `fallback` is what Enter takes. */
ZINC_MUST_CHECK zinc_status zn_ask_choice(const zn_asker *asker, const char *question,
                                          const char *const *words, int n_words, int fallback,
                                          int *out);

#endif
