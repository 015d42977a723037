/* SPDX-License-Identifier: Apache-2.0 */
#include "optim/lr_schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define PI 3.14159265358979323846

static const struct {
    const char *name;
    zn_lr_kind kind;
} kinds[] = {
    {"WarmupLR", ZN_LR_WARMUP},
    {"WarmupDecayLR", ZN_LR_WARMUP_DECAY},
    {"WarmupCosineLR", ZN_LR_WARMUP_COSINE},
    {"OneCycle", ZN_LR_ONE_CYCLE},
    {"LRRangeTest", ZN_LR_RANGE_TEST},
    {"linear", ZN_LR_HF_LINEAR},
    {"cosine", ZN_LR_HF_COSINE},
    {"constant", ZN_LR_HF_CONSTANT},
    {"constant_with_warmup", ZN_LR_HF_CONSTANT_WITH_WARMUP},
    {"cosine_with_restarts", ZN_LR_HF_COSINE_WITH_RESTARTS},
    {"polynomial", ZN_LR_HF_POLYNOMIAL},
    {"inverse_sqrt", ZN_LR_HF_INVERSE_SQRT},
};
#define N_KINDS ((int)(sizeof kinds / sizeof kinds[0]))

void zn_lr_defaults(zn_lr_kind kind, zn_lr_schedule *out)
{
    *out = (zn_lr_schedule){
        .kind = kind,
        .base_lr = 1e-3,
        .warmup_min_lr = 0.0,
        .warmup_max_lr = kind == ZN_LR_WARMUP_DECAY ? 1e-3 : (double)NAN,
        .warmup_num_steps = kind >= ZN_LR_HF_LINEAR ? 0 : 1000,
        .total_num_steps = 0,
        .cos_min_ratio = 1e-4,
        .cycle_min_lr = (double)NAN,
        .cycle_max_lr = (double)NAN,
        .cycle_first_step_size = 2000,
        .cycle_second_stair_count = -1,
        .cycle_momentum = true,
        .cycle_min_mom = 0.8,
        .cycle_max_mom = 0.9,
        .lr_range_test_min_lr = 1e-3,
        .lr_range_test_step_rate = 1.0,
        .lr_range_test_step_size = 2000,
        .num_cycles = kind == ZN_LR_HF_COSINE ? 0.5 : 1.0,
        .power = 1.0,
        .lr_end = 1e-7,
    };
}

zinc_status zn_lr_find(const char *name, zn_lr_kind *out)
{
    for (int i = 0; i < N_KINDS; i++)
        if (strcasecmp(kinds[i].name, name) == 0) {
            *out = kinds[i].kind;
            return ZINC_OK;
        }
    ZN_FAIL(ZINC_E_CONFIG,
            "no learning rate schedule named \"%.64s\"; a ds_config.json has WarmupLR, "
            "WarmupDecayLR, WarmupCosineLR, OneCycle and LRRangeTest, --lr_scheduler_type has "
            "linear, cosine, constant, constant_with_warmup, cosine_with_restarts, polynomial and "
            "inverse_sqrt",
            name);
}

/* ---- checks ---- */

static zinc_status check_rate(const char *key, double value)
{
    if (!isfinite(value) || value < 0.0)
        ZN_FAIL(ZINC_E_CONFIG, "%s: expected a number >= 0, found %g", key, value);
    return ZINC_OK;
}

static zinc_status check_finite(const char *key, double value)
{
    if (!isfinite(value))
        ZN_FAIL(ZINC_E_CONFIG, "%s: expected a number, found %g", key, value);
    return ZINC_OK;
}

static zinc_status check_count(const char *key, int64_t value, int64_t min)
{
    if (value < min)
        ZN_FAIL(ZINC_E_CONFIG, "%s: expected %s integer, found %lld", key,
                min > 0 ? "a positive" : "a non-negative", (long long)value);
    return ZINC_OK;
}

static zinc_status check_total(const zn_lr_schedule *s, const char *key)
{
    if (s->total_num_steps <= 0)
        ZN_FAIL(ZINC_E_CONFIG,
                "%s: the schedule decays over the whole run and needs the number of its optimizer "
                "steps, a positive integer; found %lld",
                key, (long long)s->total_num_steps);
    return ZINC_OK;
}

static zinc_status check_warmup(const zn_lr_schedule *s)
{
    ZN_TRY(check_count("scheduler.params.warmup_num_steps", s->warmup_num_steps, 1));
    if (s->kind == ZN_LR_WARMUP_COSINE) {
        ZN_TRY(check_rate("scheduler.params.warmup_min_ratio", s->warmup_min_ratio));
        ZN_TRY(check_rate("scheduler.params.cos_min_ratio", s->cos_min_ratio));
    } else {
        ZN_TRY(check_rate("scheduler.params.warmup_min_lr", s->warmup_min_lr));
        if (!isnan(s->warmup_max_lr))
            ZN_TRY(check_rate("scheduler.params.warmup_max_lr", s->warmup_max_lr));
    }
    if (s->kind != ZN_LR_WARMUP)
        ZN_TRY(check_total(s, "scheduler.params.total_num_steps"));
    return ZINC_OK;
}

static zinc_status check_one_cycle(const zn_lr_schedule *s)
{
    if (isnan(s->cycle_min_lr) || isnan(s->cycle_max_lr))
        ZN_FAIL(ZINC_E_CONFIG, "scheduler.params.%s: OneCycle needs it and it is not given",
                isnan(s->cycle_min_lr) ? "cycle_min_lr" : "cycle_max_lr");
    ZN_TRY(check_rate("scheduler.params.cycle_min_lr", s->cycle_min_lr));
    ZN_TRY(check_rate("scheduler.params.cycle_max_lr", s->cycle_max_lr));
    ZN_TRY(check_count("scheduler.params.cycle_first_step_size", s->cycle_first_step_size, 1));
    ZN_TRY(check_count("scheduler.params.cycle_second_step_size", s->cycle_second_step_size, 0));
    ZN_TRY(check_count("scheduler.params.cycle_first_stair_count", s->cycle_first_stair_count, 0));
    ZN_TRY(check_count("scheduler.params.decay_step_size", s->decay_step_size, 0));
    ZN_TRY(check_rate("scheduler.params.decay_lr_rate", s->decay_lr_rate));
    if (s->cycle_momentum) {
        ZN_TRY(check_finite("scheduler.params.cycle_min_mom", s->cycle_min_mom));
        ZN_TRY(check_finite("scheduler.params.cycle_max_mom", s->cycle_max_mom));
        ZN_TRY(check_finite("scheduler.params.decay_mom_rate", s->decay_mom_rate));
    }
    return ZINC_OK;
}

static zinc_status check_trainer(const zn_lr_schedule *s)
{
    ZN_TRY(check_count("--warmup_steps", s->warmup_num_steps, 0));
    switch (s->kind) {
    case ZN_LR_HF_COSINE:
    case ZN_LR_HF_COSINE_WITH_RESTARTS:
        ZN_TRY(check_finite("lr_scheduler_kwargs.num_cycles", s->num_cycles));
        return check_total(s, "--max_steps");
    case ZN_LR_HF_LINEAR:
        return check_total(s, "--max_steps");
    case ZN_LR_HF_POLYNOMIAL:
        ZN_TRY(check_finite("lr_scheduler_kwargs.power", s->power));
        ZN_TRY(check_rate("lr_scheduler_kwargs.lr_end", s->lr_end));
        if (!(s->base_lr > s->lr_end))
            ZN_FAIL(ZINC_E_CONFIG,
                    "lr_scheduler_kwargs.lr_end: %g is not smaller than the learning rate %g that "
                    "the schedule starts from",
                    s->lr_end, s->base_lr);
        return check_total(s, "--max_steps");
    default:
        return ZINC_OK;
    }
}

zinc_status zn_lr_check(const zn_lr_schedule *schedule)
{
    const zn_lr_schedule *s = schedule;
    ZN_TRY(check_rate("optimizer.params.lr", s->base_lr));
    switch (s->kind) {
    case ZN_LR_FIXED:
        return ZINC_OK;
    case ZN_LR_WARMUP:
    case ZN_LR_WARMUP_DECAY:
    case ZN_LR_WARMUP_COSINE:
        return check_warmup(s);
    case ZN_LR_ONE_CYCLE:
        return check_one_cycle(s);
    case ZN_LR_RANGE_TEST:
        ZN_TRY(check_rate("scheduler.params.lr_range_test_min_lr", s->lr_range_test_min_lr));
        ZN_TRY(
            check_finite("scheduler.params.lr_range_test_step_rate", s->lr_range_test_step_rate));
        return check_count("scheduler.params.lr_range_test_step_size", s->lr_range_test_step_size,
                           1);
    default:
        return check_trainer(s);
    }
}

/* ---- DeepSpeed's, at i = its last_batch_iteration; the caller handles i < 0 ---- */

/* Share of the warm-up done at i < W, W = max(2, warmup_num_steps). */
static double warmup_share(const zn_lr_schedule *s, int64_t W, int64_t i)
{
    if (s->warmup_linear)
        return (double)i / (double)W;
    return 1.0 / log((double)W) * log((double)i + 1.0);
}

static int64_t warmup_steps(const zn_lr_schedule *s)
{
    return s->warmup_num_steps > 2 ? s->warmup_num_steps : 2;
}

static double warmup_at(const zn_lr_schedule *s, int64_t i)
{
    const double max_lr = isnan(s->warmup_max_lr) ? s->base_lr : s->warmup_max_lr;
    if (i < 0)
        return s->warmup_min_lr;
    const int64_t W = warmup_steps(s), T = s->total_num_steps;
    double share = 1.0;
    if (i < W)
        share = warmup_share(s, W, i);
    else if (s->kind == ZN_LR_WARMUP_DECAY)
        share = fmax(0.0, (double)(T - i) / fmax(1.0, (double)(T - W)));
    return s->warmup_min_lr + (max_lr - s->warmup_min_lr) * share;
}

static double warmup_cosine_at(const zn_lr_schedule *s, int64_t i)
{
    if (i < 0)
        return 0.0;
    const int64_t W = warmup_steps(s), T = s->total_num_steps;
    if (i < W) {
        const double share = warmup_share(s, W, i);
        return s->base_lr * (s->warmup_min_ratio + share * (1.0 - s->warmup_min_ratio));
    }
    const double x = fmin(1.0, (double)(i - W + 1) / fmax(1.0, (double)(T - W)));
    const double ratio = s->cos_min_ratio + (1.0 - s->cos_min_ratio) * (1.0 + cos(PI * x)) / 2.0;
    return s->base_lr * fmax(0.0, ratio);
}

static double range_test_at(const zn_lr_schedule *s, int64_t i)
{
    double n = (double)(i + 1) / (double)s->lr_range_test_step_size;
    if (s->lr_range_test_staircase)
        n = floor(n);
    return s->lr_range_test_min_lr * (1.0 + s->lr_range_test_step_rate * n);
}

static int64_t cycle_second(const zn_lr_schedule *s)
{
    return s->cycle_second_step_size > 0 ? s->cycle_second_step_size : s->cycle_first_step_size;
}

/* Height in the cycle at i, 0 (minimum rate) to 1 (maximum): up over the first size, down over the
 * second, in stairs where a stair count is given. */
static double cycle_height(const zn_lr_schedule *s, int64_t i)
{
    const double first = (double)s->cycle_first_step_size, second = (double)cycle_second(s);
    const double total = first + second, up_share = first / total;
    const double b = (double)i + 1.0;
    const double x = 1.0 + b / total - floor(1.0 + b / total);
    const bool up = x <= up_share;
    const int64_t second_stairs =
        s->cycle_second_stair_count >= 0 ? s->cycle_second_stair_count : s->cycle_first_stair_count;
    const int64_t stairs = up ? s->cycle_first_stair_count : second_stairs;
    if (stairs <= 0)
        return up ? x / up_share : (x - 1.0) / (up_share - 1.0);
    const double at = fmod(b, total);
    const double stair =
        at <= first ? at * (double)stairs / first : (total - at) * (double)stairs / second;
    return floor(stair) / (double)stairs;
}

/* Steps past the end of the cycle at i, or 0 inside it. */
static int64_t past_cycle(const zn_lr_schedule *s, int64_t i)
{
    const int64_t total = s->cycle_first_step_size + cycle_second(s);
    return i < total ? 0 : i - total + 1;
}

static double one_cycle_at(const zn_lr_schedule *s, int64_t i)
{
    const int64_t past = past_cycle(s, i);
    if (i < 0)
        return s->cycle_min_lr;
    if (past == 0)
        return s->cycle_min_lr + (s->cycle_max_lr - s->cycle_min_lr) * cycle_height(s, i);
    if (s->decay_step_size == 0)
        return s->cycle_min_lr;
    return s->cycle_min_lr / (1.0 + s->decay_lr_rate * ((double)past / (double)s->decay_step_size));
}

bool zn_lr_betas_at(const zn_lr_schedule *schedule, int64_t step, double *beta1, double *beta2)
{
    const zn_lr_schedule *s = schedule;
    if (s->kind != ZN_LR_ONE_CYCLE || !s->cycle_momentum)
        return false;
    const int64_t i = step - 2, past = past_cycle(s, i);
    if (i < 0)
        *beta1 = s->cycle_min_mom;
    else if (past == 0)
        *beta1 = s->cycle_max_mom - (s->cycle_max_mom - s->cycle_min_mom) * cycle_height(s, i);
    else if (s->decay_step_size == 0)
        *beta1 = s->cycle_max_mom;
    else
        *beta1 = s->cycle_max_mom *
                 (1.0 + s->decay_mom_rate * ((double)past / (double)s->decay_step_size));
    *beta2 = 0.99; /* DeepSpeed's constant, whatever the optimizer's betas say */
    return true;
}

/* ---- the Trainer's, at i = applied steps before this one ---- */

static double polynomial_at(const zn_lr_schedule *s, int64_t i)
{
    const int64_t W = s->warmup_num_steps, T = s->total_num_steps;
    if (i > T || T <= W) /* the peer divides by 0 where the run ends with the warm-up */
        return s->lr_end;
    const double left = 1.0 - (double)(i - W) / (double)(T - W);
    return (s->base_lr - s->lr_end) * pow(left, s->power) + s->lr_end;
}

/* Factor on base_lr of the kinds with a cosine. */
static double cosine_factor(const zn_lr_schedule *s, int64_t i)
{
    const int64_t W = s->warmup_num_steps, T = s->total_num_steps;
    const double done = (double)(i - W) / fmax(1.0, (double)(T - W));
    if (s->kind == ZN_LR_HF_COSINE)
        return fmax(0.0, 0.5 * (1.0 + cos(PI * s->num_cycles * 2.0 * done)));
    if (done >= 1.0)
        return 0.0;
    return fmax(0.0, 0.5 * (1.0 + cos(PI * fmod(s->num_cycles * done, 1.0))));
}

static double trainer_at(const zn_lr_schedule *s, int64_t i)
{
    const int64_t W = s->warmup_num_steps, T = s->total_num_steps;
    if (s->kind == ZN_LR_HF_CONSTANT)
        return s->base_lr;
    if (i < W)
        return s->base_lr * ((double)i / (double)W);
    switch (s->kind) {
    case ZN_LR_HF_LINEAR:
        return s->base_lr * fmax(0.0, (double)(T - i) / fmax(1.0, (double)(T - W)));
    case ZN_LR_HF_COSINE:
    case ZN_LR_HF_COSINE_WITH_RESTARTS:
        return s->base_lr * cosine_factor(s, i);
    case ZN_LR_HF_POLYNOMIAL:
        return polynomial_at(s, i);
    case ZN_LR_HF_INVERSE_SQRT: {
        const double scale = W > 0 ? (double)W : 10000.0;
        return s->base_lr / sqrt(((double)i + scale - (double)W) / scale);
    }
    default:
        return s->base_lr;
    }
}

double zn_lr_at(const zn_lr_schedule *schedule, int64_t step)
{
    switch (schedule->kind) {
    case ZN_LR_FIXED:
        return schedule->base_lr;
    case ZN_LR_WARMUP:
    case ZN_LR_WARMUP_DECAY:
        return warmup_at(schedule, step - 2);
    case ZN_LR_WARMUP_COSINE:
        return warmup_cosine_at(schedule, step - 2);
    case ZN_LR_ONE_CYCLE:
        return one_cycle_at(schedule, step - 2);
    case ZN_LR_RANGE_TEST:
        return range_test_at(schedule, step - 2);
    default:
        return trainer_at(schedule, step - 1);
    }
}
