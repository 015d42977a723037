/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_train.c — `zinc train`: options to zn_train_options. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "cli/accelerate_launch.h"
#include "cli/cli.h"
#include "engine/hub.h"
#include "train/train.h"

#define VALUE(option_name, meta, fallback, text)                                                   \
    {                                                                                              \
        .name = (option_name), .kind = ZN_OPTION_VALUE, .metavar = (meta),                         \
        .default_text = (fallback), .help = (text)                                                 \
    }
#define FLAG(option_name, fallback, text)                                                          \
    {                                                                                              \
        .name = (option_name), .kind = ZN_OPTION_FLAG, .default_text = (fallback), .help = (text)  \
    }
#define FILES(option_name, text)                                                                   \
    {                                                                                              \
        .name = (option_name), .kind = ZN_OPTION_LIST, .metavar = "F", .help = (text)              \
    }

static const zn_option options[] = {
    {.name = "model_name_or_path",
     .alias = "model",
     .kind = ZN_OPTION_VALUE,
     .metavar = "DIR",
     .help = "model folder as Hugging Face writes it (with --from_scratch: or a config.json)"},
    FILES("train_file", "training data: .txt, .jsonl, .bin"),
    FILES("validation_file", "held-out data; its loss is reported at the end"),
    VALUE("output_dir", "DIR", NULL, "where the trained model and metrics.jsonl go"),
    VALUE("deepspeed", "F", NULL, "ds_config.json"),
    VALUE("accelerate_config", "F|default", NULL,
          "accelerate YAML: how ranks share the model, how many there are, and where"),
    {.name = "fsdp",
     .kind = ZN_OPTION_OPTIONAL,
     .metavar = "WORDS",
     .help = "share as FSDP does: \"full_shard offload auto_wrap\", shard_grad_op, no_shard, "
             "hybrid_shard"},
    VALUE("fsdp_config", "F|JSON", NULL, "more of it, as TrainingArguments.fsdp_config"),
    VALUE("tokenizer", "F", "the model's", "tokenizer.json, or its folder"),
    FLAG("from_scratch", "false", "random weights; only config.json is read"),
    VALUE("ranks", "N", "1", "start N ranks on this machine"),
    VALUE("threads", "N", "cores / ranks", "compute threads of a rank"),
    VALUE("comm", "NAME", "thread", "thread: ranks are threads; mpi: a process a rank"),
    VALUE("per_device_train_batch_size", "N", "8", "micro-batch of a rank, rows"),
    VALUE("per_device_eval_batch_size", "N", "the micro-batch",
          "rows of a rank's evaluation batch"),
    VALUE("gradient_accumulation_steps", "N", "1", "micro-batches an optimizer step"),
    VALUE("num_train_epochs", "X", "3", "passes over the data"),
    VALUE("max_steps", "N", "-1", "optimizer steps; overrides num_train_epochs"),
    VALUE("block_size", "N", "min(1024, model)", "tokens of a row"),
    VALUE("loss_on", "assistant|all", "assistant", "what is learned of rows of \"messages\""),
    FLAG("packing_boundaries", "false", "texts packed into one row do not see one another"),
    FLAG("show_sample", "false", "print the first row, and what of it is learned, before training"),
    VALUE("learning_rate", "X", "5e-5", "peak learning rate"),
    VALUE("weight_decay", "X", "0", "of AdamW"),
    VALUE("adam_beta1", "X", "0.9", "of AdamW"),
    VALUE("adam_beta2", "X", "0.999", "of AdamW"),
    VALUE("adam_epsilon", "X", "1e-8", "of AdamW"),
    VALUE("max_grad_norm", "X", "1.0",
          "clip the global gradient norm (grad_norm is logged before it); 0: off"),
    VALUE("lr_scheduler_type", "NAME", "linear", "linear, cosine, constant, …"),
    VALUE("warmup_steps", "N", "0", "steps of rising rate"),
    VALUE("warmup_ratio", "X", "0", "the same as a share of all steps"),
    {.name = "freeze",
     .kind = ZN_OPTION_LIST,
     .metavar = "PATTERN",
     .help = "parameters that are not trained, e.g. 'model.embed_tokens.*' '*norm*'"},
    VALUE("decay_groups", "all|no_bias_norm", "see docs", "which parameters weight decay reaches"),
    VALUE("loss_average", "tokens|micro_batches", "tokens", "what the loss is a mean over"),
    VALUE("seed", "N", "42", "of weights, order and dropout"),
    FLAG("shuffle", "true", "a new order each epoch"),
    VALUE("dropout", "P", "config.json's", "every dropout of the model; 0: none"),
    FLAG("bf16", "false", "bf16 parameters, fp32 masters"),
    FLAG("fp16", "false", "fp16 parameters, fp32 masters, loss scaling"),
    FLAG("gradient_checkpointing", "false", "keep only the input of each block; compute it again"),
    FLAG("share_parameters", "true", "thread ranks keep one copy of the parameters between them"),
    VALUE("device", "NAME", "cpu", "cpu; cuda is not in this build"),
    VALUE("device_memory", "BYTES", "no limit", "limit of a rank's device memory, e.g. 2GB"),
    VALUE("link_bandwidth", "BYTES/s", "memory speed",
          "stand-in link to the host and other ranks, e.g. 12GB/s"),
    VALUE("link_latency", "SECONDS", "0", "of each copy over the link, e.g. 10us"),
    VALUE("timeout", "SECONDS", "600", "longest wait for another rank"),
    VALUE("logging_steps", "N", "500", "plain progress lines off a terminal"),
    VALUE("eval_steps", "N", "0", "evaluate every N steps; 0: only at the end"),
    VALUE("save_steps", "N", "500", "a checkpoint to resume from every N steps; 0: none"),
    VALUE("save_total_limit", "K", "all", "keep the newest K checkpoints of the run"),
    FLAG("save_on_signal", "false", "a checkpoint when SIGINT, SIGTERM or SIGUSR1 ends the run"),
    FLAG("async_save", "true", "write checkpoints while training goes on"),
    VALUE("save_failure", "continue|stop", "continue", "when a checkpoint cannot be written"),
    VALUE("save_dtype", "NAME", "the checkpoint's", "float32 (the masters), bfloat16, float16"),
    VALUE("max_shard_size", "BYTES", "one file", "largest file of the saved model, e.g. 5GB"),
    FLAG("overwrite_output_dir", "false", "replace the run that output_dir holds"),
    {.name = "resume_from_checkpoint",
     .kind = ZN_OPTION_OPTIONAL,
     .metavar = "DIR",
     .help = "go on from a checkpoint; alone or `latest`: the newest of output_dir"},
    FLAG("profile", "false", "where the time went, at the end, and a trace: OUTPUT_DIR/trace.json"),
    FLAG("dry_run", "false", "resolve everything, print the plan, touch nothing"),
    FLAG("json", "false", "metrics rows on standard output"),
};
#define N_OPTIONS ((int)(sizeof options / sizeof options[0]))

/* Arguments that may fill or contradict ds_config.json. */
static const char *const config_names[] = {
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "lr_scheduler_type",
    "warmup_steps",
    "warmup_ratio",
    "max_steps",
    "num_train_epochs",
    "bf16",
    "fp16",
};
#define N_CONFIG_NAMES ((int)(sizeof config_names / sizeof config_names[0]))

/* Storage that zn_train_options points into. */
typedef struct storage {
    const char **train_files, **validation_files, **freeze;
    char *model;
    zn_config_argument arguments[N_CONFIG_NAMES];
} storage;

static zinc_status list_of(const zn_args *args, const char *name, const char ***out, int *n)
{
    *n = zn_args_count(args, name);
    ZN_TRY(zn_alloc_array(out, (size_t)*n, sizeof **out, "file names"));
    for (int i = 0; i < *n; i++)
        (*out)[i] = zn_args_at(args, name, i);
    return ZINC_OK;
}

static zinc_status read_link(const zn_args *args, zn_train_options *o)
{
    int64_t bandwidth = 0;
    ZN_TRY(zn_args_bytes(args, "link_bandwidth", &bandwidth));
    o->link_bytes_per_s = (double)bandwidth;
    return zn_args_seconds(args, "link_latency", &o->link_latency_s);
}

static zinc_status read_numbers(const zn_args *args, zn_train_options *o)
{
    int64_t ranks = o->ranks, threads = o->threads, seed = (int64_t)o->seed;
    ZN_TRY(zn_args_int(args, "ranks", 1, 4096, &ranks));
    ZN_TRY(zn_args_int(args, "threads", 1, 4096, &threads));
    ZN_TRY(zn_args_int(args, "seed", 0, INT64_MAX, &seed));
    ZN_TRY(zn_args_int(args, "max_steps", -1, INT64_MAX, &o->max_steps));
    ZN_TRY(zn_args_int(args, "block_size", 2, 1 << 24, &o->block_size));
    ZN_TRY(zn_args_int(args, "per_device_eval_batch_size", 1, 1 << 24, &o->eval_batch_size));
    ZN_TRY(zn_args_int(args, "warmup_steps", 0, INT64_MAX, &o->warmup_steps));
    ZN_TRY(zn_args_int(args, "logging_steps", 0, INT64_MAX, &o->logging_steps));
    ZN_TRY(zn_args_int(args, "eval_steps", 0, INT64_MAX, &o->eval_steps));
    ZN_TRY(zn_args_int(args, "save_steps", 0, INT64_MAX, &o->save_steps));
    ZN_TRY(zn_args_int(args, "save_total_limit", 1, INT64_MAX, &o->save_total_limit));
    ZN_TRY(zn_args_real(args, "num_train_epochs", 0, 1e9, &o->num_train_epochs));
    ZN_TRY(zn_args_real(args, "warmup_ratio", 0, 1, &o->warmup_ratio));
    ZN_TRY(zn_args_real(args, "dropout", 0, 0.999, &o->dropout));
    ZN_TRY(zn_args_real(args, "timeout", 0.1, 1e9, &o->timeout_s));
    ZN_TRY(zn_args_bytes(args, "device_memory", &o->device_limit));
    ZN_TRY(read_link(args, o));
    ZN_TRY(zn_args_bytes(args, "max_shard_size", &o->max_shard_bytes));
    o->ranks = (int)ranks;
    o->threads = (int)threads;
    o->seed = (uint64_t)seed;
    return ZINC_OK;
}

static const char *text_or(const zn_args *args, const char *name, const char *fallback)
{
    const char *text = zn_args_get(args, name);
    return text ? text : fallback;
}

static zinc_status read_choices(const zn_args *args, zn_train_options *o)
{
    const char *average = zn_args_get(args, "loss_average");
    const char *groups = zn_args_get(args, "decay_groups");
    const char *loss_on = zn_args_get(args, "loss_on");
    if (average && strcmp(average, "micro_batches") == 0)
        o->loss_average = ZN_LOSS_AVERAGE_MICRO_BATCHES;
    else if (average && strcmp(average, "tokens") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--loss_average %s: tokens or micro_batches", average);
    if (groups && strcmp(groups, "all") != 0 && strcmp(groups, "no_bias_norm") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--decay_groups %s: all or no_bias_norm", groups);
    const char *failure = text_or(args, "save_failure", "continue");
    if (strcmp(failure, "continue") != 0 && strcmp(failure, "stop") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--save_failure %s: continue or stop", failure);
    o->save_failure_stops = strcmp(failure, "stop") == 0;
    o->async_save = zn_args_flag(args, "async_save", true);
    const char *resume = zn_args_get(args, "resume_from_checkpoint");
    o->resume = resume && strcmp(resume, "false") == 0 ? NULL : resume;
    if (loss_on && strcmp(loss_on, "all") != 0 && strcmp(loss_on, "assistant") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--loss_on %s: assistant or all", loss_on);
    o->loss_on_all = loss_on && strcmp(loss_on, "all") == 0;
    o->decay_groups = groups;
    return ZINC_OK;
}

static zinc_status need(const char *value, const char *option)
{
    if (!value)
        ZN_FAIL(ZINC_E_INVALID, "%s is required (see `zinc train --help`)", option);
    return ZINC_OK;
}

static zinc_status read_options(const zn_args *args, storage *store, zn_train_options *o)
{
    zn_train_defaults(o);
    o->model = zn_args_get(args, "model_name_or_path");
    o->output_dir = zn_args_get(args, "output_dir");
    o->deepspeed = zn_args_get(args, "deepspeed");
    o->accelerate_config = zn_args_get(args, "accelerate_config");
    o->fsdp = zn_args_get(args, "fsdp");
    o->fsdp_config = zn_args_get(args, "fsdp_config");
    o->tokenizer = zn_args_get(args, "tokenizer");
    o->save_dtype = zn_args_get(args, "save_dtype");
    o->comm = text_or(args, "comm", o->comm);
    o->device = text_or(args, "device", o->device);
    o->lr_scheduler_type = text_or(args, "lr_scheduler_type", o->lr_scheduler_type);
    o->from_scratch = zn_args_flag(args, "from_scratch", false);
    o->shuffle = zn_args_flag(args, "shuffle", true);
    o->share_parameters = zn_args_flag(args, "share_parameters", true);
    o->gradient_checkpointing = zn_args_flag(args, "gradient_checkpointing", false);
    o->save_on_signal = zn_args_flag(args, "save_on_signal", false);
    o->overwrite_output_dir = zn_args_flag(args, "overwrite_output_dir", false);
    o->packing_boundaries = zn_args_flag(args, "packing_boundaries", false);
    o->show_sample = zn_args_flag(args, "show_sample", false);
    o->profile = zn_args_flag(args, "profile", false);
    o->dry_run = zn_args_flag(args, "dry_run", false);
    o->json = zn_args_flag(args, "json", false);
    ZN_TRY(need(o->model, "--model_name_or_path DIR"));
    ZN_TRY(zn_hub_model_path(o->model, &store->model));
    o->model = store->model;
    ZN_TRY(need(o->output_dir, "--output_dir DIR"));
    ZN_TRY(read_numbers(args, o));
    ZN_TRY(read_choices(args, o));
    ZN_TRY(list_of(args, "train_file", &store->train_files, &o->n_train_files));
    ZN_TRY(list_of(args, "validation_file", &store->validation_files, &o->n_validation_files));
    ZN_TRY(list_of(args, "freeze", &store->freeze, &o->n_freeze));
    o->freeze = store->freeze;
    ZN_TRY(need(o->n_train_files > 0 ? "" : NULL, "--train_file F"));
    o->train_files = store->train_files;
    o->validation_files = store->validation_files;
    for (int i = 0; i < N_CONFIG_NAMES; i++)
        if (zn_args_given(args, config_names[i]))
            store->arguments[o->n_arguments++] =
                (zn_config_argument){config_names[i], zn_args_get(args, config_names[i])};
    o->arguments = store->arguments;
    return ZINC_OK;
}

/* Over machines `zinc launch` starts the ranks; this process becomes it, with its own words. */
static zinc_status become_launch(const char *accelerate)
{
    zn_buf words = {0};
    char **argv = NULL;
    char self[] = "/proc/self/exe", launch[] = "launch", option[] = "--accelerate_config",
         zinc[] = "zinc", *path = NULL;
    int n = 0;
    zinc_status status;
    ZN_TRY_GOTO(zn_fs_read("/proc/self/cmdline", 0, &words)); /* each word ends in a NUL */
    ZN_TRY_GOTO(zn_alloc_array(&argv, words.n + 8, sizeof *argv, "words"));
    ZN_TRY_GOTO(zn_strdup(accelerate, &path));
    argv[n++] = zinc;
    argv[n++] = launch;
    argv[n++] = option;
    argv[n++] = path;
    argv[n++] = zinc;
    for (size_t i = strlen(words.data) + 1; i < words.n; i += strlen(words.data + i) + 1)
        argv[n++] = words.data + i;
    execv(self, argv);
    ZN_FAIL_GOTO(ZINC_E_IO, "cannot start zinc launch");
fail:
    zn_free(path);
    zn_free(argv);
    zn_buf_fini(&words);
    return status;
}

/* Ranks of this machine, as the YAML says. A process that mpirun has started knows its world. */
static zinc_status read_accelerate(const zn_args *args, zn_train_options *o)
{
    zn_accelerate_launch launch = {0};
    if (!o->accelerate_config || strcmp(o->comm, "mpi") == 0)
        return ZINC_OK;
    zinc_status status;
    ZN_TRY_GOTO(zn_accelerate_open(o->accelerate_config, &launch));
    const int64_t ranks = zn_accelerate_local_ranks(launch.values);
    if (launch.values->accelerate.num_machines > 1)
        ZN_TRY_GOTO(become_launch(o->accelerate_config));
    if (zn_args_given(args, "ranks") && ranks > 0 && ranks != o->ranks)
        ZN_FAIL_GOTO(ZINC_E_CONFIG,
                     "--ranks %d, but %s has num_processes %lld on num_machines %lld", o->ranks,
                     o->accelerate_config, (long long)launch.values->accelerate.num_processes,
                     (long long)launch.values->accelerate.num_machines);
    if (ranks > 0)
        o->ranks = (int)ranks;
fail:
    zn_accelerate_launch_fini(&launch);
    return status;
}

static int run_train(const zn_args *args)
{
    storage store = {0};
    zn_train_options o;
    zinc_status status = read_options(args, &store, &o);
    if (status == ZINC_OK)
        status = read_accelerate(args, &o);
    const int code = status == ZINC_OK ? zn_train(&o) : zn_cli_fail("train", status);
    zn_free(store.train_files);
    zn_free(store.validation_files);
    zn_free(store.freeze);
    zn_free(store.model);
    return code;
}

const zn_command zn_command_train = {
    .name = "train",
    .summary = "fine-tune or pretrain a causal language model, sharded over ranks",
    .positional = "",
    .options = options,
    .n_options = N_OPTIONS,
    .epilog = "Fine-tune a model on two ranks with ZeRO, as a ds_config.json says:\n"
              "  zinc train --model DIR --train_file data.txt --output_dir out --ranks 2 \\\n"
              "      --deepspeed ds_config.json --per_device_train_batch_size 4\n",
    .run = run_train,
};
