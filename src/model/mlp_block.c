/* SPDX-License-Identifier: Apache-2.0 */
/* mlp_block.c — the MLP branch of a block (norm, up and gate, activation, down, dropout, post norm)
 * and the block that joins it with attention. */
#include "model/model_internal.h"

/* Gate (gated MLPs) and up, as own matrices or as halves of one. Returns how many. */
typedef struct mlp_in {
    zn_matrix w;
    int bias;
    float *y;       /* [N,F] */
    uint16_t *kept; /* where backward finds y */
} mlp_in;

static int inputs(const zn_run *run, int64_t i, mlp_in out[2])
{
    const zn_model_spec *m = run->spec;
    const zn_layer_acts *a = &run->acts->layer[i];
    const int fused = zn_layer_param(run, i, ZN_SLOT_GATE_UP_W);
    const zn_matrix shape = {.in = m->C, .out = m->F, .conv1d = m->conv1d, .part = fused >= 0};
    int n = 0;
    if (m->gated_mlp) {
        out[n] = (mlp_in){shape, zn_layer_param(run, i, ZN_SLOT_GATE_B), a->gate, a->gate_kept};
        out[n++].w.param = fused >= 0 ? fused : zn_layer_param(run, i, ZN_SLOT_GATE_W);
    }
    out[n] = (mlp_in){shape, zn_layer_param(run, i, ZN_SLOT_UP_B), a->up, a->up_kept};
    out[n].w.param = fused >= 0 ? fused : zn_layer_param(run, i, ZN_SLOT_UP_W);
    out[n++].w.offset = fused >= 0 ? m->F * m->C : 0;
    return n;
}

static zn_matrix down_matrix(const zn_run *run, int64_t i)
{
    const zn_model_spec *m = run->spec;
    return (zn_matrix){.param = zn_layer_param(run, i, ZN_SLOT_DOWN_W),
                       .in = m->F,
                       .out = m->C,
                       .conv1d = m->conv1d};
}

/* What the MLP's norm reads: in parallel blocks the block's input. */
static const float *source(const zn_run *run, int64_t i)
{
    return run->spec->parallel_residual ? run->acts->x[i] : run->acts->layer[i].x_mid;
}

static zinc_status input(const zn_run *run, int64_t i, const float **out)
{
    const zn_acts *acts = run->acts;
    *out = source(run, i);
    if (!run->spec->pre_norms)
        return ZINC_OK;
    ZN_TRY(zn_norm(run, zn_layer_param(run, i, ZN_SLOT_NORM2_W),
                   zn_layer_param(run, i, ZN_SLOT_NORM2_B), *out, acts->n, run->N, acts->rstd));
    *out = acts->n;
    return ZINC_OK;
}

/* acts->work = the activated MLP [N,F]. */
static zinc_status activate(const zn_run *run, int64_t i)
{
    const zn_layer_acts *a = &run->acts->layer[i];
    const int64_t n = run->N * run->spec->F;
    if (run->spec->gated_mlp)
        return run->k->glu(run->s, run->spec->act, run->acts->work, a->gate, a->up, n);
    return run->k->act(run->s, run->spec->act, run->acts->work, a->up, n);
}

zinc_status zn_mlp_forward(const zn_run *run, int64_t i, bool again)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const zn_layer_acts *a = &acts->layer[i];
    const zn_matrix down = down_matrix(run, i);
    const float *n2;
    mlp_in in[2];
    const int n_in = inputs(run, i, in);
    ZN_TRY(input(run, i, &n2));
    for (int j = 0; j < n_in; j++) {
        ZN_TRY(zn_linear(run, &in[j].w, n2, m->C, in[j].y, m->F));
        ZN_TRY(zn_bias(run, in[j].bias, 0, in[j].y, run->N, m->F));
        ZN_TRY(zn_keep(run, in[j].kept, in[j].y, run->N * m->F));
    }
    if (again && !m->post_norms) /* backward needs nothing that comes after */
        return ZINC_OK;
    ZN_TRY(activate(run, i));
    float *out = m->post_norms ? a->mlp_pre : acts->n;
    ZN_TRY(zn_linear(run, &down, acts->work, m->F, out, m->C));
    ZN_TRY(zn_bias(run, zn_layer_param(run, i, ZN_SLOT_DOWN_B), 0, out, run->N, m->C));
    if (m->post_norms)
        ZN_TRY(zn_norm(run, zn_layer_param(run, i, ZN_SLOT_POST2_W), -1, a->mlp_pre, acts->n,
                       run->N, a->mlp_rstd));
    if (again)
        return ZINC_OK;
    if (zn_dropout_p(run, m->resid_dropout) > 0)
        ZN_TRY(zn_drop(run, acts->n, acts->n, m->resid_dropout, i, 3));
    return run->k->add(run->s, acts->x[i + 1], a->x_mid, acts->n, run->N * m->C);
}

/* d (the gradient of the branch's output) through down and the activation: the gradients of gate
 * and up replace gate and up. */
static zinc_status down_backward(const zn_run *run, int64_t i, const float *d)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const zn_layer_acts *a = &acts->layer[i];
    const zn_matrix down = down_matrix(run, i);
    mlp_in in[2];
    const int n_in = inputs(run, i, in);
    for (int j = 0; j < n_in; j++)
        ZN_TRY(zn_restore(run, in[j].y, in[j].kept, run->N * m->F));
    ZN_TRY(activate(run, i));
    ZN_TRY(zn_linear_backward_w(run, &down, acts->work, m->F, d, m->C));
    ZN_TRY(zn_bias_backward(run, zn_layer_param(run, i, ZN_SLOT_DOWN_B), 0, d, run->N, m->C));
    ZN_TRY(zn_linear_backward_x(run, &down, d, m->C, acts->work, m->F, false));
    if (m->gated_mlp)
        return run->k->glu_backward(run->s, m->act, a->gate, a->up, acts->work, a->gate, a->up,
                                    run->N * m->F);
    return run->k->act_backward(run->s, m->act, acts->work, acts->work, a->up, run->N * m->F);
}

static zinc_status inputs_backward(const zn_run *run, int64_t i)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const float *n2;
    mlp_in in[2];
    const int n_in = inputs(run, i, in);
    if (!m->gated_mlp)
        in[0].y = acts->work;
    ZN_TRY(input(run, i, &n2));
    for (int j = 0; j < n_in; j++) {
        ZN_TRY(zn_linear_backward_w(run, &in[j].w, n2, m->C, in[j].y, m->F));
        ZN_TRY(zn_bias_backward(run, in[j].bias, 0, in[j].y, run->N, m->F));
    }
    float *dn = m->pre_norms ? acts->n : acts->dx;
    for (int j = 0; j < n_in; j++)
        ZN_TRY(
            zn_linear_backward_x(run, &in[j].w, in[j].y, m->F, dn, m->C, j > 0 || !m->pre_norms));
    if (!m->pre_norms)
        return ZINC_OK;
    return zn_norm_backward(run, zn_layer_param(run, i, ZN_SLOT_NORM2_W),
                            zn_layer_param(run, i, ZN_SLOT_NORM2_B), dn, source(run, i), acts->rstd,
                            acts->dx, true);
}

zinc_status zn_mlp_backward(const zn_run *run, int64_t i, const float *dy)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const zn_layer_acts *a = &acts->layer[i];
    const float *d = dy;
    if (zn_dropout_p(run, m->resid_dropout) > 0) {
        ZN_TRY(zn_drop(run, acts->n, dy, m->resid_dropout, i, 3));
        d = acts->n;
    }
    if (m->post_norms) {
        ZN_TRY(zn_norm_backward(run, zn_layer_param(run, i, ZN_SLOT_POST2_W), -1, d, a->mlp_pre,
                                a->mlp_rstd, acts->n, false));
        d = acts->n;
    }
    ZN_TRY(down_backward(run, i, d));
    return inputs_backward(run, i);
}

zinc_status zn_block_forward(const zn_run *run, int64_t i, bool again)
{
    ZN_TRY(zn_attn_forward(run, i));
    return zn_mlp_forward(run, i, again);
}

/* acts->dx holds the gradient of x[i+1], which is also that of both branches' outputs; each branch
 * adds its own to it. In series the MLP's part belongs to the gradient that attention sees; in
 * parallel both start from the same, so a copy is kept. */
zinc_status zn_block_backward(const zn_run *run, int64_t i)
{
    const zn_acts *acts = run->acts;
    const float *dy = acts->dx;
    if (run->spec->parallel_residual) {
        ZN_TRY(run->k->convert(run->s, acts->dres, ZN_DTYPE_F32, acts->dx, ZN_DTYPE_F32, 1,
                               run->N * run->spec->C));
        dy = acts->dres;
    }
    ZN_TRY(zn_mlp_backward(run, i, dy));
    return zn_attn_backward(run, i, dy);
}
