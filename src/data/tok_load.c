/* SPDX-License-Identifier: Apache-2.0 */
/* The model and the added tokens of tokenizer.json. */
#include <stdio.h>
#include <string.h>

#include "data/tokenizer_internal.h"

static zinc_status load_vocab(const json_t *json, zn_vocab *vocab)
{
    const json_t *table = json_object_get(json, "vocab");
    const char *text;
    json_t *value;
    json_int_t max_id = -1;
    if (!json_is_object(table))
        ZN_FAIL(ZINC_E_FORMAT, "model: \"vocab\" must be an object of token: id");
    json_t *entries;
    memcpy(&entries, &table, sizeof entries); /* json_object_foreach takes no const */
    json_object_foreach(entries, text, value)
    {
        const json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id > ZN_TOK_MAX_ID)
            ZN_FAIL(ZINC_E_FORMAT, "model: the id of token \"%.80s\" must be an integer of 0..%d",
                    text, ZN_TOK_MAX_ID);
        max_id = id > max_id ? id : max_id;
    }
    if (max_id < 0)
        ZN_FAIL(ZINC_E_FORMAT, "model: \"vocab\" is empty");
    ZN_TRY(zn_vocab_init(vocab, json_object_size(table), (int32_t)max_id + 1));
    json_object_foreach(entries, text, value)
        ZN_TRY(zn_vocab_add(vocab, text, strlen(text), (int32_t)json_integer_value(value)));
    return ZINC_OK;
}

/* The two halves of a merge: "a b" or ["a", "b"]. */
static zinc_status merge_halves(const json_t *item, size_t i, const char *half[2], size_t n[2])
{
    if (json_is_array(item) && json_array_size(item) == 2) {
        for (size_t k = 0; k < 2; k++) {
            half[k] = json_string_value(json_array_get(item, k));
            n[k] = json_string_length(json_array_get(item, k));
        }
    } else if (json_is_string(item)) {
        const char *text = json_string_value(item);
        const char *space = strchr(text, ' ');
        half[0] = text;
        half[1] = space && !strchr(space + 1, ' ') ? space + 1 : NULL;
        n[0] = space ? (size_t)(space - text) : 0;
        n[1] = half[1] ? json_string_length(item) - n[0] - 1 : 0;
    } else {
        half[0] = half[1] = NULL;
    }
    if (!half[0] || !half[1])
        ZN_FAIL(ZINC_E_FORMAT, "model: merge %zu must be \"a b\" or [\"a\", \"b\"]", i);
    return ZINC_OK;
}

static zinc_status load_merge(zn_bpe *bpe, const json_t *item, size_t i, zn_buf *joined)
{
    const char *half[2];
    size_t n[2];
    int32_t id[2];
    ZN_TRY(merge_halves(item, i, half, n));
    for (int k = 0; k < 2; k++) {
        id[k] = zn_vocab_find(&bpe->vocab, half[k], n[k]);
        if (id[k] < 0)
            ZN_FAIL(ZINC_E_FORMAT, "model: merge %zu has \"%.*s\", which is not in the vocabulary",
                    i, (int)(n[k] < 80 ? n[k] : 80), half[k]);
    }
    /* The right half carries the prefix of word parts, which the whole does not repeat. */
    const size_t n_prefix = bpe->prefix ? strlen(bpe->prefix) : 0;
    if (n[1] < n_prefix)
        ZN_FAIL(ZINC_E_FORMAT, "model: merge %zu has a right half without the prefix \"%s\"", i,
                bpe->prefix);
    joined->n = 0;
    ZN_TRY(zn_buf_append(joined, half[0], n[0]));
    ZN_TRY(zn_buf_append(joined, half[1] + n_prefix, n[1] - n_prefix));
    const int32_t whole = zn_vocab_find(&bpe->vocab, joined->data, joined->n);
    if (whole < 0)
        ZN_FAIL(ZINC_E_FORMAT, "model: merge %zu gives \"%.80s\", which is not in the vocabulary",
                i, joined->data);
    zn_merges_set(&bpe->merges, id[0], id[1], (uint32_t)i, whole);
    return ZINC_OK;
}

static zinc_status load_merges(const json_t *json, zn_bpe *bpe)
{
    zinc_status status;
    zn_buf joined = {0};
    const json_t *list;
    ZN_TRY_GOTO(zn_field_array(json, "model", "merges", &list));
    ZN_TRY_GOTO(zn_merges_init(&bpe->merges, json_array_size(list)));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (json_is_string(item) && strncmp(json_string_value(item), "#version", 8) == 0)
            continue; /* the first line of merges.txt, in some converted files */
        ZN_TRY_GOTO(load_merge(bpe, item, i, &joined));
    }
fail:
    zn_buf_fini(&joined);
    return status;
}

static zinc_status load_affix(const json_t *json, const char *key, char **out)
{
    const char *text;
    size_t n;
    ZN_TRY(zn_field_string(json, "model", key, &text, &n));
    return n > 0 ? zn_strndup(text, n, out) : ZINC_OK;
}

static zinc_status load_unknown(const json_t *json, zn_bpe *bpe)
{
    const char *text;
    size_t n;
    ZN_TRY(zn_field_string(json, "model", "unk_token", &text, &n));
    bpe->unk_id = text ? zn_vocab_find(&bpe->vocab, text, n) : -1;
    if (text && bpe->unk_id < 0)
        ZN_FAIL(ZINC_E_FORMAT, "model: the unk_token \"%.80s\" is not in the vocabulary", text);
    return ZINC_OK;
}

zinc_status zn_load_model(const json_t *json, zn_bpe *bpe)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *type;
    size_t n;
    ZN_TRY(zn_field_string(json, "model", "type", &type, &n));
    if (!json_is_object(json))
        ZN_FAIL(ZINC_E_FORMAT, "\"model\" must be an object");
    if (type && strcmp(type, "BPE") != 0)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "model \"%s\" is not supported (supported: BPE)", type);
    const json_t *dropout = json_object_get(json, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "model: \"dropout\" is not supported; set it to null");
    ZN_TRY(zn_field_bool(json, "model", "fuse_unk", false, &bpe->fuse_unk));
    ZN_TRY(zn_field_bool(json, "model", "byte_fallback", false, &bpe->byte_fallback));
    ZN_TRY(zn_field_bool(json, "model", "ignore_merges", false, &bpe->ignore_merges));
    ZN_TRY(load_affix(json, "continuing_subword_prefix", &bpe->prefix));
    ZN_TRY(load_affix(json, "end_of_word_suffix", &bpe->suffix));
    ZN_TRY(load_vocab(json, &bpe->vocab));
    ZN_TRY(load_merges(json, bpe));
    ZN_TRY(load_unknown(json, bpe));
    for (int byte = 0; byte < 256; byte++) {
        const char text[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
        bpe->byte_id[byte] = zn_vocab_find(&bpe->vocab, text, sizeof text);
    }
    return ZINC_OK;
}

/* ---- added tokens ---- */

static zinc_status load_added_token(const json_t *json, size_t i, const zn_vocab *vocab,
                                    zn_added_token *token)
{
    const char *text;
    size_t n;
    int64_t id;
    char where[48];
    (void)snprintf(where, sizeof where, "added_tokens[%zu]", i);
    if (!json_is_object(json))
        ZN_FAIL(ZINC_E_FORMAT, "%s must be an object", where);
    ZN_TRY(zn_field_string(json, where, "content", &text, &n));
    ZN_TRY(zn_field_int(json, where, "id", -1, &id));
    if (!text)
        ZN_FAIL(ZINC_E_FORMAT, "%s has no \"content\"", where);
    if (id < 0 || id > ZN_TOK_MAX_ID)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"id\" must be an integer of 0..%d", where, ZN_TOK_MAX_ID);
    ZN_TRY(zn_field_bool(json, where, "special", false, &token->special));
    ZN_TRY(zn_field_bool(json, where, "lstrip", false, &token->lstrip));
    ZN_TRY(zn_field_bool(json, where, "rstrip", false, &token->rstrip));
    ZN_TRY(zn_field_bool(json, where, "single_word", false, &token->single_word));
    ZN_TRY(zn_field_bool(json, where, "normalized", !token->special, &token->normalized));
    const int32_t known = zn_vocab_find(vocab, text, n);
    token->id = known >= 0 ? known : (int32_t)id; /* the model's own id wins */
    token->n_text = n;
    return zn_strndup(text, n, &token->text);
}

/* What is searched in normalized text is the normalized token. */
static zinc_status find_patterns(zn_tokenizer *tokenizer)
{
    zinc_status status;
    zn_tok_work *work = NULL;
    ZN_TRY_GOTO(zn_tok_work_get(tokenizer, &work));
    for (int i = 0; i < tokenizer->n_added; i++) {
        zn_added_token *token = &tokenizer->added[i];
        const char *text = token->text;
        size_t n = token->n_text;
        if (token->normalized)
            ZN_TRY_GOTO(zn_tok_normalize(&tokenizer->normalizers, work, text, n, &text, &n));
        ZN_TRY_GOTO(zn_strndup(text, n, &token->pattern));
        token->n_pattern = n;
    }
    status = ZINC_OK;
fail:
    zn_tok_work_put(tokenizer, work);
    return status;
}

static zinc_status load_added(const json_t *json, zn_tokenizer *tokenizer)
{
    const json_t *list = json_object_get(json, "added_tokens");
    if (list && !json_is_null(list) && !json_is_array(list))
        ZN_FAIL(ZINC_E_FORMAT, "\"added_tokens\" must be an array");
    const size_t n = json_array_size(list);
    if (n > ZN_TOK_MAX_ID)
        ZN_FAIL(ZINC_E_FORMAT, "\"added_tokens\" has more than %d entries", ZN_TOK_MAX_ID);
    ZN_TRY(zn_alloc_array(&tokenizer->added, n, sizeof *tokenizer->added, "added tokens"));
    tokenizer->n_ids = tokenizer->bpe.vocab.n_ids;
    for (size_t i = 0; i < n; i++) {
        zn_added_token *token = &tokenizer->added[tokenizer->n_added++];
        ZN_TRY(load_added_token(json_array_get(list, i), i, &tokenizer->bpe.vocab, token));
        if (token->id >= tokenizer->n_ids)
            tokenizer->n_ids = token->id + 1;
    }
    ZN_TRY(zn_alloc_array(&tokenizer->added_of_id, (size_t)tokenizer->n_ids,
                          sizeof *tokenizer->added_of_id, "added tokens"));
    for (int32_t id = 0; id < tokenizer->n_ids; id++)
        tokenizer->added_of_id[id] = -1;
    for (int i = 0; i < tokenizer->n_added; i++)
        tokenizer->added_of_id[tokenizer->added[i].id] = i;
    ZN_TRY(find_patterns(tokenizer));
    ZN_TRY(zn_added_set_init(&tokenizer->raw, tokenizer->added, tokenizer->n_added, false));
    return zn_added_set_init(&tokenizer->normalized, tokenizer->added, tokenizer->n_added, true);
}

static zinc_status check_template(const zn_tokenizer *tokenizer)
{
    for (int i = 0; i < tokenizer->template_.n; i++)
        if (tokenizer->template_.items[i] >= tokenizer->n_ids)
            ZN_FAIL(ZINC_E_FORMAT, "post_processor: id %d is not in the vocabulary of %d ids",
                    tokenizer->template_.items[i], tokenizer->n_ids);
    return ZINC_OK;
}

/* Whether long texts may reach the merges whole: no pre-tokenizer cuts words, or the vocabulary is
 * SentencePiece's, where a split at spaces finds none because the normalizer has replaced them. */
static bool may_be_whole(const zn_tokenizer *tokenizer)
{
    for (int i = 0; i < tokenizer->splits.n; i++)
        if (tokenizer->splits.step[i].kind == ZN_STEP_SPLIT)
            return tokenizer->bpe.byte_fallback;
    return true;
}

zinc_status zn_load_tokenizer(const json_t *json, zn_tokenizer *tokenizer)
{
    if (!json_is_object(json))
        ZN_FAIL(ZINC_E_FORMAT, "the file must hold a JSON object");
    const json_t *decoder = json_object_get(json, "decoder");
    tokenizer->has_decoder = decoder && !json_is_null(decoder);
    ZN_TRY(zn_load_model(json_object_get(json, "model"), &tokenizer->bpe));
    ZN_TRY(zn_load_normalizer(json_object_get(json, "normalizer"), &tokenizer->normalizers));
    ZN_TRY(zn_load_pre_tokenizer(json_object_get(json, "pre_tokenizer"), &tokenizer->splits));
    ZN_TRY(zn_load_decoder(decoder, &tokenizer->decoders));
    ZN_TRY(zn_load_template(json_object_get(json, "post_processor"), &tokenizer->template_));
    ZN_TRY(load_added(json, tokenizer));
    ZN_TRY(check_template(tokenizer));
    return may_be_whole(tokenizer) ? zn_bpe_find_inner_pairs(&tokenizer->bpe) : ZINC_OK;
}
