/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of an engine through the public headers. */
#include "api_ranks.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zinc/checkpoint.h"

#define ADAMW                                                                                      \
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.1}}"
#define TWO_RANKS                                                                                  \
    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 6}, " ADAMW                            \
    ", \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 10}"
#define ONE_RANK                                                                                   \
    "\"fp16\": {\"enabled\": true}, " ADAMW ", \"gradient_accumulation_steps\": 2, "               \
    "\"zero_optimization\": {\"stage\": 2}"

typedef struct saved {
    char dir[32];
    bool without_frozen;
    int n_written;        /* calls of write_note */
    float now[N_ELEMS];   /* masters when it was saved */
    float after[N_ELEMS]; /* and one step later */
} saved;

static zinc_status one_step(zinc_engine *engine, const rank_job *job)
{
    for (int m = job->rank; m < 2; m += job->n_ranks)
        ZN_TRY(toy_micro_batch(engine, 70 + m, (float)zinc_engine_loss_scale(engine)));
    return zinc_engine_step(engine, NULL, NULL);
}

static zinc_status write_note(void *ctx, const char *folder)
{
    char path[256];
    saved *const s = ctx;
    snprintf(path, sizeof path, "%s/note.txt", folder);
    FILE *file = fopen(path, "w");
    if (!file || fputs("mine\n", file) < 0 || fclose(file) != 0)
        return zinc_fail(ZINC_E_IO, "no note");
    s->n_written++;
    return ZINC_OK;
}

static zinc_status fail_to_write(void *ctx, const char *folder)
{
    (void)ctx;
    (void)folder;
    return zinc_fail(ZINC_E_IO, "the program has no room");
}

/* A save that fails leaves the one before it; then one that does not. */
static zinc_status save_twice(zinc_engine *engine, saved *s)
{
    zinc_save_params p = ZINC_SAVE_PARAMS_INIT;
    p.dir = s->dir;
    p.name = "mine";
    p.leave_frozen = s->without_frozen;
    p.ctx = s;
    p.write_files = write_note;
    ZN_TRY(zinc_engine_save_checkpoint(engine, &p));
    p.write_files = fail_to_write;
    const zinc_status failed = zinc_engine_save_checkpoint(engine, &p);
    if (failed != ZINC_E_IO || !strstr(zinc_last_error(), "the program has no room"))
        return zinc_fail(ZINC_E_INVALID, "a failure of the program is not told");
    p.write_files = write_note;
    return zinc_engine_save_checkpoint(engine, &p);
}

static zinc_status train_and_save(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    saved *const s = job->ctx;
    ZN_TRY(make_toy(job, comm, NULL, &engine));
    ZN_TRY_GOTO(zinc_engine_fill(engine, toy_value, NULL));
    ZN_TRY_GOTO(one_step(engine, job));
    ZN_TRY_GOTO(save_twice(engine, s));
    ZN_TRY_GOTO(read_toy(engine, job->masters));
    if (job->rank == 0)
        memcpy(s->now, job->masters, sizeof s->now);
    ZN_TRY_GOTO(one_step(engine, job));
    ZN_TRY_GOTO(read_toy(engine, job->masters));
    if (job->rank == 0)
        memcpy(s->after, job->masters, sizeof s->after);
    status = zinc_comm_barrier(comm, "done");
fail:
    zinc_engine_destroy(engine);
    return status;
}

static zinc_status load_and_go_on(rank_job *job, zinc_comm *comm)
{
    zinc_status status;
    zinc_engine *engine = NULL;
    zinc_checkpoint *checkpoint = NULL;
    const saved *const s = job->ctx;
    ZN_TRY(make_toy(job, comm, NULL, &engine));
    ZN_TRY_GOTO(zinc_checkpoint_open(s->dir, &checkpoint));
    ZN_TRY_GOTO(zinc_engine_load_checkpoint(engine, checkpoint));
    ZN_TRY_GOTO(one_step(engine, job));
    status = read_toy(engine, job->masters);
fail:
    zinc_checkpoint_close(checkpoint);
    zinc_engine_destroy(engine);
    return status;
}

static void save_on_two_ranks(saved *s)
{
    rank_job jobs[MAX_RANKS];
    snprintf(s->dir, sizeof s->dir, "/tmp/zinc_api_XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    run_ranks(&(rank_job){.fn = train_and_save, .settings = TWO_RANKS, .n_ranks = 2, .ctx = s},
              jobs);
    assert_int_equal(s->n_written, 2);
}

static void remove_saved(const saved *s)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", s->dir);
    assert_int_equal(system(command), 0);
}

static void check_contents(const saved *s)
{
    float values[300];
    struct stat st;
    char path[64];
    zinc_checkpoint *c = NULL;
    zinc_checkpoint_info info = ZINC_CHECKPOINT_INFO_INIT;
    zinc_progress progress = ZINC_PROGRESS_INIT;
    zinc_tensor tensor = ZINC_TENSOR_INIT;
    snprintf(path, sizeof path, "%s/mine/note.txt", s->dir);
    assert_int_equal(stat(path, &st), 0);
    assert_ok(zinc_checkpoint_open(s->dir, &c));
    assert_ok(zinc_checkpoint_get_info(c, &info));
    assert_true(info.n_ranks == 2 && info.stage == 3 && info.n_states == 2);
    assert_int_equal(info.train_batch_size, 2);
    assert_string_equal(info.dtype, "float16");
    assert_string_equal(strrchr(info.folder, '/'), "/mine");
    assert_ok(zinc_checkpoint_get_progress(c, &progress));
    assert_true(progress.n_applied == 1 && progress.loss_scale == 64);
    assert_string_equal(zinc_checkpoint_state_name(c, 1), "exp_avg_sq");
    assert_null(zinc_checkpoint_state_name(c, 2));
    const int i = zinc_checkpoint_find(c, "b.w");
    assert_ok(zinc_checkpoint_get(c, i, &tensor));
    assert_true(tensor.n_dims == 1 && tensor.shape[0] == param_elems[2]);
    assert_ok(zinc_checkpoint_read(c, i, ZINC_MASTERS, 3, 100, values));
    assert_memory_equal(values, s->now + 307 + 3, 100 * sizeof(float));
    assert_fails(zinc_checkpoint_read(c, i, ZINC_MASTERS, 100, 100, values), ZINC_E_INVALID, "b.w");
    assert_fails(zinc_checkpoint_read(c, i, 2, 0, 1, values), ZINC_E_INVALID, "state 2");
    assert_int_equal(zinc_checkpoint_find(c, "c.frozen") >= 0, !s->without_frozen);
    zinc_checkpoint_close(c);
}

static void a_checkpoint_goes_on_bit_for_bit_on_other_ranks_and_stages(void **state)
{
    saved s = {.without_frozen = false};
    rank_job jobs[MAX_RANKS];
    (void)state;
    save_on_two_ranks(&s);
    check_contents(&s);
    run_ranks(&(rank_job){.fn = load_and_go_on, .settings = ONE_RANK, .n_ranks = 1, .ctx = &s},
              jobs);
    assert_memory_equal(jobs[0].masters, s.after, sizeof s.after);
    remove_saved(&s);
}

static zinc_status load_too_little(rank_job *job, zinc_comm *comm)
{
    const zinc_status status = load_and_go_on(job, comm);
    return status == ZINC_E_CONFIG && strstr(zinc_last_error(), "it has no c.frozen")
               ? ZINC_OK
               : zinc_fail(ZINC_E_INVALID, "what is missing is not named");
}

static void frozen_parameters_may_be_left_out(void **state)
{
    saved s = {.without_frozen = true};
    rank_job jobs[MAX_RANKS];
    (void)state;
    save_on_two_ranks(&s);
    check_contents(&s);
    run_ranks(&(rank_job){.fn = load_too_little, .settings = ONE_RANK, .n_ranks = 1, .ctx = &s},
              jobs);
    remove_saved(&s);
}

static zinc_status name_a_path(rank_job *job, zinc_comm *comm)
{
    zinc_engine *engine = NULL;
    zinc_save_params p = ZINC_SAVE_PARAMS_INIT;
    ZN_TRY(make_toy(job, comm, NULL, &engine));
    p.dir = "/tmp";
    p.name = "../zinc";
    const zinc_status status = zinc_engine_save_checkpoint(engine, &p);
    zinc_engine_destroy(engine);
    return status == ZINC_E_INVALID && strstr(zinc_last_error(), "\"../zinc\"")
               ? ZINC_OK
               : zinc_fail(ZINC_E_INVALID, "a name that leaves the folder is taken");
}

static void a_checkpoint_stays_in_its_folder(void **state)
{
    rank_job jobs[MAX_RANKS];
    zinc_checkpoint *c = NULL;
    (void)state;
    run_ranks(&(rank_job){.fn = name_a_path, .settings = TWO_RANKS, .n_ranks = 2}, jobs);
    assert_fails(zinc_checkpoint_open("/nowhere", &c), ZINC_E_IO, "/nowhere");
    assert_fails(zinc_checkpoint_open("/tmp", &c), ZINC_E_FORMAT, "/tmp is no checkpoint");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_checkpoint_goes_on_bit_for_bit_on_other_ranks_and_stages),
    cmocka_unit_test(frozen_parameters_may_be_left_out),
    cmocka_unit_test(a_checkpoint_stays_in_its_folder),
};

ZN_TEST_MAIN(tests)
