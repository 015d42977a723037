/* SPDX-License-Identifier: Apache-2.0 */
/* 04_save_load — weights out to a safetensors file and in again, on another number of ranks.
 *
 * Two ranks under stage 3 write one file: each its own ranges, straight into their place, and
 * nothing is gathered. Then one rank reads it, again only the ranges it is asked for.
 * (zinc_engine_save is the same in one call.)
 *
 *   04_save_load [FOLDER]        a new folder in the working directory by default */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zinc/checkpoint.h"
#include "zinc/engine.h"

#define N_RANKS 2
#define ROWS 123
#define COLS 45

static void must(zinc_status status)
{
    if (status == ZINC_OK)
        return;
    fprintf(stderr, "%s: %s\n", zinc_status_name(status), zinc_last_error());
    exit(1);
}

static float value(int param, int64_t i)
{
    return (float)(param + 1) * 0.001f * (float)(i % 1000) - 0.25f;
}

static zinc_status first_values(void *ctx, int param, int64_t offset, int64_t n, float *out)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        out[i] = value(param, offset + i);
    return ZINC_OK;
}

static zinc_engine *make_engine(zinc_comm *comm, const char *text)
{
    zinc_config *config = NULL;
    zinc_config_facts facts = ZINC_CONFIG_FACTS_INIT;
    facts.world_size = zinc_comm_n_ranks(comm);
    facts.default_micro_batch = 1;
    must(zinc_config_parse(text, strlen(text), "settings", &config));
    must(zinc_config_resolve(config, &facts));

    zinc_engine *engine = NULL;
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    params.comm = comm;
    params.config = config;
    params.optimizer = ZINC_OPTIMIZER_NONE; /* nothing is trained here */
    must(zinc_engine_create(&params, &engine));
    zinc_config_destroy(config);

    zinc_param matrix = ZINC_PARAM_INIT, vector = ZINC_PARAM_INIT;
    must(zinc_engine_add_unit(engine, "all", NULL));
    matrix.name = "matrix";
    matrix.n_dims = 2;
    matrix.shape[0] = ROWS;
    matrix.shape[1] = COLS;
    vector.name = "vector";
    vector.shape[0] = COLS;
    must(zinc_engine_add_param(engine, &matrix, NULL));
    must(zinc_engine_add_param(engine, &vector, NULL));
    must(zinc_engine_build(engine));
    return engine;
}

/* ---- out ---- */

static zinc_status write_range(void *ctx, int param, int64_t offset, int64_t n, const float *values)
{
    return zinc_writer_write(ctx, param, offset, n, values); /* tensor i is parameter i */
}

static void save(zinc_engine *engine, zinc_comm *comm, const char *dir)
{
    zinc_tensor tensors[2] = {ZINC_TENSOR_INIT, ZINC_TENSOR_INIT};
    zinc_writer *writer = NULL;
    for (int i = 0; i < zinc_engine_n_params(engine); i++) {
        zinc_param param = ZINC_PARAM_INIT;
        must(zinc_engine_get_param(engine, i, &param));
        tensors[i].name = param.name;
        tensors[i].n_dims = param.n_dims;
        memcpy(tensors[i].shape, param.shape, sizeof tensors[i].shape);
    }
    must(zinc_writer_create(dir, tensors, 2, 0, &writer)); /* the same plan on every rank */
    if (zinc_comm_rank(comm) == 0)
        must(zinc_writer_begin(writer));
    must(zinc_comm_barrier(comm, "files are there"));
    must(zinc_engine_visit(engine, ZINC_MASTERS, write_range, writer));
    must(zinc_writer_flush(writer));
    must(zinc_comm_barrier(comm, "all is written"));
    if (zinc_comm_rank(comm) == 0)
        must(zinc_writer_commit(writer));
    zinc_writer_destroy(writer);
}

typedef struct rank_job {
    zinc_thread_world *world;
    const char *dir;
    int rank;
} rank_job;

static void *save_rank(void *arg)
{
    const rank_job *const job = arg;
    zinc_comm *comm = NULL;
    must(zinc_comm_create_thread(job->world, job->rank, NULL, &comm));
    zinc_engine *engine = make_engine(comm, "{\"zero_optimization\": {\"stage\": 3}}");
    must(zinc_engine_fill(engine, first_values, NULL));
    save(engine, comm, job->dir);
    zinc_engine_destroy(engine);
    zinc_comm_destroy(comm);
    return NULL;
}

/* ---- in ---- */

static zinc_status read_range(void *ctx, int param, int64_t offset, int64_t n, float *out)
{
    static const char *const names[] = {"matrix", "vector"};
    const int tensor = zinc_reader_find(ctx, names[param]);
    if (tensor < 0)
        return zinc_fail(ZINC_E_FORMAT, "the file lacks a tensor");
    return zinc_reader_read(ctx, tensor, offset, n, out);
}

/* Number of elements that are not what was saved. */
static int load(const char *dir)
{
    static float values[ROWS * COLS];
    zinc_comm *comm = NULL;
    zinc_reader *reader = NULL;
    int n_wrong = 0;
    must(zinc_comm_create_self(NULL, &comm));
    must(zinc_reader_open(dir, &reader));
    zinc_engine *engine = make_engine(comm, "{}");
    must(zinc_engine_fill(engine, read_range, reader));
    zinc_reader_close(reader);
    for (int param = 0; param < 2; param++) {
        const int n = param == 0 ? ROWS * COLS : COLS;
        must(zinc_engine_read(engine, ZINC_MASTERS, param, values));
        for (int i = 0; i < n; i++)
            n_wrong += values[i] != value(param, i);
    }
    zinc_engine_destroy(engine);
    zinc_comm_destroy(comm);
    return n_wrong;
}

int main(int argc, char **argv)
{
    const char *const dir = argc > 1 ? argv[1] : "example_04_weights";
    zinc_thread_world *world = NULL;
    rank_job jobs[N_RANKS];
    pthread_t threads[N_RANKS];
    must(zinc_thread_world_create(N_RANKS, &world));
    for (int r = 0; r < N_RANKS; r++) {
        jobs[r] = (rank_job){.world = world, .dir = dir, .rank = r};
        if (pthread_create(&threads[r], NULL, save_rank, &jobs[r]) != 0)
            return 1;
    }
    for (int r = 0; r < N_RANKS; r++)
        pthread_join(threads[r], NULL);
    zinc_thread_world_destroy(world);

    const int n_wrong = load(dir);
    printf("%s/model.safetensors: %d of %d elements differ\n", dir, n_wrong, ROWS * COLS + COLS);
    return n_wrong != 0;
}
