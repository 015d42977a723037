/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>
#include <unistd.h>

#include "bench/bench_internal.h"

typedef struct seen {
    int n_rows, fail_at;
    char last[160];
    double value, limit, share;
} seen;

static zinc_status keep(void *context, const zn_bench_row *row)
{
    seen *s = context;
    if (++s->n_rows == s->fail_at)
        ZN_FAIL(ZINC_E_IO, "the reader went away");
    snprintf(s->last, sizeof s->last, "%s", row->name);
    s->value = row->value;
    s->limit = row->limit;
    s->share = row->share;
    return ZINC_OK;
}

static zinc_status bench(seen *s, const char *name, const char *model, const char *dir)
{
    const zn_bench_params params = {.names = &name,
                                    .n_names = 1,
                                    .n_threads = 2,
                                    .seconds = 0,
                                    .model = model,
                                    .dir = dir,
                                    .row = keep,
                                    .context = s};
    return zn_bench_run(&params);
}

static void a_row_is_chosen_by_the_beginning_of_its_name(void **state)
{
    (void)state;
    seen s = {0};
    assert_ok(bench(&s, "gemm.gpt2.o", NULL, "."));
    assert_int_equal(s.n_rows, 3);
    assert_string_equal(s.last, "gemm.gpt2.o.dw");
    s = (seen){0};
    assert_ok(bench(&s, "gemm.gpt2.o.dx", NULL, "."));
    assert_int_equal(s.n_rows, 1);
    s = (seen){0};
    assert_ok(bench(&s, "gemm.gpt2.o.d", NULL, ".")); /* whole words only */
    assert_int_equal(s.n_rows, 0);
}

static void a_share_is_the_value_over_the_limit(void **state)
{
    (void)state;
    seen s = {0};
    assert_ok(bench(&s, "gemm.smollm2.o.forward", "smollm2", "."));
    assert_true(s.value > 0 && s.limit > 0);
    assert_true(fabs(s.share - s.value / s.limit) < 1e-12 * s.share);
    s = (seen){0};
    assert_ok(bench(&s, "flops.fma_f32.1_thread", NULL, "."));
    assert_true(s.value > 0 && isnan(s.limit));
}

static void shapes_come_from_a_model_folder_too(void **state)
{
    (void)state;
    seen s = {0};
    assert_ok(bench(&s, "attention", ZN_TEST_DATA "/model/llama", "."));
    assert_int_equal(s.n_rows, 2);
    assert_string_equal(s.last, "attention.llama.backward");
    assert_true(s.value > 0 && s.share > 0);
    s = (seen){0};
    assert_ok(bench(&s, "norm", ZN_TEST_DATA "/model/llama", "."));
    assert_int_equal(s.n_rows, 4);
    assert_ok(bench(&s, "loss", ZN_TEST_DATA "/model/llama", "."));
    assert_int_equal(s.n_rows, 5);
}

static void collectives_run_between_ranks_of_this_process(void **state)
{
    (void)state;
    seen s = {0};
    assert_ok(bench(&s, "comm.thread.all_gather.bf16.256Ki_elements", NULL, "."));
    assert_ok(bench(&s, "comm.thread.reduce_scatter.bf16.256Ki_elements", NULL, "."));
    assert_int_equal(s.n_rows, 2);
    assert_true(s.value > 0 && s.limit > 0);
}

static void what_cannot_be_measured_is_said(void **state)
{
    (void)state;
    seen s = {0};
    assert_fails(bench(&s, "gem", NULL, "."), ZINC_E_INVALID, "nothing is called \"gem\"");
    assert_fails(bench(&s, "gemm", "no/such/model", "."), ZINC_E_IO, "no/such/model");
    assert_fails(bench(&s, "disk", NULL, "/no/such/folder"), ZINC_E_IO, "/no/such/folder");
    assert_int_equal(s.n_rows, 0);
}

static void an_error_of_the_reader_ends_the_run(void **state)
{
    (void)state;
    seen s = {.fail_at = 2};
    assert_fails(bench(&s, "gemm.smollm2.o", NULL, "."), ZINC_E_IO, "went away");
    assert_int_equal(s.n_rows, 2);
}

static void the_clock_warms_up_and_keeps_the_best(void **state)
{
    (void)state;
    const zn_bench_params params = {.seconds = 0};
    const zn_bench b = {.p = &params};
    zn_bench_clock clock = zn_bench_start(&b);
    int calls = 0;
    while (zn_bench_again(&clock))
        usleep(++calls == 3 ? 1000 : 20000);
    assert_int_equal(calls, ZN_BENCH_MIN_RUNS + 1);
    assert_true(clock.best >= 1e-3 && clock.best < 20e-3);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_row_is_chosen_by_the_beginning_of_its_name),
    cmocka_unit_test(a_share_is_the_value_over_the_limit),
    cmocka_unit_test(shapes_come_from_a_model_folder_too),
    cmocka_unit_test(collectives_run_between_ranks_of_this_process),
    cmocka_unit_test(what_cannot_be_measured_is_said),
    cmocka_unit_test(an_error_of_the_reader_ends_the_run),
    cmocka_unit_test(the_clock_warms_up_and_keeps_the_best),
};

ZN_TEST_MAIN(tests)
