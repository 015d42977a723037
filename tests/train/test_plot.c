/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>

#include "train/plot.h"

static void a_ramp_is_drawn_from_corner_to_corner(void **state)
{
    (void)state;
    const double y[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const zn_plot_params params = {.title = "ramp",
                                   .x_label = "step",
                                   .width = 20,
                                   .height = 5,
                                   .ascii = true,
                                   .x_first = 1,
                                   .x_last = 9};
    zn_buf out = {0};
    assert_ok(zn_plot_append(&params, y, 9, &out));
    assert_string_equal(out.data, "ramp\n"
                                  "        8 +       **\n"
                                  "        4 +   ****\n"
                                  "        0 +***\n"
                                  "          +---------\n"
                                  "           1 step  9\n");
    zn_buf_fini(&out);
}

/* Columns of a line of UTF-8. */
static int n_columns(const char *line, const char *end)
{
    int n = 0;
    for (; line < end; line++)
        n += ((unsigned char)*line & 0xC0) != 0x80;
    return n;
}

static void lines_keep_to_the_width_and_height(void **state)
{
    (void)state;
    double y[1000];
    for (int i = 0; i < 1000; i++)
        y[i] = sin(i * 0.05) * 1e-3;
    const zn_plot_params params = {.x_label = "step", .width = 60, .height = 12, .x_last = 999};
    zn_buf out = {0};
    assert_ok(zn_plot_append(&params, y, 1000, &out));
    int n_lines = 0;
    for (const char *line = out.data; *line; n_lines++) {
        const char *end = strchr(line, '\n');
        assert_true(n_columns(line, end) <= 60);
        line = end + 1;
    }
    assert_int_equal(n_lines, 12);
    assert_non_null(strstr(out.data, "█"));
    zn_buf_fini(&out);
}

static void a_single_spike_among_many_points_is_not_lost(void **state)
{
    (void)state;
    static double y[100000];
    y[77777] = 1.0;
    const zn_plot_params params = {.ascii = true};
    zn_buf out = {0};
    assert_ok(zn_plot_append(&params, y, 100000, &out));
    const char *end = strchr(out.data, '\n');
    assert_non_null(memchr(out.data, '*', (size_t)(end - out.data))); /* in the top line */
    zn_buf_fini(&out);
}

static void values_that_are_not_finite_leave_gaps(void **state)
{
    (void)state;
    const double some[] = {1, NAN, INFINITY, 2, -INFINITY, 3}, none[] = {NAN, INFINITY};
    const double huge[] = {-1.7e308, 1.7e308}, constant[] = {5, 5, 5};
    const zn_plot_params params = {.ascii = true};
    zn_buf out = {0};
    assert_ok(zn_plot_append(&params, some, 6, &out));
    assert_null(strstr(out.data, "nan"));
    assert_null(strstr(out.data, "inf"));
    out.n = 0;
    assert_ok(zn_plot_append(&params, huge, 2, &out));
    assert_null(strstr(out.data, "inf"));
    out.n = 0;
    assert_ok(zn_plot_append(&params, constant, 3, &out));
    assert_non_null(strstr(out.data, "********"));
    out.n = 0;
    assert_ok(zn_plot_append(&params, none, 2, &out));
    assert_string_equal(out.data, "(no finite value to draw)\n");
    out.n = 0;
    assert_ok(zn_plot_append(&params, none, 0, &out));
    assert_string_equal(out.data, "(no finite value to draw)\n");
    zn_buf_fini(&out);
}

static void sizes_out_of_bounds_are_brought_to_them(void **state)
{
    (void)state;
    const double y[] = {1, 2};
    const int sizes[] = {-5, 1, 19, 401, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const zn_plot_params params = {
            .width = sizes[i], .height = sizes[i], .x_label = "a label that is longer than that"};
        zn_buf out = {0};
        assert_ok(zn_plot_append(&params, y, 2, &out));
        assert_true(out.n > 0);
        zn_buf_fini(&out);
    }
}

static void every_failed_allocation_is_an_error(void **state)
{
    (void)state;
    const double y[] = {1, 2, 3};
    const zn_plot_params params = {.title = "loss", .x_label = "step"};
    int n_failed = 0;
    for (zinc_status status = ZINC_E_NOMEM; status != ZINC_OK; n_failed++) {
        zn_buf out = {0};
        zn_mem_fail_after(n_failed);
        status = zn_plot_append(&params, y, 3, &out);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
        zn_buf_fini(&out);
    }
    assert_true(n_failed > 1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_ramp_is_drawn_from_corner_to_corner),
    cmocka_unit_test(lines_keep_to_the_width_and_height),
    cmocka_unit_test(a_single_spike_among_many_points_is_not_lost),
    cmocka_unit_test(values_that_are_not_finite_leave_gaps),
    cmocka_unit_test(every_failed_allocation_is_an_error),
    cmocka_unit_test(sizes_out_of_bounds_are_brought_to_them),
};

ZN_TEST_MAIN(tests)
