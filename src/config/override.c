/* SPDX-License-Identifier: Apache-2.0 */
/* Trainer arguments fill keys that are absent or "auto"; one that contradicts an explicit value of
 * the file is an error. As transformers/integrations/deepspeed.py (5.24) does, but an argument
 * also fills a key that the file leaves out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/config_internal.h"

typedef enum argument_kind {
    ARGUMENT_NUMBER,
    ARGUMENT_FLAG,
    ARGUMENT_BETA1,
    ARGUMENT_BETA2,
    ARGUMENT_MAX_STEPS,
    ARGUMENT_WARMUP_STEPS, /* these wait for zn_config_resolve */
    ARGUMENT_WARMUP_RATIO,
    ARGUMENT_EPOCHS,
} argument_kind;

static const struct {
    const char *name;
    argument_kind kind;
    const char *path, *second_path;
} known[] = {
    {"learning_rate", ARGUMENT_NUMBER, "optimizer.params.lr", "scheduler.params.warmup_max_lr"},
    {"weight_decay", ARGUMENT_NUMBER, "optimizer.params.weight_decay", NULL},
    {"adam_beta1", ARGUMENT_BETA1, "optimizer.params.betas", NULL},
    {"adam_beta2", ARGUMENT_BETA2, "optimizer.params.betas", NULL},
    {"adam_epsilon", ARGUMENT_NUMBER, "optimizer.params.eps", NULL},
    {"max_grad_norm", ARGUMENT_NUMBER, "gradient_clipping", NULL},
    {"per_device_train_batch_size", ARGUMENT_NUMBER, "train_micro_batch_size_per_gpu", NULL},
    {"gradient_accumulation_steps", ARGUMENT_NUMBER, "gradient_accumulation_steps", NULL},
    {"bf16", ARGUMENT_FLAG, "bf16.enabled", NULL},
    {"fp16", ARGUMENT_FLAG, "fp16.enabled", NULL},
    /* fills total_num_steps "auto"; a run may also end before the schedule that a file spells out
     */
    {"max_steps", ARGUMENT_MAX_STEPS, NULL, NULL},
    {"warmup_steps", ARGUMENT_WARMUP_STEPS, NULL, NULL},
    {"warmup_ratio", ARGUMENT_WARMUP_RATIO, NULL, NULL},
    {"num_train_epochs", ARGUMENT_EPOCHS, NULL, NULL},
};
#define N_KNOWN ((int)(sizeof known / sizeof *known))

int zn_config_n_arguments(void)
{
    return N_KNOWN;
}

const char *zn_config_argument_name(int i)
{
    return known[i].name;
}

static zinc_status bad_argument(zn_config *config, const zn_config_argument *argument,
                                const char *wanted)
{
    char path[80];
    snprintf(path, sizeof path, "--%s", argument->name);
    return zn_config_add_error(config, path, 0, 0, NULL, "expected %s, found \"%.100s\"", wanted,
                               argument->value);
}

/* Whether the optimizer or scheduler of the file has this parameter. Without an optimizer block
 * the program's own is an AdamW; without a scheduler block there is nothing to fill. */
bool zn_config_applies(const zn_config *config, const zn_key *key)
{
    const bool scheduler = strncmp(key->path, "scheduler.", 10) == 0;
    if (!scheduler && !key->only)
        return true;
    const zn_slot *type =
        zn_slot_at(config->slots, scheduler ? "scheduler.type" : "optimizer.type");
    if (type->state != ZN_SLOT_GIVEN)
        return !scheduler;
    return !key->only || zn_word_in(key->only, type->text, true);
}

static zinc_status conflict(zn_config *config, const zn_key *key, const zn_slot *slot,
                            const zn_slot *value, const char *text)
{
    zn_buf said = {0};
    zinc_status status = zn_slot_append(key, slot, &said);
    if (status == ZINC_OK)
        status = zn_config_add_error(
            config, slot->alias >= 0 ? zn_keys[slot->alias].path : key->path, slot->line,
            slot->column, "make them equal, or write \"auto\" in the file",
            "%s:%d says %s, argument --%s says %s", slot->file, slot->line, said.data,
            value->argument, text);
    zn_buf_fini(&said);
    return status;
}

zinc_status zn_config_fill(zn_config *config, zn_slot *slots, const char *path,
                           const zn_slot *value, const char *text)
{
    const int row = zn_key_find(path);
    const zn_key *key = &zn_keys[row];
    zn_slot *slot = &slots[row];
    if (!zn_config_applies(config, key))
        return ZINC_OK;
    if (slot->state == ZN_SLOT_GIVEN && slot->source == ZN_FROM_FILE)
        return zn_slot_same(key, slot, value) ? ZINC_OK : conflict(config, key, slot, value, text);
    zn_slot filled = *value;
    filled.state = ZN_SLOT_GIVEN;
    filled.alias = -1;
    filled.line = slot->line;
    filled.column = slot->column;
    if (key->type == ZN_KEY_PAIR && slot->source == ZN_FROM_ARGUMENT) /* the other beta */
        for (int i = 0; i < 2; i++)
            if (isnan(filled.pair[i]))
                filled.pair[i] = slot->pair[i];
    zn_slot_fini(slot);
    *slot = filled;
    return ZINC_OK;
}

static zinc_status fill_number(zn_config *config, const char *path,
                               const zn_config_argument *argument, int which)
{
    const zn_key *key = &zn_keys[zn_key_find(path)];
    char *end, wanted[200];
    const double x = strtod(argument->value, &end);
    const bool whole = x == rint(x) && fabs(x) < 0x1p62;
    if (end == argument->value || *end || !zn_key_allows(key, x) ||
        (key->type == ZN_KEY_INT && !whole)) {
        const zn_key one = {.type = key->type == ZN_KEY_INT ? ZN_KEY_INT : ZN_KEY_REAL,
                            .flags = key->flags,
                            .min = key->min,
                            .max = key->max};
        zn_key_type_text(&one, wanted, sizeof wanted);
        return bad_argument(config, argument, wanted);
    }
    zn_slot value = {.source = ZN_FROM_ARGUMENT,
                     .argument = known[which].name,
                     .number = x,
                     .integer = whole ? (int64_t)x : 0,
                     .pair = {(double)NAN, (double)NAN}};
    if (key->type == ZN_KEY_PAIR)
        value.pair[known[which].kind == ARGUMENT_BETA2] = x;
    return zn_config_fill(config, config->slots, path, &value, argument->value);
}

static zinc_status fill_flag(zn_config *config, const zn_config_argument *argument, int which)
{
    const char *text = argument->value;
    const bool on = strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0 || !*text;
    if (!on && strcasecmp(text, "false") != 0 && strcmp(text, "0") != 0)
        return bad_argument(config, argument, "true or false");
    const zn_slot value = {
        .source = ZN_FROM_ARGUMENT, .argument = known[which].name, .flag = on, .number = on};
    return zn_config_fill(config, config->slots, known[which].path, &value, on ? "true" : "false");
}

/* Arguments that are only remembered until the run's length is known. */
static zinc_status remember(zn_config *config, const zn_config_argument *argument, int which)
{
    char *end;
    const double x = strtod(argument->value, &end);
    const argument_kind kind = known[which].kind;
    const double max = kind == ARGUMENT_WARMUP_RATIO ? 1.0 : 0x1p62;
    const double min = kind == ARGUMENT_MAX_STEPS ? -1.0 : 0.0;
    if (end == argument->value || *end || !(x >= min && x <= max))
        return bad_argument(config, argument,
                            kind == ARGUMENT_WARMUP_RATIO ? "a number from 0 to 1"
                                                          : "a number >= 0");
    if ((kind == ARGUMENT_MAX_STEPS || (kind == ARGUMENT_WARMUP_STEPS && x > 1)) && x != rint(x))
        return bad_argument(config, argument, "a whole number");
    if (kind == ARGUMENT_WARMUP_STEPS)
        config->warmup_steps = x;
    else if (kind == ARGUMENT_WARMUP_RATIO)
        config->warmup_ratio = x;
    else if (kind == ARGUMENT_EPOCHS)
        config->n_epochs = x;
    else if (x > 0) /* -1 and 0: the number of epochs decides */
        config->max_steps = (int64_t)x;
    return ZINC_OK;
}

static zinc_status override_one(zn_config *config, const zn_config_argument *argument)
{
    for (int i = 0; i < N_KNOWN; i++) {
        if (strcmp(known[i].name, argument->name) != 0)
            continue;
        if (known[i].kind == ARGUMENT_FLAG)
            return fill_flag(config, argument, i);
        if (known[i].kind >= ARGUMENT_MAX_STEPS)
            return remember(config, argument, i);
        const int n_before = config->n_errors;
        ZN_TRY(fill_number(config, known[i].path, argument, i));
        if (known[i].second_path && config->n_errors == n_before)
            ZN_TRY(fill_number(config, known[i].second_path, argument, i));
        return ZINC_OK;
    }
    return ZINC_OK;
}

zinc_status zn_config_override(zn_config *config, const zn_config_argument *arguments, int n)
{
    zn_config_forget_resolved(config);
    for (int i = 0; i < n; i++)
        ZN_TRY(override_one(config, &arguments[i]));
    config->n_read_errors = config->n_errors;
    zn_config_store(config->slots, &config->values);
    return zn_config_conclude(config);
}
