/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h — the settings of a run as JSON objects, as checkpoints keep them: to be read by
 * people and compared as a whole. Not collective. Layer: engine. */
#ifndef ZN_ENGINE_DESCRIBE_H
#define ZN_ENGINE_DESCRIBE_H

#include <stdbool.h>

#include "base/json.h"
#include "config/config.h"
#include "optim/lr_schedule.h"
#include "optim/optim.h"

/* *out is owned (json_decref). Errors: E_NOMEM. */

/** type  the schedule's name for people: "WarmupLR", "linear", "fixed" */
ZINC_MUST_CHECK zinc_status zn_describe_schedule(const zn_lr_schedule *schedule, const char *type,
                                                 json_t **out);
/** decay_all  weight decay for biases and norm weights too */
ZINC_MUST_CHECK zinc_status zn_describe_hyper(const zn_optim_hyper *hyper, const char *optimizer,
                                              bool decay_all, json_t **out);
/** The resolved values of a configuration. */
ZINC_MUST_CHECK zinc_status zn_describe_config(const zn_config *config, json_t **out);

/** "float32", "bfloat16" or "float16": what is trained in. */
const char *zn_describe_dtype(const zn_config_values *values);

#endif
