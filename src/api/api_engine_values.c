/* SPDX-License-Identifier: Apache-2.0 */
/* api_engine_values.c — values in and out of an engine, and what can be counted. */
#include <math.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"

_Static_assert(ZINC_MASTERS == ZN_ZERO_MASTERS && ZINC_GRADS == ZN_ZERO_GRADS,
               "public and internal names of the masters");
_Static_assert(ZINC_N_MEMORY_CATEGORIES == ZN_N_MEM_CATEGORIES &&
                   (int)ZINC_MEMORY_BUFFERS == (int)ZN_MEM_BUFFERS,
               "public and internal categories of memory");
_Static_assert((int)ZINC_PLACE_DEVICE == (int)ZN_PLACE_DEVICE &&
                   (int)ZINC_PLACE_HOST == (int)ZN_PLACE_HOST && ZN_N_PLACES == 2,
               "public and internal places");

/* ---- in ---- */

zinc_status zn_api_check_between(zinc_engine *engine, const char *what)
{
    ZN_TRY(zn_api_check_built(engine));
    if ((engine->in_micro && engine->given) || engine->n_micro > 0)
        ZN_FAIL(ZINC_E_INVALID, "%s: gradients are being accumulated; step or skip first", what);
    for (int u = 0; u < engine->list.n_units; u++)
        if (engine->units[u].n_users > 0)
            ZN_FAIL(ZINC_E_INVALID, "%s: unit %s is acquired", what, engine->list.unit_names[u]);
    if (engine->in_micro) { /* a forward pass that no backward followed */
        engine->in_micro = engine->ready = false;
        return zn_zero_abandon(engine->zero);
    }
    return ZINC_OK;
}

zinc_status zinc_engine_fill(zinc_engine *engine, zinc_fill_fn fill, void *ctx)
{
    ZN_API_NEED(engine);
    ZN_API_NEED(fill);
    ZN_TRY(zn_api_check_between(engine, "fill"));
    return zn_zero_fill(engine->zero, fill, ctx);
}

zinc_status zinc_engine_get_progress(const zinc_engine *engine, zinc_progress *out)
{
    ZN_API_NEED(engine);
    const zn_loss_scaler *const scaler = &engine->scaler;
    const zinc_progress known = {.n_applied = engine->n_applied,
                                 .n_skipped = engine->n_skipped,
                                 .loss_scale = scaler->scale,
                                 .hysteresis_left = scaler->hysteresis_left,
                                 .scale_steps = scaler->iteration,
                                 .last_overflow = scaler->last_overflow};
    return zn_api_give(&known, sizeof known, out, "zinc_progress");
}

static zinc_status check_progress(const zinc_engine *engine, const zinc_progress *p)
{
    if (p->n_applied < 0 || p->n_skipped < 0 || p->scale_steps < 0 || p->last_overflow < -1 ||
        p->hysteresis_left < 0 || p->hysteresis_left > INT32_MAX)
        ZN_FAIL(ZINC_E_INVALID,
                "%lld applied and %lld skipped steps, %lld of the loss scale, which bears %lld "
                "more overflows: none "
                "may be negative",
                (long long)p->n_applied, (long long)p->n_skipped, (long long)p->scale_steps,
                (long long)p->hysteresis_left);
    if (p->loss_scale != 0 && (!isfinite(p->loss_scale) || p->loss_scale < 0))
        ZN_FAIL(ZINC_E_INVALID, "a loss scale of %g", p->loss_scale);
    if (p->loss_scale != 0 && engine->zero_params.param_dtype != ZN_DTYPE_F16 && p->loss_scale != 1)
        ZN_FAIL(ZINC_E_INVALID, "a loss scale of %g, and the configuration does not train in fp16",
                p->loss_scale);
    return ZINC_OK;
}

void zn_api_set_progress(zinc_engine *engine, const zinc_progress *p)
{
    engine->n_applied = p->n_applied;
    engine->n_skipped = p->n_skipped;
    if (p->loss_scale != 0 && engine->scaler.dynamic) {
        engine->scaler.scale = p->loss_scale;
        engine->scaler.hysteresis_left = (int)p->hysteresis_left;
        engine->scaler.iteration = p->scale_steps;
        engine->scaler.last_overflow = p->last_overflow;
    }
}

zinc_status zinc_engine_restore(zinc_engine *engine, zinc_restore_fn restore, void *ctx,
                                const zinc_progress *progress)
{
    zinc_progress p = ZINC_PROGRESS_INIT;
    ZN_API_NEED(engine);
    ZN_API_NEED(restore);
    ZN_TRY(zn_api_take(&p, sizeof p, progress, "zinc_progress"));
    ZN_TRY(zn_api_check_between(engine, "restore"));
    ZN_TRY(check_progress(engine, &p));
    ZN_TRY(zn_zero_restore(engine->zero, restore, ctx));
    zn_api_set_progress(engine, &p);
    return ZINC_OK;
}

/* ---- out ---- */

int zinc_engine_n_states(const zinc_engine *engine)
{
    return engine && engine->optim ? engine->optim->n_states : 0;
}

const char *zinc_engine_state_name(const zinc_engine *engine, int state)
{
    return state >= 0 && state < zinc_engine_n_states(engine) ? engine->optim->state_names[state]
                                                              : NULL;
}

static zinc_status check_what(const zinc_engine *engine, int what)
{
    ZN_TRY(zn_api_check_built(engine));
    if (what == ZINC_GRADS && (!engine->ready || engine->in_micro))
        ZN_FAIL(ZINC_E_INVALID,
                "gradients are there after a boundary's backward_end and until the step");
    if (what == ZINC_GRADS)
        return ZINC_OK;
    if (what < ZINC_MASTERS || what >= zinc_engine_n_states(engine))
        ZN_FAIL(ZINC_E_INVALID, "there is no optimizer state %d: this optimizer has %d", what,
                zinc_engine_n_states(engine));
    return ZINC_OK;
}

zinc_status zinc_engine_visit(zinc_engine *engine, int what, zinc_visit_fn visit, void *ctx)
{
    ZN_API_NEED(engine);
    ZN_API_NEED(visit);
    ZN_TRY(check_what(engine, what));
    return zn_zero_visit(engine->zero, what, visit, ctx);
}

typedef struct one_param {
    int param;
    uint32_t *bits; /* [n_elems] */
} one_param;

static zinc_status copy_own(void *ctx, int param, int64_t offset, int64_t n, const float *values)
{
    const one_param *const one = ctx;
    if (param == one->param)
        memcpy(one->bits + offset, values, (size_t)n * sizeof *one->bits);
    return ZINC_OK;
}

/* Every element is one rank's, and zero bits on the others: their union is the value, exactly. */
static zinc_status unite_ranks(zinc_engine *engine, uint32_t *bits, int64_t n_elems)
{
    uint32_t *all = NULL;
    const int n_ranks = zn_comm_n_ranks(engine->rank->comm);
    zinc_status status = ZINC_OK;
    ZN_TRY(zn_comm_agree(engine->rank->comm,
                         zn_alloc_array(&all, (size_t)n_ranks * (size_t)ZN_API_BLOCK, sizeof *all,
                                        "values of all ranks")));
    for (int64_t at = 0; at < n_elems && status == ZINC_OK; at += ZN_API_BLOCK) {
        const int64_t n = n_elems - at < ZN_API_BLOCK ? n_elems - at : ZN_API_BLOCK;
        status = zn_comm_exchange(engine->rank->comm, bits + at, (size_t)n * sizeof *bits, all,
                                  "read a parameter");
        for (int r = 0; status == ZINC_OK && r < n_ranks; r++)
            for (int64_t i = 0; i < n; i++)
                bits[at + i] |= all[(int64_t)r * n + i];
    }
    zn_free(all);
    return status;
}

zinc_status zinc_engine_read(zinc_engine *engine, int what, int param, float *out)
{
    zinc_status status;
    one_param one = {.param = param};
    ZN_API_NEED(engine);
    ZN_API_NEED(out);
    ZN_TRY(check_what(engine, what));
    ZN_TRY(zn_api_check_param(engine, param));
    const zn_param_spec *const spec = &engine->list.specs[param];
    if (what != ZINC_MASTERS && !spec->trainable)
        ZN_FAIL(ZINC_E_INVALID, "%s is frozen: it has no optimizer state and no gradient",
                spec->name);
    const size_t n = (size_t)spec->n_elems;
    ZN_TRY_GOTO(zn_comm_agree(engine->rank->comm,
                              zn_alloc_array(&one.bits, n, sizeof *one.bits, "a parameter")));
    ZN_TRY_GOTO(
        zn_comm_agree(engine->rank->comm, zn_zero_visit(engine->zero, what, copy_own, &one)));
    ZN_TRY_GOTO(unite_ranks(engine, one.bits, spec->n_elems));
    memcpy(out, one.bits, n * sizeof *out);
fail:
    zn_free(one.bits);
    return status;
}

/* ---- a model's file ---- */

static zinc_status plan_file(const zinc_engine *engine, const char *dir, zinc_dtype dtype,
                             int64_t max_shard_bytes, zn_weights_writer **out)
{
    zn_dtype type;
    zn_tensor_plan *plan = NULL;
    const int n = engine->list.n_specs;
    ZN_TRY(zn_api_real_dtype(dtype, &type));
    ZN_TRY(zn_alloc_array(&plan, (size_t)n, sizeof *plan, "a save plan"));
    for (int i = 0; i < n; i++) {
        const zn_param_spec *const spec = &engine->list.specs[i];
        plan[i] = (zn_tensor_plan){.name = spec->name, .dtype = type, .n_dims = spec->n_dims};
        memcpy(plan[i].shape, spec->shape, sizeof plan[i].shape);
    }
    const zinc_status status = zn_weights_writer_create(dir, plan, n, max_shard_bytes, out);
    zn_free(plan);
    return status;
}

static zinc_status save_range(void *ctx, int param, int64_t offset, int64_t n, const float *values)
{
    return zn_weights_writer_write(ctx, param, offset, n, values);
}

static zinc_status write_own(zinc_engine *engine, zn_weights_writer *writer)
{
    ZN_TRY(zn_zero_visit(engine->zero, ZN_ZERO_MASTERS, save_range, writer));
    return zn_weights_writer_flush(writer);
}

zinc_status zinc_engine_save(zinc_engine *engine, const char *dir, zinc_dtype dtype,
                             int64_t max_shard_bytes)
{
    zinc_status status;
    zn_weights_writer *writer = NULL;
    ZN_API_NEED(engine);
    ZN_API_NEED(dir);
    ZN_TRY(zn_api_check_between(engine, "save"));
    zn_comm *const comm = engine->rank->comm;
    const bool leader = zn_comm_rank(comm) == 0;
    ZN_TRY_GOTO(zn_comm_agree(comm, plan_file(engine, dir, dtype, max_shard_bytes, &writer)));
    ZN_TRY_GOTO(zn_comm_agree(comm, leader ? zn_weights_writer_begin(writer) : ZINC_OK));
    ZN_TRY_GOTO(zn_comm_agree(comm, write_own(engine, writer)));
    ZN_TRY_GOTO(zn_comm_agree(comm, leader ? zn_weights_writer_commit(writer) : ZINC_OK));
fail:
    zn_weights_writer_destroy(writer);
    return status;
}

/* ---- counts ---- */

zinc_status zinc_engine_memory(const zinc_engine *engine, zinc_place place, zinc_memory *out)
{
    zn_mem_usage usage;
    zinc_memory known = ZINC_MEMORY_INIT;
    ZN_API_NEED(engine);
    if (place != ZINC_PLACE_DEVICE && place != ZINC_PLACE_HOST)
        ZN_FAIL(ZINC_E_INVALID, "%d is no place", (int)place);
    zn_device_usage(engine->rank->dev, (zn_place)place, &usage);
    for (int c = 0; c < ZN_N_MEM_CATEGORIES; c++) {
        known.now[c] = usage.now[c];
        known.peak[c] = usage.peak[c];
    }
    known.total_now = usage.total_now;
    known.total_peak = usage.total_peak;
    return zn_api_give(&known, sizeof known, out, "zinc_memory");
}

const char *zinc_memory_category_name(zinc_memory_category category)
{
    return (int)category >= 0 && (int)category < ZN_N_MEM_CATEGORIES
               ? zn_mem_category_name((zn_mem_category)category)
               : NULL;
}

zinc_status zinc_engine_get_stats(const zinc_engine *engine, zinc_stats *out)
{
    zn_zero_stats s;
    ZN_API_NEED(engine);
    ZN_TRY(zn_api_check_built(engine));
    zn_zero_get_stats(engine->zero, &s);
    const zinc_stats known = {.padded_elems = s.padded_elems,
                              .trainable_padded = s.trainable_padded,
                              .persistent_elems = s.persistent_elems,
                              .n_gathers = s.n_gathers,
                              .n_prefetches = s.n_prefetches,
                              .n_reduces = s.n_reduces,
                              .live_peak = s.live_peak};
    return zn_api_give(&known, sizeof known, out, "zinc_stats");
}
