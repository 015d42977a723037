/* SPDX-License-Identifier: Apache-2.0 */
/* lr_schedule.h — the learning rate of every applied step.
 *
 * A schedule is a pure function of the number of applied steps; there is no state to lose.
 * DeepSpeed schedulers keep its off-by-one: update k (from 1) reads the formula at i = k - 2, so
 * the first two updates run at the initial value. The Trainer's run at k - 1. Source:
 * deepspeed/runtime/lr_schedules.py 0.19.8; transformers/optimization.py 5.24. Layer: optim. */
#ifndef ZN_OPTIM_LR_SCHEDULE_H
#define ZN_OPTIM_LR_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum zn_lr_kind {
    ZN_LR_FIXED, /* no scheduler: the optimizer's lr */
    /* ds_config.json */
    ZN_LR_WARMUP,
    ZN_LR_WARMUP_DECAY,
    ZN_LR_WARMUP_COSINE,
    ZN_LR_ONE_CYCLE,
    ZN_LR_RANGE_TEST,
    /* the Trainer's lr_scheduler_type */
    ZN_LR_HF_LINEAR,
    ZN_LR_HF_COSINE,
    ZN_LR_HF_CONSTANT,
    ZN_LR_HF_CONSTANT_WITH_WARMUP,
    ZN_LR_HF_COSINE_WITH_RESTARTS,
    ZN_LR_HF_POLYNOMIAL,
    ZN_LR_HF_INVERSE_SQRT,
} zn_lr_kind;

/* Fields that a kind does not name are ignored. zn_lr_defaults fills them; what a kind requires and
 * has no default for is then NaN, or 0 steps, and zn_lr_check names it. */
typedef struct zn_lr_schedule {
    zn_lr_kind kind;
    double base_lr; /* the optimizer's */
    double warmup_min_lr, warmup_max_lr;
    int64_t warmup_num_steps, total_num_steps;
    bool warmup_linear; /* warmup_type "linear", else "log" */
    double warmup_min_ratio, cos_min_ratio;
    double cycle_min_lr, cycle_max_lr, decay_lr_rate;
    int64_t cycle_first_step_size, cycle_second_step_size;     /* second 0: as first */
    int64_t cycle_first_stair_count, cycle_second_stair_count; /* second -1: as first */
    int64_t decay_step_size;                                   /* 0: no decay */
    bool cycle_momentum;
    double cycle_min_mom, cycle_max_mom, decay_mom_rate;
    double lr_range_test_min_lr, lr_range_test_step_rate;
    int64_t lr_range_test_step_size;
    bool lr_range_test_staircase;
    double num_cycles, power, lr_end; /* the Trainer's lr_scheduler_kwargs */
} zn_lr_schedule;

/** Fill every field with the defaults of `kind` (warmup_max_lr NaN: take base_lr). */
void zn_lr_defaults(zn_lr_kind kind, zn_lr_schedule *out);

/** Kind by name: "WarmupLR", …, "linear", "cosine", … Errors: E_CONFIG lists the names. */
ZINC_MUST_CHECK zinc_status zn_lr_find(const char *name, zn_lr_kind *out);

/** Check the fields of a filled schedule (positive step counts, total given, …). Errors: E_CONFIG
 *  names the field as ds_config.json spells it. */
ZINC_MUST_CHECK zinc_status zn_lr_check(const zn_lr_schedule *schedule);

/** Rate that applied step `step` (from 1) uses. */
double zn_lr_at(const zn_lr_schedule *schedule, int64_t step);

/** OneCycle with cycle_momentum: Adam's betas of that step, returns true; else false. */
bool zn_lr_betas_at(const zn_lr_schedule *schedule, int64_t step, double *beta1, double *beta2);

#endif
