/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_export.c — `zinc export`: a checkpoint to a Hugging Face folder. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "ckpt/export.h"

#define MAX_FOLDERS 4096

/* `more` has room for MAX_FOLDERS and lives as long as *out. */
static zinc_status read_params(const zn_args *args, const char **more, zn_export_params *out)
{
    const char *dtype = zn_args_get(args, "dtype");
    const int n = zn_args_n_positional(args);
    out->checkpoint = zn_args_positional(args, 0);
    for (int i = 1; i < n - 1; i++)
        more[i - 1] = zn_args_positional(args, i);
    out->more = more;
    out->n_more = n - 2;
    out->output = zn_args_positional(args, n - 1);
    out->model = zn_args_get(args, "model");
    out->dtype = ZN_DTYPE_F32;
    out->max_shard_bytes = 5000000000;
    if (dtype && zn_dtype_parse(dtype, &out->dtype) != 0)
        ZN_FAIL(ZINC_E_INVALID, "--dtype: \"%s\" is not one of float32, bfloat16, float16", dtype);
    return zn_args_bytes(args, "max_shard_size", &out->max_shard_bytes);
}

static zinc_status append_json(zn_buf *buf, const zn_export_report *report)
{
    ZN_TRY(zn_buf_puts(buf, "{\"files\":["));
    for (int i = 0; i < report->n_files; i++) {
        ZN_TRY(zn_buf_puts(buf, i ? "," : ""));
        ZN_TRY(zn_json_append_string(buf, report->files[i], strlen(report->files[i])));
    }
    return zn_buf_printf(buf, "],\"parameters\":%lld}\n", (long long)report->n_params);
}

static zinc_status print_report(const zn_args *args, const zn_export_params *params,
                                const zn_export_report *report)
{
    if (!report->has_config)
        fprintf(stderr,
                "zinc export: no config.json beside %s; give the folder of the base model with "
                "--model, so that %s can be loaded\n",
                params->checkpoint, params->output);
    if (!zn_args_flag(args, "json", false)) {
        fprintf(stderr, "zinc export: %lld parameters in %s, %s and %d more\n",
                (long long)report->n_params, params->output, report->files[0], report->n_files - 1);
        return ZINC_OK;
    }
    zn_buf buf = {0};
    const zinc_status status = append_json(&buf, report);
    if (status == ZINC_OK)
        fputs(buf.data, stdout);
    zn_buf_fini(&buf);
    return status;
}

static int run_export(const zn_args *args)
{
    const char *more[MAX_FOLDERS];
    zn_export_params params = {0};
    zn_export_report report = {0};
    zinc_status status = read_params(args, more, &params);
    if (status == ZINC_OK)
        status = zn_export(&params, &report);
    if (status == ZINC_OK)
        status = print_report(args, &params, &report);
    zn_export_report_fini(&report);
    return status == ZINC_OK ? 0 : zn_cli_fail("export", status);
}

static const zn_option export_options[] = {
    {.name = "dtype",
     .kind = ZN_OPTION_VALUE,
     .metavar = "TYPE",
     .default_text = "float32",
     .help = "type of the written weights: float32, bfloat16 or float16"},
    {.name = "max_shard_size",
     .kind = ZN_OPTION_VALUE,
     .metavar = "BYTES",
     .default_text = "5GB",
     .help = "start another file when one would grow over this; 0: one file"},
    {.name = "model",
     .alias = "model_name_or_path",
     .kind = ZN_OPTION_VALUE,
     .metavar = "DIR",
     .default_text = "the checkpoint's own folder",
     .help = "folder to copy config.json and the tokenizer from"},
    {.name = "json", .kind = ZN_OPTION_FLAG, .help = "one JSON document on stdout"},
};

const zn_command zn_command_export = {
    .name = "export",
    .summary = "turn a checkpoint into a Hugging Face folder",
    .positional = "CKPT... OUT",
    .min_positional = 2,
    .max_positional = MAX_FOLDERS,
    .options = export_options,
    .n_options = sizeof export_options / sizeof export_options[0],
    .epilog = "CKPT is a checkpoint of Zinc's or DeepSpeed's, or the folder that holds its file "
              "`latest`. "
              "Where each node has written its own files, give the folders of all nodes.\n\n"
              "  zinc export run/checkpoint-500 model --dtype bfloat16\n",
    .run = run_export,
};
