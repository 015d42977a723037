/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include "base/sys.h"
#include "ckpt/safetensors.h"

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void hostile_headers_are_refused_with_the_reason(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        const char *message;
    } cases[] = {
        {"", 0, "not valid JSON"},
        {"[]", 0, "not a JSON object"},
        {"{\"a\":1}", 0, "not an object"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no \"dtype\""},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no \"dtype\""},
        {"{\"a\":" T("F8_E4M3", "[4]", "[0,4]") "}", 4, "\"F8_E4M3\", which is not supported"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no \"shape\""},
        {"{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, "dimension 0 is not a count"},
        {"{\"a\":" T("F32", "[1.0]", "[0,4]") "}", 4, "dimension 0 is not a count"},
        {"{\"a\":" T("F32", "[1,1,1,1,1]", "[0,4]") "}", 4, "5 dimensions"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "too large"},
        {"{\"a\":" T("F32", "[99999999999999999999]", "[0,0]") "}", 0, "not valid JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "not a pair"},
        {"{\"a\":" T("F32", "[1]", "[0,4,8]") "}", 8, "not a pair"},
        {"{\"a\":" T("F32", "[1]", "[0,\"4\"]") "}", 4, "not a pair"},
        {"{\"a\":" T("F32", "[1]", "[4,0]") "}", 4, "no range"},
        {"{\"a\":" T("F32", "[1]", "[-4,0]") "}", 4, "no range"},
        {"{\"a\":" T("F32", "[2]", "[0,8]") "}", 4, "truncated or damaged"},
        {"{\"a\":" T("F32", "[2]", "[0,9223372036854775807]") "}", 8, "truncated or damaged"},
        {"{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, "shape and type need 8"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[4,8]") "}", 8, "duplicate"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[2,6]") "}", 6, "overlap"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4, "overlap"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[8,12]") "}", 12, "a hole"},
        {"{\"a\":" T("F32", "[1]", "[4,8]") "}", 8, "a hole of 4 bytes"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") "}", 5, "1 bytes after the last tensor"},
        {"{}", 1, "1 bytes after the last tensor"},
        {"{\"__metadata__\":[]}", 0, "\"__metadata__\" is not an object"},
        {"{\"__metadata__\":{\"format\":1}}", 0, "format is not a string"},
        {"{\"a\":[[[[[[[[[[[[[]]]]]]]]]]]]]}", 0, "nests deeper than 8"},
        {"{} {}", 0, "not valid JSON"},
        {"{\"\\u0000\":{}}", 0, "not valid JSON"},
        {"{\"\xff\":{}}", 0, "not valid JSON"},
    };
    const char *path = at(state, "x.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_weights *weights = NULL;
        put_weights(path, cases[i].header, cases[i].n_data);
        assert_fails(zn_weights_open(path, &weights), ZINC_E_FORMAT, cases[i].message);
        assert_non_null(strstr(zinc_last_error(), "x.safetensors"));
        assert_null(weights);
    }
}

static void lengths_that_lie_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *message;
    } cases[] = {
        {"", 0, "too few"},
        {"\2\0\0\0\0\0\0", 7, "too few"},
        {"\3\0\0\0\0\0\0\0{}", 10, "it is truncated"},
        {"\377\377\377\377\377\377\377\377{}", 10, "over the limit"},
        {"\1\341\365\5\0\0\0\0{}", 10, "over the limit"},
    };
    const char *path = at(state, "x.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_weights *weights = NULL;
        put_file(path, cases[i].bytes, cases[i].n);
        assert_fails(zn_weights_open(path, &weights), ZINC_E_FORMAT, cases[i].message);
    }
}

static void every_truncation_of_a_file_is_refused(void **state)
{
    const char *path = at(state, "x.safetensors");
    zn_buf whole = {0};
    put_weights(path, "{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F16", "[2]", "[8,12]") "}",
                12);
    assert_ok(zn_fs_read(path, 0, &whole));
    for (size_t n = 0; n < whole.n; n++) {
        zn_weights *weights = NULL;
        put_file(path, whole.data, n);
        assert_fails(zn_weights_open(path, &weights), ZINC_E_FORMAT, "x.safetensors");
    }
    zn_buf_fini(&whole);
}

static void unusual_but_valid_headers_are_read(void **state)
{
    const char *path = at(state, "x.safetensors");
    zn_weights *weights = NULL;
    put_weights(path,
                "{\"scalar\":" T("F32", "[]", "[0,4]") ",\"none\":" T(
                    "F32", "[0,7]", "[4,4]") ","
                                             "\"z\":" T("BOOL", "[3]", "[4,7]") ",\"first\":" T(
                                                 "F16", "[0]", "[0,0]") "}   ",
                7);
    assert_ok(zn_weights_open(path, &weights));
    assert_int_equal(zn_weights_n(weights), 4);
    assert_int_equal(zn_weights_find(weights, "scalar")->n_elems, 1);
    assert_int_equal(zn_weights_find(weights, "scalar")->n_dims, 0);
    assert_int_equal(zn_weights_find(weights, "none")->n_elems, 0);
    assert_null(zn_weights_find(weights, "nothing"));
    assert_null(zn_weights_at(weights, 4));
    float value = 1;
    assert_ok(zn_tensor_read(zn_weights_find(weights, "scalar"), 0, 1, &value));
    assert_true(value == 0);
    assert_fails(zn_tensor_read(zn_weights_find(weights, "z"), 0, 1, &value), ZINC_E_FORMAT,
                 "type bool");
    zn_weights_close(weights);
    put_weights(path, "{}", 0);
    assert_ok(zn_weights_open(path, &weights));
    assert_int_equal(zn_weights_n(weights), 0);
    assert_null(zn_weights_find(weights, "a"));
    zn_weights_close(weights);
}

static void ranges_are_read_as_fp32_from_every_float_type(void **state)
{
    /* 1, -2, and the largest finite value, in the three types; data starts at an odd address. */
    static const unsigned char data[] = {
        0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0xc0, 0xff, 0xff, 0x7f, 0x7f, /* F32 */
        0x80, 0x3f, 0x00, 0xc0, 0x7f, 0x7f,                                     /* BF16 */
        0x00, 0x3c, 0x00, 0xc0, 0xff, 0x7b,                                     /* F16 */
    };
    static const char header[] = "{\"a\":" T("F32", "[3]", "[0,12]") ",\"b\":" T(
        "BF16", "[3]", "[12,18]") ",\"c\":" T("F16", "[3]", "[18,24]") "}";
    static const float want[3][3] = {
        {1, -2, 0x1.fffffep127f}, {1, -2, 0x1.fep127f}, {1, -2, 65504}};
    const char *path = at(state, "x.safetensors");
    zn_weights *weights = NULL;
    put_weights(path, header, sizeof data);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -(long)sizeof data, SEEK_END), 0);
    assert_int_equal(fwrite(data, 1, sizeof data, file), sizeof data);
    fclose(file);
    assert_ok(zn_weights_open(path, &weights));
    for (int i = 0; i < 3; i++) {
        const zn_tensor_info *tensor = zn_weights_at(weights, i);
        float got[3] = {0};
        assert_ok(zn_tensor_read(tensor, 0, 3, got));
        assert_memory_equal(got, want[i], sizeof got);
        assert_ok(zn_tensor_read(tensor, 1, 2, got));
        assert_memory_equal(got, want[i] + 1, 2 * sizeof *got);
        assert_ok(zn_tensor_read(tensor, 3, 0, got));
        assert_fails(zn_tensor_read(tensor, 2, 2, got), ZINC_E_INVALID, "3 elements");
        assert_fails(zn_tensor_read(tensor, -1, 1, got), ZINC_E_INVALID, "3 elements");
        assert_fails(zn_tensor_read(tensor, INT64_MAX, INT64_MAX, got), ZINC_E_INVALID,
                     "3 elements");
    }
    zn_weights_close(weights);
}

static void reading_a_file_does_not_keep_it_in_memory(void **state)
{
    enum { N = 8 << 20 };
    static float chunk[1 << 16];
    const char *path = at(state, "x.safetensors");
    zn_weights *weights = NULL;
    put_weights(path, "{\"a\":" T("F32", "[8388608]", "[0,33554432]") "}", 0);
    assert_int_equal(
        truncate(path,
                 8 + (off_t)strlen("{\"a\":" T("F32", "[8388608]", "[0,33554432]") "}") + 33554432),
        0);
    assert_ok(zn_weights_open(path, &weights));
    for (int64_t k = 0; k < N; k += 1 << 16)
        assert_ok(zn_tensor_read(zn_weights_at(weights, 0), k, 1 << 16, chunk));
    const int64_t before = zn_sys_rss_bytes();
    zn_weights_close(weights);
    assert_true(before - zn_sys_rss_bytes() < (int64_t)N);
}

static void put_index(void *const *state, const char *text)
{
    put_file(at(state, "model.safetensors.index.json"), text, strlen(text));
}

static void a_sharded_folder_reads_as_one_table(void **state)
{
    zn_weights *weights = NULL;
    put_weights(at(state, "s1.safetensors"), "{\"b\":" T("F32", "[1]", "[0,4]") "}", 4);
    put_weights(at(state, "s2.safetensors"),
                "{\"a\":" T("F16", "[1]", "[0,2]") ",\"extra\":" T("F16", "[1]", "[2,4]") "}", 4);
    put_index(state, "{\"metadata\":{\"total_size\":6},\"weight_map\":"
                     "{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}");
    assert_ok(zn_weights_open(*state, &weights));
    assert_int_equal(zn_weights_n(weights), 2);
    assert_string_equal(zn_weights_at(weights, 0)->name, "a");
    assert_string_equal(zn_weights_at(weights, 0)->file, at(state, "s2.safetensors"));
    assert_int_equal(zn_weights_find(weights, "b")->dtype, ZN_DTYPE_F32);
    zn_weights_close(weights);
}

static void bad_indexes_are_refused_with_the_reason(void **state)
{
    static const struct {
        const char *index;
        zinc_status status;
        const char *message;
    } cases[] = {
        {"{", ZINC_E_FORMAT, "not valid JSON"},
        {"[]", ZINC_E_FORMAT, "no \"weight_map\""},
        {"{\"weight_map\":[]}", ZINC_E_FORMAT, "no \"weight_map\""},
        {"{\"weight_map\":{\"a\":1}}", ZINC_E_FORMAT, "not another JSON type"},
        {"{\"weight_map\":{\"a\":\"../s.safetensors\"}}", ZINC_E_FORMAT, "plain name"},
        {"{\"weight_map\":{\"a\":\"/etc/s.safetensors\"}}", ZINC_E_FORMAT, "plain name"},
        {"{\"weight_map\":{\"a\":\"sub/s.safetensors\"}}", ZINC_E_FORMAT, "plain name"},
        {"{\"weight_map\":{\"a\":\"s.bin\"}}", ZINC_E_FORMAT, "plain name"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", ZINC_E_FORMAT, "plain name"},
        {"{\"weight_map\":{\"a\":\"s.safetensors\\u0000.safetensors\"}}", ZINC_E_FORMAT,
         "plain name"},
        {"{\"weight_map\":{\"a\":\"gone.safetensors\"}}", ZINC_E_IO, "names a shard"},
        {"{\"weight_map\":{\"a\":\"s.safetensors\",\"lost\":\"s.safetensors\"}}", ZINC_E_FORMAT,
         "tensor lost should be in s.safetensors"},
    };
    put_weights(at(state, "s.safetensors"), "{\"a\":" T("F32", "[1]", "[0,4]") "}", 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_weights *weights = NULL;
        put_index(state, cases[i].index);
        assert_fails(zn_weights_open(*state, &weights), cases[i].status, cases[i].message);
    }
}

static void a_folder_without_weights_says_what_it_looked_for(void **state)
{
    zn_weights *weights = NULL;
    assert_fails(zn_weights_open(*state, &weights), ZINC_E_IO, "model.safetensors.index.json");
    assert_fails(zn_weights_open(at(state, "gone"), &weights), ZINC_E_IO, "gone");
}

static void every_failing_allocation_is_reported(void **state)
{
    zn_weights *weights = NULL;
    put_weights(at(state, "s.safetensors"), "{\"a\":" T("F32", "[1]", "[0,4]") "}", 4);
    put_index(state, "{\"weight_map\":{\"a\":\"s.safetensors\"}}");
    int64_t n = 0;
    for (;; n++) {
        zn_mem_fail_after(n);
        const zinc_status status = zn_weights_open(*state, &weights);
        zn_mem_fail_after(-1);
        if (status == ZINC_OK)
            break;
        assert_int_equal(status, ZINC_E_NOMEM);
    }
    assert_true(n > 5);
    zn_weights_close(weights);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(hostile_headers_are_refused_with_the_reason),
    TEST(lengths_that_lie_are_refused),
    TEST(every_truncation_of_a_file_is_refused),
    TEST(unusual_but_valid_headers_are_read),
    TEST(ranges_are_read_as_fp32_from_every_float_type),
    TEST(reading_a_file_does_not_keep_it_in_memory),
    TEST(a_sharded_folder_reads_as_one_table),
    TEST(bad_indexes_are_refused_with_the_reason),
    TEST(a_folder_without_weights_says_what_it_looked_for),
    TEST(every_failing_allocation_is_reported),
};

ZN_TEST_MAIN(tests)
