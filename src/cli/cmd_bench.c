/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bench.c — `zinc bench`: this machine's speed, as shares of what it can do. */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/sys.h"
#include "bench/bench.h"
#include "train/mpirun.h"

static const zn_option options[] = {
    {.name = "model",
     .kind = ZN_OPTION_VALUE,
     .metavar = "NAME|DIR",
     .default_text = "both",
     .help = "whose shapes: gpt2, smollm2, or a folder with config.json"},
    {.name = "threads",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "all cores",
     .help = "compute threads; ranks of the collectives"},
    {.name = "comm",
     .kind = ZN_OPTION_VALUE,
     .metavar = "thread|mpi",
     .default_text = "thread",
     .help = "mpi: the collectives, and only they, between --threads processes, which are started\n"
             "unless mpirun has"},
    {.name = "seconds",
     .kind = ZN_OPTION_VALUE,
     .metavar = "X",
     .default_text = "0.3",
     .help = "at least this long for each row"},
    {.name = "dir",
     .kind = ZN_OPTION_VALUE,
     .metavar = "DIR",
     .default_text = ".",
     .help = "folder on the disk that is measured (128 MiB, gone afterwards)"},
    {.name = "json", .kind = ZN_OPTION_FLAG, .default_text = "false", .help = "one object a line"},
};

static zinc_status append_json(zn_buf *buf, const zn_bench_row *row)
{
    ZN_TRY(zn_buf_puts(buf, "{\"name\":"));
    ZN_TRY(zn_json_append_string(buf, row->name, strlen(row->name)));
    ZN_TRY(zn_buf_puts(buf, ",\"value\":"));
    ZN_TRY(zn_json_append_number(buf, row->value));
    ZN_TRY(zn_buf_printf(buf, ",\"unit\":\"%s\",\"limit\":", row->unit));
    ZN_TRY(zn_json_append_number(buf, row->limit));
    ZN_TRY(zn_buf_puts(buf, ",\"share\":"));
    ZN_TRY(zn_json_append_number(buf, row->share));
    return zn_buf_puts(buf, "}\n");
}

static zinc_status append_text(zn_buf *buf, const zn_bench_row *row)
{
    ZN_TRY(zn_buf_printf(buf, "%-52s %10.4g %-8s", row->name, row->value, row->unit));
    if (isfinite(row->limit))
        ZN_TRY(zn_buf_printf(buf, " %5.0f%% of %.4g", row->share * 100, row->limit));
    return zn_buf_puts(buf, "\n");
}

static zinc_status print_row(void *context, const zn_bench_row *row)
{
    const bool *json = context;
    zn_buf buf = {0};
    const zinc_status status = *json ? append_json(&buf, row) : append_text(&buf, row);
    if (status == ZINC_OK) {
        fputs(buf.data, stdout);
        fflush(stdout);
    }
    zn_buf_fini(&buf);
    return status;
}

/* Whether this process measures: under --comm mpi it may only be the parent of those that do, and
 * ends with *code. */
static zinc_status choose_ranks(const zn_args *args, int n_threads, bool *mpi, bool *here,
                                int *code)
{
    const char *comm = zn_args_get(args, "comm");
    *mpi = comm && strcmp(comm, "mpi") == 0;
    *here = true;
    if (comm && !*mpi && strcmp(comm, "thread") != 0)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "--comm %s is not in this build; thread and mpi are", comm);
    if (!*mpi || zn_train_mpi_world() >= 1)
        return ZINC_OK;
    *here = false;
    return zn_train_mpirun(n_threads > 1 ? n_threads : 2, code);
}

static zinc_status run(const zn_args *args, int *code)
{
    const int n = zn_args_n_positional(args);
    const char **names = NULL;
    int64_t threads = zn_sys_cores();
    double seconds = 0.3;
    bool json = zn_args_flag(args, "json", false), mpi = false, here = true;
    const char *dir = zn_args_get(args, "dir");
    ZN_TRY(zn_args_int(args, "threads", 1, 1024, &threads));
    ZN_TRY(zn_args_real(args, "seconds", 0, 3600, &seconds));
    ZN_TRY(choose_ranks(args, (int)threads, &mpi, &here, code));
    if (!here)
        return ZINC_OK;
    ZN_TRY(zn_alloc_array(&names, (size_t)n, sizeof *names, "names"));
    for (int i = 0; i < n; i++)
        names[i] = zn_args_positional(args, i);
    const zn_bench_params params = {.names = names,
                                    .n_names = n,
                                    .n_threads = (int)threads,
                                    .seconds = seconds,
                                    .model = zn_args_get(args, "model"),
                                    .dir = dir ? dir : ".",
                                    .mpi = mpi,
                                    .row = print_row,
                                    .context = &json};
    const zinc_status status = zn_bench_run(&params);
    zn_free(names);
    return status;
}

static int run_bench(const zn_args *args)
{
    int code = 0;
    const zinc_status status = run(args, &code);
    return status == ZINC_OK ? code : zn_cli_fail("bench", status);
}

const zn_command zn_command_bench = {
    .name = "bench",
    .summary = "measure this machine, as shares of what it can do",
    .positional = "NAME",
    .min_positional = 0,
    .max_positional = -1,
    .options = options,
    .n_options = (int)(sizeof options / sizeof options[0]),
    .epilog = "Names: memory, flops, gemm, gemm_bf16, attention, norm, loss, optimizer, comm, "
              "disk, startup,\n"
              "or how a row's name begins:\n"
              "  zinc bench gemm.gpt2 optimizer --threads 1\n"
              "  zinc bench comm --comm mpi --threads 2\n",
    .run = run_bench,
};
