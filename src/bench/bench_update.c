/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps over parameters that no cache holds. Rates count what a step must read and write:
 * gradient, masters and states, and the 16-bit copy where there is one. The limit is the same
 * traffic without the arithmetic. */
#include <stdio.h>

#include "bench/bench_internal.h"

typedef struct update {
    const char *name;
    zinc_status (*const *kernel)(zn_stream *, const zn_update_args *);
    double bytes; /* an element */
    bool scaled;  /* unscale and clip: the factor is not 1 */
    bool copy;    /* the rounded master goes out too */
    zn_bench_limit_kind limit;
} update;

static zinc_status bench_update(zn_bench *b, const update *u, zn_update_args *args, float *out)
{
    char name[96];
    const float scale = u->scaled ? 0.37f : 1.0f;
    snprintf(name, sizeof name, "optimizer.%s", u->name);
    if (!zn_bench_wants(b, name))
        return ZINC_OK;
    args->grad_scale = &scale;
    args->out16 = u->copy ? out : NULL;
    zn_bench_clock clock = zn_bench_start(b);
    while (zn_bench_again(&clock))
        ZN_TRY((*u->kernel)(b->s, args));
    return zn_bench_rate(b, name, "GB/s", u->bytes * (double)args->n, clock.best, u->limit);
}

zinc_status zn_bench_optimizer(zn_bench *b)
{
    const int64_t n = ZN_BENCH_STREAM_ELEMS;
    float *master, *grad, *m, *v, *out;
    double sum = 0;
    const update updates[] = {
        {"adamw", &b->k->adam, 28, false, false, ZN_BENCH_STEP_4},
        {"adamw_unscale_clip_bf16_out", &b->k->adam, 30, true, true, ZN_BENCH_STEP_4},
        {"sgd_momentum", &b->k->sgd, 20, false, false, ZN_BENCH_STEP_3},
        {"lion", &b->k->lion, 20, false, false, ZN_BENCH_STEP_3},
    };
    ZN_TRY(zn_bench_numbers(b, n, 1, &master));
    ZN_TRY(zn_bench_numbers(b, n, 1, &grad));
    ZN_TRY(zn_bench_numbers(b, n, 0, &m));
    ZN_TRY(zn_bench_numbers(b, n, 0, &v));
    ZN_TRY(zn_bench_numbers(b, n / 2, 0, &out));
    zn_update_args args = {.n = n,
                           .master = master,
                           .state = {m, v},
                           .grad = grad,
                           .grad_dtype = ZN_DTYPE_F32,
                           .out_dtype = ZN_DTYPE_BF16,
                           .lr = 1e-4f,
                           .weight_decay = 0.01f,
                           .eps = 1e-8f,
                           .beta1 = 0.9f,
                           .beta2 = 0.999f,
                           .bias1 = 1,
                           .bias2 = 1,
                           .decoupled = true,
                           .momentum = 0.9f};
    for (size_t i = 0; i < sizeof updates / sizeof updates[0]; i++)
        ZN_TRY(bench_update(b, &updates[i], &args, out));
    if (!zn_bench_wants(b, "optimizer.gradient_norm"))
        return ZINC_OK;
    zn_bench_clock clock = zn_bench_start(b);
    while (zn_bench_again(&clock))
        ZN_TRY(b->k->sum_squares(b->s, grad, ZN_DTYPE_F32, n, &sum));
    return zn_bench_rate(b, "optimizer.gradient_norm", "GB/s", 4.0 * (double)n, clock.best,
                         ZN_BENCH_READ);
}
