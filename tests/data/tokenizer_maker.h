/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_maker.h — small tokenizers for tests: components as JSON, a vocabulary of given tokens.
 * Every byte of printable ASCII is a token, so a text of it can always be encoded. */
#ifndef ZN_TEST_TOKENIZER_MAKER_H
#define ZN_TEST_TOKENIZER_MAKER_H

#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "data/tokenizer.h"
#include "zn_test.h"

typedef struct maker {
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder, *added; /* JSON or NULL */
    const char *model;  /* more fields of the model, each with a comma behind; or NULL */
    const char *merges; /* JSON or NULL */
    const char *tokens; /* more tokens, '|' between */
} maker;

static inline const char *or_null(const char *json)
{
    return json ? json : "null";
}

static inline void put_token(zn_buf *out, const char *text, size_t n, int id)
{
    assert_ok(zn_buf_puts(out, id ? "," : ""));
    assert_ok(zn_json_append_string(out, text, n));
    assert_ok(zn_buf_printf(out, ":%d", id));
}

/* The file's text. */
static inline void make_json(const maker *m, zn_buf *out)
{
    int id = 0;
    assert_ok(zn_buf_printf(out,
                            "{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,"
                            "\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,"
                            "\"model\":{\"type\":\"BPE\",%s\"merges\":%s,\"vocab\":{",
                            m->added ? m->added : "[]", or_null(m->normalizer),
                            or_null(m->pre_tokenizer), or_null(m->post_processor),
                            or_null(m->decoder), m->model ? m->model : "",
                            m->merges ? m->merges : "[]"));
    for (char c = 32; c < 127; c++)
        put_token(out, &c, 1, id++);
    for (const char *p = m->tokens; p && *p;) {
        const size_t n = strcspn(p, "|");
        if (n > 1)
            put_token(out, p, n, id++);
        p += n + (p[n] == '|');
    }
    assert_ok(zn_buf_puts(out, "}}}"));
}

/* Load a tokenizer from text through a file that is gone afterwards. */
static inline zinc_status load_text(const char *text, size_t n, zn_tokenizer **out)
{
    char path[] = "/tmp/zn_tokenizer_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_ok(zn_fs_pwrite_all(fd, text, n, 0, path));
    close(fd);
    const zinc_status status = zn_tokenizer_load(path, out);
    unlink(path);
    return status;
}

static inline zinc_status make(const maker *m, zn_tokenizer **out)
{
    zn_buf json = {0};
    make_json(m, &json);
    const zinc_status status = load_text(json.data, json.n, out);
    zn_buf_fini(&json);
    return status;
}

/* Encode, and compare the token texts (joined by '|') with `want`. */
static inline void check_tokens(const zn_tokenizer *tokenizer, const char *text, bool special,
                                const char *want)
{
    zn_ids ids = {0};
    zn_buf got = {0};
    assert_ok(zn_tokenizer_encode(tokenizer, text, strlen(text), special, &ids));
    assert_ok(zn_buf_puts(&got, ""));
    for (int64_t i = 0; i < ids.n; i++) {
        assert_ok(zn_buf_puts(&got, i ? "|" : ""));
        assert_ok(zn_tokenizer_decode(tokenizer, &ids.ids[i], 1, false, &got));
    }
    assert_string_equal(got.data, want);
    zn_ids_fini(&ids);
    zn_buf_fini(&got);
}

#endif
