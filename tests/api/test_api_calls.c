/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller from outside may get wrong: NULL, numbers, sizes of structs, the order of calls. */
#include "api_ranks.h"

#include "base/mem.h"

typedef struct alone {
    zinc_comm *comm;
    zinc_engine *engine;
} alone;

static int open_alone(void **state)
{
    static alone a;
    rank_job job = {.settings = "\"zero_optimization\": {\"stage\": 3}", .n_ranks = 1};
    assert_ok(zinc_comm_create_self(NULL, &a.comm));
    assert_ok(make_toy(&job, a.comm, NULL, &a.engine));
    *state = &a;
    return 0;
}

static int close_alone(void **state)
{
    alone *const a = *state;
    zinc_engine_destroy(a->engine);
    zinc_comm_destroy(a->comm);
    return 0;
}

/* ---- the order of calls ---- */

static void parameters_are_read_only_while_their_unit_is_acquired(void **state)
{
    zinc_engine *const e = ((alone *)*state)->engine;
    const void *data = NULL;
    assert_ok(zinc_engine_fill(e, toy_value, NULL));
    assert_fails(zinc_engine_data(e, 0, &data), ZINC_E_INVALID, "unit a is not acquired");
    assert_fails(zinc_engine_release(e, 0), ZINC_E_INVALID, "unit a is not acquired");
    assert_null(data);
    assert_ok(zinc_engine_acquire(e, 0, ZINC_PASS_EVAL));
    assert_ok(zinc_engine_acquire(e, 0, ZINC_PASS_EVAL));
    assert_ok(zinc_engine_release(e, 0));
    assert_ok(zinc_engine_data(e, 1, &data)); /* still held once */
    assert_true(((const float *)data)[3] == sinf(1003));
    assert_fails(zinc_engine_data(e, 2, &data), ZINC_E_INVALID, "unit b");
    assert_fails(zinc_engine_fill(e, toy_value, NULL), ZINC_E_INVALID, "unit a is acquired");
    assert_ok(zinc_engine_release(e, 0));
    assert_fails(zinc_engine_data(e, 0, &data), ZINC_E_INVALID, "unit a");
}

static void gradients_are_handed_over_once(void **state)
{
    zinc_engine *const e = ((alone *)*state)->engine;
    float *grad = NULL, values[300] = {0};
    assert_ok(zinc_engine_fill(e, toy_value, NULL));
    assert_ok(zinc_engine_acquire(e, 1, ZINC_PASS_FORWARD));
    assert_ok(zinc_engine_release(e, 1));
    assert_ok(zinc_engine_fill(e, toy_value, NULL)); /* no backward came: forgotten */
    assert_ok(zinc_engine_acquire(e, 1, ZINC_PASS_BACKWARD));
    assert_ok(zinc_engine_set_boundary(e, 0));
    assert_ok(zinc_engine_set_boundary(e, 1));
    assert_fails(zinc_engine_step(e, NULL, NULL), ZINC_E_INVALID, "backward_end first");
    assert_ok(zinc_engine_grad(e, 3, &grad));
    assert_null(grad); /* frozen */
    assert_fails(zinc_engine_set_boundary(e, 1), ZINC_E_INVALID, "that has gradients");
    assert_fails(zinc_engine_save(e, "x", ZINC_F32, 0), ZINC_E_INVALID, "accumulated");
    assert_fails(zinc_engine_grad_ready(e, 3, values, ZINC_F32), ZINC_E_INVALID, "frozen");
    assert_fails(zinc_engine_grad_ready(e, 2, values, ZINC_I32), ZINC_E_INVALID, "int32");
    assert_ok(zinc_engine_reduce(e, 1));
    assert_fails(zinc_engine_reduce(e, 1), ZINC_E_INVALID, "unit b were reduced");
    assert_fails(zinc_engine_grad(e, 2, &grad), ZINC_E_INVALID, "unit b were reduced");
    assert_fails(zinc_engine_backward_end(e), ZINC_E_INVALID, "unit b is still acquired (1");
    assert_ok(zinc_engine_release(e, 1));
    assert_ok(zinc_engine_backward_end(e));
    assert_fails(zinc_engine_acquire(e, 0, ZINC_PASS_FORWARD), ZINC_E_INVALID, "step or _skip");
    assert_ok(zinc_engine_skip(e));
    assert_fails(zinc_engine_step(e, NULL, NULL), ZINC_E_INVALID, "none was a boundary");
}

static void a_gradient_of_any_type_is_widened(void **state)
{
    zinc_engine *const e = ((alone *)*state)->engine;
    uint16_t bf16[7], f16[7];
    float *grad = NULL;
    for (int i = 0; i < 7; i++) {
        bf16[i] = zn_f32_to_bf16((float)i);
        f16[i] = zn_f32_to_f16(0.5f * (float)i);
    }
    assert_ok(zinc_engine_fill(e, toy_value, NULL));
    assert_ok(zinc_engine_grad_ready(e, 1, bf16, ZINC_BF16));
    assert_ok(zinc_engine_grad_ready(e, 1, f16, ZINC_F16));
    assert_ok(zinc_engine_grad(e, 1, &grad));
    for (int i = 0; i < 7; i++)
        assert_true(grad[i] == 1.5f * (float)i);
    assert_ok(zinc_engine_backward_end(e));
}

static void numbers_out_of_range_are_named(void **state)
{
    zinc_engine *const e = ((alone *)*state)->engine;
    const void *data = NULL;
    float out[300];
    assert_fails(zinc_engine_acquire(e, 3, ZINC_PASS_EVAL), ZINC_E_INVALID, "no unit 3");
    assert_fails(zinc_engine_acquire(e, 0, (zinc_pass)7), ZINC_E_INVALID, "7 is no pass");
    assert_fails(zinc_engine_data(e, -1, &data), ZINC_E_INVALID, "no parameter -1");
    assert_fails(zinc_engine_read(e, 2, 0, out), ZINC_E_INVALID, "no optimizer state 2");
    assert_fails(zinc_engine_read(e, 0, 3, out), ZINC_E_INVALID, "c.frozen is frozen");
    assert_fails(zinc_engine_data(NULL, 0, &data), ZINC_E_INVALID, "engine is NULL");
    assert_fails(zinc_engine_restore(e, NULL, NULL, NULL), ZINC_E_INVALID, "restore is NULL");
    assert_fails(zinc_engine_add_unit(e, "late", NULL), ZINC_E_INVALID, "built");
    assert_int_equal(zinc_engine_find_param(e, "b.w"), 2);
    assert_int_equal(zinc_engine_find_param(e, "b"), -1);
    assert_string_equal(zinc_engine_state_name(e, 1), "exp_avg_sq");
    assert_null(zinc_engine_state_name(e, 2));
}

static void memory_and_counts_are_told(void **state)
{
    zinc_engine *const e = ((alone *)*state)->engine;
    zinc_memory memory = ZINC_MEMORY_INIT;
    zinc_stats stats = ZINC_STATS_INIT;
    assert_ok(zinc_engine_get_stats(e, &stats));
    assert_true(stats.padded_elems >= N_ELEMS && stats.trainable_padded >= N_ELEMS - 41);
    assert_ok(zinc_engine_memory(e, ZINC_PLACE_HOST, &memory));
    assert_true(memory.total_now == 0);
    assert_fails(zinc_engine_memory(e, (zinc_place)2, &memory), ZINC_E_INVALID, "no place");
    assert_ok(zinc_engine_memory(e, ZINC_PLACE_DEVICE, &memory));
    assert_true(memory.now[ZINC_MEMORY_PARAMETERS] == stats.padded_elems * 4);
    assert_true(memory.now[ZINC_MEMORY_OPTIMIZER_STATE] == stats.trainable_padded * 8);
    assert_string_equal(zinc_memory_category_name(ZINC_MEMORY_OPTIMIZER_STATE), "optimizer state");
    assert_null(zinc_memory_category_name((zinc_memory_category)6));
}

static zinc_status zeros(void *ctx, int what, int param, int64_t offset, int64_t n, float *out)
{
    (void)ctx;
    (void)what;
    (void)param;
    (void)offset;
    memset(out, 0, (size_t)n * sizeof *out);
    return ZINC_OK;
}

static void the_loss_scale_goes_on_where_it_was(void **state)
{
    const alone *const a = *state;
    rank_job job = {.settings = "\"fp16\": {\"enabled\": true}", .n_ranks = 1};
    zinc_progress progress = ZINC_PROGRESS_INIT, got = ZINC_PROGRESS_INIT;
    zinc_engine *engine = NULL;
    progress.n_applied = 5;
    progress.n_skipped = 2;
    progress.loss_scale = 64;
    progress.hysteresis_left = 1;
    progress.scale_steps = 7;
    progress.last_overflow = 6;
    assert_fails(zinc_engine_restore(a->engine, zeros, NULL, &progress), ZINC_E_INVALID, "fp16");
    assert_ok(make_toy(&job, a->comm, NULL, &engine));
    assert_ok(zinc_engine_restore(engine, zeros, NULL, &progress));
    assert_true(zinc_engine_loss_scale(engine) == 64);
    assert_ok(zinc_engine_get_progress(engine, &got));
    assert_memory_equal(&got, &progress, sizeof got);
    progress.n_applied = -1;
    assert_fails(zinc_engine_restore(engine, zeros, NULL, &progress), ZINC_E_INVALID, "-1 applied");
    zinc_engine_destroy(engine);
}

/* ---- making an engine ---- */

static zinc_status create_with(zinc_comm *comm, const char *settings,
                               const zinc_engine_params *params)
{
    rank_job job = {.settings = settings, .n_ranks = 1};
    zinc_engine *engine = NULL;
    const zinc_status status = make_toy(&job, comm, params, &engine);
    zinc_engine_destroy(engine);
    return status;
}

static void what_cannot_be_made_is_refused_with_its_reason(void **state)
{
    zinc_comm *const comm = ((alone *)*state)->comm;
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    zinc_group groups[2] = {ZINC_GROUP_INIT, ZINC_GROUP_INIT};
    zinc_config *config = NULL;
    zinc_engine *engine = NULL;
    params.grad_divisor = 0;
    assert_fails(create_with(comm, "\"fp16\": {}", &params), ZINC_E_INVALID, "grad_divisor is 0");
    params.grad_divisor = 1;
    params.groups = groups;
    params.n_groups = 2;
    groups[1].beta1 = 1.5;
    assert_fails(create_with(comm, "\"fp16\": {}", &params), ZINC_E_INVALID, "group 1: beta1");
    groups[1].beta1 = ZINC_KEEP;
    groups[0].lr = -2;
    assert_fails(create_with(comm, "\"fp16\": {}", &params), ZINC_E_INVALID, "group 0: lr is -2");
    assert_ok(resolved("\"fp16\": {}", 3, &config));
    params = (zinc_engine_params)ZINC_ENGINE_PARAMS_INIT;
    params.comm = comm;
    params.config = config;
    assert_fails(zinc_engine_create(&params, &engine), ZINC_E_INVALID, "for 3 ranks");
    zinc_config_destroy(config);
    assert_ok(zinc_config_load(NULL, &config));
    params.config = config;
    assert_fails(zinc_engine_create(&params, &engine), ZINC_E_INVALID, "not resolved");
    zinc_config_destroy(config);
    assert_null(engine);
}

static void bad_parameters_are_refused(void **state)
{
    zinc_comm *const comm = ((alone *)*state)->comm;
    zinc_engine_params params = ZINC_ENGINE_PARAMS_INIT;
    zinc_param p = ZINC_PARAM_INIT;
    zinc_config *config = NULL;
    zinc_engine *engine = NULL;
    assert_ok(resolved("\"fp16\": {}", 1, &config));
    params.comm = comm;
    params.config = config;
    assert_ok(zinc_engine_create(&params, &engine));
    assert_fails(zinc_engine_build(engine), ZINC_E_INVALID, "at least one parameter");
    assert_fails(zinc_engine_acquire(engine, 0, ZINC_PASS_EVAL), ZINC_E_INVALID, "not built");
    assert_ok(zinc_engine_add_unit(engine, "u", NULL));
    assert_fails(zinc_engine_add_param(engine, &p, NULL), ZINC_E_INVALID, "no name");
    p.name = "w";
    p.group = 1;
    assert_fails(zinc_engine_add_param(engine, &p, NULL), ZINC_E_INVALID, "group 1 of 1");
    p.group = 0;
    p.n_dims = 5;
    assert_fails(zinc_engine_add_param(engine, &p, NULL), ZINC_E_INVALID, "5 dimensions");
    p.n_dims = 1;
    p.unit = 1;
    assert_fails(zinc_engine_add_param(engine, &p, NULL), ZINC_E_INVALID, "unit 1 of 1");
    p.unit = 0;
    assert_ok(zinc_engine_add_param(engine, &p, NULL));
    assert_fails(zinc_engine_add_param(engine, &p, NULL), ZINC_E_INVALID, "called w already");
    zinc_engine_destroy(engine);
    zinc_config_destroy(config);
}

static void every_allocation_of_create_and_build_may_fail(void **state)
{
    zinc_comm *const comm = ((alone *)*state)->comm;
    int64_t n = 0;
    zinc_status status;
    do {
        zn_mem_fail_after(n++);
        status = create_with(comm, "\"zero_optimization\": {\"stage\": 2}", NULL);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    } while (status != ZINC_OK && n < 3000);
    assert_ok(status);
    assert_true(n > 10);
}

/* ---- structs that grow ---- */

typedef struct old_params { /* before n_threads was there */
    size_t struct_size;
    int64_t timeout_ms;
} old_params;

typedef struct new_params { /* with a field that this library does not know */
    zinc_comm_params known;
    int64_t later;
} new_params;

static void programs_of_older_and_newer_headers_are_understood(void **state)
{
    const old_params old = {sizeof old, 5000};
    new_params newer = {ZINC_COMM_PARAMS_INIT, 0};
    zinc_comm *comm = NULL;
    (void)state;
    assert_ok(zinc_comm_create_self((const zinc_comm_params *)(const void *)&old, &comm));
    zinc_comm_destroy(comm);
    newer.known.struct_size = sizeof newer;
    assert_ok(zinc_comm_create_self(&newer.known, &comm));
    zinc_comm_destroy(comm);
    newer.later = 1;
    assert_fails(zinc_comm_create_self(&newer.known, &comm), ZINC_E_UNSUPPORTED, "version 0.");
    newer.known.struct_size = 0;
    assert_fails(zinc_comm_create_self(&newer.known, &comm), ZINC_E_INVALID, "struct_size");
    newer.known = (zinc_comm_params)ZINC_COMM_PARAMS_INIT;
    newer.known.timeout_ms = 0;
    assert_fails(zinc_comm_create_self(&newer.known, &comm), ZINC_E_INVALID, "timeout");
}

static void results_are_written_as_far_as_the_caller_has_room(void **state)
{
    zinc_engine *const e = ((alone *)*state)->engine;
    zinc_stats stats = ZINC_STATS_INIT;
    stats.struct_size = offsetof(zinc_stats, trainable_padded);
    stats.trainable_padded = -7;
    assert_ok(zinc_engine_get_stats(e, &stats));
    assert_true(stats.padded_elems > 0 && stats.trainable_padded == -7);
    assert_true(stats.struct_size == offsetof(zinc_stats, trainable_padded));
}

/* ---- small collectives ---- */

static zinc_status use_comm(rank_job *job, zinc_comm *comm)
{
    double values[2] = {1.5 + job->rank, 10};
    int all[MAX_RANKS], mine = job->rank * 3, root = job->rank == 1 ? 44 : 0;
    zinc_comm_stats stats = ZINC_COMM_STATS_INIT;
    ZN_TRY(zinc_comm_sum(comm, values, 2, "sum"));
    if (values[0] != 1.5 * 3 + 3 || values[1] != 30)
        ZN_FAIL(ZINC_E_INTERNAL, "sums are %g and %g", values[0], values[1]);
    ZN_TRY(zinc_comm_exchange(comm, &mine, sizeof mine, all, "threes"));
    if (all[0] != 0 || all[1] != 3 || all[2] != 6)
        ZN_FAIL(ZINC_E_INTERNAL, "exchange gave %d %d %d", all[0], all[1], all[2]);
    ZN_TRY(zinc_comm_broadcast(comm, &root, sizeof root, 1, "root"));
    ZN_TRY(zinc_comm_get_stats(comm, &stats));
    if (root != 44 || stats.n_broadcast != 1)
        ZN_FAIL(ZINC_E_INTERNAL, "broadcast gave %d", root);
    const zinc_status status =
        zinc_comm_agree(comm, job->rank == 2 ? zinc_fail(ZINC_E_IO, "the disk is full") : ZINC_OK);
    if (status != ZINC_E_IO || !strstr(zinc_last_error(), "the disk is full"))
        ZN_FAIL(ZINC_E_INTERNAL, "agree gave %s", zinc_status_name(status));
    return zinc_comm_barrier(comm, "end");
}

static void ranks_sum_exchange_broadcast_and_agree(void **state)
{
    rank_job jobs[MAX_RANKS];
    (void)state;
    run_ranks(&(rank_job){.fn = use_comm, .n_ranks = 3}, jobs);
    run_ranks(&(rank_job){.fn = use_comm, .n_ranks = 3, .over_host = true}, jobs);
}

#define WITH_ENGINE(fn) cmocka_unit_test_setup_teardown(fn, open_alone, close_alone)

static const struct CMUnitTest tests[] = {
    WITH_ENGINE(parameters_are_read_only_while_their_unit_is_acquired),
    WITH_ENGINE(gradients_are_handed_over_once),
    WITH_ENGINE(a_gradient_of_any_type_is_widened),
    WITH_ENGINE(numbers_out_of_range_are_named),
    WITH_ENGINE(memory_and_counts_are_told),
    WITH_ENGINE(the_loss_scale_goes_on_where_it_was),
    WITH_ENGINE(what_cannot_be_made_is_refused_with_its_reason),
    WITH_ENGINE(bad_parameters_are_refused),
    WITH_ENGINE(every_allocation_of_create_and_build_may_fail),
    WITH_ENGINE(results_are_written_as_far_as_the_caller_has_room),
    cmocka_unit_test(programs_of_older_and_newer_headers_are_understood),
    cmocka_unit_test(ranks_sum_exchange_broadcast_and_agree),
};

ZN_TEST_MAIN(tests)
