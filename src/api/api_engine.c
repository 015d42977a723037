/* SPDX-License-Identifier: Apache-2.0 */
/* api_engine.c — making an engine: settings, groups, what is registered, build. */
#include <math.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/hash.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/hyper.h"

_Static_assert(ZINC_MAX_DIMS == ZN_MAX_DIMS, "public and internal shapes are as long");

/* ---- groups of hyper-parameters ---- */

static zinc_status take_value(int group, const char *name, double value, double max, double *field)
{
    if (value == ZINC_KEEP)
        return ZINC_OK;
    if (!isfinite(value) || value < 0 || value >= max)
        ZN_FAIL(ZINC_E_INVALID, "group %d: %s is %g; it must not be negative%s", group, name, value,
                max == 1 ? ", and be below 1" : "");
    *field = value;
    return ZINC_OK;
}

static zinc_status take_group(const zinc_engine *engine, int g, const zinc_group *given,
                              zn_optim_hyper *hyper, double *lr)
{
    zinc_group known = ZINC_GROUP_INIT;
    *hyper = engine->base;
    *lr = (double)NAN;
    if (given)
        ZN_TRY(zn_api_take(&known, sizeof known, given, "zinc_group"));
    ZN_TRY(take_value(g, "lr", known.lr, INFINITY, lr));
    ZN_TRY(take_value(g, "weight_decay", known.weight_decay, INFINITY, &hyper->weight_decay));
    ZN_TRY(take_value(g, "beta1", known.beta1, 1, &hyper->beta1));
    ZN_TRY(take_value(g, "beta2", known.beta2, 1, &hyper->beta2));
    ZN_TRY(take_value(g, "eps", known.eps, INFINITY, &hyper->eps));
    ZN_TRY(take_value(g, "momentum", known.momentum, INFINITY, &hyper->momentum));
    ZN_TRY(take_value(g, "dampening", known.dampening, INFINITY, &hyper->dampening));
    if (!isnan(*lr))
        hyper->lr = *lr;
    return ZINC_OK;
}

/* The caller's array has elements of the size that its header had. */
static const zinc_group *group_at(const zinc_group *groups, int g)
{
    return groups ? (const zinc_group *)(const void *)((const char *)groups +
                                                       (size_t)g * groups[0].struct_size)
                  : NULL;
}

zinc_status zn_api_take_groups(zinc_engine *engine, const zinc_group *groups)
{
    zinc_status status;
    zn_optim_hyper *hyper = NULL;
    double *lr = NULL;
    const size_t n = (size_t)engine->n_groups;
    ZN_TRY_GOTO(zn_alloc_array(&hyper, n, sizeof *hyper, "groups"));
    ZN_TRY_GOTO(zn_alloc_array(&lr, n, sizeof *lr, "rates of groups"));
    for (int g = 0; g < engine->n_groups; g++)
        ZN_TRY_GOTO(take_group(engine, g, group_at(groups, g), &hyper[g], &lr[g]));
    if (engine->zero && engine->optim &&
        zn_optim_lean(engine->optim_full, hyper, engine->n_groups) != engine->optim &&
        engine->optim != engine->optim_full)
        ZN_FAIL_GOTO(ZINC_E_INVALID,
                     "a group has momentum now, but none had any when the engine was built, so it "
                     "keeps no momentum buffer");
    zn_free(engine->groups);
    zn_free(engine->group_lr);
    engine->groups = hyper;
    engine->group_lr = lr;
    return ZINC_OK;
fail:
    zn_free(hyper);
    zn_free(lr);
    return status;
}

/* ---- settings ---- */

static zinc_status check_config(const zinc_engine_params *p)
{
    ZN_API_NEED(p->comm);
    ZN_API_NEED(p->config);
    const int n_ranks = zn_comm_n_ranks(p->comm->comm);
    if (p->config->world_size == 0)
        ZN_FAIL(ZINC_E_INVALID, "the configuration is not resolved: call zinc_config_resolve");
    if (p->config->world_size != n_ranks)
        ZN_FAIL(ZINC_E_INVALID,
                "the configuration was resolved for %lld ranks, and the comm has %d: set "
                "zinc_config_facts.world_size",
                (long long)p->config->world_size, n_ranks);
    if (!(p->grad_divisor > 0) || !isfinite(p->grad_divisor))
        ZN_FAIL(ZINC_E_INVALID, "grad_divisor is %g; it must be above 0", p->grad_divisor);
    if (p->n_groups < 0 || (p->n_groups > 0 && !p->groups))
        ZN_FAIL(ZINC_E_INVALID, "%d groups were announced, and none given", p->n_groups);
    return ZINC_OK;
}

static zinc_status take_memory(zinc_engine *e, const zinc_param_memory *given)
{
    zinc_param_memory m = ZINC_PARAM_MEMORY_INIT;
    if (!given)
        return ZINC_OK;
    ZN_TRY(zn_api_take(&m, sizeof m, given, "zinc_param_memory"));
    if (!m.get || !m.put)
        ZN_FAIL(ZINC_E_INVALID, "zinc_param_memory has no get or no put");
    e->zero_params.memory = (zn_zero_memory){.get = m.get, .put = m.put, .ctx = m.ctx};
    e->zero_params.share_parameters = false;
    return ZINC_OK;
}

static zinc_status configure(zinc_engine *e, const zinc_engine_params *p)
{
    const zn_config_values *const v = zn_config_get(p->config->config);
    const zn_engine_params settings = {.dev = p->comm->dev,
                                       .comm = p->comm->comm,
                                       .config = v,
                                       .share_parameters = p->share_parameters != 0};
    zn_engine_zero_params(&settings, &e->zero_params);
    ZN_TRY(take_memory(e, p->param_memory));
    if (e->zero_params.disk_path) /* build needs it, and the configuration may be gone by then */
        ZN_TRY(zn_strdup(e->zero_params.disk_path, &e->disk_path));
    e->zero_params.disk_path = e->disk_path;
    if (e->zero_params.param_disk_path)
        ZN_TRY(zn_strdup(e->zero_params.param_disk_path, &e->param_disk_path));
    e->zero_params.param_disk_path = e->param_disk_path;
    e->rank = p->comm;
    e->scaler = zn_loss_scaler_from_config(v);
    e->clip = v->gradient_clipping;
    e->divisor = p->grad_divisor;
    e->unscale_grown = p->unscale_grown != 0;
    e->unchecked = v->bf16.enabled && !v->bf16.check_grad_overflow;
    e->boundary = -1;
    e->n_groups = p->n_groups > 0 ? p->n_groups : 1;
    ZN_TRY(zn_optim_hyper_from_config(v, &e->optim_full, &e->base));
    ZN_TRY(zn_lr_from_config(v, e->optim_full, &e->base, &e->schedule));
    ZN_TRY(zn_api_take_groups(e, p->n_groups > 0 ? p->groups : NULL));
    if (p->optimizer == ZINC_OPTIMIZER_CONFIG)
        e->optim = zn_optim_lean(e->optim_full, e->groups, e->n_groups);
    e->zero_params.optim = e->optim;
    return zn_api_describe(e, p->config->config);
}

zinc_status zinc_engine_create(const zinc_engine_params *params, zinc_engine **out)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    zinc_engine_params known = ZINC_ENGINE_PARAMS_INIT;
    ZN_API_NEED(out);
    ZN_TRY(zn_api_take(&known, sizeof known, params, "zinc_engine_params"));
    ZN_TRY(check_config(&known));
    ZN_TRY(zn_alloc(&engine, sizeof *engine, "an engine"));
    ZN_TRY_GOTO(configure(engine, &known));
    *out = engine;
    return ZINC_OK;
fail:
    zinc_engine_destroy(engine);
    return status;
}

void zinc_engine_destroy(zinc_engine *engine)
{
    if (!engine)
        return;
    zn_zero_destroy(engine->zero);
    zn_param_list_fini(&engine->list);
    zn_free(engine->groups);
    zn_free(engine->group_lr);
    zn_free(engine->group_of_param);
    zn_free(engine->units);
    zn_free(engine->widened);
    zn_free(engine->disk_path);
    json_decref(engine->about.config);
    json_decref(engine->about.schedule);
    json_decref(engine->about.hyper);
    zn_free(engine->param_disk_path);
    zn_free(engine);
}

/* ---- registering ---- */

static zinc_status check_not_built(const zinc_engine *engine)
{
    if (engine->zero)
        ZN_FAIL(ZINC_E_INVALID, "the engine is built: nothing can be added any more");
    return ZINC_OK;
}

zinc_status zinc_engine_add_unit(zinc_engine *engine, const char *name, int *out)
{
    ZN_API_NEED(engine);
    ZN_API_NEED(name);
    ZN_TRY(check_not_built(engine));
    return zn_param_list_add_unit(&engine->list, name, out);
}

static zinc_status check_param(const zinc_engine *engine, const zinc_param *p)
{
    if (!p->name || !*p->name)
        ZN_FAIL(ZINC_E_INVALID, "parameter %d has no name", engine->list.n_specs);
    if (zn_param_list_find(&engine->list, p->name) >= 0)
        ZN_FAIL(ZINC_E_INVALID, "there is a parameter called %s already", p->name);
    if (p->group < 0 || p->group >= engine->n_groups)
        ZN_FAIL(ZINC_E_INVALID, "parameter %s is in group %d of %d", p->name, p->group,
                engine->n_groups);
    return ZINC_OK;
}

zinc_status zinc_engine_add_param(zinc_engine *engine, const zinc_param *param, int *out)
{
    zinc_param p = ZINC_PARAM_INIT;
    ZN_API_NEED(engine);
    ZN_TRY(zn_api_take(&p, sizeof p, param, "zinc_param"));
    ZN_TRY(check_not_built(engine));
    ZN_TRY(check_param(engine, &p));
    zn_param_spec spec = {
        .n_dims = p.n_dims, .unit = p.unit, .trainable = p.trainable != 0, .no_decay = false};
    ZN_TRY(zn_strdup(p.name, &spec.name));
    memcpy(spec.shape, p.shape, sizeof spec.shape);
    zinc_status status = zn_realloc_array(&engine->group_of_param, (size_t)engine->list.n_specs + 1,
                                          sizeof *engine->group_of_param, "groups of parameters");
    if (status == ZINC_OK) {
        engine->group_of_param[engine->list.n_specs] = p.group;
        status = zn_param_list_add(&engine->list, &spec, out); /* copies the name */
    }
    zn_free(spec.name);
    return status;
}

static zinc_status alloc_for_build(zinc_engine *engine)
{
    if (engine->list.n_specs == 0)
        ZN_FAIL(ZINC_E_INVALID, "an engine needs at least one parameter");
    ZN_TRY(zn_alloc_array(&engine->units, (size_t)engine->list.n_units, sizeof *engine->units,
                          "units"));
    return zn_alloc_array(&engine->widened, (size_t)ZN_API_BLOCK, sizeof(float),
                          "a block of values");
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return zn_hash_bytes(hash, text, strlen(text) + 1);
}

static uint64_t hash_registered(const zinc_engine *engine)
{
    const zn_param_list *const list = &engine->list;
    uint64_t hash = zn_hash_fold((uint64_t)list->n_units, (uint64_t)list->n_specs);
    for (int u = 0; u < list->n_units; u++)
        hash = hash_text(hash, list->unit_names[u]);
    for (int i = 0; i < list->n_specs; i++) {
        const zn_param_spec *const spec = &list->specs[i];
        const int64_t numbers[] = {spec->unit, spec->trainable, engine->group_of_param[i],
                                   spec->n_dims};
        hash = hash_text(hash, spec->name);
        hash = zn_hash_bytes(hash, numbers, sizeof numbers);
        hash = zn_hash_bytes(hash, spec->shape, (size_t)spec->n_dims * sizeof spec->shape[0]);
    }
    return hash;
}

/* A difference that changes no size would go unseen by the comm. */
static zinc_status compare_registered(const zinc_engine *engine)
{
    zn_comm *const comm = engine->rank->comm;
    const uint64_t mine = hash_registered(engine);
    uint64_t first = mine;
    zn_event event = {0};
    ZN_TRY(zn_comm_broadcast(comm, &first, sizeof first, 0, "registered parameters", &event));
    ZN_TRY(zn_event_wait(event, -1));
    if (mine != first)
        ZN_FAIL(ZINC_E_INVALID,
                "rank %d registered other units or parameters than rank 0: names, order, shapes, "
                "trainable and group must be the same on every rank",
                zn_comm_rank(comm));
    return ZINC_OK;
}

zinc_status zinc_engine_build(zinc_engine *engine)
{
    ZN_API_NEED(engine);
    ZN_TRY(check_not_built(engine));
    ZN_TRY(zn_comm_agree(engine->rank->comm, alloc_for_build(engine)));
    ZN_TRY(zn_comm_agree(engine->rank->comm, compare_registered(engine)));
    return zn_zero_create(&engine->zero_params, &engine->list, engine->group_of_param,
                          &engine->zero);
}

/* ---- asking ---- */

zinc_status zn_api_check_built(const zinc_engine *engine)
{
    if (!engine->zero)
        ZN_FAIL(ZINC_E_INVALID, "the engine is not built yet: call zinc_engine_build");
    return ZINC_OK;
}

zinc_status zn_api_check_param(const zinc_engine *engine, int param)
{
    ZN_TRY(zn_api_check_built(engine));
    if (param < 0 || param >= engine->list.n_specs)
        ZN_FAIL(ZINC_E_INVALID, "there is no parameter %d: the engine has %d", param,
                engine->list.n_specs);
    return ZINC_OK;
}

zinc_status zn_api_check_unit(const zinc_engine *engine, int unit)
{
    ZN_TRY(zn_api_check_built(engine));
    if (unit < 0 || unit >= engine->list.n_units)
        ZN_FAIL(ZINC_E_INVALID, "there is no unit %d: the engine has %d", unit,
                engine->list.n_units);
    return ZINC_OK;
}

int zinc_engine_n_params(const zinc_engine *engine)
{
    return engine ? engine->list.n_specs : 0;
}

int zinc_engine_n_units(const zinc_engine *engine)
{
    return engine ? engine->list.n_units : 0;
}

int zinc_engine_find_param(const zinc_engine *engine, const char *name)
{
    return engine && name ? zn_param_list_find(&engine->list, name) : -1;
}

zinc_status zinc_engine_get_param(const zinc_engine *engine, int param, zinc_param *out)
{
    ZN_API_NEED(engine);
    if (param < 0 || param >= engine->list.n_specs)
        ZN_FAIL(ZINC_E_INVALID, "there is no parameter %d: the engine has %d", param,
                engine->list.n_specs);
    const zn_param_spec *const spec = &engine->list.specs[param];
    zinc_param known = ZINC_PARAM_INIT;
    known.name = spec->name;
    known.unit = spec->unit;
    known.n_dims = spec->n_dims;
    for (int d = 0; d < spec->n_dims; d++)
        known.shape[d] = spec->shape[d];
    known.trainable = spec->trainable;
    known.group = engine->group_of_param[param];
    return zn_api_give(&known, sizeof known, out, "zinc_param");
}

zinc_dtype zinc_engine_param_dtype(const zinc_engine *engine)
{
    return engine ? (zinc_dtype)engine->zero_params.param_dtype : ZINC_F32;
}
