/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/hyper.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"

/* Trainer default of --learning_rate, transformers 5.24. */
#define TRAINER_LR 5e-5
/* torch.optim.AdamW's own default, which torch_adam brings along. */
#define TORCH_ADAMW_DECAY 0.01

static void take(double value, double *field)
{
    if (!isnan(value))
        *field = value;
}

static void take_count(int64_t value, int64_t *field)
{
    if (value != -1)
        *field = value;
}

static void take_flag(int value, bool *field)
{
    if (value >= 0)
        *field = value != 0;
}

/* ---- optimizer ---- */

static zinc_status check_range(const char *key, double value, double max, bool below_max)
{
    if (isfinite(value) && value >= 0.0 && (below_max ? value < max : value <= max))
        return ZINC_OK;
    if (isinf(max))
        ZN_FAIL(ZINC_E_CONFIG, "optimizer.params.%s: expected a number >= 0, found %g", key, value);
    ZN_FAIL(ZINC_E_CONFIG, "optimizer.params.%s: expected a number in [0, %g%s, found %g", key, max,
            below_max ? ")" : "]", value);
}

static zinc_status check_hyper(const zn_optim_hyper *hyper)
{
    const double any = (double)INFINITY;
    ZN_TRY(check_range("lr", hyper->lr, any, true));
    ZN_TRY(check_range("weight_decay", hyper->weight_decay, any, true));
    ZN_TRY(check_range("eps", hyper->eps, any, true));
    ZN_TRY(check_range("betas[0]", hyper->beta1, 1.0, true));
    ZN_TRY(check_range("betas[1]", hyper->beta2, 1.0, true));
    ZN_TRY(check_range("momentum", hyper->momentum, any, true));
    ZN_TRY(check_range("dampening", hyper->dampening, 1.0, false));
    if (hyper->nesterov && (!(hyper->momentum > 0.0) || hyper->dampening != 0.0))
        ZN_FAIL(ZINC_E_CONFIG,
                "optimizer.params.nesterov: needs momentum > 0 and dampening 0, found momentum %g, "
                "dampening %g",
                hyper->momentum, hyper->dampening);
    if (hyper->min_coeff > hyper->max_coeff || hyper->min_coeff < 0.0)
        ZN_FAIL(ZINC_E_CONFIG,
                "optimizer.params.min_coeff: expected 0 <= min_coeff <= max_coeff, found %g and %g",
                hyper->min_coeff, hyper->max_coeff);
    return ZINC_OK;
}

/* Decoupled decay: always for a name that says AdamW, else as adam_w_mode says. */
static bool is_decoupled(const zn_config_values *values)
{
    return !values->optimizer_type || strncasecmp(values->optimizer_type, "adamw", 5) == 0 ||
           values->adam_w_mode;
}

zinc_status zn_optim_hyper_from_config(const zn_config_values *values, const zn_optim_ops **ops,
                                       zn_optim_hyper *hyper)
{
    const zn_optim_ops *found = NULL;
    zn_optim_hyper h = {0};
    const zinc_status status =
        zn_optim_find(values->optimizer_type ? values->optimizer_type : "adamw", &found);
    if (status != ZINC_OK) {
        zn_error_prefix("optimizer.type: ");
        return status;
    }
    found->defaults(&h);
    if (!values->optimizer_type)
        h.lr = TRAINER_LR;
    if (strcmp(found->name, "adamw") == 0) {
        h.decoupled_decay = is_decoupled(values);
        if (values->optimizer_type && values->torch_adam && h.decoupled_decay)
            h.weight_decay = TORCH_ADAMW_DECAY;
    }
    take(values->lr, &h.lr);
    take(values->weight_decay, &h.weight_decay);
    take(values->beta1, &h.beta1);
    take(values->beta2, &h.beta2);
    take(values->eps, &h.eps);
    take(values->momentum, &h.momentum);
    take(values->dampening, &h.dampening);
    take(values->lamb_min_coeff, &h.min_coeff);
    take(values->lamb_max_coeff, &h.max_coeff);
    h.nesterov = values->nesterov;
    h.bias_correction = values->bias_correction;
    h.eps_inside_sqrt = values->eps_inside_sqrt;
    ZN_TRY(check_hyper(&h));
    *ops = found;
    *hyper = h;
    return ZINC_OK;
}

/* ---- schedule ---- */

static void take_warmup(const zn_config_values *values, zn_lr_schedule *s)
{
    take(values->warmup_min_lr, &s->warmup_min_lr);
    take(values->warmup_max_lr, &s->warmup_max_lr);
    take(values->warmup_min_ratio, &s->warmup_min_ratio);
    take(values->cos_min_ratio, &s->cos_min_ratio);
    take_count(values->warmup_num_steps, &s->warmup_num_steps);
    take_count(values->total_num_steps, &s->total_num_steps);
    const char *type = values->warmup_type ? values->warmup_type : "log";
    s->warmup_linear = strcmp(type, "linear") == 0;
    if (!s->warmup_linear && strcmp(type, "log") != 0)
        zn_warn("engine", "scheduler.params.warmup_type \"%s\" is unknown, log is used", type);
}

static void take_one_cycle(const zn_config_values *values, const zn_optim_ops *ops,
                           zn_lr_schedule *s)
{
    take(values->cycle_min_lr, &s->cycle_min_lr);
    take(values->cycle_max_lr, &s->cycle_max_lr);
    take(values->decay_lr_rate, &s->decay_lr_rate);
    take(values->cycle_min_mom, &s->cycle_min_mom);
    take(values->cycle_max_mom, &s->cycle_max_mom);
    take(values->decay_mom_rate, &s->decay_mom_rate);
    take_count(values->cycle_first_step_size, &s->cycle_first_step_size);
    take_count(values->cycle_second_step_size, &s->cycle_second_step_size);
    take_count(values->cycle_first_stair_count, &s->cycle_first_stair_count);
    take_count(values->cycle_second_stair_count, &s->cycle_second_stair_count);
    take_count(values->decay_step_size, &s->decay_step_size);
    take_flag(values->cycle_momentum, &s->cycle_momentum);
    zn_optim_hyper probe = {.beta2 = -1.0};
    ops->defaults(&probe);
    if (s->cycle_momentum && probe.beta2 < 0.0) {
        s->cycle_momentum = false;
        zn_warn("engine", "scheduler.params.cycle_momentum is off: optimizer %s has no betas",
                ops->name);
    }
    if (s->cycle_momentum && s->decay_mom_rate > 0.0 && s->decay_step_size > 0)
        zn_warn(
            "engine",
            "scheduler.params.decay_mom_rate %g makes beta1 grow without bound after the cycle, "
            "as it does in DeepSpeed; beyond 1 the run diverges",
            s->decay_mom_rate);
}

static void take_range_test(const zn_config_values *values, zn_lr_schedule *s)
{
    take(values->lr_range_test_min_lr, &s->lr_range_test_min_lr);
    take(values->lr_range_test_step_rate, &s->lr_range_test_step_rate);
    take_count(values->lr_range_test_step_size, &s->lr_range_test_step_size);
    take_flag(values->lr_range_test_staircase, &s->lr_range_test_staircase);
}

zinc_status zn_lr_from_config(const zn_config_values *values, const zn_optim_ops *ops,
                              const zn_optim_hyper *hyper, zn_lr_schedule *out)
{
    zn_lr_kind kind = ZN_LR_FIXED;
    zn_lr_schedule schedule;
    if (values->scheduler_type) {
        const zinc_status status = zn_lr_find(values->scheduler_type, &kind);
        if (status != ZINC_OK) {
            zn_error_prefix("scheduler.type: ");
            return status;
        }
        if (kind >= ZN_LR_HF_LINEAR)
            ZN_FAIL(ZINC_E_CONFIG,
                    "scheduler.type: \"%s\" is one of the Trainer's schedules, which a "
                    "ds_config.json cannot name; leave the scheduler block out and give "
                    "--lr_scheduler_type %s",
                    values->scheduler_type, values->scheduler_type);
    }
    zn_lr_defaults(kind, &schedule);
    schedule.base_lr = hyper->lr;
    if (kind == ZN_LR_ONE_CYCLE)
        take_one_cycle(values, ops, &schedule);
    else if (kind == ZN_LR_RANGE_TEST)
        take_range_test(values, &schedule);
    else if (kind != ZN_LR_FIXED)
        take_warmup(values, &schedule);
    ZN_TRY(zn_lr_check(&schedule));
    *out = schedule;
    return ZINC_OK;
}

zinc_status zn_lr_from_trainer(const char *type, int64_t warmup_steps, int64_t total_steps,
                               double base_lr, zn_lr_schedule *out)
{
    zn_lr_kind kind;
    zn_lr_schedule schedule;
    const zinc_status status = zn_lr_find(type, &kind);
    if (status != ZINC_OK) {
        zn_error_prefix("--lr_scheduler_type: ");
        return status;
    }
    if (kind < ZN_LR_HF_LINEAR)
        ZN_FAIL(ZINC_E_CONFIG,
                "--lr_scheduler_type: \"%s\" is one of DeepSpeed's schedules; it goes into the "
                "scheduler block of the ds_config.json",
                type);
    zn_lr_defaults(kind, &schedule);
    schedule.base_lr = base_lr;
    schedule.warmup_num_steps = warmup_steps;
    schedule.total_num_steps = total_steps;
    ZN_TRY(zn_lr_check(&schedule));
    *out = schedule;
    return ZINC_OK;
}

/* ---- loss scale ---- */

zn_loss_scaler zn_loss_scaler_from_config(const zn_config_values *values)
{
    if (!values->fp16.enabled)
        return zn_loss_scaler_none();
    if (values->fp16.loss_scale > 0.0)
        return zn_loss_scaler_static(values->fp16.loss_scale);
    return zn_loss_scaler_dynamic((int)values->fp16.initial_scale_power,
                                  values->fp16.loss_scale_window, (int)values->fp16.hysteresis,
                                  values->fp16.consecutive_hysteresis, values->fp16.min_loss_scale);
}
