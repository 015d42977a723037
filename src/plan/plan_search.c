/* SPDX-License-Identifier: Apache-2.0 */
/* plan_search.c — the cheapest change of a configuration that fits.
 *
 * Changes are taken in order of what they cost in speed until everything fits; then those that turn
 * out not to be needed are taken back, the dearest first. */
#include <stdio.h>

#include "plan/plan.h"

/* Sizes that cost little speed and no longer show in the memory of a large model (elements). */
#define SMALL_BUCKET 50000000
#define SMALL_PREFETCH 5000000
#define SMALL_LIVE 100000000

/* In order of cost; a number is the most that may be used. */
typedef enum level {
    AS_GIVEN,
    MICRO_BATCH,
    CHECKPOINTING,
    BUCKETS,
    STAGE,
    OPTIMIZER_CPU,
    PARAM_CPU,
    OPTIMIZER_DISK,
} level;

typedef struct choice {
    int64_t micro_batch;
    bool checkpointing, small_buckets;
    int stage;
    zn_offload_device optimizer, params;
} choice;

static choice choice_of(const zn_plan_run *run)
{
    return (choice){.micro_batch = run->config.train_micro_batch_size_per_gpu,
                    .checkpointing = run->checkpointing,
                    .stage = run->config.zero.stage,
                    .optimizer = run->config.zero.offload_optimizer,
                    .params = run->config.zero.offload_param};
}

static void lower(int64_t *value, int64_t most)
{
    if (*value > most)
        *value = most;
}

/* The global batch stays: what a micro-batch loses, accumulation takes. */
static zn_plan_run with(const zn_plan_run *run, const choice *c)
{
    zn_plan_run out = *run;
    const zn_plan_variant variant = {c->stage, c->optimizer, c->params};
    const int64_t rows =
        run->config.train_micro_batch_size_per_gpu * run->config.gradient_accumulation_steps;
    zn_plan_apply_variant(&variant, &out);
    out.config.train_micro_batch_size_per_gpu = c->micro_batch;
    out.config.gradient_accumulation_steps = rows / c->micro_batch;
    out.checkpointing = c->checkpointing;
    if (c->small_buckets) {
        lower(&out.config.zero.reduce_bucket_size, SMALL_BUCKET);
        lower(&out.config.zero.prefetch_bucket_size, SMALL_PREFETCH);
        lower(&out.config.zero.max_live_parameters, SMALL_LIVE);
    }
    return out;
}

static zinc_status make(const zn_plan_run *run, const choice *c, zn_plan *plan)
{
    const zn_plan_run variant = with(run, c);
    return zn_plan_make(&variant, plan);
}

/* Add the change of one level; everything that it needs comes with it. */
static void raise_to(choice *c, level to)
{
    if (to == MICRO_BATCH)
        c->micro_batch = 1;
    if (to == CHECKPOINTING)
        c->checkpointing = true;
    if (to == BUCKETS)
        c->small_buckets = true;
    if (to >= STAGE)
        c->stage = 3;
    if (to == OPTIMIZER_CPU && c->optimizer == ZN_OFFLOAD_NONE)
        c->optimizer = ZN_OFFLOAD_CPU;
    if (to == PARAM_CPU && c->params == ZN_OFFLOAD_NONE)
        c->params = ZN_OFFLOAD_CPU;
    if (to == OPTIMIZER_DISK)
        c->optimizer = ZN_OFFLOAD_NVME;
}

static bool is_valid(const choice *c)
{
    return (c->params == ZN_OFFLOAD_NONE || c->stage == 3) &&
           (c->optimizer == ZN_OFFLOAD_NONE || c->stage > 0);
}

/* Keep `trial` if it fits. */
static zinc_status try_choice(const zn_plan_run *run, const choice *trial, choice *c)
{
    zn_plan plan;
    if (!is_valid(trial))
        return ZINC_OK;
    ZN_TRY(make(run, trial, &plan));
    if (plan.fits)
        *c = *trial;
    return ZINC_OK;
}

/* Take back what is not needed: parameters off the device, stages, buckets, checkpointing, and of
 * the micro-batch as much as fits. */
static zinc_status take_back(const zn_plan_run *run, choice *c)
{
    const choice given = choice_of(run);
    choice trial = *c;
    trial.params = given.params;
    ZN_TRY(try_choice(run, &trial, c));
    for (int stage = c->stage - 1; stage >= given.stage; stage--) {
        trial = *c;
        trial.stage = stage;
        ZN_TRY(try_choice(run, &trial, c));
    }
    trial = *c;
    trial.small_buckets = false;
    ZN_TRY(try_choice(run, &trial, c));
    trial = *c;
    trial.checkpointing = given.checkpointing;
    ZN_TRY(try_choice(run, &trial, c));
    for (int64_t micro = given.micro_batch; micro > c->micro_batch; micro--) {
        if (given.micro_batch % micro != 0) /* the global batch must stay */
            continue;
        trial = *c;
        trial.micro_batch = micro;
        ZN_TRY(try_choice(run, &trial, c));
    }
    return ZINC_OK;
}

/* On few ranks the units that stage 3 gathers can outweigh what it shards: a lower stage may fit
 * where it does not. */
static zinc_status try_stages(const zn_plan_run *run, choice *c, zn_plan *plan)
{
    choice best = *c;
    ZN_TRY(make(run, c, plan));
    for (int stage = c->stage - 1; stage >= run->config.zero.stage && !plan->fits; stage--) {
        zn_plan other;
        choice trial = *c;
        trial.stage = stage;
        if (!is_valid(&trial))
            continue;
        ZN_TRY(make(run, &trial, &other));
        if (other.fits) {
            best = trial;
            *plan = other;
        }
    }
    *c = best;
    return ZINC_OK;
}

/* ---- what changed ---- */

static void add_number(zn_plan_search *s, const char *key, int64_t before, int64_t after,
                       const char *what)
{
    if (before == after)
        return;
    zn_plan_fix *fix = &s->fixes[s->n_fixes++];
    *fix = (zn_plan_fix){.key = key, .what = what};
    snprintf(fix->value, sizeof fix->value, "%lld", (long long)after);
}

static void add_device(zn_plan_search *s, const char *key, zn_offload_device before,
                       zn_offload_device after, const char *what)
{
    if (before == after)
        return;
    zn_plan_fix *fix = &s->fixes[s->n_fixes++];
    *fix = (zn_plan_fix){.key = key, .what = what};
    snprintf(fix->value, sizeof fix->value, "\"%s\"", after == ZN_OFFLOAD_CPU ? "cpu" : "nvme");
}

static void list_fixes(const zn_plan_run *run, zn_plan_search *s)
{
    const zn_config_values *a = &run->config, *b = &s->run.config;
    add_number(s, "train_micro_batch_size_per_gpu", a->train_micro_batch_size_per_gpu,
               b->train_micro_batch_size_per_gpu, "smaller micro-batches");
    add_number(s, "gradient_accumulation_steps", a->gradient_accumulation_steps,
               b->gradient_accumulation_steps, "the same global batch");
    if (run->checkpointing != s->run.checkpointing)
        s->fixes[s->n_fixes++] = (zn_plan_fix){
            .key = "--gradient_checkpointing",
            .value = "true",
            .what = "blocks are computed again in backward; a third more computation"};
    add_number(s, "zero_optimization.reduce_bucket_size", a->zero.reduce_bucket_size,
               b->zero.reduce_bucket_size, "smaller buckets");
    add_number(s, "zero_optimization.stage3_prefetch_bucket_size", a->zero.prefetch_bucket_size,
               b->zero.prefetch_bucket_size, "less is gathered ahead");
    add_number(s, "zero_optimization.stage3_max_live_parameters", a->zero.max_live_parameters,
               b->zero.max_live_parameters, "fewer gathered units are kept");
    add_number(s, "zero_optimization.stage", a->zero.stage, b->zero.stage,
               b->zero.stage == 1   ? "optimizer state is sharded"
               : b->zero.stage == 2 ? "gradients and optimizer state are sharded"
                                    : "parameters, gradients and optimizer state are sharded");
    add_device(s, "zero_optimization.offload_optimizer.device", a->zero.offload_optimizer,
               b->zero.offload_optimizer, "masters and optimizer state leave the device");
    add_device(s, "zero_optimization.offload_param.device", a->zero.offload_param,
               b->zero.offload_param, "parameter shards leave the device");
}

#define MOST_NODES 64

/* Where nothing fits: how many nodes of this kind would be enough. */
static zinc_status find_nodes(zn_plan_search *s)
{
    zn_plan_run run = s->run;
    zn_plan plan;
    while (++run.hw.nodes <= MOST_NODES && run.hw.nodes * run.hw.gpus <= ZN_ZERO_MAX_RANKS) {
        ZN_TRY(zn_plan_make(&run, &plan));
        if (!plan.fits)
            continue;
        s->nodes = run.hw.nodes;
        return ZINC_OK;
    }
    return ZINC_OK;
}

zinc_status zn_plan_find(const zn_plan_run *run, zn_plan_search *out)
{
    zn_plan_search s = {.given = run, .run = *run};
    choice c = choice_of(run);
    int at = AS_GIVEN;
    ZN_TRY(zn_plan_make(run, &s.before));
    s.after = s.before;
    while (!s.after.fits && at < OPTIMIZER_DISK) {
        at++;
        raise_to(&c, (level)at);
        ZN_TRY(try_stages(run, &c, &s.after));
        if (at == PARAM_CPU) {
            s.cpu_only = s.after;
            s.needs_disk = !s.after.fits;
        }
    }
    s.found = s.after.fits;
    if (s.found)
        ZN_TRY(take_back(run, &c));
    s.run = with(run, &c);
    ZN_TRY(zn_plan_make(&s.run, &s.after));
    if (!s.found)
        ZN_TRY(find_nodes(&s));
    list_fixes(run, &s);
    *out = s;
    return ZINC_OK;
}
