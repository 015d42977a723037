/* SPDX-License-Identifier: Apache-2.0 */
/* --fsdp and --fsdp_config, as TrainingArguments has them. */
#include "config/config_test.h"

static zn_config *opened(const char *words, const char *fsdp_config)
{
    zn_config *config = NULL;
    const zn_config_sources sources = {.fsdp = words, .fsdp_config = fsdp_config};
    const zn_config_facts facts = {.world_size = 4, .default_micro_batch = 8};
    assert_ok(zn_config_open(&sources, &config));
    assert_ok(zn_config_resolve(config, &facts));
    return config;
}

static void refused_words(const char *words, const char *fsdp_config, const char *part)
{
    zn_config *config = NULL;
    const zn_config_sources sources = {.fsdp = words, .fsdp_config = fsdp_config};
    assert_fails(zn_config_open(&sources, &config), ZINC_E_CONFIG, part);
    zn_config_destroy(config);
}

static void words_choose_strategy_and_offload(void **state)
{
    (void)state;
    zn_config *config = opened("full_shard offload auto_wrap", NULL);
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->zero.stage, 3);
    assert_int_equal(v->zero.offload_param, ZN_OFFLOAD_CPU);
    assert_int_equal(v->zero.offload_optimizer, ZN_OFFLOAD_CPU);
    assert_string_equal(zn_config_origin(config, "fsdp.sharding_strategy"), "argument --fsdp");
    zn_config_destroy(config);
    config = opened("shard_grad_op,auto_wrap", NULL);
    assert_false(zn_config_get(config)->zero.reshard_after_forward);
    zn_config_destroy(config);
    config = opened("no_shard", NULL);
    assert_int_equal(zn_config_get(config)->zero.stage, 0);
    zn_config_destroy(config);
}

static void the_bare_option_is_version_2_resharding(void **state)
{
    (void)state;
    zn_config *config = opened("", NULL);
    assert_int_equal(zn_config_get(config)->zero.stage, 3);
    assert_true(zn_config_get(config)->zero.reshard_after_forward);
    assert_int_equal(zn_config_get(config)->accelerate.fsdp_version, 2);
    zn_config_destroy(config);
}

static void fsdp_config_takes_the_trainers_names(void **state)
{
    (void)state;
    zn_config *config =
        opened("true", "{\"version\": 2, \"reshard_after_forward\": false,\n"
                       "\"cpu_offload\": true, \"activation_checkpointing\": true,\n"
                       "\"transformer_layer_cls_to_wrap\": [\"A\", \"B\"]}");
    const zn_config_values *v = zn_config_get(config);
    assert_false(v->zero.reshard_after_forward);
    assert_true(v->checkpoint_units);
    assert_int_equal(v->zero.offload_param, ZN_OFFLOAD_CPU);
    assert_string_equal(zn_config_origin(config, "fsdp.activation_checkpointing"),
                        "--fsdp_config:2");
    zn_config_destroy(config);
}

static void slips_are_named(void **state)
{
    zn_config *config = NULL;
    const zn_config_sources two = {.deepspeed = "ds.json", .fsdp = "full_shard"};
    const zn_config_sources alone = {.fsdp_config = "{}"};
    (void)state;
    refused_words("full_shrd", NULL, "did you mean \"full_shard\"?");
    refused_words("true", "{\"reshard_after_forwrd\": true}", "--fsdp_config:1:2: ");
    refused_words("full_shard", "{\"reshard_after_forward\": false, \"version\": 2}",
                  "argument --fsdp says otherwise");
    refused_words("hybrid_shard", "{\"version\": 2}", "FSDP version 2 has no hybrid_shard");
    assert_fails(zn_config_open(&two, &config), ZINC_E_INVALID, "--deepspeed");
    assert_fails(zn_config_open(&alone, &config), ZINC_E_INVALID, "--fsdp");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(words_choose_strategy_and_offload),
    cmocka_unit_test(the_bare_option_is_version_2_resharding),
    cmocka_unit_test(fsdp_config_takes_the_trainers_names),
    cmocka_unit_test(slips_are_named),
};

ZN_TEST_MAIN(tests)
