/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/ref.h"

#include <math.h>

zinc_status zn_ref_layernorm(zn_stream *s, float *out, float *mean, float *rstd, const float *x,
                             const float *w, const float *b, int64_t N, int64_t C, float eps)
{
    (void)s;
    for (int64_t n = 0; n < N; n++) {
        const float *row = x + n * C;
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < C; c++)
            sum += row[c];
        const double mu = sum / (double)C;
        for (int64_t c = 0; c < C; c++)
            squares += (row[c] - mu) * (row[c] - mu);
        const double r = 1 / sqrt(squares / (double)C + eps);
        for (int64_t c = 0; c < C; c++)
            out[n * C + c] = (float)((row[c] - mu) * r * w[c] + (b ? b[c] : 0));
        mean[n] = (float)mu;
        rstd[n] = (float)r;
    }
    return ZINC_OK;
}

/* With xhat = (x - mean) rstd and g = dy w:
 * dx = rstd (g - mean(g) - xhat mean(g xhat)), dw = sum of dy xhat, db = sum of dy. */
zinc_status zn_ref_layernorm_backward(zn_stream *s, float *dx, bool accumulate_dx, float *dw,
                                      float *db, const float *dy, const float *x, const float *w,
                                      const float *mean, const float *rstd, int64_t N, int64_t C,
                                      float *scratch)
{
    (void)s;
    (void)scratch;
    for (int64_t c = 0; c < C; c++) { /* before dx, which may alias dy */
        double sum_w = 0, sum_b = 0;
        for (int64_t n = 0; n < N; n++) {
            sum_w += (double)dy[n * C + c] * ((double)x[n * C + c] - mean[n]) * rstd[n];
            sum_b += dy[n * C + c];
        }
        dw[c] += (float)sum_w;
        if (db)
            db[c] += (float)sum_b;
    }
    for (int64_t n = 0; n < N; n++) {
        const double mu = mean[n], r = rstd[n];
        double sum_g = 0, sum_gx = 0;
        for (int64_t c = 0; c < C; c++) {
            const double g = (double)dy[n * C + c] * w[c];
            sum_g += g;
            sum_gx += g * (x[n * C + c] - mu) * r;
        }
        for (int64_t c = 0; c < C; c++) {
            const double g = (double)dy[n * C + c] * w[c], xhat = (x[n * C + c] - mu) * r;
            const double d = r * (g - sum_g / (double)C - xhat * sum_gx / (double)C);
            dx[n * C + c] = (float)(accumulate_dx ? dx[n * C + c] + d : d);
        }
    }
    return ZINC_OK;
}

zinc_status zn_ref_rmsnorm(zn_stream *s, float *out, int64_t ldo, float *rstd, const float *x,
                           int64_t ldx, const float *w, float w_offset, int64_t N, int64_t C,
                           float eps)
{
    (void)s;
    for (int64_t n = 0; n < N; n++) {
        double squares = 0;
        for (int64_t c = 0; c < C; c++)
            squares += (double)x[n * ldx + c] * x[n * ldx + c];
        const double r = 1 / sqrt(squares / (double)C + eps);
        for (int64_t c = 0; c < C; c++)
            out[n * ldo + c] = (float)(x[n * ldx + c] * r * ((double)w_offset + w[c]));
        rstd[n] = (float)r;
    }
    return ZINC_OK;
}

/* With xhat = x rstd and g = dy (w_offset + w): dx = rstd (g - xhat mean(g xhat)),
 * dw = sum of dy xhat. */
zinc_status zn_ref_rmsnorm_backward(zn_stream *s, float *dx, int64_t lddx, bool accumulate_dx,
                                    float *dw, const float *dy, int64_t lddy, const float *x,
                                    int64_t ldx, const float *w, float w_offset, const float *rstd,
                                    int64_t N, int64_t C, float *scratch)
{
    (void)s;
    (void)scratch;
    for (int64_t c = 0; dw && c < C; c++) { /* before dx, which may alias dy */
        double sum = 0;
        for (int64_t n = 0; n < N; n++)
            sum += (double)dy[n * lddy + c] * x[n * ldx + c] * rstd[n];
        dw[c] += (float)sum;
    }
    for (int64_t n = 0; n < N; n++) {
        const double r = rstd[n];
        double sum_gx = 0;
        for (int64_t c = 0; c < C; c++)
            sum_gx += dy[n * lddy + c] * ((double)w_offset + w[c]) * x[n * ldx + c] * r;
        for (int64_t c = 0; c < C; c++) {
            const double g = dy[n * lddy + c] * ((double)w_offset + w[c]);
            const double d = r * (g - x[n * ldx + c] * r * sum_gx / (double)C);
            dx[n * lddx + c] = (float)(accumulate_dx ? dx[n * lddx + c] + d : d);
        }
    }
    return ZINC_OK;
}
