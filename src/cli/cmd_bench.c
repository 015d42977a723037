/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bench.c — `zinc bench`: this machine's speed, as shares of what it can do. */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/sys.h"
#include "bench/bench.h"

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

static zinc_status run(const zn_args *args)
{
    const int n = zn_args_n_positional(args);
    const char **names = NULL;
    int64_t threads = zn_sys_cores();
    double seconds = 0.3;
    bool json = zn_args_flag(args, "json", false);
    const char *dir = zn_args_get(args, "dir");
    ZN_TRY(zn_args_int(args, "threads", 1, 1024, &threads));
    ZN_TRY(zn_args_real(args, "seconds", 0, 3600, &seconds));
    ZN_TRY(zn_alloc_array(&names, (size_t)n, sizeof *names, "names"));
    for (int i = 0; i < n; i++)
        names[i] = zn_args_positional(args, i);
    const zn_bench_params params = {.names = names,
                                    .n_names = n,
                                    .n_threads = (int)threads,
                                    .seconds = seconds,
                                    .model = zn_args_get(args, "model"),
                                    .dir = dir ? dir : ".",
                                    .row = print_row,
                                    .context = &json};
    const zinc_status status = zn_bench_run(&params);
    zn_free(names);
    return status;
}

static int run_bench(const zn_args *args)
{
    const zinc_status status = run(args);
    return status == ZINC_OK ? 0 : zn_cli_fail("bench", status);
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
              "  zinc bench gemm.gpt2 optimizer --threads 1\n",
    .run = run_bench,
};
