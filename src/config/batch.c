/* SPDX-License-Identifier: Apache-2.0 */
/* The batch triad: train_batch_size B = micro-batch m x accumulation g x world size W.
 * Missing members follow as in DeepSpeed's _set_batch_related_parameters (runtime/config.py
 * 0.19.8), but a division that leaves a remainder is an error at once. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config/config_internal.h"

#define BATCH "train_batch_size"
#define MICRO "train_micro_batch_size_per_gpu"
#define STEPS "gradient_accumulation_steps"

typedef struct triad {
    zn_config *config;
    zn_slot *batch, *micro, *steps;
    int64_t world;
} triad;

static bool given(const zn_slot *slot)
{
    return slot->state == ZN_SLOT_GIVEN;
}

static void derive(zn_slot *slot, int64_t value, const char *why)
{
    slot->state = ZN_SLOT_GIVEN;
    slot->source = ZN_FROM_AUTO;
    slot->integer = value;
    slot->number = (double)value;
    slot->why = why;
}

/* a * b for positive numbers; false if it does not fit. */
static bool multiply(int64_t a, int64_t b, int64_t *out)
{
    if (a > INT64_MAX / b)
        return false;
    *out = a * b;
    return true;
}

/* " 8 (ds.json:2)" */
static zinc_status append_member(const char *name, const zn_slot *slot, zn_buf *out)
{
    char *origin = NULL;
    if (!given(slot))
        return zn_buf_printf(out, "%s (not given)", name);
    ZN_TRY(zn_slot_origin(slot, &origin));
    const zinc_status status =
        zn_buf_printf(out, "%s %" PRId64 " (%s)", name, slot->integer, origin);
    zn_free(origin);
    return status;
}

/* "B … is not m … x g … x world size W": all three members and where each came from. */
static zinc_status append_identity(const triad *t, zn_buf *out)
{
    ZN_TRY(append_member(BATCH, t->batch, out));
    ZN_TRY(zn_buf_puts(out, " cannot be "));
    ZN_TRY(append_member(MICRO, t->micro, out));
    ZN_TRY(zn_buf_puts(out, " x "));
    ZN_TRY(append_member(STEPS, t->steps, out));
    return zn_buf_printf(out, " x world size %" PRId64, t->world);
}

/* The multiples of `unit` next to the batch size, and members that would fit it. */
static zinc_status append_choices(const triad *t, int64_t unit, zn_buf *out)
{
    const int64_t batch = t->batch->integer;
    const int64_t below = batch / unit * unit;
    ZN_TRY(zn_buf_puts(out, "nearest: " BATCH " "));
    if (below > 0)
        ZN_TRY(zn_buf_printf(out, "%" PRId64, below));
    if (below != batch && below <= INT64_MAX - unit)
        ZN_TRY(zn_buf_printf(out, "%s%" PRId64, below > 0 ? " or " : "", below + unit));
    if (given(t->micro) && given(t->steps)) {
        if (batch % (t->micro->integer * t->world) == 0)
            ZN_TRY(zn_buf_printf(out, ", or " STEPS " %" PRId64,
                                 batch / (t->micro->integer * t->world)));
        if (batch % (t->steps->integer * t->world) == 0)
            ZN_TRY(zn_buf_printf(out, ", or " MICRO " %" PRId64,
                                 batch / (t->steps->integer * t->world)));
    }
    return ZINC_OK;
}

static const zn_slot *first_in_file(const triad *t)
{
    return t->batch->line ? t->batch : t->micro->line ? t->micro : t->steps;
}

static zinc_status mismatch(const triad *t, int64_t unit)
{
    zn_buf message = {0}, hint = {0};
    const zn_slot *at = first_in_file(t);
    zinc_status status;
    ZN_TRY_GOTO(append_identity(t, &message));
    ZN_TRY_GOTO(append_choices(t, unit, &hint));
    ZN_TRY_GOTO(
        zn_config_add_error(t->config, BATCH, at->line, at->column, hint.data, "%s", message.data));
fail:
    zn_buf_fini(&message);
    zn_buf_fini(&hint);
    return status;
}

static zinc_status too_large(const triad *t)
{
    const zn_slot *at = first_in_file(t);
    return zn_config_add_error(t->config, BATCH, at->line, at->column, NULL,
                               MICRO " x " STEPS " x world size %" PRId64 " does not fit 64 bits",
                               t->world);
}

/* The batch size is known: the other members must divide it. */
static zinc_status split_batch(const triad *t)
{
    const int64_t batch = t->batch->integer;
    int64_t unit = t->world;
    if ((given(t->micro) && !multiply(unit, t->micro->integer, &unit)) ||
        (given(t->steps) && !multiply(unit, t->steps->integer, &unit)))
        return too_large(t);
    const bool all = given(t->micro) && given(t->steps);
    if (all ? batch != unit : batch % unit != 0)
        return mismatch(t, unit);
    if (all)
        return ZINC_OK;
    if (given(t->micro)) {
        derive(t->steps, batch / unit, BATCH " / (micro-batch x world size)");
    } else if (given(t->steps)) {
        derive(t->micro, batch / unit, BATCH " / (accumulation x world size)");
    } else {
        derive(t->steps, 1, "not given");
        derive(t->micro, batch / unit, BATCH " / world size");
    }
    return ZINC_OK;
}

zinc_status zn_config_resolve_batch(zn_config *config, int64_t world_size,
                                    int64_t default_micro_batch)
{
    const triad t = {.config = config,
                     .batch = zn_slot_at(config->resolved, BATCH),
                     .micro = zn_slot_at(config->resolved, MICRO),
                     .steps = zn_slot_at(config->resolved, STEPS),
                     .world = world_size};
    const bool any_auto = t.batch->state == ZN_SLOT_AUTO || t.micro->state == ZN_SLOT_AUTO;
    int64_t batch;
    if (given(t.batch))
        return split_batch(&t);
    if (!given(t.micro) && !any_auto && default_micro_batch == 0)
        return zn_config_add_error(config, BATCH, t.steps->line, t.steps->column,
                                   "for example \"" MICRO "\": 1",
                                   "neither " BATCH " nor " MICRO " is given");
    if (!given(t.micro) && default_micro_batch > 0)
        derive(t.micro, default_micro_batch, "the Trainer's default");
    else if (!given(t.micro))
        derive(t.micro, 1, "no --per_device_train_batch_size was given");
    if (!given(t.steps))
        derive(t.steps, 1, t.steps->state == ZN_SLOT_AUTO ? "the Trainer's default" : "not given");
    if (!multiply(t.micro->integer, t.steps->integer, &batch) ||
        !multiply(batch, world_size, &batch))
        return too_large(&t);
    derive(t.batch, batch, "micro-batch x accumulation x world size");
    return ZINC_OK;
}
