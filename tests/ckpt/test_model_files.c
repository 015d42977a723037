/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include "ckpt/safetensors.h"

static void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

static void check_config(void *const *state, const char *from, const char *want)
{
    zn_buf got = {0};
    put_text(at(state, "config.json"), from);
    assert_ok(zn_model_files_copy(*state, at(state, "out"), ZN_DTYPE_BF16));
    assert_ok(zn_fs_read(at(state, "out/config.json"), 0, &got));
    assert_string_equal(got.data, want);
    zn_buf_fini(&got);
}

static void the_type_is_set_in_the_spelling_of_the_file(void **state)
{
    check_config(state, "{\"torch_dtype\":\"float32\",\"x\":1}",
                 "{\n  \"torch_dtype\": \"bfloat16\",\n  \"x\": 1\n}\n");
    check_config(state, "{\"dtype\":\"float32\"}", "{\n  \"dtype\": \"bfloat16\"\n}\n");
    check_config(state, "{}", "{\n  \"torch_dtype\": \"bfloat16\"\n}\n");
    check_config(state, "{\"dtype\":null,\"torch_dtype\":\"auto\"}",
                 "{\n  \"dtype\": \"bfloat16\",\n  \"torch_dtype\": \"bfloat16\"\n}\n");
}

static void everything_else_in_the_configuration_stays(void **state)
{
    check_config(state,
                 "{\"a\":[1,2.0,1e-05,10000.0,-0.25],\"b\":{},\"c\":[],\"d\":{\"e\":null},"
                 "\"f\":\"\\u00e9\\n\",\"dtype\":\"x\",\"g\":12345678901234567}",
                 "{\n  \"a\": [\n    1,\n    2.0,\n    1e-05,\n    10000.0,\n    -0.25\n  ],\n"
                 "  \"b\": {},\n  \"c\": [],\n  \"d\": {\n    \"e\": null\n  },\n"
                 "  \"f\": \"\xc3\xa9\\n\",\n  \"dtype\": \"bfloat16\",\n"
                 "  \"g\": 12345678901234567\n}\n");
}

static void tokenizer_files_are_copied_and_others_are_not(void **state)
{
    zn_buf got = {0};
    put_text(at(state, "config.json"), "{}");
    put_text(at(state, "tokenizer.json"), "{\"x\": 1}");
    put_text(at(state, "chat_template.jinja"), "");
    put_text(at(state, "model.safetensors"), "weights");
    assert_ok(zn_model_files_copy(*state, at(state, "out/deep"), ZN_DTYPE_F32));
    assert_ok(zn_fs_read(at(state, "out/deep/tokenizer.json"), 0, &got));
    assert_string_equal(got.data, "{\"x\": 1}");
    assert_true(zn_fs_exists(at(state, "out/deep/chat_template.jinja")));
    assert_false(zn_fs_exists(at(state, "out/deep/model.safetensors")));
    assert_false(zn_fs_exists(at(state, "out/deep/merges.txt")));
    zn_buf_fini(&got);
}

static void a_configuration_file_of_any_name_stands_for_its_folder(void **state)
{
    zn_buf got = {0};
    put_text(at(state, "tiny.json"), "{\"dtype\":\"float32\"}");
    put_text(at(state, "config.json"), "{\"of\":\"another model\"}");
    put_text(at(state, "tokenizer.json"), "{\"x\": 1}");
    assert_ok(zn_model_files_copy(at(state, "tiny.json"), at(state, "out"), ZN_DTYPE_BF16));
    assert_ok(zn_fs_read(at(state, "out/config.json"), 0, &got));
    assert_string_equal(got.data, "{\n  \"dtype\": \"bfloat16\"\n}\n");
    assert_true(zn_fs_exists(at(state, "out/tokenizer.json")));
    assert_false(zn_fs_exists(at(state, "out/tiny.json")));
    zn_buf_fini(&got);
}

static void a_folder_without_a_configuration_is_refused(void **state)
{
    assert_fails(zn_model_files_copy(*state, at(state, "out"), ZN_DTYPE_F32), ZINC_E_IO,
                 "config.json");
    put_text(at(state, "config.json"), "[1]");
    assert_fails(zn_model_files_copy(*state, at(state, "out"), ZN_DTYPE_F32), ZINC_E_FORMAT,
                 "not a JSON object");
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(the_type_is_set_in_the_spelling_of_the_file),
    TEST(everything_else_in_the_configuration_stays),
    TEST(tokenizer_files_are_copied_and_others_are_not),
    TEST(a_configuration_file_of_any_name_stands_for_its_folder),
    TEST(a_folder_without_a_configuration_is_refused),
};

ZN_TEST_MAIN(tests)
