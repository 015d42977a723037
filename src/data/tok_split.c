/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "data/tokenizer_internal.h"

/* One running split: spans come in order, and at most one is held back until it is known whether
 * the next joins it. */
typedef struct splitter {
    const zn_tokenizer *tokenizer;
    zn_tok_work *work;
    int next_step;
    const char *text;
    bool at_start;
    size_t start, end; /* the held span, if any */
    bool held, held_is_match;
} splitter;

static zinc_status emit(const splitter *split, size_t start, size_t end)
{
    if (start == end)
        return ZINC_OK;
    return zn_tok_split(split->tokenizer, split->work, split->next_step, split->text + start,
                        end - start, split->at_start && start == 0);
}

static zinc_status flush(splitter *split)
{
    const bool held = split->held;
    split->held = false;
    return held ? emit(split, split->start, split->end) : ZINC_OK;
}

/* Whether a span joins the one that is held. */
static bool joins(zn_split_behavior behavior, bool held_is_match, bool is_match)
{
    switch (behavior) {
    case ZN_SPLIT_MERGED_WITH_PREVIOUS:
        return is_match && !held_is_match;
    case ZN_SPLIT_MERGED_WITH_NEXT:
        return !is_match && held_is_match;
    case ZN_SPLIT_CONTIGUOUS:
        return is_match == held_is_match;
    default:
        return false;
    }
}

static zinc_status feed(splitter *split, zn_split_behavior behavior, size_t start, size_t end,
                        bool is_match)
{
    if (behavior == ZN_SPLIT_ISOLATED)
        return emit(split, start, end);
    if (behavior == ZN_SPLIT_REMOVED)
        return is_match ? ZINC_OK : emit(split, start, end);
    if (split->held && joins(behavior, split->held_is_match, is_match)) {
        split->end = end;
        /* a joined match still counts as one: the next match does not join it as well */
        split->held_is_match = is_match;
        return ZINC_OK;
    }
    ZN_TRY(flush(split));
    split->held = true;
    split->held_is_match = is_match;
    split->start = start;
    split->end = end;
    return ZINC_OK;
}

static zinc_status run_split(const zn_step *step, splitter *split, size_t n)
{
    size_t done = 0, last_end = SIZE_MAX;
    for (;;) {
        bool found;
        size_t start, end;
        ZN_TRY(zn_regex_find(&step->regex, &split->work->regex, split->text, n, done, last_end,
                             &found, &start, &end));
        if (!found)
            break;
        if (start > done)
            ZN_TRY(feed(split, step->behavior, done, start, step->invert));
        ZN_TRY(feed(split, step->behavior, start, end, !step->invert));
        done = last_end = end;
    }
    if (done < n)
        ZN_TRY(feed(split, step->behavior, done, n, step->invert));
    return flush(split);
}

/* Spaces become the mark, and one comes in front as the scheme says. */
static zinc_status metaspace(const zn_step *step, const char *text, size_t n, bool at_start,
                             zn_buf *out)
{
    const bool marked =
        text[0] == ' ' || (n >= step->n_text && memcmp(text, step->text, step->n_text) == 0);
    if (!marked &&
        (step->scheme == ZN_PREPEND_ALWAYS || (step->scheme == ZN_PREPEND_FIRST && at_start)))
        ZN_TRY(zn_buf_append(out, step->text, step->n_text));
    for (size_t i = 0; i < n; i++)
        ZN_TRY(text[i] == ' ' ? zn_buf_append(out, step->text, step->n_text)
                              : zn_buf_append(out, text + i, 1));
    return ZINC_OK;
}

zinc_status zn_tok_split(const zn_tokenizer *tokenizer, zn_tok_work *work, int i, const char *text,
                         size_t n, bool at_start)
{
    if (n == 0)
        return ZINC_OK;
    if (i == tokenizer->splits.n)
        return zn_bpe_encode(&tokenizer->bpe, work, text, n);
    const zn_step *step = &tokenizer->splits.step[i];
    if (step->kind == ZN_STEP_SPLIT) {
        splitter split = {.tokenizer = tokenizer,
                          .work = work,
                          .next_step = i + 1,
                          .text = text,
                          .at_start = at_start};
        return run_split(step, &split, n);
    }
    zn_buf *buf = &work->step[i]; /* in use until this piece is done; deeper steps have others */
    buf->n = 0;
    switch (step->kind) {
    case ZN_STEP_BYTES:
        ZN_TRY(zn_append_byte_level(buf, text, n));
        break;
    case ZN_STEP_PREFIX:
        if (text[0] == ' ')
            return zn_tok_split(tokenizer, work, i + 1, text, n, at_start);
        ZN_TRY(zn_buf_append(buf, " ", 1));
        ZN_TRY(zn_buf_append(buf, text, n));
        break;
    case ZN_STEP_METASPACE:
        ZN_TRY(metaspace(step, text, n, at_start, buf));
        break;
    default:
        ZN_FAIL(ZINC_E_INTERNAL, "pre-tokenizer step %d", (int)step->kind);
    }
    return zn_tok_split(tokenizer, work, i + 1, buf->data, buf->n, at_start);
}
