/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's backward kernels against slopes of its forward ones (central differences). */
#include "kernels_test.h"

#define ROWS 3
#define COLS 7
#define SIZE (ROWS * COLS)

/* The inputs of a forward kernel in one array, so that each can be moved in turn; the loss is the
 * sum of out * dout. */
typedef struct probe {
    const zn_kernels *k;
    zn_stream *s;
    float in[4 * SIZE]; /* x or gate | w | b | up */
    float dout[SIZE];
    int kind; /* of the activation, or a variant */
} probe;

typedef void (*forward_fn)(const probe *p, float *out);

static double loss_of(const probe *p, forward_fn forward)
{
    float out[SIZE];
    double sum = 0;
    forward(p, out);
    for (int i = 0; i < SIZE; i++)
        sum += (double)out[i] * p->dout[i];
    return sum;
}

static void check_slopes(probe *p, const char *what, forward_fn forward, int first, int n,
                         const float *gradient)
{
    const float step = 1e-2f;
    for (int i = 0; i < n; i++) {
        float *x = &p->in[first + i];
        const float old = *x;
        *x = old + step;
        const double up = loss_of(p, forward);
        *x = old - step;
        const double slope = (up - loss_of(p, forward)) / (2 * (double)step);
        *x = old;
        if (fabs(slope - (double)gradient[i]) > 2e-3 * (1 + fabs(slope)))
            fail_msg("%s %d, element %d: slope %g, gradient %g", what, p->kind, i, slope,
                     (double)gradient[i]);
    }
}

static probe make_probe(kt *t)
{
    probe p = {.k = zn_kernels_for(ZN_ISA_REF), .s = t->s};
    for (int i = 0; i < 4 * SIZE; i++)
        p.in[i] = (float)zn_hash_normal(zn_hash_mix(1000 + (uint64_t)i));
    for (int i = 0; i < SIZE; i++)
        p.dout[i] = (float)zn_hash_normal(zn_hash_mix(2000 + (uint64_t)i));
    return p;
}

static void forward_layernorm(const probe *p, float *out)
{
    float mean[ROWS], rstd[ROWS];
    assert_ok(p->k->layernorm(p->s, out, mean, rstd, p->in, p->in + SIZE, p->in + 2 * SIZE, ROWS,
                              COLS, 1e-2f));
}

static void layernorm_backward_is_the_slope(void **state)
{
    kt *t = *state;
    probe p = make_probe(t);
    float out[SIZE], mean[ROWS], rstd[ROWS], dx[SIZE], dw[COLS] = {0}, db[COLS] = {0};
    float *scratch = kt_zeros(t, zn_norm_scratch(COLS));
    assert_ok(p.k->layernorm(p.s, out, mean, rstd, p.in, p.in + SIZE, p.in + 2 * SIZE, ROWS, COLS,
                             1e-2f));
    assert_ok(p.k->layernorm_backward(p.s, dx, false, dw, db, p.dout, p.in, p.in + SIZE, mean, rstd,
                                      ROWS, COLS, scratch));
    check_slopes(&p, "layernorm dx", forward_layernorm, 0, SIZE, dx);
    check_slopes(&p, "layernorm dw", forward_layernorm, SIZE, COLS, dw);
    check_slopes(&p, "layernorm db", forward_layernorm, 2 * SIZE, COLS, db);
    kt_clear(t);
}

static void forward_rmsnorm(const probe *p, float *out)
{
    float rstd[ROWS];
    assert_ok(p->k->rmsnorm(p->s, out, COLS, rstd, p->in, COLS, p->in + SIZE, (float)p->kind, ROWS,
                            COLS, 1e-2f));
}

static void rmsnorm_backward_is_the_slope(void **state)
{
    kt *t = *state;
    probe p = make_probe(t);
    float *scratch = kt_zeros(t, zn_norm_scratch(COLS));
    for (p.kind = 0; p.kind < 2; p.kind++) {
        float out[SIZE], rstd[ROWS], dx[SIZE], dw[COLS] = {0};
        const float offset = (float)p.kind;
        assert_ok(
            p.k->rmsnorm(p.s, out, COLS, rstd, p.in, COLS, p.in + SIZE, offset, ROWS, COLS, 1e-2f));
        assert_ok(p.k->rmsnorm_backward(p.s, dx, COLS, false, dw, p.dout, COLS, p.in, COLS,
                                        p.in + SIZE, offset, rstd, ROWS, COLS, scratch));
        check_slopes(&p, "rmsnorm dx", forward_rmsnorm, 0, SIZE, dx);
        check_slopes(&p, "rmsnorm dw", forward_rmsnorm, SIZE, COLS, dw);
    }
    kt_clear(t);
}

static void forward_act(const probe *p, float *out)
{
    assert_ok(p->k->act(p->s, (zn_act)p->kind, out, p->in, SIZE));
}

static void forward_glu(const probe *p, float *out)
{
    assert_ok(p->k->glu(p->s, (zn_act)p->kind, out, p->in, p->in + 3 * SIZE, SIZE));
}

static void activation_gradients_are_slopes(void **state)
{
    kt *t = *state;
    probe p = make_probe(t);
    for (int i = 0; i < SIZE; i++) /* the kink of relu apart */
        if (fabsf(p.in[i]) < 0.05f)
            p.in[i] = 0.5f;
    for (p.kind = 0; p.kind < 4; p.kind++) {
        float dx[SIZE], dup[SIZE];
        assert_ok(p.k->act_backward(p.s, (zn_act)p.kind, dx, p.dout, p.in, SIZE));
        check_slopes(&p, "activation", forward_act, 0, SIZE, dx);
        assert_ok(
            p.k->glu_backward(p.s, (zn_act)p.kind, dx, dup, p.dout, p.in, p.in + 3 * SIZE, SIZE));
        check_slopes(&p, "glu gate", forward_glu, 0, SIZE, dx);
        check_slopes(&p, "glu up", forward_glu, 3 * SIZE, SIZE, dup);
    }
}

static void forward_cross_entropy(const probe *p, float *out)
{
    const int32_t targets[ROWS] = {2, 0, 6};
    float logits[SIZE], loss[ROWS];
    memcpy(logits, p->in, sizeof logits);
    assert_ok(p->k->cross_entropy(p->s, logits, COLS, targets, loss, ROWS, COLS, p->kind ? 1.5f : 0,
                                  1, false));
    memset(out, 0, SIZE * sizeof *out);
    memcpy(out, loss, sizeof loss);
}

static void the_gradient_of_the_logits_is_the_slope_of_the_loss(void **state)
{
    kt *t = *state;
    probe p = make_probe(t);
    const int32_t targets[ROWS] = {2, 0, 6};
    for (int i = 0; i < ROWS; i++)
        p.dout[i] = 0.5f;
    for (p.kind = 0; p.kind < 2; p.kind++) {
        float logits[SIZE], loss[ROWS];
        memcpy(logits, p.in, sizeof logits);
        assert_ok(p.k->cross_entropy(p.s, logits, COLS, targets, loss, ROWS, COLS,
                                     p.kind ? 1.5f : 0, 0.5f, true));
        check_slopes(&p, "cross-entropy", forward_cross_entropy, 0, SIZE, logits);
    }
}

static void the_loss_of_equal_logits_is_the_log_of_the_vocabulary(void **state)
{
    kt *t = *state;
    for (int isa = 0; isa <= (int)zn_sys_isa(); isa++) {
        const zn_kernels *k = zn_kernels_for((zn_isa)isa);
        float logits[COLS] = {3, 3, 3, 3, 3, 3, 3}, loss;
        const int32_t target = 4;
        if (!k)
            continue;
        assert_ok(k->cross_entropy(t->s, logits, COLS, &target, &loss, 1, COLS, 0, 1, true));
        assert_true(fabsf(loss - logf(COLS)) < 1e-6f);
        assert_true(fabsf(logits[4] + 6.0f / 7) < 1e-6f);
        assert_true(fabsf(logits[0] - 1.0f / 7) < 1e-6f);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(layernorm_backward_is_the_slope),
    cmocka_unit_test(rmsnorm_backward_is_the_slope),
    cmocka_unit_test(activation_gradients_are_slopes),
    cmocka_unit_test(the_gradient_of_the_logits_is_the_slope_of_the_loss),
    cmocka_unit_test(the_loss_of_equal_logits_is_the_log_of_the_vocabulary),
};

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
