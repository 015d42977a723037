/* SPDX-License-Identifier: Apache-2.0 */
#include "train/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GUTTER 10 /* characters left of the axis: a number of up to 9 and a space */
#define MAX_COLUMNS ZN_PLOT_MAX_WIDTH

typedef struct canvas {
    int columns, lines; /* of the drawing area, in characters */
    int rows;           /* dots, top to bottom: two a line, or one in ASCII */
    bool ascii;
    double low, high; /* y of the lowest and of the highest dot */
    /* Dots [top, bottom] of each column; top > bottom: nothing */
    int top[MAX_COLUMNS], bottom[MAX_COLUMNS];
} canvas;

static int clamp(int value, int low, int high)
{
    return value < low ? low : value > high ? high : value;
}

/* Smallest and largest finite value; false if there is none. */
static bool find_range(const double *y, int64_t n, double *low, double *high)
{
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(y[i]))
            continue;
        *low = found ? fmin(*low, y[i]) : y[i];
        *high = found ? fmax(*high, y[i]) : y[i];
        found = true;
    }
    return found;
}

static int row_of(const canvas *c, double value)
{
    /* halves first: high - low may overflow */
    const double span = c->high / 2 - c->low / 2;
    const double depth = span > 0 ? (c->high / 2 - value / 2) / span : 0.5;
    return clamp((int)(depth * (c->rows - 1) + 0.5), 0, c->rows - 1);
}

/* Points [*from, *to) of column x. With fewer points than columns a point is spread over several,
 * so every column has at least one. */
static void column_points(const canvas *c, int64_t n, int x, int64_t *from, int64_t *to)
{
    const double per_column = (double)n / c->columns;
    *from = (int64_t)(x * per_column);
    *to = (int64_t)((x + 1) * per_column);
    if (*from > n - 1)
        *from = n - 1;
    if (*to <= *from)
        *to = *from + 1;
    if (*to > n)
        *to = n;
}

static void plot_columns(canvas *c, const double *y, int64_t n)
{
    for (int x = 0; x < c->columns; x++) {
        int64_t from, to;
        double low, high;
        column_points(c, n, x, &from, &to);
        if (find_range(y + from, to - from, &low, &high)) {
            c->top[x] = row_of(c, high);
            c->bottom[x] = row_of(c, low);
        } else {
            c->top[x] = 1;
            c->bottom[x] = 0;
        }
    }
}

/* Stretch each column down or up to touch its left neighbour, so that a steep curve has no holes.
 */
static void join_columns(canvas *c)
{
    int top = 1, bottom = 0; /* of the left neighbour before it was stretched */
    for (int x = 0; x < c->columns; x++) {
        const int own_top = c->top[x], own_bottom = c->bottom[x];
        if (top <= bottom && own_top <= own_bottom) {
            if (own_top > bottom + 1)
                c->top[x] = bottom + 1;
            if (own_bottom < top - 1)
                c->bottom[x] = top - 1;
        }
        top = own_top;
        bottom = own_bottom;
    }
}

static bool is_dot(const canvas *c, int x, int row)
{
    return c->top[x] <= row && row <= c->bottom[x];
}

static const char *cell(const canvas *c, int x, int line)
{
    if (c->ascii)
        return is_dot(c, x, line) ? "*" : " ";
    const bool upper = is_dot(c, x, 2 * line), lower = is_dot(c, x, 2 * line + 1);
    return upper && lower ? "█" : upper ? "▀" : lower ? "▄" : " ";
}

/* Trailing blanks are left out. */
static zinc_status append_cells(const canvas *c, int line, zn_buf *out)
{
    int used = c->columns;
    while (used > 0 && strcmp(cell(c, used - 1, line), " ") == 0)
        used--;
    for (int x = 0; x < used; x++)
        ZN_TRY(zn_buf_puts(out, cell(c, x, line)));
    return zn_buf_puts(out, "\n");
}

static zinc_status append_lines(const canvas *c, zn_buf *out)
{
    for (int line = 0; line < c->lines; line++) {
        const bool labelled = line == 0 || line == c->lines - 1 || line == c->lines / 2;
        if (labelled) {
            const double share = (double)line / (c->lines - 1);
            /* convex, so that it cannot overflow, and exact at both ends */
            const double value = c->high * (1 - share) + c->low * share;
            ZN_TRY(zn_buf_printf(out, "%*.3g %s", GUTTER - 1, value, c->ascii ? "+" : "┤"));
        } else {
            ZN_TRY(zn_buf_printf(out, "%*s%s", GUTTER, "", c->ascii ? "|" : "│"));
        }
        ZN_TRY(append_cells(c, line, out));
    }
    ZN_TRY(zn_buf_printf(out, "%*s%s", GUTTER, "", c->ascii ? "+" : "└"));
    for (int x = 0; x < c->columns; x++)
        ZN_TRY(zn_buf_puts(out, c->ascii ? "-" : "─"));
    return zn_buf_puts(out, "\n");
}

/* First and last x at the ends, the label between them. */
static zinc_status append_x_axis(const canvas *c, const zn_plot_params *params, zn_buf *out)
{
    char first[32], last[32];
    const char *label = params->x_label ? params->x_label : "";
    snprintf(first, sizeof first, "%.6g", params->x_first);
    snprintf(last, sizeof last, "%.6g", params->x_last);
    const int free_columns =
        c->columns - (int)strlen(first) - (int)strlen(last) - (int)strlen(label);
    const int left = free_columns > 2 ? free_columns / 2 : 1;
    const int right = free_columns > 2 ? free_columns - left : 1;
    return zn_buf_printf(out, "%*s%s%*s%s%*s%s\n", GUTTER + 1, "", first, left, "", label, right,
                         "", last);
}

zinc_status zn_plot_append(const zn_plot_params *params, const double *y, int64_t n, zn_buf *out)
{
    const int width = params->width ? clamp(params->width, 20, ZN_PLOT_MAX_WIDTH) : 72;
    const int height = params->height ? clamp(params->height, 5, ZN_PLOT_MAX_HEIGHT) : 16;
    canvas c = {.columns = width - GUTTER - 1, .lines = height - 2, .ascii = params->ascii};
    c.rows = c.ascii ? c.lines : 2 * c.lines;
    if (params->title)
        ZN_TRY(zn_buf_printf(out, "%s\n", params->title));
    if (!find_range(y, n, &c.low, &c.high))
        return zn_buf_puts(out, "(no finite value to draw)\n");
    if (c.low == c.high) { /* a constant lies in the middle of a range around it */
        const double margin = c.low != 0 ? fabs(c.low) / 2 : 1;
        c.low -= margin;
        c.high += margin;
    }
    plot_columns(&c, y, n);
    join_columns(&c);
    ZN_TRY(append_lines(&c, out));
    return append_x_axis(&c, params, out);
}
