/* SPDX-License-Identifier: Apache-2.0 */
/* zero_toy.h — a stand-in for a model, to test ZeRO alone.
 *
 * Five units: a tied "embed" used first and last, three layers, a head; sizes are odd on purpose,
 * one parameter may span several chunks, one is frozen. The gradient of element i is a fixed mix of
 * its value, the rank, the step and the micro-batch: no mathematics, but every bit of the
 * parameters that were seen matters. */
#ifndef ZN_TEST_ZERO_TOY_H
#define ZN_TEST_ZERO_TOY_H

#include "zn_test.h"

#include <math.h>
#include <pthread.h>

#include "base/hash.h"
#include "base/mem.h"
#include "zero/zero.h"

#define TOY_MAX_STEPS 8

typedef struct toy_job {
    int n_ranks, steps, accumulation;
    int first_step;      /* from 0; where a restored run goes on */
    int64_t embed_elems; /* of the largest parameter */
    const char *optimizer;
    const struct toy_job
        *from; /* start from its results instead of toy_read; its settings differ */
    double clip, loss_scale;
    zn_zero_params p; /* settings; handles are filled in */
    bool eval_between, untied, unchecked;
    bool tied;          /* "embed.w" is said to be */
    bool unexpected;    /* one micro-batch a step is announced, whatever `accumulation` */
    bool announced;     /* zn_zero_announce_step before each boundary */
    bool decoder_order; /* the head is used once; the last backward does not use the embedding */
    bool whole_grads;   /* all but "embed.w" and the head's are given by grad_whole as their last */
    bool late_head;     /* the head's gradients are ready after the backward of layer.2 */
    double link_bytes_per_s; /* 0: copies are as fast as memory */
    bool may_fail;           /* `error` gets what rank 0 ended with */
    int last_rank_shard;     /* p.shard_ranks of the last rank; 0: as the others */
    int poison_step; /* from 1: rank 0 puts an infinity into the gradient of "layer.1.w"; 0: never
                      */
    /* results, the same layout whatever the sharding */
    float *masters;  /* [n_elems] */
    float *momentum; /* [n_elems] first optimizer state, trainable only */
    int64_t n_elems;
    double norms[TOY_MAX_STEPS];
    bool overflow[TOY_MAX_STEPS];
    int bad_param;
    int stored_bf16; /* gradients that rank 0 stored rounded */
    zn_error error;
    zn_zero_stats stats; /* of rank 0, after the last step; counts of that step alone */
    zn_comm_stats comm;
    zn_mem_usage memory, host;        /* rank 0 */
    int64_t allocs_late;              /* device allocations after step 2 */
    int64_t in_flight_beside_compute; /* most collectives in flight while a unit was used */
} toy_job;

typedef struct toy_rank {
    toy_job *job;
    zn_thread_world *world;
    int rank;
    pthread_t thread;
    zn_error error;
} toy_rank;

static inline zinc_status toy_list(const toy_job *job, zn_param_list *list, int64_t *first)
{
    static const char *const units[] = {"embed", "layer.0", "layer.1", "layer.2", "head"};
    static const struct {
        const char *name;
        int unit;
        int64_t n;
        bool frozen;
    } params[] = {
        {"embed.w", 0, 0, false},      {"layer.0.norm", 1, 37, false},
        {"layer.0.w", 1, 1001, false}, {"layer.0.b", 1, 7, false},
        {"layer.1.w", 2, 1003, false}, {"layer.1.frozen", 2, 501, true},
        {"layer.1.norm", 2, 5, false}, {"layer.2.w", 3, 1009, false},
        {"layer.2.b", 3, 1, false},    {"head.norm", 4, 37, false},
    };
    int64_t at = 0;
    for (int u = 0; u < 5; u++)
        ZN_TRY(zn_param_list_add_unit(list, units[u], NULL));
    for (size_t i = 0; i < sizeof params / sizeof params[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", params[i].name);
        const zn_param_spec spec = {.name = name,
                                    .n_dims = 1,
                                    .shape = {params[i].n ? params[i].n : job->embed_elems},
                                    .unit = params[i].unit,
                                    .trainable = !params[i].frozen,
                                    .tied = i == 0 && job->tied};
        ZN_TRY(zn_param_list_add(list, &spec, NULL));
        if (first)
            first[i] = at;
        at += spec.shape[0];
    }
    return ZINC_OK;
}

#define TOY_N_PARAMS 10

static inline zinc_status toy_read(void *ctx, int param, int64_t offset, int64_t n, float *out)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)zn_hash_normal(zn_hash_fold((uint64_t)param + 1, (uint64_t)(offset + i)));
    return ZINC_OK;
}

static inline float toy_value(const void *data, zn_dtype dtype, int64_t i)
{
    if (dtype == ZN_DTYPE_F32)
        return ((const float *)data)[i];
    const uint16_t half = ((const uint16_t *)data)[i];
    return dtype == ZN_DTYPE_BF16 ? zn_bf16_to_f32(half) : zn_f16_to_f32(half);
}

static inline zinc_status toy_backward_param(const zn_param_hooks *h, const zn_param_list *list,
                                             int param, uint64_t key, float scale)
{
    const int unit = list->specs[param].unit;
    zn_dtype dtype = ZN_DTYPE_F32;
    bool add = true;
    void *grad = h->grad_whole && unit < 4 ? h->grad_whole(h->ctx, param, unit > 0, &dtype, &add)
                                           : h->grad(h->ctx, param);
    const void *data = h->data(h->ctx, param);
    if (!grad)
        return ZINC_OK;
    for (int64_t i = 0; i < list->specs[param].n_elems; i++) {
        const double noise = zn_hash_unit(zn_hash_fold(key, (uint64_t)i)) - 0.5;
        const float g = scale * (0.1f * toy_value(data, h->param_dtype, i) + (float)noise);
        if (dtype == ZN_DTYPE_BF16)
            ((uint16_t *)grad)[i] = zn_f32_to_bf16(g);
        else
            ((float *)grad)[i] = g + (add ? ((float *)grad)[i] : 0);
    }
    return ZINC_OK;
}

static inline zinc_status toy_unit(const zn_param_hooks *h, const zn_param_list *list, int unit,
                                   zn_pass pass, uint64_t key, float scale)
{
    ZN_TRY(h->before_use(h->ctx, unit, pass));
    for (int i = 0; pass == ZN_PASS_BACKWARD && i < list->n_specs; i++)
        if (list->specs[i].unit == unit)
            ZN_TRY(toy_backward_param(h, list, i, zn_hash_fold(key, (uint64_t)i), scale));
    return h->after_use(h->ctx, unit, pass);
}

/* The gradient of "embed.w" as a decoder has it: scattered by token ids, the table is not read. */
static inline zinc_status toy_unread(const zn_param_hooks *h, const zn_param_list *list,
                                     uint64_t key, float scale)
{
    float *grad = h->grad(h->ctx, 0);
    for (int64_t i = 0; grad && i < list->specs[0].n_elems; i++)
        grad[i] += scale * (float)(zn_hash_unit(zn_hash_fold(key, (uint64_t)i)) - 0.5);
    return ZINC_OK;
}

/* Forward 0..4 then the tied embed; backward the same way back, embed twice. */
static inline zinc_status toy_micro_batch(const toy_job *job, const zn_param_hooks *h,
                                          const zn_param_list *list, uint64_t key, float scale)
{
    for (int u = 0; u < (job->decoder_order ? 4 : 5); u++)
        ZN_TRY(toy_unit(h, list, u, ZN_PASS_FORWARD, 0, 0));
    if (!job->untied) {
        ZN_TRY(toy_unit(h, list, 0, ZN_PASS_FORWARD, 0, 0));
        ZN_TRY(toy_unit(h, list, 0, ZN_PASS_BACKWARD, zn_hash_fold(key, 77), scale));
    }
    for (int u = 4; u >= 0; u--) {
        if (u == 0 && job->decoder_order)
            ZN_TRY(toy_unread(h, list, key, scale));
        else
            ZN_TRY(toy_unit(h, list, u, ZN_PASS_BACKWARD, key, scale));
        if (u == 3 && job->late_head)
            ZN_TRY(h->grads_ready(h->ctx, 4));
        if (u < 4 || !job->late_head)
            ZN_TRY(h->grads_ready(h->ctx, u));
    }
    return ZINC_OK;
}

/* Hooks that watch: what is in flight while a unit is in use, and the poisoned gradient. */
typedef struct toy_watch {
    zn_param_hooks inner;
    zn_comm *comm;
    toy_job *job;
    bool poison;
} toy_watch;

static inline zinc_status toy_before_use(void *ctx, int unit, zn_pass pass)
{
    toy_watch *watch = ctx;
    zn_comm_stats stats;
    ZN_TRY(watch->inner.before_use(watch->inner.ctx, unit, pass));
    zn_comm_get_stats(watch->comm, &stats);
    if (zn_comm_rank(watch->comm) == 0 && stats.in_flight > watch->job->in_flight_beside_compute)
        watch->job->in_flight_beside_compute = stats.in_flight;
    return ZINC_OK;
}

static inline zinc_status toy_after_use(void *ctx, int unit, zn_pass pass)
{
    const toy_watch *watch = ctx;
    return watch->inner.after_use(watch->inner.ctx, unit, pass);
}

static inline const void *toy_data(void *ctx, int param)
{
    const toy_watch *watch = ctx;
    return watch->inner.data(watch->inner.ctx, param);
}

static inline float *toy_grad(void *ctx, int param)
{
    const toy_watch *watch = ctx;
    float *grad = watch->inner.grad(watch->inner.ctx, param);
    if (watch->poison && param == 4)
        grad[600] = INFINITY;
    return grad;
}

static inline void *toy_grad_whole(void *ctx, int param, bool last, zn_dtype *dtype, bool *add)
{
    const toy_watch *watch = ctx;
    void *grad = watch->inner.grad_whole(watch->inner.ctx, param, last, dtype, add);
    if (zn_comm_rank(watch->comm) == 0)
        watch->job->stored_bf16 += *dtype == ZN_DTYPE_BF16;
    return grad;
}

static inline zinc_status toy_grads_ready(void *ctx, int unit)
{
    const toy_watch *watch = ctx;
    return watch->inner.grads_ready(watch->inner.ctx, unit);
}

static inline zn_param_hooks toy_hooks(toy_watch *watch)
{
    return (zn_param_hooks){.ctx = watch,
                            .param_dtype = watch->inner.param_dtype,
                            .before_use = toy_before_use,
                            .after_use = toy_after_use,
                            .data = toy_data,
                            .grad = toy_grad,
                            .grad_whole = watch->job->whole_grads ? toy_grad_whole : NULL,
                            .grads_ready = toy_grads_ready};
}

typedef struct toy_saved {
    const toy_job *job;
    const int64_t *first;
} toy_saved;

/* Only the first optimizer state is kept; the tests that restore use momentum SGD. */
static inline zinc_status toy_restore(void *ctx, int what, int param, int64_t offset, int64_t n,
                                      float *out)
{
    const toy_saved *saved = ctx;
    const float *from = what == ZN_ZERO_MASTERS ? saved->job->masters : saved->job->momentum;
    memcpy(out, from + saved->first[param] + offset, (size_t)n * sizeof *out);
    return ZINC_OK;
}

typedef struct toy_out {
    float *to;
    const int64_t *first;
} toy_out;

static inline zinc_status toy_visit(void *ctx, int param, int64_t offset, int64_t n,
                                    const float *values)
{
    const toy_out *out = ctx;
    memcpy(out->to + out->first[param] + offset, values, (size_t)n * sizeof *values);
    return ZINC_OK;
}

static inline zinc_status toy_step(toy_rank *r, zn_zero *zero, zn_comm *comm,
                                   const zn_param_list *list, int step)
{
    toy_job *job = r->job;
    toy_watch watch = {.inner = *zn_zero_hooks(zero),
                       .comm = comm,
                       .job = job,
                       .poison = step + 1 == job->poison_step && r->rank == 0};
    const zn_param_hooks hooks = toy_hooks(&watch);
    const zn_param_hooks *h = &hooks;
    zn_optim_hyper hyper = {0};
    job->p.optim->defaults(&hyper);
    hyper.lr = 0.01;
    hyper.weight_decay = 0.1;
    hyper.momentum = 0.9;
    const zn_zero_step_args args = {.groups = &hyper,
                                    .t = step + 1,
                                    .loss_scale = job->loss_scale,
                                    .clip = job->clip,
                                    .unchecked = job->unchecked};
    for (int m = 0; m < job->accumulation; m++) {
        const uint64_t key = zn_hash_fold((uint64_t)(step * 100 + m), (uint64_t)r->rank);
        ZN_TRY(zn_zero_begin(zero, m == job->accumulation - 1));
        if (job->announced && m == job->accumulation - 1)
            ZN_TRY(zn_zero_announce_step(zero, &args));
        ZN_TRY(toy_micro_batch(job, h, list, key, (float)job->loss_scale));
        ZN_TRY(zn_zero_backward_end(zero));
        for (int u = 0; job->eval_between && u < 3; u++)
            ZN_TRY(toy_unit(h, list, 2 - u, ZN_PASS_EVAL, 0, 0));
    }
    zn_zero_step_result result;
    ZN_TRY(zn_zero_step(zero, &args, &result));
    if (r->rank == 0) {
        job->norms[step] = result.grad_norm;
        job->overflow[step] = result.overflow;
        job->bad_param = result.bad_param;
    }
    return ZINC_OK;
}

static inline zinc_status toy_steps(toy_rank *r, zn_zero *zero, zn_device *dev, zn_comm *comm,
                                    const zn_param_list *list)
{
    toy_job *job = r->job;
    zn_mem_usage before = {0}, after;
    for (int step = job->first_step; step < job->steps; step++) {
        if (step == job->steps - 1) { /* count one step alone */
            zn_zero_reset_stats(zero);
            zn_comm_reset_stats(comm);
        }
        if (step == 2)
            zn_device_usage(dev, ZN_PLACE_DEVICE, &before);
        ZN_TRY(toy_step(r, zero, comm, list, step));
    }
    if (r->rank == 0) {
        zn_device_usage(dev, ZN_PLACE_DEVICE, &after);
        job->allocs_late = job->steps > 2 ? after.n_allocs - before.n_allocs : 0;
        job->memory = after;
        zn_device_usage(dev, ZN_PLACE_HOST, &job->host);
        zn_zero_get_stats(zero, &job->stats);
        zn_comm_get_stats(comm, &job->comm);
    }
    return ZINC_OK;
}

static inline zinc_status toy_run_rank(toy_rank *r)
{
    zinc_status status;
    toy_job *job = r->job;
    zn_device *dev = NULL;
    zn_comm *comm = NULL;
    zn_zero *zero = NULL;
    zn_param_list list = {0};
    int64_t first[TOY_N_PARAMS];
    const zn_device_params dp = {
        .rank = r->rank, .n_threads = 1, .link_bytes_per_s = job->link_bytes_per_s};
    ZN_TRY_GOTO(zn_device_open("cpu", &dp, &dev));
    const zn_comm_params cp = {.backend = job->n_ranks == 1 ? "self" : "thread",
                               .rank = r->rank,
                               .n_ranks = job->n_ranks,
                               .world = r->world,
                               .dev = dev,
                               .timeout_ms = 30000};
    ZN_TRY_GOTO(zn_comm_open(&cp, &comm));
    zn_zero_params p = job->p;
    p.dev = dev;
    p.comm = comm;
    p.kernels = zn_kernels_get(dev);
    p.gradient_accumulation_steps = job->unexpected ? 1 : job->accumulation;
    if (job->last_rank_shard && r->rank == job->n_ranks - 1)
        p.shard_ranks = job->last_rank_shard;
    ZN_TRY_GOTO(toy_list(job, &list, first));
    ZN_TRY_GOTO(zn_zero_create(&p, &list, NULL, &zero));
    toy_saved saved = {.job = job->from, .first = first};
    if (job->from)
        ZN_TRY_GOTO(zn_zero_restore(zero, toy_restore, &saved));
    else
        ZN_TRY_GOTO(zn_zero_fill(zero, toy_read, NULL));
    ZN_TRY_GOTO(toy_steps(r, zero, dev, comm, &list));
    toy_out out = {.to = job->masters, .first = first};
    ZN_TRY_GOTO(zn_zero_visit(zero, ZN_ZERO_MASTERS, toy_visit, &out));
    out.to = job->momentum;
    ZN_TRY_GOTO(zn_zero_visit(zero, 0, toy_visit, &out));
    ZN_TRY_GOTO(zn_comm_barrier(comm, "end"));
    status = ZINC_OK;
fail:
    zn_error_save(&r->error, status);
    if (status != ZINC_OK && comm)
        zn_comm_abort(comm, r->error.message);
    zn_zero_destroy(zero);
    zn_param_list_fini(&list);
    zn_comm_close(comm);
    zn_device_close(dev);
    return zn_error_restore(&r->error);
}

static inline void *toy_thread(void *arg)
{
    zn_ignore(toy_run_rank(arg)); /* kept in rank->error */
    return NULL;
}

/* Defaults that shard everything: threshold 0, fp32, no sharing. */
static inline toy_job toy_job_new(int n_ranks, int stage)
{
    toy_job job = {.n_ranks = n_ranks,
                   .steps = 3,
                   .accumulation = 1,
                   .embed_elems = 4099,
                   .optimizer = "adamw",
                   .clip = 0.5,
                   .loss_scale = 1};
    zn_zero_params_defaults(&job.p);
    job.p.stage = stage;
    job.p.persistence_threshold = 0;
    job.p.share_parameters = false;
    job.p.overlap_comm = stage == 3;
    return job;
}

static inline void toy_run(toy_job *job)
{
    toy_rank ranks[16] = {{0}};
    zn_thread_world *world = NULL;
    job->n_elems = job->embed_elems + 37 + 1001 + 7 + 1003 + 501 + 5 + 1009 + 1 + 37;
    assert_ok(zn_optim_find(job->optimizer, &job->p.optim));
    assert_ok(zn_alloc_array(&job->masters, (size_t)job->n_elems, sizeof(float), "masters"));
    assert_ok(zn_alloc_array(&job->momentum, (size_t)job->n_elems, sizeof(float), "momentum"));
    assert_ok(zn_thread_world_create(job->n_ranks, &world));
    for (int r = 0; r < job->n_ranks; r++) {
        ranks[r] = (toy_rank){.job = job, .world = world, .rank = r};
        pthread_create(&ranks[r].thread, NULL, toy_thread, &ranks[r]);
    }
    for (int r = 0; r < job->n_ranks; r++)
        pthread_join(ranks[r].thread, NULL);
    zn_thread_world_destroy(world);
    job->error = ranks[0].error;
    for (int r = 0; r < job->n_ranks; r++)
        if (ranks[r].error.status != ZINC_OK && !job->may_fail)
            fail_msg("rank %d: %s", r, ranks[r].error.message);
}

static inline void toy_free(toy_job *job)
{
    zn_free(job->masters);
    zn_free(job->momentum);
}

static inline void assert_same_bits(const toy_job *a, const toy_job *b)
{
    assert_memory_equal(a->masters, b->masters, (size_t)a->n_elems * sizeof(float));
    assert_memory_equal(a->momentum, b->momentum, (size_t)a->n_elems * sizeof(float));
    assert_memory_equal(a->norms, b->norms, sizeof a->norms);
}

#endif
