/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_internal.h"

static int compare_bytes(const char *a, size_t n_a, const char *b, size_t n_b)
{
    const int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order != 0 ? order : (n_a > n_b) - (n_a < n_b);
}

static int by_pattern(const void *left, const void *right)
{
    const zn_added_token *a = *(const zn_added_token *const *)left;
    const zn_added_token *b = *(const zn_added_token *const *)right;
    const int order = compare_bytes(a->pattern, a->n_pattern, b->pattern, b->n_pattern);
    return order != 0 ? order : (a->id > b->id) - (a->id < b->id);
}

zinc_status zn_added_set_init(zn_added_set *set, const zn_added_token *tokens, int n,
                              bool normalized)
{
    ZN_TRY(zn_alloc_array(&set->tokens, (size_t)n, sizeof *set->tokens, "added tokens"));
    for (int i = 0; i < n; i++)
        if (tokens[i].normalized == normalized && tokens[i].n_pattern > 0)
            set->tokens[set->n++] = &tokens[i];
    if (set->n > 0)
        qsort(set->tokens, (size_t)set->n, sizeof *set->tokens, by_pattern);
    int32_t i = 0;
    for (int byte = 0; byte < 256; byte++) {
        set->first[byte] = i;
        while (i < set->n && (unsigned char)set->tokens[i]->pattern[0] == byte)
            i++;
    }
    set->first[256] = set->n;
    return ZINC_OK;
}

void zn_added_set_fini(zn_added_set *set)
{
    zn_free(set->tokens);
    memset(set, 0, sizeof *set);
}

/* Byte `depth` of token i, or -1 if it ends before. */
static int byte_at(const zn_added_set *set, int32_t i, size_t depth)
{
    const zn_added_token *token = set->tokens[i];
    return depth < token->n_pattern ? (unsigned char)token->pattern[depth] : -1;
}

/* First token of [low, high), which agree on `depth` bytes, whose byte there is >= byte. */
static int32_t lower_bound(const zn_added_set *set, int32_t low, int32_t high, size_t depth,
                           int byte)
{
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (byte_at(set, middle, depth) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Longest token that the text starts with, or NULL. */
static const zn_added_token *longest_at(const zn_added_set *set, const char *text, size_t n)
{
    const zn_added_token *best = NULL;
    int32_t low = set->first[(unsigned char)text[0]];
    int32_t high = set->first[(unsigned char)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        if (set->tokens[low]->n_pattern == depth) /* the shortest sorts first */
            best = set->tokens[low];
        if (depth >= n)
            break;
        const int byte = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return best;
}

static size_t last_char(const char *text, size_t n)
{
    size_t i = n - 1;
    while (i > 0 && ((unsigned char)text[i] & 0xC0) == 0x80)
        i--;
    return i;
}

/* No word character touches [start, stop). */
static bool stands_alone(const char *text, size_t n, size_t start, size_t stop)
{
    size_t len;
    if (start > 0 && zn_char_is_word(zn_utf8_get(text + last_char(text, start), &len)))
        return false;
    return stop == n || !zn_char_is_word(zn_utf8_get(text + stop, &len));
}

zn_added_match zn_added_find(const zn_added_set *set, const char *text, size_t n, size_t from,
                             size_t last_stop)
{
    zn_added_match match = {0};
    if (set->n == 0)
        return match;
    for (size_t i = from; i < n; i++) {
        const unsigned char byte = (unsigned char)text[i];
        if (set->first[byte] == set->first[byte + 1])
            continue;
        const zn_added_token *token = longest_at(set, text + i, n - i);
        if (!token)
            continue;
        size_t start = i, stop = i + token->n_pattern, len;
        if (token->single_word && !stands_alone(text, n, start, stop)) {
            i = stop - 1; /* refused, but its text is used up */
            continue;
        }
        match = (zn_added_match){.token = token, .resume = stop};
        while (token->lstrip && start > last_stop) {
            const size_t last = last_char(text, start);
            if (last < last_stop || !zn_char_is_space(zn_utf8_get(text + last, &len)))
                break;
            start = last;
        }
        while (token->rstrip && stop < n && zn_char_is_space(zn_utf8_get(text + stop, &len)))
            stop += len;
        match.start = start;
        match.stop = stop;
        return match;
    }
    return match;
}
