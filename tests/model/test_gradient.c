/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients against finite differences, for what no reference file covers: fused and normed
 * variants, biases, dropout, segments, small tiles. */
#include "model/model_fixture.h"

#include <unistd.h>

#define ROWS 2
#define LENGTH 6
/* Fourth-order differences along a direction of length 1; a step moves the loss by LOSS_STEP, which
 * is far above its fp32 noise and small enough for its curvature. */
#define LOSS_STEP 0.05
#define LONGEST_STEP 2e-2
#define TOLERANCE 5e-3

static void open_text(fixture *f, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/zn_gradient_%d.json", (int)getpid());
    assert_ok(zn_fs_write_atomic(path, text, strlen(text)));
    fixture_open_spec(f, path);
    (void)unlink(path);
    fixture_arrays(f, ROWS, LENGTH);
    for (int64_t n = 0; n < ROWS * LENGTH; n++) {
        f->ids[n] = (int32_t)(zn_hash_mix((uint64_t)n) % (uint64_t)f->spec.V);
        f->targets[n] = n % LENGTH == LENGTH - 1
                            ? -1
                            : (int32_t)(zn_hash_mix((uint64_t)n + 50) % (uint64_t)f->spec.V);
        f->mask[n] = n != 7; /* one hole */
    }
}

static double loss_at(fixture *f)
{
    double loss = 0;
    fake_reset(&f->fake);
    assert_ok(zn_model_train(f->model, &f->batch, &f->fake.hooks, 1, &loss));
    return loss;
}

static void shift(const fake_engine *fake, int param, const float *direction, float by)
{
    for (int64_t j = 0; j < fake->list.specs[param].n_elems; j++)
        fake->value[param][j] += by * direction[j];
}

/* The derivative along a parameter's own gradient, normalised, is the gradient's length. */
static void check_parameter(fixture *f, int param, const char *what)
{
    const zn_param_spec *p = &f->fake.list.specs[param];
    float *direction = NULL, *kept = NULL;
    double length = 0, loss[4];
    static const float at[4] = {-2, -1, 1, 2};
    const size_t bytes = (size_t)p->n_elems * sizeof(float);
    (void)loss_at(f);
    for (int64_t j = 0; j < p->n_elems; j++)
        length += (double)f->fake.grad[param][j] * (double)f->fake.grad[param][j];
    length = sqrt(length);
    if (length < 1e-4) /* a key bias: zero by mathematics */
        return;
    const double step = fmin(LOSS_STEP / length, LONGEST_STEP);
    assert_ok(zn_alloc(&direction, bytes, "test"));
    assert_ok(zn_alloc(&kept, bytes, "test"));
    memcpy(kept, f->fake.value[param], bytes);
    for (int64_t j = 0; j < p->n_elems; j++)
        direction[j] = (float)((double)f->fake.grad[param][j] / length);
    for (int i = 0; i < 4; i++) {
        shift(&f->fake, param, direction, (float)step * at[i]);
        loss[i] = loss_at(f);
        memcpy(f->fake.value[param], kept, bytes);
    }
    const double slope = (loss[0] - 8 * loss[1] + 8 * loss[2] - loss[3]) / (12 * step);
    if (!(fabs(slope - length) <= TOLERANCE * length + 1e-4))
        fail_msg("%s: %s has gradient %g, differences give %g", what, p->name, length, slope);
    zn_free(direction);
    zn_free(kept);
}

#define SIZES                                                                                      \
    "\"vocab_size\":19,\"intermediate_size\":14,\"num_hidden_layers\":2,"                          \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":16"

static const char *const configs[] = {
    "{\"model_type\":\"phi3\",\"hidden_size\":12,\"head_dim\":4,\"sliding_window\":3,\"partial_"
    "rotary_factor\":0.5,"
    "\"resid_pdrop\":0.1,\"attention_dropout\":0.1," SIZES "}",
    "{\"model_type\":\"olmo2\",\"hidden_size\":12,\"head_dim\":4,\"attention_bias\":true," SIZES
    "}",
    "{\"model_type\":\"llama\",\"hidden_size\":12,\"head_dim\":4,\"attention_bias\":true,\"mlp_"
    "bias\":true,"
    "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}," SIZES "}",
    "{\"model_type\":\"qwen3\",\"hidden_size\":12,\"head_dim\":4,\"attention_bias\":true,"
    "\"tie_word_embeddings\":true," SIZES "}",
    "{\"model_type\":\"gemma2\",\"hidden_size\":12,\"head_dim\":4,\"sliding_window\":2,"
    "\"attn_logit_softcapping\":2,\"final_logit_softcapping\":3," SIZES "}",
    "{\"model_type\":\"gpt_neox\",\"hidden_size\":16,\"use_parallel_residual\":false,\"rotary_"
    "pct\":0.7,"
    "\"hidden_dropout\":0.1," SIZES "}",
    "{\"model_type\":\"gpt_neox\",\"hidden_size\":16,\"hidden_dropout\":0.1,\"attention_dropout\":"
    "0.2,"
    "\"rotary_pct\":1,\"tie_word_embeddings\":true," SIZES "}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":19,\"n_embd\":12,\"n_head\":3,\"n_layer\":2,"
    "\"n_positions\":9,\"tie_word_embeddings\":false}",
};

static void gradients_equal_finite_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        fixture f;
        open_text(&f, configs[i]);
        for (int p = 0; p < f.fake.list.n_specs; p++)
            check_parameter(&f, p, configs[i]);
        fixture_close(&f);
    }
}

static void evaluation_equals_training_without_dropout(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        fixture f;
        double loss = 0;
        open_text(&f, configs[i]);
        fixture_model(&f, false, 0);
        const double trained = loss_at(&f);
        assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &loss, NULL));
        assert_true(fabs(loss - trained) <= 1e-6 * trained);
        fixture_close(&f);
    }
}

/* A row's loss does not hang on its neighbours, nor on padding that is masked. */
static void padding_and_neighbours_have_no_influence(void **state)
{
    (void)state;
    fixture f;
    double both = 0, first = 0, second = 0;
    open_text(&f, configs[2]);
    for (int64_t t = 0; t < LENGTH; t++)
        f.mask[t] = 1;
    for (int64_t t = 4; t < LENGTH; t++)
        f.mask[LENGTH + t] = 0;
    f.targets[LENGTH + 3] = f.targets[LENGTH + 4] = -1;
    f.mask[7] = 1;
    assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &both, NULL));
    f.batch.B = 1;
    assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &first, NULL));
    f.batch.T = 4;
    f.batch.ids = f.ids + LENGTH;
    f.batch.targets = f.targets + LENGTH;
    f.batch.mask = NULL;
    assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &second, NULL));
    assert_true(fabs(both - first - second) <= 1e-5 * both);
    fixture_close(&f);
}

static void dropout_hangs_on_seed_and_sample_but_not_on_the_place_in_the_batch(void **state)
{
    (void)state;
    fixture f;
    open_text(&f, configs[7]);
    for (int64_t t = 0; t < LENGTH; t++) { /* two equal rows */
        f.ids[LENGTH + t] = f.ids[t];
        f.targets[LENGTH + t] = f.targets[t];
    }
    f.batch.mask = NULL;
    const double both = loss_at(&f);
    assert_true(loss_at(&f) == both);
    f.batch.B = 1;
    const double first = loss_at(&f);
    f.batch.sample = f.sample + 1;
    const double second = loss_at(&f);
    assert_true(fabs(first - second) > 1e-4);
    assert_true(fabs(both - first - second) <= 1e-5 * both);
    f.batch.dropout_seed++;
    assert_true(fabs(loss_at(&f) - second) > 1e-4);
    fixture_close(&f);
}

static void documents_of_one_row_do_not_see_each_other(void **state)
{
    (void)state;
    fixture f;
    int32_t segment[ROWS * LENGTH];
    double loss = 0, changed = 0;
    open_text(&f, configs[7]);
    for (int n = 0; n < ROWS * LENGTH; n++)
        segment[n] = n % LENGTH >= 3;
    f.batch.segment = segment;
    f.batch.mask = NULL;
    for (int n = 0; n < ROWS * LENGTH; n++)
        f.targets[n] = n % LENGTH >= 3 ? f.targets[n] : -1;
    assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &loss, NULL));
    f.ids[0] = (f.ids[0] + 1) % 19; /* of the first document */
    assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &changed, NULL));
    assert_true(loss == changed);
    f.batch.segment = NULL;
    changed = 0;
    assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &changed, NULL));
    assert_true(fabs(loss - changed) > 1e-5);
    fixture_close(&f);
}

static void a_row_beyond_the_learned_positions_is_refused(void **state)
{
    (void)state;
    fixture f;
    double loss = 0;
    open_text(&f, configs[7]);
    f.batch.B = 1;
    f.batch.T = 10;
    assert_fails(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &loss, NULL), ZINC_E_INVALID,
                 "longer than the 9 positions");
    f.batch.T = 0;
    assert_fails(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &loss, NULL), ZINC_E_INVALID,
                 "cannot be computed");
    fixture_close(&f);
}

static void a_device_that_is_too_small_is_an_error_and_not_a_crash(void **state)
{
    (void)state;
    fixture f;
    zn_device *small;
    zn_model *model;
    double loss = 0;
    const zn_device_params params = {.n_threads = 1, .device_limit_bytes = 4096};
    const zn_model_options opts = {.dropout_scale = 0};
    open_text(&f, configs[0]);
    assert_ok(zn_device_open("cpu", &params, &small));
    assert_ok(zn_model_create(&f.spec, &opts, small, zn_kernels_get(small), &model));
    for (int i = 0; i < 2; i++) /* and stays one */
        assert_int_equal(zn_model_eval(model, &f.batch, &f.fake.hooks, &loss, NULL), ZINC_E_NOMEM);
    zn_model_destroy(model);
    zn_device_close(small);
    fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gradients_equal_finite_differences),
    cmocka_unit_test(evaluation_equals_training_without_dropout),
    cmocka_unit_test(padding_and_neighbours_have_no_influence),
    cmocka_unit_test(dropout_hangs_on_seed_and_sample_but_not_on_the_place_in_the_batch),
    cmocka_unit_test(documents_of_one_row_do_not_see_each_other),
    cmocka_unit_test(a_row_beyond_the_learned_positions_is_refused),
    cmocka_unit_test(a_device_that_is_too_small_is_an_error_and_not_a_crash),
};

ZN_TEST_MAIN(tests)
