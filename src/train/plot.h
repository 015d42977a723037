/* SPDX-License-Identifier: Apache-2.0 */
/* plot.h — a series drawn with characters: loss or learning rate over steps.
 *
 *   learning rate                        <- title
 *   0.001 ┤        ▄▄█▀▀▀▀▄▄
 *         │   ▄▄█▀▀          ▀▀▄▄        <- half blocks: two rows of dots a line
 *       0 ┤▄█▀                   ▀▀▄
 *         └──────────────────────────
 *          1           step        60
 *
 * A column shows the range from the smallest to the largest of the points that fall into it and
 * joins its neighbours, so a spike is never lost. Layer: train (may use base). */
#ifndef ZN_TRAIN_PLOT_H
#define ZN_TRAIN_PLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

#define ZN_PLOT_MAX_WIDTH 400
#define ZN_PLOT_MAX_HEIGHT 100

typedef struct zn_plot_params {
    const char *title;      /* NULL: none */
    const char *x_label;    /* under the axis; NULL: none */
    int width, height;      /* characters of the whole drawing, without the title; 0: 72 by 16 */
    bool ascii;             /* '*', '|' and '-' instead of block and line characters */
    double x_first, x_last; /* what the first and the last point stand for */
} zn_plot_params;

/** Append a drawing of y[0..n) to `out`, lines ended by '\n'. Points that are not finite leave a
 *  gap; without a finite point a line says so. Widths outside 20..ZN_PLOT_MAX_WIDTH and heights
 *  outside 5..ZN_PLOT_MAX_HEIGHT are brought to the nearest bound. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_plot_append(const zn_plot_params *params, const double *y, int64_t n,
                                           zn_buf *out);

#endif
