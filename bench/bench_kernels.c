/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels.c — speed of the kernels at the shapes of a GPT-2 step, one JSON line each.
 *
 *   bench_kernels [threads] [ref|avx2|avx512]
 *
 * best and median of 9 runs; "rate" is GFLOP/s or GB/s as "unit" says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "kernels/kernels.h"

#define N_RUNS 9

typedef struct bench {
    zn_device *dev;
    zn_stream *s;
    const zn_kernels *k;
    int n_threads;
} bench;

static void check(zinc_status status)
{
    if (status == ZINC_OK)
        return;
    fprintf(stderr, "%s\n", zinc_last_error());
    exit(1);
}

static float *numbers(const bench *b, int64_t n, float size)
{
    float *x = NULL;
    check(zn_device_alloc(b->dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, (size_t)n * sizeof *x,
                          "bench numbers", &x));
    for (int64_t i = 0; i < n; i++)
        x[i] = size * (float)(zn_hash_unit(zn_hash_mix((uint64_t)i)) - 0.5);
    return x;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const bench *b, const char *name, const char *shape, double *seconds,
                   double work, const char *unit)
{
    qsort(seconds, N_RUNS, sizeof *seconds, by_size);
    printf("{\"name\": \"%s\", \"shape\": \"%s\", \"isa\": \"%s\", \"threads\": %d, \"best_us\": "
           "%.1f, \"median_us\": %.1f, \"rate\": %.1f, \"unit\": \"%s\"}\n",
           name, shape, b->k->isa, b->n_threads, seconds[0] * 1e6, seconds[N_RUNS / 2] * 1e6,
           work / seconds[0] * 1e-9, unit);
}

#define MEASURE(name, shape, work, unit, call)                                                     \
    do {                                                                                           \
        double seconds[N_RUNS];                                                                    \
        check(call);                                                                               \
        for (int run = 0; run < N_RUNS; run++) {                                                   \
            const double start = zn_sys_now();                                                     \
            check(call);                                                                           \
            seconds[run] = zn_sys_now() - start;                                                   \
        }                                                                                          \
        report(b, name, shape, seconds, (double)(work), unit);                                     \
    } while (0)

static void bench_gemm(const bench *b)
{
    const int64_t M = 1024, N = 2304, K = 768;
    float *x = numbers(b, M * K, 1), *w = numbers(b, N * K, 1), *y = numbers(b, M * N, 1);
    MEASURE("gemm", "1024x2304x768", 2 * M * N * K, "GFLOP/s",
            b->k->gemm(b->s, false, true, M, N, K, 1, x, K, w, K, 0, y, N));
    zn_device_free(b->dev, x);
    zn_device_free(b->dev, w);
    zn_device_free(b->dev, y);
}

static void bench_attention(const bench *b, int64_t T, int64_t H, int64_t K, float dropout)
{
    const int64_t B = 4, D = 64, ld = (H + 2 * K) * D;
    char shape[96];
    snprintf(shape, sizeof shape, "B4 T%lld H%lld K%lld D64 dropout %g", (long long)T, (long long)H,
             (long long)K, (double)dropout);
    float *qkv = numbers(b, B * T * ld, 4), *dqkv = numbers(b, B * T * ld, 1);
    float *out = numbers(b, B * T * H * D, 1), *dout = numbers(b, B * T * H * D, 1);
    float *lse = numbers(b, B * T * H, 1);
    const zn_attention a = {.B = B,
                            .T = T,
                            .H = H,
                            .K = K,
                            .D = D,
                            .q = qkv,
                            .k = qkv + H * D,
                            .v = qkv + (H + K) * D,
                            .q_stride = ld,
                            .k_stride = ld,
                            .v_stride = ld,
                            .scale = 0.125f,
                            .dropout = dropout};
    float *scratch = numbers(b, zn_attention_scratch(&a, b->n_threads), 0);
    const double half = 0.5 * (double)(B * H * T) * (double)(T + 1); /* causal pairs */
    MEASURE("attention", shape, half * 4 * (double)D, "GFLOP/s",
            b->k->attention(b->s, &a, out, lse, scratch));
    MEASURE("attention_backward", shape, half * 10 * (double)D, "GFLOP/s",
            b->k->attention_backward(b->s, &a, dout, out, lse, dqkv, dqkv + H * D,
                                     dqkv + (H + K) * D, scratch));
    float *all[] = {qkv, dqkv, out, dout, lse, scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        zn_device_free(b->dev, all[i]);
}

static void bench_rows(const bench *b)
{
    const int64_t N = 1024, C = 768, F = 3072, V = 50257, rows = 64;
    float *x = numbers(b, N * F, 4), *y = numbers(b, N * F, 4), *z = numbers(b, N * F, 4);
    float *w = numbers(b, F, 1), *dw = numbers(b, F, 1), *db = numbers(b, F, 1);
    float *mean = numbers(b, N, 1), *rstd = numbers(b, N, 1);
    float *scratch = numbers(b, zn_norm_scratch(F), 0), *logits = numbers(b, rows * V, 8);
    int32_t targets[64];
    for (int i = 0; i < 64; i++)
        targets[i] = i * 700;
    const zn_kernels *k = b->k;
    MEASURE("layernorm", "1024x768", N * C * 8, "GB/s",
            k->layernorm(b->s, y, mean, rstd, x, w, w, N, C, 1e-5f));
    MEASURE("layernorm_backward", "1024x768", N * C * 16, "GB/s",
            k->layernorm_backward(b->s, z, true, dw, db, y, x, w, mean, rstd, N, C, scratch));
    MEASURE("rmsnorm", "1024x768", N * C * 8, "GB/s",
            k->rmsnorm(b->s, y, C, rstd, x, C, w, 0, N, C, 1e-5f));
    MEASURE("add_bias", "1024x3072", N * F * 8, "GB/s", k->add_bias(b->s, y, w, N, F));
    MEASURE("bias_grad", "1024x3072", N * F * 4, "GB/s", k->bias_grad(b->s, db, y, N, F));
    MEASURE("gelu_tanh", "1024x3072", N * F * 8, "GB/s",
            k->act(b->s, ZN_ACT_GELU_TANH, y, x, N * F));
    MEASURE("gelu_tanh_backward", "1024x3072", N * F * 12, "GB/s",
            k->act_backward(b->s, ZN_ACT_GELU_TANH, y, y, x, N * F));
    MEASURE("silu glu", "1024x3072", N * F * 12, "GB/s", k->glu(b->s, ZN_ACT_SILU, y, x, z, N * F));
    MEASURE("silu glu_backward", "1024x3072", N * F * 20, "GB/s",
            k->glu_backward(b->s, ZN_ACT_SILU, x, z, y, x, z, N * F));
    MEASURE("cross_entropy", "64x50257", rows * V * 8, "GB/s",
            k->cross_entropy(b->s, logits, V, targets, mean, rows, V, 0, 1, true));
    MEASURE("dropout", "1024x3072", N * F * 8, "GB/s",
            k->dropout(b->s, y, y, N, 256, F, NULL, 1, 0.1f));
    float *all[] = {x, y, z, w, dw, db, mean, rstd, scratch, logits};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        zn_device_free(b->dev, all[i]);
}

static void bench_flat(const bench *b)
{
    const int64_t n = 32 << 20;
    float *p = numbers(b, n, 1), *g = numbers(b, n, 1), *m = numbers(b, n, 0),
          *v = numbers(b, n, 0), *h = numbers(b, n / 2, 0);
    double sum = 0;
    const float scale = 0.5f;
    zn_update_args u = {.n = n,
                        .master = p,
                        .state = {m, v},
                        .grad = g,
                        .grad_dtype = ZN_DTYPE_F32,
                        .out_dtype = ZN_DTYPE_BF16,
                        .grad_scale = &scale,
                        .lr = 1e-4f,
                        .weight_decay = 0.01f,
                        .eps = 1e-8f,
                        .beta1 = 0.9f,
                        .beta2 = 0.999f,
                        .bias1 = 1,
                        .bias2 = 1,
                        .decoupled = true};
    const zn_kernels *k = b->k;
    MEASURE("memory: p *= a in place", "32Mi", n * 8, "GB/s", k->scale(b->s, p, 1.0f, n));
    MEASURE("adam", "32Mi f32", n * 28, "GB/s", k->adam(b->s, &u));
    u.out16 = h;
    MEASURE("adam", "32Mi f32 + bf16 copy", n * 30, "GB/s", k->adam(b->s, &u));
    MEASURE("sum_squares", "32Mi f32", n * 4, "GB/s",
            k->sum_squares(b->s, g, ZN_DTYPE_F32, n, &sum));
    MEASURE("zero", "32Mi f32", n * 4, "GB/s", k->zero(b->s, g, n * 4));
    MEASURE("axpy", "32Mi f32", n * 12, "GB/s", k->axpy(b->s, g, p, 0.5f, n));
    MEASURE("convert f32 to bf16", "32Mi", n * 6, "GB/s",
            k->convert(b->s, h, ZN_DTYPE_BF16, p, ZN_DTYPE_F32, 1, n));
    MEASURE("convert bf16 to f32", "32Mi", n * 6, "GB/s",
            k->convert(b->s, p, ZN_DTYPE_F32, h, ZN_DTYPE_BF16, 1, n));
    MEASURE("convert bf16 to f32", "256Ki", (256 << 10) * 6, "GB/s",
            k->convert(b->s, p, ZN_DTYPE_F32, h, ZN_DTYPE_BF16, 1, 256 << 10));
    float *all[] = {p, g, m, v, h};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        zn_device_free(b->dev, all[i]);
}

int main(int argc, char **argv)
{
    bench self = {.n_threads = argc > 1 ? atoi(argv[1]) : 1}, *b = &self;
    zn_isa isa = zn_sys_isa();
    for (int i = 0; argc > 2 && i < (int)zn_sys_isa(); i++)
        if (strcmp(argv[2], zn_isa_name((zn_isa)i)) == 0)
            isa = (zn_isa)i;
    const zn_device_params params = {.n_threads = self.n_threads};
    check(zn_device_open("cpu", &params, &self.dev));
    self.s = zn_device_compute(self.dev);
    self.k = zn_kernels_for(isa);
    bench_gemm(b);
    bench_attention(b, 256, 12, 12, 0);
    bench_attention(b, 256, 12, 12, 0.1f);
    bench_attention(b, 256, 9, 3, 0);
    bench_attention(b, 1024, 12, 12, 0);
    bench_rows(b);
    bench_flat(b);
    zn_device_close(self.dev);
    return 0;
}
