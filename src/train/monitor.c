/* SPDX-License-Identifier: Apache-2.0 */
#include "train/monitor.h"

#include "base/fs.h"
#include "train/csv_monitor.h"
#include "train/tensorboard.h"

struct zn_monitor {
    zn_tensorboard *tensorboard; /* NULL: switched off */
    zn_csv_monitor *csv;
    int64_t samples_per_step;
    bool loss_scale; /* fp16 only, as DeepSpeed */
};

/* output_path/job_name; an empty output_path is the run's own folder. */
static zinc_status folder_of(const char *output_path, const char *job_name, const char *output_dir,
                             char **out)
{
    const char *base = output_path && *output_path ? output_path : output_dir;
    return job_name && *job_name ? zn_fs_join(base, job_name, out) : zn_strdup(base, out);
}

static zinc_status open_tensorboard(const zn_monitor_params *params, zn_monitor *monitor)
{
    char *dir = NULL;
    const int64_t done = params->first_step * monitor->samples_per_step;
    ZN_TRY(folder_of(params->config->tensorboard.output_path, params->config->tensorboard.job_name,
                     params->output_dir, &dir));
    const zinc_status status =
        zn_tensorboard_open(dir, done > 0 ? done + 1 : 0, &monitor->tensorboard);
    zn_free(dir);
    return status;
}

static zinc_status open_csv(const zn_monitor_params *params, zn_monitor *monitor)
{
    char *dir = NULL;
    const int64_t done = params->first_step * monitor->samples_per_step;
    ZN_TRY(folder_of(params->config->csv_monitor.output_path, params->config->csv_monitor.job_name,
                     params->output_dir, &dir));
    const zinc_status status = zn_csv_monitor_open(dir, done > 0 ? done : -1, &monitor->csv);
    zn_free(dir);
    return status;
}

zinc_status zn_monitor_open(const zn_monitor_params *params, zn_monitor **out)
{
    zinc_status status;
    zn_monitor *monitor = NULL;
    ZN_TRY(zn_alloc(&monitor, sizeof *monitor, "the monitor"));
    monitor->samples_per_step = params->config->train_batch_size;
    monitor->loss_scale = params->config->fp16.enabled;
    if (params->config->tensorboard.enabled)
        ZN_TRY_GOTO(open_tensorboard(params, monitor));
    if (params->config->csv_monitor.enabled)
        ZN_TRY_GOTO(open_csv(params, monitor));
    *out = monitor;
    return ZINC_OK;
fail:
    zn_monitor_close(monitor);
    return status;
}

static zinc_status write_all(zn_monitor *monitor, int64_t step, const char *const *tags,
                             const double *values, int n)
{
    const int64_t samples = step * monitor->samples_per_step;
    if (monitor->tensorboard)
        ZN_TRY(zn_tensorboard_write(monitor->tensorboard, samples, tags, values, n));
    return monitor->csv ? zn_csv_monitor_write(monitor->csv, samples, tags, values, n) : ZINC_OK;
}

zinc_status zn_monitor_step(zn_monitor *monitor, const zn_metrics_row *row)
{
    static const char *const tags[] = {"Train/Samples/train_loss", "Train/Samples/lr",
                                       "Train/Samples/grad_norm", "Train/Samples/tokens_per_s",
                                       "Train/Samples/loss_scale"};
    const double values[] = {row->loss, row->lr, row->grad_norm, row->tokens_per_s,
                             row->loss_scale};
    return write_all(monitor, row->step, tags, values, monitor->loss_scale ? 5 : 4);
}

zinc_status zn_monitor_eval(zn_monitor *monitor, int64_t step, double loss)
{
    static const char *const tag[] = {"Eval/Samples/eval_loss"};
    return write_all(monitor, step, tag, &loss, 1);
}

void zn_monitor_close(zn_monitor *monitor)
{
    if (!monitor)
        return;
    zn_tensorboard_close(monitor->tensorboard);
    zn_csv_monitor_close(monitor->csv);
    zn_free(monitor);
}
