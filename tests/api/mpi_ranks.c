/* SPDX-License-Identifier: Apache-2.0 */
/* A job of processes through the library: run by mpirun (tests.cmake). Sums a gradient that differs
 * by rank, without an optimizer, and compares the norm with the one that is known. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zinc/engine.h"

#define N 1000

static zinc_status zeros(void *ctx, int param, int64_t offset, int64_t n, float *out)
{
    (void)ctx;
    (void)param;
    (void)offset;
    memset(out, 0, (size_t)n * sizeof *out);
    return ZINC_OK;
}

static zinc_status make(zinc_comm *comm, zinc_config *config, zinc_engine **out)
{
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    zinc_param param = ZINC_PARAM_INIT;
    params.comm = comm;
    params.config = config;
    params.optimizer = ZINC_OPTIMIZER_NONE;
    param.name = "w";
    param.shape[0] = N;
    zinc_status status = zinc_engine_create(&params, out);
    if (status == ZINC_OK)
        status = zinc_engine_add_unit(*out, "u", NULL);
    if (status == ZINC_OK)
        status = zinc_engine_add_param(*out, &param, NULL);
    if (status == ZINC_OK)
        status = zinc_engine_build(*out);
    return status == ZINC_OK ? zinc_engine_fill(*out, zeros, NULL) : status;
}

static zinc_status step(zinc_comm *comm, zinc_engine *engine, double *norm)
{
    float *grad = NULL;
    zinc_step_result result = ZINC_STEP_RESULT_INIT;
    zinc_status status = zinc_engine_grad(engine, 0, &grad);
    for (int i = 0; status == ZINC_OK && i < N; i++)
        grad[i] += (float)(zinc_comm_rank(comm) + 1);
    if (status == ZINC_OK)
        status = zinc_engine_backward_end(engine);
    if (status == ZINC_OK)
        status = zinc_engine_step(engine, NULL, &result);
    *norm = result.grad_norm;
    return status;
}

int main(void)
{
    static const char text[] = "{\"train_micro_batch_size_per_gpu\": 1,"
                               " \"zero_optimization\": {\"stage\": 3}}";
    zinc_comm *comm = NULL;
    zinc_config *config = NULL;
    zinc_engine *engine = NULL;
    zinc_config_facts facts = ZINC_CONFIG_FACTS_INIT;
    double norm = 0;
    zinc_status status = zinc_comm_create_mpi(NULL, &comm);
    const int n = zinc_comm_n_ranks(comm);
    facts.world_size = n;
    if (status == ZINC_OK)
        status = zinc_config_parse(text, strlen(text), "settings", &config);
    if (status == ZINC_OK)
        status = zinc_config_resolve(config, &facts);
    if (status == ZINC_OK)
        status = make(comm, config, &engine);
    if (status == ZINC_OK)
        status = step(comm, engine, &norm);
    if (status != ZINC_OK)
        fprintf(stderr, "%s\n", zinc_last_error());
    zinc_engine_destroy(engine);
    zinc_config_destroy(config);
    zinc_comm_destroy(comm);
    const double wanted = n * (n + 1) / 2.0 * sqrt(N);
    printf("%d ranks: norm %.6f, wanted %.6f\n", n, norm, wanted);
    return status == ZINC_OK && n > 1 && fabs(norm - wanted) < 1e-6 * wanted ? 0 : 1;
}
