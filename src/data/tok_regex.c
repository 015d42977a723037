/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns in tokenizer.json are read by Oniguruma (Ruby syntax) there. What means the same in
 * PCRE2 is passed on, what is spelled differently is rewritten, and the rest is refused. */
#include <string.h>

#include "data/tokenizer_internal.h"

/* PCRE2's \s takes U+180E too, and its \w has no marks; these are Oniguruma's sets. */
#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                 \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-"         \
    "\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"        \
    "\\x{3001}-\\x{10ffff}"
#define WORDS "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"

/* Steps of one match; a pattern that needs more is hostile. A run of n spaces may honestly take a
 * few steps each. */
#define MATCH_LIMIT 20000000u
#define MATCH_LIMIT_PER_BYTE 8u
#define DEPTH_LIMIT 100000u
#define JIT_STACK_BYTES (4u << 20)

/* Rewrite the escape \c. *handled false: it stays as it is. */
static zinc_status translate_escape(char c, bool in_class, const char *where, zn_buf *out,
                                    bool *handled)
{
    *handled = true;
    switch (c) {
    case 's':
        return zn_buf_puts(out, in_class ? SPACES : "[" SPACES "]");
    case 'S':
        return zn_buf_puts(out, in_class ? NOT_SPACES : "[^" SPACES "]");
    case 'w':
        return zn_buf_puts(out, in_class ? WORDS : "[" WORDS "]");
    case 'W':
        if (!in_class)
            return zn_buf_puts(out, "[^" WORDS "]");
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: \\W inside [ ] is not supported in a regex", where);
    case 'h':
    case 'H':
    case 'g':
    case 'O':
    case 'y':
    case 'Y':
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: \\%c is not supported in a regex", where, c);
    default:
        *handled = false;
        return ZINC_OK;
    }
}

/* Refuse, at position i outside a class, what PCRE2 would read differently. */
static zinc_status check_outside(const char *p, size_t n, size_t i, const char *where)
{
    if (n - i >= 3 && memcmp(p + i, "(?", 2) == 0 && (p[i + 2] == 'm' || p[i + 2] == '~'))
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: (?%c is not supported in a regex", where, p[i + 2]);
    if (p[i] == '}' && i + 1 < n && p[i + 1] == '+')
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: {n,m}+ is not supported in a regex", where);
    return ZINC_OK;
}

static zinc_status check_in_class(const char *p, size_t n, size_t i, const char *where)
{
    if (p[i] == '[' && !(i + 1 < n && p[i + 1] == ':'))
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: a [ ] inside [ ] is not supported in a regex", where);
    if (p[i] == '&' && i + 1 < n && p[i + 1] == '&')
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: && inside [ ] is not supported in a regex", where);
    return ZINC_OK;
}

static zinc_status translate(const char *p, size_t n, const char *where, zn_buf *out)
{
    bool in_class = false;
    size_t class_start = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\' && i + 1 < n) {
            /* \p{^L} and friends: the braces are no class and no interval */
            const bool property = (p[i + 1] == 'p' || p[i + 1] == 'P' || p[i + 1] == 'x') &&
                                  i + 2 < n && p[i + 2] == '{';
            bool handled;
            ZN_TRY(translate_escape(p[i + 1], in_class, where, out, &handled));
            if (!handled)
                ZN_TRY(zn_buf_append(out, p + i, 2));
            i++;
            while (property && i + 1 < n && p[i] != '}') {
                i++;
                ZN_TRY(zn_buf_append(out, p + i, 1));
            }
            continue;
        }
        if (!in_class) {
            ZN_TRY(check_outside(p, n, i, where));
            if (p[i] == '[') {
                in_class = true;
                class_start = i + (i + 1 < n && p[i + 1] == '^' ? 2 : 1);
            }
        } else {
            ZN_TRY(check_in_class(p, n, i, where));
            if (p[i] == '[') { /* a POSIX name such as [:alpha:] is copied whole */
                while (i + 1 < n && p[i] != ']') {
                    ZN_TRY(zn_buf_append(out, p + i, 1));
                    i++;
                }
            } else if (p[i] == ']' && i != class_start) {
                in_class = false;
            }
        }
        ZN_TRY(zn_buf_append(out, p + i, 1));
    }
    return ZINC_OK;
}

static zinc_status compile(const char *pattern, size_t n, uint32_t options, const char *where,
                           zn_regex *out)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        ZN_FAIL(ZINC_E_NOMEM, "%s: out of memory for a regex", where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 100);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, n,
                                     options | PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                                     &error, &offset, context);
    pcre2_compile_context_free(context);
    if (!code) {
        PCRE2_UCHAR text[160] = "";
        pcre2_get_error_message(error, text, sizeof text);
        ZN_FAIL(ZINC_E_FORMAT, "%s: the regex \"%.200s\" does not compile: %s at byte %zu", where,
                pattern, (const char *)text, (size_t)offset);
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it pcre2_match interprets */
    out->code = code;
    return ZINC_OK;
}

zinc_status zn_regex_compile(const char *pattern, size_t n, const char *where, zn_regex *out)
{
    zinc_status status;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_buf_append(&text, "", 0));
    ZN_TRY_GOTO(translate(pattern, n, where, &text));
    /* In Ruby syntax ^ and $ are ends of lines. */
    ZN_TRY_GOTO(compile(text.data, text.n, PCRE2_MULTILINE, where, out));
fail:
    zn_buf_fini(&text);
    return status;
}

zinc_status zn_regex_compile_literal(const char *text, size_t n, const char *where, zn_regex *out)
{
    if (n == 0)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: an empty pattern", where);
    /* PCRE2_LITERAL goes with few options; UTF and NO_UTF_CHECK are among them, UCP is not. */
    zinc_status status;
    zn_buf pattern = {0};
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool plain =
            c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (plain)
            ZN_TRY_GOTO(zn_buf_append(&pattern, text + i, 1));
        else
            ZN_TRY_GOTO(zn_buf_printf(&pattern, "\\x{%x}", c));
    }
    ZN_TRY_GOTO(compile(pattern.data, pattern.n, 0, where, out));
fail:
    zn_buf_fini(&pattern);
    return status;
}

void zn_regex_fini(zn_regex *regex)
{
    pcre2_code_free(regex->code);
    regex->code = NULL;
}

zinc_status zn_regex_work_init(zn_regex_work *work)
{
    work->data = pcre2_match_data_create(1, NULL);
    work->context = pcre2_match_context_create(NULL);
    work->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_BYTES, NULL); /* NULL: no JIT here */
    if (!work->data || !work->context)
        ZN_FAIL(ZINC_E_NOMEM, "out of memory for a regex");
    pcre2_set_depth_limit(work->context, DEPTH_LIMIT);
    if (work->stack)
        pcre2_jit_stack_assign(work->context, NULL, work->stack);
    return ZINC_OK;
}

void zn_regex_work_fini(zn_regex_work *work)
{
    pcre2_match_data_free(work->data);
    pcre2_match_context_free(work->context);
    pcre2_jit_stack_free(work->stack);
    memset(work, 0, sizeof *work);
}

zinc_status zn_regex_find(const zn_regex *regex, zn_regex_work *work, const char *text, size_t n,
                          size_t from, size_t last_end, bool *found, size_t *start, size_t *end)
{
    const size_t limit = MATCH_LIMIT + MATCH_LIMIT_PER_BYTE * n;
    pcre2_set_match_limit(work->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    *found = false;
    while (from <= n) {
        const int rc = pcre2_match(regex->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK,
                                   work->data, work->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            return ZINC_OK;
        if (rc < 0) {
            PCRE2_UCHAR message[160] = "";
            pcre2_get_error_message(rc, message, sizeof message);
            ZN_FAIL(ZINC_E_FORMAT,
                    "the tokenizer's regex cannot be run on this text (at byte %zu): %s", from,
                    (const char *)message);
        }
        const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(work->data);
        if (ovector[0] > ovector[1] || ovector[0] < from) /* \K can do that */
            ZN_FAIL(ZINC_E_UNSUPPORTED, "the tokenizer's regex moves a match's ends with \\K");
        if (ovector[0] != ovector[1] || ovector[1] != last_end) {
            *found = true;
            *start = ovector[0];
            *end = ovector[1];
            return ZINC_OK;
        }
        size_t len = 1;
        if (from < n)
            (void)zn_utf8_get(text + from, &len);
        from += len;
    }
    return ZINC_OK;
}

zinc_status zn_regex_replace(const zn_regex *regex, zn_regex_work *work, const char *text, size_t n,
                             const char *content, size_t n_content, zn_buf *out)
{
    size_t done = 0, from = 0, last_end = SIZE_MAX;
    for (;;) {
        bool found;
        size_t start, end;
        ZN_TRY(zn_regex_find(regex, work, text, n, from, last_end, &found, &start, &end));
        if (!found)
            break;
        ZN_TRY(zn_buf_append(out, text + done, start - done));
        ZN_TRY(zn_buf_append(out, content, n_content));
        done = from = last_end = end;
    }
    return zn_buf_append(out, text + done, n - done);
}
