/* SPDX-License-Identifier: Apache-2.0 */
#include "train/svg_chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Units of the view box. */
#define WIDTH 560
#define HEIGHT 230
#define LEFT 62
#define RIGHT 14
#define TOP 12
#define BOTTOM 26
#define N_TICKS 5
#define MAX_TICKS 12
#define NUMBER_BYTES 48

typedef struct frame {
    const zn_chart *chart;
    double x0, x1, y0, y1; /* what the edges of the plot stand for; y after scale() */
} frame;

zinc_status zn_html_append(zn_buf *out, const char *text)
{
    for (const char *p = text; *p;) {
        const size_t plain = strcspn(p, "&<>\"'");
        ZN_TRY(zn_buf_append(out, p, plain));
        p += plain;
        if (*p)
            ZN_TRY(zn_buf_puts(out, *p == '&'   ? "&amp;"
                                    : *p == '<' ? "&lt;"
                                    : *p == '>' ? "&gt;"
                                    : *p == '"' ? "&quot;"
                                                : "&#39;"));
        p += *p != '\0';
    }
    return ZINC_OK;
}

void zn_chart_format(zn_chart_unit unit, double value, char *out, size_t n_bytes)
{
    static const char *const bytes[] = {"B", "KB", "MB", "GB", "TB"};
    int u = 0;
    double x = value;
    if (unit == ZN_CHART_BYTES) {
        for (; fabs(x) >= 999.95 && u < 4; u++)
            x /= 1000;
        snprintf(out, n_bytes, u == 0 ? "%.0f %s" : "%.4g %s", x, bytes[u]);
    } else if (unit == ZN_CHART_POWER && x >= 1 && x < 1e9) {
        snprintf(out, n_bytes, "%.0f", x);
    } else if (fabs(x) >= 1e6 && fabs(x) < 1e15) {
        snprintf(out, n_bytes, "%.4gM", x / 1e6);
    } else if (fabs(x) >= 1e4 && fabs(x) < 1e6) {
        snprintf(out, n_bytes, "%.4gk", x / 1e3);
    } else {
        snprintf(out, n_bytes, "%.4g", x);
    }
}

/* Values that a range can be made of: no infinities now or later. */
static bool is_usable(double x)
{
    return fabs(x) < 1e100;
}

static double scale(const zn_chart *chart, double y)
{
    return chart->unit == ZN_CHART_POWER ? log2(y) : y;
}

/* ---- the range ---- */

static bool find_range(frame *f)
{
    bool any = false;
    for (int i = 0; i < f->chart->n_lines; i++) {
        const zn_chart_line *line = &f->chart->lines[i];
        for (int64_t k = 0; k < line->n; k++) {
            const double y = scale(f->chart, line->y[k]);
            if (!is_usable(y) || !is_usable(line->x[k]))
                continue;
            f->x0 = any ? fmin(f->x0, line->x[k]) : line->x[k];
            f->x1 = any ? fmax(f->x1, line->x[k]) : line->x[k];
            f->y0 = any ? fmin(f->y0, y) : y;
            f->y1 = any ? fmax(f->y1, y) : y;
            any = true;
        }
    }
    return any;
}

/* Some air above and below; a flat line gets a range of its own size. */
static void widen(frame *f)
{
    if (f->x1 - f->x0 <= 0)
        f->x1 = f->x0 + 1;
    if (f->chart->from_zero && f->y0 > 0)
        f->y0 = 0;
    double air = 0.05 * (f->y1 - f->y0);
    if (air <= 0)
        air = f->y1 != 0 ? 0.1 * fabs(f->y1) : 1;
    f->y1 += air;
    if (!(f->chart->from_zero && f->y0 >= 0))
        f->y0 -= air;
}

static double px(const frame *f, double x)
{
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT);
}

static double py(const frame *f, double y)
{
    return HEIGHT - BOTTOM - (y - f->y0) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that about N_TICKS fit; whole where asked. */
static double tick_step(double range, bool whole)
{
    const double raw = range / N_TICKS;
    const double power = pow(10, floor(log10(raw)));
    const double lead = raw / power;
    const double step = (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10) * power;
    return whole && step < 1 ? 1 : step;
}

/* ---- drawing ---- */

static zinc_status append_axes(const frame *f, zn_buf *out)
{
    char text[NUMBER_BYTES];
    const bool power = f->chart->unit == ZN_CHART_POWER;
    const double dy = tick_step(f->y1 - f->y0, power);
    const double dx = tick_step(f->x1 - f->x0, true);
    for (int i = 0; i < MAX_TICKS; i++) { /* by count: far from 0, adding 1 may change nothing */
        const double t = ceil(f->y0 / dy) + i;
        if (t * dy > f->y1)
            break;
        const double y = py(f, t * dy);
        if (power)
            snprintf(text, sizeof text, "2^%.0f", t * dy);
        else
            zn_chart_format(f->chart->unit, t * dy, text, sizeof text);
        ZN_TRY(zn_buf_printf(out,
                             "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                             "class=\"tick end\">%s</text>\n",
                             LEFT, y, WIDTH - RIGHT, LEFT - 7, y + 4, text));
    }
    for (int i = 0; i < MAX_TICKS; i++) {
        const double t = ceil(f->x0 / dx) + i;
        if (t * dx > f->x1)
            break;
        zn_chart_format(ZN_CHART_NUMBER, t * dx, text, sizeof text);
        ZN_TRY(zn_buf_printf(out, "<text x=\"%.1f\" y=\"%d\" class=\"tick mid\">%s</text>\n",
                             px(f, t * dx), HEIGHT - BOTTOM + 18, text));
    }
    return zn_buf_printf(out, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP,
                         HEIGHT - BOTTOM, WIDTH - RIGHT);
}

static bool is_point(const frame *f, const zn_chart_line *line, int64_t k)
{
    return is_usable(line->x[k]) && is_usable(scale(f->chart, line->y[k]));
}

static zinc_status append_point(double x, double y, bool *pen_down, zn_buf *out)
{
    const char *command = *pen_down ? "L" : "M";
    *pen_down = true;
    return zn_buf_printf(out, "%s%.1f %.1f", command, x, y);
}

/* One column: its first, lowest, highest and last point, in that order; *k moves past it. */
static zinc_status append_column(const frame *f, const zn_chart_line *line, int64_t *k,
                                 bool *pen_down, zn_buf *out)
{
    const double x = px(f, line->x[*k]);
    const double first = py(f, scale(f->chart, line->y[*k]));
    double low = first, high = first, last = first, last_x = x;
    int64_t n = 0;
    for (; *k < line->n && is_point(f, line, *k) && floor(px(f, line->x[*k])) == floor(x); ++*k) {
        last_x = px(f, line->x[*k]);
        last = py(f, scale(f->chart, line->y[*k]));
        low = fmin(low, last);
        high = fmax(high, last);
        n++;
    }
    ZN_TRY(append_point(x, first, pen_down, out));
    if (n > 2) {
        ZN_TRY(append_point(x, low, pen_down, out));
        ZN_TRY(append_point(x, high, pen_down, out));
    }
    return n > 1 ? append_point(last_x, last, pen_down, out) : ZINC_OK;
}

static zinc_status append_line(const frame *f, const zn_chart_line *line, zn_buf *out)
{
    bool pen_down = false;
    ZN_TRY(zn_buf_printf(out, "<path class=\"line %s\" d=\"", line->style));
    for (int64_t k = 0; k < line->n;) {
        if (is_point(f, line, k)) {
            ZN_TRY(append_column(f, line, &k, &pen_down, out));
        } else {
            pen_down = false;
            k++;
        }
    }
    ZN_TRY(zn_buf_puts(out, "\"/>\n"));
    for (int64_t k = 0; k < line->n && (line->markers || line->n == 1); k++)
        if (is_point(f, line, k))
            ZN_TRY(zn_buf_printf(out,
                                 "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\">"
                                 "<title>step %.0f: %.6g</title></circle>\n",
                                 line->style, px(f, line->x[k]), py(f, scale(f->chart, line->y[k])),
                                 line->x[k], line->y[k]));
    return ZINC_OK;
}

static zinc_status append_legend(const frame *f, const zn_chart_line *line, zn_buf *out)
{
    char text[NUMBER_BYTES];
    double last = (double)NAN, least = (double)NAN, most = (double)NAN;
    for (int64_t k = 0; k < line->n; k++)
        if (is_point(f, line, k)) {
            last = line->y[k];
            least = fmin(least, last); /* fmin and fmax prefer the number to NaN */
            most = fmax(most, last);
        }
    ZN_TRY(zn_buf_printf(out, "<li class=\"%s\"><b>", line->style));
    ZN_TRY(zn_html_append(out, line->label));
    ZN_TRY(zn_buf_puts(out, "</b>"));
    if (isnan(last))
        return zn_buf_puts(out, " no value</li>\n");
    zn_chart_format(f->chart->unit, last, text, sizeof text);
    ZN_TRY(zn_buf_printf(out, " last %s", text));
    zn_chart_format(f->chart->unit, least, text, sizeof text);
    ZN_TRY(zn_buf_printf(out, ", least %s", text));
    zn_chart_format(f->chart->unit, most, text, sizeof text);
    return zn_buf_printf(out, ", most %s</li>\n", text);
}

zinc_status zn_chart_append(const zn_chart *chart, zn_buf *out)
{
    frame f = {.chart = chart};
    ZN_TRY(zn_buf_puts(out, "<figure>\n<figcaption>"));
    ZN_TRY(zn_html_append(out, chart->title));
    ZN_TRY(zn_buf_puts(out, "</figcaption>\n"));
    if (!find_range(&f))
        return zn_buf_puts(out, "<p class=\"dim\">no value was recorded</p>\n</figure>\n");
    widen(&f);
    ZN_TRY(
        zn_buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT));
    ZN_TRY(zn_html_append(out, chart->title));
    ZN_TRY(zn_buf_puts(out, " over optimizer steps\">\n"));
    ZN_TRY(append_axes(&f, out));
    for (int i = 0; i < chart->n_lines; i++)
        ZN_TRY(append_line(&f, &chart->lines[i], out));
    ZN_TRY(zn_buf_puts(out, "</svg>\n<ul class=\"legend\">\n"));
    for (int i = 0; i < chart->n_lines; i++)
        if (chart->lines[i].label)
            ZN_TRY(append_legend(&f, &chart->lines[i], out));
    return zn_buf_puts(out, "</ul>\n</figure>\n");
}
