/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_lr.c — `zinc lr`: the learning rate of every step that a configuration gives, before anything
 * runs. The same functions as in training, so what is printed is what will be used. */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/hyper.h"
#include "train/plot.h"

#define MAX_STEPS 100000000
#define DEFAULT_STEPS 100
/* Any positive width will do: a rate does not depend on it, but "auto" bucket sizes want one. */
#define ANY_HIDDEN_SIZE 1024

/* Everything a rate depends on. */
typedef struct lr_run {
    zn_config *config;
    const zn_optim_ops *ops;
    zn_optim_hyper hyper;
    zn_lr_schedule schedule;
    int64_t n_steps;
} lr_run;

/* World size that the file's own batch sizes ask for, or 1: a rate does not depend on it, but the
 * three must agree. */
static int64_t implied_world_size(const zn_config *config)
{
    const zn_config_values *v = zn_config_get(config);
    if (!zn_config_is_explicit(config, "train_batch_size") ||
        !zn_config_is_explicit(config, "train_micro_batch_size_per_gpu") ||
        !zn_config_is_explicit(config, "gradient_accumulation_steps"))
        return 1;
    if (v->train_micro_batch_size_per_gpu < 1 || v->gradient_accumulation_steps < 1)
        return 1;
    const int64_t n =
        v->train_batch_size / v->train_micro_batch_size_per_gpu / v->gradient_accumulation_steps;
    return n > 0 ? n : 1;
}

static zinc_status apply_arguments(const zn_args *args, zn_config *config)
{
    static const char *const names[] = {"learning_rate", "warmup_steps", "warmup_ratio"};
    zn_config_argument given[sizeof names / sizeof names[0]];
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (zn_args_given(args, names[i]))
            given[n++] = (zn_config_argument){names[i], zn_args_get(args, names[i])};
    return zn_config_override(config, given, n);
}

static zinc_status resolve(const zn_args *args, lr_run *run)
{
    zn_config_facts facts = {.world_size = implied_world_size(run->config),
                             .hidden_size = ANY_HIDDEN_SIZE,
                             .max_steps = run->n_steps};
    ZN_TRY(zn_args_int(args, "world_size", 1, 1 << 24, &facts.world_size));
    ZN_TRY(apply_arguments(args, run->config));
    return zn_config_resolve(run->config, &facts);
}

static zinc_status find_schedule(const zn_args *args, lr_run *run)
{
    const zn_config_values *values = zn_config_get(run->config);
    const char *type = zn_args_get(args, "lr_scheduler_type");
    int64_t warmup_steps = 0;
    double warmup_ratio = 0;
    ZN_TRY(zn_optim_hyper_from_config(values, &run->ops, &run->hyper));
    if (!type)
        return zn_lr_from_config(values, run->ops, &run->hyper, &run->schedule);
    if (values->scheduler_type)
        ZN_FAIL(ZINC_E_CONFIG,
                "--lr_scheduler_type %s contradicts scheduler.type \"%s\" of the file; leave one "
                "out",
                type, values->scheduler_type);
    ZN_TRY(zn_args_real(args, "warmup_ratio", 0, 1, &warmup_ratio));
    ZN_TRY(zn_args_int(args, "warmup_steps", 0, MAX_STEPS, &warmup_steps));
    if (warmup_steps == 0) /* as the Trainer: steps win over the ratio where there are any */
        warmup_steps = (int64_t)ceil(warmup_ratio * (double)run->n_steps);
    return zn_lr_from_trainer(type, warmup_steps, run->n_steps, run->hyper.lr, &run->schedule);
}

static double beta_at(const lr_run *run, int64_t step, bool second)
{
    double beta1 = run->hyper.beta1, beta2 = run->hyper.beta2;
    (void)zn_lr_betas_at(&run->schedule, step, &beta1, &beta2);
    return second ? beta2 : beta1;
}

static double rate_at(const lr_run *run, int64_t step, int column)
{
    return column == 0 ? zn_lr_at(&run->schedule, step) : beta_at(run, step, column == 2);
}

static zinc_status append_json(const lr_run *run, zn_buf *out)
{
    static const char *const heads[] = {"{\"lr\":[", "],\"beta1\":[", "],\"beta2\":["};
    /* An optimizer without betas leaves them 0 */
    const bool has_betas = run->schedule.kind == ZN_LR_ONE_CYCLE && run->hyper.beta2 > 0;
    for (int column = 0; column < (has_betas ? 3 : 1); column++) {
        ZN_TRY(zn_buf_puts(out, heads[column]));
        for (int64_t step = 1; step <= run->n_steps; step++) {
            if (step > 1)
                ZN_TRY(zn_buf_puts(out, ","));
            ZN_TRY(zn_json_append_number(out, rate_at(run, step, column)));
        }
    }
    return zn_buf_puts(out, "]}\n");
}

static zinc_status append_plot(const zn_args *args, const lr_run *run, zn_buf *out)
{
    double *rates = NULL;
    zn_plot_params params = {.title = "learning rate",
                             .x_label = "step",
                             .ascii = zn_args_flag(args, "ascii", false),
                             .x_first = 1,
                             .x_last = (double)run->n_steps};
    int64_t width = 0;
    ZN_TRY(zn_args_int(args, "width", 20, ZN_PLOT_MAX_WIDTH, &width));
    params.width = (int)width;
    ZN_TRY(zn_alloc_array(&rates, (size_t)run->n_steps, sizeof *rates, "learning rates"));
    for (int64_t i = 0; i < run->n_steps; i++)
        rates[i] = zn_lr_at(&run->schedule, i + 1);
    const zinc_status status = zn_plot_append(&params, rates, run->n_steps, out);
    zn_free(rates);
    return status;
}

static zinc_status describe(const zn_args *args, lr_run *run, zn_buf *out)
{
    run->n_steps = DEFAULT_STEPS;
    ZN_TRY(zn_args_int(args, "steps", 1, MAX_STEPS, &run->n_steps));
    ZN_TRY(zn_config_load(zn_args_positional(args, 0), &run->config));
    ZN_TRY(resolve(args, run));
    ZN_TRY(find_schedule(args, run));
    if (zn_args_flag(args, "json", false))
        return append_json(run, out);
    return append_plot(args, run, out);
}

/* The first error of a file is the status's message; the others follow it. */
static void print_other_errors(const zn_config *config)
{
    for (int i = 1; config && i < zn_config_n_errors(config); i++)
        fprintf(stderr, "zinc lr: %s\n", zn_config_error(config, i));
}

/* Notes of the reader that a rate depends on; the others are not this command's matter. */
static void print_schedule_notes(const zn_config *config)
{
    for (int i = 0; i < zn_config_n_notes(config); i++)
        if (strstr(zn_config_note(config, i), "scheduler."))
            fprintf(stderr, "zinc lr: note: %s\n", zn_config_note(config, i));
}

static int run_lr(const zn_args *args)
{
    lr_run run = {0};
    zn_buf out = {0};
    int code = 0;
    const zinc_status status = describe(args, &run, &out);
    if (status != ZINC_OK) {
        code = zn_cli_fail("lr", status);
        print_other_errors(run.config);
    } else {
        print_schedule_notes(run.config);
        FILE *stream = zn_args_flag(args, "json", false) ? stdout : stderr;
        if (fwrite(out.data, 1, out.n, stream) != out.n || fflush(stream) != 0)
            code = zn_cli_exit_code(ZINC_E_IO);
    }
    zn_buf_fini(&out);
    zn_config_destroy(run.config);
    return code;
}

static const zn_option lr_options[] = {
    {.name = "steps",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "100",
     .help = "optimizer steps of the run; what an \"auto\" total_num_steps stands for"},
    {.name = "json", .kind = ZN_OPTION_FLAG, .help = "{\"lr\":[...]} on stdout"},
    {.name = "learning_rate",
     .kind = ZN_OPTION_VALUE,
     .metavar = "X",
     .help = "as in zinc train: for a file that leaves it open"},
    {.name = "lr_scheduler_type",
     .kind = ZN_OPTION_VALUE,
     .metavar = "NAME",
     .help = "as in zinc train: for a file without a scheduler block"},
    {.name = "warmup_steps", .kind = ZN_OPTION_VALUE, .metavar = "N", .help = "as in zinc train"},
    {.name = "warmup_ratio", .kind = ZN_OPTION_VALUE, .metavar = "X", .help = "as in zinc train"},
    {.name = "world_size",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .help = "ranks; by default what the file's batch sizes ask for"},
    {.name = "width",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "72",
     .help = "columns of the plot"},
    {.name = "ascii", .kind = ZN_OPTION_FLAG, .help = "draw with ASCII characters only"},
};

const zn_command zn_command_lr = {
    .name = "lr",
    .summary = "the learning rate of each step a config gives",
    .positional = "F",
    .min_positional = 1,
    .max_positional = 1,
    .options = lr_options,
    .n_options = sizeof lr_options / sizeof lr_options[0],
    .epilog = "The rate is that of applied steps: one skipped by an fp16 overflow does not move "
              "the schedule.\n\n"
              "  zinc lr ds_config.json --steps 1000\n"
              "  zinc lr ds_config.json --steps 60 --json\n",
    .run = run_lr,
};
