/* SPDX-License-Identifier: Apache-2.0 */
/* api_engine_run.c — micro-batches and steps.
 *
 * zero/ trusts its caller with the order of calls; here it is checked, because a wrong order from
 * outside must be a message and not a pointer into a buffer that is gone. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/mem.h"

/* ---- micro-batches ---- */

zinc_status zinc_engine_set_boundary(zinc_engine *engine, int boundary)
{
    ZN_API_NEED(engine);
    ZN_TRY(zn_api_check_built(engine));
    if (engine->in_micro && engine->given)
        ZN_FAIL(ZINC_E_INVALID, "set_boundary inside a micro-batch that has gradients: call it "
                                "before the first, or after backward_end");
    if (engine->in_micro) {
        engine->ready = boundary != 0;
        zn_zero_set_boundary(engine->zero, engine->ready);
    } else {
        engine->boundary = boundary != 0;
    }
    return ZINC_OK;
}

/* A micro-batch begins with the first call that belongs to one. */
static zinc_status begin_micro(zinc_engine *engine)
{
    if (engine->in_micro)
        return ZINC_OK;
    if (engine->ready)
        ZN_FAIL(ZINC_E_INVALID,
                "a micro-batch begins after the boundary: call zinc_engine_step or _skip first");
    const bool boundary =
        engine->boundary >= 0
            ? engine->boundary != 0
            : engine->n_micro + 1 >= engine->zero_params.gradient_accumulation_steps;
    ZN_TRY(zn_zero_begin(engine->zero, boundary));
    for (int u = 0; u < engine->list.n_units; u++)
        engine->units[u].reduced = false;
    engine->in_micro = true;
    engine->given = false;
    engine->ready = boundary; /* read once the micro-batch is over */
    engine->boundary = -1;
    return ZINC_OK;
}

static const zn_param_hooks *hooks(zinc_engine *engine)
{
    return zn_zero_hooks(engine->zero);
}

zinc_status zinc_engine_acquire(zinc_engine *engine, int unit, zinc_pass pass)
{
    ZN_API_NEED(engine);
    ZN_TRY(zn_api_check_unit(engine, unit));
    if (pass != ZINC_PASS_FORWARD && pass != ZINC_PASS_BACKWARD && pass != ZINC_PASS_EVAL)
        ZN_FAIL(ZINC_E_INVALID, "%d is no pass", (int)pass);
    if (pass != ZINC_PASS_EVAL)
        ZN_TRY(begin_micro(engine));
    ZN_TRY(hooks(engine)->before_use(hooks(engine)->ctx, unit, (zn_pass)pass));
    engine->units[unit].n_users++;
    engine->units[unit].pass = (zn_pass)pass;
    return ZINC_OK;
}

static zinc_status check_held(const zinc_engine *engine, int unit, const char *what)
{
    if (engine->units[unit].n_users < 1)
        ZN_FAIL(ZINC_E_INVALID, "%s: unit %s is not acquired", what, engine->list.unit_names[unit]);
    return ZINC_OK;
}

zinc_status zinc_engine_release(zinc_engine *engine, int unit)
{
    ZN_API_NEED(engine);
    ZN_TRY(zn_api_check_unit(engine, unit));
    ZN_TRY(check_held(engine, unit, "release"));
    engine->units[unit].n_users--;
    return hooks(engine)->after_use(hooks(engine)->ctx, unit, engine->units[unit].pass);
}

zinc_status zinc_engine_data(zinc_engine *engine, int param, const void **out)
{
    ZN_API_NEED(engine);
    ZN_API_NEED(out);
    ZN_TRY(zn_api_check_param(engine, param));
    ZN_TRY(check_held(engine, engine->list.specs[param].unit, engine->list.specs[param].name));
    *out = hooks(engine)->data(hooks(engine)->ctx, param);
    return ZINC_OK;
}

static zinc_status check_not_reduced(const zinc_engine *engine, int unit)
{
    if (engine->in_micro && engine->units[unit].reduced)
        ZN_FAIL(ZINC_E_INVALID, "the gradients of unit %s were reduced in this micro-batch already",
                engine->list.unit_names[unit]);
    return ZINC_OK;
}

/* The hook has no status: its message is there, and what failed is a buffer. */
static zinc_status no_gradient(const zinc_engine *engine, int param)
{
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", zinc_last_error());
    ZN_FAIL(ZINC_E_NOMEM, "no buffer for the gradient of %s: %s", engine->list.specs[param].name,
            reason);
}

zinc_status zinc_engine_grad(zinc_engine *engine, int param, float **out)
{
    ZN_API_NEED(engine);
    ZN_API_NEED(out);
    ZN_TRY(zn_api_check_param(engine, param));
    ZN_TRY(check_not_reduced(engine, engine->list.specs[param].unit));
    ZN_TRY(begin_micro(engine));
    engine->given = true;
    float *const grad = hooks(engine)->grad(hooks(engine)->ctx, param);
    if (!grad && engine->list.specs[param].trainable)
        return no_gradient(engine, param);
    *out = grad;
    return ZINC_OK;
}

zinc_status zinc_engine_grad_ready(zinc_engine *engine, int param, const void *values,
                                   zinc_dtype dtype)
{
    zn_dtype type;
    float *grad = NULL;
    ZN_API_NEED(engine);
    ZN_API_NEED(values);
    ZN_TRY(zn_api_real_dtype(dtype, &type));
    ZN_TRY(zinc_engine_grad(engine, param, &grad));
    const zn_param_spec *const spec = &engine->list.specs[param];
    if (!grad)
        ZN_FAIL(ZINC_E_INVALID, "%s is frozen: it takes no gradient", spec->name);
    const zn_kernels *const k = engine->zero_params.kernels;
    zn_stream *const compute = zn_device_compute(engine->rank->dev);
    for (int64_t at = 0; at < spec->n_elems; at += ZN_API_BLOCK) {
        const int64_t n = spec->n_elems - at < ZN_API_BLOCK ? spec->n_elems - at : ZN_API_BLOCK;
        const void *const from = (const char *)values + (size_t)at * zn_dtype_size(type);
        ZN_TRY(k->convert(compute, engine->widened, ZN_DTYPE_F32, from, type, 1.0f, n));
        ZN_TRY(k->add(compute, grad + at, grad + at, engine->widened, n));
    }
    return zn_stream_sync(compute, -1); /* values are the caller's again */
}

zinc_status zinc_engine_reduce(zinc_engine *engine, int unit)
{
    ZN_API_NEED(engine);
    ZN_TRY(zn_api_check_unit(engine, unit));
    ZN_TRY(check_not_reduced(engine, unit));
    ZN_TRY(begin_micro(engine));
    engine->given = true;
    ZN_TRY(hooks(engine)->grads_ready(hooks(engine)->ctx, unit));
    engine->units[unit].reduced = true;
    return ZINC_OK;
}

zinc_status zinc_engine_backward_end(zinc_engine *engine)
{
    ZN_API_NEED(engine);
    ZN_TRY(zn_api_check_built(engine));
    for (int u = 0; u < engine->list.n_units; u++)
        if (engine->units[u].n_users > 0)
            ZN_FAIL(ZINC_E_INVALID, "backward_end: unit %s is still acquired (%d times)",
                    engine->list.unit_names[u], engine->units[u].n_users);
    ZN_TRY(begin_micro(engine)); /* a rank may have had nothing to compute */
    ZN_TRY(zn_zero_backward_end(engine->zero));
    engine->in_micro = false;
    engine->n_micro++;
    return ZINC_OK;
}

/* ---- the step ---- */

double zinc_engine_loss_scale(const zinc_engine *engine)
{
    return engine ? engine->scaler.scale : 1;
}

static double group_lr(const zinc_engine *engine, int group)
{
    return isnan(engine->group_lr[group]) ? zn_lr_at(&engine->schedule, engine->n_applied + 1)
                                          : engine->group_lr[group];
}

double zinc_engine_lr(const zinc_engine *engine)
{
    return engine ? group_lr(engine, 0) : 0;
}

/* OneCycle moves the betas too. */
void zn_api_set_hyper(zinc_engine *engine)
{
    double beta1, beta2;
    const bool betas = zn_lr_betas_at(&engine->schedule, engine->n_applied + 1, &beta1, &beta2);
    for (int g = 0; g < engine->n_groups; g++) {
        engine->groups[g].lr = group_lr(engine, g);
        if (betas) {
            engine->groups[g].beta1 = beta1;
            engine->groups[g].beta2 = beta2;
        }
    }
}

static zinc_status check_can_step(const zinc_engine *engine)
{
    ZN_TRY(zn_api_check_built(engine));
    if (engine->in_micro)
        ZN_FAIL(ZINC_E_INVALID, "a step inside a micro-batch: call zinc_engine_backward_end first");
    return ZINC_OK;
}

/* By how much the loss scale grows after this step, if all is finite. */
static double growth(const zinc_engine *engine)
{
    zn_loss_scaler next = engine->scaler;
    zn_ignore(zn_loss_scaler_update(&next, false)); /* fails on overflow only */
    return next.scale / engine->scaler.scale;
}

zinc_status zinc_engine_step(zinc_engine *engine, const zinc_group *groups, zinc_step_result *out)
{
    zn_zero_step_result step;
    ZN_API_NEED(engine);
    ZN_TRY(check_can_step(engine));
    if (!engine->ready)
        ZN_FAIL(ZINC_E_INVALID,
                "a step after %lld of %lld micro-batches, of which none was a boundary "
                "(zinc_engine_set_boundary)",
                (long long)engine->n_micro,
                (long long)engine->zero_params.gradient_accumulation_steps);
    if (groups)
        ZN_TRY(zn_api_take_groups(engine, groups));
    zn_api_set_hyper(engine);
    const double scale = engine->scaler.scale;
    const zn_zero_step_args args = {.groups = engine->groups,
                                    .t = engine->n_applied + 1,
                                    .loss_scale = scale * engine->divisor,
                                    .clip = engine->clip,
                                    .shrink = engine->unscale_grown ? growth(engine) : 0,
                                    .unchecked = engine->unchecked};
    ZN_TRY(zn_zero_step(engine->zero, &args, &step));
    engine->ready = false;
    engine->n_micro = 0;
    *(step.overflow ? &engine->n_skipped : &engine->n_applied) += 1;
    const zinc_step_result result = {
        .skipped = step.overflow,
        .bad_rank = step.bad_rank,
        .bad_param = step.bad_param >= 0 ? engine->list.specs[step.bad_param].name : NULL,
        .grad_norm = step.grad_norm,
        .clip_coef = step.clip_coef,
        .loss_scale = scale,
        .lr = engine->groups[0].lr,
        .n_applied = engine->n_applied,
        .n_skipped = engine->n_skipped};
    if (out)
        ZN_TRY(zn_api_give(&result, sizeof result, out, "zinc_step_result"));
    return zn_loss_scaler_update(&engine->scaler, step.overflow);
}

zinc_status zinc_engine_skip(zinc_engine *engine)
{
    ZN_API_NEED(engine);
    ZN_TRY(check_can_step(engine));
    ZN_TRY(zn_zero_skip(engine->zero));
    engine->ready = false;
    engine->n_micro = 0;
    engine->n_skipped++;
    return ZINC_OK;
}
