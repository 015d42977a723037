/* SPDX-License-Identifier: Apache-2.0 */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"

struct zn_metrics {
    int fd;
    int64_t n_bytes; /* where the next row goes */
    char *path;
    zn_buf line; /* kept, so that writing does not allocate once it has grown */
};

/* ---- reading ---- */

static double number_or_nan(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static int64_t count_or_zero(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static zinc_status parse_row(const char *text, size_t n, const char *where, zn_metrics_row *out)
{
    json_t *object = NULL;
    ZN_TRY(zn_json_parse(text, n, where, &object));
    const json_t *step = json_object_get(object, "step");
    if (!json_is_integer(step) || json_integer_value(step) < 1) {
        json_decref(object);
        ZN_FAIL(ZINC_E_FORMAT, "%s: not a metrics row: expected an object with a positive \"step\"",
                where);
    }
    *out = (zn_metrics_row){
        .step = json_integer_value(step),
        .epoch = number_or_nan(object, "epoch"),
        .loss = number_or_nan(object, "loss"),
        .grad_norm = number_or_nan(object, "grad_norm"),
        .lr = number_or_nan(object, "lr"),
        .loss_scale = number_or_nan(object, "loss_scale"),
        .overflow = json_is_true(json_object_get(object, "overflow")),
        .tokens = count_or_zero(object, "tokens"),
        .tokens_per_s = number_or_nan(object, "tokens_per_s"),
        .step_ms = number_or_nan(object, "step_ms"),
        .mem_device_peak = count_or_zero(object, "mem_device_peak"),
        .mem_host_peak = count_or_zero(object, "mem_host_peak"),
    };
    json_decref(object);
    return ZINC_OK;
}

/* Row that starts at `at`, and where the next one starts. *whole is false, and nothing else is
 * set, for a last line without its line end. */
static zinc_status next_row(const zn_map *map, size_t at, const char *where, zn_metrics_row *row,
                            size_t *next, bool *whole)
{
    const char *text = (const char *)map->data + at;
    const char *end = memchr(text, '\n', map->n_bytes - at);
    *whole = end != NULL;
    if (!end)
        return ZINC_OK;
    ZN_TRY(parse_row(text, (size_t)(end - text), where, row));
    *next = at + (size_t)(end - text) + 1;
    return ZINC_OK;
}

static zinc_status read_rows(const zn_map *map, const char *path, zn_metrics_row **rows, int64_t *n)
{
    size_t at = 0, capacity = 0;
    while (at < map->n_bytes) {
        zinc_status status;
        zn_metrics_row row;
        bool whole;
        char *where = NULL;
        ZN_TRY(zn_format(&where, "%s:%lld", path, (long long)*n + 1));
        status = next_row(map, at, where, &row, &at, &whole);
        zn_free(where);
        ZN_TRY(status);
        if (!whole)
            break;
        if ((size_t)*n == capacity) {
            capacity = capacity ? 2 * capacity : 256;
            ZN_TRY(zn_realloc_array(rows, capacity, sizeof **rows, "metrics rows"));
        }
        (*rows)[(*n)++] = row;
    }
    return ZINC_OK;
}

zinc_status zn_metrics_read(const char *path, zn_metrics_row **rows, int64_t *n)
{
    zn_map map = {0};
    zn_metrics_row *found = NULL;
    int64_t n_found = 0;
    ZN_TRY(zn_map_open(path, &map));
    const zinc_status status = read_rows(&map, path, &found, &n_found);
    zn_map_close(&map);
    if (status != ZINC_OK) {
        zn_free(found);
        return status;
    }
    *rows = found;
    *n = n_found;
    return ZINC_OK;
}

/* Bytes of the rows up to `step`. */
static size_t kept_bytes(const zn_map *map, const char *path, int64_t step)
{
    size_t at = 0, next = 0;
    for (int64_t line = 1; at < map->n_bytes; line++, at = next) {
        zn_metrics_row row;
        bool whole;
        if (next_row(map, at, path, &row, &next, &whole) != ZINC_OK) {
            zn_warn("train", "%s:%lld is no metrics row; it and what follows are cut away", path,
                    (long long)line);
            return at;
        }
        if (!whole || row.step > step)
            return at;
    }
    return at;
}

/* ---- writing ---- */

static zinc_status cut_back(zn_metrics *metrics, int64_t resume_step)
{
    if (resume_step >= 0) {
        zn_map map = {0};
        ZN_TRY(zn_map_open(metrics->path, &map));
        metrics->n_bytes = (int64_t)kept_bytes(&map, metrics->path, resume_step);
        zn_map_close(&map);
    }
    if (ftruncate(metrics->fd, (off_t)metrics->n_bytes) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot cut %s back to %lld bytes: %s", metrics->path,
                (long long)metrics->n_bytes, strerror(errno));
    return ZINC_OK;
}

zinc_status zn_metrics_open(const char *path, int64_t resume_step, zn_metrics **out)
{
    zinc_status status;
    zn_metrics *metrics = NULL;
    ZN_TRY(zn_alloc(&metrics, sizeof *metrics, "metrics file"));
    metrics->fd = -1;
    ZN_TRY_GOTO(zn_strdup(path, &metrics->path));
    metrics->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (metrics->fd < 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot open %s for writing: %s", path, strerror(errno));
    ZN_TRY_GOTO(cut_back(metrics, resume_step));
    *out = metrics;
    return ZINC_OK;
fail:
    zn_metrics_close(metrics);
    return status;
}

void zn_metrics_close(zn_metrics *metrics)
{
    if (!metrics)
        return;
    if (metrics->fd >= 0 && close(metrics->fd) != 0)
        zn_warn("train", "closing %s: %s", metrics->path, strerror(errno));
    zn_buf_fini(&metrics->line);
    zn_free(metrics->path);
    zn_free(metrics);
}

static zinc_status append_number(zn_buf *out, const char *key, double value)
{
    ZN_TRY(zn_buf_puts(out, key));
    return zn_json_append_number(out, value);
}

zinc_status zn_metrics_append_json(const zn_metrics_row *row, zn_buf *out)
{
    ZN_TRY(zn_buf_printf(out, "{\"step\":%lld", (long long)row->step));
    ZN_TRY(append_number(out, ",\"epoch\":", row->epoch));
    ZN_TRY(append_number(out, ",\"loss\":", row->loss));
    ZN_TRY(append_number(out, ",\"grad_norm\":", row->grad_norm));
    ZN_TRY(append_number(out, ",\"lr\":", row->lr));
    ZN_TRY(append_number(out, ",\"loss_scale\":", row->loss_scale));
    ZN_TRY(zn_buf_printf(out, ",\"overflow\":%s,\"tokens\":%lld", row->overflow ? "true" : "false",
                         (long long)row->tokens));
    ZN_TRY(append_number(out, ",\"tokens_per_s\":", row->tokens_per_s));
    ZN_TRY(append_number(out, ",\"step_ms\":", row->step_ms));
    return zn_buf_printf(out, ",\"mem_device_peak\":%lld,\"mem_host_peak\":%lld}",
                         (long long)row->mem_device_peak, (long long)row->mem_host_peak);
}

zinc_status zn_metrics_write(zn_metrics *metrics, const zn_metrics_row *row)
{
    metrics->line.n = 0;
    ZN_TRY(zn_metrics_append_json(row, &metrics->line));
    ZN_TRY(zn_buf_puts(&metrics->line, "\n"));
    ZN_TRY(zn_fs_pwrite_all(metrics->fd, metrics->line.data, metrics->line.n, metrics->n_bytes,
                            metrics->path));
    metrics->n_bytes += (int64_t)metrics->line.n;
    return ZINC_OK;
}
