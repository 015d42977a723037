/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_eval.c — `zinc eval`: loss and perplexity of a model on text or token files. */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sys.h"
#include "ckpt/safetensors.h"
#include "data/dataset.h"
#include "engine/hub.h"
#include "engine/resident.h"

#define BLOCK_SIZE_DEFAULT 1024
#define BATCH_SIZE_DEFAULT 4

typedef struct eval_run {
    const zn_args *args;
    char *model_dir;
    zn_device *dev;
    zn_model_spec spec;
    zn_resident *resident;
    zn_model *model;
    zn_tokenizer *tokenizer;
    zn_chat *chat;
    zn_dataset *dataset;
    zn_batch batch;
    int64_t block_size, batch_size;
    int64_t longest;     /* tokens of the longest row */
    float *logits;       /* [rows, longest, V]; only with --logits */
    float *batch_logits; /* [batch_size, longest, V]; only with --logits */
    double loss_sum;
    int64_t n_targets;
} eval_run;

static void run_fini(eval_run *run)
{
    zn_batch_fini(&run->batch);
    zn_dataset_destroy(run->dataset);
    zn_chat_destroy(run->chat);
    zn_tokenizer_destroy(run->tokenizer);
    zn_model_destroy(run->model);
    zn_resident_destroy(run->resident);
    zn_device_free(run->dev, run->logits);
    zn_device_free(run->dev, run->batch_logits);
    zn_model_spec_fini(&run->spec);
    zn_device_close(run->dev);
    zn_free(run->model_dir);
}

static zinc_status open_model(eval_run *run)
{
    const char *model = zn_args_get(run->args, "model");
    const char *dtype_name = zn_args_get(run->args, "dtype");
    const zn_model_options options = {.dropout_scale = 0};
    zn_dtype dtype = ZN_DTYPE_F32;
    int64_t n_threads = zn_sys_cores();
    if (!model)
        ZN_FAIL(ZINC_E_INVALID, "--model DIR is needed: a Hugging Face model folder");
    if (zn_args_count(run->args, "data") == 0)
        ZN_FAIL(ZINC_E_INVALID, "--data F is needed: .txt, .jsonl or .bin files");
    if (dtype_name && zn_dtype_parse(dtype_name, &dtype) != 0)
        ZN_FAIL(ZINC_E_INVALID, "--dtype %s is unknown (float32, bfloat16, float16)", dtype_name);
    ZN_TRY(zn_args_int(run->args, "threads", 1, 4096, &n_threads));
    const zn_device_params params = {.n_threads = (int)n_threads};
    ZN_TRY(zn_device_open("cpu", &params, &run->dev));
    ZN_TRY(zn_hub_model_path(model, &run->model_dir));
    ZN_TRY(zn_model_spec_load(run->model_dir, &run->spec));
    ZN_TRY(zn_resident_load(run->model_dir, &run->spec, dtype, run->dev, &run->resident));
    return zn_model_create(&run->spec, &options, run->dev, zn_kernels_get(run->dev), &run->model);
}

/* A tokenizer is only needed for text; rows of ids do without. One that cannot be read is therefore
 * a warning here, and an error of the dataset where text turns up. */
static zinc_status open_tokenizer(eval_run *run)
{
    char *path = NULL;
    zinc_status status = ZINC_OK;
    ZN_TRY(zn_fs_join(run->model_dir, "tokenizer.json", &path));
    if (zn_fs_exists(path) && zn_tokenizer_load(path, &run->tokenizer) != ZINC_OK)
        zn_warn("eval", "%s", zinc_last_error());
    if (run->tokenizer)
        status = zn_chat_open(path, &run->chat);
    zn_free(path);
    return status;
}

static zinc_status open_data(eval_run *run)
{
    zinc_status status = ZINC_OK;
    const int n_files = zn_args_count(run->args, "data");
    const char **files = NULL;
    const int64_t most = run->spec.max_positions;
    const char *loss_on = zn_args_get(run->args, "loss_on");
    run->block_size = most < BLOCK_SIZE_DEFAULT ? most : BLOCK_SIZE_DEFAULT;
    run->batch_size = BATCH_SIZE_DEFAULT;
    if (loss_on && strcmp(loss_on, "all") != 0 && strcmp(loss_on, "assistant") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--loss_on %s: assistant or all", loss_on);
    ZN_TRY(zn_args_int(run->args, "block_size", 2, 1 << 24, &run->block_size));
    ZN_TRY(zn_args_int(run->args, "batch_size", 1, 1 << 16, &run->batch_size));
    ZN_TRY(open_tokenizer(run));
    ZN_TRY(zn_alloc_array(&files, (size_t)n_files, sizeof *files, "file names"));
    for (int i = 0; i < n_files; i++)
        files[i] = zn_args_at(run->args, "data", i);
    const zn_dataset_params params = {
        .files = files,
        .n_files = n_files,
        .tokenizer = run->tokenizer,
        .block_size = run->block_size,
        .vocab_size = (int32_t)run->spec.V,
        .eos_id = run->spec.eos_id,
        .chat = run->chat,
        .loss_on_all = loss_on && strcmp(loss_on, "all") == 0,
        .packing_boundaries = zn_args_flag(run->args, "packing_boundaries", false),
    };
    ZN_TRY_GOTO(zn_dataset_open(&params, &run->dataset));
fail:
    zn_free(files);
    return status;
}

static zinc_status make_room(eval_run *run)
{
    const int64_t rows = zn_dataset_n_rows(run->dataset);
    for (int64_t i = 0; i < rows; i++) {
        zn_row row;
        zn_dataset_row(run->dataset, i, &row);
        if (row.n > run->longest)
            run->longest = row.n;
    }
    if (!zn_args_given(run->args, "logits"))
        return ZINC_OK;
    const size_t row_bytes = (size_t)(run->longest * run->spec.V) * sizeof(float);
    const size_t bytes = row_bytes * (size_t)rows;
    ZN_TRY(
        zn_device_alloc(run->dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, bytes, "--logits", &run->logits));
    memset(run->logits, 0, bytes);
    return zn_device_alloc(run->dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS,
                           row_bytes * (size_t)run->batch_size, "logits of a batch",
                           &run->batch_logits);
}

/* Rows [first, first + B) through the model. */
static zinc_status evaluate_batch(eval_run *run, const int64_t *rows, int64_t B, int64_t first)
{
    const int64_t V = run->spec.V;
    const zn_batch *b = &run->batch;
    ZN_TRY(zn_batch_fill(&run->batch, run->dataset, rows, B, first));
    const zn_model_batch batch = {
        .B = b->B,
        .T = b->T,
        .ids = b->ids,
        .targets = b->targets,
        .mask = b->mask,
        .segment = b->segment,
        .position = b->position,
        .sample = b->sample,
    };
    ZN_TRY(zn_model_eval(run->model, &batch, zn_resident_hooks(run->resident), &run->loss_sum,
                         run->batch_logits));
    ZN_TRY(zn_stream_sync(zn_device_compute(run->dev), -1));
    run->n_targets += b->n_targets;
    for (int64_t i = 0; run->logits && i < B; i++) {
        zn_row row;
        zn_dataset_row(run->dataset, rows[i], &row);
        memcpy(run->logits + (first + i) * run->longest * V, run->batch_logits + i * b->T * V,
               (size_t)(row.n * V) * sizeof(float));
    }
    return ZINC_OK;
}

static zinc_status evaluate(eval_run *run)
{
    zinc_status status = ZINC_OK;
    int64_t *rows = NULL;
    const int64_t n_rows = zn_dataset_n_rows(run->dataset);
    ZN_TRY(zn_alloc_array(&rows, (size_t)run->batch_size, sizeof *rows, "row numbers"));
    for (int64_t first = 0; first < n_rows; first += run->batch_size) {
        const int64_t left = n_rows - first, B = left < run->batch_size ? left : run->batch_size;
        for (int64_t i = 0; i < B; i++)
            rows[i] = first + i;
        ZN_TRY_GOTO(evaluate_batch(run, rows, B, first));
    }
    if (run->n_targets == 0)
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "the data has no target to evaluate: every label is masked or "
                                    "every row is shorter than 2 tokens");
fail:
    zn_free(rows);
    return status;
}

static zinc_status write_logits(const eval_run *run)
{
    if (!run->logits)
        return ZINC_OK;
    const zn_tensor_plan plan = {
        .name = "logits",
        .dtype = ZN_DTYPE_F32,
        .n_dims = 3,
        .shape = {zn_dataset_n_rows(run->dataset), run->longest, run->spec.V},
    };
    const float *const values[] = {run->logits};
    return zn_weights_save(zn_args_get(run->args, "logits"), &plan, 1, values);
}

static zinc_status print_result(const eval_run *run, zn_buf *out)
{
    const double loss = run->loss_sum / (double)run->n_targets;
    if (!isfinite(loss))
        zn_warn("eval", "the loss is not finite: a weight of %s is not, or its values overflow",
                run->model_dir);
    if (!zn_args_flag(run->args, "json", false))
        return zn_buf_printf(out, "loss %.6f  perplexity %.4f  targets %lld\n", loss, exp(loss),
                             (long long)run->n_targets);
    ZN_TRY(zn_buf_puts(out, "{\"loss\":"));
    ZN_TRY(zn_json_append_number(out, loss));
    ZN_TRY(zn_buf_puts(out, ",\"perplexity\":"));
    ZN_TRY(zn_json_append_number(out, exp(loss)));
    return zn_buf_printf(out, ",\"targets\":%lld}\n", (long long)run->n_targets);
}

static zinc_status eval(eval_run *run, zn_buf *out)
{
    ZN_TRY(open_model(run));
    ZN_TRY(open_data(run));
    ZN_TRY(make_room(run));
    ZN_TRY(evaluate(run));
    ZN_TRY(write_logits(run));
    return print_result(run, out);
}

static int run_eval(const zn_args *args)
{
    eval_run run = {.args = args};
    zn_buf out = {0};
    int code = 0;
    const zinc_status status = eval(&run, &out);
    if (status != ZINC_OK) {
        code = zn_cli_fail("eval", status);
    } else {
        FILE *stream = zn_args_flag(args, "json", false) ? stdout : stderr;
        if (fwrite(out.data, 1, out.n, stream) != out.n || fflush(stream) != 0)
            code = zn_cli_exit_code(ZINC_E_IO);
    }
    zn_buf_fini(&out);
    run_fini(&run);
    return code;
}

static const zn_option eval_options[] = {
    {.name = "model",
     .alias = "model_name_or_path",
     .kind = ZN_OPTION_VALUE,
     .metavar = "DIR",
     .help = "Hugging Face model folder"},
    {.name = "data",
     .kind = ZN_OPTION_LIST,
     .metavar = "F",
     .help = ".txt, .jsonl or .bin files; may repeat"},
    {.name = "dtype",
     .kind = ZN_OPTION_VALUE,
     .metavar = "TYPE",
     .default_text = "float32",
     .help = "how weights are kept: float32, bfloat16, float16"},
    {.name = "logits",
     .kind = ZN_OPTION_VALUE,
     .metavar = "OUT.safetensors",
     .help = "write one F32 tensor logits [rows, longest row, vocabulary]"},
    {.name = "loss_on",
     .kind = ZN_OPTION_VALUE,
     .metavar = "assistant|all",
     .default_text = "assistant",
     .help = "what counts of rows of \"messages\""},
    {.name = "packing_boundaries",
     .kind = ZN_OPTION_FLAG,
     .default_text = "false",
     .help = "texts packed into one row do not see one another"},
    {.name = "block_size",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "min(1024, the model's maximum)",
     .help = "tokens of a row of packed text; longer rows are cut"},
    {.name = "batch_size",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "4",
     .help = "rows computed together; does not change the result"},
    {.name = "threads",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "cores",
     .help = "compute threads"},
    {.name = "json",
     .kind = ZN_OPTION_FLAG,
     .help = "{\"loss\":...,\"perplexity\":...,\"targets\":N} on stdout"},
};

const zn_command zn_command_eval = {
    .name = "eval",
    .summary = "loss and perplexity of a model on text or token files",
    .positional = "",
    .options = eval_options,
    .n_options = sizeof eval_options / sizeof eval_options[0],
    .epilog = "The loss is the sum over all unmasked targets divided by their number, whatever the "
              "batching.\n\n"
              "  zinc eval --model gpt2 --data valid.txt\n"
              "  zinc eval --model gpt2 --data rows.jsonl --json --logits out.safetensors\n",
    .run = run_eval,
};
