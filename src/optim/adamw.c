/* SPDX-License-Identifier: Apache-2.0 */
/* Adam and AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019). "Adam" of a ds_config.json is
 * AdamW too unless "adam_w_mode" is false, so the two are one optimizer and decoupled_decay says
 * which. Formula: zn_kernels.adam. */
#include "optim/optim_internal.h"

static void adamw_defaults(zn_optim_hyper *hyper)
{
    hyper->lr = 1e-3;
    hyper->beta1 = 0.9;
    hyper->beta2 = 0.999;
    hyper->eps = 1e-8;
    hyper->weight_decay = 0.0;
    hyper->bias_correction = true;
    hyper->decoupled_decay = true;
}

static zinc_status adamw_update(const zn_optim_step *step, const zn_optim_segment *segment,
                                const double *sums)
{
    (void)sums;
    const zn_optim_hyper *hyper = &step->groups[segment->group];
    zn_update_args args = zn_optim_args(step, segment);
    if (hyper->bias_correction) {
        args.bias1 = (float)zn_optim_bias(hyper->beta1, step->t);
        args.bias2 = (float)zn_optim_bias(hyper->beta2, step->t);
    }
    args.decoupled = hyper->decoupled_decay;
    ZN_TRY(step->kernels->adam(step->stream, &args));
    return ZINC_OK;
}

const zn_optim_ops zn_optim_adamw = {
    .name = "adamw",
    .aliases = "adam fusedadam deepspeedcpuadam cpuadam cpu_adam adamw_torch adamw_torch_fused "
               "adamw_hf",
    .n_states = 2,
    .state_names = {"exp_avg", "exp_avg_sq"},
    .defaults = adamw_defaults,
    .update = adamw_update,
};
