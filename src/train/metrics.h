/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h — metrics.jsonl: one JSON object a line for every optimizer step.
 *
 * A line reaches the file whole and at once, so that `tail -f` and a crash never see half a row
 * (a full disk excepted; a torn last line is cut off at the next resume). Numbers that are not
 * finite are null. One rank writes; one thread at a time. Layer: train (may use base). */
#ifndef ZN_TRAIN_METRICS_H
#define ZN_TRAIN_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

typedef struct zn_metrics_row {
    int64_t step;     /* from 1, skipped steps included */
    double epoch;     /* passes over the training set when the step ended */
    double loss;      /* of the step's whole global batch */
    double grad_norm; /* global, before clipping */
    double lr;        /* used in this step */
    double loss_scale;
    bool overflow;  /* the step was skipped */
    int64_t tokens; /* of this step, over all ranks */
    double tokens_per_s, step_ms;
    int64_t mem_device_peak, mem_host_peak; /* bytes */
} zn_metrics_row;

typedef struct zn_metrics zn_metrics;

/** Open the file at `path` for writing. resume_step < 0 starts it anew; otherwise every row after
 *  that step is cut away and rows are appended. A line that is no row ends what is kept (warned
 *  about, with its number). A missing file is made. Close with zn_metrics_close. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_metrics_open(const char *path, int64_t resume_step,
                                            zn_metrics **out);

/** Append one row. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_metrics_write(zn_metrics *metrics, const zn_metrics_row *row);

/** Close; NULL is fine. */
void zn_metrics_close(zn_metrics *metrics);

/** Append the object of one row to `out`, without a line end; what `zinc train --json` prints.
 *  Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_metrics_append_json(const zn_metrics_row *row, zn_buf *out);

/** Read all rows of a file; null and missing numbers become NaN, missing counts 0. A torn last
 *  line is left out. *rows is owned by the caller: zn_free. Errors: E_IO, E_NOMEM; E_FORMAT names
 *  file and line. */
ZINC_MUST_CHECK zinc_status zn_metrics_read(const char *path, zn_metrics_row **rows, int64_t *n);

#endif
