/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

zinc_status zn_ref_fill(zn_stream *s, float *x, float value, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
    return ZINC_OK;
}

zinc_status zn_ref_zero(zn_stream *s, void *x, int64_t n_bytes)
{
    (void)s;
    if (n_bytes > 0)
        memset(x, 0, (size_t)n_bytes);
    return ZINC_OK;
}

zinc_status zn_ref_axpy(zn_stream *s, float *y, const float *x, float a, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
    return ZINC_OK;
}

zinc_status zn_ref_add(zn_stream *s, float *out, const float *a, const float *b, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
    return ZINC_OK;
}

zinc_status zn_ref_scale(zn_stream *s, float *x, float a, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)
        x[i] *= a;
    return ZINC_OK;
}

zinc_status zn_ref_convert(zn_stream *s, void *dst, zn_dtype dst_dtype, const void *src,
                           zn_dtype src_dtype, float scale, int64_t n)
{
    (void)s;
    ZN_TRY(zn_check_float("convert", dst_dtype));
    ZN_TRY(zn_check_float("convert", src_dtype));
    if (scale == 1.0f && dst_dtype == src_dtype) { /* bits, NaN payloads too */
        if (dst != src && n > 0)
            memmove(dst, src, (size_t)n * zn_dtype_size(dst_dtype));
        return ZINC_OK;
    }
    for (int64_t i = 0; i < n; i++)
        zn_store(dst, dst_dtype, i, scale * zn_load(src, src_dtype, i));
    return ZINC_OK;
}

zinc_status zn_ref_add_bias(zn_stream *s, float *x, const float *bias, int64_t N, int64_t C)
{
    (void)s;
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < C; c++)
            x[n * C + c] += bias[c];
    return ZINC_OK;
}

zinc_status zn_ref_bias_grad(zn_stream *s, float *dbias, const float *dy, int64_t N, int64_t C)
{
    (void)s;
    for (int64_t c = 0; c < C; c++) {
        double sum = 0;
        for (int64_t n = 0; n < N; n++)
            sum += dy[n * C + c];
        dbias[c] += (float)sum;
    }
    return ZINC_OK;
}

/* x' = x cos - y sin, y' = y cos + x sin for the pair (x, y) = (i, i + rotary/2). */
zinc_status zn_ref_rope(zn_stream *s, float *x, int64_t stride, int64_t N, int64_t T, int64_t H,
                        int64_t D, int64_t rotary, const float *cos, const float *sin, float sign)
{
    (void)s;
    const int64_t half = rotary / 2;
    for (int64_t n = 0; n < N; n++) {
        for (int64_t h = 0; h < H; h++) {
            float *head = x + n * stride + h * D;
            for (int64_t i = 0; i < half; i++) {
                const double c = cos[(n % T) * half + i];
                const double z = (double)sign * sin[(n % T) * half + i];
                const double a = head[i], b = head[i + half];
                head[i] = (float)(a * c - b * z);
                head[i + half] = (float)(b * c + a * z);
            }
        }
    }
    return ZINC_OK;
}

/* GELU: x Phi(x); its tanh form 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and
 * Gimpel 2016). SiLU: x sigmoid(x). */
double zn_ref_act_value(zn_act kind, double x)
{
    switch (kind) {
    case ZN_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case ZN_ACT_GELU_ERF:
        return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case ZN_ACT_SILU:
        return x / (1 + exp(-x));
    case ZN_ACT_RELU:
        break;
    }
    return x > 0 ? x : 0;
}

double zn_ref_act_slope(zn_act kind, double x)
{
    switch (kind) {
    case ZN_ACT_GELU_TANH: {
        const double k = 0.79788456080286535588;
        const double t = tanh(k * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
    }
    case ZN_ACT_GELU_ERF: /* Phi(x) + x phi(x) */
        return 0.5 * (1 + erf(x * 0.70710678118654752440)) +
               x * 0.39894228040143267794 * exp(-0.5 * x * x);
    case ZN_ACT_SILU: {
        const double g = 1 / (1 + exp(-x));
        return g * (1 + x * (1 - g));
    }
    case ZN_ACT_RELU:
        break;
    }
    return x > 0 ? 1 : 0;
}

zinc_status zn_ref_act(zn_stream *s, zn_act kind, float *out, const float *x, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)zn_ref_act_value(kind, x[i]);
    return ZINC_OK;
}

zinc_status zn_ref_act_backward(zn_stream *s, zn_act kind, float *dx, const float *dy,
                                const float *x, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)
        dx[i] = (float)(dy[i] * zn_ref_act_slope(kind, x[i]));
    return ZINC_OK;
}

zinc_status zn_ref_glu(zn_stream *s, zn_act kind, float *out, const float *gate, const float *up,
                       int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(zn_ref_act_value(kind, gate[i]) * up[i]);
    return ZINC_OK;
}

zinc_status zn_ref_glu_backward(zn_stream *s, zn_act kind, float *dgate, float *dup,
                                const float *dy, const float *gate, const float *up, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++) {
        const double g = gate[i], u = up[i]; /* read before dgate and dup, which may alias them */
        dgate[i] = (float)(dy[i] * u * zn_ref_act_slope(kind, g));
        dup[i] = (float)(dy[i] * zn_ref_act_value(kind, g));
    }
    return ZINC_OK;
}

zinc_status zn_ref_softcap(zn_stream *s, float *x, float cap, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(cap * tanh((double)x[i] / cap));
    return ZINC_OK;
}

zinc_status zn_ref_dropout(zn_stream *s, float *out, const float *x, int64_t N, int64_t T,
                           int64_t C, const int64_t *sample, uint64_t seed, float p)
{
    (void)s;
    const uint32_t threshold = zn_dropout_threshold(p);
    const float kept = p < 1 ? 1 / (1 - p) : 0;
    for (int64_t n = 0; n < N; n++) {
        const uint64_t row = zn_dropout_row(seed, sample, n / T, n % T);
        for (int64_t c = 0; c < C; c++)
            out[n * C + c] = zn_dropout_keep(row, c, threshold) ? x[n * C + c] * kept : 0;
    }
    return ZINC_OK;
}
