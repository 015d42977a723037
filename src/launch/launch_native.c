/* SPDX-License-Identifier: Apache-2.0 */
/* launch_native.c — `zinc train` makes its own ranks: on one host one process with --ranks N (its
 * ranks are threads, or with --comm mpi it becomes mpirun itself); over several hosts mpirun, whose
 * own launch agent is what --launcher names. */
#include "launch/launch_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static bool same_name(const char *typed, const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((typed[i] == '-' ? '_' : typed[i]) != (name[i] == '-' ? '_' : name[i]))
            return false;
    return true;
}

const char *zn_program_option(const char *const *words, int n, const char *name)
{
    const size_t n_name = strlen(name);
    const char *value = NULL;
    for (int i = 0; i < n && strcmp(words[i], "--") != 0; i++) {
        if (strncmp(words[i], "--", 2) != 0 || strlen(words[i]) < n_name + 2 ||
            !same_name(words[i] + 2, name, n_name))
            continue;
        if (words[i][2 + n_name] == '=')
            value = words[i] + 3 + n_name;
        else if (words[i][2 + n_name] == '\0')
            value = i + 1 < n ? words[i + 1] : "";
    }
    return value;
}

bool zn_native_program(const zn_launch_options *o)
{
    const char *slash = strrchr(o->program[0], '/');
    return o->n_program > 1 && strcmp(slash ? slash + 1 : o->program[0], "zinc") == 0 &&
           strcmp(o->program[1], "train") == 0 && !o->module;
}

bool zn_launch_is_by_hand(const zn_launch_options *o)
{
    return zn_native_program(o) && o->no_ssh && o->num_nodes > 1 && o->num_ranks > 0 &&
           !o->hostfile;
}

static zinc_status add_program(const zn_launch_options *o, const zn_plan *plan, zn_words *argv)
{
    const bool bare = strcmp(o->program[0], "zinc") == 0;
    ZN_TRY(zn_words_add(argv, bare ? plan->self : o->program[0]));
    for (int i = 1; i < o->n_program; i++)
        ZN_TRY(zn_words_add(argv, o->program[i]));
    return ZINC_OK;
}

zinc_status zn_ssh_options(const zn_launch_options *o, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "-o BatchMode=yes -o ServerAliveInterval=5"));
    return o->ssh_port > 0 ? zn_buf_printf(out, " -p %lld", (long long)o->ssh_port) : ZINC_OK;
}

zinc_status zn_env_default(zn_words *env, const char *const *assignments, int n)
{
    for (int i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(assignments[i], "="), assignments[i]);
        if (!zn_launch_getenv(name))
            ZN_TRY(zn_words_set(env, assignments[i]));
    }
    return ZINC_OK;
}

zinc_status zn_env_openmpi(zn_words *env)
{
    static const char *const settings[] = {
        "OMPI_ALLOW_RUN_AS_ROOT=1",           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "OMPI_MCA_oob_tcp_keepalive_time=2", /* a cut link is found in seconds, not in minutes */
        "OMPI_MCA_oob_tcp_keepalive_intvl=1", "OMPI_MCA_oob_tcp_keepalive_probes=3",
    };
    return zn_env_default(env, settings, (int)(sizeof settings / sizeof settings[0]));
}

/* What Open MPI needs for ranks that compute. */
static zinc_status add_mpi_environment(const zn_launch_options *o, zn_words *env)
{
    static const char *const settings[] = {
        "OMPI_MCA_rmaps_base_oversubscribe=1",
        "OMPI_MCA_hwloc_base_binding_policy=none",
        "OMPI_MCA_pml=ob1",
        "OMPI_MCA_btl=self,vader,tcp",
        "OMPI_MCA_mpi_yield_when_idle=1",
    };
    const char *launcher = o->launcher ? o->launcher : "ssh";
    const char *args = strcmp(launcher, "ssh") == 0 ? o->launcher_args : NULL;
    ZN_TRY(zn_env_openmpi(env));
    ZN_TRY(zn_env_default(env, settings, (int)(sizeof settings / sizeof settings[0])));
    if (strcmp(launcher, "slurm") == 0)
        return zn_words_set(env, "OMPI_MCA_plm=slurm");
    if (strcmp(launcher, "local") == 0)
        return ZINC_OK;
    ZN_TRY(zn_words_set(env, "OMPI_MCA_plm=rsh"));
    zn_buf ssh = {0};
    zinc_status status = zn_ssh_options(o, &ssh);
    if (status == ZINC_OK)
        status = zn_words_addf(env, "OMPI_MCA_plm_rsh_agent=ssh %s%s%s", ssh.data, args ? " " : "",
                               args ? args : "");
    zn_buf_fini(&ssh);
    return status;
}

/* mpirun -n W --host a:2,b:2 -x NAME… zinc train … --comm mpi */
static zinc_status add_mpirun(const zn_launch_options *o, const zn_plan *plan, const zn_words *env,
                              zn_words *argv)
{
    zinc_status status;
    zn_buf hosts = {0};
    const bool local = o->launcher && strcmp(o->launcher, "local") == 0;
    ZN_TRY_GOTO(zn_words_add(argv, "mpirun"));
    ZN_TRY_GOTO(zn_words_add(argv, "-n"));
    ZN_TRY_GOTO(zn_words_addf(argv, "%d", plan->world));
    for (int i = 0; i < plan->pool.n && !local; i++)
        ZN_TRY_GOTO(zn_buf_printf(&hosts, "%s%s:%d", i ? "," : "", plan->pool.hosts[i].name,
                                  plan->pool.hosts[i].n_slots));
    if (o->launcher && strcmp(o->launcher, "openmpi") == 0 && o->launcher_args)
        ZN_TRY_GOTO(zn_shell_split(o->launcher_args, "launcher_args", argv));
    if (o->hang_timeout_s > 0) { /* the agent's file is of use where rank 0 runs on this host */
        ZN_TRY_GOTO(zn_words_add(argv, "-x"));
        ZN_TRY_GOTO(zn_words_add(argv, "ZINC_HEARTBEAT_FILE"));
    }
    if (hosts.n) {
        ZN_TRY_GOTO(zn_words_add(argv, "--host"));
        ZN_TRY_GOTO(zn_words_add(argv, hosts.data));
    }
    for (int i = 0; i < env->n; i++) { /* the value travels in the environment, not in the words */
        ZN_TRY_GOTO(zn_words_add(argv, "-x"));
        ZN_TRY_GOTO(zn_words_add_n(argv, env->items[i], strcspn(env->items[i], "=")));
    }
fail:
    zn_buf_fini(&hosts);
    return status;
}

static zinc_status over_hosts(const zn_launch_options *o, const zn_plan *plan, const zn_words *env,
                              zn_process *p)
{
    zinc_status status;
    zn_words exported = {0};
    const char *comm = zn_program_option(o->program, o->n_program, "comm");
    if (comm && strcmp(comm, "mpi") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--comm %s cannot reach from host to host; leave it away (mpi)",
                comm);
    if (o->no_ssh && !zn_launch_is_by_hand(o))
        ZN_FAIL(ZINC_E_INVALID,
                "zinc train with --no_ssh needs --num_nodes N and --num_ranks M (of "
                "each host) in place of a hostfile; or leave --no_ssh and "
                "--node_rank away, and mpirun reaches the hosts");
    if (plan->bound)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "zinc train over several hosts is started by mpirun, which binds by its own "
                "options: --launcher openmpi --launcher_args '--bind-to core --map-by slot:PE=N'");
    if (o->venv_script)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "--venv_script is for Python programs; zinc train needs none");
    ZN_TRY_GOTO(zn_env_forward(&exported));
    for (int i = 0; i < env->n; i++)
        ZN_TRY_GOTO(zn_words_set(&exported, env->items[i]));
    ZN_TRY_GOTO(add_mpi_environment(o, &p->env));
    ZN_TRY_GOTO(add_mpirun(o, plan, &exported, &p->argv));
    ZN_TRY_GOTO(add_program(o, plan, &p->argv));
    if (!comm) {
        ZN_TRY_GOTO(zn_words_add(&p->argv, "--comm"));
        ZN_TRY_GOTO(zn_words_add(&p->argv, "mpi"));
    }
fail:
    zn_words_fini(&exported);
    return status;
}

zinc_status zn_native_processes(const zn_launch_options *o, zn_plan *plan, const zn_words *env)
{
    const char *ranks = zn_program_option(o->program, o->n_program, "ranks");
    ZN_TRY(zn_alloc_array(&plan->processes, 1, sizeof *plan->processes, "the plan"));
    zn_process *p = &plan->processes[0];
    *p = (zn_process){0};
    plan->n_processes = plan->world > 0 ? 1 : 0;
    if (plan->world == 0)
        return ZINC_OK;
    if (plan->pool.n > 1) {
        plan->this_host = true;
        ZN_TRY(over_hosts(o, plan, env, p));
    } else {
        if (plan->bound)
            zn_warn("launch", "ranks of zinc train on one host are threads of one process, and it "
                              "is the process that is bound");
        ZN_TRY(add_program(o, plan, &p->argv));
        if (!ranks) {
            ZN_TRY(zn_words_add(&p->argv, "--ranks"));
            ZN_TRY(zn_words_addf(&p->argv, "%d", plan->world));
        }
    }
    const bool numbered = o->num_ranks > 0 || plan->pool.is_hostfile || plan->pool.n > 1;
    char *end = NULL;
    if (ranks && numbered && strtol(ranks, &end, 10) != plan->world)
        ZN_FAIL(ZINC_E_INVALID,
                "--ranks %s of zinc train, but the launcher has %d slots; leave --ranks away",
                ranks, plan->world);
    for (int i = 0; i < env->n; i++)
        ZN_TRY(zn_words_set(&p->env, env->items[i]));
    return ZINC_OK;
}
