/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/ref.h"

#include <math.h>

static float gradient(const zn_update_args *u, int64_t i)
{
    return zn_load(u->grad, u->grad_dtype, i) * (u->grad_scale ? *u->grad_scale : 1.0f);
}

static float master_of(const zn_update_args *u, int64_t i)
{
    return u->master ? u->master[i] : zn_f32_join(((const uint16_t *)u->out16)[i], u->low[i]);
}

static void set_master(const zn_update_args *u, int64_t i, double value)
{
    const float master = (float)value;
    if (u->master)
        u->master[i] = master;
    else
        u->low[i] = zn_f32_low(master);
    if (u->out16)
        zn_store(u->out16, u->out_dtype, i, master);
}

zinc_status zn_ref_sum_squares(zn_stream *s, const void *x, zn_dtype dtype, int64_t n, double *out)
{
    (void)s;
    ZN_TRY(zn_check_float("sum_squares", dtype));
    double total = 0;
    for (int64_t start = 0; start < n; start += ZN_SUMSQ_BLOCK) {
        double sum = 0;
        for (int64_t i = start; i < zn_min64(n, start + ZN_SUMSQ_BLOCK); i++) {
            const double v = zn_load(x, dtype, i);
            sum += v * v;
        }
        total += sum;
    }
    *out = total;
    return ZINC_OK;
}

/* Kingma and Ba 2015; decoupled decay: Loshchilov and Hutter 2019. */
zinc_status zn_ref_adam(zn_stream *s, const zn_update_args *args)
{
    (void)s;
    const zn_update_args u = *args;
    ZN_TRY(zn_check_update("adam", args));
    for (int64_t i = 0; i < u.n; i++) {
        const double p = master_of(&u, i);
        const double g = gradient(&u, i) + (u.decoupled ? 0 : u.weight_decay * p);
        const double m = (double)u.beta1 * u.state[0][i] + (1 - (double)u.beta1) * g;
        const double v = (double)u.beta2 * u.state[1][i] + (1 - (double)u.beta2) * g * g;
        u.state[0][i] = (float)m;
        u.state[1][i] = (float)v;
        const double step = m / u.bias1 / (sqrt(v / u.bias2) + u.eps);
        set_master(&u, i, p - u.lr * (step + (u.decoupled ? u.weight_decay * p : 0)));
    }
    return ZINC_OK;
}

zinc_status zn_ref_sgd(zn_stream *s, const zn_update_args *args)
{
    (void)s;
    const zn_update_args u = *args;
    ZN_TRY(zn_check_update("sgd", args));
    for (int64_t i = 0; i < u.n; i++) {
        const double p = master_of(&u, i);
        double g = gradient(&u, i) + u.weight_decay * p;
        if (u.momentum > 0) {
            const double m =
                u.first ? g : (double)u.momentum * u.state[0][i] + (1 - (double)u.dampening) * g;
            u.state[0][i] = (float)m;
            g = u.nesterov ? g + u.momentum * m : m;
        }
        set_master(&u, i, p - u.lr * g);
    }
    return ZINC_OK;
}

zinc_status zn_ref_adagrad(zn_stream *s, const zn_update_args *args)
{
    (void)s;
    const zn_update_args u = *args;
    ZN_TRY(zn_check_update("adagrad", args));
    for (int64_t i = 0; i < u.n; i++) {
        const double p = master_of(&u, i);
        const double g = gradient(&u, i) + u.weight_decay * p;
        const double v = u.state[0][i] + g * g;
        u.state[0][i] = (float)v;
        set_master(&u, i, p - u.lr * g / (sqrt(v) + u.eps));
    }
    return ZINC_OK;
}

/* Chen et al. 2023. */
zinc_status zn_ref_lion(zn_stream *s, const zn_update_args *args)
{
    (void)s;
    const zn_update_args u = *args;
    ZN_TRY(zn_check_update("lion", args));
    for (int64_t i = 0; i < u.n; i++) {
        const double p = master_of(&u, i), g = gradient(&u, i), m = u.state[0][i];
        const double c = u.beta1 * m + (1 - (double)u.beta1) * g;
        const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
        u.state[0][i] = (float)(u.beta2 * m + (1 - (double)u.beta2) * g);
        set_master(&u, i, p * (1 - (double)u.lr * u.weight_decay) - u.lr * sign);
    }
    return ZINC_OK;
}

/* u of Lamb (You et al. 2020) from the momenta as they stand. */
static double lamb_direction(const zn_update_args *u, int64_t i)
{
    const double m = u->state[0][i], v = u->state[1][i];
    const double denominator = u->eps_inside_sqrt ? sqrt(v + u->eps) : sqrt(v) + u->eps;
    return m / denominator + (double)u->weight_decay * master_of(u, i);
}

zinc_status zn_ref_lamb_sums(zn_stream *s, const zn_update_args *args, double *sums)
{
    (void)s;
    const zn_update_args u = *args;
    ZN_TRY(zn_check_update("lamb_sums", args));
    for (int64_t start = 0; start < u.n; start += ZN_SUMSQ_BLOCK) {
        double sum_p = 0, sum_u = 0;
        for (int64_t i = start; i < zn_min64(u.n, start + ZN_SUMSQ_BLOCK); i++) {
            const double g = gradient(&u, i), p = master_of(&u, i);
            u.state[0][i] = (float)((double)u.beta1 * u.state[0][i] + (1 - (double)u.beta1) * g);
            u.state[1][i] =
                (float)((double)u.beta2 * u.state[1][i] + (1 - (double)u.beta2) * g * g);
            const double d = lamb_direction(&u, i);
            sum_p += p * p;
            sum_u += d * d;
        }
        sums[0] += sum_p;
        sums[1] += sum_u;
    }
    return ZINC_OK;
}

zinc_status zn_ref_lamb_update(zn_stream *s, const zn_update_args *args)
{
    (void)s;
    const zn_update_args u = *args;
    ZN_TRY(zn_check_update("lamb_update", args));
    for (int64_t i = 0; i < u.n; i++)
        set_master(&u, i, master_of(&u, i) - (double)u.lr * u.trust_ratio * lamb_direction(&u, i));
    return ZINC_OK;
}
