/* SPDX-License-Identifier: Apache-2.0 */
/* api_files.c — safetensors, DeepSpeed checkpoints and tokenizers. */
#include <string.h>

#include "api/api_internal.h"
#include "base/mem.h"
#include "ckpt/export.h"
#include "ckpt/safetensors.h"
#include "data/tokenizer.h"
#include "zinc/checkpoint.h"
#include "zinc/tokenizer.h"

_Static_assert(ZINC_TENSOR_MAX_DIMS == ZN_MAX_DIMS, "public and internal shapes are as long");

struct zinc_reader {
    zn_weights *weights;
};

struct zinc_writer {
    zn_weights_writer *writer;
    int64_t *n_elems; /* [n_tensors] */
    int n_tensors;
};

struct zinc_tokenizer {
    zn_tokenizer *tokenizer;
};

/* ---- reading ---- */

zinc_status zinc_reader_open(const char *path, zinc_reader **out)
{
    zinc_reader *reader = NULL;
    ZN_API_NEED(path);
    ZN_API_NEED(out);
    ZN_TRY(zn_alloc(&reader, sizeof *reader, "a reader"));
    const zinc_status status = zn_weights_open(path, &reader->weights);
    if (status == ZINC_OK)
        *out = reader;
    else
        zn_free(reader);
    return status;
}

void zinc_reader_close(zinc_reader *reader)
{
    if (!reader)
        return;
    zn_weights_close(reader->weights);
    zn_free(reader);
}

int zinc_reader_n_tensors(const zinc_reader *reader)
{
    return reader ? zn_weights_n(reader->weights) : 0;
}

int zinc_reader_find(const zinc_reader *reader, const char *name)
{
    for (int i = 0; name && i < zinc_reader_n_tensors(reader); i++)
        if (strcmp(zn_weights_at(reader->weights, i)->name, name) == 0)
            return i;
    return -1;
}

static zinc_status check_tensor(const zinc_reader *reader, int i)
{
    if (i < 0 || i >= zinc_reader_n_tensors(reader))
        ZN_FAIL(ZINC_E_INVALID, "there is no tensor %d: the files have %d", i,
                zinc_reader_n_tensors(reader));
    return ZINC_OK;
}

zinc_status zn_api_check_range(const char *name, int64_t n_elems, int64_t offset, int64_t n,
                               const void *values)
{
    if (offset < 0 || n < 0 || n > n_elems || offset > n_elems - n || (n > 0 && !values))
        ZN_FAIL(ZINC_E_INVALID, "elements [%lld, %lld + %lld) of %s, which has %lld%s",
                (long long)offset, (long long)offset, (long long)n, name, (long long)n_elems,
                values ? "" : ", and no buffer");
    return ZINC_OK;
}

zinc_status zinc_reader_get(const zinc_reader *reader, int i, zinc_tensor *out)
{
    zinc_tensor known = ZINC_TENSOR_INIT;
    ZN_API_NEED(reader);
    ZN_TRY(check_tensor(reader, i));
    const zn_tensor_info *const info = zn_weights_at(reader->weights, i);
    known.name = info->name;
    known.dtype = (zinc_dtype)info->dtype;
    known.n_dims = info->n_dims;
    for (int d = 0; d < info->n_dims; d++)
        known.shape[d] = info->shape[d];
    return zn_api_give(&known, sizeof known, out, "zinc_tensor");
}

zinc_status zinc_reader_read(const zinc_reader *reader, int i, int64_t offset, int64_t n,
                             float *out)
{
    ZN_API_NEED(reader);
    ZN_TRY(check_tensor(reader, i));
    const zn_tensor_info *const info = zn_weights_at(reader->weights, i);
    ZN_TRY(zn_api_check_range(info->name, info->n_elems, offset, n, out));
    return zn_tensor_read(info, offset, n, out);
}

/* ---- writing ---- */

/* One tensor of the caller's array, whose elements have the size that its header had. */
static zinc_status take_tensor(const zinc_tensor *tensors, int i, zn_tensor_plan *plan,
                               int64_t *n_elems)
{
    zinc_tensor t = ZINC_TENSOR_INIT;
    ZN_TRY(zn_api_take(&t, sizeof t, (const char *)tensors + (size_t)i * tensors[0].struct_size,
                       "zinc_tensor"));
    if (!t.name || t.n_dims < 0 || t.n_dims > ZINC_TENSOR_MAX_DIMS || zinc_dtype_size(t.dtype) == 0)
        ZN_FAIL(ZINC_E_INVALID, "tensor %d (%s) has %d dimensions and type %d: 0 to %d, and a type",
                i, t.name ? t.name : "no name", t.n_dims, (int)t.dtype, ZINC_TENSOR_MAX_DIMS);
    *plan = (zn_tensor_plan){.name = t.name, .dtype = (zn_dtype)t.dtype, .n_dims = t.n_dims};
    *n_elems = 1;
    for (int d = 0; d < t.n_dims; d++) {
        if (t.shape[d] < 0 || (t.shape[d] > 0 && *n_elems > INT64_MAX / 8 / t.shape[d]))
            ZN_FAIL(ZINC_E_INVALID, "tensor %s: dimension %d is %lld", t.name, d,
                    (long long)t.shape[d]);
        plan->shape[d] = t.shape[d];
        *n_elems *= t.shape[d];
    }
    return ZINC_OK;
}

zinc_status zinc_writer_create(const char *dir, const zinc_tensor *tensors, int n_tensors,
                               int64_t max_shard_bytes, zinc_writer **out)
{
    zinc_status status;
    zinc_writer *w = NULL;
    zn_tensor_plan *plan = NULL;
    ZN_API_NEED(dir);
    ZN_API_NEED(tensors);
    ZN_API_NEED(out);
    if (n_tensors < 1 || max_shard_bytes < 0)
        ZN_FAIL(ZINC_E_INVALID, "%d tensors in files of at most %lld bytes", n_tensors,
                (long long)max_shard_bytes);
    ZN_TRY_GOTO(zn_alloc(&w, sizeof *w, "a writer"));
    ZN_TRY_GOTO(zn_alloc_array(&plan, (size_t)n_tensors, sizeof *plan, "a save plan"));
    ZN_TRY_GOTO(zn_alloc_array(&w->n_elems, (size_t)n_tensors, sizeof *w->n_elems, "sizes"));
    w->n_tensors = n_tensors;
    for (int i = 0; i < n_tensors; i++)
        ZN_TRY_GOTO(take_tensor(tensors, i, &plan[i], &w->n_elems[i]));
    ZN_TRY_GOTO(zn_weights_writer_create(dir, plan, n_tensors, max_shard_bytes, &w->writer));
    zn_free(plan);
    *out = w;
    return ZINC_OK;
fail:
    zn_free(plan);
    zinc_writer_destroy(w);
    return status;
}

void zinc_writer_destroy(zinc_writer *writer)
{
    if (!writer)
        return;
    zn_weights_writer_destroy(writer->writer);
    zn_free(writer->n_elems);
    zn_free(writer);
}

zinc_status zinc_writer_begin(zinc_writer *writer)
{
    ZN_API_NEED(writer);
    return zn_weights_writer_begin(writer->writer);
}

zinc_status zinc_writer_write(zinc_writer *writer, int i, int64_t offset, int64_t n,
                              const float *values)
{
    ZN_API_NEED(writer);
    if (i < 0 || i >= writer->n_tensors)
        ZN_FAIL(ZINC_E_INVALID, "there is no tensor %d: %d are planned", i, writer->n_tensors);
    ZN_TRY(zn_api_check_range("a tensor", writer->n_elems[i], offset, n, values));
    return zn_weights_writer_write(writer->writer, i, offset, n, values);
}

zinc_status zinc_writer_flush(zinc_writer *writer)
{
    ZN_API_NEED(writer);
    return zn_weights_writer_flush(writer->writer);
}

zinc_status zinc_writer_commit(zinc_writer *writer)
{
    ZN_API_NEED(writer);
    return zn_weights_writer_commit(writer->writer);
}

zinc_status zinc_export_deepspeed(const char *checkpoint, const char *output, const char *model,
                                  zinc_dtype dtype, int64_t max_shard_bytes)
{
    zn_export_report report = {0};
    zn_export_params params = {.checkpoint = checkpoint,
                               .output = output,
                               .model = model,
                               .max_shard_bytes = max_shard_bytes};
    ZN_API_NEED(checkpoint);
    ZN_API_NEED(output);
    ZN_TRY(zn_api_real_dtype(dtype, &params.dtype));
    const zinc_status status = zn_export(&params, &report);
    zn_export_report_fini(&report);
    return status;
}

/* ---- tokenizers ---- */

zinc_status zinc_tokenizer_load(const char *path, zinc_tokenizer **out)
{
    zinc_tokenizer *t = NULL;
    ZN_API_NEED(path);
    ZN_API_NEED(out);
    ZN_TRY(zn_alloc(&t, sizeof *t, "a tokenizer"));
    const zinc_status status = zn_tokenizer_load(path, &t->tokenizer);
    if (status == ZINC_OK)
        *out = t;
    else
        zn_free(t);
    return status;
}

void zinc_tokenizer_destroy(zinc_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    zn_tokenizer_destroy(tokenizer->tokenizer);
    zn_free(tokenizer);
}

int32_t zinc_tokenizer_vocab_size(const zinc_tokenizer *tokenizer)
{
    return tokenizer ? zn_tokenizer_vocab_size(tokenizer->tokenizer) : 0;
}

int32_t zinc_tokenizer_id(const zinc_tokenizer *tokenizer, const char *token)
{
    return tokenizer && token ? zn_tokenizer_id(tokenizer->tokenizer, token) : -1;
}

zinc_status zinc_tokenizer_encode(const zinc_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                  int add_special_tokens, int32_t **ids, int64_t *n_ids)
{
    zinc_status status;
    zn_ids row = {0};
    ZN_API_NEED(tokenizer);
    ZN_API_NEED(text);
    ZN_API_NEED(ids);
    ZN_API_NEED(n_ids);
    ZN_TRY_GOTO(
        zn_tokenizer_encode(tokenizer->tokenizer, text, n_bytes, add_special_tokens != 0, &row));
    *ids = row.ids;
    *n_ids = row.n;
    return ZINC_OK;
fail:
    zn_ids_fini(&row);
    return status;
}

zinc_status zinc_tokenizer_decode(const zinc_tokenizer *tokenizer, const int32_t *ids,
                                  int64_t n_ids, int skip_special_tokens, char **text)
{
    zinc_status status;
    zn_buf buf = {0};
    ZN_API_NEED(tokenizer);
    ZN_API_NEED(text);
    if (n_ids < 0 || (n_ids > 0 && !ids))
        ZN_FAIL(ZINC_E_INVALID, "%lld ids without an array", (long long)n_ids);
    ZN_TRY_GOTO(
        zn_tokenizer_decode(tokenizer->tokenizer, ids, n_ids, skip_special_tokens != 0, &buf));
    status = zn_api_give_text(&buf, text);
fail:
    zn_buf_fini(&buf);
    return status;
}
