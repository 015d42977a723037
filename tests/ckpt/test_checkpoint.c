/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include "ckpt/checksum.h"
#include "made_checkpoint.h"

static void a_part_is_the_same_file_from_a_stream_and_from_where_its_values_lie(void **state)
{
    zn_param_list list = {0};
    zn_ckpt_file streamed[2], kept[2], found;
    made_part made;
    zn_part *part = NULL;
    make_list(&list);
    make_part(0, 0, &made);
    const zn_part_params params = {.dir = *state,
                                   .n_ranks = 2,
                                   .list = &list,
                                   .state_names = state_names,
                                   .ranges = made.ranges,
                                   .n_ranges = made.n_ranges};
    assert_ok(try_write_part(*state, &list, 0, 0, streamed));
    assert_ok(zn_part_create(&params, &part));
    assert_ok(zn_part_write_kept(part, made.values, made.n_values));
    assert_ok(zn_part_finish(part, kept));
    zn_part_destroy(part);
    for (int i = 0; i < 2; i++) {
        assert_ok(zn_ckpt_file_of(*state, kept[i].name, &found));
        assert_true(found.checksum == streamed[i].checksum && found.checksum == kept[i].checksum);
        assert_int_equal(found.n_bytes, streamed[i].n_bytes);
    }
    zn_param_list_fini(&list);
}

static void the_checksum_does_not_depend_on_how_bytes_come(void **state)
{
    unsigned char bytes[1000];
    (void)state;
    for (int i = 0; i < 1000; i++)
        bytes[i] = (unsigned char)(i * 7);
    const uint64_t want = zn_checksum_of(bytes, sizeof bytes);
    for (size_t step = 1; step < 200; step += 13) {
        zn_checksum sum;
        zn_checksum_init(&sum);
        for (size_t k = 0; k < sizeof bytes; k += step)
            zn_checksum_update(&sum, bytes + k, sizeof bytes - k < step ? sizeof bytes - k : step);
        assert_true(zn_checksum_value(&sum) == want);
    }
    assert_true(zn_checksum_of(bytes, 999) != want);
    for (int bit = 0; bit < 8000; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(zn_checksum_of(bytes, sizeof bytes) != want);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    /* pins the format: from the definition in checksum.h, written again in Python */
    assert_true(zn_checksum_of("", 0) == 0xe240c8d513110abcu);
    assert_true(want == 0xf3eaeb03db76ba75u);
}

static void what_was_written_is_read_by_any_range(void **state)
{
    zn_ckpt *ckpt = NULL;
    float got[10];
    char *latest = NULL;
    make_checkpoint(state, 40, 7);
    assert_ok(zn_ckpt_latest(at(state, "out"), &latest));
    assert_string_equal(latest, at(state, "out/checkpoint-40"));
    assert_false(zn_fs_exists(at(state, "out/checkpoint-40.tmp")));
    assert_ok(zn_ckpt_open(latest, &ckpt));
    zn_free(latest);
    const zn_ckpt_meta *meta = zn_ckpt_get_meta(ckpt);
    assert_int_equal(meta->step, 40);
    assert_int_equal(meta->n_applied, 39);
    assert_true(meta->epoch == 0.1 * 40);
    assert_true(meta->scaler.dynamic && meta->scaler.scale == 1024);
    assert_int_equal(meta->scaler.window, 100);
    assert_int_equal(meta->scaler.last_overflow, -1);
    assert_true(meta->model_hash == 0xFEDCBA9876543210u);
    assert_string_equal(meta->state_names[1], "exp_avg_sq");
    assert_int_equal(zn_ckpt_n(ckpt), 2);
    assert_int_equal(zn_ckpt_at(ckpt, 0).shape[1], 5);
    for (int what = ZN_CKPT_MASTER; what < 2; what++)
        for (int64_t first = 0; first < 10; first++)
            for (int64_t n = 0; n <= 10 - first; n++) {
                assert_ok(zn_ckpt_read(ckpt, zn_ckpt_find(ckpt, "block.a"), what, first, n, got));
                for (int64_t k = 0; k < n; k++)
                    assert_true(got[k] == (float)(100 * (what + 2) + first + k));
            }
    assert_ok(zn_ckpt_read(ckpt, 1, ZN_CKPT_MASTER, 1, 3, got));
    assert_true(got[2] == 1003);
    assert_fails(zn_ckpt_read(ckpt, 1, 0, 0, 4, got), ZINC_E_FORMAT, "no exp_avg of b");
    zn_ckpt_close(ckpt);
}

/* The shards are plain safetensors files, whose tensors carry place and kind in their names. */
static void a_part_is_a_safetensors_file(void **state)
{
    zn_weights *weights = NULL;
    float got[7];
    make_checkpoint(state, 3, 7);
    assert_ok(
        zn_weights_open(at(state, "out/checkpoint-3/shard-00001-of-00002.safetensors"), &weights));
    assert_int_equal(zn_weights_n(weights), 4);
    const zn_tensor_info *t = zn_weights_find(weights, "exp_avg/block.a@3");
    assert_non_null(t);
    assert_ok(zn_tensor_read(t, 0, 7, got));
    assert_true(got[0] == 203);
    assert_non_null(zn_weights_find(weights, "block.a@3"));
    zn_weights_close(weights);
}

static zinc_status load_all(const char *path)
{
    zn_ckpt *ckpt = NULL;
    float got[10];
    ZN_TRY(zn_ckpt_open(path, &ckpt));
    zinc_status status = zn_ckpt_read(ckpt, 1, ZN_CKPT_MASTER, 0, 4, got);
    for (int what = ZN_CKPT_MASTER; what < 2 && status == ZINC_OK; what++)
        status = zn_ckpt_read(ckpt, 0, what, 0, 10, got);
    zn_ckpt_close(ckpt);
    return status;
}

typedef struct heard {
    int n;
    char text[512]; /* the last one */
} heard;

static void hear(void *ctx, const char *text)
{
    heard *h = ctx;
    h->n++;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static const char *const names[] = {"manifest.json", "shard-00000-of-00002.json",
                                    "shard-00000-of-00002.safetensors", "shard-00001-of-00002.json",
                                    "shard-00001-of-00002.safetensors"};

/* Every byte of every file, one bit each: loading never gives wrong values, and verify names the
 * file. (Bits of a safetensors header are nothing that loading reads.) */
static void any_flipped_bit_is_found_and_its_file_named(void **state)
{
    make_checkpoint(state, 5, 7);
    const char *dir = at(state, "out/checkpoint-5");
    for (size_t f = 0; f < sizeof names / sizeof names[0]; f++) {
        zn_buf good = {0};
        char path[600];
        snprintf(path, sizeof path, "%s/%s", dir, names[f]);
        assert_ok(zn_fs_read(path, 0, &good));
        for (size_t k = 0; k < good.n; k += f == 0 ? 3 : 7) {
            heard h = {0};
            int n = 0;
            good.data[k] ^= (char)(1 << k % 7);
            put_file(path, good.data, good.n);
            good.data[k] ^= (char)(1 << k % 7);
            assert_ok(zn_ckpt_verify(dir, hear, &h, &n));
            if (n != 1 || !strstr(h.text, names[f]))
                fail_msg("%s, byte %zu: %d problems, \"%s\"", names[f], k, n, h.text);
            if (strstr(names[f], ".json"))
                assert_true(load_all(dir) != ZINC_OK);
        }
        put_file(path, good.data, good.n);
        zn_buf_fini(&good);
    }
    assert_ok(load_all(dir));
}

static void damaged_data_are_named_with_parameter_and_bytes(void **state)
{
    zn_buf good = {0};
    make_checkpoint(state, 5, 7);
    const char *path = at(state, "out/checkpoint-5/shard-00001-of-00002.safetensors");
    assert_ok(zn_fs_read(path, 0, &good));
    good.data[good.n - 20] ^= 1; /* the last element of exp_avg_sq, in front of b */
    put_file(path, good.data, good.n);
    assert_fails(load_all(at(state, "out/checkpoint-5")), ZINC_E_FORMAT, "exp_avg_sq of block.a");
    assert_non_null(strstr(zinc_last_error(), "shard-00001-of-00002.safetensors"));
    assert_non_null(strstr(zinc_last_error(), "elements [3, +7)"));
    zn_buf_fini(&good);
}

static void a_missing_or_short_file_is_named(void **state)
{
    for (size_t f = 0; f < sizeof names / sizeof names[0]; f++) {
        zn_buf good = {0};
        char path[600];
        heard h = {0};
        int n = 0;
        make_checkpoint(state, 5, 7);
        const char *dir = at(state, "out/checkpoint-5");
        snprintf(path, sizeof path, "%s/%s", dir, names[f]);
        assert_ok(zn_fs_read(path, 0, &good));
        put_file(path, good.data, good.n - 2);
        assert_ok(zn_ckpt_verify(dir, hear, &h, &n));
        assert_true(n >= 1 && strstr(h.text, names[f]));
        if (f > 0)
            assert_fails(load_all(dir), ZINC_E_FORMAT, names[f]);
        unlink(path);
        assert_fails(load_all(dir), ZINC_E_IO, names[f]);
        put_file(path, good.data, good.n);
        zn_buf_fini(&good);
        assert_ok(load_all(dir));
    }
}

static void a_newer_version_is_refused_by_number(void **state)
{
    zn_buf text = {0};
    make_checkpoint(state, 5, 7);
    const char *path = at(state, "out/checkpoint-5/manifest.json");
    assert_ok(zn_fs_read(path, 0, &text));
    char *version = strstr(text.data, "\"version\":1");
    assert_non_null(version);
    version[10] = '9';
    put_file(path, text.data, text.n);
    assert_fails(load_all(at(state, "out/checkpoint-5")), ZINC_E_UNSUPPORTED, "version 9");
    zn_buf_fini(&text);
}

static void the_oldest_of_this_run_are_deleted_and_others_stay(void **state)
{
    zn_ckpt_entry *entries = NULL;
    int n = 0;
    for (int64_t step = 500; step <= 700; step += 100)
        make_checkpoint(state, step, 1); /* another run's, with higher numbers */
    for (int64_t step = 10; step <= 30; step += 10)
        make_checkpoint(state, step, 7);
    put_file(at(state, "out/checkpoint-10/notes.txt"), "mine", 4);
    assert_ok(zn_fs_mkdirs(at(state, "out/checkpoint-99"))); /* nobody's */
    heard h = {0};
    assert_ok(zn_ckpt_prune(at(state, "out"), 2, 7, hear, &h));
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.text, "checkpoint-10"));
    assert_true(zn_fs_exists(at(state, "out/checkpoint-10.del/notes.txt")));
    assert_false(zn_fs_exists(at(state, "out/checkpoint-10")));
    assert_ok(zn_ckpt_list(at(state, "out"), &entries, &n));
    assert_int_equal(n, 6);
    int complete = 0;
    for (int i = 0; i < n; i++)
        complete += entries[i].trouble == NULL;
    assert_int_equal(complete, 5);
    zn_ckpt_list_free(entries, n);
    /* 0 keeps one all the same, and what `latest` names */
    assert_ok(zn_ckpt_prune(at(state, "out"), 0, 0, NULL, NULL));
    assert_ok(load_all(at(state, "out/checkpoint-30")));
    assert_ok(load_all(at(state, "out/checkpoint-700")));
    assert_false(zn_fs_exists(at(state, "out/checkpoint-20")));
    assert_true(zn_fs_is_dir(at(state, "out/checkpoint-99")));
}

static void a_step_saved_again_replaces_the_first(void **state)
{
    make_checkpoint(state, 5, 1);
    make_checkpoint(state, 5, 2);
    zn_ckpt_meta meta = {0};
    int64_t n_bytes;
    assert_ok(zn_ckpt_read_meta(at(state, "out/checkpoint-5"), &meta, &n_bytes));
    assert_int_equal(meta.run_id, 2);
    assert_true(n_bytes > 1000);
    assert_false(zn_fs_exists(at(state, "out/checkpoint-5.old")));
    zn_ckpt_meta_fini(&meta);
}

static void what_a_killed_run_left_is_cleaned_and_foreign_folders_stay(void **state)
{
    make_checkpoint(state, 5, 7);
    make_checkpoint(state, 6, 7);
    assert_int_equal(rename(at(state, "out/checkpoint-5"), at(state, "out/checkpoint-5.old")), 0);
    assert_ok(zn_fs_mkdirs(at(state, "out/checkpoint-7.tmp")));
    put_file(at(state, "out/checkpoint-7.tmp/shard-00000-of-00001.safetensors"), "x", 1);
    assert_ok(zn_fs_mkdirs(at(state, "out/checkpoint-8.tmp")));
    put_file(at(state, "out/checkpoint-8.tmp/thesis.tex"), "x", 1);
    put_file(at(state, "out/latest.tmp.123"), "x", 1);
    put_file(at(state, "out/run.json.tmp.7"), "x", 1);
    put_file(at(state, "out/notes.tmp.7"), "x", 1);
    make_checkpoint(state, 9, 7);
    assert_int_equal(rename(at(state, "out/checkpoint-9"), at(state, "out/checkpoint-9.del")), 0);
    unlink(at(state, "out/checkpoint-9.del/shard-00000-of-00002.json")); /* cut off there */
    assert_ok(zn_fs_mkdirs(at(state, "out/checkpoint-4.del")));          /* and there */
    zn_ckpt_clean(at(state, "out"));
    assert_false(zn_fs_exists(at(state, "out/checkpoint-9.del")));
    assert_false(zn_fs_exists(at(state, "out/checkpoint-4.del")));
    assert_ok(load_all(at(state, "out/checkpoint-5"))); /* its replacement never came */
    assert_false(zn_fs_exists(at(state, "out/checkpoint-7.tmp")));
    assert_false(zn_fs_exists(at(state, "out/latest.tmp.123")));
    assert_false(zn_fs_exists(at(state, "out/run.json.tmp.7")));
    assert_true(zn_fs_exists(at(state, "out/notes.tmp.7")));
    assert_true(zn_fs_exists(at(state, "out/checkpoint-8.tmp/thesis.tex")));
    assert_fails(zn_ckpt_begin(at(state, "out"), 8), ZINC_E_IO, "is in the way");
}

static void reading_survives_a_lack_of_memory(void **state)
{
    zinc_status status = ZINC_E_NOMEM;
    make_checkpoint(state, 5, 7);
    for (int64_t n = 0; status != ZINC_OK; n++) {
        assert_true(n < 500);
        zn_mem_fail_after(n);
        status = load_all(at(state, "out/checkpoint-5"));
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    }
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(a_part_is_the_same_file_from_a_stream_and_from_where_its_values_lie),
    TEST(the_checksum_does_not_depend_on_how_bytes_come),
    TEST(what_was_written_is_read_by_any_range),
    TEST(a_part_is_a_safetensors_file),
    TEST(any_flipped_bit_is_found_and_its_file_named),
    TEST(damaged_data_are_named_with_parameter_and_bytes),
    TEST(a_missing_or_short_file_is_named),
    TEST(a_newer_version_is_refused_by_number),
    TEST(the_oldest_of_this_run_are_deleted_and_others_stay),
    TEST(a_step_saved_again_replaces_the_first),
    TEST(what_a_killed_run_left_is_cleaned_and_foreign_folders_stay),
    TEST(reading_survives_a_lack_of_memory),
};

ZN_TEST_MAIN(tests)
