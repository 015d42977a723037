/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include <inttypes.h>

#include "base/hash.h"
#include "ckpt/ds_layout.h"

#define DATA ZN_TEST_DATA "/ckpt/"

static int find(const zn_ds_checkpoint *ckpt, const char *name)
{
    for (int i = 0; i < zn_ds_n(ckpt); i++)
        if (strcmp(zn_ds_at(ckpt, i).name, name) == 0)
            return i;
    fail_msg("%s is missing", name);
    return -1;
}

/* In chunks, because that is how export reads. */
static uint64_t hash_of(const zn_ds_checkpoint *ckpt, int i)
{
    float chunk[1000];
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t k = 0; k < zn_ds_n_elems(ckpt, i);) {
        const int64_t left = zn_ds_n_elems(ckpt, i) - k;
        const int64_t n = left < 1000 ? left : 1000;
        assert_ok(zn_ds_read(ckpt, i, k, n, chunk));
        h = zn_hash_bytes(h, chunk, (size_t)n * sizeof *chunk);
        k += n;
    }
    return h;
}

static void check_recorded(const char *folder, int stage)
{
    char path[512], name[128], shape[64];
    uint64_t want;
    int n = 0;
    zn_ds_checkpoint *ckpt = NULL;
    snprintf(path, sizeof path, DATA "%s/expected.txt", folder);
    FILE *expected = fopen(path, "r");
    assert_non_null(expected);
    snprintf(path, sizeof path, DATA "%s", folder);
    assert_ok(zn_ds_open(path, &ckpt));
    assert_int_equal(zn_ds_stage(ckpt), stage);
    assert_int_equal(zn_ds_n_ranks(ckpt), stage == 0 ? 0 : 2);
    for (; fscanf(expected, "%127s %63s %" SCNx64, name, shape, &want) == 3; n++) {
        const int i = find(ckpt, name);
        const zn_tensor_plan plan = zn_ds_at(ckpt, i);
        char got[64] = "";
        for (int d = 0; d < plan.n_dims; d++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", d ? "x" : "",
                     (int)plan.shape[d]);
        assert_string_equal(got, shape);
        if (hash_of(ckpt, i) != want)
            fail_msg("%s: %s differs from what DeepSpeed exports", folder, name);
    }
    assert_int_equal(n, 21);
    assert_int_equal(zn_ds_n(ckpt), n);
    zn_ds_close(ckpt);
    fclose(expected);
}

static void recorded_checkpoints_give_the_weights_deepspeed_exports(void **state)
{
    (void)state;
    check_recorded("stage0_fp32", 0);
    check_recorded("stage0_fp16", 0);
    check_recorded("stage2_fp16", 2);
    check_recorded("stage2_bf16", 2);
    check_recorded("stage3_bf16", 3);
}

static void the_loss_scale_is_read_from_every_stage(void **state)
{
    static const struct {
        const char *folder;
        double scale;
        int64_t iteration, last_overflow;
    } runs[] = {{"stage0_fp16", 2097152, 3, -1}, {"stage2_fp16", 262144, 3, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        char path[512];
        zn_ds_checkpoint *ckpt = NULL;
        zn_loss_scaler scaler;
        snprintf(path, sizeof path, DATA "%s", runs[i].folder);
        assert_ok(zn_ds_open(path, &ckpt));
        assert_true(zn_ds_scaler(ckpt, &scaler));
        assert_true(scaler.dynamic && scaler.scale == runs[i].scale);
        assert_int_equal(scaler.window, 2);
        assert_int_equal(scaler.iteration, runs[i].iteration);
        assert_int_equal(scaler.last_overflow, runs[i].last_overflow);
        assert_int_equal(scaler.hysteresis_left, 1);
        zn_ds_close(ckpt);
    }
}

/* See make_checkpoints.py: weight k is 1000 k, 1000 k + 1, … */
static const struct {
    const char *name;
    int k, n_dims;
    int64_t n_elems;
} made[] = {
    {"a.weight", 0, 2, 15},     {"b.weight", 1, 1, 7},       {"c.bias", 2, 3, 8},
    {"d.scale", 3, 0, 1},       {"frozen.weight", 4, 1, 11}, {"e.buffer", 5, 1, 3},
    {"alias.weight", 0, 2, 15},
};

static void check_made(const zn_ds_checkpoint *ckpt)
{
    assert_int_equal(zn_ds_n(ckpt), 7);
    for (size_t w = 0; w < sizeof made / sizeof made[0]; w++) {
        const int i = find(ckpt, made[w].name);
        float all[32];
        assert_int_equal(zn_ds_at(ckpt, i).n_dims, made[w].n_dims);
        assert_int_equal(zn_ds_n_elems(ckpt, i), made[w].n_elems);
        for (int64_t from = 0; from <= made[w].n_elems; from++) {
            const int64_t n = made[w].n_elems - from;
            assert_ok(zn_ds_read(ckpt, i, from, n, all));
            for (int64_t e = 0; e < n; e++)
                if (all[e] != (float)(1000 * made[w].k + from + e))
                    fail_msg("%s[%d] is %g", made[w].name, (int)(from + e), (double)all[e]);
        }
        assert_fails(zn_ds_read(ckpt, i, 1, made[w].n_elems, all), ZINC_E_INVALID, "elements");
    }
}

static void uneven_groups_on_three_ranks_give_whole_weights(void **state)
{
    (void)state;
    static const char *const folders[] = {DATA "made_stage2", DATA "made_stage3",
                                          DATA "made_stage3/global_step7"};
    for (int i = 0; i < 3; i++) {
        zn_ds_checkpoint *ckpt = NULL;
        assert_true(zn_ds_is_checkpoint(folders[i]));
        assert_ok(zn_ds_open(folders[i], &ckpt));
        assert_int_equal(zn_ds_n_ranks(ckpt), 3);
        assert_int_equal(zn_ds_stage(ckpt), i == 0 ? 2 : 3);
        check_made(ckpt);
        zn_ds_close(ckpt);
    }
}

static void stage_0_is_read_from_the_module(void **state)
{
    (void)state;
    zn_ds_checkpoint *ckpt = NULL;
    float b[7];
    assert_ok(zn_ds_open(DATA "made_stage0", &ckpt));
    assert_int_equal(zn_ds_n(ckpt), 6);
    assert_ok(zn_ds_read(ckpt, find(ckpt, "b.weight"), 0, 7, b));
    const float want[7] = {0.5f, -2, 65504, 0, 1, 2, 3};
    assert_memory_equal(b, want, sizeof b);
    assert_ok(zn_ds_read(ckpt, find(ckpt, "a.weight"), 13, 2, b));
    assert_true(b[0] == 13 && b[1] == 14);
    zn_ds_close(ckpt);
}

static void copy_made(void *const *state, const char *stage, const char *without)
{
    static const char *const names[] = {
        "mp_rank_00_model_states.pt",
        "zero_pp_rank_0_mp_rank_00_model_states.pt",
        "zero_pp_rank_1_mp_rank_00_model_states.pt",
        "zero_pp_rank_2_mp_rank_00_model_states.pt",
        "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "zero_pp_rank_2_mp_rank_00_optim_states.pt",
    };
    assert_ok(zn_fs_mkdirs(at(state, stage)));
    for (int i = 0; i < 7; i++) {
        char from[512], to[512];
        snprintf(from, sizeof from, DATA "%s/global_step7/%s", stage, names[i]);
        snprintf(to, sizeof to, "%s/%s", at(state, stage), names[i]);
        if (zn_fs_exists(from) && !strstr(names[i], without))
            assert_ok(zn_fs_copy(from, to));
    }
}

static void missing_files_are_named(void **state)
{
    static const struct {
        const char *stage, *without;
        zinc_status status;
        const char *message;
    } cases[] = {
        {"made_stage2", "rank_1_mp_rank_00_optim", ZINC_E_IO, "lacks the file of rank 1"},
        {"made_stage2", "rank_2_mp_rank_00_optim", ZINC_E_IO, "written by 3 ranks"},
        {"made_stage2", "model_states", ZINC_E_IO, "no *_model_states.pt"},
        {"made_stage3", "rank_0_mp_rank_00_model", ZINC_E_IO, "lacks the file of rank 0"},
        {"made_stage3", "rank_2_mp_rank_00_model", ZINC_E_FORMAT, "too short"},
        {"made_stage3", "optim_states", ZINC_E_IO, "the checkpoint is not complete"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_ds_checkpoint *ckpt = NULL;
        copy_made(state, cases[i].stage, cases[i].without);
        assert_fails(zn_ds_open(at(state, cases[i].stage), &ckpt), cases[i].status,
                     cases[i].message);
        remove_tree(at(state, cases[i].stage));
    }
}

static void folders_that_are_no_checkpoint_are_refused(void **state)
{
    zn_ds_checkpoint *ckpt = NULL;
    assert_false(zn_ds_is_checkpoint(*state));
    assert_fails(zn_ds_open(at(state, "gone"), &ckpt), ZINC_E_IO, "gone");
    assert_fails(zn_ds_open(*state, &ckpt), ZINC_E_IO, "no DeepSpeed checkpoint");
    put_file(at(state, "latest"), "../elsewhere", 12);
    assert_fails(zn_ds_open(*state, &ckpt), ZINC_E_FORMAT, "not the name of a folder");
    put_file(at(state, "latest"), "gone\n", 5);
    assert_fails(zn_ds_open(*state, &ckpt), ZINC_E_IO, "gone");
    copy_made(state, "made_stage2", "no such part");
    put_file(at(state, "made_stage2/mp_rank_01_model_states.pt"), "", 0);
    assert_fails(zn_ds_open(at(state, "made_stage2"), &ckpt), ZINC_E_UNSUPPORTED,
                 "mp_rank_01_model_states.pt");
}

static void truncated_files_are_refused(void **state)
{
    zn_buf whole = {0};
    copy_made(state, "made_stage2", "no such part");
    char path[512];
    snprintf(path, sizeof path, "%s",
             at(state, "made_stage2/zero_pp_rank_1_mp_rank_00_optim_states.pt"));
    assert_ok(zn_fs_read(path, 0, &whole));
    for (size_t n = 0; n < whole.n; n += 37) {
        zn_ds_checkpoint *ckpt = NULL;
        put_file(path, whole.data, n);
        assert_fails(zn_ds_open(at(state, "made_stage2"), &ckpt), ZINC_E_FORMAT, "rank_1");
    }
    zn_buf_fini(&whole);
}

static void every_failing_allocation_is_reported(void **state)
{
    (void)state;
    static const char *const folders[] = {DATA "made_stage2", DATA "made_stage3"};
    for (int i = 0; i < 2; i++) {
        zn_ds_checkpoint *ckpt = NULL;
        int64_t n = 0;
        for (;; n++) {
            zn_mem_fail_after(n);
            const zinc_status status = zn_ds_open(folders[i], &ckpt);
            zn_mem_fail_after(-1);
            if (status == ZINC_OK)
                break;
            assert_int_equal(status, ZINC_E_NOMEM);
        }
        assert_true(n > 50);
        zn_ds_close(ckpt);
    }
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(recorded_checkpoints_give_the_weights_deepspeed_exports),
    TEST(the_loss_scale_is_read_from_every_stage),
    TEST(uneven_groups_on_three_ranks_give_whole_weights),
    TEST(stage_0_is_read_from_the_module),
    TEST(missing_files_are_named),
    TEST(folders_that_are_no_checkpoint_are_refused),
    TEST(truncated_files_are_refused),
    TEST(every_failing_allocation_is_reported),
};

ZN_TEST_MAIN(tests)
