/* SPDX-License-Identifier: Apache-2.0 */
/* ref_attention.c — one query after another; scratch holds the scores of one query.
 *
 * s_j = cap(scale q.k_j), p_j = exp(s_j - lse), out = sum_j p_j m_j v_j, with m_j the dropout
 * factor (0 or 1/(1-p)). Backward: dp_j = m_j (dout.v_j), delta = sum_j p_j dp_j = dout.out,
 * ds_j = p_j (dp_j - delta), times 1 - (s_j/cap)^2 under a soft cap, then
 * dq = scale sum_j ds_j k_j, dk_j += scale ds_j q, dv_j += p_j m_j dout. */
#include "kernels/ref/ref.h"

#include <math.h>

typedef struct query {
    int64_t b, h, t;
    const float *q, *k, *v; /* k, v: key 0 of this head */
    uint64_t dropout_row;
    uint32_t threshold;
    float kept; /* dropout factor of a kept probability */
} query;

static query query_of(const zn_attention *a, int64_t b, int64_t h, int64_t t)
{
    const int64_t k_head = h / (a->H / a->K);
    const query c = {
        .b = b,
        .h = h,
        .t = t,
        .q = a->q + (b * a->T + t) * a->q_stride + h * a->D,
        .k = a->k + b * a->T * a->k_stride + k_head * a->D,
        .v = a->v + b * a->T * a->v_stride + k_head * a->D,
        .dropout_row = zn_attention_dropout_row(a, b, h, t),
        .threshold = zn_dropout_threshold(a->dropout),
        .kept = a->dropout < 1 ? 1 / (1 - a->dropout) : 0,
    };
    return c;
}

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * y[i];
    return sum;
}

/* The score of key j, -inf if it is not seen. */
static double score(const zn_attention *a, const query *c, int64_t j)
{
    if (!zn_attention_sees(a, c->b, c->t, j))
        return -INFINITY;
    const double s = (double)a->scale * dot(c->q, c->k + j * a->k_stride, a->D);
    return a->softcap > 0 ? a->softcap * tanh(s / a->softcap) : s;
}

/* The larger one, NaN if there has been one: fmax would take a row of NaN for one that sees
 * nothing. */
static double larger(double max, double x)
{
    return x > max || isnan(x) ? x : max;
}

static double dropout_factor(const zn_attention *a, const query *c, int64_t j)
{
    if (a->dropout <= 0)
        return 1;
    return zn_dropout_keep(c->dropout_row, j, c->threshold) ? c->kept : 0;
}

static void forward_query(const zn_attention *a, const query *c, float *out, float *lse,
                          float *scores)
{
    const int64_t first = zn_attention_first_key(a, c->t);
    double max = -INFINITY, sum = 0;
    for (int64_t j = first; j <= c->t; j++) {
        scores[j] = (float)score(a, c, j);
        max = larger(max, scores[j]);
    }
    for (int64_t i = 0; i < a->D; i++)
        out[i] = 0;
    *lse = -INFINITY;
    if (max == -INFINITY)
        return;
    for (int64_t j = first; j <= c->t; j++)
        sum += exp(scores[j] - max);
    *lse = (float)(max + log(sum));
    for (int64_t i = 0; i < a->D; i++) {
        double o = 0;
        for (int64_t j = first; j <= c->t; j++)
            o += exp(scores[j] - max) / sum * dropout_factor(a, c, j) * c->v[j * a->v_stride + i];
        out[i] = (float)o;
    }
}

zinc_status zn_ref_attention(zn_stream *s, const zn_attention *a, float *out, float *lse,
                             float *scratch)
{
    (void)s;
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t t = 0; t < a->T; t++)
            for (int64_t h = 0; h < a->H; h++) {
                const query c = query_of(a, b, h, t);
                forward_query(a, &c, out + ((b * a->T + t) * a->H + h) * a->D,
                              lse + (b * a->H + h) * a->T + t, scratch);
            }
    return ZINC_OK;
}

/* One query, its probabilities in place of the scores, so that each is computed once. */
static void tail_query(const zn_attention *a, const query *c, float *out, float *scores)
{
    const int64_t first = zn_attention_first_key(a, c->t);
    double max = -INFINITY, sum = 0;
    for (int64_t j = first; j <= c->t; j++) {
        scores[j] = (float)score(a, c, j);
        max = larger(max, scores[j]);
    }
    for (int64_t i = 0; i < a->D; i++)
        out[i] = 0;
    if (max == -INFINITY)
        return;
    for (int64_t j = first; j <= c->t; j++) {
        scores[j] = expf(scores[j] - (float)max);
        sum += scores[j];
    }
    for (int64_t j = first; j <= c->t; j++) {
        const float p = (float)(scores[j] / sum), *v = c->v + j * a->v_stride;
        for (int64_t i = 0; i < a->D; i++)
            out[i] += p * v[i];
    }
}

zinc_status zn_ref_attention_tail(zn_stream *s, const zn_attention *a, int64_t n_queries,
                                  float *out, float *scratch)
{
    (void)s;
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t r = 0; r < n_queries; r++)
            for (int64_t h = 0; h < a->H; h++) {
                query c = query_of(a, b, h, a->T - n_queries + r);
                c.q = a->q + (b * n_queries + r) * a->q_stride + h * a->D;
                tail_query(a, &c, out + ((b * n_queries + r) * a->H + h) * a->D, scratch);
            }
    return ZINC_OK;
}

static void backward_query(const zn_attention *a, const query *c, const float *dout, double delta,
                           double lse, float *dq, float *dk, float *dv)
{
    if (lse == -INFINITY)
        return;
    for (int64_t j = zn_attention_first_key(a, c->t); j <= c->t; j++) {
        const double sj = score(a, c, j);
        const double p = exp(sj - lse), m = dropout_factor(a, c, j);
        if (sj == -INFINITY)
            continue;
        double ds = p * (m * dot(dout, c->v + j * a->v_stride, a->D) - delta);
        if (a->softcap > 0)
            ds *= 1 - (sj / a->softcap) * (sj / a->softcap);
        ds *= a->scale;
        for (int64_t i = 0; i < a->D; i++) {
            dq[i] = (float)(dq[i] + ds * c->k[j * a->k_stride + i]);
            dk[j * a->k_stride + i] = (float)(dk[j * a->k_stride + i] + ds * c->q[i]);
            dv[j * a->v_stride + i] = (float)(dv[j * a->v_stride + i] + p * m * dout[i]);
        }
    }
}

static void zero_rows(float *x, int64_t stride, int64_t n_rows, int64_t n)
{
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < n; i++)
            x[r * stride + i] = 0;
}

zinc_status zn_ref_attention_backward(zn_stream *s, const zn_attention *a, const float *dout,
                                      const float *out, const float *lse, float *dq, float *dk,
                                      float *dv, float *scratch)
{
    (void)s;
    (void)scratch;
    const int64_t N = a->B * a->T;
    zero_rows(dq, a->q_stride, N, a->H * a->D);
    zero_rows(dk, a->k_stride, N, a->K * a->D);
    zero_rows(dv, a->v_stride, N, a->K * a->D);
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t t = 0; t < a->T; t++)
            for (int64_t h = 0; h < a->H; h++) {
                const query c = query_of(a, b, h, t);
                const int64_t at = ((b * a->T + t) * a->H + h) * a->D;
                const int64_t key = (h / (a->H / a->K)) * a->D;
                backward_query(
                    a, &c, dout + at, dot(dout + at, out + at, a->D),
                    lse[(b * a->H + h) * a->T + t], dq + (b * a->T + t) * a->q_stride + h * a->D,
                    dk + b * a->T * a->k_stride + key, dv + b * a->T * a->v_stride + key);
            }
    return ZINC_OK;
}
