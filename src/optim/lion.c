/* SPDX-License-Identifier: Apache-2.0 */
/* Lion (Chen et al. 2023), decoupled decay. Formula: zn_kernels.lion. sign(0) = 0 as in the paper;
 * DeepSpeed moves such elements by lr, so rows of an embedding that saw no token drift there. */
#include "optim/optim_internal.h"

static void lion_defaults(zn_optim_hyper *hyper)
{
    hyper->lr = 1e-3;
    hyper->beta1 = 0.9;
    hyper->beta2 = 0.999; /* DeepSpeed's; the paper has 0.99 */
    hyper->weight_decay = 0.0;
}

static zinc_status lion_update(const zn_optim_step *step, const zn_optim_segment *segment,
                               const double *sums)
{
    (void)sums;
    const zn_update_args args = zn_optim_args(step, segment);
    ZN_TRY(step->kernels->lion(step->stream, &args));
    return ZINC_OK;
}

const zn_optim_ops zn_optim_lion = {
    .name = "lion",
    .aliases = "fusedlion deepspeedcpulion cpulion cpu_lion lion_32bit",
    .n_states = 1,
    .state_names = {"exp_avg"},
    .defaults = lion_defaults,
    .update = lion_update,
};
