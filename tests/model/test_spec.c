/* SPDX-License-Identifier: Apache-2.0 */
/* config.json to a spec, and names to parameters. */
#include "zn_test.h"

#include <unistd.h>

#include "base/fs.h"
#include "model/model.h"

/* Write a config of its own to this process (tests may run side by side) and load it. */
static zinc_status load_text(const char *text, zn_model_spec *spec)
{
    char path[64];
    memset(spec, 0, sizeof *spec);
    snprintf(path, sizeof path, "/tmp/zn_spec_%d.json", (int)getpid());
    assert_ok(zn_fs_write_atomic(path, text, strlen(text)));
    const zinc_status status = zn_model_spec_load(path, spec);
    (void)unlink(path);
    return status;
}

static void a_bare_gpt2_config_has_the_defaults_of_its_class(void **state)
{
    (void)state;
    zn_model_spec s;
    zn_param_list list;
    assert_ok(load_text("{\"model_type\":\"gpt2\"}", &s));
    assert_int_equal(s.V, 50257);
    assert_int_equal(s.C, 768);
    assert_int_equal(s.L, 12);
    assert_int_equal(s.F, 3072);
    assert_int_equal(s.D, 64);
    assert_int_equal(s.max_positions, 1024);
    assert_int_equal(s.act, ZN_ACT_GELU_TANH);
    assert_true(s.tied && s.conv1d && s.learned_positions && s.qkv_fused);
    assert_true(s.embed_dropout == 0.1f && s.attn_dropout == 0.1f && s.resid_dropout == 0.1f);
    assert_int_equal(s.eos_id, 50256);
    assert_ok(zn_model_param_list(&s, &list));
    assert_int_equal(zn_param_list_elems(&list, true), 124439808); /* GPT-2 small */
    assert_int_equal(list.n_units, 14);
    zn_param_list_fini(&list);
    zn_model_spec_fini(&s);
}

/* Sizes of published checkpoints, counted from their defaults. */
static void published_models_have_their_published_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int64_t n;
    } cases[] = {
        {"{\"model_type\":\"llama\"}", 6738415616},                               /* Llama-2 7B */
        {"{\"model_type\":\"mistral\"}", 7241732096},                             /* Mistral 7B */
        {"{\"model_type\":\"gemma2\"}", 2614341888},                              /* Gemma 2 2B */
        {"{\"model_type\":\"phi3\"}", 3821079552},                                /* Phi-3 mini */
        {"{\"model_type\":\"gpt_neox\",\"vocab_size\":50304,\"hidden_size\":512," /* Pythia 70M */
         "\"num_hidden_layers\":6,\"num_attention_heads\":8,\"intermediate_size\":2048}",
         70426624},
        {"{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864," /* 0.5B */
         "\"num_attention_heads\":14,\"num_key_value_heads\":2,\"num_hidden_layers\":24,"
         "\"tie_word_embeddings\":true}",
         494032768},
        {"{\"model_type\":\"qwen3\",\"hidden_size\":1024,\"intermediate_size\":3072," /* 0.6B */
         "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"num_hidden_layers\":28,"
         "\"tie_word_embeddings\":true}",
         596049920},
        {"{\"model_type\":\"olmo2\",\"vocab_size\":100352}", 7298617344}, /* OLMo 2 7B */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_model_spec s;
        zn_param_list list;
        assert_ok(load_text(cases[i].config, &s));
        assert_ok(zn_model_param_list(&s, &list));
        if (zn_param_list_elems(&list, false) != cases[i].n)
            fail_msg("%s: %lld parameters, want %lld", cases[i].config,
                     (long long)zn_param_list_elems(&list, false), (long long)cases[i].n);
        zn_param_list_fini(&list);
        zn_model_spec_fini(&s);
    }
}

static void both_spellings_of_rope_give_the_same_spec(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"model_type\":\"llama\",\"rope_theta\":5e5,\"torch_dtype\":\"bfloat16\","
        "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
        "{\"model_type\":\"llama\",\"dtype\":\"bfloat16\","
        "\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":500000.0,\"factor\":8.0,"
        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":64}}",
    };
    for (int i = 0; i < 2; i++) {
        zn_model_spec s;
        assert_ok(load_text(texts[i], &s));
        assert_int_equal(s.rope, ZN_ROPE_LLAMA3);
        assert_true(s.rope_theta == 5e5 && s.rope_factor == 8);
        assert_true(s.rope_low_freq == 1 && s.rope_high_freq == 4);
        assert_int_equal(s.rope_original_positions, 64);
        assert_int_equal(s.dtype, ZN_DTYPE_BF16);
        zn_model_spec_fini(&s);
    }
}

static void windows_are_where_each_architecture_puts_them(void **state)
{
    (void)state;
    static const struct {
        const char *config, *windowed;
    } cases[] = {
        {"{\"model_type\":\"mistral\",\"num_hidden_layers\":3}", "111"},
        {"{\"model_type\":\"mistral\",\"num_hidden_layers\":3,\"sliding_window\":null}", "000"},
        {"{\"model_type\":\"gemma2\",\"num_hidden_layers\":3}", "101"},
        {"{\"model_type\":\"gemma2\",\"num_hidden_layers\":2,\"layer_types\":"
         "[\"full_attention\",\"sliding_attention\"]}",
         "01"},
        {"{\"model_type\":\"qwen2\",\"num_hidden_layers\":3,\"sliding_window\":9}", "000"},
        {"{\"model_type\":\"qwen2\",\"num_hidden_layers\":3,\"use_sliding_window\":true,"
         "\"max_window_layers\":1}",
         "011"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":2}", "00"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_model_spec s;
        assert_ok(load_text(cases[i].config, &s));
        assert_int_equal(s.L, strlen(cases[i].windowed));
        for (int64_t l = 0; l < s.L; l++)
            assert_int_equal(s.layer_windowed[l], cases[i].windowed[l] - '0');
        zn_model_spec_fini(&s);
    }
}

static void what_is_not_supported_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        zinc_status status;
        const char *part;
    } cases[] = {
        {"{\"model_type\":\"bert\"}", ZINC_E_UNSUPPORTED, "\"bert\" is not supported (known: gpt2"},
        {"{}", ZINC_E_FORMAT, "model_type is missing"},
        {"[]", ZINC_E_FORMAT, "a JSON object was expected"},
        {"{\"model_type\":3}", ZINC_E_FORMAT, "model_type must be a string"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}",
         ZINC_E_UNSUPPORTED, "rope type \"yarn\""},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"mish\"}", ZINC_E_UNSUPPORTED,
         "hidden_act \"mish\""},
        {"{\"model_type\":\"llama\",\"hidden_size\":-1}", ZINC_E_FORMAT, "hidden_size must be"},
        {"{\"model_type\":\"llama\",\"hidden_size\":\"big\"}", ZINC_E_FORMAT,
         "hidden_size must be"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":6,\"num_key_value_heads\":4}",
         ZINC_E_FORMAT, "6 attention heads are not a multiple of 4"},
        {"{\"model_type\":\"llama\",\"head_dim\":7}", ZINC_E_FORMAT, "even number"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":5000}", ZINC_E_FORMAT, "do not fit"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":100000}", ZINC_E_FORMAT, "100000 layers"},
        {"{\"model_type\":\"llama\",\"attention_dropout\":1.5}", ZINC_E_FORMAT,
         "attention_dropout must be in [0, 1)"},
        {"{\"model_type\":\"llama\",\"torch_dtype\":\"int8\"}", ZINC_E_UNSUPPORTED,
         "dtype \"int8\""},
        {"{\"model_type\":\"llama\",\"quantization_config\":{}}", ZINC_E_UNSUPPORTED,
         "quantization_config"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":10,\"n_head\":3}", ZINC_E_FORMAT,
         "not a multiple of n_head"},
        {"{\"model_type\":\"gpt2\",\"scale_attn_by_inverse_layer_idx\":true}", ZINC_E_UNSUPPORTED,
         "scale_attn_by_inverse_layer_idx"},
        {"{\"model_type\":\"gemma2\",\"num_hidden_layers\":1,\"layer_types\":[\"chunked\"]}",
         ZINC_E_UNSUPPORTED, "\"chunked\""},
        {"{\"model_type\":\"gemma2\",\"layer_types\":[]}", ZINC_E_FORMAT, "list of 26 names"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_model_spec s;
        assert_fails(load_text(cases[i].config, &s), cases[i].status, cases[i].part);
        assert_null(s.layer_windowed); /* outputs are untouched on failure */
    }
}

static void a_missing_folder_is_an_input_error(void **state)
{
    (void)state;
    zn_model_spec s = {0};
    assert_fails(zn_model_spec_load("/nowhere/model", &s), ZINC_E_IO, "/nowhere/model");
}

static void check_name(const zn_model_spec *s, const char *stored, const char *want, bool known)
{
    char buf[256];
    bool got_known = !known;
    const char *got = zn_model_tensor_name(s, stored, buf, sizeof buf, &got_known);
    if ((got == NULL) != (want == NULL) || (got && strcmp(got, want) != 0) || got_known != known)
        fail_msg("%s -> %s (%s)", stored, got ? got : "NULL", got_known ? "known" : "unknown");
}

static void stored_names_map_with_and_without_prefix(void **state)
{
    (void)state;
    zn_model_spec s;
    assert_ok(load_text("{\"model_type\":\"gpt2\"}", &s));
    check_name(&s, "wte.weight", "transformer.wte.weight", true);
    check_name(&s, "transformer.wte.weight", "transformer.wte.weight", true);
    check_name(&s, "h.11.attn.c_attn.bias", "transformer.h.11.attn.c_attn.bias", true);
    check_name(&s, "h.12.attn.c_attn.bias", NULL, false);
    check_name(&s, "h.01.attn.c_attn.bias", NULL, false);
    check_name(&s, "h..attn.c_attn.bias", NULL, false);
    check_name(&s, "h.3.attn.bias", NULL, true);
    check_name(&s, "transformer.h.3.attn.masked_bias", NULL, true);
    check_name(&s, "lm_head.weight", NULL, true);
    check_name(&s, "score.weight", NULL, false);
    check_name(&s, "transformer.h.0.attn.q_proj.weight", NULL, false);
    zn_model_spec_fini(&s);
    assert_ok(load_text("{\"model_type\":\"llama\"}", &s));
    check_name(&s, "layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight", true);
    check_name(&s, "model.norm.weight", "model.norm.weight", true);
    check_name(&s, "lm_head.weight", "lm_head.weight", true);
    check_name(&s, "model.layers.0.self_attn.rotary_emb.inv_freq", NULL, true);
    check_name(&s, "model.layers.0.self_attn.q_proj.bias", NULL, false);
    zn_model_spec_fini(&s);
    assert_ok(load_text("{\"model_type\":\"gpt_neox\"}", &s));
    check_name(&s, "gpt_neox.layers.0.attention.bias", NULL, true);
    check_name(&s, "embed_out.weight", "embed_out.weight", true);
    check_name(&s, "embed_in.weight", "gpt_neox.embed_in.weight", true);
    zn_model_spec_fini(&s);
}

static void every_parameter_name_maps_to_itself_and_units_are_in_order(void **state)
{
    (void)state;
    static const char *const types[] = {"gpt2",     "llama",  "mistral", "qwen2", "qwen3",
                                        "gpt_neox", "gemma2", "phi3",    "olmo2"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        zn_model_spec s;
        zn_param_list list;
        char text[64];
        snprintf(text, sizeof text, "{\"model_type\":\"%s\"}", types[i]);
        assert_ok(load_text(text, &s));
        assert_ok(zn_model_param_list(&s, &list));
        for (int p = 0; p < list.n_specs; p++) {
            check_name(&s, list.specs[p].name, list.specs[p].name, true);
            assert_int_equal(zn_param_list_find(&list, list.specs[p].name), p);
            assert_true(p == 0 || list.specs[p].unit == list.specs[p - 1].unit ||
                        list.specs[p].unit == list.specs[p - 1].unit + 1);
            assert_int_equal(list.specs[p].no_decay, list.specs[p].n_dims == 1);
        }
        assert_string_equal(list.unit_names[0], "embed");
        assert_string_equal(list.unit_names[1], "layer.0");
        assert_string_equal(list.unit_names[list.n_units - 1], "head");
        zn_param_list_fini(&list);
        zn_model_spec_fini(&s);
    }
}

static void failed_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    zn_model_spec s;
    zn_param_list list;
    assert_ok(load_text("{\"model_type\":\"llama\",\"num_hidden_layers\":2}", &s));
    for (int n = 0;; n++) {
        memset(&list, 0, sizeof list);
        zn_mem_fail_after(n);
        const zinc_status status = zn_model_param_list(&s, &list);
        zn_mem_fail_after(-1);
        if (status == ZINC_OK)
            break;
        assert_int_equal(status, ZINC_E_NOMEM);
        assert_null(list.specs);
        assert_true(n < 1000);
    }
    zn_param_list_fini(&list);
    zn_model_spec_fini(&s);
}

/* 6 per weight and token: 3 * 2 for the matrices of one layer and the head, by hand. */
static void flops_count_matrices_and_causal_pairs(void **state)
{
    (void)state;
    zn_model_spec s;
    assert_ok(load_text("{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":16,"
                        "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":32}",
                        &s));
    const double weights = 4 * 8 * 8 + 3 * 8 * 16 + 32 * 8;
    const double pairs = 4 * 5 / 2; /* T = 4 */
    assert_true(zn_model_flops(&s, 3, 4) == 6 * weights * 12 + 12 * pairs * 3 * 8);
    s.window = 2;
    s.layer_windowed[0] = 1; /* keys seen: 1, 2, 2, 2 */
    assert_true(zn_model_flops(&s, 3, 4) == 6 * weights * 12 + 12 * 7.0 * 3 * 8);
    zn_model_spec_fini(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_bare_gpt2_config_has_the_defaults_of_its_class),
    cmocka_unit_test(published_models_have_their_published_sizes),
    cmocka_unit_test(both_spellings_of_rope_give_the_same_spec),
    cmocka_unit_test(windows_are_where_each_architecture_puts_them),
    cmocka_unit_test(what_is_not_supported_is_named),
    cmocka_unit_test(a_missing_folder_is_an_input_error),
    cmocka_unit_test(stored_names_map_with_and_without_prefix),
    cmocka_unit_test(every_parameter_name_maps_to_itself_and_units_are_in_order),
    cmocka_unit_test(failed_allocations_leave_nothing_behind),
    cmocka_unit_test(flops_count_matrices_and_causal_pairs),
};

ZN_TEST_MAIN(tests)
