/* SPDX-License-Identifier: Apache-2.0 */
#include "data/dataset.h"

#include <string.h>

#include "base/log.h"
#include "data/dataset_internal.h"

/* Where a row lies in the dataset's arrays. */
typedef struct row_place {
    int64_t ids, n;
    int64_t labels, mask, first; /* -1: none of its own */
} row_place;

struct zn_dataset {
    zn_ids ids, labels; /* of all rows, back to back */
    zn_buf mask;
    zn_buf first;    /* of packed rows, with packing_boundaries */
    row_place *rows; /* [n_rows] */
    int64_t n_rows, rows_capacity;
    int64_t n_empty, n_cut;
};

/* The state of reading. */
typedef struct reader {
    const zn_dataset_params *params;
    zn_dataset *dataset;
    zn_ids pending;       /* text that does not fill a block yet */
    zn_buf pending_first; /* [pending.n] with packing_boundaries */
    zn_ids ids, labels;
    zn_buf mask;
    bool template_ends; /* the tokenizer's template itself ends a text with eos_id */
} reader;

static zinc_status append_ids(zn_ids *to, const int32_t *ids, int64_t n)
{
    if (to->n + n > to->capacity) {
        const int64_t capacity = to->n + n + to->capacity / 2;
        ZN_TRY(zn_realloc_array(&to->ids, (size_t)capacity, sizeof *to->ids, "the data set"));
        to->capacity = capacity;
    }
    if (n > 0)
        memcpy(to->ids + to->n, ids, (size_t)n * sizeof *ids);
    to->n += n;
    return ZINC_OK;
}

/* A row that is to be added; labels, mask and first may be NULL. */
typedef struct new_row {
    const int32_t *ids, *labels;
    const char *mask, *first;
    int64_t n;
} new_row;

/* The first label of a document is nobody's next token. */
static bool has_target(const new_row *row, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if ((!row->labels || row->labels[i] != ZN_IGNORED_LABEL) && !(row->first && row->first[i]))
            return true;
    return false;
}

static zinc_status append_flags(zn_buf *to, const char *flags, int64_t n)
{
    return flags ? zn_buf_append(to, flags, (size_t)n) : ZINC_OK;
}

/* Append a row, cut at block_size. */
static zinc_status add_row(reader *r, const new_row *row)
{
    zn_dataset *d = r->dataset;
    int64_t n = row->n;
    if (n > r->params->block_size) {
        n = r->params->block_size;
        d->n_cut++;
    }
    if (d->n_rows == d->rows_capacity) {
        const int64_t capacity = d->rows_capacity ? 2 * d->rows_capacity : 256;
        ZN_TRY(zn_realloc_array(&d->rows, (size_t)capacity, sizeof *d->rows, "the data set"));
        d->rows_capacity = capacity;
    }
    d->rows[d->n_rows++] = (row_place){.ids = d->ids.n,
                                       .n = n,
                                       .labels = row->labels ? d->labels.n : -1,
                                       .mask = row->mask ? (int64_t)d->mask.n : -1,
                                       .first = row->first ? (int64_t)d->first.n : -1};
    d->n_empty += !has_target(row, n);
    ZN_TRY(append_ids(&d->ids, row->ids, n));
    if (row->labels)
        ZN_TRY(append_ids(&d->labels, row->labels, n));
    ZN_TRY(append_flags(&d->mask, row->mask, n));
    return append_flags(&d->first, row->first, n);
}

static zinc_status flush(reader *r)
{
    const new_row row = {.ids = r->pending.ids,
                         .n = r->pending.n,
                         .first = r->params->packing_boundaries ? r->pending_first.data : NULL};
    ZN_TRY(add_row(r, &row));
    r->pending.n = 0;
    r->pending_first.n = 0;
    return ZINC_OK;
}

/* Add ids of text to the running block, and make rows of full ones. starts: the first id begins a
 * document. */
static zinc_status pack(reader *r, const int32_t *ids, int64_t n, bool starts)
{
    const int64_t block = r->params->block_size;
    while (n > 0) {
        const int64_t part = n < block - r->pending.n ? n : block - r->pending.n;
        ZN_TRY(append_ids(&r->pending, ids, part));
        for (int64_t i = 0; r->params->packing_boundaries && i < part; i++)
            ZN_TRY(zn_buf_append(&r->pending_first, starts && i == 0 ? "\1" : "\0", 1));
        starts = false;
        ids += part;
        n -= part;
        if (r->pending.n == block)
            ZN_TRY(flush(r));
    }
    return ZINC_OK;
}

/* ---- documents ---- */

static zinc_status check_ids(const reader *r, const char *where, const zn_ids *ids)
{
    for (int64_t i = 0; i < ids->n; i++)
        if (ids->ids[i] < 0 || ids->ids[i] >= r->params->vocab_size)
            ZN_FAIL(ZINC_E_FORMAT,
                    "%s: token %lld is id %d, but the model's vocabulary has %d ids (is this the "
                    "model's own tokenizer?)",
                    where, (long long)i, ids->ids[i], r->params->vocab_size);
    return ZINC_OK;
}

static zinc_status check_length(const reader *r, const char *where, int64_t n)
{
    const int64_t most = r->params->block_size;
    if (r->params->refuse_long && n > most)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: a row of %lld tokens, but %lld fit; with --block_size %lld longer rows are "
                "cut there",
                where, (long long)n, (long long)most, (long long)most);
    return ZINC_OK;
}

static zinc_status add_text(reader *r, const zn_document *document)
{
    r->ids.n = 0;
    ZN_TRY(zn_document_encode(r->params->tokenizer, document->text, document->n_text,
                              r->params->eos_id, &r->ids));
    ZN_TRY(check_ids(r, document->where, &r->ids));
    return pack(r, r->ids.ids, r->ids.n, true);
}

static zinc_status add_messages(reader *r, const zn_document *document)
{
    r->ids.n = r->labels.n = 0;
    ZN_TRY(zn_messages_encode(r->params, document, &r->ids, &r->labels));
    ZN_TRY(check_ids(r, document->where, &r->ids));
    ZN_TRY(check_length(r, document->where, r->ids.n));
    const new_row row = {
        .ids = r->ids.ids, .labels = r->params->loss_on_all ? NULL : r->labels.ids, .n = r->ids.n};
    return add_row(r, &row);
}

/* Prompt, completion and EOS are one row; only what comes after the prompt has labels. */
static zinc_status add_prompt(reader *r, const zn_document *document)
{
    const zn_dataset_params *p = r->params;
    r->ids.n = r->labels.n = 0;
    ZN_TRY(zn_document_encode(p->tokenizer, document->prompt, document->n_prompt, -1, &r->ids));
    if (r->template_ends && r->ids.n > 0)
        r->ids.n--;
    for (int64_t i = 0; i < r->ids.n; i++)
        ZN_TRY(zn_ids_push(&r->labels, ZN_IGNORED_LABEL));
    ZN_TRY(zn_tokenizer_encode(p->tokenizer, document->completion, document->n_completion, false,
                               &r->ids));
    const bool ended = r->ids.n > r->labels.n && r->ids.ids[r->ids.n - 1] == p->eos_id;
    if (p->eos_id >= 0 && !ended)
        ZN_TRY(zn_ids_push(&r->ids, p->eos_id));
    ZN_TRY(check_ids(r, document->where, &r->ids));
    for (int64_t i = r->labels.n; i < r->ids.n; i++)
        ZN_TRY(zn_ids_push(&r->labels, r->ids.ids[i]));
    if (r->ids.n == 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: prompt and completion are empty", document->where);
    ZN_TRY(check_length(r, document->where, r->ids.n));
    const new_row row = {.ids = r->ids.ids, .labels = r->labels.ids, .n = r->ids.n};
    return add_row(r, &row);
}

/* An array of integers of low..high - 1, or `also`. */
static zinc_status get_ids(const json_t *array, const zn_document *document, const char *key,
                           int32_t high, int32_t also, zn_ids *out)
{
    out->n = 0;
    const size_t n = json_array_size(array);
    if (n != json_array_size(document->ids))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" has %zu entries, \"input_ids\" has %zu", document->where,
                key, n, json_array_size(document->ids));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        const json_int_t value = json_integer_value(item);
        if (!json_is_integer(item))
            ZN_FAIL(ZINC_E_FORMAT, "%s: entry %zu of \"%s\" is not an integer", document->where, i,
                    key);
        if ((value < 0 || value >= high) && value != also)
            ZN_FAIL(ZINC_E_FORMAT, "%s: entry %zu of \"%s\" is %lld; it must be 0..%d%s",
                    document->where, i, key, (long long)value, high - 1,
                    also == ZN_IGNORED_LABEL ? " or -100" : "");
        ZN_TRY(zn_ids_push(out, (int32_t)value));
    }
    return ZINC_OK;
}

static zinc_status add_ids(reader *r, const zn_document *document)
{
    const int32_t vocab = r->params->vocab_size;
    if (json_array_size(document->ids) == 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"input_ids\" is empty", document->where);
    r->mask.n = 0;
    if (document->mask) {
        ZN_TRY(get_ids(document->mask, document, "attention_mask", 2, 0, &r->labels));
        for (int64_t i = 0; i < r->labels.n; i++)
            ZN_TRY(zn_buf_append(&r->mask, r->labels.ids[i] ? "\1" : "\0", 1));
    }
    ZN_TRY(get_ids(document->ids, document, "input_ids", vocab, 0, &r->ids));
    if (document->labels) {
        ZN_TRY(get_ids(document->labels, document, "labels", vocab, ZN_IGNORED_LABEL, &r->labels));
    } else if (document->mask) { /* padding is no target */
        for (int64_t i = 0; i < r->ids.n; i++)
            r->labels.ids[i] = r->mask.data[i] ? r->ids.ids[i] : ZN_IGNORED_LABEL;
    }
    ZN_TRY(check_length(r, document->where, r->ids.n));
    const new_row row = {.ids = r->ids.ids,
                         .labels = document->labels || document->mask ? r->labels.ids : NULL,
                         .mask = document->mask ? r->mask.data : NULL,
                         .n = r->ids.n};
    return add_row(r, &row);
}

static zinc_status add_document(void *context, const zn_document *document)
{
    reader *r = context;
    if (document->ids)
        return add_ids(r, document);
    if (!r->params->tokenizer)
        ZN_FAIL(ZINC_E_CONFIG,
                "%s holds text, but there is no tokenizer.json beside the model to read it with",
                document->where);
    const zinc_status status = document->messages ? add_messages(r, document)
                               : document->prompt ? add_prompt(r, document)
                                                  : add_text(r, document);
    if (status != ZINC_OK && !strstr(zinc_last_error(), document->where))
        zn_error_prefix("%s: ", document->where);
    return status;
}

/* ---- files ---- */

static zinc_status add_tokens(reader *r, const char *path)
{
    zinc_status status;
    zn_token_file file = {0};
    const int32_t eos_id = r->params->packing_boundaries ? r->params->eos_id : -1;
    bool starts = true, ends = false; /* the next part a document; this one is at its end */
    ZN_TRY_GOTO(zn_token_file_open(path, &file));
    for (int64_t i = 0; i < file.n;) {
        ends = false;
        for (r->ids.n = 0; r->ids.n < r->params->block_size && i < file.n && !ends; i++) {
            const uint32_t id = zn_token_file_get(&file, i);
            if (id >= (uint32_t)r->params->vocab_size)
                ZN_FAIL_GOTO(ZINC_E_FORMAT,
                             "%s: token %lld is id %u, but the model's vocabulary has %d ids", path,
                             (long long)i, id, r->params->vocab_size);
            ZN_TRY_GOTO(zn_ids_push(&r->ids, (int32_t)id));
            ends = eos_id >= 0 && (int32_t)id == eos_id;
        }
        ZN_TRY_GOTO(pack(r, r->ids.ids, r->ids.n, starts));
        starts = ends;
    }
fail:
    zn_token_file_close(&file);
    return status;
}

static zinc_status add_file(reader *r, const char *path)
{
    zn_file_kind kind;
    ZN_TRY(zn_file_kind_of(path, &kind));
    return kind == ZN_FILE_TOKENS ? add_tokens(r, path)
                                  : zn_documents_read(path, kind, add_document, r);
}

static zinc_status check_params(const zn_dataset_params *params)
{
    if (params->n_files < 1)
        ZN_FAIL(ZINC_E_INVALID, "no data files were given");
    if (params->block_size < 2)
        ZN_FAIL(ZINC_E_INVALID, "block_size is %lld; it must be at least 2",
                (long long)params->block_size);
    if (params->vocab_size < 1)
        ZN_FAIL(ZINC_E_INVALID, "vocab_size is %d; it must be at least 1", params->vocab_size);
    if (params->eos_id >= params->vocab_size)
        ZN_FAIL(ZINC_E_CONFIG, "eos_token_id %d is not in the vocabulary of %d ids", params->eos_id,
                params->vocab_size);
    return ZINC_OK;
}

static zinc_status look_at_template(reader *r)
{
    if (!r->params->tokenizer)
        return ZINC_OK;
    r->ids.n = 0;
    ZN_TRY(zn_tokenizer_encode(r->params->tokenizer, "", 0, true, &r->ids));
    r->template_ends = r->ids.n > 0 && r->ids.ids[r->ids.n - 1] == r->params->eos_id;
    return ZINC_OK;
}

/* The last, partial block; a single token has no next one and is dropped. */
static zinc_status finish(reader *r)
{
    if (r->pending.n >= 2)
        ZN_TRY(flush(r));
    if (r->dataset->n_rows == 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: there are fewer than 2 tokens in it", r->params->files[0]);
    if (r->dataset->n_cut > 0)
        zn_warn("data", "%lld rows were longer than block_size %lld and were cut",
                (long long)r->dataset->n_cut, (long long)r->params->block_size);
    return ZINC_OK;
}

zinc_status zn_dataset_open(const zn_dataset_params *params, zn_dataset **out)
{
    zinc_status status;
    reader r = {.params = params};
    ZN_TRY(check_params(params));
    ZN_TRY_GOTO(zn_alloc(&r.dataset, sizeof *r.dataset, "the data set"));
    ZN_TRY_GOTO(look_at_template(&r));
    for (int i = 0; i < params->n_files; i++)
        ZN_TRY_GOTO(add_file(&r, params->files[i]));
    ZN_TRY_GOTO(finish(&r));
    *out = r.dataset;
    r.dataset = NULL;
fail:
    zn_ids_fini(&r.pending);
    zn_buf_fini(&r.pending_first);
    zn_ids_fini(&r.ids);
    zn_ids_fini(&r.labels);
    zn_buf_fini(&r.mask);
    zn_dataset_destroy(r.dataset);
    return status;
}

void zn_dataset_destroy(zn_dataset *dataset)
{
    if (!dataset)
        return;
    zn_ids_fini(&dataset->ids);
    zn_ids_fini(&dataset->labels);
    zn_buf_fini(&dataset->mask);
    zn_buf_fini(&dataset->first);
    zn_free(dataset->rows);
    zn_free(dataset);
}

int64_t zn_dataset_n_rows(const zn_dataset *dataset)
{
    return dataset->n_rows;
}

void zn_dataset_row(const zn_dataset *dataset, int64_t i, zn_row *out)
{
    ZN_ASSERT(i >= 0 && i < dataset->n_rows);
    const row_place *row = &dataset->rows[i];
    *out = (zn_row){
        .n = row->n,
        .ids = dataset->ids.ids + row->ids,
        .labels = row->labels < 0 ? NULL : dataset->labels.ids + row->labels,
        .mask = row->mask < 0 ? NULL : (const uint8_t *)dataset->mask.data + row->mask,
        .first = row->first < 0 ? NULL : (const uint8_t *)dataset->first.data + row->first,
    };
}

int64_t zn_dataset_n_empty(const zn_dataset *dataset)
{
    return dataset->n_empty;
}

int64_t zn_dataset_n_cut(const zn_dataset *dataset)
{
    return dataset->n_cut;
}

int64_t zn_dataset_n_tokens(const zn_dataset *dataset)
{
    return dataset->ids.n;
}
