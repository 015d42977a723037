/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>

#include "train/progress.h"

static void capture(void *context, const char *text, size_t n)
{
    assert_ok(zn_buf_append(context, text, n));
}

static zn_metrics_row row_of(int64_t step)
{
    return (zn_metrics_row){.step = step,
                            .loss = (double)step,
                            .grad_norm = 1.5,
                            .lr = 5e-5,
                            .loss_scale = 1,
                            .tokens_per_s = 12300,
                            .step_ms = 50,
                            .mem_device_peak = (int64_t)1288490189};
}

static void run_steps(const zn_progress_params *params, int64_t from, int64_t to)
{
    zn_progress *progress = NULL;
    assert_ok(zn_progress_create(params, &progress));
    for (int64_t step = from; step <= to; step++) {
        const zn_metrics_row row = row_of(step);
        assert_ok(zn_progress_step(progress, &row));
    }
    zn_progress_destroy(progress);
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)) != NULL; p += strlen(part))
        n++;
    return n;
}

static void plain_lines_come_every_logging_steps_with_the_mean_loss(void **state)
{
    (void)state;
    zn_buf out = {0};
    const zn_progress_params params = {.total = 7,
                                       .log_every = 3,
                                       .flops_per_token = 1e6,
                                       .peak_flops = 2e10,
                                       .write = capture,
                                       .context = &out};
    run_steps(&params, 1, 7);
    assert_string_equal(
        out.data,
        "step 3/7  loss 2.0000  grad_norm 1.5  lr 5e-05  12.3k tokens/s  62% of peak  1.2 GiB  "
        "eta 0s\n"
        "step 6/7  loss 5.0000  grad_norm 1.5  lr 5e-05  12.3k tokens/s  62% of peak  1.2 GiB  "
        "eta 0s\n"
        "step 7/7  loss 7.0000  grad_norm 1.5  lr 5e-05  12.3k tokens/s  62% of peak  1.2 GiB\n");
    zn_buf_fini(&out);
}

static void a_terminal_sees_one_line_redrawn_ten_times_a_second(void **state)
{
    (void)state;
    zn_buf out = {0};
    const zn_progress_params params = {
        .terminal = true, .width = 120, .total = 100, .write = capture, .context = &out};
    run_steps(&params, 1, 100); /* 5 s of steps */
    const int n_drawn = count(out.data, "\r");
    assert_true(n_drawn >= 45 && n_drawn <= 55);
    assert_int_equal(count(out.data, "\n"), 1);
    assert_non_null(strstr(out.data, "\r100% ████████████████ 100/100  loss 100.0000  12.3k tok/s"
                                     "  1.2 GiB\033[K\n"));
    zn_buf_fini(&out);
}

static void steps_per_print_gives_plain_lines_on_a_terminal_too(void **state)
{
    (void)state;
    zn_buf out = {0};
    zn_progress_params params = {.print_every = 4, .total = 8, .write = capture, .context = &out};
    run_steps(&params, 1, 8);
    assert_int_equal(count(out.data, "\n"), 2);
    assert_int_equal(count(out.data, "step 4/8  loss 2.5000"), 1);
    assert_int_equal(count(out.data, "step 8/8  loss 6.5000"), 1);
    out.n = 0;
    params.terminal = true;
    run_steps(&params, 1, 8);
    assert_int_equal(count(out.data, "\r\033[Kstep 4/8  loss 2.5000"), 1);
    assert_int_equal(count(out.data, "\r\033[Kstep 8/8  loss 6.5000"), 1);
    assert_int_equal(count(out.data, "\n"), 3); /* the drawn line's end too */
    zn_buf_fini(&out);
}

static void a_narrow_terminal_gets_less_and_never_wraps(void **state)
{
    (void)state;
    for (int width = 24; width <= 100; width += 4) {
        zn_buf out = {0};
        const zn_progress_params params = {
            .terminal = true, .width = width, .total = 100, .write = capture, .context = &out};
        run_steps(&params, 1, 1);
        int columns = 0;
        for (const char *p = out.data + 1; *p != '\033'; p++)
            columns += ((unsigned char)*p & 0xC0) != 0x80;
        assert_true(columns < width);
        assert_int_equal(width >= 72, strstr(out.data, "eta 5s") != NULL);
        zn_buf_fini(&out);
    }
}

static void a_note_stands_above_the_drawn_line(void **state)
{
    (void)state;
    zn_buf out = {0};
    const zn_progress_params params = {
        .terminal = true, .width = 40, .total = 9, .write = capture, .context = &out};
    zn_progress *progress = NULL;
    const zn_metrics_row row = row_of(3);
    assert_ok(zn_progress_create(&params, &progress));
    assert_ok(zn_progress_note(progress, "before"));
    assert_ok(zn_progress_step(progress, &row));
    const size_t at = out.n;
    assert_ok(zn_progress_note(progress, "saved checkpoint-3"));
    assert_memory_equal(out.data, "before\n", 7);
    static const char want[] = "\r\033[Ksaved checkpoint-3\n\r 33% ";
    assert_int_equal(strncmp(out.data + at, want, strlen(want)), 0);
    zn_progress_destroy(progress);
    zn_buf_fini(&out);
}

static void a_skipped_step_says_so_and_broken_numbers_stay_readable(void **state)
{
    (void)state;
    zn_buf out = {0};
    const zn_progress_params params = {
        .total = 10, .log_every = 1, .write = capture, .context = &out};
    zn_progress *progress = NULL;
    zn_metrics_row row = row_of(4);
    row.overflow = true;
    row.loss = NAN;
    row.loss_scale = 65536;
    row.step_ms = row.tokens_per_s = NAN;
    assert_ok(zn_progress_create(&params, &progress));
    assert_ok(zn_progress_step(progress, &row));
    assert_string_equal(out.data, "step 4/10  skipped (overflow at scale 65536)  lr 5e-05  "
                                  "? tokens/s  1.2 GiB  eta ?\n");
    zn_progress_destroy(progress);
    zn_buf_fini(&out);
}

static void times_read_as_people_write_them(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{0, "0s"},     {59.4, "59s"},      {60, "1:00"},
                 {205, "3:25"}, {3723, "1:02:03"},  {86400.0 * 4 + 3 * 3600, "4d 03h"},
                 {-1, "?"},     {(double)NAN, "?"}, {(double)INFINITY, "?"}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        zn_buf out = {0};
        assert_ok(zn_progress_append_time(&out, times[i].seconds));
        assert_string_equal(out.data, times[i].text);
        zn_buf_fini(&out);
    }
}

static void drop(void *context, const char *text, size_t n)
{
    (void)context;
    assert_int_equal(text[0] == '\0', n == 0);
}

static void every_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    const zn_progress_params params = {.terminal = true, .total = 9, .write = drop};
    int n_failed = 0;
    for (zinc_status status = ZINC_E_NOMEM; status != ZINC_OK; n_failed++) {
        zn_progress *progress = NULL;
        const zn_metrics_row row = row_of(1);
        zn_mem_fail_after(n_failed);
        status = zn_progress_create(&params, &progress);
        if (status == ZINC_OK)
            status = zn_progress_step(progress, &row);
        if (status == ZINC_OK)
            status = zn_progress_note(progress, "evaluated");
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
        zn_progress_destroy(progress);
    }
    assert_true(n_failed > 2);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(plain_lines_come_every_logging_steps_with_the_mean_loss),
    cmocka_unit_test(a_terminal_sees_one_line_redrawn_ten_times_a_second),
    cmocka_unit_test(steps_per_print_gives_plain_lines_on_a_terminal_too),
    cmocka_unit_test(a_narrow_terminal_gets_less_and_never_wraps),
    cmocka_unit_test(a_note_stands_above_the_drawn_line),
    cmocka_unit_test(a_skipped_step_says_so_and_broken_numbers_stay_readable),
    cmocka_unit_test(every_failed_allocation_is_an_error_and_leaks_nothing),
    cmocka_unit_test(times_read_as_people_write_them),
};

ZN_TEST_MAIN(tests)
