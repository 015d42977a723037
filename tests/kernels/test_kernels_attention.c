/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: every instruction set against the reference, the reference against finite
 * differences, and what must not change a result. */
#include "kernels_test.h"

/* A call with its tensors, in a fused buffer of rows [q | k | v | spare]. */
typedef struct call {
    zn_attention a;
    float *out, *lse, *dout, *dqkv, *scratch;
    int64_t stride, n_rows, n_out;
} call;

static call make_call(kt *t, int64_t B, int64_t T, int64_t H, int64_t K, int64_t D)
{
    call c = {.stride = (H + 2 * K) * D + 3, .n_rows = B * T, .n_out = B * T * H * D};
    const float *qkv = kt_random(t, c.n_rows * c.stride, 1);
    c.a = (zn_attention){.B = B,
                         .T = T,
                         .H = H,
                         .K = K,
                         .D = D,
                         .q = qkv,
                         .k = qkv + H * D,
                         .v = qkv + (H + K) * D,
                         .q_stride = c.stride,
                         .k_stride = c.stride,
                         .v_stride = c.stride,
                         .scale = 1 / sqrtf((float)D)};
    c.out = kt_zeros(t, c.n_out);
    c.lse = kt_zeros(t, B * H * T);
    c.dout = kt_random(t, c.n_out, 1);
    c.dqkv = kt_zeros(t, c.n_rows * c.stride);
    c.scratch = kt_zeros(t, zn_attention_scratch(&c.a, 4));
    return c;
}

static void run(const zn_kernels *k, zn_stream *s, const call *c)
{
    const zn_attention *a = &c->a;
    for (int64_t i = 0; i < zn_attention_scratch(a, 4); i++)
        c->scratch[i] = NAN; /* what it holds before must not matter */
    assert_ok(k->attention(s, a, c->out, c->lse, c->scratch));
    assert_ok(k->attention_backward(s, a, c->dout, c->out, c->lse, c->dqkv, c->dqkv + a->H * a->D,
                                    c->dqkv + (a->H + a->K) * a->D, c->scratch));
}

/* The same inputs, other outputs; the gradient starts as rubbish, for it must be overwritten. */
static call outputs_apart(kt *t, const call *c)
{
    call d = *c;
    d.out = kt_random(t, c->n_out, 1);
    d.lse = kt_random(t, c->a.B * c->a.H * c->a.T, 1);
    d.dqkv = kt_random(t, c->n_rows * c->stride, 1);
    for (int64_t n = 0; n < c->n_rows; n++) /* between the tensors nothing is written */
        for (int64_t i = c->stride - 3; i < c->stride; i++)
            d.dqkv[n * c->stride + i] = 0;
    return d;
}

static void compare(kt *t, const char *what, const call *c)
{
    run(zn_kernels_for(ZN_ISA_REF), t->s, c);
    KT_FOR_EACH_ISA(k)
    {
        const call d = outputs_apart(t, c);
        run(k, t->s, &d);
        kt_near(what, k->isa, d.out, c->out, c->n_out, 3e-6);
        kt_near(what, k->isa, d.lse, c->lse, c->a.B * c->a.H * c->a.T, 3e-6);
        kt_near(what, k->isa, d.dqkv, c->dqkv, c->n_rows * c->stride, 5e-6);
    }
    kt_clear(t);
}

static void attention_agrees_over_lengths_and_head_sizes(void **state)
{
    kt *t = *state;
    static const int64_t shape[][5] = {{1, 1, 1, 1, 1},    {2, 5, 2, 2, 8},   {1, 63, 2, 1, 12},
                                       {1, 64, 3, 3, 16},  {2, 65, 4, 2, 20}, {1, 97, 2, 2, 64},
                                       {1, 130, 3, 1, 60}, {1, 200, 2, 1, 5}, {1, 71, 1, 1, 130}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        const call c =
            make_call(t, shape[i][0], shape[i][1], shape[i][2], shape[i][3], shape[i][4]);
        compare(t, "attention", &c);
    }
}

static void attention_agrees_under_windows_caps_and_dropout(void **state)
{
    kt *t = *state;
    static const int64_t windows[] = {1, 7, 64, 100, 1000};
    for (int i = 0; i < 5; i++) {
        call c = make_call(t, 1, 150, 2, 1, 12);
        c.a.window = windows[i];
        compare(t, "windowed attention", &c);
    }
    static const int64_t sample[] = {12, 5};
    for (int i = 1; i < 4; i++) {
        call c = make_call(t, 2, 75, 2, 2, 8);
        c.a.softcap = i & 1 ? 1.5f : 0;
        c.a.dropout = i & 2 ? 0.2f : 0;
        c.a.dropout_seed = 77;
        c.a.sample = sample;
        compare(t, "capped or dropped attention", &c);
    }
}

static void masked_keys_and_other_segments_are_not_seen(void **state)
{
    kt *t = *state;
    for (int i = 1; i < 8; i++) {
        const int64_t T = 140;
        call c = make_call(t, 2, T, 2, 1, 8);
        uint8_t *mask = kt_bytes(t, 2 * T);
        int32_t *segment = kt_bytes(t, 2 * T * 4);
        for (int64_t j = 0; j < 2 * T; j++) {
            mask[j] = j >= 70 && j % 5 != 0; /* the first queries see nothing at all */
            segment[j] = (int32_t)(j / 33);
        }
        c.a.key_mask = i & 1 ? mask : NULL;
        c.a.segment = i & 2 ? segment : NULL;
        c.a.softcap = i & 4 ? 2.0f : 0;
        if (i & 1) {
            assert_ok(zn_kernels_get(t->dev)->attention(t->s, &c.a, c.out, c.lse, c.scratch));
            assert_true(c.lse[0] == -INFINITY);
            assert_true(c.out[0] == 0);
        }
        compare(t, "masked attention", &c);
    }
}

static double loss_of(kt *t, const call *c)
{
    double sum = 0;
    assert_ok(zn_kernels_for(ZN_ISA_REF)->attention(t->s, &c->a, c->out, c->lse, c->scratch));
    for (int64_t i = 0; i < c->n_out; i++)
        sum += (double)c->out[i] * c->dout[i];
    return sum;
}

static void check_nan(const zn_kernels *k, zn_stream *s, const call *c, int64_t first_query)
{
    const int64_t T = c->a.T, H = c->a.H, D = c->a.D;
    run(k, s, c);
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            const bool bad = h == 0 && t >= first_query;
            assert_true(isnan(c->lse[h * T + t]) == bad);
            for (int64_t i = 0; i < D; i++)
                assert_true(isnan(c->out[(t * H + h) * D + i]) == bad);
        }
    for (int64_t i = 0; i < D; i++)
        assert_true(isnan(c->dqkv[(T - 1) * c->stride + i]));
}

/* Head 0 of 2: NaN in every key, so that no score is a number, or in key 70 of 130 alone. */
static void scores_that_are_no_numbers_are_not_taken_for_unseen_keys(void **state)
{
    kt *t = *state;
    for (int one = 0; one < 2; one++) {
        const call c = make_call(t, 1, 130, 2, 2, 12);
        float *k = kt_zeros(t, c.n_rows * c.stride);
        memcpy(k, c.a.q, (size_t)(c.n_rows * c.stride) * sizeof *k);
        for (int64_t j = one ? 70 : 0; j < (one ? 71 : 130); j++)
            k[j * c.stride + 2 * 12 + 5] = NAN;
        call bad = c;
        bad.a.k = k + (c.a.k - c.a.q);
        check_nan(zn_kernels_for(ZN_ISA_REF), t->s, &bad, one ? 70 : 0);
        KT_FOR_EACH_ISA(kernels)
        {
            const call d = outputs_apart(t, &bad);
            check_nan(kernels, t->s, &d, one ? 70 : 0);
        }
        kt_clear(t);
    }
}

static void the_reference_gradient_is_the_slope_of_the_loss(void **state)
{
    kt *t = *state;
    call c = make_call(t, 1, 9, 2, 1, 4);
    float *qkv = kt_copy(t, c.a.q, c.n_rows * c.stride);
    c.a.q = qkv;
    c.a.k = qkv + 8;
    c.a.v = qkv + 12;
    c.a.softcap = 2;
    c.a.dropout = 0.25f;
    run(zn_kernels_for(ZN_ISA_REF), t->s, &c);
    const float step = 1e-2f;
    for (int64_t i = 0; i < c.n_rows * c.stride; i++) {
        if (i % c.stride >= c.stride - 3)
            continue;
        const float x = qkv[i];
        qkv[i] = x + step;
        const double up = loss_of(t, &c);
        qkv[i] = x - step;
        const double slope = (up - loss_of(t, &c)) / (2 * (double)step);
        qkv[i] = x;
        if (fabs(slope - (double)c.dqkv[i]) > 1e-3 * (1 + fabs(slope)))
            fail_msg("element %lld: slope %g, gradient %g", (long long)i, slope, (double)c.dqkv[i]);
    }
}

static void threads_and_batch_mates_change_no_bit(void **state)
{
    kt *t = *state;
    KT_FOR_EACH_ISA(k)
    {
        kt_use_threads(t, 1);
        const call c = make_call(t, 3, 170, 4, 2, 16), d = outputs_apart(t, &c);
        run(k, t->s, &c);
        kt_use_threads(t, 4);
        run(k, t->s, &d);
        kt_same_bits("attention on 4 threads", k->isa, d.out, c.out, c.n_out * 4);
        kt_same_bits("gradient on 4 threads", k->isa, d.dqkv, c.dqkv, c.n_rows * c.stride * 4);
        /* the last row of the batch alone, and only its first 100 tokens */
        call alone = c;
        alone.a.B = 1;
        alone.a.T = 100;
        alone.a.q += 2 * 170 * c.stride;
        alone.a.k += 2 * 170 * c.stride;
        alone.a.v += 2 * 170 * c.stride;
        alone.out = d.out;
        assert_ok(k->attention(t->s, &alone.a, alone.out, d.lse, c.scratch));
        kt_same_bits("attention of a prefix", k->isa, alone.out, c.out + 2 * 170 * 64,
                     100 * 64 * 4);
        kt_clear(t);
    }
}

/* The last queries alone, as generation asks for them, over a window, a cap and masked keys. */
static void the_tail_is_the_end_of_the_whole(void **state)
{
    kt *t = *state;
    static const int64_t n_queries[] = {1, 3, 70};
    for (int i = 0; i < 3; i++) {
        call c = make_call(t, 2, 70, 4, 2, 20);
        const int64_t n = n_queries[i], row = 4 * 20;
        float *q = kt_zeros(t, 2 * n * c.stride), *out = kt_random(t, 2 * n * row, 1);
        float *scores = kt_zeros(t, 70);
        uint8_t mask[2 * 70];
        for (int j = 0; j < 2 * 70; j++)
            mask[j] = j % 9 != 4;
        c.a.window = 33;
        c.a.softcap = 2;
        c.a.key_mask = mask;
        assert_ok(zn_kernels_for(ZN_ISA_REF)->attention(t->s, &c.a, c.out, c.lse, c.scratch));
        for (int64_t b = 0; b < 2; b++)
            memcpy(q + b * n * c.stride, c.a.q + (b * 70 + 70 - n) * c.stride,
                   (size_t)(n * c.stride) * sizeof *q);
        c.a.q = q;
        KT_FOR_EACH_ISA(k)
        {
            assert_ok(k->attention_tail(t->s, &c.a, n, out, scores));
            for (int64_t b = 0; b < 2; b++)
                kt_near("attention of the tail", k->isa, out + b * n * row,
                        c.out + (b * 70 + 70 - n) * row, n * row, 3e-6);
        }
        kt_clear(t);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_tail_is_the_end_of_the_whole),
    cmocka_unit_test(attention_agrees_over_lengths_and_head_sizes),
    cmocka_unit_test(attention_agrees_under_windows_caps_and_dropout),
    cmocka_unit_test(masked_keys_and_other_segments_are_not_seen),
    cmocka_unit_test(scores_that_are_no_numbers_are_not_taken_for_unseen_keys),
    cmocka_unit_test(the_reference_gradient_is_the_slope_of_the_loss),
    cmocka_unit_test(threads_and_batch_mates_change_no_bit),
};

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
