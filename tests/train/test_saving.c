/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads of the test: they train two steps, save, and others load and save again. */
#include "zn_test.h"

#include <pthread.h>
#include <unistd.h>

#include "base/fs.h"
#include "ckpt/checkpoint.h"
#include "engine/engine_ckpt.h"
#include "train/saving.h"

#define MODEL ZN_TEST_DATA "/model/llama"

typedef struct world {
    zn_train_setup setup;
    zn_thread_world *threads;
    const char *load; /* checkpoint folder; NULL: random weights and two steps */
    int64_t gathered; /* bytes that rank 0 gathered while it saved */
} world;

typedef struct rank_arg {
    world *w;
    int rank;
    pthread_t thread;
    char message[512]; /* of its failure */
} rank_arg;

static zinc_status two_steps(world *w, zn_engine *engine, int rank)
{
    zn_batch batch = {0};
    zinc_status status = ZINC_OK;
    for (int64_t step = 0; step < 2 && status == ZINC_OK; step++) {
        int64_t rows[4];
        double loss = 0;
        zn_engine_step_result result;
        const int64_t mb = w->setup.micro_batch;
        for (int64_t i = 0; i < mb; i++)
            rows[i] = (step * w->setup.n_ranks + rank) * mb + i;
        status = zn_batch_fill(&batch, w->setup.train, rows, mb, 0);
        if (status == ZINC_OK)
            status = zn_engine_micro_batch(engine, &batch, 1e-2, true, &loss);
        if (status == ZINC_OK)
            status = zn_engine_step(engine, &result);
    }
    zn_batch_fini(&batch);
    return status;
}

static zinc_status load(const world *w, zn_engine *engine)
{
    zn_ckpt *ckpt = NULL;
    ZN_TRY(zn_ckpt_open(w->load, &ckpt));
    const zinc_status status = zn_engine_restore(engine, ckpt);
    zn_ckpt_close(ckpt);
    return status;
}

static zinc_status run(world *w, int rank, zn_device *dev, zn_comm *comm, zn_engine **engine,
                       zn_saver **saver)
{
    zn_comm_stats before, after;
    const zn_engine_params params = zn_train_engine_params(&w->setup, dev, comm);
    ZN_TRY(zn_engine_create(&params, engine));
    if (w->load) {
        ZN_TRY(load(w, *engine));
    } else {
        ZN_TRY(zn_engine_random(*engine, 7));
        ZN_TRY(two_steps(w, *engine, rank));
    }
    ZN_TRY(zn_saver_create(&w->setup, dev, *engine, saver));
    zn_comm_get_stats(comm, &before);
    ZN_TRY(zn_saver_save(*saver, 2));
    ZN_TRY(zn_saver_finish(*saver));
    zn_comm_get_stats(comm, &after);
    if (rank == 0)
        w->gathered = after.all_gather_bytes - before.all_gather_bytes;
    return zn_saver_last(*saver) == 2 ? ZINC_OK : ZINC_E_INTERNAL;
}

static void *rank_main(void *arg)
{
    rank_arg *r = arg;
    world *w = r->w;
    zn_device *dev = NULL;
    zn_comm *comm = NULL;
    zn_engine *engine = NULL;
    zn_saver *saver = NULL;
    const zn_device_params device = {.rank = r->rank, .n_threads = 1};
    zinc_status status = zn_device_open("cpu", &device, &dev);
    const zn_comm_params params = {.backend = w->setup.n_ranks > 1 ? "thread" : "self",
                                   .rank = r->rank,
                                   .n_ranks = w->setup.n_ranks,
                                   .world = w->threads,
                                   .dev = dev,
                                   .timeout_ms = 60000};
    if (status == ZINC_OK)
        status = zn_comm_open(&params, &comm);
    if (status == ZINC_OK)
        status = run(w, r->rank, dev, comm, &engine, &saver);
    if (status != ZINC_OK) {
        snprintf(r->message, sizeof r->message, "%s", zinc_last_error());
        if (comm)
            zn_comm_abort(comm, "another rank failed");
    }
    zn_saver_destroy(saver);
    zn_engine_destroy(engine);
    zn_comm_close(comm);
    zn_device_close(dev);
    return NULL;
}

typedef struct layout {
    int stage, ranks;
    const char *dtype;
    bool async_save;
} layout;

static void put_text(const char *path, const char *text)
{
    assert_ok(zn_fs_write_atomic(path, text, strlen(text)));
}

static void write_inputs(const char *dir, const layout *l)
{
    char path[600], text[2000] = "";
    for (int i = 0; i < 12; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "{\"input_ids\":[%d,%d,3,%d]}\n",
                 i + 1, 2 * i + 5, 7 * i);
    snprintf(path, sizeof path, "%s/rows.jsonl", dir);
    put_text(path, text);
    snprintf(text, sizeof text,
             "{\"train_micro_batch_size_per_gpu\":%d,\"gradient_accumulation_steps\":1,"
             "\"zero_optimization\":{\"stage\":%d,\"stage3_param_persistence_threshold\":100},"
             "\"%s\":{\"enabled\":%s},\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.01}}}",
             4 / l->ranks, l->stage, strcmp(l->dtype, "bf16") == 0 ? "bf16" : "fp16",
             strcmp(l->dtype, "bf16") == 0 ? "true" : "false");
    snprintf(path, sizeof path, "%s/ds.json", dir);
    put_text(path, text);
}

/* checkpoint-2 in dir/OUT, made by two steps or from the checkpoint `from`. Bytes gathered. */
static int64_t make(const char *dir, const char *out, const layout *l, const char *from)
{
    char rows[600], ds[600], output[600];
    const char *files[] = {rows};
    rank_arg ranks[4];
    zn_train_options o;
    world w = {.load = from};
    write_inputs(dir, l);
    snprintf(rows, sizeof rows, "%s/rows.jsonl", dir);
    snprintf(ds, sizeof ds, "%s/ds.json", dir);
    snprintf(output, sizeof output, "%s/%s", dir, out);
    zn_train_defaults(&o);
    o.model = MODEL;
    o.train_files = files;
    o.n_train_files = 1;
    o.output_dir = output;
    o.deepspeed = ds;
    o.max_steps = 10;
    o.from_scratch = true;
    o.async_save = l->async_save;
    o.save_failure_stops = true;
    assert_ok(zn_train_setup_open(&o, l->ranks, &w.setup));
    assert_ok(zn_fs_mkdirs(output));
    assert_ok(zn_thread_world_create(l->ranks, &w.threads));
    for (int r = 0; r < l->ranks; r++) {
        ranks[r] = (rank_arg){.w = &w, .rank = r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < l->ranks; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < l->ranks; r++)
        if (ranks[r].message[0])
            fail_msg("stage %d, %d ranks, %s: %s", l->stage, l->ranks, l->dtype, ranks[r].message);
    zn_thread_world_destroy(w.threads);
    zn_train_setup_close(&w.setup);
    return w.gathered;
}

/* Every master and every state of two checkpoints, bit for bit. */
static void assert_same_state(const char *a, const char *b)
{
    zn_ckpt *x = NULL, *y = NULL;
    float *values = NULL;
    double sum = 0;
    assert_ok(zn_ckpt_open(a, &x));
    assert_ok(zn_ckpt_open(b, &y));
    assert_int_equal(zn_ckpt_n(x), zn_ckpt_n(y));
    assert_int_equal(zn_ckpt_get_meta(x)->n_applied, 2);
    assert_int_equal(zn_ckpt_get_meta(y)->n_applied, 2);
    for (int i = 0; i < zn_ckpt_n(x); i++)
        for (int what = ZN_CKPT_MASTER; what < 2; what++) {
            const int64_t n = zn_ckpt_n_elems(x, i);
            assert_ok(zn_realloc_array(&values, (size_t)(2 * n), sizeof *values, "values"));
            assert_ok(zn_ckpt_read(x, i, what, 0, n, values));
            assert_ok(zn_ckpt_read(y, i, what, 0, n, values + n));
            if (memcmp(values, values + n, (size_t)n * sizeof *values) != 0)
                fail_msg("%s and %s differ in %s, %d", a, b, zn_ckpt_at(x, i).name, what);
            for (int64_t k = 0; what == 1 && k < n; k++)
                sum += (double)values[k];
        }
    assert_true(sum > 0); /* exp_avg_sq: there was something to save */
    zn_free(values);
    zn_ckpt_close(x);
    zn_ckpt_close(y);
}

static int make_folder(void **state)
{
    char *path = NULL;
    if (zn_strdup("/tmp/zinc-saving-XXXXXX", &path) != ZINC_OK || !mkdtemp(path))
        return -1;
    *state = path;
    return 0;
}

static int remove_folder(void **state)
{
    char command[600];
    snprintf(command, sizeof command, "rm -r '%s'", (const char *)*state);
    const int failed = system(command);
    zn_free(*state);
    return failed;
}

static void state_is_the_same_at_any_stage_world_size_and_precision(void **state)
{
    static const layout from[] = {
        {0, 1, "fp32", true}, {1, 2, "bf16", true}, {3, 4, "bf16", true}, {3, 2, "fp32", false}};
    static const layout to[] = {
        {3, 4, "fp32", true}, {0, 2, "bf16", false}, {2, 1, "bf16", true}, {3, 2, "bf16", true}};
    const char *dir = *state;
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) {
        char name[64], first[600];
        snprintf(name, sizeof name, "first%zu", i);
        snprintf(first, sizeof first, "%s/%s/checkpoint-2", dir, name);
        make(dir, name, &from[i], NULL);
        for (size_t j = 0; j < sizeof to / sizeof to[0]; j++) {
            char out[64], second[600];
            snprintf(out, sizeof out, "second%zu_%zu", i, j);
            snprintf(second, sizeof second, "%s/%s/checkpoint-2", dir, out);
            make(dir, out, &to[j], first);
            assert_same_state(first, second);
        }
    }
}

static void a_stage_3_save_gathers_nothing(void **state)
{
    static const layout l = {3, 2, "bf16", true};
    assert_true(make(*state, "out", &l, NULL) == 0);
}

static void another_model_is_refused_by_name(void **state)
{
    static const layout l = {0, 1, "fp32", true};
    char path[600];
    zn_ckpt *ckpt = NULL;
    zn_engine *engine = NULL;
    zn_device *dev = NULL;
    zn_comm *comm = NULL;
    zn_train_setup setup;
    char rows[600];
    const char *files[] = {rows};
    zn_train_options o;
    make(*state, "out", &l, NULL);
    snprintf(path, sizeof path, "%s/out/checkpoint-2", (const char *)*state);
    snprintf(rows, sizeof rows, "%s/rows.jsonl", (const char *)*state);
    zn_train_defaults(&o);
    o.model = ZN_TEST_DATA "/model/gpt2";
    o.train_files = files;
    o.n_train_files = 1;
    o.output_dir = path;
    assert_ok(zn_train_setup_open(&o, 1, &setup));
    assert_ok(zn_device_open("cpu", &(zn_device_params){.n_threads = 1}, &dev));
    assert_ok(
        zn_comm_open(&(zn_comm_params){.backend = "self", .dev = dev, .timeout_ms = 1000}, &comm));
    const zn_engine_params params = zn_train_engine_params(&setup, dev, comm);
    assert_ok(zn_engine_create(&params, &engine));
    assert_ok(zn_ckpt_open(path, &ckpt));
    assert_fails(zn_engine_restore(engine, ckpt), ZINC_E_CONFIG, "it has no transformer.wte");
    zn_ckpt_close(ckpt);
    zn_engine_destroy(engine);
    zn_comm_close(comm);
    zn_device_close(dev);
    zn_train_setup_close(&setup);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(state_is_the_same_at_any_stage_world_size_and_precision),
    TEST(a_stage_3_save_gathers_nothing),
    TEST(another_model_is_refused_by_name),
};

ZN_TEST_MAIN(tests)
