/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include "ckpt/export.h"

static void weights_are_written_rounded_and_sharded(void **state)
{
    zn_export_report report = {0};
    zn_weights *weights = NULL;
    float got[8];
    const char *out = at(state, "out");
    const zn_export_params params = {.checkpoint = ZN_TEST_DATA "/ckpt/made_stage3",
                                     .output = out,
                                     .dtype = ZN_DTYPE_BF16,
                                     .max_shard_bytes = 50};
    assert_ok(zn_export(&params, &report));
    assert_false(report.has_config);
    assert_int_equal(report.n_params, 15 + 7 + 8 + 1 + 11 + 3);
    assert_int_equal(report.n_files, 4); /* three shards and the index */
    assert_string_equal(report.files[3], "model.safetensors.index.json");
    assert_ok(zn_weights_open(out, &weights));
    const zn_tensor_info *c = zn_weights_find(weights, "c.bias");
    assert_int_equal(c->dtype, ZN_DTYPE_BF16);
    assert_int_equal(c->n_dims, 3);
    assert_ok(zn_tensor_read(c, 0, 8, got));
    for (int i = 0; i < 8; i++)
        assert_true(got[i] == zn_bf16_to_f32(zn_f32_to_bf16(2000.0f + (float)i)));
    assert_non_null(zn_weights_find(weights, "alias.weight"));
    zn_weights_close(weights);
    zn_export_report_fini(&report);
}

static void the_configuration_comes_from_the_named_model(void **state)
{
    zn_export_report report = {0};
    const char *out = at(state, "out");
    const zn_export_params params = {.checkpoint = ZN_TEST_DATA "/ckpt/made_stage2",
                                     .output = out,
                                     .model = *state,
                                     .dtype = ZN_DTYPE_F32};
    assert_fails(zn_export(&params, &report), ZINC_E_IO, "config.json");
    put_file(at(state, "config.json"), "{}", 2);
    assert_ok(zn_export(&params, &report));
    assert_true(report.has_config);
    assert_string_equal(report.files[0], "model.safetensors");
    assert_true(zn_fs_exists(at(state, "out/config.json")));
    zn_export_report_fini(&report);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(weights_are_written_rounded_and_sharded),
    TEST(the_configuration_comes_from_the_named_model),
};

ZN_TEST_MAIN(tests)
