/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include "base/json.h"
#include "ckpt/safetensors.h"

enum { N_TENSORS = 4 };

static const zn_tensor_plan plan[N_TENSORS] = {
    {"norm", ZN_DTYPE_BF16, 1, {5}},
    {"embed", ZN_DTYPE_F32, 2, {3, 7}},
    {"scalar", ZN_DTYPE_F16, 0, {0}},
    {"big", ZN_DTYPE_BF16, 3, {101, 20, 17}},
};
static const int64_t n_elems[N_TENSORS] = {5, 21, 1, 34340};

static float value_of(int tensor, int64_t k)
{
    return (float)(tensor + 1) * 0.37f + (float)k * 1.0009765f;
}

static float rounded(zn_dtype dtype, float x)
{
    return dtype == ZN_DTYPE_BF16  ? zn_bf16_to_f32(zn_f32_to_bf16(x))
           : dtype == ZN_DTYPE_F16 ? zn_f16_to_f32(zn_f32_to_f16(x))
                                   : x;
}

static void write_share(zn_weights_writer *writer, int rank, int n_ranks)
{
    for (int i = 0; i < N_TENSORS; i++) {
        const int64_t begin = n_elems[i] * rank / n_ranks;
        const int64_t end = n_elems[i] * (rank + 1) / n_ranks;
        for (int64_t k = begin; k < end;) {
            float chunk[20000];
            int64_t n = 0;
            for (; n < 20000 && k + n < end; n++)
                chunk[n] = value_of(i, k + n);
            assert_ok(zn_weights_writer_write(writer, i, k, n, chunk));
            k += n;
        }
    }
}

static void check_folder(const char *path)
{
    zn_weights *weights = NULL;
    assert_ok(zn_weights_open(path, &weights));
    assert_int_equal(zn_weights_n(weights), N_TENSORS);
    for (int i = 0; i < N_TENSORS; i++) {
        const zn_tensor_info *tensor = zn_weights_find(weights, plan[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, plan[i].dtype);
        assert_int_equal(tensor->n_elems, n_elems[i]);
        for (int64_t k = 0; k < n_elems[i]; k++) {
            float got;
            assert_ok(zn_tensor_read(tensor, k, 1, &got));
            const float want = rounded(plan[i].dtype, value_of(i, k));
            if (memcmp(&got, &want, sizeof got) != 0)
                fail_msg("%s[%lld]: %a, want %a", plan[i].name, (long long)k, (double)got,
                         (double)want);
        }
    }
    zn_weights_close(weights);
}

static void save_with_ranks(const char *dir, int n_ranks, int64_t max_shard_bytes)
{
    zn_weights_writer *writers[4] = {0};
    for (int r = 0; r < n_ranks; r++)
        assert_ok(zn_weights_writer_create(dir, plan, N_TENSORS, max_shard_bytes, &writers[r]));
    assert_ok(zn_weights_writer_begin(writers[0]));
    for (int r = n_ranks - 1; r >= 0; r--)
        write_share(writers[r], r, n_ranks);
    for (int r = 0; r < n_ranks; r++)
        assert_ok(zn_weights_writer_flush(writers[r]));
    assert_ok(zn_weights_writer_commit(writers[0]));
    for (int r = 0; r < n_ranks; r++)
        zn_weights_writer_destroy(writers[r]);
}

static void ranges_of_several_ranks_make_the_file_one_rank_makes(void **state)
{
    zn_buf one = {0};
    zn_buf many = {0};
    save_with_ranks(at(state, "one"), 1, 0);
    check_folder(at(state, "one"));
    assert_ok(zn_fs_read(at(state, "one/model.safetensors"), 0, &one));
    for (int n_ranks = 2; n_ranks <= 4; n_ranks++) {
        save_with_ranks(at(state, "many"), n_ranks, 0);
        assert_ok(zn_fs_read(at(state, "many/model.safetensors"), 0, &many));
        assert_int_equal(one.n, many.n);
        assert_memory_equal(one.data, many.data, one.n);
        zn_buf_fini(&many);
    }
    zn_buf_fini(&one);
}

static void the_header_is_aligned_and_says_pt(void **state)
{
    zn_buf file = {0};
    json_t *header = NULL;
    save_with_ranks(*state, 1, 0);
    assert_ok(zn_fs_read(at(state, "model.safetensors"), 0, &file));
    const size_t n = (size_t)(unsigned char)file.data[0] + 256 * (unsigned char)file.data[1];
    assert_int_equal(n % 8, 0);
    assert_ok(zn_json_parse(file.data + 8, n, "header", &header));
    const json_t *metadata = json_object_get(header, "__metadata__");
    assert_string_equal(json_string_value(json_object_get(metadata, "format")), "pt");
    const json_t *offsets = json_object_get(json_object_get(header, "embed"), "data_offsets");
    assert_int_equal(json_integer_value(json_array_get(offsets, 0)), 0); /* widest type first */
    json_decref(header);
    zn_buf_fini(&file);
}

static void a_save_over_the_limit_is_sharded_with_an_index(void **state)
{
    json_t *index = NULL;
    save_with_ranks(*state, 3, 100);
    check_folder(*state);
    assert_true(zn_fs_exists(at(state, "model-00001-of-00002.safetensors")));
    assert_true(zn_fs_exists(at(state, "model-00002-of-00002.safetensors")));
    assert_false(zn_fs_exists(at(state, "model-00001-of-00002.safetensors.tmp")));
    assert_ok(zn_json_load(at(state, "model.safetensors.index.json"), &index));
    const json_t *total = json_object_get(json_object_get(index, "metadata"), "total_size");
    assert_int_equal(json_integer_value(total), 5 * 2 + 21 * 4 + 2 + 34340 * 2);
    const json_t *map = json_object_get(index, "weight_map");
    assert_string_equal(json_string_value(json_object_get(map, "scalar")),
                        "model-00001-of-00002.safetensors");
    assert_string_equal(json_string_value(json_object_get(map, "big")),
                        "model-00002-of-00002.safetensors");
    json_decref(index);
}

static void a_new_save_hides_the_files_of_an_older_layout(void **state)
{
    save_with_ranks(*state, 1, 0);
    save_with_ranks(*state, 1, 100);
    assert_false(zn_fs_exists(at(state, "model.safetensors")));
    check_folder(*state);
    save_with_ranks(*state, 1, 0);
    assert_false(zn_fs_exists(at(state, "model.safetensors.index.json")));
    check_folder(*state);
}

static void nothing_is_left_of_a_save_that_was_not_committed(void **state)
{
    zn_weights_writer *writer = NULL;
    save_with_ranks(*state, 1, 0);
    assert_ok(zn_weights_writer_create(*state, plan, 1, 0, &writer));
    assert_ok(zn_weights_writer_begin(writer));
    assert_true(zn_fs_exists(at(state, "model.safetensors.tmp")));
    zn_weights_writer_destroy(writer);
    assert_false(zn_fs_exists(at(state, "model.safetensors.tmp")));
    check_folder(*state);
}

static void ranges_outside_a_tensor_are_refused(void **state)
{
    const float x = 1;
    zn_weights_writer *writer = NULL;
    assert_ok(zn_weights_writer_create(*state, plan, N_TENSORS, 0, &writer));
    assert_fails(zn_weights_writer_write(writer, 0, 0, 1, &x), ZINC_E_IO, "should have begun");
    assert_ok(zn_weights_writer_begin(writer));
    assert_fails(zn_weights_writer_write(writer, 0, 5, 1, &x), ZINC_E_INVALID, "5 elements");
    assert_fails(zn_weights_writer_write(writer, 0, -1, 1, &x), ZINC_E_INVALID, "5 elements");
    assert_fails(zn_weights_writer_write(writer, 0, 1, INT64_MAX, &x), ZINC_E_INVALID, "5 el");
    assert_fails(zn_weights_writer_write(writer, N_TENSORS, 0, 1, &x), ZINC_E_INVALID, "4 of 4");
    zn_weights_writer_destroy(writer);
}

static void plans_that_no_reader_could_read_are_refused(void **state)
{
    static const struct {
        zn_tensor_plan tensors[2];
        const char *message;
    } cases[] = {
        {{{"a", ZN_DTYPE_F32, 1, {1}}, {"a", ZN_DTYPE_F32, 1, {2}}}, "two tensors called a"},
        {{{"a", ZN_DTYPE_F32, 1, {-1}}, {"b", ZN_DTYPE_F32, 1, {2}}}, "negative or too large"},
        {{{"a", ZN_DTYPE_F32, 2, {INT64_MAX, 2}}, {"b", ZN_DTYPE_F32, 1, {2}}}, "too large"},
        {{{"a", ZN_DTYPE_F32, 5, {1}}, {"b", ZN_DTYPE_F32, 1, {2}}}, "5 dimensions"},
        {{{"__metadata__", ZN_DTYPE_F32, 1, {1}}, {"b", ZN_DTYPE_F32, 1, {2}}}, "__metadata__"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_weights_writer *writer = NULL;
        assert_fails(zn_weights_writer_create(*state, cases[i].tensors, 2, 0, &writer),
                     ZINC_E_INVALID, cases[i].message);
        assert_null(writer);
    }
}

static void integers_are_written_raw(void **state)
{
    static const zn_tensor_plan ids = {"ids", ZN_DTYPE_I32, 1, {3}};
    static const int32_t values[] = {1, -2, 3};
    const float x = 1;
    zn_weights_writer *writer = NULL;
    zn_weights *weights = NULL;
    assert_ok(zn_weights_writer_create(*state, &ids, 1, 0, &writer));
    assert_ok(zn_weights_writer_begin(writer));
    assert_ok(zn_weights_writer_write_raw(writer, 0, 0, 3, values));
    assert_fails(zn_weights_writer_write(writer, 0, 0, 1, &x), ZINC_E_INVALID, "as int32");
    assert_ok(zn_weights_writer_flush(writer));
    assert_ok(zn_weights_writer_commit(writer));
    zn_weights_writer_destroy(writer);
    assert_ok(zn_weights_open(*state, &weights));
    assert_memory_equal(zn_weights_find(weights, "ids")->data, values, sizeof values);
    zn_weights_close(weights);
}

static void a_disk_without_room_fails_before_anything_is_written(void **state)
{
    static const zn_tensor_plan huge = {"a", ZN_DTYPE_F32, 1, {(int64_t)1 << 59}};
    zn_weights_writer *writer = NULL;
    assert_ok(zn_weights_writer_create(*state, &huge, 1, 0, &writer));
    assert_fails(zn_weights_writer_begin(writer), ZINC_E_IO, "cannot reserve");
    zn_weights_writer_destroy(writer);
    assert_true(zn_fs_is_empty_dir(*state));
}

static void save_takes_a_file_or_a_folder(void **state)
{
    static const zn_tensor_plan one = {"a", ZN_DTYPE_F32, 1, {2}};
    static const float a[] = {1.5f, -3};
    const float *const values[] = {a};
    static const char *const paths[] = {"w.safetensors", "sub/w.safetensors", "folder"};
    for (int i = 0; i < 3; i++) {
        zn_weights *weights = NULL;
        float got[2];
        assert_ok(zn_weights_save(at(state, paths[i]), &one, 1, values));
        assert_ok(zn_weights_open(at(state, paths[i]), &weights));
        assert_ok(zn_tensor_read(zn_weights_find(weights, "a"), 0, 2, got));
        assert_memory_equal(got, a, sizeof a);
        zn_weights_close(weights);
    }
    assert_true(zn_fs_exists(at(state, "folder/model.safetensors")));
}

static void every_failing_allocation_is_reported(void **state)
{
    static const zn_tensor_plan one = {"a", ZN_DTYPE_F32, 1, {2}};
    static const float a[] = {1.5f, -3};
    const float *const values[] = {a};
    int64_t n = 0;
    for (;; n++) {
        zn_mem_fail_after(n);
        const zinc_status status = zn_weights_save(*state, &one, 1, values);
        zn_mem_fail_after(-1);
        if (status == ZINC_OK)
            break;
        assert_int_equal(status, ZINC_E_NOMEM);
        assert_false(zn_fs_exists(at(state, "model.safetensors.tmp")));
    }
    assert_true(n > 10);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(ranges_of_several_ranks_make_the_file_one_rank_makes),
    TEST(the_header_is_aligned_and_says_pt),
    TEST(a_save_over_the_limit_is_sharded_with_an_index),
    TEST(a_new_save_hides_the_files_of_an_older_layout),
    TEST(nothing_is_left_of_a_save_that_was_not_committed),
    TEST(ranges_outside_a_tensor_are_refused),
    TEST(plans_that_no_reader_could_read_are_refused),
    TEST(integers_are_written_raw),
    TEST(a_disk_without_room_fails_before_anything_is_written),
    TEST(save_takes_a_file_or_a_folder),
    TEST(every_failing_allocation_is_reported),
};

ZN_TEST_MAIN(tests)
