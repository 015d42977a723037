/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_plan.c — `zinc plan`: will it fit, how fast, and what to change, before anything runs. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/mem.h"
#include "base/sys.h"
#include "cli/cli_internal.h"
#include "cli/cmd_plan.h"
#include "engine/hyper.h"
#include "plan/plan.h"

#define MAX_PARAMS 1e15
#define MAX_DEVICES 65536 /* of all nodes */
#define TRAINER_MICRO_BATCH 8
#define TRAINER_BLOCK_SIZE 1024

/* Everything a plan borrows from. */
typedef struct plan_job {
    const zn_args *args;
    zn_plan_run run;
    zn_model_spec spec;
    zn_param_list list;
    zn_config *config;
    bool local; /* the model is a folder or file: defaults are those of zinc train */
} plan_job;

/* ---- options ---- */

/* "7B", "135M", "1e9": a number with K, M, B or T. */
static zinc_status count_option(const zn_args *args, const char *name, int64_t *out)
{
    static const char units[] = "KMBT";
    const char *text = zn_args_get(args, name);
    if (!text)
        return ZINC_OK;
    char *end = NULL;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (unit) {
        value *= pow(1000, (double)(unit - units + 1));
        end++;
    }
    if (end == text || *end || !(value >= 1 && value <= MAX_PARAMS))
        ZN_FAIL(ZINC_E_INVALID, "--%s: \"%s\" is not a number of parameters; write 7B, 135M or 1e9",
                name, text);
    *out = (int64_t)(value + 0.5);
    return ZINC_OK;
}

/* A rate or size in bytes, or in FLOP/s ("100TF"). */
static zinc_status bytes_option(const zn_args *args, const char *name, double *out)
{
    int64_t value = 0;
    if (!zn_args_given(args, name))
        return ZINC_OK;
    ZN_TRY(zn_args_bytes(args, name, &value));
    *out = (double)value;
    return ZINC_OK;
}

static zinc_status flops_option(const zn_args *args, double *out)
{
    const char *text = zn_args_get(args, "flops");
    if (!text)
        return ZINC_OK;
    char *end = NULL;
    double value = strtod(text, &end);
    const double scale = *end == 'P' ? 1e15 : *end == 'T' ? 1e12 : *end == 'G' ? 1e9 : 1;
    if (scale > 1)
        end++;
    const bool rest = strcmp(end, "") == 0 || strcmp(end, "F") == 0 || strcmp(end, "FLOPS") == 0 ||
                      strcmp(end, "FLOP/s") == 0;
    value *= scale;
    if (end == text || !rest || !(value > 0 && value < 1e20))
        ZN_FAIL(ZINC_E_INVALID, "--flops: \"%s\" is not a rate; write 100TF or 1e14", text);
    *out = value;
    return ZINC_OK;
}

static zinc_status device_option(const zn_args *args, const char *name, zn_offload_device *out)
{
    const char *text = zn_args_get(args, name);
    if (!text)
        return ZINC_OK;
    if (strcmp(text, "none") == 0)
        *out = ZN_OFFLOAD_NONE;
    else if (strcmp(text, "cpu") == 0)
        *out = ZN_OFFLOAD_CPU;
    else if (strcmp(text, "nvme") == 0)
        *out = ZN_OFFLOAD_NVME;
    else
        ZN_FAIL(ZINC_E_INVALID, "--%s is %s; none, cpu and nvme are known", name, text);
    return ZINC_OK;
}

static bool is_this_machine(const zn_args *args)
{
    const char *preset = zn_args_get(args, "preset");
    return preset && strcmp(preset, "cpu") == 0;
}

/* Of a rank; where none were asked for, its share of the cores. */
static int threads_of(int64_t asked, const zn_plan_hardware *hw)
{
    const int64_t n = asked > 0 ? asked : zn_sys_cores() / hw->gpus;
    return n < 1 ? 1 : (int)n;
}

static zinc_status read_hardware(const zn_args *args, int64_t n_threads, zn_plan_hardware *hw)
{
    int64_t gpus = 1, nodes = 1;
    *hw = (zn_plan_hardware){.name = "", .compute_share = ZN_PLAN_COMPUTE_SHARE};
    ZN_TRY(zn_args_int(args, "gpus", 1, MAX_DEVICES, &gpus));
    ZN_TRY(zn_args_int(args, "nodes", 1, MAX_DEVICES, &nodes));
    if (gpus * nodes > MAX_DEVICES)
        ZN_FAIL(ZINC_E_INVALID,
                "--gpus %" PRId64 " on --nodes %" PRId64
                " are more than the %d ranks that can be planned",
                gpus, nodes, MAX_DEVICES);
    hw->gpus = (int)gpus;
    hw->nodes = (int)nodes;
    if (zn_args_given(args, "preset"))
        ZN_TRY(zn_plan_preset(zn_args_get(args, "preset"), threads_of(n_threads, hw), hw));
    ZN_TRY(bytes_option(args, "gpu_memory", &hw->device_bytes));
    ZN_TRY(bytes_option(args, "host_memory", &hw->host_bytes));
    ZN_TRY(bytes_option(args, "disk_size", &hw->disk_bytes));
    ZN_TRY(bytes_option(args, "link", &hw->link));
    ZN_TRY(zn_args_seconds(args, "link_latency", &hw->link_latency));
    ZN_TRY(bytes_option(args, "peer", &hw->peer));
    ZN_TRY(bytes_option(args, "network", &hw->network));
    ZN_TRY(bytes_option(args, "disk", &hw->disk_rate));
    if (zn_args_given(args, "flops")) {
        ZN_TRY(flops_option(args, &hw->flops));
        hw->fp32_flops = hw->flops;
        hw->compute_share = ZN_PLAN_COMPUTE_SHARE;
        hw->pass_rate = 0;
    }
    /* no faster way between devices is known than over the host; the stand-in has none */
    if (hw->peer == 0 ||
        (is_this_machine(args) && zn_args_given(args, "link") && !zn_args_given(args, "peer")))
        hw->peer = hw->link;
    return ZINC_OK;
}

/* ---- model and configuration ---- */

static zinc_status read_model(plan_job *job)
{
    const zn_args *args = job->args;
    const char *model = zn_args_get(args, "model");
    zn_plan_shape shape = {0};
    bool known = true;
    ZN_TRY(count_option(args, "params", &shape.n_params));
    if (!model && shape.n_params == 0)
        ZN_FAIL(ZINC_E_INVALID, "which model? give --model DIR or NAME, or --params 7B");
    if (model && shape.n_params > 0)
        ZN_FAIL(ZINC_E_INVALID, "--model and --params exclude each other");
    if (model) {
        ZN_TRY(zn_plan_model(model, &job->spec, &known));
    } else {
        ZN_TRY(zn_args_int(args, "layers", 1, ZN_MAX_LAYERS_NAMED, &shape.layers));
        ZN_TRY(zn_args_int(args, "hidden", 1, 1 << 24, &shape.hidden));
        ZN_TRY(zn_args_int(args, "heads", 1, 1 << 20, &shape.heads));
        ZN_TRY(zn_args_int(args, "vocab", 1, 1 << 28, &shape.vocab));
        ZN_TRY(zn_plan_model_of_size(&shape, &job->spec));
    }
    job->local = !known;
    return zn_model_param_list(&job->spec, &job->list);
}

static bool fp32_is_default(const plan_job *job)
{
    return zn_args_given(job->args, "deepspeed") || zn_args_given(job->args, "accelerate_config") ||
           zn_config_get(job->config)->accelerate.given || zn_args_flag(job->args, "fp32", false) ||
           (job->local && (!zn_args_given(job->args, "preset") || is_this_machine(job->args)));
}

static zinc_status override_config(plan_job *job)
{
    zn_config_argument given[2];
    int n = 0;
    if (zn_args_given(job->args, "bf16"))
        given[n++] = (zn_config_argument){"bf16", zn_args_get(job->args, "bf16")};
    if (zn_args_given(job->args, "fp16"))
        given[n++] = (zn_config_argument){"fp16", zn_args_get(job->args, "fp16")};
    if (n == 0 && !fp32_is_default(job))
        given[n++] = (zn_config_argument){"bf16", "true"};
    return zn_config_override(job->config, given, n);
}

/* What the arguments ask for instead of the file: a plan may ask "what if". */
static zinc_status change_config(plan_job *job)
{
    const zn_args *args = job->args;
    zn_config_values *c = &job->run.config;
    int64_t stage = c->zero.stage;
    zn_plan_variant variant;
    ZN_TRY(zn_args_int(args, "stage", 0, 3, &stage));
    variant = (zn_plan_variant){(int)stage, c->zero.offload_optimizer, c->zero.offload_param};
    ZN_TRY(device_option(args, "offload_optimizer", &variant.optimizer));
    ZN_TRY(device_option(args, "offload_param", &variant.params));
    zn_plan_apply_variant(&variant, &job->run);
    ZN_TRY(zn_args_int(args, "micro_batch", 1, 1 << 20, &c->train_micro_batch_size_per_gpu));
    ZN_TRY(zn_args_int(args, "gradient_accumulation_steps", 1, 1 << 20,
                       &c->gradient_accumulation_steps));
    if (zn_args_given(args, "optimizer"))
        return zn_optim_find(zn_args_get(args, "optimizer"), &job->run.optim);
    return ZINC_OK;
}

static zinc_status read_config(plan_job *job)
{
    const zn_config_facts facts = {.world_size = job->run.hw.gpus * job->run.hw.nodes,
                                   .hidden_size = job->spec.C,
                                   .ranks_per_node = job->run.hw.gpus,
                                   .default_micro_batch = job->local ? TRAINER_MICRO_BATCH : 1};
    zn_optim_hyper hyper;
    const zn_config_sources sources = {.deepspeed = zn_args_get(job->args, "deepspeed"),
                                       .accelerate_config =
                                           zn_args_get(job->args, "accelerate_config")};
    if (!job->config)
        ZN_TRY(zn_config_open(&sources, &job->config));
    ZN_TRY(override_config(job));
    ZN_TRY(zn_config_resolve(job->config, &facts));
    job->run.config = *zn_config_get(job->config);
    job->run.checkpointing |= job->run.config.checkpoint_units;
    ZN_TRY(zn_optim_hyper_from_config(&job->run.config, &job->run.optim, &hyper));
    job->run.optim = zn_optim_lean(job->run.optim, &hyper, 1);
    return change_config(job);
}

static zinc_status read_run(plan_job *job)
{
    const zn_args *args = job->args;
    zn_plan_run *run = &job->run;
    int64_t threads = 0;
    ZN_TRY(zn_args_int(args, "threads", 1, 1 << 12, &threads));
    ZN_TRY(read_model(job));
    ZN_TRY(read_hardware(args, threads, &run->hw));
    run->n_threads =
        threads > 0 || job->local || is_this_machine(args) ? threads_of(threads, &run->hw) : 1;
    ZN_TRY(zn_args_seconds(args, "compute_time", &run->compute_s));
    run->block_size =
        job->spec.max_positions < TRAINER_BLOCK_SIZE ? job->spec.max_positions : TRAINER_BLOCK_SIZE;
    ZN_TRY(zn_args_int(args, "block_size", 1, 1 << 24, &run->block_size));
    if (job->spec.learned_positions && run->block_size > job->spec.max_positions)
        ZN_FAIL(ZINC_E_CONFIG,
                "--block_size %" PRId64 " is more than the model's %" PRId64 " positions",
                run->block_size, job->spec.max_positions);
    run->checkpointing = zn_args_flag(args, "gradient_checkpointing", false);
    run->shared = zn_args_flag(args, "share_parameters", false);
    run->spec = &job->spec;
    run->list = &job->list;
    return read_config(job);
}

/* ---- what is asked ---- */

/* The user's file, changed; without one, a new file. */
static zinc_status append_suggestion(const plan_job *job, const zn_plan_search *search, zn_buf *out)
{
    const char *nvme = zn_args_get(job->args, "nvme_path");
    const char *path = nvme ? nvme : "/local_nvme";
    return zn_args_get(job->args, "deepspeed")
               ? zn_plan_append_changed(search, job->config, path, out)
               : zn_plan_append_config(&search->run, path, out);
}

static zinc_status write_suggestion(const plan_job *job, const zn_plan_search *search)
{
    const char *path = zn_args_get(job->args, "suggest");
    zn_buf text = {0};
    if (!path)
        return ZINC_OK;
    if (!search->found)
        ZN_FAIL(ZINC_E_CONFIG, "--suggest %s: no configuration fits, so none was written", path);
    zinc_status status = append_suggestion(job, search, &text);
    if (status == ZINC_OK)
        status = zn_fs_write_atomic(path, text.data, text.n);
    zn_buf_fini(&text);
    if (status == ZINC_OK && search->run.checkpointing)
        fprintf(stderr, "zinc plan: %s goes with --gradient_checkpointing\n", path);
    return status;
}

static zinc_status plan_run(plan_job *job, zn_buf *out)
{
    const bool json = zn_args_flag(job->args, "json", false);
    zn_plan_search search;
    ZN_TRY(read_run(job));
    if (zn_args_flag(job->args, "all", false))
        return zn_plan_append_all(&job->run, json, out);
    ZN_TRY(zn_plan_find(&job->run, &search));
    ZN_TRY(write_suggestion(job, &search));
    if (json)
        return zn_plan_append_json(&search, out);
    ZN_TRY(zn_plan_append_text(&search, out));
    if (search.before.fits)
        return ZINC_OK;
    ZN_TRY(zn_buf_puts(out, "As a ds_config.json:\n"));
    return append_suggestion(job, &search, out);
}

static zinc_status plan_deepspeed(const zn_args *args, zn_buf *out)
{
    zn_deepspeed_estimate e = {.buffer_factor = 1.5};
    zn_offload_device optimizer = ZN_OFFLOAD_NONE, params = ZN_OFFLOAD_NONE;
    zn_plan_hardware hw;
    int64_t stage = 0;
    ZN_TRY(read_hardware(args, 1, &hw));
    ZN_TRY(zn_args_int(args, "stage", 0, 3, &stage));
    ZN_TRY(count_option(args, "params", &e.n_params));
    ZN_TRY(count_option(args, "largest_layer", &e.largest_layer));
    ZN_TRY(device_option(args, "offload_optimizer", &optimizer));
    ZN_TRY(device_option(args, "offload_param", &params));
    ZN_TRY(zn_args_real(args, "buffer_factor", 0, 1e6, &e.buffer_factor));
    if (e.n_params == 0)
        ZN_FAIL(ZINC_E_INVALID, "--accounting deepspeed needs --params");
    e.stage = (int)stage;
    e.gpus_per_node = hw.gpus;
    e.nodes = hw.nodes;
    e.offload_optimizer = optimizer != ZN_OFFLOAD_NONE;
    e.offload_param = params != ZN_OFFLOAD_NONE;
    e.zero_init = zn_args_flag(args, "zero_init", true);
    ZN_TRY(zn_deepspeed_estimate_make(&e));
    if (zn_args_flag(args, "json", false))
        return zn_buf_printf(out, "{\"gpu_bytes\":%" PRId64 ",\"cpu_bytes\":%" PRId64 "}\n",
                             e.gpu_bytes, e.cpu_bytes);
    return zn_buf_printf(out,
                         "DeepSpeed's estimate for stage %d: %.2f GiB a GPU, %.2f GiB of host "
                         "memory a node\n",
                         e.stage, (double)e.gpu_bytes / 0x1p30, (double)e.cpu_bytes / 0x1p30);
}

static zinc_status plan_textbook(plan_job *job, zn_accounting_kind kind, zn_buf *out)
{
    const zn_args *args = job->args;
    int64_t n_params = 0, stage = 0;
    zn_plan_variant variant = {0, ZN_OFFLOAD_NONE, ZN_OFFLOAD_NONE};
    ZN_TRY(read_hardware(args, 1, &job->run.hw));
    ZN_TRY(count_option(args, "params", &n_params));
    if (n_params == 0) {
        ZN_TRY(read_model(job));
        n_params = zn_param_list_elems(&job->list, false);
    }
    ZN_TRY(zn_args_int(args, "stage", 0, 3, &stage));
    ZN_TRY(device_option(args, "offload_optimizer", &variant.optimizer));
    ZN_TRY(device_option(args, "offload_param", &variant.params));
    variant.stage = (int)stage;
    if (variant.params != ZN_OFFLOAD_NONE && stage != 3)
        ZN_FAIL(ZINC_E_CONFIG, "--offload_param needs --stage 3");
    return zn_accounting_append(kind, (double)n_params, job->run.hw.gpus * job->run.hw.nodes,
                                zn_args_flag(args, "all", false) ? NULL : &variant,
                                zn_args_flag(args, "json", false), out);
}

static zinc_status answer(plan_job *job, zn_buf *out)
{
    const char *accounting = zn_args_get(job->args, "accounting");
    if (!accounting || strcmp(accounting, "zinc") == 0)
        return plan_run(job, out);
    if (strcmp(accounting, "classic") == 0)
        return plan_textbook(job, ZN_ACCOUNTING_CLASSIC, out);
    if (strcmp(accounting, "mixed16") == 0)
        return plan_textbook(job, ZN_ACCOUNTING_MIXED16, out);
    if (strcmp(accounting, "deepspeed") == 0)
        return plan_deepspeed(job->args, out);
    ZN_FAIL(ZINC_E_INVALID, "--accounting %s: zinc, classic, mixed16 and deepspeed are known",
            accounting);
}

zinc_status zn_cli_plan(int n, const char *const *words, zn_config *config, zn_cli_plan_answer *out)
{
    plan_job job = {.config = config};
    zn_args *args = NULL;
    zinc_status status;
    ZN_TRY_GOTO(zn_args_parse(&zn_command_plan, n, words, &args));
    job.args = args;
    ZN_TRY_GOTO(read_run(&job));
    ZN_TRY_GOTO(zn_plan_find(&job.run, &out->search));
    ZN_TRY_GOTO(zn_plan_append_text(&out->search, &out->text));
fail:
    zn_args_destroy(args);
    zn_param_list_fini(&job.list);
    zn_model_spec_fini(&job.spec);
    return status;
}

static int run_plan(const zn_args *args)
{
    plan_job job = {.args = args};
    zn_buf out = {0};
    int code = 0;
    const zinc_status status = answer(&job, &out);
    if (status != ZINC_OK) {
        code = zn_cli_fail("plan", status);
        for (int i = 1; job.config && i < zn_config_n_errors(job.config); i++)
            fprintf(stderr, "zinc plan: %s\n", zn_config_error(job.config, i));
    } else if (fwrite(out.data, 1, out.n, stdout) != out.n || fflush(stdout) != 0) {
        code = zn_cli_exit_code(ZINC_E_IO);
    }
    zn_buf_fini(&out);
    zn_config_destroy(job.config);
    zn_param_list_fini(&job.list);
    zn_model_spec_fini(&job.spec);
    return code;
}

#define VALUE(n, m, h)                                                                             \
    {                                                                                              \
        .name = n, .kind = ZN_OPTION_VALUE, .metavar = m, .help = h                                \
    }
#define FLAG(n, h)                                                                                 \
    {                                                                                              \
        .name = n, .kind = ZN_OPTION_FLAG, .help = h                                               \
    }

static const zn_option plan_options[] = {
    {.name = "model",
     .alias = "model_name_or_path",
     .kind = ZN_OPTION_VALUE,
     .metavar = "DIR",
     .help = "folder with config.json, the file itself, or a known name: llama-7b, llama-70b, "
             "llama-3-8b, mistral-7b, qwen2-7b, gpt2-xl, smollm2-135m, ..."},
    VALUE("params", "7B", "or a number of parameters, in the usual proportions"),
    VALUE("layers", "N", "with --params"),
    VALUE("hidden", "N", "with --params: size of the residual stream"),
    VALUE("heads", "N", "with --params"),
    VALUE("vocab", "N", "with --params"),
    VALUE(
        "preset", "NAME",
        "public figures of rtx3090, rtx4090, a100-40, a100-80, h100, h200, or this machine (cpu)"),
    {.name = "gpus",
     .alias = "gpus_per_node",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "1",
     .help = "devices of a node; ranks are their number times --nodes"},
    {.name = "nodes",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "1",
     .help = "machines"},
    VALUE("gpu_memory", "24GB", "memory of a device"),
    VALUE("host_memory", "256GB", "memory of a node"),
    VALUE("disk_size", "2TB", "disk of a node"),
    VALUE("link", "12GB/s", "between host and a device, each way, as copies reach it"),
    {.name = "link_latency",
     .kind = ZN_OPTION_VALUE,
     .metavar = "10us",
     .default_text = "0",
     .help = "of each copy besides"},
    VALUE("peer", "300GB/s", "between devices of a node; where none is known as --link"),
    VALUE("network", "25GB/s", "what a node sends"),
    VALUE("disk", "3GB/s", "what a node's disk reads or writes"),
    VALUE("flops", "100TF", "matrix FLOP/s of a device, at peak"),
    VALUE("compute_time", "1.2s",
          "forward and backward of a step, measured without offload; instead of --flops"),
    VALUE("deepspeed", "F", "a ds_config.json; the options below win over it"),
    VALUE("accelerate_config", "F|default", "an accelerate YAML in its place"),
    VALUE("stage", "N", "ZeRO stage, 0 to 3"),
    VALUE("offload_optimizer", "none|cpu|nvme", "masters and optimizer state"),
    VALUE("offload_param", "none|cpu|nvme", "parameter shards; stage 3"),
    FLAG("bf16", "16-bit training; the default unless --deepspeed is given or the model is a "
                 "folder here"),
    FLAG("fp16", "the same with fp16"),
    FLAG("fp32", "training in fp32"),
    {.name = "micro_batch",
     .alias = "per_device_train_batch_size",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .help = "rows of a micro-batch; 1, or as in zinc train for a folder here"},
    VALUE("gradient_accumulation_steps", "N", "micro-batches of a step"),
    {.name = "block_size",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "1024",
     .help = "tokens of a row, at most the model's positions"},
    FLAG("gradient_checkpointing", "blocks are computed again in backward"),
    VALUE("optimizer", "NAME", "adamw, sgd, lion, ..."),
    VALUE("threads", "N", "compute threads of a rank"),
    FLAG("share_parameters", "ranks of one process share one copy, as zinc train's threads do"),
    FLAG("all", "a table of every stage and offload"),
    VALUE("suggest", "OUT.json", "write a ds_config.json that fits"),
    {.name = "nvme_path",
     .kind = ZN_OPTION_VALUE,
     .metavar = "DIR",
     .default_text = "/local_nvme",
     .help = "what a suggested configuration has where something goes to disk"},
    {.name = "accounting",
     .kind = ZN_OPTION_VALUE,
     .metavar = "zinc|classic|mixed16|deepspeed",
     .default_text = "zinc",
     .help =
         "what is allocated here, or the countings of tutorials, the ZeRO paper and DeepSpeed's "
         "estimators (docs/memory.md)"},
    VALUE("largest_layer", "N", "--accounting deepspeed: parameters of the largest layer"),
    FLAG("zero_init", "--accounting deepspeed: built sharded; true by default"),
    VALUE("buffer_factor", "X", "--accounting deepspeed: 1.5 by default"),
    FLAG("json", "one JSON document on stdout"),
};

const zn_command zn_command_plan = {
    .name = "plan",
    .summary = "memory, traffic and step time before anything runs",
    .positional = "",
    .options = plan_options,
    .n_options = sizeof plan_options / sizeof plan_options[0],
    .epilog = "Bytes are those that training would allocate, from the same code; times are "
              "estimates. GB are 10^9 bytes.\n\n"
              "  zinc plan --model llama-7b --preset rtx3090 --gpus 4\n"
              "  zinc plan --model DIR --deepspeed ds_config.json --gpus 2 --gpu_memory 24GB\n"
              "  zinc plan --model llama-70b --preset rtx3090 --host_memory 256GB\n"
              "  zinc plan --params 7B --gpus 4 --accounting classic --all\n",
    .run = run_plan,
};
