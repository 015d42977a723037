/* SPDX-License-Identifier: Apache-2.0 */
#include "train/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BAR_CELLS 16
#define REDRAW_MS 100.0
/* Weight of the newest step in the running mean of step times that the estimate uses. */
#define NEWEST_SHARE 0.1
#define PARTS 10
#define PART_BYTES 64

struct zn_progress {
    zn_progress_params params;
    double mean_step_ms; /* running; NaN before the first step */
    double undrawn_ms;   /* since the last redraw */
    double loss_sum;     /* of finite losses since the last plain line */
    int64_t n_losses;
    bool drawn; /* the cursor stands behind a drawn line */
    bool stale; /* `last` is newer than what is drawn */
    zn_metrics_row last;
    zn_buf text;
};

/* The pieces of one line; those at the end are dropped first. */
typedef struct parts {
    int n;
    char text[PARTS][PART_BYTES];
} parts;

static void write_stderr(void *context, const char *text, size_t n)
{
    (void)context;
    fwrite(text, 1, n, stderr);
    fflush(stderr);
}

static void emit(zn_progress *p)
{
    p->params.write(p->params.context, p->text.data, p->text.n);
    p->text.n = 0;
}

zinc_status zn_progress_create(const zn_progress_params *params, zn_progress **out)
{
    zn_progress *p = NULL;
    ZN_TRY(zn_alloc(&p, sizeof *p, "progress"));
    p->params = *params;
    p->mean_step_ms = (double)NAN;
    p->undrawn_ms = REDRAW_MS; /* the first step shows at once */
    if (p->params.width <= 0)
        p->params.width = 80;
    if (!p->params.write)
        p->params.write = write_stderr;
    *out = p;
    return ZINC_OK;
}

/* ---- wording ---- */

static void format_time(char *out, size_t n_bytes, double seconds)
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e12) {
        snprintf(out, n_bytes, "?");
        return;
    }
    const long long s = (long long)(seconds + 0.5);
    if (s < 60)
        snprintf(out, n_bytes, "%llds", s);
    else if (s < 3600)
        snprintf(out, n_bytes, "%lld:%02lld", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, n_bytes, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, n_bytes, "%lldd %02lldh", s / 86400, s / 3600 % 24);
}

zinc_status zn_progress_append_time(zn_buf *out, double seconds)
{
    char text[PART_BYTES];
    format_time(text, sizeof text, seconds);
    return zn_buf_puts(out, text);
}

/* 950, 12.3k, 1.23M */
static void format_rate(char *out, size_t n_bytes, double rate, const char *unit)
{
    if (!isfinite(rate))
        snprintf(out, n_bytes, "? %s", unit);
    else if (rate < 1e3)
        snprintf(out, n_bytes, "%.0f %s", rate, unit);
    else if (rate < 1e6)
        snprintf(out, n_bytes, "%.1fk %s", rate / 1e3, unit);
    else
        snprintf(out, n_bytes, "%.2fM %s", rate / 1e6, unit);
}

static void format_bytes(char *out, size_t n_bytes, int64_t bytes, const char *what)
{
    if (bytes < ((int64_t)1 << 30))
        snprintf(out, n_bytes, "%s%.0f MiB", what, (double)bytes / 0x1p20);
    else
        snprintf(out, n_bytes, "%s%.1f GiB", what, (double)bytes / 0x1p30);
}

static char *next_part(parts *line)
{
    ZN_ASSERT(line->n < PARTS);
    return line->text[line->n++];
}

static double seconds_left(const zn_progress *p)
{
    return p->mean_step_ms / 1e3 * (double)(p->params.total - p->last.step);
}

/* Speed, share of the peak, memory, time left: alike on terminals and elsewhere. */
static void add_common(const zn_progress *p, const char *unit, parts *line)
{
    const zn_metrics_row *row = &p->last;
    format_rate(next_part(line), PART_BYTES, row->tokens_per_s, unit);
    const double share = row->tokens_per_s * p->params.flops_per_token / p->params.peak_flops;
    if (p->params.peak_flops > 0 && share > 0 && isfinite(share))
        snprintf(next_part(line), PART_BYTES, "%.0f%% of peak", 100 * share);
    if (row->mem_device_peak > 0)
        format_bytes(next_part(line), PART_BYTES, row->mem_device_peak, "");
    if (row->mem_host_peak > 0)
        format_bytes(next_part(line), PART_BYTES, row->mem_host_peak, "host ");
    if (row->step < p->params.total) {
        char *part = next_part(line);
        memcpy(part, "eta ", 5);
        format_time(part + 4, PART_BYTES - 4, seconds_left(p));
    }
}

static double done_share(const zn_progress *p)
{
    const double share = p->params.total > 0 ? (double)p->last.step / (double)p->params.total : 1.0;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

/* ---- a terminal ---- */

static zinc_status append_bar(zn_buf *out, double share)
{
    const int full = (int)(share * BAR_CELLS + 0.5);
    for (int i = 0; i < BAR_CELLS; i++)
        ZN_TRY(zn_buf_puts(out, i < full ? "█" : "░"));
    return ZINC_OK;
}

static void terminal_parts(const zn_progress *p, parts *line)
{
    const zn_metrics_row *row = &p->last;
    snprintf(next_part(line), PART_BYTES, "%lld/%lld", (long long)row->step,
             (long long)p->params.total);
    if (row->overflow)
        snprintf(next_part(line), PART_BYTES, "skipped (overflow at scale %g)", row->loss_scale);
    else
        snprintf(next_part(line), PART_BYTES, "loss %.4f", row->loss);
    add_common(p, "tok/s", line);
}

static zinc_status draw(zn_progress *p)
{
    parts line = {0};
    terminal_parts(p, &line);
    ZN_TRY(zn_buf_printf(&p->text, "\r%3.0f%% ", floor(100 * done_share(p))));
    ZN_TRY(append_bar(&p->text, done_share(p)));
    /* "100% " and the bar; the last column stays free, or some terminals wrap */
    int used = 5 + BAR_CELLS + 1;
    for (int i = 0; i < line.n; i++) {
        const char *gap = i == 0 ? " " : "  ";
        used += (int)(strlen(gap) + strlen(line.text[i])); /* parts are ASCII */
        if (used > p->params.width)
            break;
        ZN_TRY(zn_buf_puts(&p->text, gap));
        ZN_TRY(zn_buf_puts(&p->text, line.text[i]));
    }
    ZN_TRY(zn_buf_puts(&p->text, "\033[K")); /* erase what a longer line left behind */
    emit(p);
    p->drawn = true;
    p->stale = false;
    p->undrawn_ms = 0;
    return ZINC_OK;
}

/* ---- anything else ---- */

static zinc_status write_plain(zn_progress *p)
{
    const zn_metrics_row *row = &p->last;
    parts line = {0};
    if (p->drawn)
        ZN_TRY(zn_buf_puts(&p->text, "\r\033[K"));
    p->drawn = false;
    snprintf(next_part(&line), PART_BYTES, "step %lld/%lld", (long long)row->step,
             (long long)p->params.total);
    if (row->overflow)
        snprintf(next_part(&line), PART_BYTES, "skipped (overflow at scale %g)", row->loss_scale);
    if (p->n_losses > 0 || !row->overflow)
        snprintf(next_part(&line), PART_BYTES, "loss %.4f",
                 p->n_losses > 0 ? p->loss_sum / (double)p->n_losses : row->loss);
    if (!row->overflow)
        snprintf(next_part(&line), PART_BYTES, "grad_norm %.4g", row->grad_norm);
    snprintf(next_part(&line), PART_BYTES, "lr %.4g", row->lr);
    add_common(p, "tokens/s", &line);
    for (int i = 0; i < line.n; i++) {
        ZN_TRY(zn_buf_puts(&p->text, i == 0 ? "" : "  "));
        ZN_TRY(zn_buf_puts(&p->text, line.text[i]));
    }
    ZN_TRY(zn_buf_puts(&p->text, "\n"));
    emit(p);
    p->loss_sum = 0;
    p->n_losses = 0;
    return ZINC_OK;
}

/* ---- events ---- */

static bool is_due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

zinc_status zn_progress_step(zn_progress *progress, const zn_metrics_row *row)
{
    zn_progress *p = progress;
    const bool is_last = row->step >= p->params.total;
    p->last = *row;
    p->stale = true;
    if (isfinite(row->step_ms)) {
        p->mean_step_ms = isnan(p->mean_step_ms)
                              ? row->step_ms
                              : p->mean_step_ms * (1 - NEWEST_SHARE) + row->step_ms * NEWEST_SHARE;
        p->undrawn_ms += row->step_ms;
    }
    if (isfinite(row->loss)) {
        p->loss_sum += row->loss;
        p->n_losses++;
    }
    const bool prints = is_due(p->params.print_every, row->step);
    if (p->params.terminal) {
        if (prints)
            ZN_TRY(write_plain(p));
        return is_last || prints || p->undrawn_ms >= REDRAW_MS ? draw(p) : ZINC_OK;
    }
    return is_last || prints || is_due(p->params.log_every, row->step) ? write_plain(p) : ZINC_OK;
}

zinc_status zn_progress_note(zn_progress *progress, const char *text)
{
    zn_progress *p = progress;
    const bool redraw = p->drawn;
    ZN_TRY(zn_buf_printf(&p->text, "%s%s\n", redraw ? "\r\033[K" : "", text));
    emit(p);
    p->drawn = false;
    return redraw ? draw(p) : ZINC_OK;
}

void zn_progress_finish(zn_progress *progress)
{
    zn_progress *p = progress;
    if (!p->drawn)
        return;
    if (p->stale)
        (void)draw(p); /* only memory can fail, and then the older drawing stands */
    p->params.write(p->params.context, "\n", 1);
    p->drawn = false;
}

void zn_progress_destroy(zn_progress *progress)
{
    if (!progress)
        return;
    zn_progress_finish(progress);
    zn_buf_fini(&progress->text);
    zn_free(progress);
}
