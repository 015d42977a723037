/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_report.c — `zinc report`: a page with plots about one run or two. */
#include "cli/cli.h"

#include <stdio.h>

#include "base/fs.h"
#include "train/report_html.h"

static zinc_status write_page(const zn_args *args, const char *path)
{
    zinc_status status;
    zn_buf page = {0};
    const char *dirs[ZN_REPORT_MAX_RUNS];
    const int n = zn_args_n_positional(args);
    for (int i = 0; i < n; i++)
        dirs[i] = zn_args_positional(args, i);
    ZN_TRY_GOTO(zn_report_append(dirs, n, &page));
    ZN_TRY_GOTO(zn_fs_write_atomic(path, page.data, page.n));
fail:
    zn_buf_fini(&page);
    return status;
}

static int run_report(const zn_args *args)
{
    zinc_status status = ZINC_OK;
    char *fallback = NULL;
    const char *path = zn_args_get(args, "output");
    if (!path) {
        status = zn_fs_join(zn_args_positional(args, 0), "report.html", &fallback);
        path = fallback;
    }
    if (status == ZINC_OK)
        status = write_page(args, path);
    if (status == ZINC_OK)
        fprintf(stderr, "zinc report: %s\n", path);
    zn_free(fallback);
    return status == ZINC_OK ? 0 : zn_cli_fail("report", status);
}

static const zn_option report_options[] = {
    {.name = "output",
     .kind = ZN_OPTION_VALUE,
     .metavar = "F.html",
     .default_text = "RUN/report.html",
     .help = "where the page goes"},
};

const zn_command zn_command_report = {
    .name = "report",
    .summary = "make a page with plots from a run's metrics",
    .positional = "RUN [RUN2]",
    .min_positional = 1,
    .max_positional = ZN_REPORT_MAX_RUNS,
    .options = report_options,
    .n_options = sizeof report_options / sizeof report_options[0],
    .epilog = "RUN is the --output_dir of `zinc train`; it may still be going on. With two, their "
              "curves\nlie over each other and what they were asked for stands side by side. The "
              "page needs no\nnetwork.\n\n"
              "  zinc report out\n"
              "  zinc report out/first out/second --output compare.html\n",
    .run = run_report,
};
