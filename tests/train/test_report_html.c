/* SPDX-License-Identifier: Apache-2.0 */
/* The page about a run: that it has the values, escapes names, and needs nothing from outside. */
#include "zn_test.h"

#include <math.h>
#include <unistd.h>

#include "base/fs.h"
#include "train/metrics.h"
#include "train/report_html.h"
#include "train/svg_chart.h"

#define N_STEPS 60

static const char *const names[] = {"metrics.jsonl", "eval.jsonl", "run.json"};

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(zn_fs_write_atomic(path, text, strlen(text)));
}

static void write_metrics(const char *dir, double first_loss, double loss_scale)
{
    char path[160];
    zn_metrics *metrics = NULL;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_ok(zn_metrics_open(path, -1, &metrics));
    for (int64_t step = 1; step <= N_STEPS; step++) {
        const bool skipped = step == 2;
        const zn_metrics_row row = {.step = step,
                                    .loss = first_loss / (double)step,
                                    .grad_norm = skipped ? (double)INFINITY : 2.5,
                                    .lr = 3e-4,
                                    .loss_scale = loss_scale,
                                    .overflow = skipped,
                                    .tokens = 1000,
                                    .tokens_per_s = 4321,
                                    .step_ms = 2000,
                                    .mem_device_peak = 1500000000,
                                    .mem_host_peak = 2500000};
        assert_ok(zn_metrics_write(metrics, &row));
    }
    zn_metrics_close(metrics);
}

/* A folder whose name has a character that HTML does not like. */
static void make_run(char *dir, const char *template)
{
    strcpy(dir, template);
    assert_non_null(mkdtemp(dir));
}

static void remove_run(const char *dir)
{
    char path[160];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

static void page_of(const char *const *dirs, int n, zn_buf *out)
{
    assert_ok(zn_report_append(dirs, n, out));
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *p = strstr(text, part); p; p = strstr(p + 1, part))
        n++;
    return n;
}

static void assert_has(const zn_buf *page, const char *part)
{
    if (!strstr(page->data, part))
        fail_msg("the page has no \"%s\"", part);
}

static void the_page_has_the_values_of_the_run(void **state)
{
    (void)state;
    char dir[64];
    zn_buf page = {0};
    make_run(dir, "/tmp/zn_report_XXXXXX");
    write_metrics(dir, 6, 1);
    write_text(dir, "eval.jsonl",
               "{\"step\":30,\"eval_loss\":0.7,\"perplexity\":2}\n"
               "{\"step\":60,\"eval_loss\":0.9,\"perplexity\":2}\n"
               "{\"step\":60,\"eval_loss\":0.625,\"perplexity\":2}\n{\"step\":9");
    write_text(dir, "run.json",
               "{\"zinc\":\"0.1.0\",\"started\":\"2026-01-02T03:04:05Z\",\"run\":{\"ranks\":2},"
               "\"options\":{\"given\":{\"max_steps\":\"60\",\"x\":0.003}},"
               "\"data\":{\"train_files\":[\"a.txt\",\"b.txt\"]},\"config\":{\"ok\":true,"
               "\"resolved\":{\"zero_optimization\":{\"stage\":3},\"gradient_clipping\":0.3},"
               "\"origin\":{\"zero_optimization.stage\":\"ds.json:7\",\"gradient_clipping\":"
               "\"default\"},\"notes\":[\"ds.json:9: nothing\"]}}");
    page_of((const char *const[]){dir}, 1, &page);
    assert_has(&page, "<th>steps</th><td>60</td>");
    assert_has(&page, "<th>last training loss</th><td>0.1</td>");
    assert_has(&page, "<th>least held-out loss</th><td>0.625</td>");
    assert_has(&page, "<th>skipped steps</th><td>1</td>");
    assert_has(&page, "<th>tokens</th><td>60k</td>");
    assert_has(&page, "<th>time in steps</th><td>2:00</td>");
    assert_has(&page, "<th>device memory of a rank</th><td>1.5 GB</td>");
    assert_has(&page, "step 60: 0.625");
    assert_null(strstr(page.data, "step 60: 0.9")); /* an evaluation that a resumed run did again */
    assert_has(&page, "<th>ranks</th><td>2</td>");
    assert_has(&page, "<th>given</th><td>max_steps 60, x 0.003</td>");
    assert_has(&page, "<th>train_files</th><td>a.txt, b.txt</td>");
    assert_has(&page, "<th>zero_optimization.stage</th><td>3</td><td>ds.json:7</td>");
    assert_has(&page, "<th>gradient_clipping</th><td>0.3</td><td>default</td>");
    assert_has(&page, "note: ds.json:9: nothing");
    assert_has(&page, "begun 2026-01-02T03:04:05Z");
    assert_int_equal(count(page.data, "<figure>"), 5); /* no loss scale without fp16 */
    assert_int_equal(count(page.data, "<svg "), 5);
    zn_buf_fini(&page);
    remove_run(dir);
}

static void two_runs_lie_over_each_other_and_their_differences_are_marked(void **state)
{
    (void)state;
    char a[64], b[64];
    zn_buf page = {0};
    make_run(a, "/tmp/zn_report_XXXXXX");
    make_run(b, "/tmp/zn_report_XXXXXX");
    write_metrics(a, 6, 1);
    write_metrics(b, 8, 65536);
    write_text(a, "run.json", "{\"run\":{\"ranks\":2,\"steps\":60}}");
    write_text(b, "run.json", "{\"run\":{\"ranks\":4,\"steps\":60,\"extra\":\"x\"}}");
    page_of((const char *const[]){a, b}, 2, &page);
    assert_int_equal(count(page.data, "<figure>"), 6);
    assert_has(&page, "<tr class=\"diff\"><th>ranks</th><td>2</td><td>4</td></tr>");
    assert_has(&page, "<tr><th>steps</th><td>60</td><td>60</td></tr>");
    assert_has(&page, "<tr class=\"diff\"><th>extra</th><td>–</td><td>x</td></tr>");
    assert_int_equal(count(page.data, "<th>ranks</th>"), 1);
    assert_has(&page, "class=\"line run1\"");
    assert_has(&page, "last 65536"); /* of the loss scale */
    zn_buf_fini(&page);
    remove_run(a);
    remove_run(b);
}

static void names_are_escaped_and_nothing_comes_from_outside(void **state)
{
    (void)state;
    char dir[64];
    zn_buf page = {0};
    make_run(dir, "/tmp/<b>'&\"_XXXXXX");
    write_metrics(dir, 6, 1);
    write_text(dir, "run.json",
               "{\"started\":\"<script>\",\"model\":{\"<i>\":\"</table><script>alert(1)\"},"
               "\"config\":{\"notes\":[\"<img src=x>\"]}}");
    page_of((const char *const[]){dir}, 1, &page);
    assert_has(&page, "&lt;b&gt;&#39;&amp;&quot;_");
    assert_has(&page, "<th>&lt;i&gt;</th><td>&lt;/table&gt;&lt;script&gt;alert(1)</td>");
    static const char *const outside[] = {"<script", "<img", "<b>'",    "<i>",  "http:", "https:",
                                          "//",      "url(", "@import", "src=", "href="};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        if (strcmp(outside[i], "src=") == 0)
            assert_int_equal(count(page.data, "src="), 1); /* the escaped note */
        else if (strstr(page.data, outside[i]))
            fail_msg("the page has \"%s\"", outside[i]);
    zn_buf_fini(&page);
    remove_run(dir);
}

static void a_run_without_run_json_or_without_a_step_is_said_to_be_so(void **state)
{
    (void)state;
    char dir[64];
    zn_buf page = {0};
    make_run(dir, "/tmp/zn_report_XXXXXX");
    write_text(dir, "metrics.jsonl", "");
    page_of((const char *const[]){dir}, 1, &page);
    assert_has(&page, "has no run.json");
    assert_int_equal(count(page.data, "no value was recorded"), 5);
    zn_buf_fini(&page);
    remove_run(dir);
}

static void a_folder_that_is_no_run_is_refused(void **state)
{
    (void)state;
    char dir[64];
    zn_buf page = {0};
    make_run(dir, "/tmp/zn_report_XXXXXX");
    const char *const dirs[] = {dir, dir, dir};
    assert_fails(zn_report_append(dirs, 1, &page), ZINC_E_CONFIG, "no metrics.jsonl");
    assert_fails(zn_report_append(dirs, 3, &page), ZINC_E_INVALID, "1 to 2 runs");
    write_text(dir, "metrics.jsonl", "{\"step\":1}\n");
    write_text(dir, "run.json", "{\"run\":");
    assert_fails(zn_report_append(dirs, 1, &page), ZINC_E_FORMAT, "run.json");
    zn_buf_fini(&page);
    remove_run(dir);
}

static void a_chart_keeps_a_spike_and_ends_its_axes(void **state)
{
    (void)state;
    enum { N = 20000 };
    static double x[N], y[N];
    zn_buf out = {0};
    for (int i = 0; i < N; i++) {
        x[i] = i + 1;
        y[i] = i == 12345 ? 100 : 1;
    }
    const zn_chart_line line = {.label = "l", .style = "run0", .x = x, .y = y, .n = N};
    const zn_chart chart = {.title = "t", .from_zero = true, .lines = &line, .n_lines = 1};
    assert_ok(zn_chart_append(&chart, &out));
    assert_true(out.n < 60000);                  /* 20000 points in 484 columns */
    assert_non_null(strstr(out.data, " 21.1L")); /* 100 of 105: near the top, TOP is 12 */
    assert_non_null(strstr(out.data, "last 1, least 1, most 100"));
    zn_buf_fini(&out);
    /* far from zero a tick cannot be added to, and infinities are no range */
    const double far[] = {1e30, 1e30 + 1e14, (double)INFINITY, -1e308, 1e308};
    const zn_chart_line odd = {.label = "l", .style = "run0", .x = x, .y = far, .n = 5};
    const zn_chart odd_chart = {.title = "t", .lines = &odd, .n_lines = 1};
    zn_buf odd_out = {0};
    assert_ok(zn_chart_append(&odd_chart, &odd_out));
    assert_null(strstr(odd_out.data, "nan"));
    assert_null(strstr(odd_out.data, "inf"));
    zn_buf_fini(&odd_out);
}

static void every_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    char dir[64];
    const char *const dirs[] = {dir, dir};
    make_run(dir, "/tmp/zn_report_XXXXXX");
    write_metrics(dir, 6, 65536);
    write_text(dir, "eval.jsonl", "{\"step\":30,\"eval_loss\":0.7}\n");
    write_text(dir, "run.json", "{\"run\":{\"ranks\":2},\"config\":{\"origin\":{\"a\":\"b\"}}}");
    zinc_status status = ZINC_E_NOMEM;
    int n = 0;
    for (; status != ZINC_OK && n < 5000; n++) {
        zn_buf page = {0};
        zn_mem_fail_after(n);
        status = zn_report_append(dirs, 2, &page);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
        zn_buf_fini(&page);
    }
    assert_int_equal(status, ZINC_OK);
    assert_true(n > 50);
    remove_run(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_page_has_the_values_of_the_run),
    cmocka_unit_test(two_runs_lie_over_each_other_and_their_differences_are_marked),
    cmocka_unit_test(names_are_escaped_and_nothing_comes_from_outside),
    cmocka_unit_test(a_run_without_run_json_or_without_a_step_is_said_to_be_so),
    cmocka_unit_test(a_folder_that_is_no_run_is_refused),
    cmocka_unit_test(a_chart_keeps_a_spike_and_ends_its_axes),
    cmocka_unit_test(every_failed_allocation_is_an_error_and_leaks_nothing),
};

ZN_TEST_MAIN(tests)
