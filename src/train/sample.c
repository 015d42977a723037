/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c — the first training row as the model gets it, for --show_sample. */
#include <stdio.h>

#include "train/train_internal.h"

#define MAX_SHOWN 256 /* tokens of a run */

/* A token's text on one line; its id alone where there is no text. */
static zinc_status put_token(const zn_tokenizer *tokenizer, int32_t id, zn_buf *out)
{
    zinc_status status = ZINC_OK;
    zn_buf text = {0};
    if (!tokenizer || id >= zn_tokenizer_vocab_size(tokenizer))
        return zn_buf_printf(out, "%d", id);
    ZN_TRY_GOTO(zn_tokenizer_decode(tokenizer, &id, 1, false, &text));
    for (size_t i = 0; i < text.n; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        if (c == '\n')
            ZN_TRY_GOTO(zn_buf_puts(out, "\\n"));
        else if (c < 0x20 || c == 0x7F)
            ZN_TRY_GOTO(zn_buf_printf(out, "\\x%02x", c));
        else
            ZN_TRY_GOTO(zn_buf_append(out, &text.data[i], 1));
    }
fail:
    zn_buf_fini(&text);
    return status;
}

/* The model learns to write token i: it is somebody's next token, and not masked. */
static bool is_learned(const zn_row *row, int64_t i)
{
    return i > 0 && !(row->first && row->first[i]) && (!row->labels || row->labels[i] >= 0);
}

/* Tokens [from, to), all learned or all only read: texts, and ids below. */
static zinc_status put_run(const zn_tokenizer *tokenizer, const zn_row *row, int64_t from,
                           int64_t to, zn_buf *out)
{
    const int64_t shown = to - from > MAX_SHOWN ? from + MAX_SHOWN : to;
    ZN_TRY(zn_buf_puts(out, is_learned(row, from) ? "  learned  " : "  read     "));
    for (int64_t i = from; i < shown; i++) {
        ZN_TRY(zn_buf_puts(out, i > from ? "│" : ""));
        ZN_TRY(put_token(tokenizer, row->ids[i], out));
    }
    if (shown < to)
        ZN_TRY(zn_buf_printf(out, " … %lld more", (long long)(to - shown)));
    ZN_TRY(zn_buf_puts(out, "\n          "));
    for (int64_t i = from; i < shown; i++)
        ZN_TRY(zn_buf_printf(out, " %d", row->ids[i]));
    return zn_buf_puts(out, "\n");
}

static zinc_status put_row(const zn_train_setup *setup, zn_buf *out)
{
    zn_row row;
    int64_t n_learned = 0;
    zn_dataset_row(setup->train, 0, &row);
    for (int64_t i = 0; i < row.n; i++)
        n_learned += is_learned(&row, i);
    ZN_TRY(zn_buf_printf(out, "first of %lld training rows: %lld tokens, %lld of them learned\n",
                         (long long)zn_dataset_n_rows(setup->train), (long long)row.n,
                         (long long)n_learned));
    for (int64_t i = 0, end; i < row.n; i = end) {
        for (end = i + 1; end < row.n && is_learned(&row, end) == is_learned(&row, i); end++)
            if (row.first && row.first[end]) /* a document a run, learned or not */
                break;
        ZN_TRY(put_run(setup->tokenizer, &row, i, end, out));
    }
    return ZINC_OK;
}

zinc_status zn_train_show_sample(const zn_train_setup *setup)
{
    zn_buf out = {0};
    zinc_status status = ZINC_OK;
    if (!setup->o->show_sample)
        return ZINC_OK;
    ZN_TRY_GOTO(put_row(setup, &out));
    fputs(out.data, stderr);
fail:
    zn_buf_fini(&out);
    return status;
}
