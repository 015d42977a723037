/* SPDX-License-Identifier: Apache-2.0 */
/* acts.c — where a pass keeps its tensors: one slab of activations, one of buffers.
 *
 * The same code counts bytes (bases NULL) and hands out pointers, so what the planner is told is
 * what is allocated. */
#include <string.h>

#include "model/model_internal.h"

/* Rows of logits are computed in tiles of at most this many bytes, but never fewer than
 * TILE_ROWS_MIN: a tile reads the head's matrix twice and adds into its whole gradient, which few
 * rows would not repay. Rows begin on cache lines, except where
 * a bias is added, whose kernels want them packed. */
#define TILE_BYTES ((int64_t)64 << 20)
#define TILE_ROWS_MIN 32
#define LINE_FLOATS 16

typedef struct carve {
    char *base; /* NULL: only count */
    size_t used;
} carve;

static float *take(carve *c, int64_t n_floats)
{
    float *at = c->base ? (float *)(void *)(c->base + c->used) : NULL;
    c->used += ((size_t)n_floats * sizeof(float) + 63) / 64 * 64;
    return at;
}

static uint16_t *take_16(carve *c, int64_t n)
{
    return (uint16_t *)(void *)take(c, (n + 1) / 2);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* What backward reads only as operands of products or element by element: 16 bits hold it between
 * forward and backward where the parameters have 16. */
static bool keeps_16(const zn_shape *shape)
{
    return shape->param_dtype == ZN_DTYPE_BF16 && shape->mode != ZN_MODE_EVAL;
}

static void take_wide(carve *c, const zn_model_spec *m, int64_t N, zn_layer_acts *out)
{
    out->att = take(c, N * m->H * m->D);
    out->up = take(c, N * m->F);
    out->gate = m->gated_mlp ? take(c, N * m->F) : NULL;
}

static void take_kept(carve *c, const zn_model_spec *m, int64_t N, zn_layer_acts *out)
{
    out->att_kept = take_16(c, N * m->H * m->D);
    out->up_kept = take_16(c, N * m->F);
    out->gate_kept = m->gated_mlp ? take_16(c, N * m->F) : NULL;
}

/* `out` begins as the set whose wide buffers all layers use by turns, if 16 bits are kept. */
static void take_layer(carve *c, const zn_model_spec *m, const zn_shape *shape, zn_layer_acts *out)
{
    const int64_t N = shape->B * shape->T, HD = m->H * m->D, KD = m->K * m->D;
    const bool qk = m->qk_norm || m->qk_norm_full;
    if (keeps_16(shape))
        take_kept(c, m, N, out);
    else
        take_wide(c, m, N, out);
    out->qkv = take(c, N * (HD + 2 * KD));
    out->lse = take(c, N * m->H);
    out->x_mid = take(c, N * m->C);
    if (qk) {
        out->qk_pre = take(c, N * (HD + KD));
        out->qk_rstd = take(c, N * (m->qk_norm_full ? 2 : m->H + m->K));
    }
    if (m->post_norms) {
        out->att_pre = take(c, N * m->C);
        out->att_rstd = take(c, N);
        out->mlp_pre = take(c, N * m->C);
        out->mlp_rstd = take(c, N);
    }
}

static void place_activations(carve *c, const zn_model_spec *m, const zn_shape *shape,
                              zn_acts *acts)
{
    const int64_t N = shape->B * shape->T, HD = m->H * m->D, QKV = HD + 2 * m->K * m->D;
    const bool train = shape->mode != ZN_MODE_EVAL;
    float *x[2] = {NULL, NULL}; /* the last two */
    zn_layer_acts layer = {0};
    for (int64_t i = 0; i <= m->L; i++) {
        if (train ? i < 2 || shape->mode != ZN_MODE_TRAIN_HOST : i == 0)
            x[i % 2] = take(c, N * m->C);
        if (acts->x)
            acts->x[i] = x[train ? i % 2 : 0];
    }
    if (keeps_16(shape))
        take_wide(c, m, N, &layer);
    for (int64_t i = 0; i < m->L; i++) {
        if (i == 0 || shape->mode == ZN_MODE_TRAIN)
            take_layer(c, m, shape, &layer);
        if (acts->layer)
            acts->layer[i] = layer;
    }
    acts->n = take(c, N * m->C);
    acts->work = take(c, N * larger(m->F, train ? HD + QKV : 0));
    acts->mean = take(c, N);
    acts->rstd = take(c, N);
    acts->dx = train ? take(c, N * m->C) : NULL;
    acts->dres = train && m->parallel_residual ? take(c, N * m->C) : NULL;
}

/* Most elements of a matrix that must be brought into fp32 or another order before use. */
static int64_t wide_elems(const zn_model_spec *m, const zn_shape *pass)
{
    const bool widened = pass->param_dtype != ZN_DTYPE_F32 && !pass->bf16_gemm;
    int64_t most = 0;
    for (int s = 0; s < ZN_N_SLOTS; s++) {
        const zn_slot slot = (zn_slot)s;
        int64_t shape[2];
        const bool regroup = slot == ZN_SLOT_QKV_W && m->qkv_interleaved;
        const bool looked_up = slot == ZN_SLOT_WPE || (slot == ZN_SLOT_WTE && !m->tied);
        if (zn_slot_shape(m, slot, shape) == 2 && !looked_up && (widened || regroup))
            most = larger(most, shape[0] * shape[1]);
    }
    return most;
}

/* Tiles of equal size, whole vectors of rows. */
static void size_tile(const zn_model_spec *m, int64_t N, zn_acts *acts)
{
    acts->tile_ld = m->head_bias ? m->V : (m->V + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
    const int64_t fit = TILE_BYTES / ((int64_t)sizeof(float) * acts->tile_ld);
    const int64_t most = larger(fit, TILE_ROWS_MIN), n_tiles = (N + most - 1) / most;
    acts->tile_rows = (N + n_tiles - 1) / n_tiles;
}

static void place_buffers(carve *c, const zn_model_spec *m, const zn_shape *shape, zn_acts *acts)
{
    const int64_t N = shape->B * shape->T, HD = m->H * m->D, QKV = HD + 2 * m->K * m->D;
    const zn_attention attention = {.B = shape->B, .T = shape->T, .H = m->H, .K = m->K, .D = m->D};
    int64_t vec = larger(larger(m->C, m->F), QKV);
    if (m->head_bias)
        vec = larger(vec, m->V);
    size_tile(m, N, acts);
    acts->wide = take(c, wide_elems(m, shape));
    for (int i = 0; i < 3; i++)
        acts->vec[i] = take(c, vec);
    acts->tile = take(c, acts->tile_rows * acts->tile_ld);
    acts->row_loss = take(c, acts->tile_rows);
    acts->norm_scratch = take(c, zn_norm_scratch(larger(m->C, HD)));
    acts->attn_scratch = take(c, zn_attention_scratch(&attention, shape->n_threads));
    if (shape->bf16_gemm)
        acts->gemm_scratch =
            take(c, zn_gemm_bf16_scratch(larger(larger(vec, m->V), N), shape->n_threads));
}

void zn_acts_place(const zn_model_spec *spec, const zn_shape *shape, char *acts_base,
                   char *buffers_base, zn_acts *acts, size_t *acts_bytes, size_t *buffers_bytes)
{
    carve a = {.base = acts_base}, b = {.base = buffers_base};
    place_activations(&a, spec, shape, acts);
    place_buffers(&b, spec, shape, acts);
    *acts_bytes = a.used;
    *buffers_bytes = b.used;
}

zn_mode zn_train_mode(const zn_model_options *opts)
{
    return !opts->activation_checkpointing ? ZN_MODE_TRAIN
           : opts->checkpoints_on_host     ? ZN_MODE_TRAIN_HOST
                                           : ZN_MODE_TRAIN_CKPT;
}

int64_t zn_model_checkpoint_bytes(const zn_model_spec *spec, const zn_model_options *opts,
                                  int64_t B, int64_t T)
{
    const bool away = zn_train_mode(opts) == ZN_MODE_TRAIN_HOST;
    return away ? (spec->L - 1) * B * T * spec->C * (int64_t)sizeof(float) : 0;
}

void zn_model_memory(const zn_model_spec *spec, const zn_model_options *opts, int64_t B, int64_t T,
                     zn_dtype param_dtype, int n_threads, zn_model_memory_bytes *out)
{
    const zn_shape shape = {
        .B = B,
        .T = T,
        .mode = zn_train_mode(opts),
        .param_dtype = param_dtype,
        .bf16_gemm = param_dtype == ZN_DTYPE_BF16 && zn_kernels_bf16_pays(zn_kernels_get(NULL)),
        .n_threads = n_threads,
    };
    zn_acts acts = {0};
    size_t activations, buffers;
    zn_acts_place(spec, &shape, NULL, NULL, &acts, &activations, &buffers);
    const int64_t tables = spec->rope != ZN_ROPE_NONE ? T * spec->rotary * (int64_t)sizeof(float)
                                                      : T * (int64_t)sizeof(int32_t);
    out->activations = (int64_t)activations;
    out->host_activations = zn_model_checkpoint_bytes(spec, opts, B, T);
    out->buffers =
        (int64_t)buffers + (spec->rope != ZN_ROPE_NONE || spec->learned_positions ? tables : 0);
}

int64_t zn_model_activation_bytes(const zn_model_spec *spec, const zn_model_options *opts,
                                  int64_t B, int64_t T)
{
    zn_model_memory_bytes bytes;
    zn_model_memory(spec, opts, B, T, ZN_DTYPE_F32, 1, &bytes);
    return bytes.activations;
}
