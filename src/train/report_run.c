/* SPDX-License-Identifier: Apache-2.0 */
/* A run's files in memory. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "train/report_internal.h"

/* Steps to each side that the smoothed loss is a mean over: this part of the run, and at most so
 * many. */
#define SMOOTH_SHARE 60
#define MAX_HALF_WINDOW 50

static zinc_status column(double **out, int64_t n)
{
    return zn_alloc_array(out, (size_t)n, sizeof **out, "a column of metrics");
}

static zinc_status make_columns(zn_report_run *run)
{
    double **const columns[] = {&run->step,         &run->loss,   &run->smooth,
                                &run->grad_norm,    &run->lr,     &run->loss_scale,
                                &run->tokens_per_s, &run->device, &run->host};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        ZN_TRY(column(columns[i], run->n));
    return ZINC_OK;
}

/* Mean over the steps around each, fewer at both ends; gaps are left out. */
static void smooth_loss(zn_report_run *run)
{
    const int64_t wish = run->n / SMOOTH_SHARE + 1;
    const int64_t half = wish < MAX_HALF_WINDOW ? wish : MAX_HALF_WINDOW;
    for (int64_t i = 0; i < run->n; i++) {
        const int64_t left = i < run->n - 1 - i ? i : run->n - 1 - i;
        const int64_t reach = left < half ? left : half;
        double sum = 0;
        int64_t n = 0;
        for (int64_t k = i - reach; k <= i + reach; k++) {
            sum += isfinite(run->loss[k]) ? run->loss[k] : 0;
            n += isfinite(run->loss[k]);
        }
        run->smooth[i] = n > 0 ? sum / (double)n : (double)NAN;
    }
}

static zinc_status load_rows(const char *dir, zn_report_run *run)
{
    zinc_status status;
    char *path = NULL;
    ZN_TRY_GOTO(zn_fs_join(dir, "metrics.jsonl", &path));
    if (!zn_fs_exists(path))
        ZN_FAIL_GOTO(ZINC_E_CONFIG, "%s has no metrics.jsonl: give the --output_dir of a run", dir);
    ZN_TRY_GOTO(zn_metrics_read(path, &run->rows, &run->n));
    ZN_TRY_GOTO(make_columns(run));
    for (int64_t i = 0; i < run->n; i++) {
        const zn_metrics_row *row = &run->rows[i];
        run->step[i] = (double)row->step;
        run->loss[i] = row->loss;
        run->grad_norm[i] = row->grad_norm;
        run->lr[i] = row->lr;
        run->loss_scale[i] = row->loss_scale;
        run->tokens_per_s[i] = row->tokens_per_s;
        run->device[i] = (double)row->mem_device_peak;
        run->host[i] = (double)row->mem_host_peak;
    }
    smooth_loss(run);
fail:
    zn_free(path);
    return status;
}

/* A resumed run goes on from an earlier step: what was written after it does not count. */
static void add_eval(zn_report_run *run, double step, double loss)
{
    while (run->n_evals > 0 && run->eval_step[run->n_evals - 1] >= step)
        run->n_evals--;
    run->eval_step[run->n_evals] = step;
    run->eval_loss[run->n_evals++] = loss;
}

static zinc_status parse_evals(const zn_buf *text, const char *path, zn_report_run *run)
{
    char where[512];
    int line = 1;
    for (const char *p = text->data; p < text->data + text->n; line++) {
        const char *end = memchr(p, '\n', text->n - (size_t)(p - text->data));
        json_t *object = NULL;
        if (!end)
            return ZINC_OK; /* torn by a crash */
        snprintf(where, sizeof where, "%s:%d", path, line);
        ZN_TRY(zn_json_parse(p, (size_t)(end - p), where, &object));
        const json_t *step = json_object_get(object, "step");
        const json_t *loss = json_object_get(object, "eval_loss");
        if (json_is_integer(step))
            add_eval(run, (double)json_integer_value(step),
                     json_is_number(loss) ? json_number_value(loss) : (double)NAN);
        json_decref(object);
        p = end + 1;
    }
    return ZINC_OK;
}

static zinc_status load_evals(const char *dir, zn_report_run *run)
{
    zinc_status status;
    char *path = NULL;
    zn_buf text = {0};
    int64_t n_lines = 0;
    ZN_TRY_GOTO(zn_fs_join(dir, "eval.jsonl", &path));
    if (zn_fs_exists(path))
        ZN_TRY_GOTO(zn_fs_read(path, 0, &text));
    for (size_t i = 0; i < text.n; i++)
        n_lines += text.data[i] == '\n';
    ZN_TRY_GOTO(column(&run->eval_step, n_lines));
    ZN_TRY_GOTO(column(&run->eval_loss, n_lines));
    if (n_lines > 0)
        ZN_TRY_GOTO(parse_evals(&text, path, run));
fail:
    zn_buf_fini(&text);
    zn_free(path);
    return status;
}

static zinc_status load_json(const char *dir, zn_report_run *run)
{
    zinc_status status;
    char *path = NULL;
    ZN_TRY_GOTO(zn_fs_join(dir, "run.json", &path));
    if (zn_fs_exists(path))
        ZN_TRY_GOTO(zn_json_load(path, &run->json));
fail:
    zn_free(path);
    return status;
}

/* "runs/first/" is called "first"; "." and "/" stay. */
static zinc_status name_of(const char *dir, char **out)
{
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && dir[begin - 1] != '/')
        begin--;
    return begin == end ? zn_strdup(dir, out)
                        : zn_format(out, "%.*s", (int)(end - begin), dir + begin);
}

zinc_status zn_report_run_load(const char *dir, zn_report_run *out)
{
    ZN_TRY(name_of(dir, &out->name));
    ZN_TRY(load_rows(dir, out));
    ZN_TRY(load_evals(dir, out));
    return load_json(dir, out);
}

void zn_report_run_fini(zn_report_run *run)
{
    zn_free(run->name);
    zn_free(run->rows);
    zn_free(run->step);
    zn_free(run->loss);
    zn_free(run->smooth);
    zn_free(run->grad_norm);
    zn_free(run->lr);
    zn_free(run->loss_scale);
    zn_free(run->tokens_per_s);
    zn_free(run->device);
    zn_free(run->host);
    zn_free(run->eval_step);
    zn_free(run->eval_loss);
    json_decref(run->json);
}
