/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launch_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Take ownership of `word`, also on failure. */
static zinc_status take(zn_words *words, char *word)
{
    zinc_status status;
    if (words->n + 1 >= words->capacity) {
        const int capacity = words->capacity ? 2 * words->capacity : 8;
        ZN_TRY_GOTO(zn_realloc_array(&words->items, (size_t)capacity, sizeof *words->items,
                                     "a list of words"));
        words->capacity = capacity;
    }
    words->items[words->n++] = word;
    words->items[words->n] = NULL;
    return ZINC_OK;
fail:
    zn_free(word);
    return status;
}

zinc_status zn_words_add_n(zn_words *words, const char *text, size_t n_bytes)
{
    char *word;
    ZN_TRY(zn_alloc(&word, n_bytes + 1, "a word"));
    memcpy(word, text, n_bytes);
    return take(words, word);
}

zinc_status zn_words_add(zn_words *words, const char *text)
{
    return zn_words_add_n(words, text, strlen(text));
}

zinc_status zn_words_addf(zn_words *words, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(NULL, 0, format, list);
    va_end(list);
    char *word;
    ZN_TRY(zn_alloc(&word, (size_t)n + 1, "a word"));
    va_start(list, format);
    vsnprintf(word, (size_t)n + 1, format, list);
    va_end(list);
    return take(words, word);
}

zinc_status zn_words_add_all(zn_words *words, const zn_words *more)
{
    for (int i = 0; i < more->n; i++)
        ZN_TRY(zn_words_add(words, more->items[i]));
    return ZINC_OK;
}

zinc_status zn_words_set(zn_words *words, const char *assignment)
{
    const size_t n = strcspn(assignment, "=");
    for (int i = 0; i < words->n; i++)
        if (strncmp(words->items[i], assignment, n) == 0 && words->items[i][n] == '=') {
            char *copy;
            ZN_TRY(zn_strdup(assignment, &copy));
            zn_free(words->items[i]);
            words->items[i] = copy;
            return ZINC_OK;
        }
    return zn_words_add(words, assignment);
}

const char *zn_words_value(const zn_words *words, const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < words->n; i++)
        if (strncmp(words->items[i], name, n) == 0 && words->items[i][n] == '=')
            return words->items[i] + n + 1;
    return NULL;
}

void zn_words_fini(zn_words *words)
{
    for (int i = 0; i < words->n; i++)
        zn_free(words->items[i]);
    zn_free(words->items);
    *words = (zn_words){0};
}

zinc_status zn_words_encode(const zn_words *words, zn_buf *out)
{
    char count[16];
    const int n = snprintf(count, sizeof count, "%d", words->n);
    ZN_TRY(zn_buf_append(out, count, (size_t)n + 1));
    for (int i = 0; i < words->n; i++)
        ZN_TRY(zn_buf_append(out, words->items[i], strlen(words->items[i]) + 1));
    return ZINC_OK;
}

/* The NUL-terminated word at *at; NULL if there is none. */
static const char *next_word(const char *bytes, size_t n_bytes, size_t *at)
{
    if (*at >= n_bytes || !memchr(bytes + *at, '\0', n_bytes - *at))
        return NULL;
    const char *word = bytes + *at;
    *at += strlen(word) + 1;
    return word;
}

zinc_status zn_words_decode(const char *bytes, size_t n_bytes, size_t *at, zn_words *out)
{
    const char *count = next_word(bytes, n_bytes, at);
    char *end = NULL;
    const long n = count ? strtol(count, &end, 10) : -1;
    if (n < 0 || *end)
        ZN_FAIL(ZINC_E_FORMAT, "launcher and agent disagree: expected a list of words at byte %zu",
                *at);
    for (long i = 0; i < n; i++) {
        const char *word = next_word(bytes, n_bytes, at);
        if (!word)
            ZN_FAIL(ZINC_E_FORMAT,
                    "launcher and agent disagree: a list of %ld words ends after "
                    "%ld",
                    n, i);
        ZN_TRY(zn_words_add(out, word));
    }
    return ZINC_OK;
}
