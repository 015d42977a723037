/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer_internal.h"

/* utf8proc works on a whole string of code points; long texts are normalized in parts of about
 * this many bytes, cut before ASCII characters, which begin a new sequence in every form. */
#define PART_BYTES 8192u

static utf8proc_option_t form_options(zn_step_kind kind)
{
    switch (kind) {
    case ZN_STEP_NFC:
        return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case ZN_STEP_NFKC:
        return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case ZN_STEP_NFKD:
        return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    default:
        return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    }
}

static size_t ascii_prefix(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && (unsigned char)text[i] < 0x80)
        i++;
    return i;
}

/* One part through utf8proc. */
static zinc_status normalize_part(zn_step_kind kind, const char *text, size_t n, zn_buf *out)
{
    zinc_status status;
    int32_t *codes = NULL;
    const utf8proc_option_t options = form_options(kind);
    utf8proc_ssize_t need = (utf8proc_ssize_t)n;
    for (utf8proc_ssize_t room = 0; room < need;) { /* decomposing may need a second try */
        room = need;
        ZN_TRY_GOTO(zn_realloc_array(&codes, (size_t)room + 1, sizeof *codes, "normalized text"));
        need = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, codes, room,
                                  options);
        if (need < 0)
            ZN_FAIL_GOTO(ZINC_E_INTERNAL, "utf8proc: %s", utf8proc_errmsg(need));
    }
    const utf8proc_ssize_t n_codes = utf8proc_normalize_utf32(codes, need, options);
    if (n_codes < 0)
        ZN_FAIL_GOTO(ZINC_E_INTERNAL, "utf8proc: %s", utf8proc_errmsg(n_codes));
    ZN_TRY_GOTO(zn_buf_reserve(out, 4 * (size_t)n_codes));
    for (utf8proc_ssize_t i = 0; i < n_codes; i++)
        out->n += zn_utf8_put(codes[i], out->data + out->n);
    status = ZINC_OK;
fail:
    zn_free(codes);
    return status;
}

static zinc_status normalize_form(zn_step_kind kind, const char *text, size_t n, zn_buf *out)
{
    while (n > 0) {
        size_t part = ascii_prefix(text, n);
        if (part > 0 && part < n)
            part--; /* the last one may take a combining mark that follows */
        if (part > 0) {
            ZN_TRY(zn_buf_append(out, text, part));
        } else {
            part = 1;
            while (part < n && !(part >= PART_BYTES && (unsigned char)text[part] < 0x80) &&
                   !(n - part >= 2 && (unsigned char)text[part] < 0x80 &&
                     (unsigned char)text[part + 1] < 0x80))
                part++;
            ZN_TRY(normalize_part(kind, text, part, out));
        }
        text += part;
        n -= part;
    }
    return ZINC_OK;
}

static zinc_status lowercase(const char *text, size_t n, zn_buf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        const int32_t code = zn_utf8_get(text + i, &len);
        ZN_TRY(zn_buf_reserve(out, 4));
        if (code == 0x130) /* the one character whose lower case is two */
            ZN_TRY(zn_buf_append(out, "i\xCC\x87", 3));
        else
            out->n += zn_utf8_put(utf8proc_tolower(code), out->data + out->n);
    }
    return ZINC_OK;
}

static zinc_status strip_accents(const char *text, size_t n, zn_buf *out)
{
    for (size_t i = 0, len; i < n; i += len)
        if (utf8proc_category(zn_utf8_get(text + i, &len)) != UTF8PROC_CATEGORY_MN)
            ZN_TRY(zn_buf_append(out, text + i, len));
    return ZINC_OK;
}

static zinc_status trim(const zn_step *step, const char *text, size_t n, zn_buf *out)
{
    size_t start = 0, len = 0;
    while (step->start && start < n && zn_char_is_space(zn_utf8_get(text + start, &len)))
        start += len;
    while (step->stop && n > start) {
        size_t last = n - 1;
        while (last > start && ((unsigned char)text[last] & 0xC0) == 0x80)
            last--;
        if (!zn_char_is_space(zn_utf8_get(text + last, &len)))
            break;
        n = last;
    }
    return zn_buf_append(out, text + start, n - start);
}

static zinc_status run_step(const zn_step *step, zn_tok_work *work, const char *text, size_t n,
                            zn_buf *out)
{
    switch (step->kind) {
    case ZN_STEP_NFC:
    case ZN_STEP_NFD:
    case ZN_STEP_NFKC:
    case ZN_STEP_NFKD:
        return normalize_form(step->kind, text, n, out);
    case ZN_STEP_LOWERCASE:
        return lowercase(text, n, out);
    case ZN_STEP_STRIP_ACCENTS:
        return strip_accents(text, n, out);
    case ZN_STEP_TRIM:
        return trim(step, text, n, out);
    case ZN_STEP_PREPEND:
        if (n > 0)
            ZN_TRY(zn_buf_append(out, step->text, step->n_text));
        return zn_buf_append(out, text, n);
    case ZN_STEP_REPLACE:
        return zn_regex_replace(&step->regex, &work->regex, text, n, step->text, step->n_text, out);
    case ZN_STEP_BYTES:
        return zn_append_byte_level(out, text, n);
    default:
        ZN_FAIL(ZINC_E_INTERNAL, "normalizer step %d", (int)step->kind);
    }
}

zinc_status zn_tok_normalize(const zn_steps *steps, zn_tok_work *work, const char *text, size_t n,
                             const char **out, size_t *n_out)
{
    int turn = 0;
    for (int i = 0; i < steps->n; i++) {
        const bool form = steps->step[i].kind <= ZN_STEP_NFKD;
        if (form && ascii_prefix(text, n) == n)
            continue;
        zn_buf *buf = &work->norm[turn]; /* the text may be in the other one */
        turn = !turn;
        buf->n = 0;
        ZN_TRY(zn_buf_append(buf, "", 0));
        ZN_TRY(run_step(&steps->step[i], work, text, n, buf));
        text = buf->data;
        n = buf->n;
    }
    *out = text;
    *n_out = n;
    return ZINC_OK;
}
