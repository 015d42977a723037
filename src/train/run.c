/* SPDX-License-Identifier: Apache-2.0 */
/* run.c — one rank's run: open, loop over optimizer steps, evaluate, save.
 *
 * One optimizer step: every rank takes its rows of the global batch (a function of step, micro-step
 * and rank), all ranks add up their targets, each micro-batch's gradient is weighted so that the
 * sum over micro-batches and ranks is the mean asked for, and the logged loss is that very mean. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"
#include "kernels/peak.h"
#include "train/banner.h"
#include "train/loader.h"
#include "train/metrics.h"
#include "train/nodes.h"
#include "train/overflow.h"
#include "train/observer.h"
#include "train/progress.h"
#include "train/run_json.h"
#include "train/saving.h"
#include "train/train_internal.h"

#define PEAK_SECONDS 5e-3

typedef struct rank_run {
    const zn_train_setup *s;
    int rank, n_ranks;
    zn_device *dev;
    zn_comm *comm;
    zn_engine *engine;
    zn_loader *loader;
    zn_batch *batches;  /* [accumulation] of the step; the loader's */
    zn_batch held_out;  /* of an evaluation */
    double *weights;    /* [accumulation] of a token's loss */
    double began, mark; /* zn_sys_now() when the step began, and at its last lap */
    double peak_flops;  /* of all ranks; rank 0 */
    bool overflow_told;
    int64_t n_clipped;     /* steps */
    int64_t *rows;         /* [eval_batch] scratch */
    double *gathered;      /* [4 * n_ranks] scratch of the exchanges */
    zn_metrics *metrics;   /* rank 0 */
    zn_progress *progress; /* rank 0 */
    zn_observer *observer; /* rank 0 */
    zn_saver *saver;
    zn_nodes nodes; /* of processes; zeroed with threads, which have one folder */
} rank_run;

/* Sums over ranks, in rank order, of up to 4 numbers. Collective. */
static zinc_status sum_over_ranks(rank_run *run, double *values, int n, const char *what)
{
    ZN_TRY(zn_comm_exchange(run->comm, values, (size_t)n * sizeof *values, run->gathered, what));
    for (int k = 0; k < n; k++) {
        values[k] = 0;
        for (int r = 0; r < run->n_ranks; r++)
            values[k] += run->gathered[r * n + k];
    }
    return ZINC_OK;
}

/* A line for people, below which the progress goes on. */
static zinc_status note(rank_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static zinc_status note(rank_run *run, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return zn_progress_note(run->progress, text);
}

/* ---- one optimizer step ---- */

static void begin_step(rank_run *run)
{
    run->began = run->mark = zn_sys_now();
    zn_observer_begin(run->observer, run->began);
}

/* What ran since the last lap, or the step's begin, was `phase`. */
static void lap(rank_run *run, zn_phase phase)
{
    static const char *const names[ZN_N_PHASES] = {"data", "forward and backward", "optimizer",
                                                   "logging"};
    const double now = zn_sys_now();
    zn_trace_span(run->s->trace, run->rank, ZN_TRACE_PHASES, names[phase], NULL, run->mark, now);
    zn_observer_lap(run->observer, phase, now);
    run->mark = now;
}

typedef struct step_totals {
    double targets, tokens; /* of the global batch */
    bool stop;              /* some rank has a signal */
    bool saved;             /* every rank is through with a phase of the save under way */
} step_totals;

static zinc_status load_batches(rank_run *run, int64_t step, step_totals *out)
{
    const zn_train_setup *s = run->s;
    double sums[4] = {0, 0, zn_train_signal() != 0, zn_saver_ready(run->saver)};
    ZN_TRY(zn_loader_step(run->loader, step, &run->batches));
    for (int64_t m = 0; m < s->accumulation; m++) {
        sums[0] += (double)run->batches[m].n_targets;
        sums[1] += (double)run->batches[m].n_tokens;
    }
    ZN_TRY(sum_over_ranks(run, sums, 4, "batch sizes"));
    *out = (step_totals){.targets = sums[0],
                         .tokens = sums[1],
                         .stop = sums[2] > 0,
                         .saved = sums[3] == run->n_ranks};
    return ZINC_OK;
}

/* What one token's loss weighs in the mean that is trained and logged. */
static double token_weight(const rank_run *run, const zn_batch *batch, const step_totals *totals)
{
    if (run->s->o->loss_average == ZN_LOSS_AVERAGE_TOKENS)
        return 1 / totals->targets;
    return batch->n_targets == 0
               ? 0
               : 1 / ((double)batch->n_targets * (double)run->s->accumulation * run->n_ranks);
}

/* The optimizer step. The first overflow of a run is explained, and the one that ends it. */
static zinc_status step_or_explain(rank_run *run, int64_t step, zn_engine_step_result *result)
{
    char text[640];
    zn_error error;
    zinc_status status = zn_engine_step(run->engine, result);
    run->n_clipped += !result->overflow && result->clip_coef < 1;
    if (!result->overflow || (status == ZINC_OK && run->overflow_told))
        return status;
    zn_error_save(&error, status);
    const zn_train_overflow overflow = {
        .step = step, .batches = run->batches, .weights = run->weights, .result = result};
    ZN_TRY(zn_train_explain_overflow(run->s, run->engine, &overflow, text, sizeof text));
    run->overflow_told = true;
    if (error.status == ZINC_OK)
        return run->rank == 0 ? note(run, "first overflow of the run: %s", text) : ZINC_OK;
    status = zn_error_restore(&error);
    zn_error_prefix("%s; ", text);
    return status;
}

static zinc_status run_step(rank_run *run, int64_t step, const step_totals *totals, double *loss,
                            zn_engine_step_result *result)
{
    const zn_train_setup *s = run->s;
    const bool saves = zn_saver_due(s, step + 1);
    *loss = 0;
    if (totals->targets == 0)
        return zn_engine_skip(run->engine, result);
    if (saves && step > s->resume.step) /* a step has been done: activations have their memory */
        zn_saver_expect(run->saver);
    for (int64_t m = 0; m < s->accumulation; m++) {
        double sum = 0;
        const double weight = run->weights[m] = token_weight(run, &run->batches[m], totals);
        zn_observer_count(run->observer, &run->batches[m]);
        ZN_TRY(zn_engine_micro_batch(run->engine, &run->batches[m], weight,
                                     m == s->accumulation - 1, &sum));
        *loss += sum * weight;
    }
    lap(run, ZN_PHASE_COMPUTE);
    if (saves)
        zn_saver_expect(run->saver);
    ZN_TRY(step_or_explain(run, step, result));
    return sum_over_ranks(run, loss, 1, "loss");
}

/* ---- evaluation ---- */

/* Rows of a rank's evaluation batch. */
static int64_t eval_batch(const zn_train_setup *s)
{
    return s->o->eval_batch_size > 0 ? s->o->eval_batch_size : s->micro_batch;
}

/* Mean token loss over the validation set, each row once at any world size; a signal to any rank
 * breaks it off. Collective. */
static zinc_status evaluate(rank_run *run, double *loss, bool *stopped)
{
    const zn_train_setup *s = run->s;
    const int64_t mb = eval_batch(s);
    const int64_t n_rows = zn_dataset_n_rows(s->validation);
    double sums[2] = {0, 0};
    for (int64_t first = 0; first < n_rows; first += mb * run->n_ranks) {
        for (int64_t i = 0; i < mb; i++) {
            const int64_t row = first + run->rank * mb + i;
            run->rows[i] = row < n_rows ? row : -1;
        }
        zn_train_beat();
        ZN_TRY(zn_batch_fill(&run->held_out, s->validation, run->rows, mb, first));
        ZN_TRY(zn_engine_eval(run->engine, &run->held_out, &sums[0]));
        sums[1] += (double)run->held_out.n_targets;
        double signals = zn_train_signal() != 0;
        ZN_TRY(sum_over_ranks(run, &signals, 1, "evaluation"));
        *stopped = signals > 0 && first + mb * run->n_ranks < n_rows;
        if (*stopped)
            return ZINC_OK;
    }
    ZN_TRY(sum_over_ranks(run, sums, 2, "evaluation"));
    *loss = sums[1] > 0 ? sums[0] / sums[1] : NAN;
    return ZINC_OK;
}

static zinc_status evaluate_and_report(rank_run *run, int64_t step)
{
    double loss = 0;
    bool stopped = false;
    if (!run->s->validation)
        return ZINC_OK;
    ZN_TRY(evaluate(run, &loss, &stopped));
    if (run->rank != 0)
        return ZINC_OK;
    if (stopped)
        return note(run, "step %lld: a signal broke the evaluation off", (long long)step);
    ZN_TRY(zn_observer_eval(run->observer, step, loss));
    return note(run, "step %lld: held-out loss %.4f, perplexity %.2f", (long long)step, loss,
                exp(loss));
}

/* ---- saving ---- */

static zinc_status save_model(rank_run *run, const char *dir)
{
    const zn_train_setup *s = run->s;
    zinc_status status = ZINC_OK;
    if (run->rank == 0)
        status = zn_fs_mkdirs(dir);
    ZN_TRY(zn_comm_agree(run->comm, status));
    ZN_TRY(
        zn_engine_save(run->engine, dir, s->save_dtype, !s->o->save_dtype, s->o->max_shard_bytes));
    if (run->rank == 0)
        status = zn_train_copy_model_files(s, dir);
    return zn_comm_agree(run->comm, status);
}

/* Nodes without a folder in common cannot write one model: the weights stay where they are. */
static zinc_status keep_in_checkpoint(rank_run *run, int64_t step)
{
    ZN_TRY(zn_saver_save(run->saver, step));
    ZN_TRY(zn_saver_finish(run->saver));
    if (zn_saver_last(run->saver) != step)
        ZN_FAIL(ZINC_E_IO, "the weights after step %lld could not be saved", (long long)step);
    if (run->rank == 0)
        zn_info("train",
                "the weights after step %lld are in %s/checkpoint-%lld of %d nodes: bring these "
                "folders to one machine, and `zinc export` FOLDER... OUT makes the model",
                (long long)step, run->s->o->output_dir, (long long)step, run->nodes.n_folders);
    return ZINC_OK;
}

/* ---- the loop ---- */

static zinc_status report_step(rank_run *run, int64_t step, double seconds,
                               const step_totals *totals, double loss,
                               const zn_engine_step_result *result)
{
    zn_mem_usage usage;
    zn_train_beat();
    if (run->rank != 0)
        return ZINC_OK;
    zn_device_usage(run->dev, ZN_PLACE_DEVICE, &usage);
    const zn_metrics_row row = {.step = step + 1,
                                .epoch = (double)(step + 1) / (double)run->s->steps_per_epoch,
                                .loss = loss,
                                .grad_norm = result->grad_norm,
                                .lr = result->lr,
                                .loss_scale = result->loss_scale,
                                .overflow = result->overflow,
                                .tokens = (int64_t)totals->tokens,
                                .tokens_per_s = totals->tokens / seconds,
                                .step_ms = seconds * 1e3,
                                .mem_device_peak = usage.total_peak,
                                .mem_host_peak = zn_sys_rss_peak_bytes()};
    ZN_TRY(zn_metrics_write(run->metrics, &row));
    if (result->overflow)
        ZN_TRY(note(run,
                    "step %lld skipped: the gradient of %s is not finite (rank %d); loss scale %g",
                    (long long)row.step, result->bad_param ? result->bad_param : "?",
                    result->bad_rank, result->loss_scale));
    if (run->s->o->json)
        ZN_TRY(zn_train_print_row(&row));
    ZN_TRY(zn_progress_step(run->progress, &row));
    return zn_observer_step(run->observer, &row, run->progress);
}

static bool due(int64_t every, int64_t step, int64_t last)
{
    return every > 0 && step % every == 0 && step != last;
}

/* The loss scale cannot fall any more. The step is reported, and since nothing is broken, what was
 * learned before it is kept. `loss` is this rank's part. */
static zinc_status give_up(rank_run *run, int64_t step, double seconds, const step_totals *totals,
                           double loss, const zn_engine_step_result *result, zinc_status status)
{
    zn_error error;
    zn_error_save(&error, status);
    ZN_TRY(sum_over_ranks(run, &loss, 1, "loss"));
    ZN_TRY(zn_comm_agree(run->comm, report_step(run, step, seconds, totals, loss, result)));
    if (result->n_applied > 0) {
        ZN_TRY(zn_saver_save(run->saver, step + 1));
        ZN_TRY(zn_saver_finish(run->saver));
    }
    status = zn_error_restore(&error);
    if (result->n_applied > 0 && zn_saver_last(run->saver) == step + 1)
        zn_error_prefix("(what was learned before it is in %s/checkpoint-%lld) ",
                        run->s->o->output_dir, (long long)(step + 1));
    return status;
}

static zinc_status one_step(rank_run *run, int64_t step, bool *stop)
{
    const zn_train_setup *s = run->s;
    zn_engine_step_result result = {0};
    step_totals totals = {0};
    double loss = 0;
    begin_step(run);
    ZN_TRY(load_batches(run, step, &totals));
    lap(run, ZN_PHASE_DATA);
    *stop = totals.stop;
    if (totals.saved)
        ZN_TRY(zn_saver_advance(run->saver));
    if (totals.stop)
        return ZINC_OK;
    const zinc_status status = run_step(run, step, &totals, &loss, &result);
    if (status != ZINC_OK)
        return result.overflow
                   ? give_up(run, step, zn_sys_now() - run->began, &totals, loss, &result, status)
                   : status;
    lap(run, ZN_PHASE_STEP);
    ZN_TRY(zn_comm_agree(run->comm,
                         report_step(run, step, run->mark - run->began, &totals, loss, &result)));
    if (due(s->o->eval_steps, step + 1, s->max_steps))
        ZN_TRY(evaluate_and_report(run, step + 1));
    return zn_saver_due(s, step + 1) ? zn_saver_save(run->saver, step + 1) : ZINC_OK;
}

/* After a signal: a checkpoint of this very step, if asked for. */
static zinc_status stop_early(rank_run *run, int64_t step)
{
    if (run->s->o->save_on_signal)
        ZN_TRY(zn_saver_save(run->saver, step));
    ZN_TRY(zn_saver_finish(run->saver));
    if (run->rank != 0)
        return ZINC_OK;
    if (zn_saver_last(run->saver) == step)
        zn_warn("train",
                "stopped by a signal after step %lld, which is in %s/checkpoint-%lld "
                "(--resume_from_checkpoint goes on)",
                (long long)step, run->s->o->output_dir, (long long)step);
    else
        zn_warn("train", "stopped by a signal after step %lld, which was not saved%s",
                (long long)step, run->s->o->save_on_signal ? "" : " (--save_on_signal saves)");
    return ZINC_OK;
}

/* With --profile, after the last span of every rank. */
static zinc_status write_profile(rank_run *run)
{
    char *path = NULL;
    if (!run->s->trace || run->rank != 0)
        return ZINC_OK;
    ZN_TRY(zn_observer_summary(run->observer, run->peak_flops / run->n_ranks, run->progress));
    ZN_TRY(zn_fs_join(run->s->o->output_dir, "trace.json", &path));
    const zinc_status status = zn_trace_write(run->s->trace, path);
    if (status == ZINC_OK)
        zn_info("train", "the trace is in %s (open it in Perfetto); %lld spans found no room", path,
                (long long)zn_trace_n_lost(run->s->trace));
    zn_free(path);
    return status;
}

static zinc_status train_loop(rank_run *run)
{
    const zn_train_setup *s = run->s;
    bool stop = false;
    int64_t step = s->resume.step;
    while (step < s->max_steps && !stop) {
        ZN_TRY(one_step(run, step, &stop));
        if (!stop)
            step++;
    }
    if (!stop)
        ZN_TRY(evaluate_and_report(run, step));
    ZN_TRY(zn_comm_agree(run->comm, write_profile(run)));
    if (run->rank == 0)
        zn_progress_finish(run->progress);
    if (stop)
        return stop_early(run, step);
    ZN_TRY(zn_saver_finish(run->saver));
    if (run->rank == 0 && run->n_clipped > 0)
        zn_info("train", "the gradient was clipped in %lld of %lld steps; grad_norm is before that",
                (long long)run->n_clipped, (long long)step);
    if (run->nodes.n_folders > 1)
        return keep_in_checkpoint(run, step);
    ZN_TRY(save_model(run, s->o->output_dir));
    if (run->rank == 0)
        zn_info("train", "the model after step %lld is in %s", (long long)step, s->o->output_dir);
    return ZINC_OK;
}

/* ---- opening and closing ---- */

/* What the cores of all ranks could do. Threads beyond this machine's cores add nothing. */
static double peak_flops(const zn_train_setup *s)
{
    double core = s->o->peak_flops;
    if (core <= 0)
        core = s->values->bf16.enabled ? zn_peak_bf16_flops(1, PEAK_SECONDS)
                                       : zn_peak_flops(1, PEAK_SECONDS);
    const int n = s->n_ranks * s->threads, cores = zn_sys_cores();
    return core * (strcmp(s->o->comm, "thread") == 0 && n > cores ? cores : n);
}

static zinc_status open_progress(const zn_train_setup *s, double peak, zn_progress **out)
{
    struct winsize size = {0};
    const bool terminal = isatty(STDERR_FILENO);
    if (terminal)
        (void)ioctl(STDERR_FILENO, TIOCGWINSZ, &size);
    const zn_progress_params params = {
        .terminal = terminal,
        .width = size.ws_col,
        .total = s->max_steps,
        .log_every = s->o->logging_steps,
        .print_every = s->values->steps_per_print,
        .flops_per_token = zn_model_flops(&s->spec, 1, s->block_size) / (double)s->block_size,
        .peak_flops = peak};
    return zn_progress_create(&params, out);
}

static zinc_status open_reports(rank_run *run)
{
    char *path = NULL;
    if (run->rank != 0)
        return ZINC_OK;
    ZN_TRY(zn_fs_join(run->s->o->output_dir, "metrics.jsonl", &path));
    const zinc_status status =
        zn_metrics_open(path, run->s->resume.dir ? run->s->resume.step : -1, &run->metrics);
    zn_free(path);
    if (status != ZINC_OK)
        return status;
    ZN_TRY(zn_run_json_write(run->s));
    zn_train_print_settings(run->s);
    zn_train_print_memory(run->s, run->engine, run->dev);
    ZN_TRY(zn_train_show_sample(run->s));
    ZN_TRY(zn_observer_open(run->s, run->engine, run->dev, run->s->resume.step, &run->observer));
    run->peak_flops = peak_flops(run->s);
    return open_progress(run->s, run->peak_flops, &run->progress);
}

static zinc_status open_comm(rank_run *run, zn_thread_world *world)
{
    const zn_train_setup *s = run->s;
    const zn_device_params device = {.rank = run->rank,
                                     .n_threads = s->threads,
                                     .device_limit_bytes = s->o->device_limit,
                                     .link_bytes_per_s = s->o->link_bytes_per_s,
                                     .link_latency_s = s->o->link_latency_s};
    const char *backend = !world ? "mpi" : run->n_ranks == 1 ? "self" : "thread";
    ZN_TRY(zn_device_open(s->o->device, &device, &run->dev));
    zn_device_set_trace(run->dev, s->trace);
    const zn_comm_params comm = {.backend = backend,
                                 .rank = run->rank, /* what the environment says; mpi compares */
                                 .n_ranks = run->n_ranks,
                                 .world = world,
                                 .dev = run->dev,
                                 .timeout_ms = (int64_t)(s->o->timeout_s * 1e3)};
    return zn_comm_open(&comm, &run->comm);
}

static zinc_status open_loader(rank_run *run)
{
    const zn_train_setup *s = run->s;
    const zn_loader_params params = {.dataset = s->train,
                                     .dev = run->dev,
                                     .seed = s->o->seed,
                                     .shuffle = s->o->shuffle,
                                     .rank = run->rank,
                                     .n_ranks = run->n_ranks,
                                     .micro_batch = s->micro_batch,
                                     .accumulation = s->accumulation,
                                     .end = s->max_steps};
    return zn_loader_create(&params, &run->loader);
}

static zinc_status open_rank(rank_run *run)
{
    const zn_train_setup *s = run->s;
    const zn_engine_params engine = zn_train_engine_params(s, run->dev, run->comm);
    ZN_TRY(zn_comm_agree(run->comm, zn_engine_create(&engine, &run->engine)));
    ZN_TRY(zn_train_load_state(s, run->engine));
    ZN_TRY(zn_saver_create(s, run->dev, run->engine, run->nodes.names ? &run->nodes : NULL,
                           &run->saver));
    ZN_TRY(open_loader(run));
    ZN_TRY(zn_alloc_array(&run->weights, (size_t)s->accumulation, sizeof *run->weights, "weights"));
    ZN_TRY(zn_alloc_array(&run->rows, (size_t)eval_batch(s), sizeof *run->rows, "row numbers"));
    ZN_TRY(zn_alloc_array(&run->gathered, 4 * (size_t)run->n_ranks, sizeof *run->gathered,
                          "exchanged numbers"));
    return zn_comm_agree(run->comm, open_reports(run));
}

static void close_rank(rank_run *run)
{
    zn_loader_destroy(run->loader);
    zn_batch_fini(&run->held_out);
    zn_free(run->weights);
    zn_free(run->rows);
    zn_free(run->gathered);
    zn_metrics_close(run->metrics);
    zn_progress_destroy(run->progress);
    zn_observer_close(run->observer);
    zn_saver_destroy(run->saver);
    zn_engine_destroy(run->engine);
    zn_comm_close(run->comm);
    zn_device_close(run->dev);
    zn_nodes_fini(&run->nodes);
}

zinc_status zn_train_rank(zn_train_setup *setup, int rank, zn_thread_world *world)
{
    rank_run run = {.s = setup, .rank = rank, .n_ranks = setup->n_ranks};
    zn_error error;
    zinc_status status = open_comm(&run, world);
    if (status == ZINC_OK && !world)
        status = zn_train_begin_processes(setup, run.comm, &run.nodes);
    if (status == ZINC_OK && !setup->resume.nothing_left)
        status = open_rank(&run);
    if (status == ZINC_OK && !setup->resume.nothing_left)
        status = train_loop(&run);
    zn_error_save(&error, status);
    if (status != ZINC_OK && run.comm)
        zn_comm_abort(run.comm, error.message);
    close_rank(&run);
    return zn_error_restore(&error);
}
