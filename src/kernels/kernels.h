/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h — the math of a device, as one table.
 *
 * The plain reference (ref/) and every instruction set (simd/, compiled as avx2/ and avx512/) have
 * a table each with no empty slot; the CPU decides which is used. Every kernel takes a stream and
 * returns only its launch status; nothing is allocated inside (scratch is an argument). On the CPU
 * a kernel uses up to zn_stream_n_threads(stream) threads; results do not depend on how an
 * element-wise range is cut, nor on the thread count (reductions are cut into fixed blocks).
 *
 * Letters: B batch, T sequence, C channels (hidden), H heads, K key/value heads, D head size,
 * V vocabulary, N rows (= B*T). All tensors are row-major fp32 unless a dtype is named; "(+=)"
 * accumulates into what is there. Sizes are elements.
 * Reading order: kernels.h, ref/, simd/vec.h, simd/. Layer: kernels (may use base, device, tensor).
 */
#ifndef ZN_KERNELS_KERNELS_H
#define ZN_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/sys.h"
#include "device/device.h"

typedef enum zn_act {
    ZN_ACT_GELU_TANH, /* gelu_new, gelu_pytorch_tanh, gelu_fast */
    ZN_ACT_GELU_ERF,  /* gelu */
    ZN_ACT_SILU,
    ZN_ACT_RELU,
} zn_act;

/* One causal attention call. q [B,T,H,D], k and v [B,T,K,D], with a row stride (elements between
 * consecutive t) each, so that they may lie inside a fused qkv buffer; b steps by T rows. Query
 * head h reads key head h / (H/K). out and its gradient are packed [B,T,H,D]. */
typedef struct zn_attention {
    int64_t B, T, H, K, D;
    const float *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
    float scale;             /* usually 1/sqrt(D) */
    int64_t window;          /* query t sees keys (t - window, t]; 0: all of [0, t] */
    float softcap;           /* scores become cap * tanh(scores / cap); 0: off */
    const uint8_t *key_mask; /* [B,T]: keys with 0 are not seen by anyone; NULL: all are */
    const int32_t *segment;  /* [B,T]: only keys of the query's own segment are seen; NULL: all */
    float dropout;           /* probability; 0: off */
    uint64_t dropout_seed;   /* already folded with step, layer and site */
    const int64_t *sample;   /* [B] index of each row in the global batch (dropout); may be NULL */
} zn_attention;

/* One optimizer update over one contiguous range. Fields a kernel does not name are ignored.
 * The gradient used is g = grad[i] * *grad_scale. */
typedef struct zn_update_args {
    int64_t n;
    float *master;    /* [n] fp32, updated in place; NULL: split, */
    uint16_t *low;    /* then [n] the low halves, the high ones being out16 (zn_f32_join) */
    float *state[2];  /* [n] each */
    const void *grad; /* [n] of grad_dtype */
    zn_dtype grad_dtype;
    void *out16; /* [n] of out_dtype (F32 too, where masters are offloaded): the rounded master;
                    NULL where the parameters are the masters */
    zn_dtype out_dtype;
    const float *grad_scale; /* device scalar: unscale and clip in one factor */
    float lr, weight_decay, eps;
    float beta1, beta2;
    float bias1, bias2;        /* 1 - beta^t, or 1 without bias correction */
    bool decoupled;            /* adam: p -= lr*wd*p; else the decay is added to the gradient */
    float momentum, dampening; /* sgd */
    bool nesterov, first;      /* sgd; first: the momentum buffer becomes g */
    bool eps_inside_sqrt;      /* lamb */
    float trust_ratio;         /* lamb_update */
} zn_update_args;

/* A matrix that gemm_bf16 reads: X[r, c] is p[r * ld + c], or p[c * ld + r] where trans. */
typedef struct zn_operand {
    const void *p;
    zn_dtype dtype; /* F32 or BF16 */
    bool trans;
    int64_t ld;
} zn_operand;

/* Where gemm_bf16 puts C: C[m, n] is p[m * ld + n]. */
typedef struct zn_result {
    void *p;
    zn_dtype dtype; /* F32; or BF16, each sum rounded once as convert does, where not add */
    bool add;       /* to what is there */
    int64_t ld;
} zn_result;

/* The largest K whose result may be BF16: its sums are complete before any is put down. */
#define ZN_GEMM_BF16_WHOLE_K 1024

typedef struct zn_kernels {
    const char *isa; /* the zn_isa_name of what most slots are */

    /** C[M,N] = alpha * op(A)[M,K] * op(B)[K,N] + beta * C. lda/ldb/ldc: row strides. */
    zinc_status (*gemm)(zn_stream *s, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                        float alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                        float beta, float *C, int64_t ldc);
    /** C[M,N] = A[M,K] * B[K,N] (or added) with operands rounded to bf16 (ties to even) and sums in
     *  fp32.
     *  scratch: zn_gemm_bf16_scratch floats, 64-byte aligned. Faster than gemm only where
     *  zn_kernels_bf16_pays. */
    zinc_status (*gemm_bf16)(zn_stream *s, int64_t M, int64_t N, int64_t K, const zn_operand *A,
                             const zn_operand *B, const zn_result *C, float *scratch);

    /* ---- element-wise ---- */
    zinc_status (*fill)(zn_stream *s, float *x, float value, int64_t n);
    /** Zero n_bytes (non-temporal where large). */
    zinc_status (*zero)(zn_stream *s, void *x, int64_t n_bytes);
    /** y += a * x. */
    zinc_status (*axpy)(zn_stream *s, float *y, const float *x, float a, int64_t n);
    /** out = a + b; out may alias either. */
    zinc_status (*add)(zn_stream *s, float *out, const float *a, const float *b, int64_t n);
    zinc_status (*scale)(zn_stream *s, float *x, float a, int64_t n);
    /** dst = scale * src between F32, BF16 and F16, one rounding (base/dtype.h). dst may be src,
     *  or start where src starts when it is narrower. scale 1 copies exactly. */
    zinc_status (*convert)(zn_stream *s, void *dst, zn_dtype dst_dtype, const void *src,
                           zn_dtype src_dtype, float scale, int64_t n);

    /* ---- rows ---- */
    /** x[N,C] += bias[C]. */
    zinc_status (*add_bias)(zn_stream *s, float *x, const float *bias, int64_t N, int64_t C);
    /** dbias[C] (+=) sum over rows of dy[N,C]. */
    zinc_status (*bias_grad)(zn_stream *s, float *dbias, const float *dy, int64_t N, int64_t C);

    /** out = (x - mean) * rstd * w + b per row; mean, rstd [N]. b may be NULL. */
    zinc_status (*layernorm)(zn_stream *s, float *out, float *mean, float *rstd, const float *x,
                             const float *w, const float *b, int64_t N, int64_t C, float eps);
    /** dx [N,C] (+= if accumulate_dx), dw (+=), db (+=, may be NULL with b). scratch: at least
     *  zn_norm_scratch(C) floats. */
    zinc_status (*layernorm_backward)(zn_stream *s, float *dx, bool accumulate_dx, float *dw,
                                      float *db, const float *dy, const float *x, const float *w,
                                      const float *mean, const float *rstd, int64_t N, int64_t C,
                                      float *scratch);
    /** out = x * rstd * (w_offset + w); rstd [N] = 1/sqrt(mean(x^2) + eps). w_offset is 1 for
     *  gemma2, else 0. Rows of x and out are ldx and ldo apart (q/k norms act inside a buffer). */
    zinc_status (*rmsnorm)(zn_stream *s, float *out, int64_t ldo, float *rstd, const float *x,
                           int64_t ldx, const float *w, float w_offset, int64_t N, int64_t C,
                           float eps);
    /** dx [N,C] rows lddx apart (+= if accumulate_dx; may alias dy when not), dw (+=; NULL: not
     *  wanted). scratch as layernorm_backward. */
    zinc_status (*rmsnorm_backward)(zn_stream *s, float *dx, int64_t lddx, bool accumulate_dx,
                                    float *dw, const float *dy, int64_t lddy, const float *x,
                                    int64_t ldx, const float *w, float w_offset, const float *rstd,
                                    int64_t N, int64_t C, float *scratch);

    /** Rotate in place the first `rotary` of D channels of every head, halves paired
     *  (i, i + rotary/2), by the angles in cos/sin [T, rotary/2]. Row n uses position n % T; rows
     *  are `stride` apart, heads D apart. sign -1 rotates back (backward). */
    zinc_status (*rope)(zn_stream *s, float *x, int64_t stride, int64_t N, int64_t T, int64_t H,
                        int64_t D, int64_t rotary, const float *cos, const float *sin, float sign);

    /** out = act(x); backward: dx = dy * act'(x) (dx may alias dy). */
    zinc_status (*act)(zn_stream *s, zn_act kind, float *out, const float *x, int64_t n);
    zinc_status (*act_backward)(zn_stream *s, zn_act kind, float *dx, const float *dy,
                                const float *x, int64_t n);
    /** out = act(gate) * up. */
    zinc_status (*glu)(zn_stream *s, zn_act kind, float *out, const float *gate, const float *up,
                       int64_t n);
    /** dgate = dy * up * act'(gate), dup = dy * act(gate). dgate and dup may alias gate and up. */
    zinc_status (*glu_backward)(zn_stream *s, zn_act kind, float *dgate, float *dup,
                                const float *dy, const float *gate, const float *up, int64_t n);

    /* ---- attention: never a T x T matrix; blocks of keys against blocks of queries ---- */
    /** out [B,T,H,D]; lse [B,H,T] log-sum-exp of the scores. A query that sees no key gives 0 and
     *  lse = -inf. scratch: zn_attention_scratch(a, n_threads) floats. */
    zinc_status (*attention)(zn_stream *s, const zn_attention *a, float *out, float *lse,
                             float *scratch);
    /** dq, dk, dv with the strides of q, k, v (written, not accumulated); out and lse are
     *  forward's. */
    zinc_status (*attention_backward)(zn_stream *s, const zn_attention *a, const float *dout,
                                      const float *out, const float *lse, float *dq, float *dk,
                                      float *dv, float *scratch);

    /** Forward of the last n_queries queries of each row alone, for generation: q has their rows
     *  only, [B,n_queries,H,D] with its stride and b stepping by n_queries; k and v are whole. out
     *  [B,n_queries,H,D]. No dropout. scratch: T floats. */
    zinc_status (*attention_tail)(zn_stream *s, const zn_attention *a, int64_t n_queries,
                                  float *out, float *scratch);

    /* ---- embedding and loss ---- */
    /** out[n] = scale * table[ids[n]] (table [V,C] of dtype); add: out[n] += instead. */
    zinc_status (*embed)(zn_stream *s, float *out, const void *table, zn_dtype dtype,
                         const int32_t *ids, int64_t N, int64_t C, float scale, bool add);
    /** dtable[ids[n]] += scale * dy[n]; rows of one id are added in order of n. */
    zinc_status (*embed_backward)(zn_stream *s, float *dtable, const float *dy, const int32_t *ids,
                                  int64_t N, int64_t C, int64_t V, float scale);
    /** Softmax cross-entropy of a tile of rows. logits [N,V] (row stride ld) become their own
     *  gradient times grad_scale where `backward`; rows with target < 0 give loss 0 and gradient
     *  0. row_loss [N]. softcap as in zn_attention (its derivative included). */
    zinc_status (*cross_entropy)(zn_stream *s, float *logits, int64_t ld, const int32_t *targets,
                                 float *row_loss, int64_t N, int64_t V, float softcap,
                                 float grad_scale, bool backward);
    /** x = cap * tanh(x / cap). */
    zinc_status (*softcap)(zn_stream *s, float *x, float cap, int64_t n);

    /* ---- dropout: keep element i of row n if the counter-based hash of
     * (seed, sample[n / T], n % T, i) says so; kept ones are scaled by 1/(1-p). Backward is the
     * same call on the gradient. out may alias x. ---- */
    zinc_status (*dropout)(zn_stream *s, float *out, const float *x, int64_t N, int64_t T,
                           int64_t C, const int64_t *sample, uint64_t seed, float p);

    /* ---- optimizer ---- */
    /** *out = sum of x[i]^2 in fp64: partials over blocks of ZN_SUMSQ_BLOCK elements counted from
     *  x, added in order. */
    zinc_status (*sum_squares)(zn_stream *s, const void *x, zn_dtype dtype, int64_t n, double *out);
    /** Adam and AdamW; state = {exp_avg, exp_avg_sq}. m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
     *  p -= lr * (m/bias1 / (sqrt(v/bias2) + eps) + wd * p). */
    zinc_status (*adam)(zn_stream *s, const zn_update_args *args);
    /** torch.optim.SGD; state = {momentum_buffer} where momentum > 0. */
    zinc_status (*sgd)(zn_stream *s, const zn_update_args *args);
    /** state = {sum}: v += g^2; p -= lr * g / (sqrt(v) + eps); the decay is added to g. */
    zinc_status (*adagrad)(zn_stream *s, const zn_update_args *args);
    /** state = {exp_avg}: c = b1 m + (1-b1) g; p = p (1 - lr wd) - lr sign(c), sign(0) = 0;
     *  m = b2 m + (1-b2) g. */
    zinc_status (*lion)(zn_stream *s, const zn_update_args *args);
    /** Lamb pass 1: m, v as adam without bias correction; u = m/(sqrt(v)+eps) + wd p; adds the
     *  fp64 sums of p^2 and u^2 (blocks as sum_squares) to sums[0] and sums[1]. */
    zinc_status (*lamb_sums)(zn_stream *s, const zn_update_args *args, double *sums);
    /** Lamb pass 2: p -= lr * trust_ratio * u, with u computed again from m, v, p. */
    zinc_status (*lamb_update)(zn_stream *s, const zn_update_args *args);
} zn_kernels;

#define ZN_SUMSQ_BLOCK 4096

/** The table of this device for its CPU (zn_sys_isa). Static storage. Not collective. */
const zn_kernels *zn_kernels_get(const zn_device *dev);

/** The table of one instruction set, whatever the CPU has ("ref" is always there); NULL if this
 *  build lacks it. For tests and benchmarks. */
const zn_kernels *zn_kernels_for(zn_isa isa);

/** Whether gemm_bf16 of this table is faster than its gemm on this CPU: with tiles always, with dot
 *  products where a measurement of half a millisecond says so (once a process). */
bool zn_kernels_bf16_pays(const zn_kernels *kernels);

/** Floats of scratch that gemm_bf16 needs where none of M, N and K is more than `largest`. */
int64_t zn_gemm_bf16_scratch(int64_t largest, int n_threads);
/** Floats of scratch that norm backward kernels need. */
int64_t zn_norm_scratch(int64_t C);
/** Floats of scratch that attention (forward and backward) needs. */
int64_t zn_attention_scratch(const zn_attention *a, int n_threads);

#endif
