/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer kernels against the reference, for every gradient and parameter type. */
#include "kernels_test.h"

typedef struct update {
    zn_update_args u;
    int64_t n;
    float scale;
} update;

typedef zinc_status (*update_fn)(const zn_kernels *k, zn_stream *s, const zn_update_args *u);

static zinc_status run_adam(const zn_kernels *k, zn_stream *s, const zn_update_args *u)
{
    return k->adam(s, u);
}
static zinc_status run_sgd(const zn_kernels *k, zn_stream *s, const zn_update_args *u)
{
    return k->sgd(s, u);
}
static zinc_status run_adagrad(const zn_kernels *k, zn_stream *s, const zn_update_args *u)
{
    return k->adagrad(s, u);
}
static zinc_status run_lion(const zn_kernels *k, zn_stream *s, const zn_update_args *u)
{
    return k->lion(s, u);
}
static zinc_status run_lamb(const zn_kernels *k, zn_stream *s, const zn_update_args *u)
{
    double sums[2] = {1, 2};
    ZN_TRY(k->lamb_sums(s, u, sums));
    zn_update_args v = *u;
    v.trust_ratio = (float)sqrt((sums[0] - 1) / (sums[1] - 2));
    return k->lamb_update(s, &v);
}

static const struct {
    const char *name;
    update_fn fn;
} updates[] = {{"adam", run_adam},
               {"sgd", run_sgd},
               {"adagrad", run_adagrad},
               {"lion", run_lion},
               {"lamb", run_lamb}};

static const zn_dtype types[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};

/* A copy of `u` with its own master, states and 16-bit output. */
static zn_update_args apart(kt *t, const zn_update_args *u)
{
    zn_update_args v = *u;
    v.master = kt_copy(t, u->master, u->n);
    v.state[0] = kt_copy(t, u->state[0], u->n);
    v.state[1] = kt_copy(t, u->state[1], u->n);
    v.out16 = u->out16 ? kt_bytes(t, u->n * 2 + 64) : NULL;
    return v;
}

static void compare(kt *t, const char *name, update_fn fn, const zn_update_args *u)
{
    const zn_update_args want = apart(t, u);
    assert_ok(fn(zn_kernels_for(ZN_ISA_REF), t->s, &want));
    KT_FOR_EACH_ISA(k)
    {
        const zn_update_args got = apart(t, u);
        assert_ok(fn(k, t->s, &got));
        kt_near(name, k->isa, got.master, want.master, u->n, 1e-6);
        kt_near(name, k->isa, got.state[0], want.state[0], u->n, 1e-6);
        kt_near(name, k->isa, got.state[1], want.state[1], u->n, 1e-6);
        if (!u->out16)
            continue;
        /* exactly the rounded master, and nothing beyond */
        uint16_t *rounded = kt_bytes(t, u->n * 2 + 64);
        assert_ok(zn_kernels_for(ZN_ISA_REF)
                      ->convert(t->s, rounded, u->out_dtype, got.master, ZN_DTYPE_F32, 1, u->n));
        kt_same_bits(name, k->isa, got.out16, rounded, u->n * 2 + 64);
    }
}

static void updates_agree_for_every_type_and_variant(void **state)
{
    kt *t = *state;
    static const int64_t lengths[] = {1, 15, 16, 33, 1027};
    for (int variant = 0; variant < 5 * 3 * 4; variant++) {
        const int64_t n = lengths[variant % 5];
        const zn_dtype grad_dtype = types[variant / 5 % 3];
        const float scale = 0.125f;
        const float *g = kt_random(t, n, 4);
        void *grad = kt_bytes(t, n * 4);
        assert_ok(
            zn_kernels_for(ZN_ISA_REF)->convert(t->s, grad, grad_dtype, g, ZN_DTYPE_F32, 1, n));
        zn_update_args u = {.n = n,
                            .master = kt_random(t, n, 1),
                            .state = {kt_random(t, n, 0.1), kt_random(t, n, 0.1)},
                            .grad = grad,
                            .grad_dtype = grad_dtype,
                            .out_dtype = variant & 1 ? ZN_DTYPE_BF16 : ZN_DTYPE_F16,
                            .grad_scale = &scale,
                            .lr = 0.01f,
                            .weight_decay = 0.1f,
                            .eps = 1e-6f,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .bias1 = 0.271f,
                            .bias2 = 0.1426f,
                            .decoupled = variant & 1,
                            .momentum = variant & 4 ? 0.9f : 0,
                            .dampening = 0.2f,
                            .nesterov = variant & 1,
                            .first = variant & 2,
                            .eps_inside_sqrt = variant & 2};
        for (int64_t i = 0; i < n; i++) { /* second moments and Adagrad's sums */
            u.state[1][i] *= u.state[1][i];
            u.state[0][i] = fabsf(u.state[0][i]);
        }
        u.out16 = variant & 2 ? grad : NULL; /* apart() replaces it */
        for (size_t i = 0; i < sizeof updates / sizeof updates[0]; i++) {
            zn_update_args v = u;
            compare(t, updates[i].name, updates[i].fn, &v);
            if (t->n_buffers > KT_MAX_BUFFERS - 20) { /* keep what `u` points at: the first five */
                while (t->n_buffers > 5)
                    zn_free(t->buffers[--t->n_buffers]);
            }
        }
        kt_clear(t);
    }
}

static void a_large_adam_writes_its_16_bit_copy_around_the_cache(void **state)
{
    kt *t = *state;
    const int64_t n = (1 << 20) + 37;
    zn_update_args u = {.n = n,
                        .master = kt_random(t, n, 1),
                        .state = {kt_zeros(t, n), kt_zeros(t, n)},
                        .grad = kt_random(t, n, 1),
                        .grad_dtype = ZN_DTYPE_F32,
                        .out_dtype = ZN_DTYPE_BF16,
                        .out16 = kt_zeros(t, 1), /* apart() replaces it */
                        .lr = 0.01f,
                        .eps = 1e-8f,
                        .beta1 = 0.9f,
                        .beta2 = 0.999f,
                        .bias1 = 0.1f,
                        .bias2 = 0.001f};
    kt_use_threads(t, 2);
    compare(t, "large adam", run_adam, &u);
}

/* Exactly what the whole master becomes, whatever the update, the kernels and the length. */
static void a_master_in_halves_moves_bit_for_bit_like_a_whole_one(void **state)
{
    kt *t = *state;
    const float scale = 0.37f;
    kt_clear(t);
    for (int64_t n = 1; n < 200; n += 33) {
        const zn_update_args u = {.n = n,
                                  .master = kt_random(t, n, 1),
                                  .state = {kt_zeros(t, n), kt_zeros(t, n)},
                                  .grad = kt_random(t, n, 1),
                                  .grad_dtype = ZN_DTYPE_F32,
                                  .out_dtype = ZN_DTYPE_BF16,
                                  .out16 = kt_zeros(t, 1), /* apart() replaces it */
                                  .grad_scale = &scale,
                                  .lr = 0.01f,
                                  .weight_decay = 0.1f,
                                  .eps = 1e-8f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.999f,
                                  .bias1 = 0.1f,
                                  .bias2 = 0.001f,
                                  .decoupled = true,
                                  .momentum = 0.9f};
        for (size_t i = 0; i < sizeof updates / sizeof updates[0]; i++) {
            while (t->n_buffers > 5) /* what `u` points at */
                zn_free(t->buffers[--t->n_buffers]);
            KT_FOR_EACH_ISA(k)
            {
                const zn_update_args whole = apart(t, &u);
                zn_update_args halves = apart(t, &u);
                halves.master = NULL;
                halves.low = kt_bytes(t, n * 2 + 64);
                for (int64_t e = 0; e < n; e++) {
                    ((uint16_t *)halves.out16)[e] = zn_f32_to_bf16(u.master[e]);
                    halves.low[e] = zn_f32_low(u.master[e]);
                }
                assert_ok(updates[i].fn(k, t->s, &whole));
                assert_ok(updates[i].fn(k, t->s, &halves));
                kt_same_bits(updates[i].name, k->isa, halves.out16, whole.out16, n * 2 + 64);
                for (int64_t e = 0; e < n; e++) {
                    const float joined = zn_f32_join(((uint16_t *)halves.out16)[e], halves.low[e]);
                    assert_memory_equal(&joined, &whole.master[e], sizeof joined);
                }
            }
        }
        kt_clear(t);
    }
}

static void parameters_move_against_the_gradient_as_the_paper_says(void **state)
{
    kt *t = *state;
    const zn_kernels *k = zn_kernels_for(ZN_ISA_REF);
    float p = 1, m = 0, v = 0, g = 3;
    zn_update_args u = {.n = 1,
                        .master = &p,
                        .state = {&m, &v},
                        .grad = &g,
                        .lr = 0.1f,
                        .beta1 = 0.9f,
                        .beta2 = 0.999f,
                        .bias1 = 1 - 0.9f,
                        .bias2 = 1 - 0.999f};
    assert_ok(k->adam(t->s, &u)); /* the first step of Adam is lr, whatever the gradient */
    assert_true(fabsf(p - 0.9f) < 1e-6f);
    p = 1, m = 0;
    u.weight_decay = 0.5f;
    assert_ok(k->lion(t->s, &u)); /* 1 * (1 - 0.05) - 0.1 */
    assert_true(fabsf(p - 0.85f) < 1e-6f);
    p = 1, m = 5;
    u.weight_decay = 0;
    u.momentum = 0.9f;
    u.first = true;
    assert_ok(k->sgd(t->s, &u)); /* the buffer starts as the gradient */
    assert_true(fabsf(p - 0.7f) < 1e-6f);
    assert_true(m == 3);
}

static void a_type_without_arithmetic_is_refused_by_name(void **state)
{
    kt *t = *state;
    float x = 0;
    zn_update_args u = {.n = 1, .master = &x, .grad = &x, .grad_dtype = ZN_DTYPE_I32};
    for (int isa = 0; isa <= (int)zn_sys_isa(); isa++) {
        const zn_kernels *k = zn_kernels_for((zn_isa)isa);
        if (!k)
            continue;
        assert_fails(k->adam(t->s, &u), ZINC_E_INVALID, "int32");
        assert_fails(k->convert(t->s, &x, ZN_DTYPE_F32, &x, ZN_DTYPE_I64, 1, 1), ZINC_E_INVALID,
                     "convert");
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(updates_agree_for_every_type_and_variant),
    cmocka_unit_test(a_large_adam_writes_its_16_bit_copy_around_the_cache),
    cmocka_unit_test(a_master_in_halves_moves_bit_for_bit_like_a_whole_one),
    cmocka_unit_test(parameters_move_against_the_gradient_as_the_paper_says),
    cmocka_unit_test(a_type_without_arithmetic_is_refused_by_name),
};

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
