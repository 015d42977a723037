/* SPDX-License-Identifier: Apache-2.0 */
/* api_ranks.h — a small job through the public headers: ranks that are threads, an engine of three
 * units, gradients that depend on every bit of the parameters. */
#ifndef ZN_TEST_API_RANKS_H
#define ZN_TEST_API_RANKS_H

#include "zn_test.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "zinc/engine.h"

#define MAX_RANKS 4
#define N_PARAMS 4
#define N_ELEMS (300 + 7 + 150 + 41)

static const int param_elems[N_PARAMS] = {300, 7, 150, 41};

typedef struct rank_job rank_job;
typedef zinc_status (*rank_fn)(rank_job *job, zinc_comm *comm);

struct rank_job {
    rank_fn fn;
    const char *settings; /* ds_config text without the outer braces' batch keys */
    int rank, n_ranks;
    bool over_host; /* the bytes are moved by this test */
    bool share;
    bool own_memory; /* whole parameters lie in this test's memory */
    int n_held;      /* blocks that the engine has now, and has had */
    int n_gets;
    void *ctx;
    zinc_thread_world *world;
    zn_error error;
    float masters[N_ELEMS];
    zinc_step_result last;
};

/* ---- a host program over an inner comm: finishes at once ---- */

static inline zinc_status host_all_gather(void *ctx, const void *send, void *recv, size_t n,
                                          int64_t *token)
{
    void *copy = NULL; /* `send` may lie in recv, where exchange writes */
    ZN_TRY(zn_alloc(&copy, n, "bytes to send"));
    memcpy(copy, send, n);
    const zinc_status status = zinc_comm_exchange(ctx, copy, n, recv, "host");
    zn_free(copy);
    *token = 0;
    return status;
}

static inline zinc_status host_wait(void *ctx, int64_t token, int64_t timeout_ms)
{
    (void)ctx;
    (void)token;
    (void)timeout_ms;
    return ZINC_OK;
}

static inline zinc_status run_over_host(rank_job *job, zinc_comm *inner)
{
    zinc_comm *comm = NULL;
    zinc_comm_host host = ZINC_COMM_HOST_INIT;
    host.ctx = inner;
    host.rank = job->rank;
    host.n_ranks = job->n_ranks;
    host.all_gather = host_all_gather;
    host.wait = host_wait;
    ZN_TRY(zinc_comm_create_host(&host, NULL, &comm));
    const zinc_status status = job->fn(job, comm);
    zinc_comm_destroy(comm);
    return status;
}

static inline void *run_rank(void *arg)
{
    rank_job *const job = arg;
    zinc_comm *comm = NULL;
    zinc_status status = zinc_comm_create_thread(job->world, job->rank, NULL, &comm);
    if (status == ZINC_OK)
        status = job->over_host ? run_over_host(job, comm) : job->fn(job, comm);
    zn_error_save(&job->error, status);
    if (status != ZINC_OK)
        zinc_comm_abort(comm, job->error.message);
    zinc_comm_destroy(comm);
    return NULL;
}

/* Run like->fn on every rank; jobs [like->n_ranks] keep the results. */
static inline void run_ranks(const rank_job *like, rank_job *jobs)
{
    pthread_t threads[MAX_RANKS];
    zinc_thread_world *world = NULL;
    assert_ok(zinc_thread_world_create(like->n_ranks, &world));
    for (int r = 0; r < like->n_ranks; r++) {
        jobs[r] = *like;
        jobs[r].rank = r;
        jobs[r].world = world;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &jobs[r]), 0);
    }
    for (int r = 0; r < like->n_ranks; r++)
        pthread_join(threads[r], NULL);
    zinc_thread_world_destroy(world);
    for (int r = 0; r < like->n_ranks; r++)
        if (jobs[r].error.status != ZINC_OK)
            fail_msg("%s, rank %d of %d: %s", like->settings ? like->settings : "", r,
                     like->n_ranks, jobs[r].error.message);
}

/* ---- the engine ---- */

static inline void *own_get(void *ctx, int block, size_t n_bytes)
{
    rank_job *const job = ctx;
    (void)block;
    job->n_held++;
    job->n_gets++;
    return aligned_alloc(64, (n_bytes + 63) / 64 * 64);
}

static inline void own_put(void *ctx, int block, void *ptr)
{
    rank_job *const job = ctx;
    (void)block;
    job->n_held--;
    free(ptr);
}

static inline zinc_status resolved(const char *settings, int n_ranks, zinc_config **out)
{
    char text[1024];
    zinc_config_facts facts = ZINC_CONFIG_FACTS_INIT;
    facts.world_size = n_ranks;
    snprintf(text, sizeof text, "{\"train_micro_batch_size_per_gpu\": 1, %s}", settings);
    zinc_status status = zinc_config_parse(text, strlen(text), "test", out);
    if (status == ZINC_OK)
        status = zinc_config_resolve(*out, &facts);
    return status;
}

static inline zinc_status toy_value(void *ctx, int param, int64_t offset, int64_t n, float *out)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        out[i] = sinf((float)(param * 1000 + offset + i));
    return ZINC_OK;
}

/* Units a {w0, b0}, b {w1}, c {w2, frozen}; w1 is in the last of params->n_groups groups. */
static inline zinc_status add_toy_params(zinc_engine *engine, int n_groups)
{
    static const char *const names[N_PARAMS] = {"a.w", "a.b", "b.w", "c.frozen"};
    static const char *const units[] = {"a", "b", "c"};
    static const int unit_of[N_PARAMS] = {0, 0, 1, 2};
    for (int u = 0; u < 3; u++)
        ZN_TRY(zinc_engine_add_unit(engine, units[u], NULL));
    for (int i = 0; i < N_PARAMS; i++) {
        zinc_param p = ZINC_PARAM_INIT;
        p.name = names[i];
        p.unit = unit_of[i];
        p.shape[0] = param_elems[i];
        p.trainable = i != 3;
        p.group = i == 2 ? n_groups - 1 : 0;
        ZN_TRY(zinc_engine_add_param(engine, &p, NULL));
    }
    return ZINC_OK;
}

/* params NULL: as the job says. */
static inline zinc_status make_toy(rank_job *job, zinc_comm *comm, const zinc_engine_params *params,
                                   zinc_engine **out)
{
    zinc_status status;
    zinc_config *config = NULL;
    zinc_engine *engine = NULL;
    zinc_engine_params p = ZINC_ENGINE_PARAMS_INIT;
    if (params)
        p = *params;
    ZN_TRY_GOTO(resolved(job->settings, zinc_comm_n_ranks(comm), &config));
    p.comm = comm;
    p.config = config;
    p.share_parameters = job->share;
    zinc_param_memory memory = ZINC_PARAM_MEMORY_INIT;
    memory.ctx = job;
    memory.get = own_get;
    memory.put = own_put;
    if (job->own_memory)
        p.param_memory = &memory;
    ZN_TRY_GOTO(zinc_engine_create(&p, &engine));
    ZN_TRY_GOTO(add_toy_params(engine, p.n_groups > 0 ? p.n_groups : 1));
    ZN_TRY_GOTO(zinc_engine_build(engine));
    zinc_config_destroy(config);
    *out = engine;
    return ZINC_OK;
fail:
    zinc_engine_destroy(engine);
    zinc_config_destroy(config);
    return status;
}

static inline float widen(const void *data, zinc_dtype dtype, int i)
{
    if (dtype == ZINC_F32)
        return ((const float *)data)[i];
    const uint16_t half = ((const uint16_t *)data)[i];
    return dtype == ZINC_BF16 ? zn_bf16_to_f32(half) : zn_f16_to_f32(half);
}

/* Gradient of element i: a mix of its value and (key, i), times scale. Written in place for
 * parameter 0, handed over for the others. */
static inline zinc_status toy_gradient(zinc_engine *engine, int param, int key, float scale)
{
    float values[300], *grad = NULL;
    const void *data = NULL;
    ZN_TRY(zinc_engine_data(engine, param, &data));
    for (int i = 0; i < param_elems[param]; i++)
        values[i] = scale * (0.3f * widen(data, zinc_engine_param_dtype(engine), i) +
                             cosf((float)(key * 131 + param * 17 + i)));
    if (param != 0)
        return zinc_engine_grad_ready(engine, param, values, ZINC_F32);
    ZN_TRY(zinc_engine_grad(engine, param, &grad));
    for (int i = 0; i < param_elems[param]; i++)
        grad[i] += values[i];
    return ZINC_OK;
}

static inline zinc_status toy_micro_batch(zinc_engine *engine, int key, float scale)
{
    for (int u = 0; u < 3; u++) {
        ZN_TRY(zinc_engine_acquire(engine, u, ZINC_PASS_FORWARD));
        ZN_TRY(zinc_engine_release(engine, u));
    }
    for (int u = 1; u >= 0; u--) { /* c is frozen: left to backward_end */
        ZN_TRY(zinc_engine_acquire(engine, u, ZINC_PASS_BACKWARD));
        for (int p = u == 1 ? 2 : 0; p < (u == 1 ? 3 : 2); p++)
            ZN_TRY(toy_gradient(engine, p, key, scale));
        ZN_TRY(zinc_engine_release(engine, u));
        ZN_TRY(zinc_engine_reduce(engine, u));
    }
    return zinc_engine_backward_end(engine);
}

static inline zinc_status read_toy(zinc_engine *engine, float *masters)
{
    for (int p = 0, at = 0; p < N_PARAMS; at += param_elems[p++])
        ZN_TRY(zinc_engine_read(engine, ZINC_MASTERS, p, masters + at));
    return ZINC_OK;
}

#endif
