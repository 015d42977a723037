/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c — the keys and values of a sequence that is being generated, so that a new token costs
 * one row and not the whole sequence. */
#include "model/model_internal.h"

#define FIRST_CAPACITY 256

zinc_status zn_decode_create(zn_model *model, zn_decode **out)
{
    ZN_TRY(zn_alloc(out, sizeof **out, "a sequence"));
    (*out)->model = model;
    return ZINC_OK;
}

void zn_decode_destroy(zn_decode *decode)
{
    if (!decode)
        return;
    zn_device_free(decode->model->dev, decode->cache);
    zn_device_free(decode->model->dev, decode->scratch);
    zn_free(decode);
}

/* Rows of keys (what 0) or values (what 1) of layer i in a cache of that capacity. */
static float *rows_of(const zn_decode *decode, float *cache, int64_t capacity, int64_t i, int what)
{
    const zn_model_spec *m = &decode->model->spec;
    return cache + (i * 2 + what) * capacity * m->K * m->D;
}

/* Move the cache into one of another capacity. */
static zinc_status move(zn_decode *decode, float *cache, int64_t capacity)
{
    const zn_model_spec *m = &decode->model->spec;
    zn_stream *s = zn_device_compute(decode->model->dev);
    const size_t n_bytes = (size_t)(decode->n * m->K * m->D) * sizeof *cache;
    for (int64_t i = 0; n_bytes > 0 && i < m->L; i++)
        for (int what = 0; what < 2; what++)
            ZN_TRY(zn_device_copy(s, rows_of(decode, cache, capacity, i, what),
                                  rows_of(decode, decode->cache, decode->capacity, i, what),
                                  n_bytes, NULL));
    return zn_stream_sync(s, -1);
}

zinc_status zn_decode_reserve(zn_decode *decode, int64_t n)
{
    zinc_status status = ZINC_OK;
    const zn_model_spec *m = &decode->model->spec;
    zn_device *dev = decode->model->dev;
    float *cache = NULL, *scratch = NULL;
    int64_t capacity = decode->capacity ? decode->capacity : FIRST_CAPACITY;
    while (capacity < decode->n + n)
        capacity *= 2;
    if (capacity == decode->capacity)
        return ZINC_OK;
    const size_t bytes = (size_t)(m->L * 2 * capacity * m->K * m->D) * sizeof *cache;
    ZN_TRY_GOTO(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_ACTIVATIONS, bytes,
                                "keys and values of a sequence", &cache));
    ZN_TRY_GOTO(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS,
                                (size_t)capacity * sizeof *scratch, "attention scores", &scratch));
    ZN_TRY_GOTO(move(decode, cache, capacity));
    zn_device_free(dev, decode->cache);
    zn_device_free(dev, decode->scratch);
    decode->cache = cache;
    decode->scratch = scratch;
    decode->capacity = capacity;
    return ZINC_OK;
fail:
    zn_device_free(dev, cache);
    zn_device_free(dev, scratch);
    return status;
}

/* The pass's rows behind those of earlier ones. */
static zinc_status keep(const zn_run *run, float *to, const float *rows, int64_t stride)
{
    const int64_t KD = run->spec->K * run->spec->D;
    for (int64_t t = 0; t < run->N; t++)
        ZN_TRY(run->k->convert(run->s, to + (run->past + t) * KD, ZN_DTYPE_F32, rows + t * stride,
                               ZN_DTYPE_F32, 1, KD));
    return ZINC_OK;
}

zinc_status zn_decode_attention(const zn_run *run, int64_t i, const zn_attention *a, float *out,
                                float *lse, float *scratch)
{
    const zn_decode *d = run->decode;
    const int64_t KD = run->spec->K * run->spec->D;
    float *keys = rows_of(d, d->cache, d->capacity, i, 0);
    float *values = rows_of(d, d->cache, d->capacity, i, 1);
    ZN_TRY(keep(run, keys, a->k, a->k_stride));
    ZN_TRY(keep(run, values, a->v, a->v_stride));
    if (run->past == 0) /* all of it is new */
        return run->k->attention(run->s, a, out, lse, scratch);
    zn_attention whole = *a;
    whole.T = run->past + run->N;
    whole.k = keys;
    whole.v = values;
    whole.k_stride = whole.v_stride = KD;
    return run->k->attention_tail(run->s, &whole, run->N, out, d->scratch);
}
