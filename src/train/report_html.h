/* SPDX-License-Identifier: Apache-2.0 */
/* report_html.h — one page about a run, or about two beside each other.
 *
 * Read from the run's folder: metrics.jsonl (required), eval.jsonl (held-out losses), run.json
 * (what was asked for). The page carries everything in itself: no script, no font, nothing from a
 * network; light or dark as the reader's system is. Names from files are escaped.
 * Layer: train (may use base). */
#ifndef ZN_TRAIN_REPORT_HTML_H
#define ZN_TRAIN_REPORT_HTML_H

#include "base/mem.h"

#define ZN_REPORT_MAX_RUNS 2

/** Append the page about dirs[0..n_runs). Errors: E_INVALID for another number of runs; E_CONFIG
 *  for a folder without metrics.jsonl; E_IO, E_FORMAT for files that cannot be read; E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_report_append(const char *const *dirs, int n_runs, zn_buf *out);

#endif
