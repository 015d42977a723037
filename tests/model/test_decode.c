/* SPDX-License-Identifier: Apache-2.0 */
/* Generation with kept keys and values gives the logits of the whole sequence computed again. */
#include "model/model_fixture.h"

#include <unistd.h>

#define LENGTH 24
/* A token's keys are summed in another order than in a block of queries. */
#define TOLERANCE 2e-5

#define SIZES                                                                                      \
    "\"vocab_size\":19,\"intermediate_size\":14,\"num_hidden_layers\":3,\"hidden_size\":12,"       \
    "\"head_dim\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2"

static void open_text(fixture *f, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/zn_decode_%d.json", (int)getpid());
    assert_ok(zn_fs_write_atomic(path, text, strlen(text)));
    fixture_open_spec(f, path);
    (void)unlink(path);
}

static void open_folder(fixture *f, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/model/%s", ZN_TEST_DATA, name);
    fixture_open_spec(f, path);
}

static void check_logits(const char *what, int64_t t, const float *got, const float *want,
                         int64_t V)
{
    double most = 0;
    for (int64_t v = 0; v < V; v++)
        most = fmax(most, fabs((double)want[v]));
    for (int64_t v = 0; v < V; v++)
        if (!(fabs((double)got[v] - (double)want[v]) <= TOLERANCE * (1 + most)))
            fail_msg("%s after %lld tokens: logit %lld is %g, recomputed %g", what, (long long)t,
                     (long long)v, (double)got[v], (double)want[v]);
}

/* Feed the sequence in parts of these lengths, then one by one. */
static void check_model(fixture *f, const char *what, int64_t first, int64_t length)
{
    const int64_t parts[] = {first, 1, 1, 3, 1, 5};
    const int64_t V = f->spec.V;
    float *got = calloc((size_t)V, sizeof *got), *want = calloc((size_t)V, sizeof *want);
    int32_t *ids = calloc((size_t)length, sizeof *ids);
    zn_decode *decode;
    fixture_model(f, false, 0);
    for (int64_t t = 0; t < length; t++)
        ids[t] = (int32_t)(zn_hash_mix((uint64_t)t) % (uint64_t)V);
    assert_ok(zn_decode_create(f->model, &decode));
    for (int64_t t = 0, i = 0, n; t < length; t += n, i++) {
        n = i < 6 ? parts[i] : 1;
        const zn_model_batch batch = {.B = 1, .T = t + n, .ids = ids};
        assert_true(t + n <= length);
        assert_ok(zn_model_decode(decode, ids + t, n, &f->fake.hooks, got));
        assert_ok(zn_model_last_logits(f->model, &batch, &f->fake.hooks, want));
        check_logits(what, t + n, got, want, V);
    }
    zn_decode_destroy(decode);
    free(got);
    free(want);
    free(ids);
}

static void every_architecture_goes_on_as_if_it_began_anew(void **state)
{
    static const char *const folders[] = {"gpt2",  "llama", "llama3",   "mistral",
                                          "qwen2", "qwen3", "gpt_neox", "gemma2"};
    static const char *const texts[] = {
        "{\"model_type\":\"phi3\",\"sliding_window\":3,\"partial_rotary_factor\":0.5," SIZES "}",
        "{\"model_type\":\"olmo2\"," SIZES "}",
        "{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}," SIZES
        "}"};
    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        fixture f = {0};
        open_folder(&f, folders[i]);
        check_model(&f, folders[i], 7, LENGTH);
        fixture_close(&f);
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fixture f = {0};
        open_text(&f, texts[i]);
        check_model(&f, texts[i], 1, LENGTH);
        fixture_close(&f);
    }
}

static void a_long_sequence_outgrows_the_first_cache(void **state)
{
    fixture f = {0};
    (void)state;
    open_folder(&f, "mistral");
    check_model(&f, "mistral", 250, 266);
    fixture_close(&f);
}

static void a_model_with_learned_positions_ends_with_them(void **state)
{
    fixture f = {0};
    zn_decode *decode;
    float logits[19];
    const int32_t ids[6] = {1, 2, 3, 4, 5, 6};
    (void)state;
    open_text(&f, "{\"model_type\":\"gpt2\",\"vocab_size\":19,\"n_embd\":12,\"n_head\":3,"
                  "\"n_layer\":2,\"n_positions\":9}");
    fixture_model(&f, false, 0);
    assert_ok(zn_decode_create(f.model, &decode));
    assert_ok(zn_model_decode(decode, ids, 6, &f.fake.hooks, logits));
    assert_fails(zn_model_decode(decode, ids, 4, &f.fake.hooks, logits), ZINC_E_INVALID,
                 "9 positions");
    assert_ok(zn_model_decode(decode, ids, 3, &f.fake.hooks, logits));
    zn_decode_destroy(decode);
    fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_architecture_goes_on_as_if_it_began_anew),
    cmocka_unit_test(a_long_sequence_outgrows_the_first_cache),
    cmocka_unit_test(a_model_with_learned_positions_ends_with_them),
};

ZN_TEST_MAIN(tests)
