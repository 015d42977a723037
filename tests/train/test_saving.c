/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads of the test: they train two steps, save, and others load and save again. */
#include "zn_test.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "base/fs.h"
#include "ckpt/checkpoint.h"
#include "ckpt/bulk_file.h"
#include "engine/engine_ckpt.h"
#include "train/saving.h"

#define MODEL ZN_TEST_DATA "/model/llama"

typedef struct world {
    zn_train_setup setup;
    zn_thread_world *threads;
    const char *load; /* checkpoint folder; NULL: random weights and two steps */
    int64_t moved;    /* collectives of all ranks while they saved */
    int64_t
        resident;   /* most bytes that saving added to this process; -1: the system does not say */
    double loss[4]; /* [rank] of the next step's rows, after a load */
    bool no_memory; /* none for the copy */
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

/* The loss of the batch that comes after the two steps: 4 rows at any world size. */
static zinc_status next_loss(world *w, zn_engine *engine, int rank)
{
    zn_batch batch = {0};
    int64_t rows[4];
    const int64_t mb = w->setup.micro_batch;
    for (int64_t i = 0; i < mb; i++)
        rows[i] = (2 * w->setup.n_ranks + rank) * mb + i;
    zinc_status status = zn_batch_fill(&batch, w->setup.train, rows, mb, 0);
    if (status == ZINC_OK)
        status = zn_engine_micro_batch(engine, &batch, 1e-2, true, &w->loss[rank]);
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

/* "VmRSS", "VmHWM" of this process in bytes. */
static int64_t memory(const char *key)
{
    char line[256];
    long long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && kib < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtoll(line + strlen(key) + 1, NULL, 10);
    if (file)
        fclose(file);
    return 1024 * (int64_t)kib;
}

/* Let the peak start again from what is resident now. */
static bool reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    const bool written = file && fputs("5", file) >= 0;
    return (!file || fclose(file) == 0) && written;
}

/* Save, and count what it took. Rank 0 looks while nobody runs. */
static zinc_status save(world *w, int rank, zn_comm *comm, zn_saver *saver)
{
    zn_comm_stats before, after;
    int64_t all[4];
    zn_comm_get_stats(comm, &before);
    ZN_TRY(zn_comm_barrier(comm, "test"));
    const bool peaks = rank == 0 && reset_peak();
    const int64_t resident = memory("VmRSS");
    ZN_TRY(zn_comm_barrier(comm, "test"));
    ZN_TRY(zn_saver_save(saver, 2));
    ZN_TRY(zn_saver_finish(saver));
    ZN_TRY(zn_comm_barrier(comm, "test"));
    zn_comm_get_stats(comm, &after);
    const int64_t moved = after.n_all_gather + after.n_reduce_scatter + after.n_broadcast -
                          before.n_all_gather - before.n_reduce_scatter - before.n_broadcast;
    ZN_TRY(zn_comm_exchange(comm, &moved, sizeof moved, all, "test"));
    if (rank != 0)
        return ZINC_OK;
    w->resident = peaks ? memory("VmHWM") - resident : -1;
    for (int r = 0; r < w->setup.n_ranks; r++)
        w->moved += all[r];
    return ZINC_OK;
}

static zinc_status run(world *w, int rank, zn_device *dev, zn_comm *comm, zn_engine **engine,
                       zn_saver **saver)
{
    const zn_engine_params params = zn_train_engine_params(&w->setup, dev, comm);
    ZN_TRY(zn_engine_create(&params, engine));
    if (w->load) {
        ZN_TRY(load(w, *engine));
    } else {
        ZN_TRY(zn_engine_random(*engine, 7));
        ZN_TRY(two_steps(w, *engine, rank));
    }
    ZN_TRY(zn_saver_create(&w->setup, dev, *engine, NULL, saver));
    ZN_TRY(save(w, rank, comm, *saver));
    if (zn_saver_last(*saver) != 2)
        return ZINC_E_INTERNAL;
    return w->load ? next_loss(w, *engine, rank) : ZINC_OK;
}

static void *rank_main(void *arg)
{
    rank_arg *r = arg;
    world *w = r->w;
    zn_device *dev = NULL;
    zn_comm *comm = NULL;
    zn_engine *engine = NULL;
    zn_saver *saver = NULL;
    const zn_device_params device = {
        .rank = r->rank, .n_threads = 1, .host_limit_bytes = w->no_memory};
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
    const char *offload; /* of the optimizer: "cpu", "nvme"; NULL: none */
} layout;

static void put_text(const char *path, const char *text)
{
    assert_ok(zn_fs_write_atomic(path, text, strlen(text)));
}

static void write_inputs(const char *dir, const layout *l)
{
    char path[600], text[2000] = "", offload[800] = "";
    for (int i = 0; i < 12; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "{\"input_ids\":[%d,%d,3,%d]}\n",
                 i + 1, 2 * i + 5, 7 * i);
    snprintf(path, sizeof path, "%s/rows.jsonl", dir);
    put_text(path, text);
    if (l->offload)
        snprintf(offload, sizeof offload,
                 ",\"offload_optimizer\":{\"device\":\"%s\",\"nvme_path\":\"%s\"}", l->offload,
                 dir);
    snprintf(text, sizeof text,
             "{\"train_micro_batch_size_per_gpu\":%d,\"gradient_accumulation_steps\":1,"
             "\"zero_optimization\":{\"stage\":%d,\"stage3_param_persistence_threshold\":100%s},"
             "\"%s\":{\"enabled\":%s},\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.01}}}",
             4 / l->ranks, l->stage, offload, strcmp(l->dtype, "fp16") == 0 ? "fp16" : "bf16",
             strcmp(l->dtype, "fp32") == 0 ? "false" : "true");
    snprintf(path, sizeof path, "%s/ds.json", dir);
    put_text(path, text);
}

/* checkpoint-2 in dir/OUT, made by two steps or from the checkpoint `from`. */
static world make_world(const char *dir, const char *out, const layout *l, const char *from,
                        const char *model, bool no_memory)
{
    char rows[600], ds[600], output[600];
    const char *files[] = {rows};
    rank_arg ranks[4];
    zn_train_options o;
    world w = {.load = from, .no_memory = no_memory};
    write_inputs(dir, l);
    snprintf(rows, sizeof rows, "%s/rows.jsonl", dir);
    snprintf(ds, sizeof ds, "%s/ds.json", dir);
    snprintf(output, sizeof output, "%s/%s", dir, out);
    zn_train_defaults(&o);
    o.model = model;
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
    return w;
}

static void make(const char *dir, const char *out, const layout *l, const char *from)
{
    (void)make_world(dir, out, l, from, MODEL, false);
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

/* Every layout there is, in an order that mixes them: each loads what the one before has saved. All
 * that is between any two is the canonical (parameter, range) form, and it never changes. */
#define N_LAYOUTS 90
static int all_layouts(layout out[N_LAYOUTS])
{
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"}, *const offloads[] = {NULL, "cpu",
                                                                                       "nvme"};
    int n = 0;
    for (int stage = 0; stage < 4; stage++)
        for (int ranks = 1; ranks <= 4; ranks *= 2)
            for (int d = 0; d < 3; d++)
                for (int k = 0; k < (stage == 0 ? 1 : 3); k++)
                    out[n++] = (layout){stage, ranks, dtypes[d], (n & 1) != 0, offloads[k]};
    return n;
}

static void state_is_the_same_at_any_stage_world_size_precision_and_offload(void **state)
{
    static const layout first = {3, 4, "bf16", true, NULL};
    layout layouts[N_LAYOUTS];
    double losses[3] = {0};
    char origin[600], from[600], name[64] = "";
    assert_int_equal(all_layouts(layouts), N_LAYOUTS);
    make(*state, "origin", &first, NULL);
    snprintf(origin, sizeof origin, "%s/origin/checkpoint-2", (const char *)*state);
    snprintf(from, sizeof from, "%s", origin);
    for (int i = 0; i < N_LAYOUTS; i++) {
        const layout *l = &layouts[i * 37 % N_LAYOUTS]; /* 37 and 90 have no common divisor */
        double loss = 0, *want = &losses[l->dtype[0] == 'b' ? 0 : l->dtype[2] == '3' ? 1 : 2];
        snprintf(name, sizeof name, "next%d", i);
        const world w = make_world(*state, name, l, from, MODEL, false);
        snprintf(from, sizeof from, "%s/%s/checkpoint-2", (const char *)*state, name);
        assert_same_state(origin, from);
        for (int r = 0; r < l->ranks; r++)
            loss += w.loss[r] * 1e-2;
        if (*want == 0)
            *want = loss;
        if (!(fabs(loss / *want - 1) <= 1e-6))
            fail_msg("stage %d, %d ranks, %s, offload %s: the next loss is %.9g, not %.9g",
                     l->stage, l->ranks, l->dtype, l->offload ? l->offload : "none", loss, *want);
    }
    assert_true(fabs(losses[0] / losses[1] - 1) < 2e-3); /* bf16 rounds weights: 8 bits */
    assert_true(fabs(losses[2] / losses[1] - 1) < 1e-3);
}

/* A model whose state is larger than what a save may hold: 15 M values. */
static void put_large_model(const char *dir, char path[600])
{
    snprintf(path, 600, "%s/config.json", dir);
    put_text(path, "{\"model_type\":\"llama\",\"vocab_size\":8192,\"hidden_size\":256,"
                   "\"intermediate_size\":768,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
                   "\"max_position_embeddings\":64,\"tie_word_embeddings\":true}");
}

static void a_stage_3_save_moves_nothing_and_holds_one_write_buffer_a_rank(void **state)
{
    char model[600];
    put_large_model(*state, model);
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        const layout l = {3, ranks, "bf16", false, NULL};
        const world w = make_world(*state, "out", &l, NULL, model, false);
        assert_int_equal(w.moved, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* those keep shadows */
        if (w.resident > ranks * ZN_BULK_BUFFER_BYTES + (2 << 20)) /* tables and a thread's stack */
            fail_msg("%d ranks: %lld bytes more than before", ranks, (long long)w.resident);
#endif
    }
}

static int count_in_file(const char *path, const char *text)
{
    zn_buf all = {0};
    int n = 0;
    assert_ok(zn_fs_read(path, 0, &all));
    for (const char *p = all.data; (p = strstr(p, text)) != NULL; p++)
        n++;
    zn_buf_fini(&all);
    return n;
}

static void without_memory_for_the_copy_a_rank_writes_at_once_and_says_so_once(void **state)
{
    static const layout l = {3, 2, "bf16", true, NULL};
    char log[600], with[600], without[600];
    snprintf(log, sizeof log, "%s/log", (const char *)*state);
    const int said = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600), kept = dup(STDERR_FILENO);
    assert_true(said >= 0 && kept >= 0);
    make(*state, "with", &l, NULL);
    dup2(said, STDERR_FILENO);
    (void)make_world(*state, "without", &l, NULL, MODEL, true);
    dup2(kept, STDERR_FILENO);
    close(said);
    close(kept);
    assert_int_equal(count_in_file(log, "no room for a copy"), 1);
    assert_int_equal(count_in_file(log, "training waits while a checkpoint is written"), 1);
    snprintf(with, sizeof with, "%s/with/checkpoint-2", (const char *)*state);
    snprintf(without, sizeof without, "%s/without/checkpoint-2", (const char *)*state);
    assert_same_state(with, without);
}

static void another_model_is_refused_by_name(void **state)
{
    static const layout l = {0, 1, "fp32", true, NULL};
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
    TEST(state_is_the_same_at_any_stage_world_size_precision_and_offload),
    TEST(a_stage_3_save_moves_nothing_and_holds_one_write_buffer_a_rank),
    TEST(without_memory_for_the_copy_a_rank_writes_at_once_and_says_so_once),
    TEST(another_model_is_refused_by_name),
};

ZN_TEST_MAIN(tests)
