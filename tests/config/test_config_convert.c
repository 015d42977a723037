/* SPDX-License-Identifier: Apache-2.0 */
/* One configuration as an accelerate YAML, as a ds_config.json, and as Zinc's resolved form. */
#include "config/config_test.h"

#define FILES DATA "accelerate/"

static void resolve_own(zn_config *config)
{
    zn_config_facts facts = {.default_micro_batch = 1};
    zn_config_facts_from_accelerate(config, &facts);
    assert_ok(zn_config_resolve(config, &facts));
}

/* Replace *config by what `text` holds. */
static void reread(zn_config **config, const zn_buf *text, bool yaml)
{
    zn_config_destroy(*config);
    *config = NULL;
    if (yaml)
        assert_ok(zn_config_parse_accelerate(text->data, text->n, "a.yaml", NULL, config));
    else
        assert_ok(zn_config_parse(text->data, text->n, "ds.json", config));
    resolve_own(*config);
}

static void every_form_says_the_same(void **state)
{
    static const char *const files[] = {FILES "accelerate_zero2.yaml", FILES "accelerate_fsdp.yaml",
                                        FILES "six_keys.yaml"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        zn_config *config = NULL;
        zn_buf first = {0}, second = {0}, lost = {0}, json = {0};
        assert_ok(zn_config_load_accelerate(files[i], NULL, &config));
        resolve_own(config);
        const int64_t n = zn_config_get(config)->accelerate.num_processes;
        const int stage = zn_config_get(config)->zero.stage;
        assert_ok(zn_config_append_accelerate(config, n, &lost, &first));
        assert_int_equal(lost.n, 0);
        reread(&config, &first, true); /* YAML to YAML */
        assert_ok(zn_config_append_deepspeed(config, true, &json));
        reread(&config, &json, false); /* YAML to ds_config.json */
        assert_int_equal(zn_config_get(config)->zero.stage, stage);
        assert_int_equal(zn_config_get(config)->accelerate.num_processes, n);
        assert_ok(zn_config_append_accelerate(config, n, &lost, &second));
        assert_string_equal(second.data, first.data); /* and back */
        zn_buf_fini(&json);
        assert_ok(zn_config_append_json(config, &json));
        reread(&config, &json, false); /* the resolved form */
        assert_int_equal(zn_config_get(config)->zero.stage, stage);
        assert_int_equal(zn_config_get(config)->accelerate.num_processes, n);
        zn_config_destroy(config);
        zn_buf_fini(&first);
        zn_buf_fini(&second);
        zn_buf_fini(&lost);
        zn_buf_fini(&json);
    }
}

static void what_is_lost_is_named(void **state)
{
    static const char text[] = "{\"train_micro_batch_size_per_gpu\": 2,\n\"zero_optimization\": "
                               "{\"stage\": 3, \"reduce_bucket_size\": 1000},\n\"optimizer\": "
                               "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.1}}}";
    zn_config *config = resolved(text, 2);
    zn_buf lost = {0}, out = {0};
    (void)state;
    assert_ok(zn_config_append_accelerate(config, 2, &lost, &out));
    assert_non_null(strstr(lost.data, "train_micro_batch_size_per_gpu 2 (ds.json:1)"));
    assert_non_null(strstr(lost.data, "zero_optimization.reduce_bucket_size 1000 (ds.json:2)"));
    assert_non_null(strstr(lost.data, "optimizer.params.lr 0.1 (ds.json:3)"));
    assert_null(strstr(lost.data, "stage"));
    assert_non_null(strstr(out.data, "  zero_stage: 3\n"));
    zn_buf_fini(&lost);
    zn_buf_fini(&out);
    zn_config_destroy(config);
}

static void words_are_quoted_where_yaml_needs_it(void **state)
{
    static const char text[] = "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": "
                               "{\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", "
                               "\"nvme_path\": \"/it's: a #path\"}}}";
    zn_config *config = resolved(text, 2);
    zn_buf lost = {0}, out = {0};
    (void)state;
    assert_ok(zn_config_append_accelerate(config, 2, &lost, &out));
    assert_non_null(strstr(out.data, "offload_param_nvme_path: '/it''s: a #path'\n"));
    reread(&config, &out, true);
    assert_string_equal(zn_config_get(config)->zero.offload_param_nvme_path, "/it's: a #path");
    zn_buf_fini(&lost);
    zn_buf_fini(&out);
    zn_config_destroy(config);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_form_says_the_same),
    cmocka_unit_test(what_is_lost_is_named),
    cmocka_unit_test(words_are_quoted_where_yaml_needs_it),
};

ZN_TEST_MAIN(tests)
