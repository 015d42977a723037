/* SPDX-License-Identifier: Apache-2.0 */
/* Every architecture against transformers: logits, loss, gradients (tests/data/model/README.md). */
#include "model/model_fixture.h"

static const char *const models[] = {
    "gpt2", "llama", "llama3", "mistral", "qwen2", "qwen3", "gpt_neox", "gemma2",
};
#define N_MODELS (sizeof models / sizeof models[0])

#define LOGITS_TOLERANCE 2e-4
#define LOSS_TOLERANCE 1e-5
#define GRAD_TOLERANCE 1e-4
#define ZERO_GRAD_TOLERANCE 1e-6

static double reference_loss(const ref_file *file, int64_t n_targets)
{
    int64_t shape[4];
    float *losses = ref_read(file, "token_loss", shape);
    double sum = 0;
    for (int64_t n = 0; n < shape[0] * shape[1]; n++)
        sum += (double)losses[n];
    zn_free(losses);
    return sum / (double)n_targets;
}

static void check_logits(const fixture *f, const ref_file *file, const float *got, const char *name)
{
    float *want = ref_read(file, "logits", NULL);
    double worst = 0;
    for (int64_t n = 0; n < f->batch.B * f->batch.T; n++)
        for (int64_t v = 0; f->mask[n] && v < f->spec.V; v++) {
            const double d = fabs((double)got[n * f->spec.V + v] - (double)want[n * f->spec.V + v]);
            worst = d <= worst ? worst : d;
        }
    if (!(worst <= LOGITS_TOLERANCE))
        fail_msg("%s: logits off by %g", name, worst);
    zn_free(want);
}

static void logits_and_loss_equal_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        fixture f;
        ref_file file;
        float *logits = NULL;
        double loss = 0;
        fixture_open(&f, models[i]);
        ref_open(&file, models[i], "padded.safetensors");
        fixture_reference_batch(&f, &file);
        assert_ok(zn_alloc_array(&logits, (size_t)(f.batch.B * f.batch.T * f.spec.V),
                                 sizeof *logits, "test"));
        assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &loss, logits));
        check_logits(&f, &file, logits, models[i]);
        const double want = reference_loss(&file, f.n_targets);
        assert_true(fabs(loss / (double)f.n_targets - want) <= LOSS_TOLERANCE);
        double again = 0; /* without logits the head works in its own tile */
        assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &again, NULL));
        assert_true(fabs(again - loss) <= 1e-5 * loss);
        zn_free(logits);
        ref_close(&file);
        fixture_close(&f);
    }
}

/* A key bias shifts all scores of a query alike: softmax does not see it. */
static bool is_key_bias(const zn_model_spec *spec, const char *name, int64_t j)
{
    if (strstr(name, "k_proj.bias"))
        return true;
    if (strstr(name, "c_attn.bias"))
        return j >= spec->C && j < 2 * spec->C;
    return strstr(name, "query_key_value.bias") && j / spec->D % 3 == 1;
}

static void check_grad(const fixture *f, int param, const float *want, const char *model)
{
    const zn_param_spec *p = &f->fake.list.specs[param];
    double off = 0, norm = 0, noise = 0;
    for (int64_t j = 0; j < p->n_elems; j++) {
        const double g = (double)f->fake.grad[param][j], w = (double)want[j];
        if (is_key_bias(&f->spec, p->name, j)) {
            noise = fmax(noise, fabs(g - w));
        } else {
            off += (g - w) * (g - w);
            norm += w * w;
        }
    }
    if (!(sqrt(off) <= GRAD_TOLERANCE * sqrt(norm) && noise <= ZERO_GRAD_TOLERANCE))
        fail_msg("%s: gradient of %s is off by %g of its norm (key bias by %g)", model, p->name,
                 sqrt(off / norm), noise);
}

static void gradients_equal_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        fixture f;
        ref_file file, grads;
        double loss = 0;
        int n_checked = 0;
        fixture_open(&f, models[i]);
        ref_open(&file, models[i], "padded.safetensors");
        ref_open(&grads, models[i], "padded.grads.safetensors");
        fixture_reference_batch(&f, &file);
        fake_reset(&f.fake);
        assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1 / (float)f.n_targets, &loss));
        assert_true(fabs(loss / (double)f.n_targets - reference_loss(&file, f.n_targets)) <=
                    LOSS_TOLERANCE);
        for (int p = 0; p < f.fake.list.n_specs; p++) {
            float *want = ref_read(&grads, f.fake.list.specs[p].name, NULL);
            if (want)
                check_grad(&f, p, want, models[i]);
            n_checked += want != NULL;
            zn_free(want);
        }
        assert_int_equal(n_checked, (int)json_object_size(grads.header));
        ref_close(&grads);
        ref_close(&file);
        fixture_close(&f);
    }
}

static void every_unit_is_ready_once_head_first_and_embedding_last(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        fixture f;
        ref_file file;
        double loss = 0;
        fixture_open(&f, models[i]);
        ref_open(&file, models[i], "padded.safetensors");
        fixture_reference_batch(&f, &file);
        fake_reset(&f.fake);
        assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &loss));
        const int n = f.fake.list.n_units;
        assert_int_equal(f.fake.n_in_order, n);
        for (int u = 0; u < n; u++) {
            assert_int_equal(f.fake.ready_order[u], n - 1 - u);
            assert_int_equal(f.fake.in_use[u], 0);
            assert_int_equal(f.fake.n_uses[u], u == n - 1 || (u == 0 && !f.spec.tied) ? 1 : 2);
        }
        ref_close(&file);
        fixture_close(&f);
    }
}

/* Copies of all gradients, one after the other. */
static float *copy_grads(const fake_engine *fake)
{
    float *out = NULL;
    int64_t at = 0;
    assert_ok(
        zn_alloc_array(&out, (size_t)zn_param_list_elems(&fake->list, false), sizeof *out, "test"));
    for (int i = 0; i < fake->list.n_specs; i++) {
        const int64_t n = fake->list.specs[i].n_elems;
        memcpy(out + at, fake->grad[i], (size_t)n * sizeof *out);
        at += n;
    }
    return out;
}

static void checkpointing_changes_no_bit_even_under_dropout(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * N_MODELS; i++) {
        fixture f;
        ref_file file;
        float *grads[2];
        double loss[2] = {0, 0};
        fixture_open(&f, models[i / 2]);
        f.spec.embed_dropout = f.spec.attn_dropout = f.spec.resid_dropout = 0.2f;
        ref_open(&file, models[i / 2], "padded.safetensors");
        fixture_reference_batch(&f, &file);
        if (i % 2)
            fake_to_bf16(&f.fake);
        for (int on = 0; on < 2; on++) {
            fixture_model(&f, on, 1);
            fake_reset(&f.fake);
            assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &loss[on]));
            grads[on] = copy_grads(&f.fake);
        }
        assert_true(loss[0] == loss[1]);
        assert_memory_equal(grads[0], grads[1],
                            (size_t)zn_param_list_elems(&f.fake.list, false) * sizeof(float));
        double plain = 0;
        fixture_model(&f, false, 0);
        fake_reset(&f.fake);
        assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &plain));
        assert_true(fabs(plain - loss[0]) > 1e-3); /* dropout did something */
        zn_free(grads[0]);
        zn_free(grads[1]);
        ref_close(&file);
        fixture_close(&f);
    }
}

static void bf16_parameters_give_a_close_loss_and_close_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        fixture f;
        ref_file file;
        double exact = 0, rounded = 0, dot = 0, a2 = 0, b2 = 0;
        fixture_open(&f, models[i]);
        ref_open(&file, models[i], "padded.safetensors");
        fixture_reference_batch(&f, &file);
        fake_reset(&f.fake);
        assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &exact));
        float *a = copy_grads(&f.fake);
        fake_reset(&f.fake);
        fake_to_bf16(&f.fake);
        assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &rounded));
        float *b = copy_grads(&f.fake);
        for (int64_t j = 0; j < zn_param_list_elems(&f.fake.list, false); j++) {
            dot += (double)a[j] * (double)b[j];
            a2 += (double)a[j] * (double)a[j];
            b2 += (double)b[j] * (double)b[j];
        }
        assert_true(fabs(exact - rounded) <= 0.03 * (double)f.n_targets);
        assert_true(exact != rounded);
        assert_true(dot >= 0.995 * sqrt(a2 * b2));
        zn_free(a);
        zn_free(b);
        ref_close(&file);
        fixture_close(&f);
    }
}

static void gradients_are_added_and_nothing_is_allocated_twice(void **state)
{
    (void)state;
    fixture f;
    ref_file file;
    zn_mem_usage before, after;
    double loss = 0;
    fixture_open(&f, "llama");
    ref_open(&file, "llama", "padded.safetensors");
    fixture_reference_batch(&f, &file);
    fake_reset(&f.fake);
    assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &loss));
    float *once = copy_grads(&f.fake);
    memset(f.fake.n_ready, 0, sizeof f.fake.n_ready);
    f.fake.n_in_order = 0;
    zn_device_usage(f.dev, ZN_PLACE_DEVICE, &before);
    const int64_t n_allocs = zn_mem_alloc_count();
    assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &loss));
    assert_int_equal(zn_mem_alloc_count(), n_allocs);
    zn_device_usage(f.dev, ZN_PLACE_DEVICE, &after);
    assert_int_equal(after.n_allocs, before.n_allocs);
    float *twice = copy_grads(&f.fake);
    double off = 0, norm = 0;
    for (int64_t j = 0; j < zn_param_list_elems(&f.fake.list, false); j++) {
        const double d = (double)twice[j] - 2 * (double)once[j];
        off += d * d;
        norm += (double)once[j] * (double)once[j];
    }
    assert_true(sqrt(off) <= 1e-6 * sqrt(norm));
    zn_free(once);
    zn_free(twice);
    ref_close(&file);
    fixture_close(&f);
}

static void the_memory_that_is_told_is_the_memory_that_is_taken(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool on = i % 2 == 1;
        fixture f;
        ref_file file;
        zn_mem_usage usage;
        zn_model_memory_bytes bytes, wide;
        double loss = 0;
        fixture_open(&f, "gemma2");
        ref_open(&file, "gemma2", "padded.safetensors");
        fixture_reference_batch(&f, &file);
        fixture_model(&f, on, 1);
        fake_reset(&f.fake);
        if (i / 2)
            fake_to_bf16(&f.fake);
        const zn_dtype dtype = f.fake.hooks.param_dtype;
        assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &loss));
        zn_device_usage(f.dev, ZN_PLACE_DEVICE, &usage);
        const zn_model_options opts = {.activation_checkpointing = on, .dropout_scale = 1};
        zn_model_memory(&f.spec, &opts, f.batch.B, f.batch.T, dtype, 1, &bytes);
        zn_model_memory(&f.spec, &opts, f.batch.B, f.batch.T, ZN_DTYPE_F32, 1, &wide);
        assert_int_equal(usage.now[ZN_MEM_ACTIVATIONS], bytes.activations);
        assert_int_equal(usage.now[ZN_MEM_BUFFERS], bytes.buffers);
        assert_int_equal(zn_model_activation_bytes(&f.spec, &opts, f.batch.B, f.batch.T),
                         wide.activations);
        if (i == 2) /* every layer keeps attention, gate and up in 16 bits, one set is wide */
            assert_int_equal(wide.activations - bytes.activations,
                             f.batch.B * f.batch.T * (f.spec.H * f.spec.D + 2 * f.spec.F) *
                                 (2 * f.spec.L - 4));
        ref_close(&file);
        fixture_close(&f);
    }
}

static void frozen_parameters_get_no_gradient_and_change_no_other(void **state)
{
    (void)state;
    fixture f;
    ref_file file;
    double loss = 0;
    fixture_open(&f, "gpt_neox");
    ref_open(&file, "gpt_neox", "padded.safetensors");
    fixture_reference_batch(&f, &file);
    fake_reset(&f.fake);
    assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &loss));
    float *all = copy_grads(&f.fake);
    fake_reset(&f.fake);
    for (int p = 0; p < f.fake.list.n_specs; p++)
        f.fake.list.specs[p].trainable = p % 2;
    assert_ok(zn_model_train(f.model, &f.batch, &f.fake.hooks, 1, &loss));
    int64_t at = 0;
    for (int p = 0; p < f.fake.list.n_specs; p++) {
        const int64_t n = f.fake.list.specs[p].n_elems;
        if (p % 2)
            assert_memory_equal(all + at, f.fake.grad[p], (size_t)n * sizeof(float));
        else
            for (int64_t j = 0; j < n; j++)
                assert_true(f.fake.grad[p][j] == 0);
        at += n;
    }
    zn_free(all);
    ref_close(&file);
    fixture_close(&f);
}

static void last_logits_are_the_last_rows_of_all_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        fixture f;
        ref_file file;
        float *all = NULL, *last = NULL;
        double loss = 0;
        fixture_open(&f, models[i]);
        ref_open(&file, models[i], "padded.safetensors");
        fixture_reference_batch(&f, &file);
        f.batch.targets = NULL;
        const int64_t B = f.batch.B, T = f.batch.T, V = f.spec.V;
        assert_ok(zn_alloc_array(&all, (size_t)(B * T * V), sizeof *all, "test"));
        assert_ok(zn_alloc_array(&last, (size_t)(B * V), sizeof *last, "test"));
        assert_ok(zn_model_eval(f.model, &f.batch, &f.fake.hooks, &loss, all));
        assert_true(loss == 0);
        assert_ok(zn_model_last_logits(f.model, &f.batch, &f.fake.hooks, last));
        for (int64_t b = 0; b < B; b++)
            for (int64_t v = 0; v < V; v++)
                assert_true(fabsf(last[b * V + v] - all[((b * T) + T - 1) * V + v]) <= 1e-5f);
        zn_free(all);
        zn_free(last);
        ref_close(&file);
        fixture_close(&f);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(logits_and_loss_equal_the_reference),
    cmocka_unit_test(gradients_equal_the_reference),
    cmocka_unit_test(every_unit_is_ready_once_head_first_and_embedding_last),
    cmocka_unit_test(checkpointing_changes_no_bit_even_under_dropout),
    cmocka_unit_test(bf16_parameters_give_a_close_loss_and_close_gradients),
    cmocka_unit_test(gradients_are_added_and_nothing_is_allocated_twice),
    cmocka_unit_test(the_memory_that_is_told_is_the_memory_that_is_taken),
    cmocka_unit_test(frozen_parameters_get_no_gradient_and_change_no_other),
    cmocka_unit_test(last_logits_are_the_last_rows_of_all_logits),
};

ZN_TEST_MAIN(tests)
