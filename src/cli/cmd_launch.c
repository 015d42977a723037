/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_launch.c — `zinc launch` and `zinc agent`: options to zn_launch_options. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/fs.h"
#include "base/json.h"
#include "cli/accelerate_launch.h"
#include "cli/cli.h"
#include "config/config.h"
#include "launch/launch.h"

#define VALUE(option_name, meta, fallback, text)                                                   \
    {                                                                                              \
        .name = (option_name), .kind = ZN_OPTION_VALUE, .metavar = (meta),                         \
        .default_text = (fallback), .help = (text)                                                 \
    }
#define FLAG(option_name, text)                                                                    \
    {                                                                                              \
        .name = (option_name), .kind = ZN_OPTION_FLAG, .help = (text)                              \
    }

static const zn_option options[] = {
    VALUE("accelerate_config", "F|default", NULL,
          "accelerate YAML: hosts and ranks, and what the program shares"),
    VALUE("hostfile", "F", "/job/hostfile, or Slurm's", "hosts, one line each: NAME slots=N"),
    VALUE("include", "SPEC", NULL, "only these: NAME[:SLOT,…][@NAME…], slots as 0,2 or 0-2"),
    VALUE("exclude", "SPEC", NULL, "all but these"),
    VALUE("num_nodes", "N", "all", "the first N hosts"),
    {.name = "num_ranks",
     .alias = "num_gpus",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "all slots",
     .help = "ranks on each host"},
    VALUE("num_accelerators", "N", NULL, "the same as --num_ranks"),
    VALUE("master_addr", "ADDR", "the first host", "where rank 0 listens (MASTER_ADDR)"),
    VALUE("master_port", "PORT", "29500, or a free one", "its port (MASTER_PORT)"),
    VALUE("launcher", "NAME", "ssh; slurm in an allocation",
          "how hosts are reached: ssh, local, openmpi, mpich, slurm, "
          "pdsh"),
    VALUE("launcher_args", "WORDS", NULL, "more arguments for it, split as a shell does"),
    VALUE("ssh_port", "PORT", "ssh's own", "port of the hosts' ssh servers"),
    FLAG("no_ssh", "start this host's ranks only; run the same on every host"),
    VALUE("node_rank", "K", NULL, "with --no_ssh: this host's place, from 0"),
    FLAG("no_ssh_check", "accepted; the connection that checks a host is the one that runs it"),
    FLAG("force_multi", "reach every host through the launcher, this one too"),
    FLAG("module", "PROGRAM is a Python module (python3 -m)"),
    FLAG("no_python", "run PROGRAM itself, even if it ends in .py"),
    FLAG("no_local_rank", "accepted; no argument is put in, LOCAL_RANK says it"),
    FLAG("bind_cores_to_rank", "divide a host's cores among its ranks"),
    VALUE("bind_core_list", "LIST", "all", "cores to divide, e.g. 0,2-4"),
    VALUE("enable_each_rank_log", "DIR", NULL, "each rank's output also to a file of its own"),
    FLAG("save_pid", "write the launcher's process id to /tmp/PID.zinc"),
    VALUE("venv_script", "F", NULL, "shell script to read before PROGRAM starts"),
    VALUE("export", "NAME[=VALUE]", NULL, "set a variable for every rank; may repeat"),
    VALUE("max_restarts", "N", "0", "start again after a failure, from the newest checkpoint"),
    VALUE("min_nodes", "N", "all", "go on with as few hosts when others cannot be reached"),
    VALUE("hang_timeout", "SECONDS", "never", "end a job that shows no progress for so long"),
    VALUE("connect_timeout", "SECONDS", "20", "longest wait for a host to answer"),
    VALUE("grace_period", "SECONDS", "30", "from SIGTERM to SIGKILL when the job is interrupted"),
    FLAG("elastic_training", "not supported: use --max_restarts and --min_nodes"),
    VALUE("min_elastic_nodes", "N", NULL, "not supported: use --min_nodes"),
    VALUE("max_elastic_nodes", "N", NULL, "not supported: use --num_nodes"),
    FLAG("dry_run", "print the plan; reach no host, start nothing"),
    FLAG("json", "with --dry_run: the plan as JSON"),
};
#define N_OPTIONS ((int)(sizeof options / sizeof options[0]))
#define MAX_EXPORTS 256
#define BY_HAND_S 300 /* a person goes from one machine to the next */
#define N_ADDED 3     /* words that an accelerate YAML adds to the program, and one spare */

static zinc_status read_numbers(const zn_args *args, zn_launch_options *o)
{
    if (zn_args_given(args, "num_ranks") && zn_args_given(args, "num_accelerators"))
        ZN_FAIL(ZINC_E_INVALID, "--num_ranks and --num_accelerators are the same: give one");
    ZN_TRY(zn_args_int(args, "num_nodes", -1, 65536, &o->num_nodes));
    ZN_TRY(zn_args_int(args, "num_ranks", -1, 65536, &o->num_ranks));
    ZN_TRY(zn_args_int(args, "num_accelerators", -1, 65536, &o->num_ranks));
    ZN_TRY(zn_args_int(args, "master_port", 1, 65535, &o->master_port));
    ZN_TRY(zn_args_int(args, "ssh_port", 1, 65535, &o->ssh_port));
    ZN_TRY(zn_args_int(args, "node_rank", -1, 65535, &o->node_rank));
    ZN_TRY(zn_args_int(args, "max_restarts", 0, 1000000, &o->max_restarts));
    ZN_TRY(zn_args_int(args, "min_nodes", 1, 65536, &o->min_nodes));
    ZN_TRY(zn_args_real(args, "hang_timeout", 0, 1e9, &o->hang_timeout_s));
    ZN_TRY(zn_args_real(args, "connect_timeout", 0.1, 1e9, &o->connect_timeout_s));
    return zn_args_real(args, "grace_period", 0, 1e9, &o->grace_s);
}

static zinc_status refuse_elastic(const zn_args *args)
{
    static const char *const names[] = {"elastic_training", "min_elastic_nodes",
                                        "max_elastic_nodes"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (zn_args_given(args, names[i]))
            ZN_FAIL(ZINC_E_INVALID,
                    "--%s: ranks do not join or leave a running job; --max_restarts N starts it "
                    "again from its newest checkpoint, with --min_nodes on the hosts that are left",
                    names[i]);
    return ZINC_OK;
}

static zinc_status read_options(const zn_args *args, const char **words, zn_launch_options *o)
{
    *o = (zn_launch_options){
        .hostfile = zn_args_get(args, "hostfile"),
        .include = zn_args_get(args, "include"),
        .exclude = zn_args_get(args, "exclude"),
        .master_addr = zn_args_get(args, "master_addr"),
        .launcher = zn_args_get(args, "launcher"),
        .launcher_args = zn_args_get(args, "launcher_args"),
        .no_ssh = zn_args_flag(args, "no_ssh", false),
        .force_multi = zn_args_flag(args, "force_multi", false),
        .node_rank = -1,
        .module = zn_args_flag(args, "module", false),
        .no_python = zn_args_flag(args, "no_python", false),
        .bind_cores = zn_args_flag(args, "bind_cores_to_rank", false),
        .bind_core_list = zn_args_get(args, "bind_core_list"),
        .venv_script = zn_args_get(args, "venv_script"),
        .log_dir = zn_args_get(args, "enable_each_rank_log"),
        .save_pid = zn_args_flag(args, "save_pid", false),
        .connect_timeout_s = 20,
        .grace_s = 30,
    };
    ZN_TRY(refuse_elastic(args));
    ZN_TRY(read_numbers(args, o));
    o->n_exports = zn_args_count(args, "export");
    if (o->n_exports > MAX_EXPORTS)
        ZN_FAIL(ZINC_E_INVALID, "more than %d --export; write them to .zinc_env", MAX_EXPORTS);
    for (int i = 0; i < o->n_exports; i++)
        words[i] = zn_args_at(args, "export", i);
    o->exports = words;
    o->n_program = zn_args_n_positional(args);
    for (int i = 0; i < o->n_program; i++)
        words[MAX_EXPORTS + i] = zn_args_positional(args, i);
    o->program = words + MAX_EXPORTS;
    return ZINC_OK;
}

static zinc_status print_plan(const zn_launch_options *o, bool json)
{
    zinc_status status;
    zn_plan *plan = NULL;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_plan_create(o, &plan));
    ZN_TRY_GOTO(json ? zn_plan_json(plan, &text) : zn_plan_text(plan, &text));
    fwrite(text.data, 1, text.n, stdout);
fail:
    zn_buf_fini(&text);
    zn_plan_destroy(plan);
    return status;
}

/* A zinc train that is started reads the YAML itself; any other program finds it in its
 * environment.
 */
static zinc_status apply_accelerate(const char *path, zn_accelerate_launch *launch,
                                    const char **words, zn_launch_options *o)
{
    const char **program = words + MAX_EXPORTS;
    const char *slash = strrchr(program[0], '/');
    ZN_TRY(zn_accelerate_open(path, launch));
    ZN_TRY(zn_accelerate_fill(launch, o));
    if (strcmp(slash ? slash + 1 : program[0], "zinc") == 0 && !o->module) {
        program[o->n_program++] = "--accelerate_config";
        program[o->n_program++] = path;
        return ZINC_OK;
    }
    ZN_TRY(zn_accelerate_environment(launch));
    if (o->n_exports + launch->n_exports > MAX_EXPORTS)
        ZN_FAIL(ZINC_E_INVALID, "more than %d --export; write them to .zinc_env", MAX_EXPORTS);
    memmove(words + launch->n_exports, words, (size_t)o->n_exports * sizeof *words);
    for (int i = 0; i < launch->n_exports;
         i++) /* first: an --export says otherwise, and means it */
        words[i] = launch->exports[i];
    o->n_exports += launch->n_exports;
    return ZINC_OK;
}

static zinc_status check_strict(const char *file)
{
    json_t *json = NULL;
    zn_config *config = NULL;
    zn_error strict;
    if (!zn_fs_exists(file) || zn_fs_is_dir(file))
        return ZINC_OK;
    const zinc_status read = zn_json_load(file, &json);
    zn_error_save(&strict, read);
    json_decref(json);
    if (read != ZINC_E_FORMAT)
        return ZINC_OK;
    const zinc_status superset =
        zn_config_load(file, &config); /* E_CONFIG: the keys are wrong too */
    zn_config_destroy(config);
    if (superset != ZINC_OK && superset != ZINC_E_CONFIG)
        return ZINC_OK; /* it is no configuration: the program says what it makes of it */
    ZN_FAIL(ZINC_E_CONFIG,
            "%s. transformers reads --deepspeed with Python's json, which takes no comments and no "
            "trailing commas; make a plain file: zinc config check %s --for transformers --output "
            "plain.json",
            strict.message, file);
}

/* A Trainer script's --deepspeed F, before any process starts. (`zinc train` takes comments, and so
 * does deepspeed.initialize, which reads --deepspeed_config.) */
static zinc_status check_script_config(const zn_launch_options *o)
{
    static const char option[] = "--deepspeed";
    const size_t n = sizeof option - 1;
    const char *slash = strrchr(o->program[0], '/');
    if (strcmp(slash ? slash + 1 : o->program[0], "zinc") == 0)
        return ZINC_OK;
    for (int i = 1; i < o->n_program; i++) {
        const char *word = o->program[i];
        if (strcmp(word, option) == 0 && i + 1 < o->n_program)
            ZN_TRY(check_strict(o->program[i + 1]));
        else if (strncmp(word, option, n) == 0 && word[n] == '=')
            ZN_TRY(check_strict(word + n + 1));
    }
    return ZINC_OK;
}

static int run_launch(const zn_args *args)
{
    zinc_status status;
    zn_launch_options o;
    zn_accelerate_launch launch = {0};
    const char **words = NULL;
    const char *accelerate = zn_args_get(args, "accelerate_config");
    int code = 0;
    const size_t n = (size_t)zn_args_n_positional(args) + MAX_EXPORTS + N_ADDED;
    ZN_TRY_GOTO(zn_alloc_array(&words, n, sizeof *words, "words"));
    ZN_TRY_GOTO(read_options(args, words, &o));
    if (accelerate)
        ZN_TRY_GOTO(apply_accelerate(accelerate, &launch, words, &o));
    const bool by_hand = zn_launch_is_by_hand(&o);
    if (by_hand && !zn_args_given(args, "connect_timeout"))
        o.connect_timeout_s = BY_HAND_S;
    ZN_TRY_GOTO(check_script_config(&o));
    if (!o.launcher && zn_launch_in_allocation(&o))
        o.launcher = "slurm";
    if (zn_args_flag(args, "dry_run", false))
        ZN_TRY_GOTO(print_plan(&o, zn_args_flag(args, "json", false)));
    else
        ZN_TRY_GOTO(by_hand ? zn_launch_by_hand(&o, &code) : zn_launch_run(&o, &code));
fail:
    zn_accelerate_launch_fini(&launch);
    zn_free(words);
    return status == ZINC_OK ? code : zn_cli_fail("launch", status);
}

const zn_command zn_command_launch = {
    .name = "launch",
    .summary = "start a program on many ranks and hosts, watch it, restart it",
    .positional = "PROGRAM ARGS...",
    .min_positional = 1,
    .max_positional = -1,
    .rest_is_program = true,
    .options = options,
    .n_options = N_OPTIONS,
    .epilog = "Options end at PROGRAM, or at --. A .py program runs under python3.\n"
              "  zinc launch --num_ranks 2 train.py --lr 1e-4\n"
              "  zinc launch --hostfile hosts --include worker-0@worker-1:0,2 train.py\n"
              "  zinc launch --hostfile hosts --max_restarts 3 zinc train --model DIR …\n",
    .run = run_launch,
};

/* ---- agent ---- */

static const zn_option agent_options[] = {
    VALUE("fd", "N", "stdin and stdout", "the open socket to the launcher"),
    VALUE("connect", "HOST:PORT", NULL, "the launcher's address instead"),
    VALUE("place", "N", "what mpirun or srun says", "with --connect: this host's number"),
};

static int run_relay(const zn_args *args)
{
    zinc_status status;
    const char **words = NULL;
    const int n = zn_args_n_positional(args);
    int code = 0;
    ZN_TRY_GOTO(zn_alloc_array(&words, (size_t)n, sizeof *words, "words"));
    for (int i = 1; i < n; i++)
        words[i - 1] = zn_args_positional(args, i);
    ZN_TRY_GOTO(zn_launch_relay(zn_args_positional(args, 0), words, n - 1, &code));
fail:
    zn_free(words);
    return status == ZINC_OK ? code : zn_cli_fail("agent", status);
}

static int run_agent(const zn_args *args)
{
    zinc_status status;
    if (zn_args_n_positional(args) > 0)
        return run_relay(args);
    zn_agent_options o = {.fd = -1, .place = -1, .connect = zn_args_get(args, "connect")};
    ZN_TRY_GOTO(zn_args_int(args, "fd", 0, 65535, &o.fd));
    ZN_TRY_GOTO(zn_args_int(args, "place", 0, 65535, &o.place));
    ZN_TRY_GOTO(zn_agent_run(&o));
fail:
    return status == ZINC_OK ? 0 : zn_cli_fail("agent", status);
}

const zn_command zn_command_agent = {
    .name = "agent",
    .summary = "what zinc launch starts on each host; not for people",
    .positional = "[HOST COMMAND...]",
    .max_positional = -1,
    .rest_is_program = true,
    .options = agent_options,
    .n_options = (int)(sizeof agent_options / sizeof agent_options[0]),
    .run = run_agent,
};
