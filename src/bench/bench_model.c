/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a training step at a model's own shapes: N = 1024 tokens as 4 rows of 256.
 *
 * Norms and the loss are compared with memory traffic, though their tensors may fit a cache: a
 * share above 1 says so. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench_internal.h"
#include "model/model.h"

#define ROWS 4
#define TOKENS 256
#define N (ROWS * TOKENS)
#define HEAD_ROWS 512 /* of a tile of logits */

typedef struct shape {
    const char *name;
    int64_t C, H, K, D, F, V;
} shape;

/* y[n_rows,out] = x[n_rows,in] W */
typedef struct matrix {
    const char *name;
    int64_t n_rows, in, out;

} matrix;

/* GPT-2 124M and SmolLM2-135M, from their config.json. */
static const shape known[] = {
    {"gpt2", .C = 768, .H = 12, .K = 12, .D = 64, .F = 3072, .V = 50257},
    {"smollm2", .C = 576, .H = 9, .K = 3, .D = 64, .F = 1536, .V = 49152},
};
#define N_KNOWN ((int)(sizeof known / sizeof known[0]))

static zinc_status with_folder(zn_bench *b, zinc_status (*run)(zn_bench *, const shape *))
{
    zn_model_spec spec = {0};
    const char *slash = strrchr(b->p->model, '/');
    zinc_status status = zn_model_spec_load(b->p->model, &spec);
    if (status == ZINC_OK) {
        const shape s = {.name = slash && slash[1] ? slash + 1 : b->p->model,
                         .C = spec.C,
                         .H = spec.H,
                         .K = spec.K,
                         .D = spec.D,
                         .F = spec.F,
                         .V = spec.V};
        status = run(b, &s);
    }
    zn_model_spec_fini(&spec);
    return status;
}

/* For each model asked for; buffers last for one model. */
static zinc_status each_shape(zn_bench *b, zinc_status (*run)(zn_bench *, const shape *))
{
    bool found = false;
    for (int i = 0; i < N_KNOWN; i++) {
        if (b->p->model && strcmp(b->p->model, known[i].name) != 0)
            continue;
        ZN_TRY(run(b, &known[i]));
        zn_bench_free_buffers(b);
        found = true;
    }
    return found ? ZINC_OK : with_folder(b, run);
}

/* ---- matrix products ---- */

typedef struct operands {
    float *x, *w, *y;
    float *scratch; /* NULL: fp32 products; else of gemm_bf16: x and y are rounded, w is bf16 */
} operands;

static zinc_status product_bf16(const zn_bench *b, const matrix *m, int kind, const operands *o)
{
    const int64_t R = m->n_rows, I = m->in, O = m->out;
    zn_operand x = {.p = o->x, .dtype = ZN_DTYPE_F32, .ld = I}, y = x, w = x;
    y.p = o->y;
    y.ld = O;
    w.p = o->w;
    w.dtype = ZN_DTYPE_BF16;
    w.trans = kind == 0;
    y.trans = kind == 2;
    if (kind == 0)
        return b->k->gemm_bf16(b->s, R, O, I, &x, &w,
                               &(zn_result){.p = o->y, .add = false, .ld = O}, o->scratch);
    if (kind == 1)
        return b->k->gemm_bf16(b->s, R, I, O, &y, &w,
                               &(zn_result){.p = o->x, .add = false, .ld = I}, o->scratch);
    return b->k->gemm_bf16(b->s, O, I, R, &y, &x, &(zn_result){.p = o->w, .add = true, .ld = I},
                           o->scratch);
}

static zinc_status product(const zn_bench *b, const matrix *m, int kind, const operands *o)
{
    const int64_t R = m->n_rows, I = m->in, O = m->out;
    if (o->scratch)
        return product_bf16(b, m, kind, o);
    if (kind == 0)
        return b->k->gemm(b->s, false, true, R, O, I, 1, o->x, I, o->w, I, 0, o->y, O);
    if (kind == 1)
        return b->k->gemm(b->s, false, false, R, I, O, 1, o->y, O, o->w, I, 0, o->x, I);
    return b->k->gemm(b->s, true, false, O, I, R, 1, o->y, O, o->x, I, 0, o->w, I);
}

static zinc_status bench_matrix(zn_bench *b, const shape *s, const matrix *m, const operands *o)
{
    static const char *const kinds[] = {"forward", "dx", "dw"};
    for (int kind = 0; kind < 3; kind++) {
        char name[160];
        snprintf(name, sizeof name, "gemm%s.%s.%s.%s", o->scratch ? "_bf16" : "", s->name, m->name,
                 kinds[kind]);
        if (!zn_bench_wants(b, name))
            continue;
        zn_bench_clock clock = zn_bench_start(b);
        while (zn_bench_again(&clock))
            ZN_TRY(product(b, m, kind, o));
        ZN_TRY(zn_bench_rate(b, name, "GFLOP/s",
                             2 * (double)m->n_rows * (double)m->in * (double)m->out, clock.best,
                             o->scratch ? ZN_BENCH_BF16 : ZN_BENCH_FMA));
    }
    return ZINC_OK;
}

static zinc_status products_of(zn_bench *b, const shape *s, bool bf16)
{
    const matrix matrices[] = {{"qkv", N, s->C, (s->H + 2 * s->K) * s->D},
                               {"o", N, s->H * s->D, s->C},
                               {"up", N, s->C, s->F},
                               {"down", N, s->F, s->C},
                               {"head", HEAD_ROWS, s->C, s->V}};
    int64_t most_x = 0, most_w = 0, most_y = 0;
    operands o = {0};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        const matrix *m = &matrices[i];
        most_x = m->n_rows * m->in > most_x ? m->n_rows * m->in : most_x;
        most_w = m->in * m->out > most_w ? m->in * m->out : most_w;
        most_y = m->n_rows * m->out > most_y ? m->n_rows * m->out : most_y;
    }
    ZN_TRY(zn_bench_numbers(b, most_x, 1, &o.x));
    ZN_TRY(zn_bench_numbers(b, most_w, 1, &o.w));
    ZN_TRY(zn_bench_numbers(b, most_y, 1, &o.y));
    if (bf16)
        ZN_TRY(zn_bench_numbers(b, zn_gemm_bf16_scratch(s->V, b->p->n_threads), 0, &o.scratch));
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        ZN_TRY(bench_matrix(b, s, &matrices[i], &o));
    return ZINC_OK;
}

static zinc_status gemm_of(zn_bench *b, const shape *s)
{
    return products_of(b, s, false);
}

static zinc_status gemm_bf16_of(zn_bench *b, const shape *s)
{
    return products_of(b, s, true);
}

zinc_status zn_bench_gemm(zn_bench *b)
{
    return each_shape(b, gemm_of);
}

/* No rows where fp32 products are faster: nothing uses bf16 ones there. */
zinc_status zn_bench_gemm_bf16(zn_bench *b)
{
    return zn_kernels_bf16_pays(b->k) ? each_shape(b, gemm_bf16_of) : ZINC_OK;
}

/* ---- attention ---- */

static zinc_status attention_of(zn_bench *b, const shape *s)
{
    const int64_t H = s->H, K = s->K, D = s->D, ld = (H + 2 * K) * D;
    float *qkv, *dqkv, *out, *dout, *lse, *scratch;
    char name[160];
    ZN_TRY(zn_bench_numbers(b, N * ld, 4, &qkv));
    ZN_TRY(zn_bench_numbers(b, N * ld, 1, &dqkv));
    ZN_TRY(zn_bench_numbers(b, N * H * D, 1, &out));
    ZN_TRY(zn_bench_numbers(b, N * H * D, 1, &dout));
    ZN_TRY(zn_bench_numbers(b, N * H, 1, &lse));
    const zn_attention a = {.B = ROWS,
                            .T = TOKENS,
                            .H = H,
                            .K = K,
                            .D = D,
                            .q = qkv,
                            .k = qkv + H * D,
                            .v = qkv + (H + K) * D,
                            .q_stride = ld,
                            .k_stride = ld,
                            .v_stride = ld,
                            .scale = (float)(1 / sqrt((double)D))};
    ZN_TRY(zn_bench_numbers(b, zn_attention_scratch(&a, b->p->n_threads), 0, &scratch));
    /* pairs of query and key that see each other */
    const double pairs = 0.5 * (double)(ROWS * H * TOKENS) * (double)(TOKENS + 1);
    snprintf(name, sizeof name, "attention.%s.forward", s->name);
    zn_bench_clock clock = zn_bench_start(b);
    while (zn_bench_again(&clock))
        ZN_TRY(b->k->attention(b->s, &a, out, lse, scratch));
    if (zn_bench_wants(b, name))
        ZN_TRY(zn_bench_rate(b, name, "GFLOP/s", 4 * pairs * (double)D, clock.best, ZN_BENCH_FMA));
    snprintf(name, sizeof name, "attention.%s.backward", s->name);
    clock = zn_bench_start(b);
    while (zn_bench_wants(b, name) && zn_bench_again(&clock))
        ZN_TRY(b->k->attention_backward(b->s, &a, dout, out, lse, dqkv, dqkv + H * D,
                                        dqkv + (H + K) * D, scratch));
    /* scores again, and the gradients of scores, q, k and v */
    return zn_bench_wants(b, name)
               ? zn_bench_rate(b, name, "GFLOP/s", 10 * pairs * (double)D, clock.best, ZN_BENCH_FMA)
               : ZINC_OK;
}

zinc_status zn_bench_attention(zn_bench *b)
{
    return each_shape(b, attention_of);
}

/* ---- norms ---- */

typedef struct norm_arrays {
    float *x, *y, *dx, *w, *dw, *db, *mean, *rstd, *scratch;
} norm_arrays;

/* kind: 0 layer norm, 1 RMS norm; +2: backward */
static zinc_status norm(const zn_bench *b, int kind, int64_t C, const norm_arrays *v)
{
    switch (kind) {
    case 0:
        return b->k->layernorm(b->s, v->y, v->mean, v->rstd, v->x, v->w, v->db, N, C, 1e-5f);
    case 1:
        return b->k->rmsnorm(b->s, v->y, C, v->rstd, v->x, C, v->w, 0, N, C, 1e-5f);
    case 2:
        return b->k->layernorm_backward(b->s, v->dx, false, v->dw, v->db, v->y, v->x, v->w, v->mean,
                                        v->rstd, N, C, v->scratch);
    default:
        return b->k->rmsnorm_backward(b->s, v->dx, C, false, v->dw, v->y, C, v->x, C, v->w, 0,
                                      v->rstd, N, C, v->scratch);
    }
}

static zinc_status norm_of(zn_bench *b, const shape *s)
{
    static const char *const kinds[] = {"layernorm.forward", "rmsnorm.forward",
                                        "layernorm.backward", "rmsnorm.backward"};
    const int64_t C = s->C;
    norm_arrays v;
    float **const large[] = {&v.x, &v.y, &v.dx};
    float **const small[] = {&v.w, &v.dw, &v.db};
    for (int i = 0; i < 3; i++) {
        ZN_TRY(zn_bench_numbers(b, N * C, 1, large[i]));
        ZN_TRY(zn_bench_numbers(b, C, 1, small[i]));
    }
    ZN_TRY(zn_bench_numbers(b, N, 1, &v.mean));
    ZN_TRY(zn_bench_numbers(b, N, 1, &v.rstd));
    ZN_TRY(zn_bench_numbers(b, zn_norm_scratch(C), 0, &v.scratch));
    for (int kind = 0; kind < 4; kind++) {
        char name[160];
        snprintf(name, sizeof name, "norm.%s.%s", s->name, kinds[kind]);
        if (!zn_bench_wants(b, name))
            continue;
        zn_bench_clock clock = zn_bench_start(b);
        while (zn_bench_again(&clock))
            ZN_TRY(norm(b, kind, C, &v));
        /* x in, y out; backward: x and dy in, dx out */
        ZN_TRY(zn_bench_rate(b, name, "GB/s", (kind < 2 ? 8.0 : 12.0) * (double)(N * C), clock.best,
                             ZN_BENCH_COPY));
    }
    return ZINC_OK;
}

zinc_status zn_bench_norm(zn_bench *b)
{
    return each_shape(b, norm_of);
}

/* ---- loss ---- */

static zinc_status loss_of(zn_bench *b, const shape *s)
{
    float *logits, *row_loss;
    int32_t targets[HEAD_ROWS];
    char name[160];
    snprintf(name, sizeof name, "loss.%s.cross_entropy", s->name);
    if (!zn_bench_wants(b, name))
        return ZINC_OK;
    ZN_TRY(zn_bench_numbers(b, HEAD_ROWS * s->V, 8, &logits));
    ZN_TRY(zn_bench_numbers(b, HEAD_ROWS, 0, &row_loss));
    for (int i = 0; i < HEAD_ROWS; i++)
        targets[i] = (int32_t)(i * 7 % s->V);
    zn_bench_clock clock = zn_bench_start(b);
    while (zn_bench_again(&clock))
        ZN_TRY(b->k->cross_entropy(b->s, logits, s->V, targets, row_loss, HEAD_ROWS, s->V, 0, 1,
                                   true));
    return zn_bench_rate(b, name, "GB/s", 8.0 * HEAD_ROWS * (double)s->V, clock.best,
                         ZN_BENCH_UPDATE);
}

zinc_status zn_bench_loss(zn_bench *b)
{
    return each_shape(b, loss_of);
}
