/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine computes, through the public headers alone. */
#include "api_ranks.h"

#include <unistd.h>

#include "zinc/checkpoint.h"

#define ADAMW                                                                                      \
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.1}}"
#define SMALL "\"stage3_param_persistence_threshold\": 10"

/* ---- equal bits ---- */

#define N_STEPS 4

/* Four steps; the global batch is 2 micro-batches a step, whatever the ranks. */
static zinc_status train_four_steps(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    ZN_TRY(make_toy(job, comm, NULL, &engine));
    ZN_TRY_GOTO(zinc_engine_fill(engine, toy_value, NULL));
    for (int step = 0; step < N_STEPS; step++) {
        for (int m = job->rank; m < 2; m += job->n_ranks)
            ZN_TRY_GOTO(toy_micro_batch(engine, step * 2 + m,
                                        0.5f * (float)zinc_engine_loss_scale(engine)));
        job->last = (zinc_step_result)ZINC_STEP_RESULT_INIT;
        ZN_TRY_GOTO(zinc_engine_step(engine, NULL, &job->last));
    }
    ZN_TRY_GOTO(read_toy(engine, job->masters));
    status = zinc_comm_barrier(comm, "done");
fail:
    zinc_engine_destroy(engine);
    return status;
}

static void same_weights(const char *type, int n_ranks)
{
    rank_job first[MAX_RANKS], jobs[MAX_RANKS];
    for (int variant = 0; variant < 14; variant++) {
        char settings[512];
        /* 4 to 7: over a host program; 10 to 13: in this test's memory */
        const int stage = variant < 8 ? variant % 4 : variant < 10 ? variant - 6 : variant - 10;
        snprintf(settings, sizeof settings,
                 "%s \"gradient_accumulation_steps\": %d, " ADAMW
                 ", \"zero_optimization\": {\"stage\": %d, %s " SMALL "}",
                 type, 2 / n_ranks, stage,
                 variant == 8   ? "\"offload_optimizer\": {\"device\": \"cpu\"},"
                 : variant == 9 ? "\"offload_optimizer\": {\"device\": \"nvme\", "
                                  "\"nvme_path\": \"/tmp\"},"
                                : "");
        run_ranks(&(rank_job){.fn = train_four_steps,
                              .settings = settings,
                              .n_ranks = n_ranks,
                              .share = variant == 3,
                              .over_host = variant >= 4 && variant < 8,
                              .own_memory = variant >= 10},
                  variant == 0 ? first : jobs);
        for (int r = 0; r < n_ranks && variant > 0; r++) {
            assert_memory_equal(jobs[r].masters, first[0].masters, sizeof first[0].masters);
            assert_true(jobs[r].last.grad_norm == first[0].last.grad_norm);
            assert_int_equal(jobs[r].n_held, 0);
            assert_true(variant < 10 ? jobs[r].n_gets == 0
                        : stage < 3  ? jobs[r].n_gets == 1
                                     : jobs[r].n_gets > 8);
        }
    }
    assert_int_equal(first[0].last.n_applied, N_STEPS);
    assert_true(first[0].last.grad_norm > 0 && isfinite(first[0].last.grad_norm));
}

static void every_stage_and_a_host_program_give_the_same_bits(void **state)
{
    (void)state;
    same_weights("", 2);
    same_weights("\"bf16\": {\"enabled\": true},", 2);
    same_weights("\"fp16\": {\"enabled\": true, \"initial_scale_power\": 4},", 2);
}

/* The first step of AdamW moves by lr, away from the gradient, after the decoupled decay. */
static zinc_status train_once(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    zinc_group groups[2] = {ZINC_GROUP_INIT, ZINC_GROUP_INIT};
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    groups[1].weight_decay = 0;
    groups[1].lr = 0.5;
    params.groups = groups;
    params.n_groups = 2;
    ZN_TRY(make_toy(job, comm, &params, &engine));
    ZN_TRY_GOTO(zinc_engine_fill(engine, toy_value, NULL));
    ZN_TRY_GOTO(toy_micro_batch(engine, 1, 1));
    job->last = (zinc_step_result)ZINC_STEP_RESULT_INIT;
    ZN_TRY_GOTO(zinc_engine_step(engine, NULL, &job->last));
    status = read_toy(engine, job->masters);
fail:
    zinc_engine_destroy(engine);
    return status;
}

static void groups_have_their_own_rate_and_decay(void **state)
{
    rank_job jobs[1];
    float start[N_ELEMS], grad;
    (void)state;
    run_ranks(&(rank_job){.fn = train_once, .settings = ADAMW, .n_ranks = 1}, jobs);
    for (int p = 0, at = 0; p < N_PARAMS; at += param_elems[p++]) {
        zn_ignore(toy_value(NULL, p, 0, param_elems[p], start + at));
        for (int i = 0; i < param_elems[p]; i++) {
            const double x = start[at + i];
            grad = 0.3f * start[at + i] + cosf((float)(131 + p * 17 + i));
            const double wanted = p == 3   ? x
                                  : p == 2 ? x - 0.5 * (grad > 0 ? 1 : -1)
                                           : x - 0.02 * 0.1 * x - 0.02 * (grad > 0 ? 1 : -1);
            if (fabsf(grad) > 1e-3f)
                assert_true(fabs(jobs[0].masters[at + i] - wanted) < 1e-4);
        }
    }
    assert_true(jobs[0].last.lr == 0.02);
}

/* ---- accumulation, divisor, no optimizer ---- */

static zinc_status sum_two(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    params.optimizer = ZINC_OPTIMIZER_NONE;
    params.grad_divisor = 4;
    ZN_TRY(make_toy(job, comm, &params, &engine));
    ZN_TRY_GOTO(zinc_engine_fill(engine, toy_value, NULL));
    ZN_TRY_GOTO(zinc_engine_set_boundary(engine, 0));
    ZN_TRY_GOTO(toy_micro_batch(engine, 1, 1));
    ZN_TRY_GOTO(zinc_engine_set_boundary(engine, 1));
    ZN_TRY_GOTO(toy_micro_batch(engine, 2, 1));
    job->last = (zinc_step_result)ZINC_STEP_RESULT_INIT;
    ZN_TRY_GOTO(zinc_engine_step(engine, NULL, &job->last));
    ZN_TRY_GOTO(read_toy(engine, job->masters));
    status = zinc_comm_barrier(comm, "done");
fail:
    zinc_engine_destroy(engine);
    return status;
}

static void without_an_optimizer_the_norm_is_told_and_nothing_changes(void **state)
{
    rank_job jobs[MAX_RANKS];
    float start[N_ELEMS];
    double squares = 0;
    (void)state;
    for (int p = 0, at = 0; p < N_PARAMS; at += param_elems[p++]) {
        zn_ignore(toy_value(NULL, p, 0, param_elems[p], start + at));
        for (int i = 0; i < param_elems[p] && p < 3; i++) {
            double g = 0;
            for (int key = 1; key <= 2; key++)
                g += 2 * (0.3 * start[at + i] + cos(key * 131 + p * 17 + i)); /* 2 ranks */
            squares += g * g / 16;
        }
    }
    for (int stage = 0; stage < 4; stage++) {
        char settings[256];
        snprintf(settings, sizeof settings, "\"zero_optimization\": {\"stage\": %d, " SMALL "}",
                 stage);
        run_ranks(&(rank_job){.fn = sum_two, .settings = settings, .n_ranks = 2, .share = true},
                  jobs);
        assert_true(fabs(jobs[1].last.grad_norm / sqrt(squares) - 1) < 1e-5);
        assert_memory_equal(jobs[1].masters, start, sizeof start);
    }
}

/* ---- fp16 ---- */

static zinc_status overflow_once(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    ZN_TRY(make_toy(job, comm, NULL, &engine));
    ZN_TRY_GOTO(zinc_engine_fill(engine, toy_value, NULL));
    ZN_TRY_GOTO(toy_micro_batch(engine, 1, job->rank == 1 ? INFINITY : 1));
    job->last = (zinc_step_result)ZINC_STEP_RESULT_INIT;
    ZN_TRY_GOTO(zinc_engine_step(engine, NULL, &job->last));
    ((double *)job->ctx)[job->rank] = zinc_engine_loss_scale(engine);
    if (job->last.bad_param) /* borrowed: looked at while the engine lives */
        job->last.bad_param = strcmp(job->last.bad_param, "a.w") == 0 ? "a.w" : "another";
    ZN_TRY_GOTO(read_toy(engine, job->masters));
    status = zinc_comm_barrier(comm, "done");
fail:
    zinc_engine_destroy(engine);
    return status;
}

static void an_overflow_skips_the_step_and_lowers_the_scale(void **state)
{
    rank_job jobs[MAX_RANKS];
    float start[N_ELEMS];
    double scale = 0;
    (void)state;
    for (int p = 0, at = 0; p < N_PARAMS; at += param_elems[p++])
        zn_ignore(toy_value(NULL, p, 0, param_elems[p], start + at));
    run_ranks(&(rank_job){.fn = overflow_once,
                          .settings = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8, "
                                      "\"hysteresis\": 1}, \"zero_optimization\": {\"stage\": 2}",
                          .n_ranks = 1,
                          .ctx = &scale},
              jobs);
    assert_int_equal(jobs[0].last.skipped, 0);
    assert_true(scale == 256);
    double scales[2] = {0, 0};
    run_ranks(&(rank_job){.fn = overflow_once,
                          .settings = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8, "
                                      "\"hysteresis\": 1}, \"zero_optimization\": {\"stage\": 2}",
                          .n_ranks = 2,
                          .ctx = scales},
              jobs);
    assert_int_equal(jobs[0].last.skipped, 1);
    assert_int_equal(jobs[0].last.n_skipped, 1);
    assert_int_equal(jobs[0].last.n_applied, 0);
    assert_string_equal(jobs[0].last.bad_param, "a.w");
    assert_true(jobs[0].last.loss_scale == 256 && scales[0] == 128);
    for (int i = 0; i < N_ELEMS; i++)
        assert_true(jobs[0].masters[i] == zn_f16_to_f32(zn_f32_to_f16(start[i])));
}

/* Two steps of a window of one: the second makes the scale grow. */
typedef struct growth_job {
    int unscale_grown;
    float before[N_ELEMS]; /* masters before the second step */
} growth_job;

static zinc_status grow_once(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    growth_job *growth = job->ctx;
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    params.unscale_grown = growth->unscale_grown;
    ZN_TRY(make_toy(job, comm, &params, &engine));
    ZN_TRY_GOTO(zinc_engine_fill(engine, toy_value, NULL));
    for (int step = 0; step < 2; step++) {
        ZN_TRY_GOTO(read_toy(engine, growth->before));
        ZN_TRY_GOTO(toy_micro_batch(engine, step, (float)zinc_engine_loss_scale(engine)));
        job->last = (zinc_step_result)ZINC_STEP_RESULT_INIT;
        ZN_TRY_GOTO(zinc_engine_step(engine, NULL, &job->last));
    }
    assert_true(job->last.loss_scale == 16 && zinc_engine_loss_scale(engine) == 32);
    status = read_toy(engine, job->masters);
fail:
    zinc_engine_destroy(engine);
    return status;
}

static void a_step_that_makes_the_scale_grow_may_count_half(void **state)
{
    static rank_job jobs[2][MAX_RANKS];
    growth_job growth[2] = {{.unscale_grown = 0}, {.unscale_grown = 1}};
    (void)state;
    for (int i = 0; i < 2; i++)
        run_ranks(&(rank_job){.fn = grow_once,
                              .settings =
                                  "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 4, "
                                  "\"loss_scale_window\": 1}, \"gradient_clipping\": 0, "
                                  "\"optimizer\": {\"type\": \"SGD\", \"params\": "
                                  "{\"lr\": 0.5}}",
                              .n_ranks = 1,
                              .ctx = &growth[i]},
                  jobs[i]);
    assert_memory_equal(growth[0].before, growth[1].before, sizeof growth[0].before);
    assert_true(jobs[0][0].last.clip_coef == 1 && jobs[1][0].last.clip_coef == 0.5);
    assert_true(jobs[0][0].last.grad_norm > 1);
    assert_true(jobs[0][0].last.grad_norm == jobs[1][0].last.grad_norm);
    for (int i = 0; i < N_ELEMS; i++) {
        const double whole = jobs[0][0].masters[i] - growth[0].before[i];
        const double half = jobs[1][0].masters[i] - growth[1].before[i];
        assert_true(fabs(half - whole / 2) < 1e-6);
    }
    assert_true(fabs(jobs[0][0].masters[0] - growth[0].before[0]) > 1e-3);
}

/* ---- ranks that differ ---- */

static zinc_status register_by_rank(rank_job *job, zinc_comm *comm)
{
    zinc_config *config = NULL;
    zinc_engine *engine = NULL;
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    zinc_param param = ZINC_PARAM_INIT;
    ZN_TRY(resolved("\"fp16\": {}", job->n_ranks, &config));
    params.comm = comm;
    params.config = config;
    zinc_status status = zinc_engine_create(&params, &engine);
    if (status == ZINC_OK)
        status = zinc_engine_add_unit(engine, "u", NULL);
    param.name = job->rank == 1 ? "right" : "left";
    if (status == ZINC_OK)
        status = zinc_engine_add_param(engine, &param, NULL);
    if (status == ZINC_OK)
        status = zinc_engine_build(engine);
    zinc_engine_destroy(engine);
    zinc_config_destroy(config);
    if (status != ZINC_E_INVALID || !strstr(zinc_last_error(), "rank 1 registered other"))
        ZN_FAIL(ZINC_E_INTERNAL, "build gave %s", zinc_status_name(status));
    return zinc_comm_barrier(comm, "still usable");
}

static void ranks_that_register_different_things_are_told(void **state)
{
    rank_job jobs[MAX_RANKS];
    (void)state;
    run_ranks(&(rank_job){.fn = register_by_rank, .n_ranks = 3}, jobs);
}

/* ---- out and in ---- */

typedef struct snapshot {
    float values[3][N_ELEMS]; /* masters, two states */
    float next[N_ELEMS];      /* masters one step later */
    zinc_progress progress;
    const char *dir;
} snapshot;

static zinc_status keep_range(void *ctx, int param, int64_t offset, int64_t n, const float *values)
{
    float *to = ctx;
    for (int p = 0; p < param; p++)
        to += param_elems[p];
    memcpy(to + offset, values, (size_t)n * sizeof *values);
    return ZINC_OK;
}

static zinc_status give_range(void *ctx, int what, int param, int64_t offset, int64_t n, float *out)
{
    const snapshot *const s = ctx;
    const float *from = s->values[what + 1];
    for (int p = 0; p < param; p++)
        from += param_elems[p];
    memcpy(out, from + offset, (size_t)n * sizeof *out);
    return ZINC_OK;
}

static zinc_status one_more(zinc_engine *engine, const rank_job *job)
{
    for (int m = job->rank; m < 2; m += job->n_ranks)
        ZN_TRY(toy_micro_batch(engine, 70 + m, 1));
    return zinc_engine_step(engine, NULL, NULL);
}

static zinc_status train_and_keep(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    snapshot *const s = job->ctx;
    ZN_TRY(make_toy(job, comm, NULL, &engine));
    ZN_TRY_GOTO(zinc_engine_fill(engine, toy_value, NULL));
    ZN_TRY_GOTO(one_more(engine, job));
    for (int what = ZINC_MASTERS; what < zinc_engine_n_states(engine); what++)
        ZN_TRY_GOTO(zinc_engine_visit(engine, what, keep_range, s->values[what + 1]));
    ZN_TRY_GOTO(zinc_engine_save(engine, s->dir, ZINC_F32, 0));
    if (job->rank == 0) {
        s->progress = (zinc_progress)ZINC_PROGRESS_INIT;
        ZN_TRY_GOTO(zinc_engine_get_progress(engine, &s->progress));
    }
    ZN_TRY_GOTO(one_more(engine, job));
    ZN_TRY_GOTO(zinc_engine_visit(engine, ZINC_MASTERS, keep_range, s->next));
    status = zinc_comm_barrier(comm, "done");
fail:
    zinc_engine_destroy(engine);
    return status;
}

static zinc_status restore_and_go_on(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    const snapshot *const s = job->ctx;
    ZN_TRY(make_toy(job, comm, NULL, &engine));
    ZN_TRY_GOTO(zinc_engine_restore(engine, give_range, job->ctx, &s->progress));
    ZN_TRY_GOTO(one_more(engine, job));
    status = read_toy(engine, job->masters);
fail:
    zinc_engine_destroy(engine);
    return status;
}

static void check_file(const snapshot *s)
{
    static const char *const names[N_PARAMS] = {"a.w", "a.b", "b.w", "c.frozen"};
    float values[300];
    zinc_reader *reader = NULL;
    assert_ok(zinc_reader_open(s->dir, &reader));
    assert_int_equal(zinc_reader_n_tensors(reader), N_PARAMS);
    for (int p = 0, at = 0; p < N_PARAMS; at += param_elems[p++]) {
        zinc_tensor tensor = ZINC_TENSOR_INIT;
        const int i = zinc_reader_find(reader, names[p]);
        assert_ok(zinc_reader_get(reader, i, &tensor));
        assert_int_equal(tensor.shape[0], param_elems[p]);
        assert_ok(zinc_reader_read(reader, i, 0, param_elems[p], values));
        assert_memory_equal(values, s->values[0] + at, (size_t)param_elems[p] * sizeof(float));
    }
    assert_fails(zinc_reader_read(reader, 0, 1, param_elems[0], values), ZINC_E_INVALID, "a.b");
    zinc_reader_close(reader);
}

static void what_is_visited_restores_on_other_ranks_and_stages(void **state)
{
    static snapshot s;
    char dir[] = "/tmp/zinc_api_XXXXXX", file[64];
    rank_job jobs[MAX_RANKS];
    (void)state;
    assert_non_null(mkdtemp(dir));
    s.dir = dir;
    run_ranks(&(rank_job){.fn = train_and_keep,
                          .settings = "\"bf16\": {\"enabled\": true}, " ADAMW
                                      ", \"zero_optimization\": {\"stage\": 3, " SMALL "}",
                          .n_ranks = 2,
                          .ctx = &s},
              jobs);
    check_file(&s);
    run_ranks(&(rank_job){.fn = restore_and_go_on,
                          .settings = "\"bf16\": {\"enabled\": true}, " ADAMW
                                      ", \"gradient_accumulation_steps\": 2, "
                                      "\"zero_optimization\": {\"stage\": 2}",
                          .n_ranks = 1,
                          .ctx = &s},
              jobs);
    assert_memory_equal(jobs[0].masters, s.next, sizeof s.next);
    assert_true(s.progress.n_applied == 1 && s.progress.loss_scale == 1);
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    unlink(file);
    rmdir(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_stage_and_a_host_program_give_the_same_bits),
    cmocka_unit_test(groups_have_their_own_rate_and_decay),
    cmocka_unit_test(without_an_optimizer_the_norm_is_told_and_nothing_changes),
    cmocka_unit_test(an_overflow_skips_the_step_and_lowers_the_scale),
    cmocka_unit_test(a_step_that_makes_the_scale_grow_may_count_half),
    cmocka_unit_test(ranks_that_register_different_things_are_told),
    cmocka_unit_test(what_is_visited_restores_on_other_ranks_and_stages),
};

ZN_TEST_MAIN(tests)
