/* SPDX-License-Identifier: Apache-2.0 */
/* report_internal.h — one run as the page about it sees it. Layer: train. */
#ifndef ZN_TRAIN_REPORT_INTERNAL_H
#define ZN_TRAIN_REPORT_INTERNAL_H

#include "base/json.h"
#include "train/metrics.h"
#include "train/report_html.h"

typedef struct zn_report_run {
    char *name; /* the folder's last part, or the whole where two would be alike */
    zn_metrics_row *rows;
    int64_t n;
    /* Columns of rows, [n]. */
    double *step, *loss, *smooth, *grad_norm, *lr, *loss_scale, *tokens_per_s, *device, *host;
    double *eval_step, *eval_loss; /* [n_evals] */
    int64_t n_evals;
    json_t *json; /* run.json; NULL: none */
} zn_report_run;

/** Read a run. Zero-initialised before; release with zn_report_run_fini, also after a failure. */
ZINC_MUST_CHECK zinc_status zn_report_run_load(const char *dir, zn_report_run *out);
void zn_report_run_fini(zn_report_run *run);

/** The summary and the tables of what was asked for. */
ZINC_MUST_CHECK zinc_status zn_report_append_summary(const zn_report_run *runs, int n, zn_buf *out);
ZINC_MUST_CHECK zinc_status zn_report_append_tables(const zn_report_run *runs, int n, zn_buf *out);

#endif
