/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a report: a column a run, rows that differ are marked. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/progress.h"
#include "train/report_internal.h"
#include "train/svg_chart.h"

#define CELL_BYTES 64

/* ---- cells ---- */

static zinc_status append_cell(const char *text, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "<td>"));
    ZN_TRY(zn_html_append(out, text));
    return zn_buf_puts(out, "</td>");
}

static zinc_status append_head(const zn_report_run *runs, int n, const char *const *more,
                               int n_more, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "<table>\n<tr><th></th>"));
    for (int r = 0; r < n; r++) {
        ZN_TRY(zn_buf_printf(out, "<th class=\"run%d\">", r));
        ZN_TRY(zn_html_append(out, runs[r].name));
        ZN_TRY(zn_buf_puts(out, "</th>"));
    }
    for (int i = 0; i < n_more * n; i++)
        ZN_TRY(zn_buf_printf(out, "<th>%s</th>", more[i % n_more]));
    return zn_buf_puts(out, "</tr>\n");
}

static zinc_status append_plain(json_t *value, zn_buf *out);

/* "name value, name value" */
static zinc_status append_object(json_t *object, zn_buf *out)
{
    const char *name;
    json_t *value;
    bool first = true;
    json_object_foreach(object, name, value)
    {
        ZN_TRY(zn_buf_printf(out, "%s%s ", first ? "" : ", ", name));
        ZN_TRY(append_plain(value, out));
        first = false;
    }
    return zn_buf_puts(out, first ? "–" : "");
}

/* A JSON value as people write it: strings without quotes, lists with commas. Files of a run nest
 * no deeper than the parser allows. */
static zinc_status append_plain(json_t *value, zn_buf *out)
{
    if (!value || json_is_null(value))
        return zn_buf_puts(out, "–");
    if (json_is_string(value))
        return zn_buf_append(out, json_string_value(value), json_string_length(value));
    if (json_is_real(value))
        return zn_json_append_number(out, json_real_value(value));
    if (json_is_object(value))
        return append_object(value, out);
    if (!json_is_array(value))
        return zn_json_append(value, out);
    for (size_t i = 0; i < json_array_size(value); i++) {
        ZN_TRY(zn_buf_puts(out, i ? ", " : ""));
        ZN_TRY(append_plain(json_array_get(value, i), out));
    }
    return zn_buf_puts(out, json_array_size(value) ? "" : "–");
}

static zinc_status append_value(json_t *value, zn_buf *out)
{
    zn_buf text = {0};
    zinc_status status = append_plain(value, &text);
    if (status == ZINC_OK)
        status = append_cell(text.data, out);
    zn_buf_fini(&text);
    return status;
}

/* ---- the summary ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static zinc_status median(const double *values, int64_t n, double *out)
{
    double *sorted = NULL;
    int64_t m = 0;
    ZN_TRY(zn_alloc_array(&sorted, (size_t)n, sizeof *sorted, "sorted values"));
    for (int64_t i = 0; i < n; i++)
        if (isfinite(values[i]))
            sorted[m++] = values[i];
    qsort(sorted, (size_t)m, sizeof *sorted, by_value);
    *out = m > 0 ? sorted[m / 2] : (double)NAN;
    zn_free(sorted);
    return ZINC_OK;
}

typedef struct totals {
    int64_t tokens, skipped;
    double seconds, device, host, speed, last_loss, least_eval;
} totals;

static zinc_status add_up(const zn_report_run *run, totals *out)
{
    totals t = {.last_loss = (double)NAN, .least_eval = (double)NAN};
    for (int64_t i = 0; i < run->n; i++) {
        t.tokens += run->rows[i].tokens;
        t.skipped += run->rows[i].overflow;
        if (isfinite(run->rows[i].step_ms))
            t.seconds += run->rows[i].step_ms / 1e3;
        t.device = fmax(t.device, run->device[i]);
        t.host = fmax(t.host, run->host[i]);
        t.last_loss = isfinite(run->loss[i]) ? run->loss[i] : t.last_loss;
    }
    for (int64_t i = 0; i < run->n_evals; i++)
        t.least_eval = fmin(t.least_eval, run->eval_loss[i]);
    ZN_TRY(median(run->tokens_per_s, run->n, &t.speed));
    *out = t;
    return ZINC_OK;
}

static zinc_status append_number(const char *unit, double x, zn_buf *out)
{
    char text[CELL_BYTES], number[CELL_BYTES - 16];
    zn_chart_format(strcmp(unit, "bytes") == 0 ? ZN_CHART_BYTES : ZN_CHART_NUMBER, x, number,
                    sizeof number);
    if (!isfinite(x))
        snprintf(text, sizeof text, "–");
    else
        snprintf(text, sizeof text, "%s%s", number, strcmp(unit, "bytes") == 0 ? "" : unit);
    return append_cell(text, out);
}

static zinc_status append_time(double seconds, zn_buf *out)
{
    zn_buf text = {0};
    zinc_status status = seconds < 60 ? zn_buf_printf(&text, "%.2gs", seconds)
                                      : zn_progress_append_time(&text, seconds);
    if (status == ZINC_OK)
        status = append_cell(text.data, out);
    zn_buf_fini(&text);
    return status;
}

static zinc_status append_summary_cell(const zn_report_run *run, const totals *t, int row,
                                       zn_buf *out)
{
    switch (row) {
    case 0:
        return append_number("", run->n > 0 ? run->step[run->n - 1] : 0, out);
    case 1:
        return append_number("", t->last_loss, out);
    case 2:
        return append_number("", t->least_eval, out);
    case 3:
        return append_number("", (double)t->skipped, out);
    case 4:
        return append_number("", (double)t->tokens, out);
    case 5:
        return append_number(" tokens/s", t->speed, out);
    case 6:
        return append_time(t->seconds, out);
    case 7:
        return append_number("bytes", t->device, out);
    default:
        return append_number("bytes", t->host, out);
    }
}

zinc_status zn_report_append_summary(const zn_report_run *runs, int n, zn_buf *out)
{
    static const char *const names[] = {
        "steps",
        "last training loss",
        "least held-out loss",
        "skipped steps",
        "tokens",
        "median speed",
        "time in steps",
        "device memory of a rank",
        "host memory of the process",
    };
    totals t[ZN_REPORT_MAX_RUNS];
    for (int r = 0; r < n; r++)
        ZN_TRY(add_up(&runs[r], &t[r]));
    ZN_TRY(zn_buf_puts(out, "<section class=\"summary\">\n"));
    ZN_TRY(append_head(runs, n, NULL, 0, out));
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
        ZN_TRY(zn_buf_printf(out, "<tr><th>%s</th>", names[i]));
        for (int r = 0; r < n; r++)
            ZN_TRY(append_summary_cell(&runs[r], &t[r], i, out));
        ZN_TRY(zn_buf_puts(out, "</tr>\n"));
    }
    return zn_buf_puts(out, "</table>\n</section>\n");
}

/* ---- what was asked for ---- */

/* Member `path` ("zero_optimization.stage") of nested objects, or NULL. */
static json_t *look_up(json_t *object, const char *path)
{
    char name[CELL_BYTES * 2];
    while (object) {
        const size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        object = json_object_get(object, name);
        if (!path[n])
            return object;
        path += n + 1;
    }
    return NULL;
}

static bool differ(json_t *const *values, int n)
{
    const json_t *a = values[0], *b = n > 1 ? values[1] : a;
    return a && b ? !json_equal(a, b) : a != b;
}

/* A row of values, and of where they came from if there are origins. */
static zinc_status append_row(const char *name, json_t *const *values, json_t *const *origins,
                              int n, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, differ(values, n) ? "<tr class=\"diff\"><th>" : "<tr><th>"));
    ZN_TRY(zn_html_append(out, name));
    ZN_TRY(zn_buf_puts(out, "</th>"));
    for (int r = 0; r < n; r++)
        ZN_TRY(append_value(values[r], out));
    for (int r = 0; origins && r < n; r++)
        ZN_TRY(append_value(origins[r], out));
    return zn_buf_puts(out, "</tr>\n");
}

/* Whether an earlier run has this key, whose row is there already. */
static bool is_done(json_t *const *objects, int run, const char *name)
{
    return run > 0 && json_object_get(objects[0], name);
}

static zinc_status append_section(const char *title, const char *block, const zn_report_run *runs,
                                  int n, zn_buf *out)
{
    json_t *objects[ZN_REPORT_MAX_RUNS], *values[ZN_REPORT_MAX_RUNS];
    for (int r = 0; r < n; r++)
        objects[r] = json_object_get(runs[r].json, block);
    ZN_TRY(zn_buf_printf(out, "<details open>\n<summary>%s</summary>\n", title));
    ZN_TRY(append_head(runs, n, NULL, 0, out));
    for (int r = 0; r < n; r++) {
        const char *name;
        json_t *value;
        json_object_foreach(objects[r], name, value)
        {
            if (is_done(objects, r, name))
                continue;
            for (int k = 0; k < n; k++)
                values[k] = json_object_get(objects[k], name);
            ZN_TRY(append_row(name, values, NULL, n, out));
        }
    }
    return zn_buf_puts(out, "</table>\n</details>\n");
}

static zinc_status append_config(const zn_report_run *runs, int n, zn_buf *out)
{
    static const char *const from[] = {"where from"};
    json_t *config[ZN_REPORT_MAX_RUNS], *origin[ZN_REPORT_MAX_RUNS];
    json_t *values[ZN_REPORT_MAX_RUNS], *origins[ZN_REPORT_MAX_RUNS];
    for (int r = 0; r < n; r++) {
        config[r] = json_object_get(runs[r].json, "config");
        origin[r] = json_object_get(config[r], "origin");
    }
    ZN_TRY(zn_buf_puts(out, "<details open>\n<summary>Resolved configuration</summary>\n"));
    ZN_TRY(append_head(runs, n, from, 1, out));
    for (int r = 0; r < n; r++) {
        const char *name;
        json_t *value;
        json_object_foreach(origin[r], name, value)
        {
            if (is_done(origin, r, name))
                continue;
            for (int k = 0; k < n; k++) {
                values[k] = look_up(json_object_get(config[k], "resolved"), name);
                origins[k] = json_object_get(origin[k], name);
            }
            ZN_TRY(append_row(name, values, origins, n, out));
        }
    }
    return zn_buf_puts(out, "</table>\n</details>\n");
}

static zinc_status append_notes(const zn_report_run *run, zn_buf *out)
{
    const json_t *notes = json_object_get(json_object_get(run->json, "config"), "notes");
    for (size_t i = 0; i < json_array_size(notes); i++) {
        const char *text = json_string_value(json_array_get(notes, i));
        ZN_TRY(zn_buf_puts(out, "<p class=\"dim\">note: "));
        ZN_TRY(zn_html_append(out, text ? text : ""));
        ZN_TRY(zn_buf_puts(out, "</p>\n"));
    }
    return ZINC_OK;
}

zinc_status zn_report_append_tables(const zn_report_run *runs, int n, zn_buf *out)
{
    static const char *const blocks[][2] = {
        {"Run", "run"}, {"Model", "model"}, {"Data", "data"}, {"Options", "options"}};
    bool any = false;
    for (int r = 0; r < n; r++) {
        any = any || runs[r].json;
        if (runs[r].json)
            continue;
        ZN_TRY(zn_buf_puts(out, "<p class=\"dim\">"));
        ZN_TRY(zn_html_append(out, runs[r].name));
        ZN_TRY(zn_buf_puts(out, " has no run.json: what it was asked for is not known</p>\n"));
    }
    if (!any)
        return ZINC_OK;
    if (n > 1)
        ZN_TRY(zn_buf_puts(out, "<p class=\"dim\">Rows that differ are marked.</p>\n"));
    ZN_TRY(zn_buf_puts(out, "<div class=\"tables\">\n"));
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        ZN_TRY(append_section(blocks[i][0], blocks[i][1], runs, n, out));
    ZN_TRY(zn_buf_puts(out, "</div>\n"));
    ZN_TRY(append_config(runs, n, out));
    for (int r = 0; r < n; r++)
        ZN_TRY(append_notes(&runs[r], out));
    return ZINC_OK;
}
