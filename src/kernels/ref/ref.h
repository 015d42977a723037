/* SPDX-License-Identifier: Apache-2.0 */
/* ref.h — the plain reference of every slot of zn_kernels; kernels.h says what each computes.
 *
 * Every operation is one readable loop nest with sums in double: what the fast kernels are held
 * against, and what runs where no faster one exists. Never optimised. Layer: kernels. */
#ifndef ZN_KERNELS_REF_REF_H
#define ZN_KERNELS_REF_REF_H

#include "kernels/kernels_internal.h"

zinc_status zn_ref_gemm(zn_stream *s, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                        float alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                        float beta, float *C, int64_t ldc);
zinc_status zn_ref_gemm_bf16(zn_stream *s, int64_t M, int64_t N, int64_t K, const zn_operand *A,
                             const zn_operand *B, const zn_result *C, float *scratch);
zinc_status zn_ref_fill(zn_stream *s, float *x, float value, int64_t n);
zinc_status zn_ref_zero(zn_stream *s, void *x, int64_t n_bytes);
zinc_status zn_ref_axpy(zn_stream *s, float *y, const float *x, float a, int64_t n);
zinc_status zn_ref_add(zn_stream *s, float *out, const float *a, const float *b, int64_t n);
zinc_status zn_ref_scale(zn_stream *s, float *x, float a, int64_t n);
zinc_status zn_ref_convert(zn_stream *s, void *dst, zn_dtype dst_dtype, const void *src,
                           zn_dtype src_dtype, float scale, int64_t n);
zinc_status zn_ref_add_bias(zn_stream *s, float *x, const float *bias, int64_t N, int64_t C);
zinc_status zn_ref_bias_grad(zn_stream *s, float *dbias, const float *dy, int64_t N, int64_t C);
zinc_status zn_ref_layernorm(zn_stream *s, float *out, float *mean, float *rstd, const float *x,
                             const float *w, const float *b, int64_t N, int64_t C, float eps);
zinc_status zn_ref_layernorm_backward(zn_stream *s, float *dx, bool accumulate_dx, float *dw,
                                      float *db, const float *dy, const float *x, const float *w,
                                      const float *mean, const float *rstd, int64_t N, int64_t C,
                                      float *scratch);
zinc_status zn_ref_rmsnorm(zn_stream *s, float *out, int64_t ldo, float *rstd, const float *x,
                           int64_t ldx, const float *w, float w_offset, int64_t N, int64_t C,
                           float eps);
zinc_status zn_ref_rmsnorm_backward(zn_stream *s, float *dx, int64_t lddx, bool accumulate_dx,
                                    float *dw, const float *dy, int64_t lddy, const float *x,
                                    int64_t ldx, const float *w, float w_offset, const float *rstd,
                                    int64_t N, int64_t C, float *scratch);
zinc_status zn_ref_rope(zn_stream *s, float *x, int64_t stride, int64_t N, int64_t T, int64_t H,
                        int64_t D, int64_t rotary, const float *cos, const float *sin, float sign);
zinc_status zn_ref_act(zn_stream *s, zn_act kind, float *out, const float *x, int64_t n);
zinc_status zn_ref_act_backward(zn_stream *s, zn_act kind, float *dx, const float *dy,
                                const float *x, int64_t n);
zinc_status zn_ref_glu(zn_stream *s, zn_act kind, float *out, const float *gate, const float *up,
                       int64_t n);
zinc_status zn_ref_glu_backward(zn_stream *s, zn_act kind, float *dgate, float *dup,
                                const float *dy, const float *gate, const float *up, int64_t n);
zinc_status zn_ref_attention(zn_stream *s, const zn_attention *a, float *out, float *lse,
                             float *scratch);
zinc_status zn_ref_attention_tail(zn_stream *s, const zn_attention *a, int64_t n_queries,
                                  float *out, float *scratch);
zinc_status zn_ref_attention_backward(zn_stream *s, const zn_attention *a, const float *dout,
                                      const float *out, const float *lse, float *dq, float *dk,
                                      float *dv, float *scratch);
zinc_status zn_ref_embed(zn_stream *s, float *out, const void *table, zn_dtype dtype,
                         const int32_t *ids, int64_t N, int64_t C, float scale, bool add);
zinc_status zn_ref_embed_backward(zn_stream *s, float *dtable, const float *dy, const int32_t *ids,
                                  int64_t N, int64_t C, int64_t V, float scale);
zinc_status zn_ref_cross_entropy(zn_stream *s, float *logits, int64_t ld, const int32_t *targets,
                                 float *row_loss, int64_t N, int64_t V, float softcap,
                                 float grad_scale, bool backward);
zinc_status zn_ref_softcap(zn_stream *s, float *x, float cap, int64_t n);
zinc_status zn_ref_dropout(zn_stream *s, float *out, const float *x, int64_t N, int64_t T,
                           int64_t C, const int64_t *sample, uint64_t seed, float p);
zinc_status zn_ref_sum_squares(zn_stream *s, const void *x, zn_dtype dtype, int64_t n, double *out);
zinc_status zn_ref_adam(zn_stream *s, const zn_update_args *args);
zinc_status zn_ref_sgd(zn_stream *s, const zn_update_args *args);
zinc_status zn_ref_adagrad(zn_stream *s, const zn_update_args *args);
zinc_status zn_ref_lion(zn_stream *s, const zn_update_args *args);
zinc_status zn_ref_lamb_sums(zn_stream *s, const zn_update_args *args, double *sums);
zinc_status zn_ref_lamb_update(zn_stream *s, const zn_update_args *args);

/** act(x) and its derivative. */
double zn_ref_act_value(zn_act kind, double x);
double zn_ref_act_slope(zn_act kind, double x);

#endif
