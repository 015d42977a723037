/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>

#include "base/json.h"
#include "config/config.h"
#include "plan/plan.h"

/* ---- countings ---- */

static void deepspeeds_estimates_are_matched_to_the_byte(void **state)
{
    (void)state;
    json_t *root = NULL, *row;
    size_t i;
    assert_ok(zn_json_load(ZN_TEST_DATA "/plan/deepspeed_memory.json", &root));
    const json_t *zero2 = json_object_get(root, "zero2"), *zero3 = json_object_get(root, "zero3");
    assert_int_equal(json_array_size(zero2), 80);
    assert_int_equal(json_array_size(zero3), 120);
    json_array_foreach(zero2, i, row)
    {
        zn_deepspeed_estimate e = {
            .stage = 2,
            .n_params = json_integer_value(json_array_get(row, 0)),
            .gpus_per_node = (int)json_integer_value(json_array_get(row, 1)),
            .nodes = (int)json_integer_value(json_array_get(row, 2)),
            .offload_optimizer = json_is_true(json_array_get(row, 3)),
            .buffer_factor = json_number_value(json_array_get(row, 4)),
        };
        assert_ok(zn_deepspeed_estimate_make(&e));
        assert_int_equal(e.cpu_bytes, json_integer_value(json_array_get(row, 5)));
        assert_int_equal(e.gpu_bytes, json_integer_value(json_array_get(row, 6)));
    }
    json_array_foreach(zero3, i, row)
    {
        zn_deepspeed_estimate e = {
            .stage = 3,
            .n_params = json_integer_value(json_array_get(row, 0)),
            .largest_layer = json_integer_value(json_array_get(row, 1)),
            .gpus_per_node = (int)json_integer_value(json_array_get(row, 2)),
            .nodes = (int)json_integer_value(json_array_get(row, 3)),
            .offload_optimizer = json_is_true(json_array_get(row, 4)),
            .offload_param = json_is_true(json_array_get(row, 5)),
            .zero_init = json_is_true(json_array_get(row, 6)),
            .buffer_factor = json_number_value(json_array_get(row, 7)),
        };
        assert_ok(zn_deepspeed_estimate_make(&e));
        assert_int_equal(e.cpu_bytes, json_integer_value(json_array_get(row, 8)));
        assert_int_equal(e.gpu_bytes, json_integer_value(json_array_get(row, 9)));
    }
    json_decref(root);
}

static void what_deepspeed_does_not_estimate_is_named(void **state)
{
    (void)state;
    zn_deepspeed_estimate e = {.stage = 1, .n_params = 7, .gpus_per_node = 1, .nodes = 1};
    assert_fails(zn_deepspeed_estimate_make(&e), ZINC_E_CONFIG, "stages 2 and 3, not 1");
    e.stage = 3;
    assert_fails(zn_deepspeed_estimate_make(&e), ZINC_E_CONFIG, "--largest_layer");
    e.largest_layer = 1;
    e.offload_param = true;
    assert_fails(zn_deepspeed_estimate_make(&e), ZINC_E_CONFIG, "--offload_optimizer cpu");
}

/* 7B on 4 cards, as tutorials have it: 84, 42, 31.5, 21 GB; 3.5 + 3.5 on the card and 14 + 3.5 on
 * the host with both offloads. */
static void the_tutorials_numbers_come_out(void **state)
{
    (void)state;
    static const double card[] = {84e9, 42e9, 31.5e9, 21e9}, saved[] = {0, 0.5, 0.625, 0.75};
    zn_accounting a;
    for (int stage = 0; stage <= 3; stage++) {
        const zn_plan_variant v = {stage, ZN_OFFLOAD_NONE, ZN_OFFLOAD_NONE};
        zn_accounting_make(ZN_ACCOUNTING_CLASSIC, 7e9, 4, &v, &a);
        assert_true(a.device_total == card[stage]);
        assert_true(1 - a.device_total / 84e9 == saved[stage]);
        assert_true(a.host_total == 0);
    }
    const zn_plan_variant both = {3, ZN_OFFLOAD_CPU, ZN_OFFLOAD_CPU};
    zn_accounting_make(ZN_ACCOUNTING_CLASSIC, 7e9, 4, &both, &a);
    assert_true(a.parameters == 3.5e9 && a.gradients == 3.5e9 && a.optimizer == 0);
    assert_true(a.host_optimizer == 14e9 && a.host_parameters == 3.5e9);
}

static void sixteen_bytes_on_1024_ranks_shrink_4_8_and_1024_times(void **state)
{
    (void)state;
    static const double times[] = {1, 4, 8, 1024};
    for (int stage = 0; stage <= 3; stage++) {
        const zn_plan_variant v = {stage, ZN_OFFLOAD_NONE, ZN_OFFLOAD_NONE};
        zn_accounting a;
        zn_accounting_make(ZN_ACCOUNTING_MIXED16, 7.5e9, 1024, &v, &a);
        assert_true(fabs(16 * 7.5e9 / a.device_total / times[stage] - 1) < 0.01);
    }
}

/* ---- shapes ---- */

/* Parameters as their publishers count them. */
static void known_models_have_their_published_number_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t n;
    } models[] = {{"llama-7b", 6738415616},     {"llama-13b", 13015864320},
                  {"llama-70b", 68976648192},   {"llama-3-8b", 8030261248},
                  {"mistral-7b", 7241732096},   {"qwen2-7b", 7615616512},
                  {"GPT2", 124439808},          {"gpt2-xl", 1557611200},
                  {"smollm2-135m", 134515008},  {"tinyllama-1.1b", 1100048384},
                  {"llama-3.2-1b", 1235814400}, {"qwen2-0.5b", 494032768}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        zn_model_spec spec;
        zn_param_list list = {0};
        bool known = false;
        assert_ok(zn_plan_model(models[i].name, &spec, &known));
        assert_ok(zn_model_param_list(&spec, &list));
        assert_true(known);
        assert_int_equal(zn_param_list_elems(&list, false), models[i].n);
        zn_param_list_fini(&list);
        zn_model_spec_fini(&spec);
    }
}

static void a_number_of_parameters_becomes_a_model_of_that_size(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1000000,    125000000,   1300000000,
                                    7000000000, 70000000000, 175000000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const zn_plan_shape shape = {.n_params = sizes[i]};
        zn_model_spec spec;
        zn_param_list list = {0};
        assert_ok(zn_plan_model_of_size(&shape, &spec));
        assert_ok(zn_model_param_list(&spec, &list));
        const double got = (double)zn_param_list_elems(&list, false);
        assert_true(fabs(got / (double)sizes[i] - 1) < 0.005);
        zn_param_list_fini(&list);
        zn_model_spec_fini(&spec);
    }
}

static void shapes_that_do_not_go_with_the_size_are_refused(void **state)
{
    (void)state;
    zn_model_spec spec;
    zn_plan_shape shape = {.n_params = 7000000000, .layers = 400, .hidden = 8192};
    assert_fails(zn_plan_model_of_size(&shape, &spec), ZINC_E_CONFIG, "without an MLP");
    shape = (zn_plan_shape){.n_params = 7000000000, .hidden = 4096, .heads = 33};
    assert_fails(zn_plan_model_of_size(&shape, &spec), ZINC_E_CONFIG, "--heads 33");
    shape = (zn_plan_shape){.n_params = 1, .layers = 1, .hidden = 64};
    assert_fails(zn_plan_model_of_size(&shape, &spec), ZINC_E_CONFIG, "--params asks for 1");
}

/* ---- plans ---- */

typedef struct fixture {
    zn_model_spec spec;
    zn_param_list list;
    zn_config *config;
    zn_plan_run run;
} fixture;

static void set_up(fixture *f, const char *model, const char *preset, int gpus, const char *text)
{
    bool known;
    zn_plan_hardware hw = {.gpus = gpus, .nodes = 1};
    memset(f, 0, sizeof *f);
    assert_ok(zn_plan_model(model, &f->spec, &known));
    assert_ok(zn_model_param_list(&f->spec, &f->list));
    assert_ok(zn_plan_preset(preset, 1, &hw));
    assert_ok(zn_config_parse(text, strlen(text), "ds.json", &f->config));
    const zn_config_facts facts = {
        .world_size = gpus, .hidden_size = f->spec.C, .default_micro_batch = 1};
    assert_ok(zn_config_resolve(f->config, &facts));
    f->run = (zn_plan_run){.spec = &f->spec,
                           .list = &f->list,
                           .config = *zn_config_get(f->config),
                           .block_size = 1024,
                           .n_threads = 1,
                           .hw = hw};
    assert_ok(zn_optim_find("adamw", &f->run.optim));
}

static void tear_down(fixture *f)
{
    zn_config_destroy(f->config);
    zn_param_list_fini(&f->list);
    zn_model_spec_fini(&f->spec);
}

#define BF16 "{\"bf16\":{\"enabled\":true},\"train_micro_batch_size_per_gpu\":4}"

static void the_rows_of_a_place_add_up_to_its_total(void **state)
{
    (void)state;
    fixture f;
    zn_plan plan;
    set_up(&f, "gpt2", "a100-40", 2, BF16);
    assert_ok(zn_plan_make(&f.run, &plan));
    int64_t sum = 0;
    for (int row = 0; row < ZN_PLAN_N_ROWS; row++)
        sum += plan.bytes[ZN_ZERO_ON_DEVICE][row];
    assert_int_equal(plan.total[ZN_ZERO_ON_DEVICE], sum);
    assert_true(plan.fits && plan.step_s > 0 && plan.tokens_per_s > 0);
    tear_down(&f);
}

static void a_batch_beyond_counting_is_refused(void **state)
{
    (void)state;
    fixture f;
    zn_plan plan;
    set_up(&f, "llama-70b", "h100", 1, BF16);
    f.run.config.train_micro_batch_size_per_gpu = 1 << 20;
    f.run.block_size = 1 << 24;
    assert_fails(zn_plan_make(&f.run, &plan), ZINC_E_INVALID, "more than can be counted");
    tear_down(&f);
}

/* The search adds no more than is needed, in order of cost. */
static void the_cheapest_change_is_found_first(void **state)
{
    (void)state;
    static const struct {
        double gb;
        const char *key; /* of the last change */
    } steps[] = {{3.25, "gradient_accumulation_steps"},
                 {2.3, "--gradient_checkpointing"},
                 {1.65, "zero_optimization.stage"},
                 {1.2, "zero_optimization.offload_optimizer.device"}};
    fixture f;
    zn_plan_search s;
    set_up(&f, "gpt2", "a100-40", 2, BF16);
    assert_ok(zn_plan_find(&f.run, &s));
    assert_int_equal(s.n_fixes, 0);
    const double first = (double)s.before.total[0];
    assert_true(first > 3.0e9 && first < 5e9);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        f.run.hw.device_bytes = steps[i].gb * 1e9;
        assert_ok(zn_plan_find(&f.run, &s));
        assert_true(s.found && s.n_fixes > 0 && !s.before.fits && s.after.fits);
        assert_string_equal(s.fixes[s.n_fixes - 1].key, steps[i].key);
    }
    tear_down(&f);
}

static void smaller_micro_batches_keep_the_global_batch(void **state)
{
    (void)state;
    fixture f;
    zn_plan_search s;
    set_up(&f, "gpt2", "a100-40", 2, BF16);
    f.run.hw.device_bytes = 3e9;
    assert_ok(zn_plan_find(&f.run, &s));
    assert_int_equal(
        s.run.config.train_micro_batch_size_per_gpu * s.run.config.gradient_accumulation_steps, 4);
    tear_down(&f);
}

/* Gradients alone would take 280 GB of the host: they go to disk with masters and moments. */
static void seventy_billion_parameters_fit_a_host_of_256_gb_with_a_disk(void **state)
{
    (void)state;
    fixture f;
    zn_plan_search s;
    set_up(&f, "llama-70b", "rtx3090", 1, "{\"bf16\":{\"enabled\":true}}");
    f.run.hw.host_bytes = 256e9;
    assert_ok(zn_plan_find(&f.run, &s));
    assert_true(s.needs_disk && s.found);
    assert_in_range((int64_t)s.cpu_only.over[ZN_ZERO_ON_HOST], (int64_t)840e9, (int64_t)855e9);
    assert_in_range(s.after.total[ZN_ZERO_ON_DISK], 16 * INT64_C(68976648192),
                    16 * INT64_C(68976648192) * 101 / 100);
    f.run.hw.host_bytes = 512e9;
    assert_ok(zn_plan_find(&f.run, &s));
    assert_true(s.found && s.needs_disk);
    assert_int_equal(s.run.config.zero.offload_optimizer, ZN_OFFLOAD_NVME);
    f.run.hw.host_bytes = 2e12;
    assert_ok(zn_plan_find(&f.run, &s));
    assert_true(s.found && !s.needs_disk);
    tear_down(&f);
}

static void a_suggested_configuration_reads_back_as_planned(void **state)
{
    (void)state;
    fixture f;
    zn_plan_search s;
    zn_buf text = {0};
    zn_config *config = NULL;
    set_up(&f, "llama-7b", "rtx3090", 2, BF16);
    assert_ok(zn_plan_find(&f.run, &s));
    assert_true(s.found);
    assert_ok(zn_plan_append_config(&s.run, "/tmp", &text));
    assert_ok(zn_config_parse(text.data, text.n, "suggested", &config));
    const zn_config_facts facts = {.world_size = 2, .hidden_size = f.spec.C};
    assert_ok(zn_config_resolve(config, &facts));
    const zn_config_values *a = &s.run.config, *b = zn_config_get(config);
    assert_int_equal(a->zero.stage, b->zero.stage);
    assert_int_equal(a->zero.offload_optimizer, b->zero.offload_optimizer);
    assert_int_equal(a->zero.offload_param, b->zero.offload_param);
    assert_int_equal(a->zero.reduce_bucket_size, b->zero.reduce_bucket_size);
    assert_int_equal(a->train_micro_batch_size_per_gpu, b->train_micro_batch_size_per_gpu);
    assert_int_equal(a->gradient_accumulation_steps, b->gradient_accumulation_steps);
    zn_config_destroy(config);
    zn_buf_fini(&text);
    tear_down(&f);
}

/* A slower part makes the step slower and is named. */
static void the_slowest_part_is_what_bounds_the_step(void **state)
{
    (void)state;
    fixture f;
    zn_plan fast, slow;
    set_up(&f, "llama-7b", "h100", 8, BF16);
    f.run.config.zero.stage = 3;
    f.run.config.zero.overlap_comm = true;
    assert_ok(zn_plan_make(&f.run, &fast));
    assert_int_equal(fast.bound, ZN_PLAN_COMPUTE);
    f.run.hw.peer = 1e9;
    assert_ok(zn_plan_make(&f.run, &slow));
    assert_int_equal(slow.bound, ZN_PLAN_NETWORK);
    assert_true(slow.step_s > 2 * fast.step_s);
    f.run.config.zero.offload_optimizer = ZN_OFFLOAD_NVME;
    f.run.hw.disk_rate = 1e8;
    assert_ok(zn_plan_make(&f.run, &slow));
    assert_int_equal(slow.bound, ZN_PLAN_DISK);
    tear_down(&f);
}

static void the_json_document_is_whole(void **state)
{
    (void)state;
    fixture f;
    zn_plan_search s;
    zn_buf text = {0};
    json_t *root = NULL;
    set_up(&f, "llama-70b", "rtx3090", 1, BF16);
    assert_ok(zn_plan_find(&f.run, &s));
    assert_ok(zn_plan_append_json(&s, &text));
    assert_ok(zn_json_parse(text.data, text.n, "plan", &root));
    assert_int_equal(json_integer_value(json_object_get(root, "ranks")), 1);
    assert_true(json_is_false(json_object_get(root, "fits")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "device"), "total")),
                     s.before.total[0]);
    assert_non_null(json_object_get(json_object_get(root, "smallest"), "changes"));
    json_decref(root);
    text.n = 0;
    assert_ok(zn_plan_append_all(&f.run, true, &text));
    assert_ok(zn_json_parse(text.data, text.n, "plan", &root));
    assert_int_equal(json_array_size(json_object_get(root, "rows")), (size_t)zn_plan_n_variants);
    json_decref(root);
    zn_buf_fini(&text);
    tear_down(&f);
}

static zinc_status plan_everything(const zn_plan_run *run, zn_buf *text)
{
    zn_plan_search s;
    ZN_TRY(zn_plan_find(run, &s));
    ZN_TRY(zn_plan_append_text(&s, text));
    ZN_TRY(zn_plan_append_json(&s, text));
    return zn_plan_append_all(run, false, text);
}

static void a_failed_allocation_ends_a_plan_and_leaves_nothing_behind(void **state)
{
    (void)state;
    fixture f;
    zinc_status status = ZINC_E_NOMEM;
    int n = 0;
    set_up(&f, "gpt2", "rtx3090", 2, BF16);
    f.run.hw.device_bytes = 1e9;
    while (status == ZINC_E_NOMEM) {
        zn_buf text = {0};
        zn_mem_fail_after(n);
        status = plan_everything(&f.run, &text);
        zn_mem_fail_after(-1);
        zn_buf_fini(&text);
        n += 1 + n / 100; /* a search makes one plan after another, by the same code */
    }
    assert_int_equal(status, ZINC_OK);
    assert_true(n > 100);
    tear_down(&f);
}

static void an_unknown_preset_is_told_which_there_are(void **state)
{
    (void)state;
    zn_plan_hardware hw = {.gpus = 1, .nodes = 1};
    assert_fails(zn_plan_preset("a10", 1, &hw), ZINC_E_CONFIG, zn_plan_preset_names());
    assert_ok(zn_plan_preset("cpu", 1, &hw));
    assert_true(hw.device_bytes > 0 && hw.flops > 0 && hw.device_rate > 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(deepspeeds_estimates_are_matched_to_the_byte),
    cmocka_unit_test(what_deepspeed_does_not_estimate_is_named),
    cmocka_unit_test(the_tutorials_numbers_come_out),
    cmocka_unit_test(sixteen_bytes_on_1024_ranks_shrink_4_8_and_1024_times),
    cmocka_unit_test(known_models_have_their_published_number_of_parameters),
    cmocka_unit_test(a_number_of_parameters_becomes_a_model_of_that_size),
    cmocka_unit_test(shapes_that_do_not_go_with_the_size_are_refused),
    cmocka_unit_test(the_rows_of_a_place_add_up_to_its_total),
    cmocka_unit_test(a_batch_beyond_counting_is_refused),
    cmocka_unit_test(the_cheapest_change_is_found_first),
    cmocka_unit_test(smaller_micro_batches_keep_the_global_batch),
    cmocka_unit_test(seventy_billion_parameters_fit_a_host_of_256_gb_with_a_disk),
    cmocka_unit_test(a_suggested_configuration_reads_back_as_planned),
    cmocka_unit_test(the_slowest_part_is_what_bounds_the_step),
    cmocka_unit_test(the_json_document_is_whole),
    cmocka_unit_test(a_failed_allocation_ends_a_plan_and_leaves_nothing_behind),
    cmocka_unit_test(an_unknown_preset_is_told_which_there_are),
};

ZN_TEST_MAIN(tests)
