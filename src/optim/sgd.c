/* SPDX-License-Identifier: Apache-2.0 */
/* torch.optim.SGD: momentum, dampening, Nesterov, decay added to the gradient. Formula:
 * zn_kernels.sgd. Without momentum there is no buffer to keep: zn_optim_lean gives the plain
 * variant, which has no state. */
#include "optim/optim_internal.h"

static void sgd_defaults(zn_optim_hyper *hyper)
{
    hyper->lr = 1e-3;
    hyper->momentum = 0.0;
    hyper->dampening = 0.0;
    hyper->weight_decay = 0.0;
    hyper->nesterov = false;
}

static zinc_status sgd_update(const zn_optim_step *step, const zn_optim_segment *segment,
                              const double *sums)
{
    (void)sums;
    const zn_optim_hyper *hyper = &step->groups[segment->group];
    zn_update_args args = zn_optim_args(step, segment);
    args.momentum = (float)hyper->momentum;
    args.dampening = (float)hyper->dampening;
    args.nesterov = hyper->nesterov;
    /* torch's buffer starts as the gradient itself, undamped */
    args.first = step->t == 1;
    ZN_TRY(step->kernels->sgd(step->stream, &args));
    return ZINC_OK;
}

static zinc_status sgd_plain_update(const zn_optim_step *step, const zn_optim_segment *segment,
                                    const double *sums)
{
    (void)sums;
    const zn_update_args args = zn_optim_args(step, segment); /* momentum 0 */
    ZN_TRY(step->kernels->sgd(step->stream, &args));
    return ZINC_OK;
}

const zn_optim_ops zn_optim_sgd = {
    .name = "sgd",
    .aliases = "",
    .n_states = 1,
    .state_names = {"momentum_buffer"},
    .defaults = sgd_defaults,
    .update = sgd_update,
};

const zn_optim_ops zn_optim_sgd_plain = {
    .name = "sgd",
    .aliases = "",
    .n_states = 0,
    .defaults = sgd_defaults,
    .update = sgd_plain_update,
};
