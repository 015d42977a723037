/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that span keys, checked on resolved values. Source: DeepSpeed 0.19.8, runtime/config.py,
 * runtime/zero/config.py, runtime/zero/stage_1_and_2.py and stage3.py (asserts of __init__). */
#include <stdio.h>
#include <string.h>

#include "config/config_internal.h"

static zn_slot *slot_of(zn_config *config, const char *path)
{
    return zn_slot_at(config->resolved, path);
}

static bool is_word(const zn_slot *slot, const char *word)
{
    return slot->state == ZN_SLOT_GIVEN && strcmp(slot->text, word) == 0;
}

static zinc_status check_precision(zn_config *config)
{
    const zn_slot *fp16 = slot_of(config, "fp16.enabled"), *bf16 = slot_of(config, "bf16.enabled");
    const zn_slot *window = slot_of(config, "fp16.loss_scale_window");
    const zn_slot *min_scale = slot_of(config, "fp16.min_loss_scale");
    if (fp16->flag && bf16->flag) {
        char *a = NULL, *b = NULL;
        zinc_status status = zn_slot_origin(fp16, &a);
        if (status == ZINC_OK)
            status = zn_slot_origin(bf16, &b);
        if (status == ZINC_OK)
            status = zn_config_add_error(
                config, "bf16.enabled", bf16->line, bf16->column, "switch one of them off",
                "fp16.enabled (%s) and bf16.enabled (%s) are both true", a, b);
        zn_free(a);
        zn_free(b);
        ZN_TRY(status);
    }
    if (!fp16->flag || slot_of(config, "fp16.loss_scale")->number != 0)
        return ZINC_OK;
    if (window->integer == 0)
        ZN_TRY(zn_config_add_error(config, "fp16.loss_scale_window", window->line, window->column,
                                   "the default is 1000",
                                   "a dynamic loss scale needs a window of at least 1 step"));
    if (min_scale->integer == 0)
        ZN_TRY(zn_config_add_error(config, "fp16.min_loss_scale", min_scale->line,
                                   min_scale->column, "the default is 1",
                                   "a dynamic loss scale needs a smallest scale of at least 1"));
    return ZINC_OK;
}

/* Dividing before the sum is for all-reduce only. */
static zinc_status check_scaling(zn_config *config, int64_t stage)
{
    const bool scatters = slot_of(config, "zero_optimization.reduce_scatter")->flag;
    const zn_slot *prescale = slot_of(config, "prescale_gradients");
    const zn_slot *factor = slot_of(config, "gradient_predivide_factor");
    const char *hint = stage == 2 ? "\"reduce_scatter\": false, or a stage below 2, allows it"
                                  : "a stage below 2 allows it";
    if (stage < 2 || (stage == 2 && !scatters))
        return ZINC_OK;
    if (prescale->flag)
        ZN_TRY(zn_config_add_error(config, "prescale_gradients", prescale->line, prescale->column,
                                   hint,
                                   "gradients cannot be scaled first in stage %d, which "
                                   "scatters them",
                                   (int)stage));
    if (factor->number != 1)
        ZN_TRY(zn_config_add_error(
            config, "gradient_predivide_factor", factor->line, factor->column, hint,
            "only 1 is possible in stage %d, which scatters gradients", (int)stage));
    return ZINC_OK;
}

static zinc_status check_nvme(zn_config *config, const char *block)
{
    char path[80];
    snprintf(path, sizeof path, "%s.nvme_path", block);
    const zn_slot *where = slot_of(config, path);
    const bool has_path = where->state == ZN_SLOT_GIVEN && *where->text;
    snprintf(path, sizeof path, "%s.device", block);
    const zn_slot *device = slot_of(config, path);
    if (!is_word(device, "nvme") || has_path)
        return ZINC_OK;
    return zn_config_add_error(config, path, device->line, device->column,
                               "add \"nvme_path\": \"/some/fast/folder\" beside it",
                               "device \"nvme\" needs nvme_path");
}

static zinc_status check_offload(zn_config *config, int64_t stage)
{
    const zn_slot *ratio = slot_of(config, "zero_optimization.offload_optimizer.ratio");
    zn_slot *device = slot_of(config, "zero_optimization.offload_param.device");
    if (stage != 3 && !is_word(device, "none")) { /* as DeepSpeed, which does not look at it */
        ZN_TRY(zn_config_add_note(config,
                                  "%s:%d: zero_optimization.offload_param has no effect in stage "
                                  "%d, whose parameters are whole on every rank",
                                  config->name, device->line, (int)stage));
        char *none;
        ZN_TRY(zn_strdup("none", &none));
        zn_free(device->text);
        device->text = none;
        device->source = ZN_FROM_AUTO;
        device->why = "no effect below stage 3";
    }
    if (stage != 3 && ratio->number != 1)
        ZN_TRY(zn_config_add_error(config, "zero_optimization.offload_optimizer.ratio", ratio->line,
                                   ratio->column, "remove it, or use stage 3",
                                   "partial offload is for stage 3 only, and the stage is %d",
                                   (int)stage));
    ZN_TRY(check_nvme(config, "zero_optimization.offload_param"));
    return check_nvme(config, "zero_optimization.offload_optimizer");
}

static zinc_status require(zn_config *config, const char *path, const char *hint)
{
    const zn_slot *slot = slot_of(config, path);
    const zn_slot *type = slot_of(config, "scheduler.type");
    if (slot->state == ZN_SLOT_GIVEN || slot->source == ZN_FROM_AUTO)
        return ZINC_OK;
    return zn_config_add_error(config, path, type->line, type->column, hint,
                               "%s needs it, and it is not given", type->text);
}

/* Any other name means log, with a warning. Source: lr_schedules.py, WarmupLR.__init__. */
static zinc_status check_warmup_type(zn_config *config)
{
    zn_slot *type = slot_of(config, "scheduler.params.warmup_type");
    char *log;
    if (type->state != ZN_SLOT_GIVEN || is_word(type, "log") || is_word(type, "linear"))
        return ZINC_OK;
    ZN_TRY(zn_config_add_note(config,
                              "%s:%d: scheduler.params.warmup_type \"%.80s\" is neither log nor "
                              "linear: log is used, as in DeepSpeed",
                              config->name, type->line, type->text));
    ZN_TRY(zn_strdup("log", &log));
    zn_free(type->text);
    type->text = log;
    type->source = ZN_FROM_AUTO;
    type->why = "the name in the file is unknown";
    return ZINC_OK;
}

static zinc_status check_schedule(zn_config *config)
{
    const zn_slot *type = slot_of(config, "scheduler.type");
    const zn_slot *total = slot_of(config, "scheduler.params.total_num_steps");
    const zn_slot *warmup = slot_of(config, "scheduler.params.warmup_num_steps");
    ZN_TRY(check_warmup_type(config));
    if (is_word(type, "OneCycle")) {
        ZN_TRY(require(config, "scheduler.params.cycle_min_lr", "for example 1e-5"));
        ZN_TRY(require(config, "scheduler.params.cycle_max_lr", "for example 1e-3"));
    }
    if (is_word(type, "WarmupDecayLR") || is_word(type, "WarmupCosineLR"))
        ZN_TRY(require(config, "scheduler.params.total_num_steps",
                       "write \"auto\" to take the length of the run"));
    if (total->state == ZN_SLOT_GIVEN && warmup->state == ZN_SLOT_GIVEN &&
        total->integer < warmup->integer)
        ZN_TRY(zn_config_add_note(
            config, "%s: the run of %lld steps ends inside the warm-up of %lld steps", config->name,
            (long long)total->integer, (long long)warmup->integer));
    return ZINC_OK;
}

zinc_status zn_config_check_rules(zn_config *config)
{
    const int64_t stage = slot_of(config, "zero_optimization.stage")->integer;
    ZN_TRY(check_precision(config));
    ZN_TRY(check_scaling(config, stage));
    ZN_TRY(check_offload(config, stage));
    return check_schedule(config);
}
