/* SPDX-License-Identifier: Apache-2.0 */
#include "train/report_html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/report_internal.h"
#include "train/svg_chart.h"

#define MAX_LINES (3 * ZN_REPORT_MAX_RUNS)
#define SMOOTH_FROM 40 /* steps from which a smoothed loss says more than the plain one */

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#667080;--grid:#e6e8ec;"
    "--card:#f7f8fa;--run0:#2563eb;--run1:#d9640d;--diff:#fff1dc}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7ea;--dim:#98a1ad;"
    "--grid:#2c3138;--card:#1b1f25;--run0:#6ea8fe;--run1:#f5a05a;--diff:#3a2c18}}\n"
    "body{margin:0 auto;max-width:1240px;padding:24px 20px 60px;background:var(--bg);"
    "color:var(--fg);font:15px/1.45 system-ui,sans-serif}\n"
    "h1{font-size:24px;margin:0 0 2px}.dim{color:var(--dim);margin:2px 0 12px}\n"
    ".charts,.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),"
    "1fr));gap:16px;align-items:start;margin:8px 0 18px}\n"
    "figure{margin:0;padding:14px 14px 8px;background:var(--card);border-radius:10px}\n"
    "figcaption{font-weight:600;margin-bottom:4px}svg{display:block;width:100%;height:auto}\n"
    ".grid{stroke:var(--grid)}.axis{stroke:var(--dim);fill:none}\n"
    ".tick{fill:var(--dim);font:12px system-ui,sans-serif}.end{text-anchor:end}"
    ".mid{text-anchor:middle}\n"
    ".line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round}\n"
    ".dot{fill:currentColor;stroke:none}.faint{opacity:.3;stroke-width:1}"
    ".dash{stroke-dasharray:6 4}\n"
    ".run0{color:var(--run0)}.run1{color:var(--run1)}\n"
    ".legend{list-style:none;margin:4px 0 2px;padding:0;font-size:13px}"
    ".legend li::before{content:\"\";display:inline-block;width:18px;"
    "border-top:2px solid;margin:0 7px 4px 0}.legend li.dash::before{border-top-style:dashed}\n"
    "table{border-collapse:collapse;font-size:13.5px}td,th{text-align:left;padding:3px 16px 3px 0;"
    "vertical-align:top;border-bottom:1px solid var(--grid);overflow-wrap:anywhere}\n"
    "tr>th:first-child{font-weight:400;color:var(--dim)}.summary "
    "table{font-size:15px;margin-bottom:20px}"
    ".diff{background:var(--diff)}\n"
    "details{min-width:0;margin-top:14px}summary{font-weight:600;cursor:pointer;"
    "margin-bottom:6px}.tables details{margin:0}\n";

/* ---- charts ---- */

/* Lines of one chart; texts of labels stay until it is drawn. */
typedef struct line_set {
    zn_chart_line lines[MAX_LINES];
    char *labels[MAX_LINES];
    int n;
} line_set;

static void line_set_fini(line_set *set)
{
    for (int i = 0; i < set->n; i++)
        zn_free(set->labels[i]);
}

/* `what` NULL: not in the legend. The run's name stands before it where there are two runs. */
static zinc_status add_line(line_set *set, const zn_report_run *run, bool named, const char *what,
                            const zn_chart_line *line)
{
    char **label = &set->labels[set->n];
    set->lines[set->n] = *line;
    set->n++;
    if (!what)
        return ZINC_OK;
    ZN_TRY(named ? zn_format(label, "%s: %s", run->name, what) : zn_strdup(what, label));
    set->lines[set->n - 1].label = *label;
    return ZINC_OK;
}

static zinc_status draw(const char *title, zn_chart_unit unit, bool from_zero, const line_set *set,
                        zn_buf *out)
{
    const zn_chart chart = {.title = title,
                            .unit = unit,
                            .from_zero = from_zero,
                            .lines = set->lines,
                            .n_lines = set->n};
    return zn_chart_append(&chart, out);
}

static zinc_status add_losses(line_set *set, const zn_report_run *run, int r, bool named)
{
    static const char *const faint[] = {"run0 faint", "run1 faint"};
    static const char *const solid[] = {"run0", "run1"};
    static const char *const dashed[] = {"run0 dash", "run1 dash"};
    const bool smooth = run->n >= SMOOTH_FROM;
    zn_chart_line line = {
        .style = smooth ? faint[r] : solid[r], .x = run->step, .y = run->loss, .n = run->n};
    ZN_TRY(add_line(set, run, named, smooth ? NULL : "training", &line));
    if (smooth) {
        line.style = solid[r];
        line.y = run->smooth;
        ZN_TRY(add_line(set, run, named, "training, smoothed", &line));
    }
    if (run->n_evals == 0)
        return ZINC_OK;
    line = (zn_chart_line){.style = dashed[r],
                           .x = run->eval_step,
                           .y = run->eval_loss,
                           .n = run->n_evals,
                           .markers = true};
    return add_line(set, run, named, "held-out", &line);
}

static zinc_status append_losses(const zn_report_run *runs, int n, zn_buf *out)
{
    line_set set = {0};
    zinc_status status = ZINC_OK;
    for (int r = 0; r < n && status == ZINC_OK; r++)
        status = add_losses(&set, &runs[r], r, n > 1);
    if (status == ZINC_OK)
        status = draw("Loss", ZN_CHART_NUMBER, false, &set, out);
    line_set_fini(&set);
    return status;
}

typedef enum quantity {
    GRAD_NORM,
    RATE,
    SCALE,
    SPEED,
    DEVICE,
    HOST,
} quantity;

static const double *column_of(const zn_report_run *run, quantity q)
{
    const double *const columns[] = {run->grad_norm,    run->lr,     run->loss_scale,
                                     run->tokens_per_s, run->device, run->host};
    return columns[q];
}

static zinc_status add_quantity(line_set *set, const zn_report_run *runs, int n, quantity q,
                                const char *what)
{
    static const char *const styles[][2] = {{"run0", "run1"}, {"run0 dash", "run1 dash"}};
    for (int r = 0; r < n; r++) {
        const zn_chart_line line = {.style = styles[q == HOST][r],
                                    .x = runs[r].step,
                                    .y = column_of(&runs[r], q),
                                    .n = runs[r].n};
        ZN_TRY(add_line(set, &runs[r], n > 1, what, &line));
    }
    return ZINC_OK;
}

static zinc_status append_quantity(const zn_report_run *runs, int n, quantity q, zn_buf *out)
{
    static const struct {
        const char *title, *what;
        zn_chart_unit unit;
        bool from_zero;
    } charts[] = {
        [GRAD_NORM] = {"Gradient norm, before clipping", "gradient norm", ZN_CHART_NUMBER, true},
        [RATE] = {"Learning rate", "learning rate", ZN_CHART_NUMBER, true},
        [SCALE] = {"Loss scale", "loss scale", ZN_CHART_POWER, false},
        [SPEED] = {"Tokens per second, all ranks", "tokens/s", ZN_CHART_NUMBER, true},
        [DEVICE] = {"Peak memory", "device memory of rank 0", ZN_CHART_BYTES, true},
    };
    line_set set = {0};
    zinc_status status = add_quantity(&set, runs, n, q, charts[q].what);
    if (status == ZINC_OK && q == DEVICE)
        status = add_quantity(&set, runs, n, HOST, "host memory of the process");
    if (status == ZINC_OK)
        status = draw(charts[q].title, charts[q].unit, charts[q].from_zero, &set, out);
    line_set_fini(&set);
    return status;
}

/* Without fp16 the scale is 1 throughout, and a chart of it says nothing. */
static bool has_loss_scale(const zn_report_run *runs, int n)
{
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < runs[r].n; i++)
            if (isfinite(runs[r].loss_scale[i]) && runs[r].loss_scale[i] != 1)
                return true;
    return false;
}

static zinc_status append_charts(const zn_report_run *runs, int n, zn_buf *out)
{
    static const quantity quantities[] = {GRAD_NORM, RATE, SCALE, SPEED, DEVICE};
    ZN_TRY(zn_buf_puts(out, "<p class=\"dim\">All curves are over optimizer steps.</p>\n"
                            "<div class=\"charts\">\n"));
    ZN_TRY(append_losses(runs, n, out));
    for (size_t i = 0; i < sizeof quantities / sizeof quantities[0]; i++)
        if (quantities[i] != SCALE || has_loss_scale(runs, n))
            ZN_TRY(append_quantity(runs, n, quantities[i], out));
    return zn_buf_puts(out, "</div>\n");
}

/* ---- the page ---- */

static zinc_status append_names(const zn_report_run *runs, int n, zn_buf *out)
{
    for (int r = 0; r < n; r++) {
        ZN_TRY(zn_buf_puts(out, r ? " and " : ""));
        ZN_TRY(zn_html_append(out, runs[r].name));
    }
    return ZINC_OK;
}

static const char *text_of(const json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));
    return text ? text : "?";
}

static zinc_status append_began(const zn_report_run *run, zn_buf *out)
{
    if (!run->json)
        return ZINC_OK;
    ZN_TRY(zn_buf_puts(out, "<p class=\"dim\">"));
    ZN_TRY(zn_html_append(out, run->name));
    ZN_TRY(zn_buf_puts(out, ": begun "));
    ZN_TRY(zn_html_append(out, text_of(run->json, "started")));
    ZN_TRY(zn_buf_puts(out, ", zinc "));
    ZN_TRY(zn_html_append(out, text_of(run->json, "zinc")));
    return zn_buf_puts(out, "</p>\n");
}

static zinc_status append_page(const zn_report_run *runs, int n, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out,
                       "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                       "<meta name=\"viewport\" content=\"width=device-width\">\n<title>"));
    ZN_TRY(append_names(runs, n, out));
    ZN_TRY(zn_buf_printf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", style));
    ZN_TRY(append_names(runs, n, out));
    ZN_TRY(zn_buf_puts(out, "</h1>\n"));
    for (int r = 0; r < n; r++)
        ZN_TRY(append_began(&runs[r], out));
    ZN_TRY(zn_report_append_summary(runs, n, out));
    ZN_TRY(append_charts(runs, n, out));
    ZN_TRY(zn_report_append_tables(runs, n, out));
    return zn_buf_puts(out, "</body>\n</html>\n");
}

/* Two runs of one name are called by their whole path. */
static zinc_status tell_apart(const char *const *dirs, zn_report_run *runs, int n)
{
    if (n < 2 || strcmp(runs[0].name, runs[1].name) != 0)
        return ZINC_OK;
    for (int r = 0; r < n; r++) {
        zn_free(runs[r].name);
        runs[r].name = NULL;
        ZN_TRY(zn_strdup(dirs[r], &runs[r].name));
    }
    return ZINC_OK;
}

zinc_status zn_report_append(const char *const *dirs, int n_runs, zn_buf *out)
{
    zinc_status status;
    zn_report_run runs[ZN_REPORT_MAX_RUNS] = {0};
    if (n_runs < 1 || n_runs > ZN_REPORT_MAX_RUNS)
        ZN_FAIL(ZINC_E_INVALID, "a report is about 1 to %d runs, not %d", ZN_REPORT_MAX_RUNS,
                n_runs);
    for (int r = 0; r < n_runs; r++)
        ZN_TRY_GOTO(zn_report_run_load(dirs[r], &runs[r]));
    ZN_TRY_GOTO(tell_apart(dirs, runs, n_runs));
    ZN_TRY_GOTO(append_page(runs, n_runs, out));
fail:
    for (int r = 0; r < n_runs; r++)
        zn_report_run_fini(&runs[r]);
    return status;
}
