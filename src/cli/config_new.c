/* SPDX-License-Identifier: Apache-2.0 */
/* config_new.c — the questions of `accelerate config`, in its order as far as they apply here; the
 * answers become a YAML text, which is read as any other and written in the form that is asked for.
 * Nothing is written before the last answer. Source of keys, order and defaults: accelerate 1.15,
 * commands/config/cluster.py. */
#include "cli/config_new.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "cli/ask.h"
#include "cli/cmd_plan.h"
#include "config/config.h"

#define N_OF(words) ((int)(sizeof(words) / sizeof((words)[0])))
#define MAX_TEXT 512

typedef struct questions {
    const zn_args *args;
    zn_asker asker;
    zn_buf yaml;
    int64_t n_machines;
    bool has_file; /* a ds_config.json says precision and sharing */
    bool shares;   /* DeepSpeed or FSDP was chosen */
    zn_config *config;
    bool checkpointing; /* the plan asks for it where the file cannot say it */
} questions;

static zinc_status put(questions *q, const char *format, const char *value)
{
    return zn_buf_printf(&q->yaml, format, value);
}

static zinc_status put_flag(questions *q, const char *name, bool flag)
{
    return zn_buf_printf(&q->yaml, "%s: %s\n", name, flag ? "true" : "false");
}

/* A text in single quotes, as YAML doubles them. */
static zinc_status put_text(questions *q, const char *name, const char *text)
{
    ZN_TRY(zn_buf_printf(&q->yaml, "%s: '", name));
    for (const char *p = text; *p; p++)
        ZN_TRY(zn_buf_printf(&q->yaml, *p == '\'' ? "''" : "%c", *p));
    return zn_buf_puts(&q->yaml, "'\n");
}

/* The questions that ask and put one value. */

static zinc_status text(questions *q, const char *question, const char *fallback, const char *name)
{
    char answer[MAX_TEXT];
    ZN_TRY(zn_ask_text(&q->asker, question, fallback, answer, sizeof answer));
    return put_text(q, name, answer);
}

static zinc_status flag(questions *q, const char *question, bool fallback, const char *name)
{
    bool answer;
    ZN_TRY(zn_ask_yes(&q->asker, question, fallback, &answer));
    return put_flag(q, name, answer);
}

static zinc_status number(questions *q, const char *question, int64_t fallback, int64_t min,
                          const char *name)
{
    int64_t answer;
    ZN_TRY(zn_ask_int(&q->asker, question, fallback, min, 1000000000, &answer));
    return zn_buf_printf(&q->yaml, "%s: %lld\n", name, (long long)answer);
}

static zinc_status choice(questions *q, const char *question, const char *const *words, int n,
                          int fallback, const char *name, int *out)
{
    ZN_TRY(zn_ask_choice(&q->asker, question, words, n, fallback, out));
    ZN_TRY(zn_buf_printf(&q->yaml, "%s: ", name));
    return put(q, "'%s'\n", words[*out]);
}

/* ---- machines ---- */

static zinc_status ask_machines(questions *q)
{
    int64_t rank;
    bool same;
    ZN_TRY(zn_ask_int(&q->asker, "How many machines take part?", 1, 1, 65536, &q->n_machines));
    ZN_TRY(zn_buf_printf(&q->yaml, "num_machines: %lld\n", (long long)q->n_machines));
    if (q->n_machines == 1)
        return ZINC_OK;
    ZN_TRY(
        zn_ask_int(&q->asker, "What is the rank of this machine?", 0, 0, q->n_machines - 1, &rank));
    ZN_TRY(zn_buf_printf(&q->yaml, "machine_rank: %lld\n", (long long)rank));
    ZN_TRY(text(q, "What is the IP address of the machine with the main process?", NULL,
                "main_process_ip"));
    ZN_TRY(number(q, "Which port does the main process use?", 29500, 0, "main_process_port"));
    ZN_TRY(zn_ask_yes(&q->asker, "Are all machines on the same local network?", true, &same));
    ZN_TRY(put_flag(q, "same_network", same));
    return same ? ZINC_OK
                : text(q, "What rendezvous backend do they use? (static, c10d)", "static",
                       "rdzv_backend");
}

/* ---- DeepSpeed ---- */

static zinc_status ask_offload(questions *q, int stage)
{
    static const char *const devices[] = {"none", "cpu", "nvme"};
    int optimizer, param = 0;
    ZN_TRY(choice(q, "Where to offload optimizer states?", devices, 3, 0,
                  "  offload_optimizer_device", &optimizer));
    if (stage == 3) /* below it has no effect */
        ZN_TRY(choice(q, "Where to offload parameters?", devices, 3, 0, "  offload_param_device",
                      &param));
    if (param == 2)
        ZN_TRY(
            text(q, "Which folder for parameters on nvme?", "/nvme", "  offload_param_nvme_path"));
    return optimizer == 2 ? text(q, "Which folder for optimizer states on nvme?", "/nvme",
                                 "  offload_optimizer_nvme_path")
                          : ZINC_OK;
}

static zinc_status ask_stage(questions *q)
{
    static const char *const stages[] = {"0", "1", "2", "3"};
    int stage;
    bool clips;
    double clipping;
    ZN_TRY(zn_ask_choice(&q->asker, "Which ZeRO optimization stage?", stages, 4, 2, &stage));
    ZN_TRY(zn_buf_printf(&q->yaml, "  zero_stage: %d\n", stage));
    if (stage >= 2)
        ZN_TRY(ask_offload(q, stage));
    ZN_TRY(
        number(q, "How many gradient accumulation steps?", 1, 1, "  gradient_accumulation_steps"));
    ZN_TRY(zn_ask_yes(&q->asker, "Do you want gradient clipping?", false, &clips));
    if (clips) {
        ZN_TRY(zn_ask_real(&q->asker, "What is the gradient clipping value?", 1.0, &clipping));
        ZN_TRY(zn_buf_printf(&q->yaml, "  gradient_clipping: %.17g\n", clipping));
    }
    return stage == 3 ? flag(q, "Save 16-bit model weights with ZeRO stage 3?", false,
                             "  zero3_save_16bit_model")
                      : ZINC_OK;
}

static zinc_status ask_filter(questions *q, const char *kind)
{
    char question[80], name[80];
    bool wanted;
    snprintf(question, sizeof question, "Do you want to give an %s filter?", kind);
    ZN_TRY(zn_ask_yes(&q->asker, question, false, &wanted));
    if (!wanted)
        return ZINC_OK;
    snprintf(question, sizeof question, "Which %s filter? (NAME[:SLOT,...][@NAME...])", kind);
    snprintf(name, sizeof name, "  deepspeed_%s_filter", kind);
    return text(q, question, NULL, name);
}

static zinc_status ask_launcher(questions *q)
{
    static const char *const launchers[] = {"pdsh",  "standard", "openmpi", "mvapich",
                                            "mpich", "nossh",    "slurm"};
    int launcher;
    ZN_TRY(choice(q, "Which launcher starts the other machines? (standard: by hand on each)",
                  launchers, N_OF(launchers), 0, "  deepspeed_multinode_launcher", &launcher));
    if (launcher == 1)
        return ZINC_OK;
    ZN_TRY(text(q, "Where is the hostfile? (lines: NAME slots=N)", "hostfile",
                "  deepspeed_hostfile"));
    ZN_TRY(ask_filter(q, "exclusion"));
    return ask_filter(q, "inclusion");
}

static zinc_status ask_deepspeed(questions *q)
{
    ZN_TRY(zn_buf_puts(&q->yaml, "distributed_type: DEEPSPEED\ndeepspeed_config:\n"));
    ZN_TRY(
        zn_ask_yes(&q->asker, "Do you want to name a DeepSpeed json file?", false, &q->has_file));
    if (q->has_file)
        ZN_TRY(text(q, "Which DeepSpeed json file?", "ds_config.json", "  deepspeed_config_file"));
    else
        ZN_TRY(ask_stage(q));
    ZN_TRY(flag(q, "Build the model sharded, by zero.Init, with ZeRO stage 3?", false,
                "  zero3_init_flag"));
    return q->n_machines > 1 ? ask_launcher(q) : ZINC_OK;
}

/* ---- FSDP ---- */

static zinc_status ask_wrapping(questions *q)
{
    static const char *const policies[] = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"};
    int policy;
    bool own = true;
    ZN_TRY(
        choice(q, "Which auto wrap policy?", policies, 3, 0, "  fsdp_auto_wrap_policy", &policy));
    if (policy == 1)
        return number(q, "What is the least number of parameters of a unit?", 100000000, 1,
                      "  fsdp_min_num_params");
    if (policy == 2)
        return ZINC_OK;
    ZN_TRY(zn_ask_yes(&q->asker, "Wrap the model's own block classes (`_no_split_modules`)?", true,
                      &own));
    return own ? ZINC_OK
               : text(q, "Which layer classes, separated by commas?", NULL,
                      "  fsdp_transformer_layer_cls_to_wrap");
}

static zinc_status ask_version_1(questions *q)
{
    static const char *const prefetches[] = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
    int prefetch;
    return choice(q, "Which backward prefetch policy?", prefetches, 3, 0,
                  "  fsdp_backward_prefetch", &prefetch);
}

static zinc_status ask_state_dict(questions *q, bool two)
{
    static const char *const types_1[] = {"FULL_STATE_DICT", "LOCAL_STATE_DICT",
                                          "SHARDED_STATE_DICT"};
    static const char *const types_2[] = {"SHARDED_STATE_DICT", "FULL_STATE_DICT"};
    int type;
    return choice(q, "Which state dict type?", two ? types_2 : types_1, two ? 2 : 3, 0,
                  "  fsdp_state_dict_type", &type);
}

static zinc_status ask_loading(questions *q, bool two)
{
    bool efficient;
    ZN_TRY(zn_ask_yes(&q->asker, "Load the model with little host memory?", true, &efficient));
    ZN_TRY(put_flag(q, "  fsdp_cpu_ram_efficient_loading", efficient));
    if (two)
        return ZINC_OK;
    return efficient ? put_flag(q, "  fsdp_sync_module_states", true)
                     : flag(q, "Broadcast module states from rank 0 at the start?", true,
                            "  fsdp_sync_module_states");
}

static zinc_status ask_mesh(questions *q)
{
    bool wanted;
    ZN_TRY(zn_ask_yes(&q->asker, "Do you want replicas of the shards (parallelism config)?", false,
                      &wanted));
    if (!wanted)
        return ZINC_OK;
    ZN_TRY(zn_buf_puts(&q->yaml, "parallelism_config:\n"));
    ZN_TRY(number(q, "How many replicas?", 1, 1, "  parallelism_config_dp_replicate_size"));
    return number(q, "How many ranks share one replica?", 1, 1,
                  "  parallelism_config_dp_shard_size");
}

static zinc_status ask_fsdp(questions *q)
{
    static const char *const versions[] = {"1", "2"};
    static const char *const strategies[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                             "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
    int version, strategy;
    ZN_TRY(zn_buf_puts(&q->yaml, "distributed_type: FSDP\nfsdp_config:\n"));
    /* by its word: 1 and 2 are the versions, not places */
    ZN_TRY(choice(q, "Which FSDP version?", versions, 2, 1, "  fsdp_version", &version));
    const bool two = version == 1;
    if (two)
        ZN_TRY(flag(q, "Reshard parameters after the forward pass?", true,
                    "  fsdp_reshard_after_forward"));
    else
        ZN_TRY(choice(q, "Which sharding strategy?", strategies, 5, 0,
                      "  fsdp_reshard_after_forward", &strategy));
    ZN_TRY(flag(q, "Offload parameters and gradients to the CPU?", false, "  fsdp_offload_params"));
    ZN_TRY(ask_wrapping(q));
    if (!two)
        ZN_TRY(ask_version_1(q));
    ZN_TRY(ask_state_dict(q, two));
    if (!two) {
        ZN_TRY(flag(q, "Do you want forward prefetch?", false, "  fsdp_forward_prefetch"));
        ZN_TRY(flag(q, "Do you want the original parameters (`use_orig_params`)?", true,
                    "  fsdp_use_orig_params"));
    }
    ZN_TRY(ask_loading(q, two));
    ZN_TRY(flag(q, "Do you want FSDP activation checkpointing?", false,
                "  fsdp_activation_checkpointing"));
    return two ? ask_mesh(q) : ZINC_OK;
}

/* ---- the whole ---- */

static zinc_status ask_sharing(questions *q, int machine)
{
    static const char *const types[] = {"'NO'", "MULTI_CPU", "MULTI_GPU"};
    ZN_TRY(zn_ask_yes(&q->asker, "Do you want to use DeepSpeed?", false, &q->shares));
    if (q->shares)
        return ask_deepspeed(q);
    if (machine > 0) {
        ZN_TRY(zn_ask_yes(&q->asker, "Do you want to use FullyShardedDataParallel?", false,
                          &q->shares));
        if (q->shares)
            return ask_fsdp(q);
    }
    return put(q, "distributed_type: %s\n", types[machine]);
}

static zinc_status ask_all(questions *q)
{
    static const char *const machines[] = {"no distributed training", "multi-CPU", "multi-GPU"};
    static const char *const precisions[] = {"no", "fp16", "bf16"};
    int machine, precision;
    q->n_machines = 1;
    ZN_TRY(
        zn_ask_choice(&q->asker, "Which type of machine are you using?", machines, 3, 2, &machine));
    if (machine > 0)
        ZN_TRY(ask_machines(q));
    ZN_TRY(ask_sharing(q, machine));
    if (machine > 0 || q->shares)
        ZN_TRY(number(q, "How many processes on all machines together?",
                      machine > 0 ? 2 * q->n_machines : 1, 1, "num_processes"));
    if (q->has_file)
        return ZINC_OK;
    return choice(q, "Which mixed precision?", precisions, 3, 0, "mixed_precision", &precision);
}

static zinc_status read_answers(questions *q)
{
    zn_config_facts facts = {.default_micro_batch = 1};
    zn_config_destroy(q->config);
    q->config = NULL;
    ZN_TRY(zn_config_parse_accelerate(q->yaml.data, q->yaml.n, "answers", NULL, &q->config));
    zn_config_facts_from_accelerate(q->config, &facts);
    return zn_config_resolve(q->config, &facts);
}

/* ---- the plan ---- */

static zinc_status resolve_again(questions *q)
{
    zn_config_facts facts = {.default_micro_batch = 1};
    zn_config_facts_from_accelerate(q->config, &facts);
    return zn_config_resolve(q->config, &facts);
}

/* The cheapest change that fits, as a ds_config.json of the same machines. */
static zinc_status take_change(questions *q, const zn_plan_search *search)
{
    const zn_config_values *v = zn_config_get(q->config);
    zn_buf json = {0};
    zn_config *changed = NULL;
    zinc_status status;
    ZN_TRY_GOTO(zn_plan_append_config(&search->run, "/nvme", &json));
    q->checkpointing = search->run.checkpointing && !v->checkpoint_units;
    ZN_TRY_GOTO(zn_config_parse(json.data, json.n, "plan", &changed));
    ZN_TRY_GOTO(zn_config_take_machines(changed, q->config));
    zn_config_destroy(q->config);
    q->config = changed;
    changed = NULL;
    ZN_TRY_GOTO(resolve_again(q));
fail:
    zn_config_destroy(changed);
    zn_buf_fini(&json);
    return status;
}

static zinc_status offer_change(questions *q, const zn_plan_search *search)
{
    bool wanted = false;
    if (search->before.fits)
        return ZINC_OK;
    if (!search->found) {
        fprintf(stderr, "no change of it fits; it is written as it was answered\n");
        return ZINC_OK;
    }
    ZN_TRY(zn_ask_yes(&q->asker, "It does not fit. Write it with this change?", true, &wanted));
    return wanted ? take_change(q, search) : ZINC_OK;
}

static zinc_status show_plan(questions *q)
{
    const char *given = zn_args_get(q->args, "model_name_or_path");
    const char *memory = zn_args_get(q->args, "device_memory");
    char model[MAX_TEXT] = "", gpus[24], nodes[24];
    const zn_config_values *v = zn_config_get(q->config);
    const int64_t ranks = v->accelerate.num_processes > 0 ? v->accelerate.num_processes : 1;
    zn_cli_plan_answer answer = {0};
    if (given)
        snprintf(model, sizeof model, "%s", given);
    else
        ZN_TRY(zn_ask_text(&q->asker, "Which model to plan for? (a folder or a name; Enter: none)",
                           "", model, sizeof model));
    if (!*model)
        return ZINC_OK;
    snprintf(gpus, sizeof gpus, "%lld", (long long)(ranks / q->n_machines));
    snprintf(nodes, sizeof nodes, "%lld", (long long)q->n_machines);
    const char *words[8] = {"--model", model, "--gpus", gpus, "--nodes", nodes};
    int n = 6;
    if (memory) {
        words[n++] = "--gpu_memory";
        words[n++] = memory;
    }
    zinc_status status = zn_cli_plan(n, words, q->config, &answer);
    if (status == ZINC_OK) {
        fputs(answer.text.data, stderr);
        status = offer_change(q, &answer.search);
    }
    zn_buf_fini(&answer.text);
    return status == ZINC_OK ? resolve_again(q) : status;
}

/* ---- the file ---- */

static zinc_status choose_output(const zn_args *args, bool json, char **out)
{
    const char *output = zn_args_get(args, "output");
    const char *path = output ? output : json ? "ds_config.json" : "accelerate_config.yaml";
    if (output && strcmp(output, "default") == 0 && !json)
        ZN_TRY(zn_accelerate_default_path(out));
    else
        ZN_TRY(zn_strdup(path, out));
    if (zn_fs_exists(*out) && !zn_args_flag(args, "overwrite", false))
        ZN_FAIL(ZINC_E_CONFIG, "%s is there already: give --output FILE, or --overwrite", *out);
    return ZINC_OK;
}

static zinc_status make_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = NULL;
    if (!slash || slash == path)
        return ZINC_OK;
    ZN_TRY(zn_format(&folder, "%.*s", (int)(slash - path), path));
    const zinc_status status = zn_fs_mkdirs(folder);
    zn_free(folder);
    return status;
}

static zinc_status write_file(questions *q, bool json, const char *path)
{
    const int64_t ranks = zn_config_get(q->config)->accelerate.num_processes;
    zn_buf out = {0}, lost = {0};
    zinc_status status;
    if (json)
        ZN_TRY_GOTO(zn_config_append_deepspeed(q->config, q->n_machines > 1, &out));
    else
        ZN_TRY_GOTO(zn_config_append_accelerate(q->config, ranks > 0 ? ranks : 1, &lost, &out));
    if (lost.n > 0)
        fprintf(stderr, "no place in an accelerate YAML (--format ds_config has it):\n%s",
                lost.data);
    ZN_TRY_GOTO(make_folder(path));
    ZN_TRY_GOTO(zn_fs_write_atomic(path, out.data, out.n));
    fprintf(stderr, "%s is written: zinc train --%s %s, or zinc launch --accelerate_config\n", path,
            json ? "deepspeed" : "accelerate_config", path);
    if (q->checkpointing)
        fprintf(stderr, "it goes with --gradient_checkpointing\n");
fail:
    zn_buf_fini(&out);
    zn_buf_fini(&lost);
    return status;
}

static zinc_status check_format(const zn_args *args, bool *json)
{
    const char *format = zn_args_get(args, "format");
    *json = format && strcmp(format, "ds_config") == 0;
    if (format && !*json && strcmp(format, "accelerate") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--format %s: accelerate or ds_config", format);
    if (zn_args_n_positional(args) != 1)
        ZN_FAIL(ZINC_E_INVALID, "zinc config new takes --output FILE");
    return ZINC_OK;
}

int zn_config_new(const zn_args *args)
{
    questions q = {.args = args,
                   .asker = {.defaults = zn_args_flag(args, "yes", false),
                             .terminal = isatty(STDIN_FILENO) == 1}};
    char *path = NULL;
    bool json;
    zinc_status status;
    ZN_TRY_GOTO(check_format(args, &json));
    ZN_TRY_GOTO(choose_output(args, json, &path));
    ZN_TRY_GOTO(ask_all(&q));
    ZN_TRY_GOTO(read_answers(&q));
    ZN_TRY_GOTO(show_plan(&q));
    ZN_TRY_GOTO(write_file(&q, json, path));
fail:
    zn_free(path);
    zn_buf_fini(&q.yaml);
    zn_config_destroy(q.config);
    if (status == ZINC_E_ABORTED) {
        fprintf(stderr, "\nzinc config: interrupted; nothing was written\n");
        return 130;
    }
    return status == ZINC_OK ? 0 : zn_cli_fail("config", status);
}
