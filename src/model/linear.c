/* SPDX-License-Identifier: Apache-2.0 */
/* linear.c — matrices and vectors of parameters: brought into fp32, applied, differentiated.
 *
 * y[N,out] = x[N,in] W. Stored [out,in] W is read transposed; Conv1D's [in,out] as it is.
 * A grouped matrix (GPT-NeoX) is stored [heads,3,D,in] and used as [3,heads,D,in], so that q, k and
 * v are each contiguous in y: its blocks of D rows are moved on the way into the wide buffer, and
 * its gradient's blocks on the way out. */
#include "model/model_internal.h"

/* Block b of the order of use lies at block `from` of the order of storage. */
static int64_t stored_block(int64_t b, int64_t n_groups)
{
    return b % n_groups * 3 + b / n_groups;
}

/* n elements of a parameter at `offset` as fp32 into dst, blocks moved where n_groups > 0. */
static zinc_status widen(const zn_run *run, int param, int64_t offset, int64_t n, int64_t n_groups,
                         float *dst)
{
    const zn_dtype dtype = run->hooks->param_dtype;
    const size_t size = zn_dtype_size(dtype);
    const char *src =
        (const char *)run->hooks->data(run->hooks->ctx, param) + (size_t)offset * size;
    if (n_groups == 0)
        return run->k->convert(run->s, dst, ZN_DTYPE_F32, src, dtype, 1, n);
    const int64_t block = n / (3 * n_groups);
    for (int64_t b = 0; b < 3 * n_groups; b++) {
        const char *from = src + (size_t)(stored_block(b, n_groups) * block) * size;
        ZN_TRY(run->k->convert(run->s, dst + b * block, ZN_DTYPE_F32, from, dtype, 1, block));
    }
    return ZINC_OK;
}

/* grad += g, blocks moved back. */
static zinc_status add_grouped(const zn_run *run, float *grad, const float *g, int64_t n,
                               int64_t n_groups)
{
    const int64_t block = n / (3 * n_groups);
    for (int64_t b = 0; b < 3 * n_groups; b++)
        ZN_TRY(run->k->axpy(run->s, grad + stored_block(b, n_groups) * block, g + b * block, 1,
                            block));
    return ZINC_OK;
}

zinc_status zn_matrix_operand(const zn_run *run, const zn_matrix *w, zn_operand *out)
{
    const zn_dtype dtype = run->hooks->param_dtype;
    const int64_t ld = w->conv1d ? w->out : w->in;
    if (w->n_groups == 0 && (dtype == ZN_DTYPE_F32 || run->bf16_gemm)) {
        const char *p = run->hooks->data(run->hooks->ctx, w->param);
        *out = (zn_operand){
            .p = p + (size_t)w->offset * zn_dtype_size(dtype), .dtype = dtype, .ld = ld};
        return ZINC_OK;
    }
    ZN_TRY(widen(run, w->param, w->offset, w->in * w->out, w->n_groups, run->acts->wide));
    *out = zn_rows(run->acts->wide, ld);
    return ZINC_OK;
}

zinc_status zn_product(const zn_run *run, int64_t M, int64_t N, int64_t K, zn_operand A,
                       zn_operand B, zn_result C)
{
    if (run->bf16_gemm)
        return run->k->gemm_bf16(run->s, M, N, K, &A, &B, &C, run->acts->gemm_scratch);
    return run->k->gemm(run->s, A.trans, B.trans, M, N, K, 1, A.p, A.ld, B.p, B.ld, C.add ? 1 : 0,
                        C.p, C.ld);
}

zn_result zn_matrix_grad(const zn_run *run, int param, bool last, int64_t n, int64_t ld)
{
    const zn_param_hooks *hooks = run->hooks;
    zn_result out = zn_added_to(NULL, ld);
    if (!hooks->grad_whole)
        out.p = hooks->grad(hooks->ctx, param);
    else
        out.p = hooks->grad_whole(hooks->ctx, param,
                                  last && run->bf16_gemm && n <= ZN_GEMM_BF16_WHOLE_K, &out.dtype,
                                  &out.add);
    return out;
}

zinc_status zn_vector_f32(const zn_run *run, int param, int64_t n, int slot, const float **out)
{
    *out = NULL;
    if (param < 0)
        return ZINC_OK;
    if (run->hooks->param_dtype == ZN_DTYPE_F32) {
        *out = run->hooks->data(run->hooks->ctx, param);
        return ZINC_OK;
    }
    ZN_TRY(widen(run, param, 0, n, 0, run->acts->vec[slot]));
    *out = run->acts->vec[slot];
    return ZINC_OK;
}

zinc_status zn_linear(const zn_run *run, const zn_matrix *w, const float *x, int64_t ldx, float *y,
                      int64_t ldy)
{
    zn_operand W;
    ZN_TRY(zn_matrix_operand(run, w, &W));
    return zn_product(run, run->N, w->out, w->in, zn_rows(x, ldx), w->conv1d ? W : zn_transposed(W),
                      zn_into(y, ldy));
}

zinc_status zn_linear_backward_x(const zn_run *run, const zn_matrix *w, const float *dy,
                                 int64_t lddy, float *dx, int64_t lddx, bool accumulate)
{
    zn_operand W;
    ZN_TRY(zn_matrix_operand(run, w, &W));
    return zn_product(run, run->N, w->in, w->out, zn_rows(dy, lddy),
                      w->conv1d ? zn_transposed(W) : W,
                      accumulate ? zn_added_to(dx, lddx) : zn_into(dx, lddx));
}

zinc_status zn_linear_backward_w(const zn_run *run, const zn_matrix *w, const float *x, int64_t ldx,
                                 const float *dy, int64_t lddy)
{
    const zn_operand X = zn_rows(x, ldx), dY = zn_rows(dy, lddy);
    const int64_t ld = w->conv1d ? w->out : w->in;
    zn_result grad;
    if (w->n_groups > 0 || w->part) {
        float *p = run->hooks->grad(run->hooks->ctx, w->param);
        grad = zn_added_to(p ? p + w->offset : NULL, ld);
    } else {
        grad = zn_matrix_grad(run, w->param, true, run->N, ld);
    }
    if (!grad.p)
        return ZINC_OK;
    if (w->n_groups > 0) {
        float *g = run->acts->wide;
        ZN_TRY(zn_product(run, w->out, w->in, run->N, zn_transposed(dY), X, zn_into(g, w->in)));
        return add_grouped(run, grad.p, g, w->in * w->out, w->n_groups);
    }
    if (w->conv1d)
        return zn_product(run, w->in, w->out, run->N, zn_transposed(X), dY, grad);
    return zn_product(run, w->out, w->in, run->N, zn_transposed(dY), X, grad);
}

zinc_status zn_bias(const zn_run *run, int param, int64_t n_groups, float *x, int64_t N, int64_t C)
{
    const float *bias;
    if (param < 0)
        return ZINC_OK;
    if (n_groups > 0) {
        ZN_TRY(widen(run, param, 0, C, n_groups, run->acts->vec[0]));
        bias = run->acts->vec[0];
    } else {
        ZN_TRY(zn_vector_f32(run, param, C, 0, &bias));
    }
    return run->k->add_bias(run->s, x, bias, N, C);
}

zinc_status zn_bias_backward(const zn_run *run, int param, int64_t n_groups, const float *dy,
                             int64_t N, int64_t C)
{
    float *grad = param < 0 ? NULL : run->hooks->grad(run->hooks->ctx, param);
    if (!grad)
        return ZINC_OK;
    if (n_groups == 0)
        return run->k->bias_grad(run->s, grad, dy, N, C);
    ZN_TRY(run->k->zero(run->s, run->acts->vec[0], C * (int64_t)sizeof(float)));
    ZN_TRY(run->k->bias_grad(run->s, run->acts->vec[0], dy, N, C));
    return add_grouped(run, grad, run->acts->vec[0], C, n_groups);
}
