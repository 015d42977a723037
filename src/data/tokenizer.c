/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer.h"

#include <string.h>

#include "data/tokenizer_internal.h"

/* ---- rows of ids ---- */

zinc_status zn_ids_push(zn_ids *ids, int32_t id)
{
    if (ids->n == ids->capacity) {
        const int64_t capacity = ids->capacity ? 2 * ids->capacity : 64;
        ZN_TRY(zn_realloc_array(&ids->ids, (size_t)capacity, sizeof *ids->ids, "a row of ids"));
        ids->capacity = capacity;
    }
    ids->ids[ids->n++] = id;
    return ZINC_OK;
}

void zn_ids_fini(zn_ids *ids)
{
    zn_free(ids->ids);
    memset(ids, 0, sizeof *ids);
}

/* ---- work areas ---- */

void zn_tok_work_destroy(zn_tok_work *work)
{
    if (!work)
        return;
    zn_regex_work_fini(&work->regex);
    zn_buf_fini(&work->clean);
    zn_buf_fini(&work->norm[0]);
    zn_buf_fini(&work->norm[1]);
    for (int i = 0; i < ZN_TOK_MAX_STEPS; i++)
        zn_buf_fini(&work->step[i]);
    zn_buf_fini(&work->word);
    zn_free(work->symbols);
    zn_free(work->heap);
    zn_free(work->cache);
    zn_buf_fini(&work->cache_text);
    zn_ids_fini(&work->cache_ids);
    zn_free(work);
}

zinc_status zn_tok_work_get(const zn_tokenizer *tokenizer, zn_tok_work **out)
{
    zn_tok_pool *pool = tokenizer->pool;
    pthread_mutex_lock(&pool->mutex);
    zn_tok_work *work = pool->free_list;
    if (work)
        pool->free_list = work->next;
    pthread_mutex_unlock(&pool->mutex);
    if (!work) {
        ZN_TRY(zn_alloc(&work, sizeof *work, "a tokenizer's work area"));
        const zinc_status status = zn_regex_work_init(&work->regex);
        if (status != ZINC_OK) {
            zn_tok_work_destroy(work);
            return status;
        }
    }
    *out = work;
    return ZINC_OK;
}

void zn_tok_work_put(const zn_tokenizer *tokenizer, zn_tok_work *work)
{
    zn_tok_pool *pool = tokenizer->pool;
    if (!work)
        return;
    work->out = NULL;
    pthread_mutex_lock(&pool->mutex);
    work->next = pool->free_list;
    pool->free_list = work;
    pthread_mutex_unlock(&pool->mutex);
}

static zinc_status pool_create(zn_tok_pool **out)
{
    zn_tok_pool *pool = NULL;
    ZN_TRY(zn_alloc(&pool, sizeof *pool, "a tokenizer"));
    if (pthread_mutex_init(&pool->mutex, NULL) != 0) {
        zn_free(pool);
        ZN_FAIL(ZINC_E_NOMEM, "cannot make a mutex");
    }
    *out = pool;
    return ZINC_OK;
}

static void pool_destroy(zn_tok_pool *pool)
{
    if (!pool)
        return;
    while (pool->free_list) {
        zn_tok_work *work = pool->free_list;
        pool->free_list = work->next;
        zn_tok_work_destroy(work);
    }
    pthread_mutex_destroy(&pool->mutex);
    zn_free(pool);
}

/* ---- the tokenizer ---- */

void zn_tokenizer_destroy(zn_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    zn_bpe_fini(&tokenizer->bpe);
    for (int i = 0; i < tokenizer->n_added; i++) {
        zn_free(tokenizer->added[i].text);
        zn_free(tokenizer->added[i].pattern);
    }
    zn_free(tokenizer->added);
    zn_free(tokenizer->added_of_id);
    zn_added_set_fini(&tokenizer->raw);
    zn_added_set_fini(&tokenizer->normalized);
    zn_steps_fini(&tokenizer->normalizers);
    zn_steps_fini(&tokenizer->splits);
    zn_steps_fini(&tokenizer->decoders);
    zn_free(tokenizer->template_.items);
    pool_destroy(tokenizer->pool);
    zn_free(tokenizer);
}

zinc_status zn_tokenizer_load(const char *path, zn_tokenizer **out)
{
    zinc_status status;
    zn_tokenizer *tokenizer = NULL;
    json_t *json = NULL;
    ZN_TRY(zn_json_load(path, &json));
    ZN_TRY_GOTO(zn_alloc(&tokenizer, sizeof *tokenizer, "a tokenizer"));
    ZN_TRY_GOTO(pool_create(&tokenizer->pool));
    status = zn_load_tokenizer(json, tokenizer);
    if (status != ZINC_OK) {
        zn_error_prefix("%s: ", path);
        goto fail;
    }
    json_decref(json);
    *out = tokenizer;
    return ZINC_OK;
fail:
    json_decref(json);
    zn_tokenizer_destroy(tokenizer);
    return status;
}

int32_t zn_tokenizer_vocab_size(const zn_tokenizer *tokenizer)
{
    return tokenizer->n_ids;
}

int32_t zn_tokenizer_id(const zn_tokenizer *tokenizer, const char *token)
{
    const size_t n = strlen(token);
    for (int i = 0; i < tokenizer->n_added; i++)
        if (tokenizer->added[i].n_text == n && memcmp(tokenizer->added[i].text, token, n) == 0)
            return tokenizer->added[i].id;
    return zn_vocab_find(&tokenizer->bpe.vocab, token, n);
}

bool zn_tokenizer_is_special(const zn_tokenizer *tokenizer, int32_t id)
{
    if (id < 0 || id >= tokenizer->n_ids || tokenizer->added_of_id[id] < 0)
        return false;
    return tokenizer->added[tokenizer->added_of_id[id]].special;
}

/* ---- encoding ---- */

/* What is left of a text once the tokens searched before normalizing are out. */
static zinc_status encode_piece(const zn_tokenizer *tokenizer, zn_tok_work *work, const char *text,
                                size_t n, bool at_start)
{
    const zn_added_set *set = &tokenizer->normalized;
    ZN_TRY(zn_tok_normalize(&tokenizer->normalizers, work, text, n, &text, &n));
    size_t done = 0, from = 0;
    for (;;) {
        const zn_added_match match = zn_added_find(set, text, n, from, done);
        if (!match.token)
            return zn_tok_split(tokenizer, work, 0, text + done, n - done, at_start && done == 0);
        if (match.start > done)
            ZN_TRY(zn_tok_split(tokenizer, work, 0, text + done, match.start - done,
                                at_start && done == 0));
        ZN_TRY(zn_ids_push(work->out, match.token->id));
        done = match.stop;
        from = match.resume;
    }
}

/* Append the ids of a text without the template. */
static zinc_status encode_text(const zn_tokenizer *tokenizer, zn_tok_work *work, const char *text,
                               size_t n)
{
    size_t done = 0, from = 0;
    for (;;) {
        const zn_added_match match = zn_added_find(&tokenizer->raw, text, n, from, done);
        const size_t stop = match.token ? match.start : n;
        if (stop > done)
            ZN_TRY(encode_piece(tokenizer, work, text + done, stop - done, done == 0));
        if (!match.token)
            return ZINC_OK;
        ZN_TRY(zn_ids_push(work->out, match.token->id));
        done = match.stop;
        from = match.resume;
    }
}

static zinc_status encode_template(const zn_tokenizer *tokenizer, zn_tok_work *work,
                                   const char *text, size_t n, bool add_special_tokens)
{
    int64_t first = -1, last = -1; /* where the text's ids are, once they are there */
    for (int i = 0; i < tokenizer->template_.n; i++) {
        const int32_t item = tokenizer->template_.items[i];
        if (item >= 0) {
            if (add_special_tokens)
                ZN_TRY(zn_ids_push(work->out, item));
        } else if (first < 0) {
            first = work->out->n;
            ZN_TRY(encode_text(tokenizer, work, text, n));
            last = work->out->n;
        } else {
            for (int64_t k = first; k < last; k++)
                ZN_TRY(zn_ids_push(work->out, work->out->ids[k]));
        }
    }
    return ZINC_OK;
}

zinc_status zn_tokenizer_encode(const zn_tokenizer *tokenizer, const char *text, size_t n,
                                bool add_special_tokens, zn_ids *out)
{
    zinc_status status;
    zn_tok_work *work = NULL;
    const int64_t before = out->n;
    ZN_TRY(zn_tok_work_get(tokenizer, &work));
    work->out = out;
    if (!zn_utf8_valid(text, n)) {
        work->clean.n = 0;
        ZN_TRY_GOTO(zn_utf8_append_lossy(&work->clean, text, n));
        text = work->clean.data;
        n = work->clean.n;
    }
    ZN_TRY_GOTO(encode_template(tokenizer, work, text, n, add_special_tokens));
    zn_tok_work_put(tokenizer, work);
    return ZINC_OK;
fail:
    out->n = before;
    zn_tok_work_destroy(work); /* a half-written cache entry may be in it */
    return status;
}

zinc_status zn_tokenizer_decode(const zn_tokenizer *tokenizer, const int32_t *ids, int64_t n,
                                bool skip_special_tokens, zn_buf *out)
{
    const size_t before = out->n;
    const zinc_status status = zn_tok_decode(tokenizer, ids, n, skip_special_tokens, out);
    if (status != ZINC_OK)
        out->n = before;
    return status;
}
