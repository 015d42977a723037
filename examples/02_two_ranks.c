/* SPDX-License-Identifier: Apache-2.0 */
/* 02_two_ranks — the smallest job: two ranks that are threads, a linear model, ZeRO stage 2.
 *
 * Each rank sees its own rows of y = x . (1, -2, 0.5) + 3 and finds the four numbers again. The
 * engine sums the ranks' gradients, each rank keeps and updates its half of the optimizer state,
 * and both end with the same weights. Next: 03_zero3_mlp. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zinc/engine.h"

#define N_RANKS 2
#define N_STEPS 300
#define ROWS 8 /* of one rank in one step */
#define DIMS 3

static const char settings[] = "{\"train_micro_batch_size_per_gpu\": 8,"
                               " \"zero_optimization\": {\"stage\": 2},"
                               " \"optimizer\": {\"type\": \"AdamW\","
                               "   \"params\": {\"lr\": 0.05, \"weight_decay\": 0}}}";

static const float wanted[DIMS + 1] = {1, -2, 0.5f, 3};

/* Examples stop at the first error; a library would pass the status on. */
static void must(zinc_status status)
{
    if (status == ZINC_OK)
        return;
    fprintf(stderr, "%s: %s\n", zinc_status_name(status), zinc_last_error());
    exit(1);
}

/* A number in [-1, 1) that depends on (step, rank, row, dim) alone. */
static float input(int step, int rank, int row, int dim)
{
    unsigned x = (unsigned)(((step * N_RANKS + rank) * ROWS + row) * DIMS + dim) * 2654435761u;
    x = (x ^ (x >> 15)) * 2246822519u;
    return (float)(x >> 8 & 0xFFFF) / 32768.0f - 1.0f;
}

static zinc_status zeros(void *ctx, int param, int64_t offset, int64_t n, float *out)
{
    (void)ctx;
    (void)param;
    (void)offset;
    memset(out, 0, (size_t)n * sizeof *out);
    return ZINC_OK;
}

static zinc_engine *make_engine(zinc_comm *comm)
{
    zinc_config *config = NULL;
    zinc_config_facts facts = ZINC_CONFIG_FACTS_INIT;
    facts.world_size = zinc_comm_n_ranks(comm);
    must(zinc_config_parse(settings, strlen(settings), "settings", &config));
    must(zinc_config_resolve(config, &facts));

    zinc_engine *engine = NULL;
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    params.comm = comm;
    params.config = config;
    must(zinc_engine_create(&params, &engine));
    zinc_config_destroy(config); /* the engine has read what it needs */

    zinc_param weight = ZINC_PARAM_INIT, bias = ZINC_PARAM_INIT;
    must(zinc_engine_add_unit(engine, "linear", NULL)); /* unit 0 */
    weight.name = "weight";
    weight.shape[0] = DIMS;
    bias.name = "bias";
    must(zinc_engine_add_param(engine, &weight, NULL)); /* parameter 0 */
    must(zinc_engine_add_param(engine, &bias, NULL));   /* parameter 1 */
    must(zinc_engine_build(engine));
    must(zinc_engine_fill(engine, zeros, NULL));
    return engine;
}

/* One micro-batch: squared error, averaged over the rows of all ranks. Returns this rank's part. */
static double micro_batch(zinc_engine *engine, int step, int rank)
{
    const void *weight = NULL, *bias = NULL;
    float *d_weight = NULL, *d_bias = NULL;
    double loss = 0;
    must(zinc_engine_acquire(engine, 0, ZINC_PASS_FORWARD));
    must(zinc_engine_data(engine, 0, &weight));
    must(zinc_engine_data(engine, 1, &bias));
    must(zinc_engine_grad(engine, 0, &d_weight));
    must(zinc_engine_grad(engine, 1, &d_bias));
    for (int row = 0; row < ROWS; row++) {
        float y = ((const float *)bias)[0], target = wanted[DIMS];
        for (int d = 0; d < DIMS; d++) {
            y += input(step, rank, row, d) * ((const float *)weight)[d];
            target += input(step, rank, row, d) * wanted[d];
        }
        const float diff = y - target, slope = 2 * diff / (ROWS * N_RANKS);
        loss += diff * diff / (ROWS * N_RANKS);
        for (int d = 0; d < DIMS; d++)
            d_weight[d] += slope * input(step, rank, row, d); /* add: never set */
        d_bias[0] += slope;
    }
    must(zinc_engine_release(engine, 0));
    must(zinc_engine_reduce(engine, 0));
    must(zinc_engine_backward_end(engine));
    return loss;
}

typedef struct rank_job {
    zinc_thread_world *world;
    int rank;
    float weights[DIMS + 1];
} rank_job;

static void *run_rank(void *arg)
{
    rank_job *const job = arg;
    zinc_comm *comm = NULL;
    must(zinc_comm_create_thread(job->world, job->rank, NULL, &comm));
    zinc_engine *engine = make_engine(comm);
    for (int step = 0; step < N_STEPS; step++) {
        zinc_step_result result = ZINC_STEP_RESULT_INIT;
        double loss = micro_batch(engine, step, job->rank);
        must(zinc_engine_step(engine, NULL, &result));
        must(zinc_comm_sum(comm, &loss, 1, "loss"));
        if (job->rank == 0 && step % 50 == 0)
            printf("step %3d  loss %.6f  gradient norm %.6f\n", step, loss, result.grad_norm);
    }
    must(zinc_engine_read(engine, ZINC_MASTERS, 0, job->weights));
    must(zinc_engine_read(engine, ZINC_MASTERS, 1, job->weights + DIMS));
    zinc_engine_destroy(engine);
    zinc_comm_destroy(comm);
    return NULL;
}

int main(void)
{
    zinc_thread_world *world = NULL;
    rank_job jobs[N_RANKS];
    pthread_t threads[N_RANKS];
    must(zinc_thread_world_create(N_RANKS, &world));
    for (int r = 0; r < N_RANKS; r++) {
        jobs[r] = (rank_job){.world = world, .rank = r};
        if (pthread_create(&threads[r], NULL, run_rank, &jobs[r]) != 0)
            return 1;
    }
    for (int r = 0; r < N_RANKS; r++)
        pthread_join(threads[r], NULL);
    zinc_thread_world_destroy(world);

    int bad = memcmp(jobs[0].weights, jobs[1].weights, sizeof jobs[0].weights) != 0;
    for (int d = 0; d <= DIMS; d++) {
        printf("%s %d  %+.4f  wanted %+.4f\n", d < DIMS ? "weight" : "bias  ", d,
               jobs[0].weights[d], wanted[d]);
        bad |= fabsf(jobs[0].weights[d] - wanted[d]) > 0.02f;
    }
    return bad;
}
