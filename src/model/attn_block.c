/* SPDX-License-Identifier: Apache-2.0 */
/* attn_block.c — the attention branch of a block: norm, q k v, q/k norm, rope, attention, output
 * projection, dropout, post norm. */
#include "model/model_internal.h"

/* Where q, k and v lie: side by side in rows of QKV, or one after the other. */
typedef struct qkv_view {
    float *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
} qkv_view;

static qkv_view view_of(const zn_run *run, float *base)
{
    const zn_model_spec *m = run->spec;
    const int64_t HD = m->H * m->D, KD = m->K * m->D, QKV = HD + 2 * KD;
    if (m->qkv_fused)
        return (qkv_view){base, base + HD, base + HD + KD, QKV, QKV, QKV};
    return (qkv_view){base, base + run->N * HD, base + run->N * (HD + KD), HD, KD, KD};
}

static zn_attention attention_of(const zn_run *run, int64_t i, const qkv_view *at)
{
    const zn_model_spec *m = run->spec;
    const zn_model_batch *batch = run->batch;
    return (zn_attention){
        .B = batch->B,
        .T = batch->T,
        .H = m->H,
        .K = m->K,
        .D = m->D,
        .q = at->q,
        .k = at->k,
        .v = at->v,
        .q_stride = at->q_stride,
        .k_stride = at->k_stride,
        .v_stride = at->v_stride,
        .scale = m->attn_scale,
        .window = m->layer_windowed[i] ? m->window : 0,
        .softcap = m->attn_softcap,
        .key_mask = batch->mask,
        .segment = batch->segment,
        .dropout = zn_dropout_p(run, m->attn_dropout),
        .dropout_seed = zn_dropout_seed(run, i, 1),
        .sample = batch->sample,
    };
}

/* The projections that fill a qkv buffer: one, or three. */
typedef struct projection {
    zn_matrix w;
    int bias;
    float *y;
    int64_t ldy;
} projection;

static int projections(const zn_run *run, int64_t i, const qkv_view *at, projection out[3])
{
    const zn_model_spec *m = run->spec;
    const int64_t HD = m->H * m->D, KD = m->K * m->D;
    if (m->qkv_fused) {
        out[0] = (projection){
            .w = {.param = zn_layer_param(run, i, ZN_SLOT_QKV_W),
                  .in = m->C,
                  .out = HD + 2 * KD,
                  .conv1d = m->conv1d,
                  .n_groups = m->qkv_interleaved ? m->H : 0},
            .bias = zn_layer_param(run, i, ZN_SLOT_QKV_B),
            .y = at->q,
            .ldy = at->q_stride,
        };
        return 1;
    }
    const zn_slot slots[3] = {ZN_SLOT_Q_W, ZN_SLOT_K_W, ZN_SLOT_V_W};
    float *const y[3] = {at->q, at->k, at->v};
    for (int p = 0; p < 3; p++)
        out[p] = (projection){
            .w = {.param = zn_layer_param(run, i, slots[p]),
                  .in = m->C,
                  .out = p == 0 ? HD : KD,
                  .conv1d = m->conv1d},
            .bias = zn_layer_param(run, i, slots[p] + 1),
            .y = y[p],
            .ldy = p == 0 ? HD : KD,
        };
    return 3;
}

static zn_matrix output_matrix(const zn_run *run, int64_t i)
{
    const zn_model_spec *m = run->spec;
    return (zn_matrix){.param = zn_layer_param(run, i, ZN_SLOT_O_W),
                       .in = m->H * m->D,
                       .out = m->C,
                       .conv1d = m->conv1d};
}

static zinc_status rotate(const zn_run *run, const qkv_view *at, float sign)
{
    const zn_model_spec *m = run->spec;
    const int64_t T = run->batch->T;
    if (m->rope == ZN_ROPE_NONE)
        return ZINC_OK;
    const float *c = run->m->rope_cos + run->past * (m->rotary / 2);
    const float *s = run->m->rope_sin + run->past * (m->rotary / 2);
    if (m->qkv_fused) /* k's heads follow q's in the same row */
        return run->k->rope(run->s, at->q, at->q_stride, run->N, T, m->H + m->K, m->D, m->rotary, c,
                            s, sign);
    ZN_TRY(run->k->rope(run->s, at->q, at->q_stride, run->N, T, m->H, m->D, m->rotary, c, s, sign));
    return run->k->rope(run->s, at->k, at->k_stride, run->N, T, m->K, m->D, m->rotary, c, s, sign);
}

/* One of the q and k norms: rows of one head each, or of all heads. */
typedef struct qk_norm {
    int param;
    float *x, *rstd; /* [rows, n] before the norm; [rows] */
    float *y;        /* after it; in backward the gradient, replaced by that of x */
    int64_t rows, n;
} qk_norm;

static void qk_norms(const zn_run *run, int64_t i, const qkv_view *at, qk_norm out[2])
{
    const zn_model_spec *m = run->spec;
    const zn_layer_acts *a = &run->acts->layer[i];
    const int64_t N = run->N, HD = m->H * m->D, KD = m->K * m->D;
    const bool full = m->qk_norm_full;
    out[0] = (qk_norm){zn_layer_param(run, i, ZN_SLOT_QNORM_W),
                       a->qk_pre,
                       a->qk_rstd,
                       at->q,
                       full ? N : N * m->H,
                       full ? HD : m->D};
    out[1] = (qk_norm){zn_layer_param(run, i, ZN_SLOT_KNORM_W),
                       a->qk_pre + N * HD,
                       a->qk_rstd + out[0].rows,
                       at->k,
                       full ? N : N * m->K,
                       full ? KD : m->D};
}

static zinc_status norm_qk(const zn_run *run, int64_t i, const qkv_view *at)
{
    qk_norm norms[2];
    if (!run->acts->layer[i].qk_pre)
        return ZINC_OK;
    qk_norms(run, i, at, norms);
    for (int j = 0; j < 2; j++) {
        const qk_norm *p = &norms[j];
        const float *w;
        ZN_TRY(zn_vector_f32(run, p->param, p->n, 0, &w));
        ZN_TRY(run->k->convert(run->s, p->x, ZN_DTYPE_F32, p->y, ZN_DTYPE_F32, 1, p->rows * p->n));
        ZN_TRY(run->k->rmsnorm(run->s, p->y, p->n, p->rstd, p->x, p->n, w, run->spec->norm_offset,
                               p->rows, p->n, run->spec->norm_eps));
    }
    return ZINC_OK;
}

static zinc_status norm_qk_backward(const zn_run *run, int64_t i, const qkv_view *grads)
{
    qk_norm norms[2];
    if (!run->acts->layer[i].qk_pre)
        return ZINC_OK;
    qk_norms(run, i, grads, norms);
    for (int j = 0; j < 2; j++) {
        const qk_norm *p = &norms[j];
        const float *w;
        ZN_TRY(zn_vector_f32(run, p->param, p->n, 0, &w));
        ZN_TRY(run->k->rmsnorm_backward(run->s, p->y, p->n, false,
                                        run->hooks->grad(run->hooks->ctx, p->param), p->y, p->n,
                                        p->x, p->n, w, run->spec->norm_offset, p->rstd, p->rows,
                                        p->n, run->acts->norm_scratch));
    }
    return ZINC_OK;
}

/* n1 = norm1(x), or x itself where there are no norms before. */
static zinc_status input(const zn_run *run, int64_t i, const float **out)
{
    const zn_acts *acts = run->acts;
    *out = acts->x[i];
    if (!run->spec->pre_norms)
        return ZINC_OK;
    *out = acts->n;
    return zn_norm(run, zn_layer_param(run, i, ZN_SLOT_NORM1_W),
                   zn_layer_param(run, i, ZN_SLOT_NORM1_B), acts->x[i], acts->n, run->N,
                   acts->rstd);
}

zinc_status zn_attn_forward(const zn_run *run, int64_t i)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const zn_layer_acts *a = &acts->layer[i];
    const qkv_view at = view_of(run, a->qkv);
    const zn_matrix o = output_matrix(run, i);
    const float *n1;
    projection p[3];
    const int n_projections = projections(run, i, &at, p);
    ZN_TRY(input(run, i, &n1));
    for (int j = 0; j < n_projections; j++) {
        ZN_TRY(zn_linear(run, &p[j].w, n1, m->C, p[j].y, p[j].ldy));
        ZN_TRY(zn_bias(run, p[j].bias, p[j].w.n_groups, p[j].y, run->N, p[j].w.out));
    }
    ZN_TRY(norm_qk(run, i, &at));
    ZN_TRY(rotate(run, &at, 1));
    const zn_attention attention = attention_of(run, i, &at);
    ZN_TRY(run->decode ? zn_decode_attention(run, i, &attention, a->att, a->lse, acts->attn_scratch)
                       : run->k->attention(run->s, &attention, a->att, a->lse, acts->attn_scratch));

    ZN_TRY(zn_keep(run, a->att_kept, a->att, run->N * o.in));
    float *out = m->post_norms ? a->att_pre : acts->n;
    ZN_TRY(zn_linear(run, &o, a->att, o.in, out, m->C));
    ZN_TRY(zn_bias(run, zn_layer_param(run, i, ZN_SLOT_O_B), 0, out, run->N, m->C));
    if (m->post_norms)
        ZN_TRY(zn_norm(run, zn_layer_param(run, i, ZN_SLOT_POST1_W), -1, a->att_pre, acts->n,
                       run->N, a->att_rstd));
    if (zn_dropout_p(run, m->resid_dropout) > 0)
        ZN_TRY(zn_drop(run, acts->n, acts->n, m->resid_dropout, i, 2));
    return run->k->add(run->s, a->x_mid, acts->x[i], acts->n, run->N * m->C);
}

/* Back through dropout and post norm: dy of the branch to *out, which is dy itself or acts->n. */
static zinc_status output_backward(const zn_run *run, int64_t i, const float *dy, const float **out)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    *out = dy;
    if (zn_dropout_p(run, m->resid_dropout) > 0) {
        ZN_TRY(zn_drop(run, acts->n, dy, m->resid_dropout, i, 2));
        *out = acts->n;
    }
    if (!m->post_norms)
        return ZINC_OK;
    const zn_layer_acts *a = &acts->layer[i];
    ZN_TRY(zn_norm_backward(run, zn_layer_param(run, i, ZN_SLOT_POST1_W), -1, *out, a->att_pre,
                            a->att_rstd, acts->n, false));
    *out = acts->n;
    return ZINC_OK;
}

/* From dqkv to the gradients of the projections, and to dx through norm1. */
static zinc_status projections_backward(const zn_run *run, int64_t i, const qkv_view *grads)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const float *n1;
    projection p[3];
    const int n_projections = projections(run, i, grads, p);
    ZN_TRY(input(run, i, &n1));
    for (int j = 0; j < n_projections; j++) {
        ZN_TRY(zn_linear_backward_w(run, &p[j].w, n1, m->C, p[j].y, p[j].ldy));
        ZN_TRY(zn_bias_backward(run, p[j].bias, p[j].w.n_groups, p[j].y, run->N, p[j].w.out));
    }
    /* n1 is not read any more: its gradient takes its place, or goes straight into dx */
    float *dn = m->pre_norms ? acts->n : acts->dx;
    for (int j = 0; j < n_projections; j++)
        ZN_TRY(
            zn_linear_backward_x(run, &p[j].w, p[j].y, p[j].ldy, dn, m->C, j > 0 || !m->pre_norms));
    if (!m->pre_norms)
        return ZINC_OK;
    return zn_norm_backward(run, zn_layer_param(run, i, ZN_SLOT_NORM1_W),
                            zn_layer_param(run, i, ZN_SLOT_NORM1_B), dn, acts->x[i], acts->rstd,
                            acts->dx, true);
}

zinc_status zn_attn_backward(const zn_run *run, int64_t i, const float *dy)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const zn_layer_acts *a = &acts->layer[i];
    const zn_matrix o = output_matrix(run, i);
    const qkv_view at = view_of(run, a->qkv);
    const zn_attention attention = attention_of(run, i, &at);
    float *datt = acts->work; /* [N,HD], then dqkv [N,QKV] */
    const qkv_view grads = view_of(run, acts->work + run->N * o.in);
    const float *d;
    ZN_TRY(zn_restore(run, a->att, a->att_kept, run->N * o.in));
    ZN_TRY(output_backward(run, i, dy, &d));
    ZN_TRY(zn_linear_backward_w(run, &o, a->att, o.in, d, m->C));
    ZN_TRY(zn_bias_backward(run, zn_layer_param(run, i, ZN_SLOT_O_B), 0, d, run->N, m->C));
    ZN_TRY(zn_linear_backward_x(run, &o, d, m->C, datt, o.in, false));
    ZN_TRY(run->k->attention_backward(run->s, &attention, datt, a->att, a->lse, grads.q, grads.k,
                                      grads.v, acts->attn_scratch));
    ZN_TRY(rotate(run, &grads, -1));
    ZN_TRY(norm_qk_backward(run, i, &grads));
    return projections_backward(run, i, &grads);
}
