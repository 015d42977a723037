/* SPDX-License-Identifier: Apache-2.0 */
/* Adagrad (Duchi, Hazan, Singer 2011), decay added to the gradient. Formula: zn_kernels.adagrad. */
#include "optim/optim_internal.h"

static void adagrad_defaults(zn_optim_hyper *hyper)
{
    hyper->lr = 1e-2;
    hyper->eps = 1e-10;
    hyper->weight_decay = 0.0;
}

static zinc_status adagrad_update(const zn_optim_step *step, const zn_optim_segment *segment,
                                  const double *sums)
{
    (void)sums;
    const zn_update_args args = zn_optim_args(step, segment);
    ZN_TRY(step->kernels->adagrad(step->stream, &args));
    return ZINC_OK;
}

const zn_optim_ops zn_optim_adagrad = {
    .name = "adagrad",
    .aliases = "deepspeedcpuadagrad cpuadagrad cpu_adagrad",
    .n_states = 1,
    .state_names = {"sum"},
    .defaults = adagrad_defaults,
    .update = adagrad_update,
};
