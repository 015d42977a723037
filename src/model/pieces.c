/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.c — norms and dropout as the blocks use them. */
#include "base/hash.h"
#include "model/model_internal.h"

zinc_status zn_norm(const zn_run *run, int w, int b, const float *x, float *out, int64_t N,
                    float *rstd)
{
    const zn_model_spec *m = run->spec;
    const float *weight, *bias;
    ZN_TRY(zn_vector_f32(run, w, m->C, 0, &weight));
    ZN_TRY(zn_vector_f32(run, b, m->C, 1, &bias));
    if (m->norm == ZN_NORM_LAYER)
        return run->k->layernorm(run->s, out, run->acts->mean, rstd, x, weight, bias, N, m->C,
                                 m->norm_eps);
    return run->k->rmsnorm(run->s, out, m->C, rstd, x, m->C, weight, m->norm_offset, N, m->C,
                           m->norm_eps);
}

zinc_status zn_norm_backward(const zn_run *run, int w, int b, const float *dy, const float *x,
                             const float *rstd, float *dx, bool accumulate)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const float *weight;
    float *dw = run->hooks->grad(run->hooks->ctx, w);
    float *db = b < 0 ? NULL : run->hooks->grad(run->hooks->ctx, b);
    ZN_TRY(zn_vector_f32(run, w, m->C, 0, &weight));
    if (m->norm == ZN_NORM_RMS)
        return run->k->rmsnorm_backward(run->s, dx, m->C, accumulate, dw, dy, m->C, x, m->C, weight,
                                        m->norm_offset, rstd, run->N, m->C, acts->norm_scratch);
    if (!dw) { /* frozen: the kernel always adds somewhere; numbers nobody reads must be numbers */
        dw = acts->vec[2];
        ZN_TRY(run->k->zero(run->s, dw, m->C * (int64_t)sizeof(float)));
    }
    return run->k->layernorm_backward(run->s, dx, accumulate, dw, db, dy, x, weight, acts->mean,
                                      rstd, run->N, m->C, acts->norm_scratch);
}

uint64_t zn_dropout_seed(const zn_run *run, int64_t layer, uint64_t site)
{
    return zn_hash_fold(zn_hash_fold(run->batch->dropout_seed, (uint64_t)layer), site);
}

float zn_dropout_p(const zn_run *run, float p)
{
    return run->dropout ? p * run->m->opts.dropout_scale : 0;
}

zinc_status zn_drop(const zn_run *run, float *out, const float *x, float p, int64_t layer,
                    uint64_t site)
{
    return run->k->dropout(run->s, out, x, run->N, run->batch->T, run->spec->C, run->batch->sample,
                           zn_dropout_seed(run, layer, site), zn_dropout_p(run, p));
}

zinc_status zn_keep(const zn_run *run, uint16_t *kept, const float *x, int64_t n)
{
    return kept ? run->k->convert(run->s, kept, ZN_DTYPE_BF16, x, ZN_DTYPE_F32, 1, n) : ZINC_OK;
}

zinc_status zn_restore(const zn_run *run, float *x, const uint16_t *kept, int64_t n)
{
    return kept ? run->k->convert(run->s, x, ZN_DTYPE_F32, kept, ZN_DTYPE_BF16, 1, n) : ZINC_OK;
}
