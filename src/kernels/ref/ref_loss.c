/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/ref.h"

#include <math.h>

zinc_status zn_ref_embed(zn_stream *s, float *out, const void *table, zn_dtype dtype,
                         const int32_t *ids, int64_t N, int64_t C, float scale, bool add)
{
    (void)s;
    ZN_TRY(zn_check_float("embed", dtype));
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < C; c++) {
            const float v = scale * zn_load(table, dtype, ids[n] * C + c);
            out[n * C + c] = add ? out[n * C + c] + v : v;
        }
    return ZINC_OK;
}

zinc_status zn_ref_embed_backward(zn_stream *s, float *dtable, const float *dy, const int32_t *ids,
                                  int64_t N, int64_t C, int64_t V, float scale)
{
    (void)s;
    ZN_TRY(zn_check_ids("embed_backward", ids, N, 0, V));
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < C; c++)
            dtable[ids[n] * C + c] = fmaf(scale, dy[n * C + c], dtable[ids[n] * C + c]);
    return ZINC_OK;
}

/* z_v = cap(x_v); loss = log(sum_v exp(z_v)) - z_target;
 * d loss / d x_v = (exp(z_v - log sum) - [v = target]) * cap'(x_v), cap' = 1 - (z_v/cap)^2. */
static void cross_entropy_row(float *x, int32_t target, float *loss, int64_t V, double cap,
                              double grad_scale, bool backward)
{
    double max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < V; v++) {
        if (cap > 0)
            x[v] = (float)(cap * tanh(x[v] / cap));
        max = fmax(max, x[v]);
    }
    for (int64_t v = 0; v < V; v++)
        sum += exp(x[v] - max);
    *loss = (float)(log(sum) + max - x[target]);
    for (int64_t v = 0; backward && v < V; v++) {
        const double z = x[v];
        const double d = exp(z - max) / sum - (v == target ? 1 : 0);
        x[v] = (float)(grad_scale * d * (cap > 0 ? 1 - (z / cap) * (z / cap) : 1));
    }
}

zinc_status zn_ref_cross_entropy(zn_stream *s, float *logits, int64_t ld, const int32_t *targets,
                                 float *row_loss, int64_t N, int64_t V, float softcap,
                                 float grad_scale, bool backward)
{
    (void)s;
    ZN_TRY(zn_check_ids("cross_entropy", targets, N, INT32_MIN, V));
    for (int64_t n = 0; n < N; n++) {
        if (targets[n] >= 0) {
            cross_entropy_row(logits + n * ld, targets[n], row_loss + n, V, softcap, grad_scale,
                              backward);
            continue;
        }
        row_loss[n] = 0;
        for (int64_t v = 0; backward && v < V; v++)
            logits[n * ld + v] = 0;
    }
    return ZINC_OK;
}
