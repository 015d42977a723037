/* SPDX-License-Identifier: Apache-2.0 */
/* head.c — final norm, logits and cross-entropy, a tile of rows at a time.
 *
 * A tile's logits turn into their own gradient in place and are used up (dW += dlogits^T h,
 * dh = dlogits W) before the next tile is computed, so [N,V] never exists. */
#include "model/model_internal.h"

static zn_matrix head_matrix(const zn_run *run)
{
    const zn_model *m = run->m;
    return (zn_matrix){.param = m->ids[m->spec.tied ? ZN_SLOT_WTE : ZN_SLOT_HEAD_W],
                       .in = m->spec.C,
                       .out = m->spec.V};
}

/* logits[rows,V] (rows ld apart) = h[rows,C] W^T + bias. */
static zinc_status logits_of(const zn_run *run, zn_operand W, const float *h, int64_t rows,
                             float *logits, int64_t ld)
{
    const int64_t C = run->spec->C, V = run->spec->V;
    ZN_TRY(zn_product(run, rows, V, C, zn_rows(h, C), zn_transposed(W), zn_into(logits, ld)));
    return zn_bias(run, run->m->ids[ZN_SLOT_HEAD_B], 0, logits, rows, V);
}

/* dlogits [rows,V] (rows ld apart) to the gradients of W and bias, and h[rows,C] replaced by its
 * own. */
static zinc_status tile_backward(const zn_run *run, zn_operand W, zn_result dW,
                                 const float *dlogits, int64_t ld, float *h, int64_t rows)
{
    const int64_t C = run->spec->C, V = run->spec->V;
    const zn_operand d = zn_rows(dlogits, ld);
    if (dW.p)
        ZN_TRY(zn_product(run, V, C, rows, zn_transposed(d), zn_rows(h, C), dW));
    ZN_TRY(zn_bias_backward(run, run->m->ids[ZN_SLOT_HEAD_B], 0, dlogits, rows, V));
    return zn_product(run, rows, C, V, d, W, zn_into(h, C));
}

typedef struct loss_args {
    zn_device *dev;
    const float *row_loss;
    int64_t rows;
    double *loss_sum;
} loss_args;

static zinc_status add_losses(void *arg)
{
    const loss_args *a = arg;
    double sum = 0;
    zn_device_memory_open(a->dev);
    for (int64_t n = 0; n < a->rows; n++)
        sum += (double)a->row_loss[n];
    *a->loss_sum += sum;
    zn_device_memory_close(a->dev);
    return ZINC_OK;
}

static zinc_status final_norm(const zn_run *run, const float *x, float *out, int64_t rows)
{
    const int *ids = run->m->ids;
    return zn_norm(run, ids[ZN_SLOT_FINAL_W], ids[ZN_SLOT_FINAL_B], x, out, rows, run->acts->rstd);
}

zinc_status zn_head(const zn_run *run, bool backward, double *loss_sum, float *logits)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const zn_matrix head = head_matrix(run);
    const float *x = acts->x[m->L];
    const int64_t ld = logits ? m->V : acts->tile_ld;
    zn_operand W;
    const int32_t *targets = run->batch->targets;
    ZN_TRY(final_norm(run, x, acts->n, run->N));
    ZN_TRY(zn_matrix_operand(run, &head, &W));
    zn_result dW = {0};
    if (backward)
        dW = zn_matrix_grad(run, head.param, !m->tied && run->N <= acts->tile_rows, run->N, m->C);
    for (int64_t at = 0; at < run->N; at += acts->tile_rows) {
        const int64_t left = run->N - at, rows = left < acts->tile_rows ? left : acts->tile_rows;
        float *h = acts->n + at * m->C;
        float *tile = logits ? logits + at * m->V : acts->tile;
        float cap = m->final_softcap;
        ZN_TRY(logits_of(run, W, h, rows, tile, ld));
        if (logits && cap > 0) { /* the caller wants them capped; the loss then caps no more */
            ZN_TRY(run->k->softcap(run->s, tile, cap, rows * m->V));
            cap = 0;
        }
        if (!targets)
            continue;
        ZN_TRY(run->k->cross_entropy(run->s, tile, ld, targets + at, acts->row_loss, rows, m->V,
                                     cap, run->grad_scale, backward));
        const loss_args losses = {run->m->dev, acts->row_loss, rows, loss_sum};
        ZN_TRY(zn_stream_submit(run->s, add_losses, &losses, sizeof losses, NULL));
        if (backward)
            ZN_TRY(tile_backward(run, W, dW, tile, ld, h, rows));
        dW.add = true;
    }
    if (!backward)
        return ZINC_OK;
    return zn_norm_backward(run, run->m->ids[ZN_SLOT_FINAL_W], run->m->ids[ZN_SLOT_FINAL_B],
                            acts->n, x, acts->rstd, acts->dx, false);
}

zinc_status zn_head_last(const zn_run *run, float *logits)
{
    const zn_model_spec *m = run->spec;
    const zn_acts *acts = run->acts;
    const int64_t B = run->batch->B, T = run->batch->T;
    const zn_matrix head = head_matrix(run);
    zn_operand W;
    for (int64_t b = 0; b < B; b++)
        ZN_TRY(final_norm(run, acts->x[m->L] + (b * T + T - 1) * m->C, acts->n + b * m->C, 1));
    ZN_TRY(zn_matrix_operand(run, &head, &W));
    ZN_TRY(logits_of(run, W, acts->n, B, logits, m->V));
    if (m->final_softcap > 0)
        ZN_TRY(run->k->softcap(run->s, logits, m->final_softcap, B * m->V));
    return ZINC_OK;
}
