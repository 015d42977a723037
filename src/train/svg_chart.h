/* SPDX-License-Identifier: Apache-2.0 */
/* svg_chart.h — lines over steps as an inline SVG, for a page that carries everything in itself.
 *
 *   title
 *   4 ┤ ╲            y ticks at 1, 2 or 5 times a power of ten, inside the range of the values
 *   3 ┤  ╲__
 *     └┬──────┬──    x ticks likewise, at whole steps
 *      0      50
 *   ── label  last 3.2, least 3.1
 *
 * Colours are the page's: line i has the CSS class its `style` names. A column of a pixel shows the
 * range of the points that fall into it, so a spike is never lost and a long run stays a small
 * file. Layer: train (may use base). */
#ifndef ZN_TRAIN_SVG_CHART_H
#define ZN_TRAIN_SVG_CHART_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

typedef enum zn_chart_unit {
    ZN_CHART_NUMBER,
    ZN_CHART_BYTES,
    ZN_CHART_POWER, /* logarithmic, ticks at powers of two */
} zn_chart_unit;

typedef struct zn_chart_line {
    const char *label;   /* in the legend; NULL: not there */
    const char *style;   /* CSS classes */
    const double *x, *y; /* [n], x ascending; y that is not finite leaves a gap */
    int64_t n;
    bool markers; /* a dot at each point */
} zn_chart_line;

typedef struct zn_chart {
    const char *title;
    zn_chart_unit unit;
    bool from_zero; /* the y axis begins at 0 */
    const zn_chart_line *lines;
    int n_lines;
} zn_chart;

/** Append a <figure>; labels and title are escaped. Without a finite point a line of text says so.
 *  Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_chart_append(const zn_chart *chart, zn_buf *out);

/** A value with its unit, short: "3.142", "12.5k", "1.3 GB". */
void zn_chart_format(zn_chart_unit unit, double value, char *out, size_t n_bytes);

/** Append text with &, <, >, " and ' as entities. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_html_append(zn_buf *out, const char *text);

#endif
