/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP's strategies as stages, shard groups and schedules. */
#include "config/config_test.h"

#define MB "\"train_micro_batch_size_per_gpu\":1,"

static void a_strategy_sets_the_stage_and_says_so(void **state)
{
    static const struct {
        const char *name;
        int stage;
        bool reshards;
    } cases[] = {{"FULL_SHARD", 3, true},
                 {"SHARD_GRAD_OP", 3, false},
                 {"no_shard", 0, true},
                 {"HYBRID_SHARD", 3, true},
                 {"HYBRID_SHARD_ZERO2", 3, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        snprintf(text, sizeof text, "{" MB "\"fsdp\":{\"sharding_strategy\":\"%s\"}}",
                 cases[i].name);
        zn_config *config = resolved(text, 4);
        const zn_config_values *v = zn_config_get(config);
        assert_int_equal(v->zero.stage, cases[i].stage);
        assert_int_equal(v->zero.reshard_after_forward, cases[i].reshards);
        assert_string_equal(zn_config_origin(config, "zero_optimization.stage"),
                            "auto: fsdp.sharding_strategy");
        zn_config_destroy(config);
    }
}

static void a_unit_is_let_go_after_forward_or_never_as_the_strategy_says(void **state)
{
    (void)state;
    zn_config *full = resolved("{" MB "\"fsdp\":{\"sharding_strategy\":\"FULL_SHARD\"}}", 2);
    assert_int_equal(zn_config_get(full)->zero.max_reuse_distance, 0);
    zn_config_destroy(full);
    zn_config *plain = resolved("{" MB "\"zero_optimization\":{\"stage\":3}}", 2);
    assert_int_equal(zn_config_get(plain)->zero.max_reuse_distance, 1000000000);
    zn_config_destroy(plain);
    zn_config *config = resolved("{" MB "\"zero_optimization\":{\"stage\":3},"
                                 "\"fsdp\":{\"reshard_after_forward\":false}}",
                                 2);
    assert_int_equal(zn_config_get(config)->zero.max_reuse_distance, INT64_MAX);
    assert_int_equal(zn_config_get(config)->zero.max_live_parameters, INT64_MAX);
    zn_config_destroy(config);
}

static void a_stage_that_is_not_the_strategys_is_refused(void **state)
{
    (void)state;
    refused("{" MB "\"zero_optimization\":{\"stage\":2},\n"
            "\"fsdp\":{\"sharding_strategy\":\"FULL_SHARD\"}}",
            "zero_optimization.stage: fsdp.sharding_strategy FULL_SHARD (line 2)", "leave one");
    refused("{" MB "\"fsdp\":{\"sharding_strategy\":\"SHARD_GRAD_OP\","
            "\"reshard_after_forward\":true}}",
            "fsdp.reshard_after_forward", "SHARD_GRAD_OP");
    zn_config_destroy(resolved("{" MB "\"zero_optimization\":{\"stage\":3},"
                               "\"fsdp\":{\"sharding_strategy\":\"FULL_SHARD\"}}",
                               2));
}

/* 8 ranks on nodes of 4. */
static zn_config *on_nodes(const char *text)
{
    const zn_config_facts facts = {.world_size = 8, .ranks_per_node = 4};
    zn_config *config = NULL;
    assert_ok(zn_config_parse(text, strlen(text), "ds.json", &config));
    assert_ok(zn_config_resolve(config, &facts));
    return config;
}

static void hybrid_shards_over_the_ranks_of_a_node_or_as_many_as_are_given(void **state)
{
    (void)state;
    zn_config *node = on_nodes("{" MB "\"fsdp\":{\"sharding_strategy\":\"HYBRID_SHARD\"}}");
    assert_int_equal(zn_config_get(node)->zero.shard_size, 4);
    assert_string_equal(zn_config_origin(node, "fsdp.shard_size"), "auto: the ranks of a node");
    zn_config_destroy(node);
    zn_config *two = on_nodes("{" MB "\"fsdp\":{\"sharding_strategy\":\"HYBRID_SHARD_ZERO2\","
                              "\"shard_size\":2}}");
    assert_int_equal(zn_config_get(two)->zero.shard_size, 2);
    zn_config_destroy(two);
    zn_config *more = on_nodes("{" MB "\"zero_optimization\":{\"stage\":3,"
                               "\"zero_hpz_partition_size\":16}}");
    assert_int_equal(zn_config_get(more)->zero.hpz_partition_size, 8);
    assert_int_equal(zn_config_n_notes(more), 1);
    zn_config_destroy(more);
}

static void groups_that_cannot_be_are_refused_by_name(void **state)
{
    (void)state;
    refused_for(4, "{" MB "\"zero_optimization\":{\"stage\":3},\"fsdp\":{\"shard_size\":3}}",
                "fsdp.shard_size: 4 ranks cannot be cut into groups of 3", "divisor");
    refused_for(4, "{" MB "\"zero_optimization\":{\"stage\":3,\"zero_hpz_partition_size\":3}}",
                "zero_optimization.zero_hpz_partition_size", "divisor");
    refused_for(4,
                "{" MB "\"zero_optimization\":{\"stage\":3,\"zero_hpz_partition_size\":2},"
                "\"fsdp\":{\"shard_size\":2}}",
                "zero_optimization.zero_hpz_partition_size", "leave one of them out");
    refused_for(4, "{" MB "\"fsdp\":{\"shard_size\":2}}", "fsdp.shard_size: stage 0 shards nothing",
                "stage 1, 2 or 3");
    refused_for(4, "{" MB "\"fsdp\":{\"sharding_strategy\":\"FULL_SHARD\",\"shard_size\":2}}",
                "fsdp.shard_size", "HYBRID_SHARD");
    refused_for(4, "{" MB "\"zero_optimization\":{\"mics_shard_size\":2}}",
                "zero_optimization.mics_shard_size", "fsdp.shard_size");
}

static void no_prefetch_switches_prefetching_off(void **state)
{
    (void)state;
    zn_config *config = resolved("{" MB "\"fsdp\":{\"sharding_strategy\":\"FULL_SHARD\","
                                 "\"backward_prefetch\":\"NO_PREFETCH\"}}",
                                 2);
    assert_int_equal(zn_config_get(config)->zero.prefetch_bucket_size, 0);
    assert_int_equal(zn_config_get(config)->zero.backward_prefetch, ZN_BACKWARD_NO_PREFETCH);
    zn_config_destroy(config);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_strategy_sets_the_stage_and_says_so),
    cmocka_unit_test(a_unit_is_let_go_after_forward_or_never_as_the_strategy_says),
    cmocka_unit_test(a_stage_that_is_not_the_strategys_is_refused),
    cmocka_unit_test(hybrid_shards_over_the_ranks_of_a_node_or_as_many_as_are_given),
    cmocka_unit_test(groups_that_cannot_be_are_refused_by_name),
    cmocka_unit_test(no_prefetch_switches_prefetching_off),
};

ZN_TEST_MAIN(tests)
