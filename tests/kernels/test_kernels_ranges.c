/* SPDX-License-Identifier: Apache-2.0 */
/* Bit rules: how a range is cut and how many threads work on it changes nothing. */
#include "kernels_test.h"

#define N 97 /* elements: several vectors and a tail, whatever the vector */

/* All element-wise kernels behind one signature: x and y are inputs, out receives. */
typedef void (*range_fn)(const zn_kernels *k, zn_stream *s, float *out, const float *x,
                         const float *y, int64_t n);

static void do_axpy(const zn_kernels *k, zn_stream *s, float *out, const float *x, const float *y,
                    int64_t n)
{
    memcpy(out, y, (size_t)n * 4);
    assert_ok(k->axpy(s, out, x, 0.37f, n));
}

static void do_scale(const zn_kernels *k, zn_stream *s, float *out, const float *x, const float *y,
                     int64_t n)
{
    assert_ok(k->add(s, out, x, y, n));
    assert_ok(k->scale(s, out, 1.3f, n));
    assert_ok(k->softcap(s, out, 2.0f, n));
}

static void do_act(const zn_kernels *k, zn_stream *s, float *out, const float *x, const float *y,
                   int64_t n)
{
    float part[N], dup[N];
    memset(out, 0, (size_t)n * 4);
    for (int i = 0; i < 4; i++) {
        assert_ok(k->act(s, (zn_act)i, part, x, n));
        assert_ok(k->add(s, out, out, part, n));
        assert_ok(k->act_backward(s, (zn_act)i, part, y, x, n));
        assert_ok(k->add(s, out, out, part, n));
        assert_ok(k->glu(s, (zn_act)i, part, x, y, n));
        assert_ok(k->add(s, out, out, part, n));
        assert_ok(k->glu_backward(s, (zn_act)i, part, dup, y, x, y, n));
        assert_ok(k->add(s, out, out, part, n));
        assert_ok(k->add(s, out, out, dup, n));
    }
}

static void do_convert(const zn_kernels *k, zn_stream *s, float *out, const float *x,
                       const float *y, int64_t n)
{
    (void)y;
    uint16_t h[N];
    assert_ok(k->convert(s, h, ZN_DTYPE_BF16, x, ZN_DTYPE_F32, 0.7f, n));
    assert_ok(k->convert(s, h, ZN_DTYPE_F16, h, ZN_DTYPE_BF16, 0.7f, n));
    assert_ok(k->convert(s, out, ZN_DTYPE_F32, h, ZN_DTYPE_F16, 1.1f, n));
}

static zn_update_args update_of(float *master, const float *grad, const float *scale, float *m,
                                float *v, int64_t n)
{
    const zn_update_args u = {.n = n,
                              .master = master,
                              .state = {m, v},
                              .grad = grad,
                              .grad_dtype = ZN_DTYPE_F32,
                              .grad_scale = scale,
                              .lr = 0.01f,
                              .weight_decay = 0.1f,
                              .eps = 1e-8f,
                              .beta1 = 0.9f,
                              .beta2 = 0.98f,
                              .bias1 = 0.3f,
                              .bias2 = 0.1f,
                              .momentum = 0.9f,
                              .dampening = 0.1f,
                              .trust_ratio = 0.7f};
    return u;
}

/* Every update once, one after another, on the same momenta. */
static void do_updates(const zn_kernels *k, zn_stream *s, float *out, const float *x,
                       const float *y, int64_t n)
{
    float m[N], v[N];
    double sums[2] = {0, 0};
    const float scale = 0.25f;
    memcpy(out, x, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        m[i] = 0.1f * x[i];
        v[i] = y[i] * y[i];
    }
    zn_update_args u = update_of(out, y, &scale, m, v, n);
    assert_ok(k->adam(s, &u));
    u.decoupled = true;
    assert_ok(k->adam(s, &u));
    assert_ok(k->lamb_sums(s, &u, sums));
    assert_ok(k->lamb_update(s, &u));
    assert_ok(k->lion(s, &u));
    u.nesterov = true;
    assert_ok(k->sgd(s, &u));
    u.state[0] = v;
    assert_ok(k->adagrad(s, &u));
    assert_ok(k->add(s, out, out, m, n));
    assert_ok(k->add(s, out, out, v, n));
}

static const struct {
    const char *name;
    range_fn fn;
} ranges[] = {{"axpy", do_axpy},
              {"add, scale, softcap", do_scale},
              {"activations", do_act},
              {"convert", do_convert},
              {"updates", do_updates}};

static void a_cut_at_any_offset_changes_no_bit(void **state)
{
    kt *t = *state;
    const float *x = kt_random(t, N, 2), *y = kt_random(t, N, 1);
    float *whole = kt_zeros(t, N), *parts = kt_zeros(t, N);
    for (int isa = 0; isa <= (int)zn_sys_isa(); isa++) {
        const zn_kernels *k = zn_kernels_for((zn_isa)isa);
        for (size_t r = 0; k && r < sizeof ranges / sizeof ranges[0]; r++) {
            ranges[r].fn(k, t->s, whole, x, y, N);
            for (int64_t cut = 0; cut <= N; cut++) {
                ranges[r].fn(k, t->s, parts, x, y, cut);
                ranges[r].fn(k, t->s, parts + cut, x + cut, y + cut, N - cut);
                kt_same_bits(ranges[r].name, k->isa, parts, whole, N * 4);
            }
        }
    }
}

/* Kernels that sum or run over rows, on sizes large enough to be shared out. */
typedef struct outcome {
    float *x, *out, *sums;
    double squares[3];
} outcome;

static outcome row_kernels(kt *t, const zn_kernels *k, const float *x, const float *w, int64_t rows,
                           int64_t C)
{
    const int64_t n = rows * C;
    outcome o = {
        .x = kt_copy(t, x, n), .out = kt_zeros(t, n), .sums = kt_zeros(t, 8 * C + 3 * rows)};
    float *mean = o.sums + 8 * C, *rstd = mean + rows, *scratch = kt_zeros(t, zn_norm_scratch(C));
    int32_t *ids = kt_bytes(t, rows * 4);
    for (int64_t i = 0; i < rows; i++)
        ids[i] = (int32_t)(zn_hash_mix((uint64_t)i) % 3);
    assert_ok(k->bias_grad(t->s, o.sums, x, rows, C));
    assert_ok(k->layernorm(t->s, o.out, mean, rstd, x, w, w, rows, C, 1e-5f));
    assert_ok(k->layernorm_backward(t->s, o.x, true, o.sums + C, o.sums + 2 * C, o.out, x, w, mean,
                                    rstd, rows, C, scratch));
    assert_ok(k->rmsnorm(t->s, o.out, C, rstd, x, C, w, 1, rows, C, 1e-5f));
    assert_ok(k->rmsnorm_backward(t->s, o.x, C, true, o.sums + 3 * C, o.out, C, x, C, w, 1, rstd,
                                  rows, C, scratch));
    assert_ok(k->add_bias(t->s, o.x, w, rows, C));
    assert_ok(k->embed_backward(t->s, o.sums + 4 * C, x, ids, rows, C, 3, 0.5f));
    assert_ok(k->dropout(t->s, o.out, o.out, rows, rows, C, NULL, 5, 0.1f));
    assert_ok(k->sum_squares(t->s, x, ZN_DTYPE_F32, n, o.squares));
    const float scale = 0.5f;
    float *m = kt_copy(t, x, n), *v = kt_zeros(t, n);
    const zn_update_args u = update_of(o.x, x, &scale, m, v, n);
    assert_ok(k->lamb_sums(t->s, &u, o.squares + 1));
    assert_ok(k->adam(t->s, &u));
    return o;
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    kt *t = *state;
    const int64_t rows = 401, C = 333;
    KT_FOR_EACH_ISA(k)
    {
        const float *x = kt_random(t, rows * C, 1), *w = kt_random(t, C, 1);
        kt_use_threads(t, 1);
        const outcome one = row_kernels(t, k, x, w, rows, C);
        for (int n_threads = 2; n_threads <= 5; n_threads += 3) {
            kt_use_threads(t, n_threads);
            const outcome many = row_kernels(t, k, x, w, rows, C);
            kt_same_bits("rows", k->isa, many.x, one.x, rows * C * 4);
            kt_same_bits("outputs", k->isa, many.out, one.out, rows * C * 4);
            kt_same_bits("sums over rows", k->isa, many.sums, one.sums, (8 * C + 3 * rows) * 4);
            kt_same_bits("squares", k->isa, many.squares, one.squares, sizeof one.squares);
        }
        kt_clear(t);
    }
    kt_use_threads(t, 1);
}

static void a_sum_of_squares_is_the_sum_of_its_blocks_in_order(void **state)
{
    kt *t = *state;
    const int64_t n = 5 * ZN_SUMSQ_BLOCK + 17;
    const float *x = kt_random(t, n, 1);
    for (int isa = 0; isa <= (int)zn_sys_isa(); isa++) {
        const zn_kernels *k = zn_kernels_for((zn_isa)isa);
        if (!k)
            continue;
        double whole, part, sum = 0;
        assert_ok(k->sum_squares(t->s, x, ZN_DTYPE_F32, n, &whole));
        for (int64_t i = 0; i < n; i += ZN_SUMSQ_BLOCK) {
            const int64_t left = n - i < ZN_SUMSQ_BLOCK ? n - i : ZN_SUMSQ_BLOCK;
            assert_ok(k->sum_squares(t->s, x + i, ZN_DTYPE_F32, left, &part));
            sum += part;
        }
        kt_same_bits("sum of squares", k->isa, &sum, &whole, sizeof sum);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_cut_at_any_offset_changes_no_bit),
    cmocka_unit_test(the_number_of_threads_changes_no_bit),
    cmocka_unit_test(a_sum_of_squares_is_the_sum_of_its_blocks_in_order),
};

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
