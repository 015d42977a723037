/* SPDX-License-Identifier: Apache-2.0 */
#include "train/csv_monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"

#define MAX_TAGS 16

typedef struct csv_file {
    const char *tag; /* borrowed */
    char *path;
    int fd;
    int64_t n_bytes;
} csv_file;

struct zn_csv_monitor {
    char *dir;
    int64_t keep_up_to;
    csv_file files[MAX_TAGS];
    int n_files;
    zn_buf line;
};

zinc_status zn_csv_monitor_open(const char *dir, int64_t keep_up_to, zn_csv_monitor **out)
{
    zinc_status status;
    zn_csv_monitor *csv = NULL;
    ZN_TRY(zn_alloc(&csv, sizeof *csv, "the CSV monitor"));
    csv->keep_up_to = keep_up_to;
    ZN_TRY_GOTO(zn_strdup(dir, &csv->dir));
    ZN_TRY_GOTO(zn_fs_mkdirs(dir));
    *out = csv;
    return ZINC_OK;
fail:
    zn_csv_monitor_close(csv);
    return status;
}

static zinc_status make_path(const zn_csv_monitor *csv, csv_file *file)
{
    ZN_TRY(zn_format(&file->path, "%s/%s.csv", csv->dir, file->tag));
    for (char *p = file->path + strlen(csv->dir) + 1; *p; p++)
        if (*p == '/' || *p == ' ')
            *p = '_';
    return ZINC_OK;
}

/* Bytes of an existing file that stay: whole lines up to the first row of a later step. */
static zinc_status kept_bytes(const zn_csv_monitor *csv, const char *path, int64_t *out)
{
    zinc_status status;
    zn_buf text = {0};
    size_t at = 0;
    ZN_TRY_GOTO(zn_fs_read(path, 0, &text));
    while (at < text.n) {
        const char *line = text.data + at;
        const char *end = memchr(line, '\n', text.n - at);
        const bool header = strncmp(line, "step,", 5) == 0;
        if (!end || (!header && csv->keep_up_to >= 0 && strtoll(line, NULL, 10) > csv->keep_up_to))
            break;
        at = (size_t)(end + 1 - text.data);
    }
    *out = (int64_t)at;
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status append_line(zn_csv_monitor *csv, csv_file *file)
{
    ZN_TRY(zn_fs_pwrite_all(file->fd, csv->line.data, csv->line.n, file->n_bytes, file->path));
    file->n_bytes += (int64_t)csv->line.n;
    return ZINC_OK;
}

static zinc_status open_file(zn_csv_monitor *csv, csv_file *file)
{
    const char *slash = strrchr(file->tag, '/');
    ZN_TRY(make_path(csv, file));
    if (zn_fs_exists(file->path))
        ZN_TRY(kept_bytes(csv, file->path, &file->n_bytes));
    file->fd = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file->fd < 0 || ftruncate(file->fd, file->n_bytes) != 0)
        ZN_FAIL(ZINC_E_IO, "csv_monitor.output_path: cannot write %s: %s", file->path,
                strerror(errno));
    if (file->n_bytes > 0)
        return ZINC_OK;
    csv->line.n = 0;
    ZN_TRY(zn_buf_printf(&csv->line, "step,%s\n", slash ? slash + 1 : file->tag));
    return append_line(csv, file);
}

static zinc_status file_of(zn_csv_monitor *csv, const char *tag, csv_file **out)
{
    for (int i = 0; i < csv->n_files; i++)
        if (strcmp(csv->files[i].tag, tag) == 0) {
            *out = &csv->files[i];
            return ZINC_OK;
        }
    if (csv->n_files == MAX_TAGS)
        ZN_FAIL(ZINC_E_INVALID, "%s: more than %d tags", tag, MAX_TAGS);
    csv_file *file = &csv->files[csv->n_files++];
    *file = (csv_file){.tag = tag, .fd = -1};
    *out = file;
    return open_file(csv, file);
}

/* Python's words for what is no number, which DeepSpeed's files have. */
static zinc_status append_value(zn_buf *out, double value)
{
    if (isnan(value))
        return zn_buf_puts(out, "nan");
    if (isinf(value))
        return zn_buf_puts(out, value > 0 ? "inf" : "-inf");
    return zn_json_append_number(out, value);
}

zinc_status zn_csv_monitor_write(zn_csv_monitor *csv, int64_t step, const char *const *tags,
                                 const double *values, int n)
{
    for (int i = 0; i < n; i++) {
        csv_file *file = NULL;
        ZN_TRY(file_of(csv, tags[i], &file));
        csv->line.n = 0;
        ZN_TRY(zn_buf_printf(&csv->line, "%lld,", (long long)step));
        ZN_TRY(append_value(&csv->line, values[i]));
        ZN_TRY(zn_buf_puts(&csv->line, "\n"));
        ZN_TRY(append_line(csv, file));
    }
    return ZINC_OK;
}

void zn_csv_monitor_close(zn_csv_monitor *csv)
{
    if (!csv)
        return;
    for (int i = 0; i < csv->n_files; i++) {
        if (csv->files[i].fd >= 0 && close(csv->files[i].fd) != 0)
            zn_warn("train", "closing %s: %s", csv->files[i].path, strerror(errno));
        zn_free(csv->files[i].path);
    }
    zn_buf_fini(&csv->line);
    zn_free(csv->dir);
    zn_free(csv);
}
