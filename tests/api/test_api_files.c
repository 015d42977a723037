/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations, files, tokenizers, types and log lines through the public headers. */
#include "zn_test.h"

#include <unistd.h>

#include "zinc/checkpoint.h"
#include "zinc/config.h"
#include "zinc/log.h"
#include "zinc/tokenizer.h"

static void assert_value(const zinc_config *config, const char *key, const char *wanted)
{
    char *text = NULL;
    assert_ok(zinc_config_get(config, key, &text));
    assert_string_equal(text, wanted);
    zinc_free(text);
}

static void values_of_a_configuration_come_as_json(void **state)
{
    static const char text[] = "{\"train_batch_size\": 24, \"bf16\": {\"enabled\": true},\n"
                               "\"zero_optimization\": {\"stage\": 2}}";
    static const char *const names[] = {"learning_rate", "weight_decay"}, *const values[] = {"0.25",
                                                                                             "0.5"};
    zinc_config *config = NULL;
    zinc_config_facts facts = ZINC_CONFIG_FACTS_INIT;
    char *out = NULL;
    (void)state;
    facts.world_size = 4;
    assert_ok(zinc_config_parse(text, strlen(text), "here", &config));
    assert_fails(zinc_config_get(config, "bf16.enabled", &out), ZINC_E_INVALID, "not resolved");
    assert_ok(zinc_config_override(config, names, values, 2));
    assert_ok(zinc_config_resolve(config, &facts));
    assert_value(config, "zero_optimization.stage", "2");
    assert_value(config, "bf16.enabled", "true");
    assert_value(config, "train_micro_batch_size_per_gpu", "6");
    assert_string_equal(zinc_config_origin(config, "zero_optimization.stage"), "here:2");
    assert_fails(zinc_config_get(config, "zero_optimization.stages", &out), ZINC_E_INVALID,
                 "zero_optimization.stages");
    assert_ok(zinc_config_get(config, "zero_optimization", &out));
    assert_true(out[0] == '{' && strstr(out, "\"stage\":2"));
    zinc_free(out);
    assert_ok(zinc_config_table(config, &out));
    assert_non_null(strstr(out, "here:2"));
    zinc_free(out);
    assert_null(zinc_config_error(config, 0));
    zinc_config_destroy(config);
}

static void all_errors_of_a_configuration_are_listed(void **state)
{
    static const char text[] = "{\"zero_optimization\": {\"stage\": 4},\n\"train_batch_size\": -1}";
    zinc_config *config = NULL;
    (void)state;
    assert_fails(zinc_config_parse(text, strlen(text), "bad.json", &config), ZINC_E_CONFIG,
                 "bad.json:1");
    assert_int_equal(zinc_config_n_errors(config), 2);
    assert_non_null(strstr(zinc_config_error(config, 1), "bad.json:2"));
    zinc_config_destroy(config);
    config = NULL;
    assert_fails(zinc_config_load("no/such.json", &config), ZINC_E_IO, "no/such.json");
    assert_null(config);
}

static void tensors_are_written_and_read_by_range(void **state)
{
    char dir[] = "/tmp/zinc_api_XXXXXX", path[64];
    const float values[6] = {0, 1, -2, 3.5f, 1000.0f / 3, 1e-8f};
    float back[6] = {0};
    zinc_tensor tensors[2] = {ZINC_TENSOR_INIT, ZINC_TENSOR_INIT}, got = ZINC_TENSOR_INIT;
    zinc_writer *writer = NULL;
    zinc_reader *reader = NULL;
    (void)state;
    assert_non_null(mkdtemp(dir));
    tensors[0].name = "matrix";
    tensors[0].n_dims = 2;
    tensors[0].shape[0] = 2;
    tensors[0].shape[1] = 3;
    tensors[1].name = "half";
    tensors[1].dtype = ZINC_BF16;
    tensors[1].shape[0] = 6;
    assert_ok(zinc_writer_create(dir, tensors, 2, 0, &writer));
    assert_ok(zinc_writer_begin(writer));
    assert_ok(zinc_writer_write(writer, 0, 2, 4, values + 2));
    assert_ok(zinc_writer_write(writer, 0, 0, 2, values));
    assert_ok(zinc_writer_write(writer, 1, 0, 6, values));
    assert_fails(zinc_writer_write(writer, 0, 5, 2, values), ZINC_E_INVALID, "which has 6");
    assert_fails(zinc_writer_write(writer, 2, 0, 1, values), ZINC_E_INVALID, "no tensor 2");
    assert_ok(zinc_writer_flush(writer));
    assert_ok(zinc_writer_commit(writer));
    zinc_writer_destroy(writer);

    assert_ok(zinc_reader_open(dir, &reader));
    assert_ok(zinc_reader_get(reader, zinc_reader_find(reader, "matrix"), &got));
    assert_true(got.n_dims == 2 && got.shape[1] == 3 && got.dtype == ZINC_F32);
    assert_ok(zinc_reader_read(reader, zinc_reader_find(reader, "matrix"), 1, 5, back));
    assert_memory_equal(back, values + 1, 5 * sizeof(float));
    assert_ok(zinc_reader_read(reader, zinc_reader_find(reader, "half"), 4, 1, back));
    assert_true(back[0] == 334.0f);
    assert_int_equal(zinc_reader_find(reader, "other"), -1);
    assert_fails(zinc_reader_read(reader, 0, -1, 1, back), ZINC_E_INVALID, "[-1");
    assert_fails(zinc_reader_get(reader, 9, &got), ZINC_E_INVALID, "no tensor 9");
    zinc_reader_close(reader);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
}

static void bad_tensors_and_folders_are_refused(void **state)
{
    zinc_tensor tensor = ZINC_TENSOR_INIT;
    zinc_writer *writer = NULL;
    zinc_reader *reader = NULL;
    (void)state;
    assert_fails(zinc_writer_create("x", &tensor, 1, 0, &writer), ZINC_E_INVALID, "no name");
    tensor.name = "w";
    tensor.n_dims = 5;
    assert_fails(zinc_writer_create("x", &tensor, 1, 0, &writer), ZINC_E_INVALID, "5 dimensions");
    tensor.n_dims = 2;
    tensor.shape[0] = tensor.shape[1] = INT64_MAX / 16;
    assert_fails(zinc_writer_create("x", &tensor, 1, 0, &writer), ZINC_E_INVALID, "dimension 1");
    assert_fails(zinc_writer_create("x", &tensor, 0, 0, &writer), ZINC_E_INVALID, "0 tensors");
    assert_fails(zinc_reader_open("no/such/folder", &reader), ZINC_E_IO, "no/such/folder");
    assert_fails(zinc_export_deepspeed("no/such", "out", NULL, ZINC_I64, 0), ZINC_E_INVALID,
                 "int64");
    assert_null(writer);
    assert_null(reader);
}

static void a_text_becomes_ids_and_a_text_again(void **state)
{
    static const char text[] = "Hello, world! 123";
    zinc_tokenizer *tokenizer = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    char *back = NULL;
    (void)state;
    assert_ok(zinc_tokenizer_load(ZN_TEST_DATA "/tokenizer/gpt2/tokenizer.json", &tokenizer));
    assert_ok(zinc_tokenizer_encode(tokenizer, text, strlen(text), 0, &ids, &n));
    assert_true(n > 1 && n <= (int64_t)strlen(text));
    assert_ok(zinc_tokenizer_decode(tokenizer, ids, n, 1, &back));
    assert_string_equal(back, text);
    zinc_free(back);
    ids[0] = zinc_tokenizer_vocab_size(tokenizer);
    assert_fails(zinc_tokenizer_decode(tokenizer, ids, n, 1, &back), ZINC_E_INVALID, "");
    zinc_free(ids);
    assert_ok(zinc_tokenizer_decode(tokenizer, NULL, 0, 1, &back));
    assert_string_equal(back, "");
    zinc_free(back);
    assert_int_equal(zinc_tokenizer_id(tokenizer, "no such token here"), -1);
    zinc_tokenizer_destroy(tokenizer);
}

static void types_and_levels_have_names_and_limits(void **state)
{
    (void)state;
    assert_int_equal(zinc_dtype_size(ZINC_BF16), 2);
    assert_int_equal(zinc_dtype_size((zinc_dtype)8), 0);
    assert_string_equal(zinc_dtype_name(ZINC_F16), "float16");
    assert_string_equal(zinc_dtype_name((zinc_dtype)-1), "unknown");
    assert_int_equal(zinc_log_is_on(ZINC_LOG_ERROR, "test"), 1);
    assert_int_equal(zinc_log_is_on((zinc_log_level)9, "test"), 0);
    assert_int_equal(zinc_fail(ZINC_E_IO, "why"), ZINC_E_IO);
    assert_non_null(strstr(zinc_last_error(), "why"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(values_of_a_configuration_come_as_json),
    cmocka_unit_test(all_errors_of_a_configuration_are_listed),
    cmocka_unit_test(tensors_are_written_and_read_by_range),
    cmocka_unit_test(bad_tensors_and_folders_are_refused),
    cmocka_unit_test(a_text_becomes_ids_and_a_text_again),
    cmocka_unit_test(types_and_levels_have_names_and_limits),
};

ZN_TEST_MAIN(tests)
