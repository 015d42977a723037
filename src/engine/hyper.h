/* SPDX-License-Identifier: Apache-2.0 */
/* hyper.h — optimizer, learning rate schedule and loss scaler of a resolved configuration.
 *
 * The one place where ds_config.json's values meet the defaults of optim/, which knows no
 * configuration. What was not given (NaN, -1) keeps the optimizer's or the schedule's default.
 * Messages name the key. Not collective. Layer: engine. */
#ifndef ZN_ENGINE_HYPER_H
#define ZN_ENGINE_HYPER_H

#include "config/config.h"
#include "optim/loss_scale.h"
#include "optim/lr_schedule.h"
#include "optim/optim.h"

/** Optimizer and hyper-parameters (lr is the base rate). Without an "optimizer" block: AdamW with
 *  the values that arguments gave and the Trainer's default rate, 5e-5. "Adam" is AdamW unless
 *  adam_w_mode is false; torch_adam brings torch's default decay, 0.01, in AdamW mode. *ops may
 *  still be made lean (zn_optim_lean) once all groups are known.
 *  Errors: E_CONFIG, E_UNSUPPORTED, naming optimizer.type or optimizer.params.KEY. */
ZINC_MUST_CHECK zinc_status zn_optim_hyper_from_config(const zn_config_values *values,
                                                       const zn_optim_ops **ops,
                                                       zn_optim_hyper *hyper);

/** Schedule of the "scheduler" block, checked; without one the rate stays hyper->lr
 *  (ZN_LR_FIXED). `ops` and `hyper` are zn_optim_hyper_from_config's: cycle_momentum needs an
 *  optimizer with betas and is otherwise turned off with a warning, as DeepSpeed does.
 *  Errors: E_CONFIG names scheduler.type or scheduler.params.KEY. */
ZINC_MUST_CHECK zinc_status zn_lr_from_config(const zn_config_values *values,
                                              const zn_optim_ops *ops, const zn_optim_hyper *hyper,
                                              zn_lr_schedule *out);

/** Schedule of the Trainer's arguments, for a run whose configuration has no "scheduler" block.
 *  type           --lr_scheduler_type: "linear", "cosine", …
 *  warmup_steps   >= 0, already worked out from warmup_ratio
 *  total_steps    optimizer steps of the run; kinds that do not decay ignore it
 *  Errors: E_CONFIG names the argument. */
ZINC_MUST_CHECK zinc_status zn_lr_from_trainer(const char *type, int64_t warmup_steps,
                                               int64_t total_steps, double base_lr,
                                               zn_lr_schedule *out);

/** Scaler of the "fp16" block; none unless fp16 is enabled. loss_scale 0 means dynamic. */
zn_loss_scaler zn_loss_scaler_from_config(const zn_config_values *values);

#endif
