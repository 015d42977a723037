/* SPDX-License-Identifier: Apache-2.0 */
/* Every value of a run: defaults, the batch triad, every "auto". Formulas are the Trainer's
 * (transformers/integrations/deepspeed.py, 5.24). */
#include <math.h>
#include <stdio.h>

#include "config/config_internal.h"

#define MAX_HIDDEN ((int64_t)1 << 30) /* its square fits 63 bits */

static void set_number(zn_slot *slot, double value, const char *why)
{
    slot->state = ZN_SLOT_GIVEN;
    slot->source = ZN_FROM_AUTO;
    slot->number = value;
    slot->integer = (int64_t)value;
    slot->why = why;
}

static bool is_auto(const zn_slot *slot)
{
    return slot->state == ZN_SLOT_AUTO;
}

/* Copy what was read; absent keys take their defaults. */
static zinc_status start(zn_config *config)
{
    ZN_TRY(zn_alloc_array(&config->resolved, (size_t)zn_n_keys, sizeof *config->resolved,
                          "values of a configuration"));
    for (int i = 0; i < zn_n_keys; i++) {
        ZN_TRY(zn_slot_copy(&config->slots[i], &config->resolved[i]));
        if (config->resolved[i].state == ZN_SLOT_ABSENT)
            ZN_TRY(zn_slot_set_default(&zn_keys[i], &config->resolved[i]));
    }
    return ZINC_OK;
}

static void resolve_trainer_defaults(zn_config *config)
{
    static const struct {
        const char *path;
        double value;
        const char *why;
    } defaults[] = {
        {"gradient_clipping", 1.0, "the Trainer's default max_grad_norm"},
        {"optimizer.params.lr", 5e-5, "the Trainer's default learning_rate"},
        {"optimizer.params.eps", 1e-8, "the Trainer's default adam_epsilon"},
        {"optimizer.params.weight_decay", 0.0, "the Trainer's default weight_decay"},
        {"fp16.enabled", 0, "no --fp16 was given"},
        {"bf16.enabled", 0, "no --bf16 was given"},
        {"zero_optimization.stage3_gather_16bit_weights_on_model_save", 0, "DeepSpeed's default"},
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        zn_slot *slot = zn_slot_at(config->resolved, defaults[i].path);
        if (is_auto(slot))
            set_number(slot, defaults[i].value, defaults[i].why);
    }
    zn_slot *betas = zn_slot_at(config->resolved, "optimizer.params.betas");
    if (is_auto(betas)) {
        set_number(betas, 0, "the Trainer's default adam_beta1 and adam_beta2");
        betas->pair[0] = betas->pair[1] = (double)NAN;
    }
    if (isnan(betas->pair[0]))
        betas->pair[0] = 0.9;
    if (isnan(betas->pair[1]))
        betas->pair[1] = 0.999;
}

/* Optimizer steps of the run, 0 if not known. The Trainer's set_initial_training_values: a short
 * last accumulation counts as a step. */
static int64_t run_length(const zn_config *config, const zn_config_facts *facts)
{
    const double n_epochs = isnan(config->n_epochs) ? facts->n_epochs : config->n_epochs;
    if (config->max_steps > 0)
        return config->max_steps;
    if (facts->max_steps > 0)
        return facts->max_steps;
    if (facts->n_samples <= 0 || !(n_epochs > 0))
        return 0;
    const int64_t micro = zn_slot_at(config->resolved, "train_micro_batch_size_per_gpu")->integer;
    const int64_t steps = zn_slot_at(config->resolved, "gradient_accumulation_steps")->integer;
    const double batches =
        ceil((double)facts->n_samples / ((double)micro * (double)facts->world_size));
    const double a_epoch = fmax(ceil(batches / (double)steps), 1.0);
    return (int64_t)fmin(ceil(n_epochs * a_epoch), 0x1p62);
}

/* Steps that --warmup_steps and --warmup_ratio ask for, at least 1; 0 if neither was given or the
 * run's length is needed and not known. As get_warmup_steps: steps win over a ratio unless they are
 * 0, and a number below 1 is a ratio. */
static int64_t warmup_argument(const zn_config *config, int64_t total, const char **name)
{
    const bool by_ratio = !(config->warmup_steps > 0) && !isnan(config->warmup_ratio);
    const double x = by_ratio ? config->warmup_ratio : config->warmup_steps;
    *name = by_ratio ? "warmup_ratio" : "warmup_steps";
    if (isnan(x) || (x > 0 && x < 1 && total == 0) || (by_ratio && x > 0 && total == 0))
        return 0;
    const double steps = by_ratio || x < 1 ? ceil((double)total * x) : x;
    return (int64_t)fmax(1.0, steps);
}

static zinc_status resolve_warmup(zn_config *config, int64_t total)
{
    static const char path[] = "scheduler.params.warmup_num_steps";
    const char *name;
    zn_slot *slot = zn_slot_at(config->resolved, path);
    const int64_t asked = warmup_argument(config, total, &name);
    if (asked > 0) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)asked);
        const zn_slot value = {.source = ZN_FROM_ARGUMENT,
                               .argument = name,
                               .integer = asked,
                               .number = (double)asked};
        ZN_TRY(zn_config_fill(config, config->resolved, path, &value, text));
    }
    if (is_auto(slot))
        set_number(slot, 1, "no warm-up was asked for");
    return ZINC_OK;
}

static zinc_status resolve_schedule(zn_config *config, const zn_config_facts *facts)
{
    const int64_t total = run_length(config, facts);
    zn_slot *min_lr = zn_slot_at(config->resolved, "scheduler.params.warmup_min_lr");
    zn_slot *max_lr = zn_slot_at(config->resolved, "scheduler.params.warmup_max_lr");
    zn_slot *steps = zn_slot_at(config->resolved, "scheduler.params.total_num_steps");
    const zn_slot *lr = zn_slot_at(config->resolved, "optimizer.params.lr");
    if (is_auto(min_lr))
        set_number(min_lr, 0, "the Trainer's value");
    if (is_auto(max_lr))
        set_number(max_lr, lr->state == ZN_SLOT_GIVEN ? lr->number : 5e-5, "the learning rate");
    if (is_auto(steps) && total > 0) {
        set_number(steps, (double)total, "optimizer steps of the run");
    } else if (is_auto(steps)) {
        steps->state = ZN_SLOT_ABSENT;
        steps->source = ZN_FROM_AUTO;
        steps->why = "known when the length of the run is (--max_steps)";
    }
    return resolve_warmup(config, total);
}

static zinc_status resolve_sizes(zn_config *config, int64_t hidden)
{
    const int64_t stage = zn_slot_at(config->resolved, "zero_optimization.stage")->integer;
    const double h = (double)hidden;
    const struct {
        const char *path;
        double value;
        const char *why;
        bool needs_stage3;
    } sizes[] = {
        {"zero_optimization.reduce_bucket_size", h * h, "hidden size squared", false},
        {"zero_optimization.stage3_prefetch_bucket_size", floor(0.9 * h * h),
         "0.9 x hidden size squared", true},
        {"zero_optimization.stage3_param_persistence_threshold", 10 * h, "10 x hidden size", true},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int row = zn_key_find(sizes[i].path);
        zn_slot *slot = &config->resolved[row];
        if (!is_auto(slot))
            continue;
        if (hidden > 0 && (stage == 3 || !sizes[i].needs_stage3)) {
            set_number(slot, sizes[i].value, sizes[i].why);
            continue;
        }
        ZN_TRY(zn_slot_set_default(&zn_keys[row], slot));
        slot->source = ZN_FROM_AUTO;
        slot->why = hidden > 0 ? "no effect below stage 3; DeepSpeed's default"
                               : "the model's hidden size is not known; DeepSpeed's default";
    }
    return ZINC_OK;
}

static zinc_status resolve_places(zn_config *config)
{
    static const char *const paths[] = {
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.nvme_path",
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const int row = zn_key_find(paths[i]);
        zn_slot *slot = &config->resolved[row];
        if (!is_auto(slot))
            continue;
        slot->state = ZN_SLOT_ABSENT;
        ZN_TRY(zn_slot_set_default(&zn_keys[row], slot));
        slot->source = ZN_FROM_AUTO;
        slot->why = "DeepSpeed's default";
    }
    zn_slot *overlap = zn_slot_at(config->resolved, "zero_optimization.overlap_comm");
    if (overlap->state == ZN_SLOT_ABSENT) {
        const int64_t stage = zn_slot_at(config->resolved, "zero_optimization.stage")->integer;
        overlap->state = ZN_SLOT_GIVEN;
        overlap->source = ZN_FROM_AUTO;
        overlap->flag = stage == 3;
        overlap->why = "on in stage 3 only";
    }
    return ZINC_OK;
}

static zinc_status write_origins(zn_config *config)
{
    for (int i = 0; i < zn_n_keys; i++)
        ZN_TRY(zn_slot_origin(&config->resolved[i], &config->resolved[i].origin));
    return ZINC_OK;
}

static zinc_status resolve_all(zn_config *config, const zn_config_facts *facts)
{
    ZN_TRY(start(config));
    ZN_TRY(zn_config_resolve_strategy(config, facts));
    ZN_TRY(zn_config_resolve_batch(config, facts->world_size, facts->default_micro_batch));
    resolve_trainer_defaults(config);
    ZN_TRY(resolve_schedule(config, facts));
    ZN_TRY(resolve_sizes(config, facts->hidden_size));
    ZN_TRY(resolve_places(config));
    ZN_TRY(zn_config_check_rules(config));
    return write_origins(config);
}

zinc_status zn_config_resolve(zn_config *config, const zn_config_facts *facts)
{
    if (facts->world_size < 1)
        ZN_FAIL(ZINC_E_INVALID, "world size %lld: at least one rank is needed",
                (long long)facts->world_size);
    if (facts->hidden_size < 0 || facts->hidden_size > MAX_HIDDEN)
        ZN_FAIL(ZINC_E_INVALID, "hidden size %lld: expected 0 (unknown) to %lld",
                (long long)facts->hidden_size, (long long)MAX_HIDDEN);
    zn_config_forget_resolved(config);
    const zinc_status status = resolve_all(config, facts);
    if (status != ZINC_OK) {
        zn_config_forget_resolved(config);
        return status;
    }
    zn_config_store(config->resolved, &config->values);
    return zn_config_conclude(config);
}
