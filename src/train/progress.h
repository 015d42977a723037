/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h — how a run shows on stderr while it goes.
 *
 * On a terminal one line is drawn over and over (at most ten times a second of training):
 *    45% ███████░░░░░░░░░ 450/1000  loss 2.3451  12.3k tok/s  63% of peak  1.2 GiB  eta 3:25
 * and what does not fit its width is left out from the right. Elsewhere a plain line comes every
 * logging_steps, whose loss is the mean since the line before; every steps_per_print, on a terminal
 * too. No clock is read: time is the sum
 * of the rows' step_ms, so evaluation and saving do not count into the estimate.
 * One rank, one thread. Layer: train (may use base). */
#ifndef ZN_TRAIN_PROGRESS_H
#define ZN_TRAIN_PROGRESS_H

#include <stddef.h>

#include "train/metrics.h"

typedef struct zn_progress_params {
    bool terminal;       /* redraw one line instead of writing plain ones */
    int width;           /* columns of the terminal; 0: 80 */
    int64_t total;       /* steps at the end of the run */
    int64_t log_every;   /* plain lines: every so many steps, and the last; 0: only the last */
    int64_t print_every; /* steps_per_print: plain lines on a terminal too; 0: none */
    /* For the share of this machine's peak: floating-point operations of one token, forward and
     * backward, and operations per second of all ranks' fused multiply-adds. 0: not shown. */
    double flops_per_token, peak_flops;
    /** Where text goes, whole lines or redraws at once; NULL: stderr. */
    void (*write)(void *context, const char *text, size_t n);
    void *context; /* borrowed until destroy */
} zn_progress_params;

typedef struct zn_progress zn_progress;

/** Begin. Destroy with zn_progress_destroy. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_progress_create(const zn_progress_params *params, zn_progress **out);

/** Account for one step and show it when it is time. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_progress_step(zn_progress *progress, const zn_metrics_row *row);

/** Write a line of its own (an evaluation, a saved checkpoint); a drawn line moves below it.
 *  `text` has no line end. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_progress_note(zn_progress *progress, const char *text);

/** End the drawn line, if any, with its latest state; whatever is written next starts a new line.
 *  To be called before anything else writes to the terminal. */
void zn_progress_finish(zn_progress *progress);

/** zn_progress_finish and free; NULL is fine. */
void zn_progress_destroy(zn_progress *progress);

/** Append seconds as people read them: "42s", "3:25", "1:02:03", "4d 03h"; "?" if not finite. */
ZINC_MUST_CHECK zinc_status zn_progress_append_time(zn_buf *out, double seconds);

#endif
