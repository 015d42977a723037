/* SPDX-License-Identifier: Apache-2.0 */
/* accelerate's YAML files: what they mean, where each value comes from, what is wrong in them. The
 * files in data/config/accelerate are as accelerate 1.15 writes them, and as a tutorial prints. */
#include "config/config_test.h"

#define FILES DATA "accelerate/"
#define HEAD "distributed_type: DEEPSPEED\nnum_processes: 2\n"
#define FSDP "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n"

static zn_config *parsed(const char *text)
{
    zn_config *config = NULL;
    zn_config_facts facts = {0};
    assert_ok(zn_config_parse_accelerate(text, strlen(text), "a.yaml", NULL, &config));
    zn_config_facts_from_accelerate(config, &facts);
    assert_ok(zn_config_resolve(config, &facts));
    return config;
}

static zn_config *loaded(const char *path)
{
    zn_config *config = NULL;
    zn_config_facts facts = {0};
    assert_ok(zn_config_load_accelerate(path, NULL, &config));
    zn_config_facts_from_accelerate(config, &facts);
    assert_ok(zn_config_resolve(config, &facts));
    return config;
}

/* The first error of a YAML text begins with `place` ("a.yaml:2:3:") and contains both parts. */
static void refused_yaml(const char *text, const char *place, const char *part, const char *other)
{
    zn_config *config = NULL;
    zn_config_facts facts = {0};
    zinc_status status = zn_config_parse_accelerate(text, strlen(text), "a.yaml", NULL, &config);
    if (status == ZINC_OK) {
        zn_config_facts_from_accelerate(config, &facts);
        status = zn_config_resolve(config, &facts);
    }
    if (status != ZINC_E_CONFIG)
        fail_msg("%s: got %s", text, zinc_status_name(status));
    const char *line = zn_config_error(config, 0);
    if (strncmp(line, place, strlen(place)) != 0 || !strstr(line, part) ||
        (other && !strstr(line, other)))
        fail_msg("%s: the error is \"%s\"", text, line);
    zn_config_destroy(config);
}

static void assert_origin(const zn_config *config, const char *key, const char *end)
{
    const char *origin = zn_config_origin(config, key);
    const size_t n = strlen(origin), m = strlen(end);
    if (n < m || strcmp(origin + n - m, end) != 0)
        fail_msg("%s comes from \"%s\", not from \"%s\"", key, origin, end);
}

static void the_inline_deepspeed_file_of_accelerate_is_read(void **state)
{
    (void)state;
    zn_config *config = loaded(FILES "accelerate_zero2.yaml");
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->accelerate.distributed_type, ZN_DISTRIBUTED_DEEPSPEED);
    assert_int_equal(v->zero.stage, 2);
    assert_int_equal(v->gradient_accumulation_steps, 2);
    assert_true(v->gradient_clipping == 1.0);
    assert_int_equal(v->accelerate.num_processes, 2);
    assert_int_equal(v->train_batch_size, 4);
    assert_origin(config, "zero_optimization.stage", "accelerate_zero2.yaml:9");
    assert_origin(config, "gradient_accumulation_steps", "accelerate_zero2.yaml:4");
    assert_origin(config, "accelerate.num_processes", "accelerate_zero2.yaml:17");
    assert_int_equal(zn_config_n_notes(config), 0);
    zn_config_destroy(config);
}

static void a_named_ds_config_is_read_from_beside_the_yaml(void **state)
{
    (void)state;
    zn_config *config = loaded(FILES "accelerate_zero3_dsconfig.yaml");
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->zero.stage, 3);
    assert_true(v->accelerate.zero3_init_flag);
    assert_origin(config, "zero_optimization.stage", "ds_config_zero3_accelerate.json:8");
    assert_origin(config, "accelerate.num_processes", "accelerate_zero3_dsconfig.yaml:12");
    zn_config_destroy(config);
}

static void the_fsdp_file_of_accelerate_is_stage_3_in_bf16(void **state)
{
    (void)state;
    zn_config *config = loaded(FILES "accelerate_fsdp.yaml");
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->accelerate.distributed_type, ZN_DISTRIBUTED_FSDP);
    assert_int_equal(v->zero.stage, 3);
    assert_true(v->zero.reshard_after_forward);
    assert_true(v->bf16.enabled);
    assert_int_equal(v->zero.backward_prefetch, ZN_BACKWARD_PRE);
    assert_int_equal(v->zero.offload_param, ZN_OFFLOAD_NONE);
    assert_origin(config, "bf16.enabled", "accelerate_fsdp.yaml:21");
    assert_origin(config, "fsdp.sharding_strategy", "accelerate_fsdp.yaml:13");
    zn_config_destroy(config);
}

static void six_keys_resolve_to_accelerates_own_defaults(void **state)
{
    (void)state;
    zn_config *config = loaded(FILES "six_keys.yaml");
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->accelerate.num_machines, 2);
    assert_int_equal(v->accelerate.num_processes, 16);
    assert_int_equal(v->accelerate.main_process_port, 29500);
    assert_string_equal(v->accelerate.main_process_ip, "192.168.1.100");
    assert_int_equal(v->zero.stage, 2);
    assert_int_equal(v->gradient_accumulation_steps, 1);
    assert_true(v->gradient_clipping == 1.0);
    assert_int_equal(v->zero.offload_optimizer, ZN_OFFLOAD_NONE);
    assert_int_equal(v->accelerate.mixed_precision, ZN_PRECISION_NO);
    assert_false(v->bf16.enabled || v->fp16.enabled || v->accelerate.zero3_init_flag);
    assert_int_equal(v->train_batch_size, 16);
    assert_origin(config, "zero_optimization.stage", "auto: accelerate's default zero_stage");
    assert_origin(config, "accelerate.main_process_ip", "six_keys.yaml:4");
    assert_origin(config, "accelerate.machine_rank", "six_keys.yaml:3");
    assert_origin(config, "accelerate.mixed_precision", "default");
    assert_origin(config, "zero_optimization.offload_optimizer.device", "default");
    zn_config_destroy(config);
}

static void every_strategy_has_its_names(void **state)
{
    static const struct {
        const char *line;
        int stage;
        bool reshards;
    } cases[] = {
        {"  fsdp_reshard_after_forward: SHARD_GRAD_OP\n", 3, false},
        {"  fsdp_sharding_strategy: 2\n", 3, false},
        {"  fsdp_sharding_strategy: full_shard\n", 3, true},
        {"  sharding_strategy: NO_SHARD\n", 0, true},
        {"  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n", 3, false},
        {"  fsdp_version: 2\n  reshard_after_forward: 'true'\n", 3, true},
        {"  fsdp_version: 2\n", 3, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[300];
        snprintf(text, sizeof text, FSDP "%s", cases[i].line);
        zn_config *config = parsed(text);
        assert_int_equal(zn_config_get(config)->zero.stage, cases[i].stage);
        assert_int_equal(zn_config_get(config)->zero.reshard_after_forward, cases[i].reshards);
        zn_config_destroy(config);
    }
}

static void offload_params_moves_parameters_and_optimizer(void **state)
{
    (void)state;
    zn_config *config = parsed(FSDP "  fsdp_offload_params: true\n");
    assert_int_equal(zn_config_get(config)->zero.offload_param, ZN_OFFLOAD_CPU);
    assert_int_equal(zn_config_get(config)->zero.offload_optimizer, ZN_OFFLOAD_CPU);
    assert_origin(config, "zero_optimization.offload_param.device", "a.yaml:4");
    zn_config_destroy(config);
}

static void words_get_the_types_that_accelerate_gives_them(void **state)
{
    (void)state;
    zn_config *config = parsed(
        "distributed_type: DEEPSPEED\nnum_processes: '4'\nmixed_precision: no\n"
        "downcast_bf16: off\nmain_process_port: \"29600\"\nfsdp_config: {}\ndynamo_config: null\n"
        "deepspeed_config:\n  zero3_init_flag: 'True'\n  gradient_clipping: 1\n"
        "  offload_optimizer_device: ~\n");
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->accelerate.num_processes, 4);
    assert_int_equal(v->accelerate.main_process_port, 29600);
    assert_int_equal(v->accelerate.mixed_precision, ZN_PRECISION_NO);
    assert_true(v->accelerate.zero3_init_flag);
    assert_int_equal(zn_config_n_notes(config), 0);
    zn_config_destroy(config);
    config =
        parsed(FSDP "  fsdp_transformer_layer_cls_to_wrap: [A, B]\n  fsdp_use_orig_params: 'no'\n");
    zn_config_destroy(config);
}

static void errors_have_their_place(void **state)
{
    (void)state;
    refused_yaml("num_processes: 2\n", "a.yaml:", "distributed_type", "missing");
    refused_yaml(HEAD "num_machine: 1\n", "a.yaml:3:1:", "unknown key \"num_machine\"",
                 "did you mean \"num_machines\"");
    refused_yaml(HEAD "deepspeed_config:\n  zero_stge: 2\n", "a.yaml:4:3:", "zero_stge",
                 "did you mean \"zero_stage\"");
    refused_yaml(HEAD "deepspeed_config:\n  zero_stage: 4\n",
                 "a.yaml:4:15:", "deepspeed_config.zero_stage", "<= 3");
    refused_yaml(HEAD "mixed_precision: fp8\n", "a.yaml:3:18:", "mixed_precision", "fp8");
    refused_yaml(HEAD "mixed_precision: bf17\n", "a.yaml:3:18:", "did you mean \"bf16\"", NULL);
    refused_yaml("distributed_type: DEEPSPED\n", "a.yaml:1:19:", "did you mean \"DEEPSPEED\"",
                 NULL);
    refused_yaml("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n",
                 "a.yaml:1:22:", "compute_environment", "not supported");
    refused_yaml(FSDP "  fsdp_reshard_after_forward: HALF\n",
                 "a.yaml:4:31:", "no sharding strategy \"HALF\"", NULL);
    refused_yaml(FSDP "  fsdp_version: 2\n  fsdp_reshard_after_forward: NO_SHARD\n",
                 "a.yaml:5:31:", "takes true or false", NULL);
}

static void what_is_no_plain_yaml_is_refused(void **state)
{
    (void)state;
    refused_yaml("a: [1\n", "a.yaml:2:1:", "did not find expected", NULL);
    refused_yaml("a: 1\n\tb: 2\n", "a.yaml:2:1:", "tab", "spaces");
    refused_yaml("a: &x 1\nb: *x\n", "a.yaml:1:4:", "anchors", NULL);
    refused_yaml("b: *x\n", "a.yaml:1:4:", "aliases", NULL);
    refused_yaml("a: !!python/object:os.system {}\n", "a.yaml:1:4:", "tags", NULL);
    refused_yaml("- a\n", "a.yaml:1:1:", "key: value", NULL);
    refused_yaml("a: 1\n---\nb: 2\n", "a.yaml:2:1:", "second document", NULL);
    refused_yaml(HEAD "num_processes: 3\n", "a.yaml:3:1:", "given twice", "line 2");
}

static void contradictions_are_named(void **state)
{
    (void)state;
    refused_yaml("distributed_type: NO\nnum_processes: 2\n", "a.yaml:1:19:", "one rank", "line 2");
    refused_yaml("distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 3\n"
                 "main_process_ip: h\n",
                 "a.yaml:3:16:", "3 ranks cannot be divided", "num_machines 2 (line 2)");
    refused_yaml(HEAD "machine_rank: 1\n", "a.yaml:3:15:", "machine_rank 1", "num_machines is 1");
    refused_yaml(HEAD "num_machines: 2\n", "a.yaml:3:15:", "main_process_ip", "where they meet");
    refused_yaml(HEAD "fsdp_config:\n  fsdp_version: 1\n", "a.yaml:", "fsdp_config",
                 "distributed_type FSDP only, and it is DEEPSPEED (line 1)");
    refused_yaml(FSDP "  fsdp_reshard_after_forward: FULL_SHARD\n"
                      "  fsdp_sharding_strategy: NO_SHARD\n",
                 "a.yaml:5:27:", "fsdp_reshard_after_forward says FULL_SHARD", "line 4");
    refused_yaml(FSDP "  fsdp_version: 2\nparallelism_config:\n"
                      "  parallelism_config_dp_replicate_size: 2\n"
                      "  parallelism_config_dp_shard_size: 3\n",
                 "a.yaml:7:37:", "2 x dp_shard_size 3 is not num_processes 4", NULL);
    refused_yaml(HEAD "deepspeed_config:\n  deepspeed_inclusion_filter: a\n"
                      "  deepspeed_exclusion_filter: b\n",
                 "a.yaml:5:31:", "deepspeed_inclusion_filter is given too", NULL);
}

/* accelerate refuses a field beside deepspeed_config_file that the file fixes. */
static void what_the_ds_config_fixes_is_not_said_again(void **state)
{
    static const char text[] = HEAD "deepspeed_config:\n  deepspeed_config_file: " FILES
                                    "ds_config_zero3_accelerate.json\n  zero_stage: 2\n";
    zn_config *config = NULL;
    (void)state;
    assert_fails(zn_config_parse_accelerate(text, strlen(text), "a.yaml", NULL, &config),
                 ZINC_E_CONFIG, "a.yaml:5:15: deepspeed_config.zero_stage");
    assert_non_null(strstr(zn_config_error(config, 0), "ds_config_zero3_accelerate.json:8"));
    zn_config_destroy(config);
}

static void an_argument_contradicts_the_yaml_by_line(void **state)
{
    static const zn_config_argument other = {"gradient_accumulation_steps", "3"};
    zn_config *config = NULL;
    (void)state;
    assert_ok(zn_config_load_accelerate(FILES "accelerate_zero2.yaml", NULL, &config));
    assert_fails(zn_config_override(config, &other, 1), ZINC_E_CONFIG, "accelerate_zero2.yaml:4");
    zn_config_destroy(config);
}

static void a_missing_file_is_named(void **state)
{
    zn_config *config = NULL;
    (void)state;
    assert_fails(zn_config_load_accelerate("/nowhere/a.yaml", NULL, &config), ZINC_E_IO,
                 "/nowhere/a.yaml");
    setenv("HF_HOME", "/nowhere/hf", 1);
    assert_fails(zn_config_load_accelerate("default", NULL, &config), ZINC_E_IO,
                 "/nowhere/hf/accelerate/default_config.yaml");
    unsetenv("HF_HOME");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_inline_deepspeed_file_of_accelerate_is_read),
    cmocka_unit_test(a_named_ds_config_is_read_from_beside_the_yaml),
    cmocka_unit_test(the_fsdp_file_of_accelerate_is_stage_3_in_bf16),
    cmocka_unit_test(six_keys_resolve_to_accelerates_own_defaults),
    cmocka_unit_test(every_strategy_has_its_names),
    cmocka_unit_test(offload_params_moves_parameters_and_optimizer),
    cmocka_unit_test(words_get_the_types_that_accelerate_gives_them),
    cmocka_unit_test(errors_have_their_place),
    cmocka_unit_test(what_is_no_plain_yaml_is_refused),
    cmocka_unit_test(contradictions_are_named),
    cmocka_unit_test(what_the_ds_config_fixes_is_not_said_again),
    cmocka_unit_test(an_argument_contradicts_the_yaml_by_line),
    cmocka_unit_test(a_missing_file_is_named),
};

ZN_TEST_MAIN(tests)
