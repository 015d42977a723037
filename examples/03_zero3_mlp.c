/* SPDX-License-Identifier: Apache-2.0 */
/* 03_zero3_mlp — a two-layer network under ZeRO stage 3, with forward and backward by hand.
 *
 *   hidden = tanh(x W1^T + b1)      x [ROWS, IN], W1 [HIDDEN, IN]
 *   y      = hidden W2^T + b2       W2 [HIDDEN]
 *   target = sin(3 x0) * x1 + 0.5 x2
 *
 * Two ranks hold half of everything each. A layer is a unit: it is gathered where it is acquired
 * and let go where it is released, forward and again in backward. The same training on one rank
 * with nothing sharded (stage 0, the two micro-batches one after the other) must end with the same
 * weights, bit for bit. Next: 04_save_load. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zinc/engine.h"

#define IN 4
#define HIDDEN 32
#define ROWS 32   /* of one micro-batch */
#define N_MICRO 2 /* micro-batches of a step, over all ranks */
#define N_STEPS 600
#define WANTED_LOSS 0.02

enum { W1, B1, W2, B2, N_PARAMS };
enum { LAYER_1, LAYER_2 };
static const int n_elems[N_PARAMS] = {HIDDEN * IN, HIDDEN, HIDDEN, 1};
#define N_WEIGHTS (HIDDEN * IN + HIDDEN + HIDDEN + 1)

static void must(zinc_status status)
{
    if (status == ZINC_OK)
        return;
    fprintf(stderr, "%s: %s\n", zinc_status_name(status), zinc_last_error());
    exit(1);
}

/* A number in [-1, 1) that depends on `i` alone. */
static float noise(unsigned i)
{
    unsigned x = i * 2654435761u + 12345u;
    x = (x ^ (x >> 15)) * 2246822519u;
    x = (x ^ (x >> 13)) * 3266489917u;
    return (float)(x >> 8 & 0xFFFF) / 32768.0f - 1.0f;
}

/* ---- the engine ---- */

/* Called for the ranges that this rank keeps; the value of an element does not depend on them. */
static zinc_status first_weights(void *ctx, int param, int64_t offset, int64_t n, float *out)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        out[i] = param == B1 || param == B2 ? 0.0f
                                            : 0.5f * noise((unsigned)(param * 100000 + offset + i));
    return ZINC_OK;
}

static void add_params(zinc_engine *engine)
{
    static const char *const names[N_PARAMS] = {"layer_1.weight", "layer_1.bias", "layer_2.weight",
                                                "layer_2.bias"};
    must(zinc_engine_add_unit(engine, "layer_1", NULL));
    must(zinc_engine_add_unit(engine, "layer_2", NULL));
    for (int p = 0; p < N_PARAMS; p++) {
        zinc_param param = ZINC_PARAM_INIT;
        param.name = names[p];
        param.unit = p < W2 ? LAYER_1 : LAYER_2;
        param.n_dims = p == W1 ? 2 : 1;
        param.shape[0] = p == B2 ? 1 : HIDDEN;
        param.shape[1] = p == W1 ? IN : 1;
        must(zinc_engine_add_param(engine, &param, NULL));
    }
}

static zinc_engine *make_engine(zinc_comm *comm, int stage)
{
    char text[512];
    zinc_config *config = NULL;
    zinc_config_facts facts = ZINC_CONFIG_FACTS_INIT;
    facts.world_size = zinc_comm_n_ranks(comm);
    snprintf(text, sizeof text,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d,"
             " \"zero_optimization\": {\"stage\": %d, \"stage3_param_persistence_threshold\": 0},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}}",
             ROWS, N_MICRO / zinc_comm_n_ranks(comm), stage);
    must(zinc_config_parse(text, strlen(text), "settings", &config));
    must(zinc_config_resolve(config, &facts));

    zinc_engine *engine = NULL;
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    params.comm = comm;
    params.config = config;
    params.share_parameters = 0; /* threads could share one copy; here each rank has its own half */
    must(zinc_engine_create(&params, &engine));
    zinc_config_destroy(config);
    add_params(engine);
    must(zinc_engine_build(engine));
    must(zinc_engine_fill(engine, first_weights, NULL));
    return engine;
}

static const float *data(zinc_engine *engine, int param)
{
    const void *values = NULL;
    must(zinc_engine_data(engine, param, &values));
    return values; /* fp32 training: zinc_engine_param_dtype is ZINC_F32 */
}

/* ---- forward and backward ---- */

typedef struct batch {
    float x[ROWS][IN], target[ROWS];
    float hidden[ROWS][HIDDEN], y[ROWS];
    float d_w1[HIDDEN * IN], d_b1[HIDDEN], d_w2[HIDDEN], d_b2[1];
} batch;

static void make_batch(batch *b, int step, int micro)
{
    memset(b, 0, sizeof *b);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < IN; i++)
            b->x[r][i] = noise((unsigned)(((step * N_MICRO + micro) * ROWS + r) * IN + i));
        b->target[r] = sinf(3 * b->x[r][0]) * b->x[r][1] + 0.5f * b->x[r][2];
    }
}

static void forward(zinc_engine *engine, batch *b)
{
    must(zinc_engine_acquire(engine, LAYER_1, ZINC_PASS_FORWARD));
    const float *const w1 = data(engine, W1), *const b1 = data(engine, B1);
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < HIDDEN; h++) {
            float sum = b1[h];
            for (int i = 0; i < IN; i++)
                sum += b->x[r][i] * w1[h * IN + i];
            b->hidden[r][h] = tanhf(sum);
        }
    must(zinc_engine_release(engine, LAYER_1)); /* w1 and b1 are gone now */

    must(zinc_engine_acquire(engine, LAYER_2, ZINC_PASS_FORWARD));
    const float *const w2 = data(engine, W2), *const b2 = data(engine, B2);
    for (int r = 0; r < ROWS; r++) {
        b->y[r] = b2[0];
        for (int h = 0; h < HIDDEN; h++)
            b->y[r] += b->hidden[r][h] * w2[h];
    }
    must(zinc_engine_release(engine, LAYER_2));
}

/* Mean squared error over the rows of all micro-batches. Returns this one's part of the loss. */
static double backward(zinc_engine *engine, batch *b)
{
    double loss = 0;
    must(zinc_engine_acquire(engine, LAYER_2, ZINC_PASS_BACKWARD));
    const float *const w2 = data(engine, W2);
    for (int r = 0; r < ROWS; r++) {
        const float diff = b->y[r] - b->target[r];
        const float dy = 2 * diff / (ROWS * N_MICRO);
        loss += diff * diff / (ROWS * N_MICRO);
        b->d_b2[0] += dy;
        for (int h = 0; h < HIDDEN; h++) {
            const float hidden = b->hidden[r][h];
            const float d_sum = dy * w2[h] * (1 - hidden * hidden);
            b->d_w2[h] += dy * hidden;
            b->d_b1[h] += d_sum;
            for (int i = 0; i < IN; i++)
                b->d_w1[h * IN + i] += d_sum * b->x[r][i];
        }
    }
    must(zinc_engine_release(engine, LAYER_2));

    /* The gradients were computed beside the engine; zinc_engine_grad would give its own buffers.
     */
    must(zinc_engine_grad_ready(engine, W2, b->d_w2, ZINC_F32));
    must(zinc_engine_grad_ready(engine, B2, b->d_b2, ZINC_F32));
    must(zinc_engine_reduce(engine, LAYER_2));
    must(zinc_engine_grad_ready(engine, W1, b->d_w1, ZINC_F32));
    must(zinc_engine_grad_ready(engine, B1, b->d_b1, ZINC_F32));
    must(zinc_engine_reduce(engine, LAYER_1));
    must(zinc_engine_backward_end(engine));
    return loss;
}

/* ---- the run ---- */

typedef struct run {
    int stage, n_ranks;
    float weights[N_WEIGHTS]; /* of rank 0, at the end */
    double loss;              /* mean of the last 20 steps */
} run;

typedef struct rank_job {
    run *run;
    zinc_thread_world *world;
    int rank;
} rank_job;

static void train(const rank_job *job, zinc_comm *comm, zinc_engine *engine)
{
    static const int report_every = 100;
    batch *const b = malloc(sizeof *b);
    double last = 0;
    if (!b)
        exit(1);
    for (int step = 0; step < N_STEPS; step++) {
        zinc_step_result result = ZINC_STEP_RESULT_INIT;
        double loss = 0;
        /* Rank r of R takes micro-batches r, r + R, …: with one rank both, one after the other. */
        for (int micro = job->rank; micro < N_MICRO; micro += job->run->n_ranks) {
            make_batch(b, step, micro);
            forward(engine, b);
            loss += backward(engine, b);
        }
        must(zinc_engine_step(engine, NULL, &result));
        must(zinc_comm_sum(comm, &loss, 1, "loss"));
        last += step >= N_STEPS - 20 ? loss / 20 : 0;
        if (job->rank == 0 && (step + 1) % report_every == 0)
            printf("stage %d, %d ranks: step %3d  loss %.5f\n", job->run->stage, job->run->n_ranks,
                   step + 1, loss);
    }
    free(b);
    if (job->rank == 0)
        job->run->loss = last;
}

static void *run_rank(void *arg)
{
    const rank_job *const job = arg;
    zinc_comm *comm = NULL;
    zinc_memory memory = ZINC_MEMORY_INIT;
    float weights[N_WEIGHTS];
    int at = 0;
    must(zinc_comm_create_thread(job->world, job->rank, NULL, &comm));
    zinc_engine *engine = make_engine(comm, job->run->stage);
    train(job, comm, engine);
    for (int p = 0; p < N_PARAMS; at += n_elems[p++])
        must(zinc_engine_read(engine, ZINC_MASTERS, p, weights + at)); /* collective: all ranks */
    if (job->rank == 0) {
        memcpy(job->run->weights, weights, sizeof weights);
        must(zinc_engine_memory(engine, ZINC_PLACE_DEVICE, &memory));
        for (int c = 0; c < ZINC_N_MEMORY_CATEGORIES; c++)
            printf("  %-16s %6lld bytes, at most %6lld\n",
                   zinc_memory_category_name((zinc_memory_category)c), (long long)memory.now[c],
                   (long long)memory.peak[c]);
    }
    must(zinc_comm_barrier(comm, "done")); /* nobody destroys while another still uses */
    zinc_engine_destroy(engine);
    zinc_comm_destroy(comm);
    return NULL;
}

static void run_job(run *r)
{
    rank_job jobs[N_MICRO];
    pthread_t threads[N_MICRO];
    zinc_thread_world *world = NULL;
    must(zinc_thread_world_create(r->n_ranks, &world));
    for (int i = 0; i < r->n_ranks; i++) {
        jobs[i] = (rank_job){.run = r, .world = world, .rank = i};
        if (pthread_create(&threads[i], NULL, run_rank, &jobs[i]) != 0)
            exit(1);
    }
    for (int i = 0; i < r->n_ranks; i++)
        pthread_join(threads[i], NULL);
    zinc_thread_world_destroy(world);
}

int main(void)
{
    run sharded = {.stage = 3, .n_ranks = 2}, alone = {.stage = 0, .n_ranks = 1};
    run_job(&sharded);
    run_job(&alone);
    const int equal = memcmp(sharded.weights, alone.weights, sizeof alone.weights) == 0;
    printf("loss %.5f, wanted below %.5f; weights of both runs are %s\n", sharded.loss, WANTED_LOSS,
           equal ? "equal bit for bit" : "DIFFERENT");
    return equal && sharded.loss < WANTED_LOSS ? 0 : 1;
}
