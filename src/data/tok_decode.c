/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder step turns a row of token texts into another one; at the end they are joined. */
#include <string.h>

#include "data/tokenizer_internal.h"

typedef struct pieces {
    zn_buf text;
    size_t *end; /* [n] piece i is text[end[i - 1]..end[i]) */
    size_t n, capacity;
} pieces;

static void pieces_fini(pieces *p)
{
    zn_buf_fini(&p->text);
    zn_free(p->end);
    memset(p, 0, sizeof *p);
}

/* End the piece that has been appended to p->text. */
static zinc_status pieces_close(pieces *p)
{
    if (p->n == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 64;
        ZN_TRY(zn_realloc_array(&p->end, capacity, sizeof *p->end, "decoded tokens"));
        p->capacity = capacity;
    }
    p->end[p->n++] = p->text.n;
    return ZINC_OK;
}

static zinc_status pieces_add(pieces *p, const char *text, size_t n)
{
    ZN_TRY(zn_buf_append(&p->text, text, n));
    return pieces_close(p);
}

static const char *piece(const pieces *p, size_t i, size_t *n)
{
    const size_t start = i ? p->end[i - 1] : 0;
    *n = p->end[i] - start;
    return p->text.data + start;
}

/* ---- byte-level ---- */

/* Append the bytes a token stands for; a token with a foreign character stands for itself. */
static zinc_status append_token_bytes(const char *text, size_t n, zn_buf *out)
{
    const size_t before = out->n;
    ZN_TRY(zn_buf_reserve(out, n));
    for (size_t i = 0, len; i < n; i += len) {
        const int byte = zn_char_to_byte(zn_utf8_get(text + i, &len));
        if (byte < 0) {
            out->n = before;
            return zn_buf_append(out, text, n);
        }
        out->data[out->n++] = (char)byte;
    }
    return ZINC_OK;
}

static zinc_status byte_level(const pieces *in, pieces *out)
{
    zinc_status status;
    zn_buf bytes = {0};
    for (size_t i = 0, n; i < in->n; i++) {
        const char *text = piece(in, i, &n);
        ZN_TRY_GOTO(append_token_bytes(text, n, &bytes));
    }
    ZN_TRY_GOTO(zn_utf8_append_lossy(&out->text, bytes.data, bytes.n));
    ZN_TRY_GOTO(pieces_close(out));
fail:
    zn_buf_fini(&bytes);
    return status;
}

/* ---- byte fallback ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of "<0xXX>", or -1. */
static int fallback_byte(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    const int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* A run of byte tokens is their text if that is UTF-8, and else U+FFFD for every byte. */
static zinc_status flush_bytes(zn_buf *bytes, pieces *out)
{
    const size_t n = bytes->n;
    bytes->n = 0;
    if (n == 0)
        return ZINC_OK;
    if (zn_utf8_valid(bytes->data, n))
        return pieces_add(out, bytes->data, n);
    for (size_t i = 0; i < n; i++)
        ZN_TRY(pieces_add(out, "\xEF\xBF\xBD", 3));
    return ZINC_OK;
}

static zinc_status byte_fallback(const pieces *in, pieces *out)
{
    zinc_status status;
    zn_buf bytes = {0};
    for (size_t i = 0, n; i < in->n; i++) {
        const char *text = piece(in, i, &n);
        const int byte = fallback_byte(text, n);
        const char c = (char)byte;
        if (byte >= 0) {
            ZN_TRY_GOTO(zn_buf_append(&bytes, &c, 1));
            continue;
        }
        ZN_TRY_GOTO(flush_bytes(&bytes, out));
        ZN_TRY_GOTO(pieces_add(out, text, n));
    }
    ZN_TRY_GOTO(flush_bytes(&bytes, out));
fail:
    zn_buf_fini(&bytes);
    return status;
}

/* ---- steps on each token ---- */

static zinc_status strip(const zn_step *step, const char *text, size_t n, pieces *out)
{
    const size_t len = step->n_text;
    size_t start = 0;
    for (int64_t i = 0; i < step->start && n - start >= len; i++, start += len)
        if (memcmp(text + start, step->text, len) != 0)
            break;
    for (int64_t i = 0; i < step->stop && n - start >= len; i++, n -= len)
        if (memcmp(text + n - len, step->text, len) != 0)
            break;
    return pieces_add(out, text + start, n - start);
}

/* Marks become spaces; those of the first token vanish unless nothing was put in front. */
static zinc_status metaspace(const zn_step *step, const char *text, size_t n, bool first,
                             pieces *out)
{
    const bool drop = first && step->scheme != ZN_PREPEND_NEVER;
    for (size_t i = 0, len; i < n; i += len) {
        (void)zn_utf8_get(text + i, &len);
        const bool mark = len == step->n_text && memcmp(text + i, step->text, len) == 0;
        if (!mark)
            ZN_TRY(zn_buf_append(&out->text, text + i, len));
        else if (!drop)
            ZN_TRY(zn_buf_append(&out->text, " ", 1));
    }
    return pieces_close(out);
}

static zinc_status run_token_step(const zn_step *step, zn_regex_work *work, const char *text,
                                  size_t n, size_t i, size_t n_tokens, pieces *out)
{
    switch (step->kind) {
    case ZN_STEP_REPLACE:
        ZN_TRY(zn_regex_replace(&step->regex, work, text, n, step->text, step->n_text, &out->text));
        return pieces_close(out);
    case ZN_STEP_BPE_SUFFIX: /* the end of a word: a space, but not after the last one */
        ZN_TRY(zn_regex_replace(&step->regex, work, text, n, " ", i + 1 < n_tokens ? 1 : 0,
                                &out->text));
        return pieces_close(out);
    case ZN_STEP_FUSE:
        ZN_TRY(zn_buf_append(&out->text, text, n));
        return i + 1 == n_tokens ? pieces_close(out) : ZINC_OK;
    case ZN_STEP_STRIP:
        return strip(step, text, n, out);
    case ZN_STEP_METASPACE:
        return metaspace(step, text, n, i == 0, out);
    default:
        ZN_FAIL(ZINC_E_INTERNAL, "decoder step %d", (int)step->kind);
    }
}

static zinc_status run_step(const zn_step *step, zn_regex_work *work, const pieces *in, pieces *out)
{
    if (step->kind == ZN_STEP_BYTES)
        return byte_level(in, out);
    if (step->kind == ZN_STEP_BYTE_FALLBACK)
        return byte_fallback(in, out);
    for (size_t i = 0, n; i < in->n; i++) {
        const char *text = piece(in, i, &n);
        ZN_TRY(run_token_step(step, work, text, n, i, in->n, out));
    }
    return ZINC_OK;
}

/* ---- the row ---- */

static zinc_status token_texts(const zn_tokenizer *tokenizer, const int32_t *ids, int64_t n,
                               bool skip_special_tokens, pieces *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer->n_ids)
            ZN_FAIL(ZINC_E_INVALID, "id %d (number %lld) is not in the vocabulary of %d ids",
                    ids[i], (long long)i, tokenizer->n_ids);
        const int32_t added = tokenizer->added_of_id[ids[i]];
        size_t n_text = 0;
        const char *text = NULL;
        if (added >= 0) {
            if (skip_special_tokens && tokenizer->added[added].special)
                continue;
            text = tokenizer->added[added].text;
            n_text = tokenizer->added[added].n_text;
        } else {
            text = zn_vocab_text(&tokenizer->bpe.vocab, ids[i], &n_text);
        }
        if (text) /* an id that no token has says nothing */
            ZN_TRY(pieces_add(out, text, n_text));
    }
    return ZINC_OK;
}

zinc_status zn_tok_decode(const zn_tokenizer *tokenizer, const int32_t *ids, int64_t n,
                          bool skip_special_tokens, zn_buf *out)
{
    zinc_status status;
    pieces row = {0}, next = {0};
    zn_tok_work *work = NULL;
    ZN_TRY_GOTO(zn_tok_work_get(tokenizer, &work));
    ZN_TRY_GOTO(zn_buf_append(&row.text, "", 0));
    ZN_TRY_GOTO(token_texts(tokenizer, ids, n, skip_special_tokens, &row));
    for (int i = 0; i < tokenizer->decoders.n; i++) {
        ZN_TRY_GOTO(zn_buf_append(&next.text, "", 0));
        ZN_TRY_GOTO(run_step(&tokenizer->decoders.step[i], &work->regex, &row, &next));
        pieces_fini(&row);
        row = next;
        memset(&next, 0, sizeof next);
    }
    if (tokenizer->has_decoder) {
        ZN_TRY_GOTO(zn_buf_append(out, row.text.data, row.text.n));
    } else {
        for (size_t i = 0, len; i < row.n; i++) {
            const char *text = piece(&row, i, &len);
            ZN_TRY_GOTO(zn_buf_append(out, i > 0 ? " " : "", i > 0 ? 1 : 0));
            ZN_TRY_GOTO(zn_buf_append(out, text, len));
        }
    }
    status = zn_buf_append(out, "", 0);
fail:
    zn_tok_work_put(tokenizer, work);
    pieces_fini(&row);
    pieces_fini(&next);
    return status;
}
