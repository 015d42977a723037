/* SPDX-License-Identifier: Apache-2.0 */
/* Lamb (You et al. 2020) as DeepSpeed has it (csrc/lamb/fused_lamb_cuda_kernel.cu 0.19.8): the
 * moments are not bias-corrected, the correction is one factor on the step size, and the trust
 * ratio is clamped. Pass 1 sums p^2 and u^2 of every piece of a parameter, the caller adds the
 * pieces of all ranks, pass 2 moves the piece by the ratio of the whole. */
#include "optim/optim_internal.h"

#include <math.h>

static void lamb_defaults(zn_optim_hyper *hyper)
{
    hyper->lr = 1e-3;
    hyper->beta1 = 0.9;
    hyper->beta2 = 0.999;
    hyper->eps = 1e-8;
    hyper->weight_decay = 0.0;
    hyper->bias_correction = true;
    hyper->eps_inside_sqrt = false;
    hyper->min_coeff = 0.01;
    hyper->max_coeff = 10.0;
}

static zn_update_args lamb_args(const zn_optim_step *step, const zn_optim_segment *segment)
{
    zn_update_args args = zn_optim_args(step, segment);
    args.eps_inside_sqrt = step->groups[segment->group].eps_inside_sqrt;
    return args;
}

static zinc_status lamb_sums(const zn_optim_step *step, const zn_optim_segment *segment,
                             double *sums)
{
    const zn_update_args args = lamb_args(step, segment);
    ZN_TRY(step->kernels->lamb_sums(step->stream, &args, sums));
    return ZINC_OK;
}

/* |p| / |u| of the whole parameter, clamped; 1 where either norm is 0. */
static double trust_ratio(const zn_optim_hyper *hyper, const double *sums)
{
    if (!(sums[0] > 0.0) || !(sums[1] > 0.0))
        return 1.0;
    const double ratio = sqrt(sums[0]) / sqrt(sums[1]);
    return fmin(fmax(ratio, hyper->min_coeff), hyper->max_coeff);
}

static zinc_status lamb_update(const zn_optim_step *step, const zn_optim_segment *segment,
                               const double *sums)
{
    ZN_ASSERT(sums);
    const zn_optim_hyper *hyper = &step->groups[segment->group];
    zn_update_args args = lamb_args(step, segment);
    double lr = hyper->lr;
    if (hyper->bias_correction)
        lr *= sqrt(zn_optim_bias(hyper->beta2, step->t)) / zn_optim_bias(hyper->beta1, step->t);
    args.lr = (float)lr;
    args.trust_ratio = (float)trust_ratio(hyper, sums);
    ZN_TRY(step->kernels->lamb_update(step->stream, &args));
    return ZINC_OK;
}

const zn_optim_ops zn_optim_lamb = {
    .name = "lamb",
    .aliases = "fusedlamb",
    .n_states = 2,
    .state_names = {"exp_avg", "exp_avg_sq"},
    .n_sums = 2,
    .defaults = lamb_defaults,
    .sums = lamb_sums,
    .update = lamb_update,
};
