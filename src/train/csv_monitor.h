/* SPDX-License-Identifier: Apache-2.0 */
/* csv_monitor.h — one CSV file a tag, as DeepSpeed's csv_monitor writes them.
 *
 * "Train/Samples/lr" goes to Train_Samples_lr.csv, whose first line is "step,lr". A run that starts
 * again in the same folder appends; unlike DeepSpeed's, the header is not repeated.
 * Layer: train (may use base). */
#ifndef ZN_TRAIN_CSV_MONITOR_H
#define ZN_TRAIN_CSV_MONITOR_H

#include <stdint.h>

#include "base/mem.h"

typedef struct zn_csv_monitor zn_csv_monitor;

/** Write into `dir`, which is made. keep_up_to >= 0 cuts rows of later steps away from a file when
 *  it is first written to; -1 keeps all. Close with zn_csv_monitor_close. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_csv_monitor_open(const char *dir, int64_t keep_up_to,
                                                zn_csv_monitor **out);

/** Append one row to each of n tags' files. Tags must outlive the monitor. Errors: E_IO, E_NOMEM;
 *  E_INVALID past 16 tags. */
ZINC_MUST_CHECK zinc_status zn_csv_monitor_write(zn_csv_monitor *csv, int64_t step,
                                                 const char *const *tags, const double *values,
                                                 int n);

/** Close; NULL is fine. */
void zn_csv_monitor_close(zn_csv_monitor *csv);

#endif
