/* SPDX-License-Identifier: Apache-2.0 */
#include "train/observer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sys.h"
#include "train/monitor.h"

/* Seconds; phase[] without the waits inside, forward with them. */
typedef struct step_times {
    double phase[ZN_N_PHASES];
    double reduce_wait, gather_wait;
    double forward, compute;                /* compute: forward and backward, waits included */
    double forward_wait;                    /* of forward */
    double sent, to_replicas, of_secondary; /* bytes; the latter two are in the first */
} step_times;

struct zn_observer {
    const zn_train_setup *s;
    const zn_config_values *config;
    zn_engine *engine;
    zn_device *dev;
    zn_monitor *monitor;
    char *eval_path;
    double mark;        /* zn_sys_now() of the last lap */
    zn_zero_stats seen; /* at the last lap */
    step_times before;  /* bytes sent until this step */
    step_times now;     /* of this step */
    step_times sum;     /* of the n_summed steps since the last line */
    int64_t n_summed;
    double flops, head_forward_flops; /* of this step on this rank */
    step_times run; /* of all n_steps; not of the first of several, which warms up */
    bool warm;
    int64_t n_steps;
    double run_flops, run_head_forward_flops;
};

/* ---- opening ---- */

static zinc_status dump_state(const zn_train_setup *s)
{
    zn_buf text = {0};
    const zinc_status status = zn_config_append_table(s->config, &text);
    if (status == ZINC_OK)
        fprintf(stderr, "resolved configuration (key, value, where from):\n%s", text.data);
    zn_buf_fini(&text);
    return status;
}

/* eval.jsonl of a run that this one replaces goes. */
static zinc_status open_eval(zn_observer *o, int64_t first_step)
{
    ZN_TRY(zn_fs_join(o->s->o->output_dir, "eval.jsonl", &o->eval_path));
    if (first_step == 0 && unlink(o->eval_path) != 0 && errno != ENOENT)
        ZN_FAIL(ZINC_E_IO, "cannot remove %s of an earlier run: %s", o->eval_path, strerror(errno));
    return ZINC_OK;
}

zinc_status zn_observer_open(const zn_train_setup *setup, zn_engine *engine, zn_device *dev,
                             int64_t first_step, zn_observer **out)
{
    zinc_status status;
    zn_observer *o = NULL;
    const zn_monitor_params monitor = {
        .config = setup->values, .output_dir = setup->o->output_dir, .first_step = first_step};
    ZN_TRY(zn_alloc(&o, sizeof *o, "the observer of a run"));
    o->s = setup;
    o->config = setup->values;
    o->engine = engine;
    o->dev = dev;
    ZN_TRY_GOTO(open_eval(o, first_step));
    ZN_TRY_GOTO(zn_monitor_open(&monitor, &o->monitor));
    if (o->config->dump_state)
        ZN_TRY_GOTO(dump_state(setup));
    *out = o;
    return ZINC_OK;
fail:
    zn_observer_close(o);
    return status;
}

void zn_observer_close(zn_observer *observer)
{
    if (!observer)
        return;
    zn_monitor_close(observer->monitor);
    zn_free(observer->eval_path);
    zn_free(observer);
}

/* ---- the clock ---- */

static void count_bytes(const zn_observer *o, step_times *out)
{
    zn_comm_stats comm;
    zn_zero_stats zero;
    zn_comm_get_stats(zn_engine_comm(o->engine), &comm);
    zn_zero_get_stats(zn_engine_zero(o->engine), &zero);
    out->sent = (double)(comm.all_gather_bytes + comm.reduce_scatter_bytes);
    out->to_replicas = (double)zero.replica_bytes;
    out->of_secondary = (double)zero.secondary_bytes;
}

void zn_observer_begin(zn_observer *observer, double now)
{
    if (!observer)
        return;
    observer->now = (step_times){0};
    observer->flops = 0;
    observer->head_forward_flops = 0;
    count_bytes(observer, &observer->before);
    zn_zero_get_stats(zn_engine_zero(observer->engine), &observer->seen);
    observer->mark = now;
}

void zn_observer_lap(zn_observer *observer, zn_phase phase, double now)
{
    zn_zero_stats stats;
    if (!observer)
        return;
    step_times *t = &observer->now;
    zn_zero_get_stats(zn_engine_zero(observer->engine), &stats);
    const double reduce = stats.reduce_wait_s - observer->seen.reduce_wait_s;
    const double gather = stats.gather_wait_s - observer->seen.gather_wait_s;
    t->phase[phase] += now - observer->mark - reduce - gather;
    t->reduce_wait += reduce;
    t->gather_wait += gather;
    t->forward += stats.forward_s - observer->seen.forward_s;
    t->forward_wait += stats.forward_wait_s - observer->seen.forward_wait_s;
    if (phase == ZN_PHASE_COMPUTE)
        t->compute += now - observer->mark;
    observer->seen = stats;
    observer->mark = now;
}

void zn_observer_count(zn_observer *observer, const zn_batch *batch)
{
    if (!observer)
        return;
    const zn_model_spec *spec = &observer->s->spec;
    observer->flops += zn_model_flops(spec, batch->B, batch->T);
    observer->head_forward_flops +=
        2 * (double)batch->B * (double)batch->T * (double)spec->C * (double)spec->V;
}

static void add_times(step_times *sum, const step_times *t)
{
    for (int i = 0; i < ZN_N_PHASES; i++)
        sum->phase[i] += t->phase[i];
    sum->reduce_wait += t->reduce_wait;
    sum->gather_wait += t->gather_wait;
    sum->forward += t->forward;
    sum->forward_wait += t->forward_wait;
    sum->compute += t->compute;
    sum->sent += t->sent;
    sum->to_replicas += t->to_replicas;
    sum->of_secondary += t->of_secondary;
}

/* ---- what is printed ---- */

static bool is_due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

static zinc_status append_times(const zn_observer *o, int64_t step, zn_buf *out)
{
    const double ms = 1e3 / (double)o->n_summed;
    const step_times *t = &o->sum;
    if (o->n_summed == 1)
        ZN_TRY(zn_buf_printf(out, "time of step %lld (ms): ", (long long)step));
    else
        ZN_TRY(zn_buf_printf(out, "time of steps %lld to %lld (ms each): ",
                             (long long)(step - o->n_summed + 1), (long long)step));
    return zn_buf_printf(out,
                         "data %.2f | forward+backward %.2f | reduce wait %.2f | gather wait %.2f "
                         "| step %.2f | logging %.2f",
                         t->phase[ZN_PHASE_DATA] * ms, t->phase[ZN_PHASE_COMPUTE] * ms,
                         t->reduce_wait * ms, t->gather_wait * ms, t->phase[ZN_PHASE_STEP] * ms,
                         t->phase[ZN_PHASE_LOGGING] * ms);
}

static zinc_status append_memory(const zn_observer *o, int64_t step, zn_buf *out)
{
    zn_mem_usage usage;
    char now[32], peak[32];
    zn_device_usage(o->dev, ZN_PLACE_DEVICE, &usage);
    ZN_TRY(zn_buf_printf(out, "device memory after step %lld, now (peak): ", (long long)step));
    for (int c = 0; c < ZN_N_MEM_CATEGORIES; c++) {
        zn_train_format_bytes(now, sizeof now, (double)usage.now[c]);
        zn_train_format_bytes(peak, sizeof peak, (double)usage.peak[c]);
        ZN_TRY(zn_buf_printf(out, "%s %s (%s) | ", zn_mem_category_name((zn_mem_category)c), now,
                             peak));
    }
    zn_train_format_bytes(now, sizeof now, (double)usage.total_now);
    zn_train_format_bytes(peak, sizeof peak, (double)usage.total_peak);
    return zn_buf_printf(out, "sum %s (%s)", now, peak);
}

static zinc_status append_phase(const char *name, double flops, double seconds, zn_buf *out)
{
    ZN_TRY(zn_buf_printf(out, "\n  %-10s %12.4g %12.2f", name, flops, seconds * 1e3));
    return seconds > 0 ? zn_buf_printf(out, " %12.4g", flops / seconds)
                       : zn_buf_printf(out, " %12s", "-");
}

/* A third of the model's FLOPs is forward. The head's forward runs inside backward, tile by tile,
 * and is counted where its time is. */
static zinc_status append_profile(const zn_observer *o, int64_t step, zn_buf *out)
{
    const zn_train_setup *s = o->s;
    const step_times *t = &o->now;
    const double forward = o->flops / 3 - o->head_forward_flops;
    const zn_param_list *list = zn_engine_param_list(o->engine);
    const double step_s = t->phase[ZN_PHASE_STEP];
    const double total = t->phase[ZN_PHASE_DATA] + t->compute + step_s + t->phase[ZN_PHASE_LOGGING];
    ZN_TRY(zn_buf_printf(out,
                         "profile of step %lld, rank 0 of %d, stage %d\n"
                         "  parameters %lld, trainable %lld; micro-batch %lld, accumulation %lld\n"
                         "  %-10s %12s %12s %12s",
                         (long long)step, s->n_ranks, o->config->zero.stage,
                         (long long)zn_param_list_elems(list, false),
                         (long long)zn_param_list_elems(list, true), (long long)s->micro_batch,
                         (long long)s->accumulation, "phase", "FLOPs", "time, ms", "FLOP/s"));
    ZN_TRY(append_phase("forward", forward, t->forward, out));
    ZN_TRY(append_phase("backward", o->flops - forward, t->compute - t->forward, out));
    ZN_TRY(zn_buf_printf(out, "\n  %-10s %12s %12.2f %12s", "step", "-", step_s * 1e3, "-"));
    ZN_TRY(append_phase("sum", o->flops, total, out));
    return zn_buf_printf(
        out,
        "\n  FLOPs are those of matrices and attention, 6 a weight and token; recomputation is not "
        "counted. Waiting for\n  other ranks is in the times. Backward has the head's forward.");
}

static zinc_status print_profile(const zn_observer *o, int64_t step, zn_progress *progress)
{
    zinc_status status;
    const char *path = o->config->flops_profiler.output_file;
    zn_buf text = {0};
    ZN_TRY_GOTO(append_profile(o, step, &text));
    if (!path || !*path) {
        ZN_TRY_GOTO(zn_progress_note(progress, text.data));
    } else {
        ZN_TRY_GOTO(zn_buf_puts(&text, "\n"));
        ZN_TRY_GOTO(zn_fs_write_atomic(path, text.data, text.n));
    }
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status note_with(const zn_observer *o, int64_t step, zn_progress *progress,
                             zinc_status (*append)(const zn_observer *, int64_t, zn_buf *))
{
    zn_buf text = {0};
    zinc_status status = append(o, step, &text);
    if (status == ZINC_OK)
        status = zn_progress_note(progress, text.data);
    zn_buf_fini(&text);
    return status;
}

static zinc_status print_due(zn_observer *o, int64_t step, zn_progress *progress)
{
    const zn_config_values *c = o->config;
    const int64_t every = c->steps_per_print;
    const bool last = step == o->s->max_steps;
    if (c->wall_clock_breakdown && (every == 0 || last || is_due(every, step))) {
        ZN_TRY(note_with(o, step, progress, append_times));
        o->sum = (step_times){0};
        o->n_summed = 0;
    }
    if (c->memory_breakdown && (last || is_due(every > 0 ? every : o->s->o->logging_steps, step)))
        ZN_TRY(note_with(o, step, progress, append_memory));
    if (c->flops_profiler.enabled && step == c->flops_profiler.profile_step)
        ZN_TRY(print_profile(o, step, progress));
    return ZINC_OK;
}

static void add_run(zn_observer *o)
{
    if (o->n_steps == 1 && !o->warm) {
        o->run = (step_times){0};
        o->run_flops = o->run_head_forward_flops = 0;
        o->n_steps = 0;
        o->warm = true;
    }
    add_times(&o->run, &o->now);
    o->run_flops += o->flops;
    o->run_head_forward_flops += o->head_forward_flops;
    o->n_steps++;
}

zinc_status zn_observer_step(zn_observer *observer, const zn_metrics_row *row,
                             zn_progress *progress)
{
    ZN_TRY(zn_monitor_step(observer->monitor, row));
    zn_observer_lap(observer, ZN_PHASE_LOGGING, zn_sys_now());
    count_bytes(observer, &observer->now);
    observer->now.sent -= observer->before.sent;
    observer->now.to_replicas -= observer->before.to_replicas;
    observer->now.of_secondary -= observer->before.of_secondary;
    add_times(&observer->sum, &observer->now);
    observer->n_summed++;
    add_run(observer);
    return print_due(observer, row->step, progress);
}

/* ---- the whole run ---- */

/* One line: ms a step, share of the step, and for arithmetic FLOPs and the share of the peak. */
static zinc_status append_share(const zn_observer *o, const char *name, double seconds,
                                double flops, double peak, zn_buf *out)
{
    const step_times *t = &o->run;
    const double n = (double)o->n_steps;
    double total = t->reduce_wait + t->gather_wait;
    for (int i = 0; i < ZN_N_PHASES; i++)
        total += t->phase[i];
    ZN_TRY(zn_buf_printf(out, "\n  %-20s %10.2f %6.1f%%", name, seconds * 1e3 / n,
                         total > 0 ? 100 * seconds / total : 0));
    if (flops <= 0)
        return ZINC_OK;
    ZN_TRY(zn_buf_printf(out, " %12.4g", flops / n));
    return peak > 0 && seconds > 0 ? zn_buf_printf(out, " %8.1f%%", 100 * flops / seconds / peak)
                                   : ZINC_OK;
}

/* Parameters and gradients, exactly, and which of them leave the shard group. */
static zinc_status append_sent(const zn_observer *o, zn_buf *out)
{
    const double n = (double)o->n_steps;
    ZN_TRY(zn_buf_printf(out, "\n  sent: %.0f bytes a step", o->run.sent / n));
    if (o->run.to_replicas > 0)
        ZN_TRY(zn_buf_printf(out, ", %.0f of them to replicas", o->run.to_replicas / n));
    if (o->run.of_secondary > 0)
        ZN_TRY(zn_buf_printf(out, ", %.0f of them from second copies", o->run.of_secondary / n));
    return ZINC_OK;
}

static zinc_status append_summary(const zn_observer *o, double peak, zn_buf *out)
{
    const step_times *t = &o->run;
    const double compute = t->phase[ZN_PHASE_COMPUTE];
    const double forward = t->forward - t->forward_wait;
    const double forward_flops = o->run_flops / 3 - o->run_head_forward_flops;
    ZN_TRY(zn_buf_printf(
        out, "profile of %lld steps%s, rank 0, a step on average\n  %-20s %10s %7s %12s %9s",
        (long long)o->n_steps, o->warm ? " after the first" : "", "phase", "ms", "share", "FLOPs",
        "of peak"));
    ZN_TRY(append_share(o, "data", t->phase[ZN_PHASE_DATA], 0, 0, out));
    ZN_TRY(append_share(o, "forward", forward, forward_flops, peak, out));
    ZN_TRY(append_share(o, "backward", compute - forward, o->run_flops - forward_flops, peak, out));
    ZN_TRY(append_share(o, "waiting to reduce", t->reduce_wait, 0, 0, out));
    ZN_TRY(append_share(o, "waiting to gather", t->gather_wait, 0, 0, out));
    ZN_TRY(append_share(o, "optimizer", t->phase[ZN_PHASE_STEP], 0, 0, out));
    ZN_TRY(append_share(o, "other", t->phase[ZN_PHASE_LOGGING], 0, 0, out));
    ZN_TRY(append_sent(o, out));
    return zn_buf_printf(
        out,
        "\n  peak: %.4g GFLOP/s of multiply-adds between registers, measured at the start. "
        "Backward has the head's forward.",
        peak * 1e-9);
}

zinc_status zn_observer_summary(const zn_observer *observer, double peak_flops,
                                zn_progress *progress)
{
    zn_buf text = {0};
    if (observer->n_steps == 0)
        return ZINC_OK;
    zinc_status status = append_summary(observer, peak_flops, &text);
    if (status == ZINC_OK)
        status = zn_progress_note(progress, text.data);
    zn_buf_fini(&text);
    return status;
}

/* ---- evaluation ---- */

static zinc_status append_line(const char *path, const zn_buf *line)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        ZN_FAIL(ZINC_E_IO, "cannot write %s: %s", path, strerror(errno));
    const zinc_status status =
        zn_fs_pwrite_all(fd, line->data, line->n, lseek(fd, 0, SEEK_END), path);
    if (close(fd) != 0)
        zn_warn("train", "closing %s: %s", path, strerror(errno));
    return status;
}

zinc_status zn_observer_eval(zn_observer *observer, int64_t step, double loss)
{
    zinc_status status;
    zn_buf line = {0};
    ZN_TRY_GOTO(zn_buf_printf(&line, "{\"step\":%lld,\"eval_loss\":", (long long)step));
    ZN_TRY_GOTO(zn_json_append_number(&line, loss));
    ZN_TRY_GOTO(zn_buf_puts(&line, ",\"perplexity\":"));
    ZN_TRY_GOTO(zn_json_append_number(&line, exp(loss)));
    ZN_TRY_GOTO(zn_buf_puts(&line, "}\n"));
    ZN_TRY_GOTO(append_line(observer->eval_path, &line));
    ZN_TRY_GOTO(zn_monitor_eval(observer->monitor, step, loss));
fail:
    zn_buf_fini(&line);
    return status;
}
