/* SPDX-License-Identifier: Apache-2.0 */
/* monitor.h — the `tensorboard` and `csv_monitor` blocks of a ds_config.json.
 *
 *   monitor.c      a metrics row -> tagged values, given to the writers that the file switches on
 *   tensorboard.c  event files
 *   csv_monitor.c  one CSV file a tag
 * Tags are DeepSpeed's "Train/Samples/<name>", and so is the x axis: samples of all ranks so far.
 * A relative output_path starts at the current folder, as in DeepSpeed; an empty one means the
 * run's own output folder. job_name is a folder inside it.
 * One rank opens a monitor; one thread at a time. Layer: train (may use base, config). */
#ifndef ZN_TRAIN_MONITOR_H
#define ZN_TRAIN_MONITOR_H

#include "config/config.h"
#include "train/metrics.h"

typedef struct zn_monitor zn_monitor;

typedef struct zn_monitor_params {
    const zn_config_values *config; /* resolved; borrowed while opening */
    const char *output_dir;
    int64_t first_step; /* steps done before: a resumed run drops what was written after them */
} zn_monitor_params;

/** Open the writers that the configuration asks for. Close with zn_monitor_close.
 *  Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_monitor_open(const zn_monitor_params *params, zn_monitor **out);

/** Write one step. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_monitor_step(zn_monitor *monitor, const zn_metrics_row *row);

/** Write the loss on held-out data after `step`, tag Eval/Samples/eval_loss. Errors as above. */
ZINC_MUST_CHECK zinc_status zn_monitor_eval(zn_monitor *monitor, int64_t step, double loss);

/** Close; NULL is fine. */
void zn_monitor_close(zn_monitor *monitor);

#endif
