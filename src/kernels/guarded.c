/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a guarded device (device.h): each kernel opens the device's memory and closes it
 * again, so that only kernels and copies can read it. Tests only; slow. */
#ifndef NDEBUG
#include "kernels/kernels_internal.h"

static const zn_kernels *unguarded(void)
{
    const zn_kernels *kernels = zn_kernels_for(zn_sys_isa());
    return kernels ? kernels : &zn_kernels_ref;
}

static zinc_status gemm(zn_stream *s, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                        float alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                        float beta, float *C, int64_t ldc)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status =
        unguarded()->gemm(s, trans_a, trans_b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status gemm_bf16(zn_stream *s, int64_t M, int64_t N, int64_t K, const zn_operand *A,
                             const zn_operand *B, const zn_result *C, float *scratch)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->gemm_bf16(s, M, N, K, A, B, C, scratch);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status fill(zn_stream *s, float *x, float value, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->fill(s, x, value, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status zero(zn_stream *s, void *x, int64_t n_bytes)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->zero(s, x, n_bytes);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status axpy(zn_stream *s, float *y, const float *x, float a, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->axpy(s, y, x, a, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status add(zn_stream *s, float *out, const float *a, const float *b, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->add(s, out, a, b, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status scale(zn_stream *s, float *x, float a, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->scale(s, x, a, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status convert(zn_stream *s, void *dst, zn_dtype dst_dtype, const void *src,
                           zn_dtype src_dtype, float scale, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->convert(s, dst, dst_dtype, src, src_dtype, scale, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status add_bias(zn_stream *s, float *x, const float *bias, int64_t N, int64_t C)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->add_bias(s, x, bias, N, C);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status bias_grad(zn_stream *s, float *dbias, const float *dy, int64_t N, int64_t C)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->bias_grad(s, dbias, dy, N, C);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status layernorm(zn_stream *s, float *out, float *mean, float *rstd, const float *x,
                             const float *w, const float *b, int64_t N, int64_t C, float eps)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->layernorm(s, out, mean, rstd, x, w, b, N, C, eps);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status layernorm_backward(zn_stream *s, float *dx, bool accumulate_dx, float *dw,
                                      float *db, const float *dy, const float *x, const float *w,
                                      const float *mean, const float *rstd, int64_t N, int64_t C,
                                      float *scratch)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->layernorm_backward(s, dx, accumulate_dx, dw, db, dy, x,
                                                               w, mean, rstd, N, C, scratch);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status rmsnorm(zn_stream *s, float *out, int64_t ldo, float *rstd, const float *x,
                           int64_t ldx, const float *w, float w_offset, int64_t N, int64_t C,
                           float eps)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status =
        unguarded()->rmsnorm(s, out, ldo, rstd, x, ldx, w, w_offset, N, C, eps);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status rmsnorm_backward(zn_stream *s, float *dx, int64_t lddx, bool accumulate_dx,
                                    float *dw, const float *dy, int64_t lddy, const float *x,
                                    int64_t ldx, const float *w, float w_offset, const float *rstd,
                                    int64_t N, int64_t C, float *scratch)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->rmsnorm_backward(
        s, dx, lddx, accumulate_dx, dw, dy, lddy, x, ldx, w, w_offset, rstd, N, C, scratch);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status rope(zn_stream *s, float *x, int64_t stride, int64_t N, int64_t T, int64_t H,
                        int64_t D, int64_t rotary, const float *cos, const float *sin, float sign)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->rope(s, x, stride, N, T, H, D, rotary, cos, sin, sign);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status act(zn_stream *s, zn_act kind, float *out, const float *x, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->act(s, kind, out, x, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status act_backward(zn_stream *s, zn_act kind, float *dx, const float *dy,
                                const float *x, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->act_backward(s, kind, dx, dy, x, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status glu(zn_stream *s, zn_act kind, float *out, const float *gate, const float *up,
                       int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->glu(s, kind, out, gate, up, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status glu_backward(zn_stream *s, zn_act kind, float *dgate, float *dup,
                                const float *dy, const float *gate, const float *up, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->glu_backward(s, kind, dgate, dup, dy, gate, up, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status attention(zn_stream *s, const zn_attention *a, float *out, float *lse,
                             float *scratch)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->attention(s, a, out, lse, scratch);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status attention_backward(zn_stream *s, const zn_attention *a, const float *dout,
                                      const float *out, const float *lse, float *dq, float *dk,
                                      float *dv, float *scratch)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status =
        unguarded()->attention_backward(s, a, dout, out, lse, dq, dk, dv, scratch);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status attention_tail(zn_stream *s, const zn_attention *a, int64_t n_queries,
                                  float *out, float *scratch)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->attention_tail(s, a, n_queries, out, scratch);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status embed(zn_stream *s, float *out, const void *table, zn_dtype dtype,
                         const int32_t *ids, int64_t N, int64_t C, float scale, bool add)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->embed(s, out, table, dtype, ids, N, C, scale, add);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status embed_backward(zn_stream *s, float *dtable, const float *dy, const int32_t *ids,
                                  int64_t N, int64_t C, int64_t V, float scale)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->embed_backward(s, dtable, dy, ids, N, C, V, scale);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status cross_entropy(zn_stream *s, float *logits, int64_t ld, const int32_t *targets,
                                 float *row_loss, int64_t N, int64_t V, float softcap,
                                 float grad_scale, bool backward)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->cross_entropy(s, logits, ld, targets, row_loss, N, V,
                                                          softcap, grad_scale, backward);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status softcap(zn_stream *s, float *x, float cap, int64_t n)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->softcap(s, x, cap, n);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status dropout(zn_stream *s, float *out, const float *x, int64_t N, int64_t T,
                           int64_t C, const int64_t *sample, uint64_t seed, float p)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->dropout(s, out, x, N, T, C, sample, seed, p);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status sum_squares(zn_stream *s, const void *x, zn_dtype dtype, int64_t n, double *out)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->sum_squares(s, x, dtype, n, out);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status adam(zn_stream *s, const zn_update_args *args)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->adam(s, args);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status sgd(zn_stream *s, const zn_update_args *args)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->sgd(s, args);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status adagrad(zn_stream *s, const zn_update_args *args)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->adagrad(s, args);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status lion(zn_stream *s, const zn_update_args *args)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->lion(s, args);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status lamb_sums(zn_stream *s, const zn_update_args *args, double *sums)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->lamb_sums(s, args, sums);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

static zinc_status lamb_update(zn_stream *s, const zn_update_args *args)
{
    zn_device_memory_open(zn_stream_device(s));
    const zinc_status status = unguarded()->lamb_update(s, args);
    zn_device_memory_close(zn_stream_device(s));
    return status;
}

const zn_kernels zn_kernels_guarded = {
    .isa = "guarded",
    .gemm = gemm,
    .gemm_bf16 = gemm_bf16,
    .fill = fill,
    .zero = zero,
    .axpy = axpy,
    .add = add,
    .scale = scale,
    .convert = convert,
    .add_bias = add_bias,
    .bias_grad = bias_grad,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rope = rope,
    .act = act,
    .act_backward = act_backward,
    .glu = glu,
    .glu_backward = glu_backward,
    .attention = attention,
    .attention_backward = attention_backward,
    .attention_tail = attention_tail,
    .embed = embed,
    .embed_backward = embed_backward,
    .cross_entropy = cross_entropy,
    .softcap = softcap,
    .dropout = dropout,
    .sum_squares = sum_squares,
    .adam = adam,
    .sgd = sgd,
    .adagrad = adagrad,
    .lion = lion,
    .lamb_sums = lamb_sums,
    .lamb_update = lamb_update,
};
#endif
