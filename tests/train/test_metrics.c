/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>
#include <unistd.h>

#include "base/fs.h"
#include "train/metrics.h"

/* A file of its own for each test. */
static int make_path(void **state)
{
    static char path[64];
    strcpy(path, "/tmp/zn_metrics_XXXXXX");
    const int fd = mkstemp(path);
    if (fd < 0)
        return -1;
    close(fd);
    *state = path;
    return 0;
}

static int remove_path(void **state)
{
    return unlink(*state);
}

static zn_metrics_row row_of(int64_t step)
{
    return (zn_metrics_row){.step = step,
                            .epoch = 0.25 * (double)step,
                            .loss = 1.0 / (double)step,
                            .grad_norm = 0.1,
                            .lr = 5e-5,
                            .loss_scale = 65536,
                            .tokens = 2048,
                            .tokens_per_s = 12345.678,
                            .step_ms = 165.9,
                            .mem_device_peak = 123456789012,
                            .mem_host_peak = 42};
}

static void write_steps(const char *path, int64_t resume_step, int64_t from, int64_t to)
{
    zn_metrics *metrics = NULL;
    assert_ok(zn_metrics_open(path, resume_step, &metrics));
    for (int64_t step = from; step <= to; step++) {
        const zn_metrics_row row = row_of(step);
        assert_ok(zn_metrics_write(metrics, &row));
    }
    zn_metrics_close(metrics);
}

static void append_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void a_row_is_the_documented_object(void **state)
{
    (void)state;
    zn_buf out = {0};
    zn_metrics_row row = row_of(2);
    row.overflow = true;
    row.grad_norm = INFINITY;
    row.loss = NAN;
    assert_ok(zn_metrics_append_json(&row, &out));
    assert_string_equal(out.data,
                        "{\"step\":2,\"epoch\":0.5,\"loss\":null,\"grad_norm\":null,\"lr\":5e-05,"
                        "\"loss_scale\":65536,\"overflow\":true,\"tokens\":2048,"
                        "\"tokens_per_s\":12345.678,\"step_ms\":165.9,"
                        "\"mem_device_peak\":123456789012,\"mem_host_peak\":42}");
    zn_buf_fini(&out);
}

static void rows_read_back_as_they_were_written(void **state)
{
    const char *path = *state;
    zn_metrics_row *rows = NULL;
    int64_t n = 0;
    write_steps(path, -1, 1, 300);
    assert_ok(zn_metrics_read(path, &rows, &n));
    assert_int_equal(n, 300);
    for (int64_t i = 0; i < n; i++) {
        const zn_metrics_row want = row_of(i + 1);
        assert_int_equal(rows[i].step, want.step);
        assert_true(rows[i].loss == want.loss && rows[i].tokens_per_s == want.tokens_per_s);
        assert_int_equal(rows[i].mem_device_peak, want.mem_device_peak);
    }
    zn_free(rows);
}

static void every_row_is_in_the_file_as_soon_as_it_is_written(void **state)
{
    const char *path = *state;
    zn_metrics *metrics = NULL;
    assert_ok(zn_metrics_open(path, -1, &metrics));
    for (int64_t step = 1; step <= 3; step++) {
        const zn_metrics_row row = row_of(step);
        zn_metrics_row *rows = NULL;
        int64_t n = 0;
        assert_ok(zn_metrics_write(metrics, &row));
        assert_ok(zn_metrics_read(path, &rows, &n));
        assert_int_equal(n, step);
        zn_free(rows);
    }
    zn_metrics_close(metrics);
}

static void a_resumed_run_cuts_back_to_its_step_and_appends(void **state)
{
    const char *path = *state;
    zn_buf unbroken = {0}, resumed = {0};
    write_steps(path, -1, 1, 20);
    assert_ok(zn_fs_read(path, 0, &unbroken));
    write_steps(path, -1, 1, 13);
    append_text(path, "{\"step\":14,\"los"); /* killed in the middle of a row */
    write_steps(path, 10, 11, 20);
    assert_ok(zn_fs_read(path, 0, &resumed));
    assert_string_equal(resumed.data, unbroken.data);
    write_steps(path, 0, 1, 0); /* resumed before the first step: nothing is kept */
    resumed.n = 0;
    zn_buf_fini(&resumed);
    assert_ok(zn_fs_read(path, 0, &resumed));
    assert_int_equal(resumed.n, 0);
    zn_buf_fini(&resumed);
    zn_buf_fini(&unbroken);
}

static void a_new_run_starts_an_old_file_anew(void **state)
{
    const char *path = *state;
    zn_metrics_row *rows = NULL;
    int64_t n = 0;
    write_steps(path, -1, 1, 9);
    write_steps(path, -1, 1, 2);
    assert_ok(zn_metrics_read(path, &rows, &n));
    assert_int_equal(n, 2);
    zn_free(rows);
}

static void a_line_that_is_no_row_is_named_when_read_and_cut_when_resumed(void **state)
{
    const char *path = *state;
    zn_metrics_row *rows = NULL;
    int64_t n = 0;
    write_steps(path, -1, 1, 2);
    append_text(path, "[1, 2]\n");
    assert_fails(zn_metrics_read(path, &rows, &n), ZINC_E_FORMAT, ":3: not a metrics row");
    assert_null(rows);
    write_steps(path, 5, 6, 6);
    assert_ok(zn_metrics_read(path, &rows, &n));
    assert_int_equal(n, 3);
    assert_int_equal(rows[2].step, 6);
    zn_free(rows);
}

static void a_file_that_cannot_be_written_is_an_error_with_its_path(void **state)
{
    (void)state;
    zn_metrics *metrics = NULL;
    assert_fails(zn_metrics_open("/nonexistent/metrics.jsonl", -1, &metrics), ZINC_E_IO,
                 "/nonexistent/metrics.jsonl");
    assert_null(metrics);
}

static void every_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    const char *path = *state;
    write_steps(path, -1, 1, 3);
    int n_failed = 0;
    for (zinc_status status = ZINC_E_NOMEM; status != ZINC_OK; n_failed++) {
        zn_metrics *metrics = NULL;
        zn_metrics_row *rows = NULL;
        const zn_metrics_row row = row_of(4);
        int64_t n = 0;
        zn_mem_fail_after(n_failed);
        status = zn_metrics_open(path, 3, &metrics);
        if (status == ZINC_OK)
            status = zn_metrics_write(metrics, &row);
        if (status == ZINC_OK)
            status = zn_metrics_read(path, &rows, &n);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
        zn_metrics_close(metrics);
        zn_free(rows);
    }
    assert_true(n_failed > 4);
}

#define WITH_FILE(test) cmocka_unit_test_setup_teardown(test, make_path, remove_path)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_row_is_the_documented_object),
    WITH_FILE(rows_read_back_as_they_were_written),
    WITH_FILE(every_row_is_in_the_file_as_soon_as_it_is_written),
    WITH_FILE(a_resumed_run_cuts_back_to_its_step_and_appends),
    WITH_FILE(a_new_run_starts_an_old_file_anew),
    WITH_FILE(a_line_that_is_no_row_is_named_when_read_and_cut_when_resumed),
    WITH_FILE(every_failed_allocation_is_an_error_and_leaks_nothing),
    cmocka_unit_test(a_file_that_cannot_be_written_is_an_error_with_its_path),
};

ZN_TEST_MAIN(tests)
