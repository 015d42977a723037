/* SPDX-License-Identifier: Apache-2.0 */
/* optim_internal.h — what the optimizers of this folder share.
 *
 * An optimizer file is thin: it maps live hyper-parameters of one group to the arguments of one
 * kernel. The arithmetic, and the promise that a cut range gives the same bits, is the kernel's. */
#ifndef ZN_OPTIM_OPTIM_INTERNAL_H
#define ZN_OPTIM_OPTIM_INTERNAL_H

#include "optim/optim.h"

/** Kernel arguments of one segment: pointers, and the hyper-parameters of its group that every
 *  optimizer reads alike. bias1 and bias2 are 1 (no correction). */
zn_update_args zn_optim_args(const zn_optim_step *step, const zn_optim_segment *segment);

/** 1 - beta^t of the beta the kernel really uses (fp32), so that the weights of the running mean,
 *  (1 - beta) * sum of beta^i, and this correction cancel: the first Adam step is lr in size for
 *  any beta. t is the 1-based number of the applied step. */
double zn_optim_bias(double beta, int64_t t);

extern const zn_optim_ops zn_optim_adamw;
extern const zn_optim_ops zn_optim_sgd;
extern const zn_optim_ops zn_optim_sgd_plain;
extern const zn_optim_ops zn_optim_adagrad;
extern const zn_optim_ops zn_optim_lion;
extern const zn_optim_ops zn_optim_lamb;

#endif
