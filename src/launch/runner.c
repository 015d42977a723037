/* SPDX-License-Identifier: Apache-2.0 */
/* runner.c — how agents come to be: forked here, one ssh each (frames over its pipes), or one
 * command for all (mpirun, mpiexec.hydra, srun, pdsh), whose agents connect back.
 *
 * Who connects is believed by what the command has relayed: each agent prints a random token of its
 * own to its standard output, which reaches this process by the command's own channel (ssh, Slurm),
 * and shows the same token on the connection. No command line and no environment holds it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4 */
#endif
#include "launch/launcher_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "launch/spawn.h"

extern char **environ;

bool zn_runner_is_collective(const zn_launch_options *o)
{
    static const char *const names[] = {"openmpi", "mpich", "slurm", "pdsh"};
    for (int i = 0; o->launcher && i < 4; i++)
        if (strcmp(o->launcher, names[i]) == 0)
            return true;
    return false;
}

static zinc_status not_installed(const char *program, int error, const char *launcher)
{
    ZN_FAIL(ZINC_E_CONFIG,
            "--launcher %s: cannot run %s: %s; install it, or choose another "
            "--launcher",
            launcher, program, strerror(error));
}

/* ---- one agent ---- */

static zinc_status start_local(zn_launcher *l, zn_host_agent *agent)
{
    zinc_status status;
    zn_words argv = {0};
    int ends[2] = {-1, -1}, error = 0;
    ZN_TRY_GOTO(zn_words_add(&argv, l->plan->self));
    ZN_TRY_GOTO(zn_words_add(&argv, "agent"));
    ZN_TRY_GOTO(zn_words_add(&argv, "--fd=3"));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot make a socket: %s", strerror(errno));
    /* no death signal: closing the socket tells it, and lets it end its ranks in order */
    const zn_spawn_params params = {.argv = &argv, .in = -1, .out = -1, .err = -1, .keep = ends[1]};
    ZN_TRY_GOTO(zn_spawn(&params, &agent->pid, &error));
    if (error)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot run %s: %s", l->plan->self, strerror(error));
    zn_wire_open(&agent->wire, ends[0], ends[0]);
    ends[0] = -1;
fail:
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    zn_words_fini(&argv);
    return status;
}

/* ssh -o BatchMode=yes … HOST 'exec zinc agent' */
static zinc_status ssh_words(const zn_launcher *l, const char *host, zn_words *argv)
{
    zinc_status status;
    const zn_launch_options *o = l->options;
    zn_words remote = {0};
    zn_buf command = {0};
    ZN_TRY_GOTO(zn_words_add(argv, "ssh"));
    if (o->launcher_args) /* first: ssh keeps the first value it meets */
        ZN_TRY_GOTO(zn_shell_split(o->launcher_args, "launcher_args", argv));
    ZN_TRY_GOTO(zn_words_add(argv, "-o"));
    ZN_TRY_GOTO(zn_words_add(argv, "BatchMode=yes"));
    ZN_TRY_GOTO(zn_words_add(argv, "-o"));
    ZN_TRY_GOTO(zn_words_addf(argv, "ConnectTimeout=%d", (int)o->connect_timeout_s + 1));
    ZN_TRY_GOTO(zn_words_add(argv, "-T"));
    if (o->ssh_port > 0) {
        ZN_TRY_GOTO(zn_words_add(argv, "-p"));
        ZN_TRY_GOTO(zn_words_addf(argv, "%lld", (long long)o->ssh_port));
    }
    ZN_TRY_GOTO(zn_words_add(argv, "--")); /* a host is never an option */
    ZN_TRY_GOTO(zn_words_add(argv, host));
    ZN_TRY_GOTO(zn_words_add(&remote, "exec"));
    ZN_TRY_GOTO(zn_words_add(&remote, l->plan->self));
    ZN_TRY_GOTO(zn_words_add(&remote, "agent"));
    ZN_TRY_GOTO(zn_shell_command(&remote, &command));
    ZN_TRY_GOTO(zn_words_add(argv, command.data));
fail:
    zn_words_fini(&remote);
    zn_buf_fini(&command);
    return status;
}

static zinc_status start_ssh(zn_launcher *l, zn_host_agent *agent)
{
    zinc_status status;
    zn_words argv = {0};
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, error = 0;
    ZN_TRY_GOTO(ssh_words(l, l->plan->pool.hosts[agent->host].name, &argv));
    ZN_TRY_GOTO(zn_spawn_pipe(in));
    ZN_TRY_GOTO(zn_spawn_pipe(out));
    ZN_TRY_GOTO(zn_spawn_pipe(err));
    const zn_spawn_params params = {.argv = &argv,
                                    .in = in[0],
                                    .out = out[1],
                                    .err = err[1],
                                    .keep = -1,
                                    .death_signal = SIGKILL};
    ZN_TRY_GOTO(zn_spawn(&params, &agent->pid, &error));
    if (error) {
        status = not_installed("ssh", error, "ssh");
        goto fail;
    }
    zn_wire_open(&agent->wire, out[0], in[1]);
    agent->err = err[0];
    fcntl(agent->err, F_SETFL, O_NONBLOCK);
    out[0] = in[1] = err[0] = -1;
fail:
    for (int i = 0; i < 2; i++) {
        if (in[i] >= 0)
            close(in[i]);
        if (out[i] >= 0)
            close(out[i]);
        if (err[i] >= 0)
            close(err[i]);
    }
    zn_words_fini(&argv);
    return status;
}

zinc_status zn_runner_start_agent(zn_launcher *l, zn_host_agent *agent)
{
    return agent->local ? start_local(l, agent) : start_ssh(l, agent);
}

/* ---- one command for all agents ---- */

static zinc_status start_listening(zn_launcher *l, int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t n = sizeof address;
    l->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->listen_fd < 0 ||
        bind(l->listen_fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(l->listen_fd, 1024) != 0 ||
        getsockname(l->listen_fd, (struct sockaddr *)&address, &n) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot listen for the agents: %s", strerror(errno));
    *port = ntohs(address.sin_port);
    return ZINC_OK;
}

/* The name under which the hosts reach this one. */
static const char *own_address(const zn_launcher *l, char *own, size_t n)
{
    bool all_here = true;
    own[0] = '\0';
    gethostname(own, n - 1);
    for (int i = 0; i < l->plan->pool.n; i++) {
        const char *name = zn_host_address(l->plan->pool.hosts[i].name);
        const bool here = zn_host_is_local(name, true);
        if (here && strcmp(name, "localhost") != 0 && strncmp(name, "127.", 4) != 0)
            return name;
        all_here = all_here && here;
    }
    return all_here || !own[0] ? "127.0.0.1" : own;
}

static zinc_status host_list(const zn_plan *plan, const char *each, zn_buf *out)
{
    for (int i = 0; i < plan->pool.n; i++)
        ZN_TRY(zn_buf_printf(out, "%s%s%s", i ? "," : "", plan->pool.hosts[i].name, each));
    return ZINC_OK;
}

static zinc_status add_texts(zn_words *argv, const char *const *texts)
{
    for (; *texts; texts++)
        ZN_TRY(zn_words_add(argv, *texts));
    return ZINC_OK;
}

/* The command up to the agent's own words. */
static zinc_status runner_words(const zn_launcher *l, const char *hosts, const char *count,
                                zn_words *argv)
{
    const zn_launch_options *o = l->options;
    const char *const openmpi[] = {"mpirun",    "-n",   count,    "--map-by", "node",
                                   "--bind-to", "none", "--host", hosts,      NULL};
    const char *const mpich[] = {"mpiexec.hydra", "-n", count, "-ppn", "1", "-hosts", hosts, NULL};
    const char *const slurm[] = {"srun",
                                 "--ntasks",
                                 count,
                                 "--nodes",
                                 count,
                                 "--ntasks-per-node=1",
                                 "--distribution=arbitrary",
                                 "--nodelist",
                                 hosts,
                                 "--kill-on-bad-exit=1",
                                 "--export=ALL",
                                 "--overlap",
                                 "--cpu-bind=none",
                                 "--mpi=none",
                                 NULL};
    const char *const pdsh[] = {"pdsh", "-S", "-N", "-f", count, "-w", hosts, NULL};
    const char *const *words = strcmp(o->launcher, "openmpi") == 0 ? openmpi
                               : strcmp(o->launcher, "mpich") == 0 ? mpich
                               : strcmp(o->launcher, "slurm") == 0 ? slurm
                                                                   : pdsh;
    ZN_TRY(add_texts(argv, words));
    return o->launcher_args ? zn_shell_split(o->launcher_args, "launcher_args", argv) : ZINC_OK;
}

/* exec zinc agent --connect HOST:PORT --place %n: pdsh puts the host's number for %n; a '%' of the
 * path is doubled. */
static zinc_status pdsh_command(const zn_words *agent, zn_words *argv)
{
    zinc_status status;
    zn_buf text = {0}, command = {0};
    ZN_TRY_GOTO(zn_shell_command(agent, &text));
    ZN_TRY_GOTO(zn_buf_puts(&command, "exec "));
    for (const char *c = text.data; *c; c++)
        ZN_TRY_GOTO(zn_buf_puts(&command, *c == '%' ? "%%" : (const char[]){*c, '\0'}));
    ZN_TRY_GOTO(zn_buf_puts(&command, " --place %n"));
    ZN_TRY_GOTO(zn_words_add(argv, command.data));
fail:
    zn_buf_fini(&text);
    zn_buf_fini(&command);
    return status;
}

static zinc_status agent_words(const zn_launcher *l, int port, zn_words *argv)
{
    zinc_status status;
    char own[256];
    zn_words agent = {0};
    const bool pdsh = strcmp(l->options->launcher, "pdsh") == 0;
    ZN_TRY_GOTO(zn_words_add(&agent, l->plan->self));
    ZN_TRY_GOTO(zn_words_add(&agent, "agent"));
    ZN_TRY_GOTO(zn_words_add(&agent, "--connect"));
    ZN_TRY_GOTO(zn_words_addf(&agent, "%s:%d", own_address(l, own, sizeof own), port));
    ZN_TRY_GOTO(pdsh ? pdsh_command(&agent, argv) : zn_words_add_all(argv, &agent));
fail:
    zn_words_fini(&agent);
    return status;
}

/* What the runner needs in its environment; what the user has set stays. */
static zinc_status runner_env(const zn_launcher *l, zn_words *env)
{
    zinc_status status;
    zn_buf ssh = {0};
    const bool port_given = l->options->ssh_port > 0;
    for (char **e = environ; e && *e; e++)
        ZN_TRY(zn_words_add(env, *e));
    ZN_TRY_GOTO(zn_env_openmpi(env));
    ZN_TRY_GOTO(zn_ssh_options(l->options, &ssh));
    const struct {
        const char *name, *before, *value;
        bool always;
    } settings[] = {
        {"OMPI_MCA_plm_rsh_agent", "ssh ", ssh.data, port_given},
        {"HYDRA_LAUNCHER_EXTRA_ARGS", "", ssh.data, port_given},
        {"PDSH_RCMD_TYPE", "", "ssh", false},
        {"PDSH_SSH_ARGS_APPEND", "", ssh.data, port_given},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (settings[i].always || !zn_words_value(env, settings[i].name)) {
            char text[256];
            snprintf(text, sizeof text, "%s=%s%s", settings[i].name, settings[i].before,
                     settings[i].value);
            ZN_TRY_GOTO(zn_words_set(env, text));
        }
fail:
    zn_buf_fini(&ssh);
    return status;
}

static zinc_status spawn_runner(zn_launcher *l, const zn_words *argv, const zn_words *env)
{
    zinc_status status;
    int in[2] = {-1, -1}, err[2] = {-1, -1}, error = 0;
    ZN_TRY_GOTO(zn_spawn_pipe(in));
    ZN_TRY_GOTO(zn_spawn_pipe(err));
    const zn_spawn_params params = {.argv = argv,
                                    .env = env,
                                    .in = in[0],
                                    .out = err[1],
                                    .err = err[1],
                                    .keep = -1,
                                    .death_signal = SIGTERM};
    ZN_TRY_GOTO(zn_spawn(&params, &l->runner, &error));
    if (error) {
        status = not_installed(argv->items[0], error, l->options->launcher);
        goto fail;
    }
    l->runner_err = err[0];
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    err[0] = -1;
fail:
    for (int i = 0; i < 2; i++) {
        if (in[i] >= 0)
            close(in[i]);
        if (err[i] >= 0)
            close(err[i]);
    }
    return status;
}

zinc_status zn_runner_start_all(zn_launcher *l)
{
    zinc_status status;
    zn_words argv = {0}, env = {0};
    zn_buf hosts = {0};
    char count[16];
    int port = 0;
    ZN_TRY_GOTO(start_listening(l, &port));
    ZN_TRY_GOTO(
        host_list(l->plan, strcmp(l->options->launcher, "openmpi") == 0 ? ":1" : "", &hosts));
    snprintf(count, sizeof count, "%d", l->plan->pool.n);
    ZN_TRY_GOTO(runner_words(l, hosts.data, count, &argv));
    ZN_TRY_GOTO(agent_words(l, port, &argv));
    ZN_TRY_GOTO(runner_env(l, &env));
    ZN_TRY_GOTO(spawn_runner(l, &argv, &env));
fail:
    zn_words_fini(&argv);
    zn_words_fini(&env);
    zn_buf_fini(&hosts);
    return status;
}

/* The token in an agent's first frame, or NULL if it is no such frame. */
static const char *token_of(const zn_frame *frame)
{
    const char *version_end = frame->n_bytes ? memchr(frame->data, '\0', frame->n_bytes) : NULL;
    if (frame->type != ZN_FRAME_READY || !version_end ||
        frame->n_bytes != (size_t)(version_end - frame->data) + 1 + ZN_TOKEN_BYTES + 1 ||
        strlen(version_end + 1) != ZN_TOKEN_BYTES)
        return NULL;
    return version_end + 1;
}

/* The whole line counts, not only the token: a caller could guess what else a runner says. */
static bool was_relayed(const zn_launcher *l, const char *token)
{
    char line[64];
    snprintf(line, sizeof line, ZN_ANNOUNCEMENT "%s\n", token);
    return l->runner_text.n && strstr(l->runner_text.data, line);
}

/* Give the connection to the agent whose place it names, if that is free. */
static bool seat_caller(zn_launcher *l, const zn_wire *caller, int place)
{
    for (int i = 0; i < l->n_agents; i++)
        if (l->agents[i].host == place && l->agents[i].wire.in < 0) {
            l->agents[i].wire = *caller;
            return true;
        }
    return false;
}

zinc_status zn_runner_accept(zn_launcher *l)
{
    for (int fd; (fd = accept4(l->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        ZN_TRY(zn_realloc_array(&l->callers, (size_t)l->n_callers + 1, sizeof *l->callers,
                                "connections"));
        zn_wire_open(&l->callers[l->n_callers++], fd, fd);
    }
    int kept = 0;
    for (int i = 0; i < l->n_callers; i++) {
        zn_wire *caller = &l->callers[i];
        zn_frame frame;
        bool got = false;
        bool good = zn_wire_fill(caller) == ZINC_OK && caller->received.n < 4096 &&
                    zn_wire_next(caller, &frame, &got) == ZINC_OK;
        if (good && got) {
            zn_wire_unread(caller, &frame); /* it is read again: here, or by its agent */
            const char *token = token_of(&frame);
            const bool relayed = token && was_relayed(l, token);
            if (relayed && seat_caller(l, caller, frame.rank))
                continue;
            good = token && !relayed; /* what the runner relays may come later */
        }
        good = good && !caller->closed;
        if (good)
            l->callers[kept++] = *caller;
        else
            zn_wire_close(caller);
    }
    l->n_callers = kept;
    return ZINC_OK;
}

void zn_runner_said(const zn_launcher *l, char *out, size_t n_bytes)
{
    size_t at = 0;
    out[0] = '\0';
    for (const char *line = l->runner_text.n ? l->runner_text.data : ""; *line;) {
        const size_t n = strcspn(line, "\r\n");
        const bool tells = n > strspn(line, "- ") &&
                           strncmp(line, ZN_ANNOUNCEMENT, sizeof ZN_ANNOUNCEMENT - 1) != 0;
        if (tells && at < n_bytes)
            at += (size_t)snprintf(out + at, n_bytes - at, "%s%.*s", at ? " " : "", (int)n, line);
        line += n + (line[n] != '\0');
    }
    if (at == 0)
        snprintf(out, n_bytes, "it says nothing");
}

void zn_runner_close(zn_launcher *l)
{
    for (int i = 0; i < l->n_callers; i++)
        zn_wire_close(&l->callers[i]);
    zn_free(l->callers);
    l->callers = NULL;
    l->n_callers = 0;
    if (l->listen_fd >= 0)
        close(l->listen_fd);
    if (l->runner_err >= 0)
        close(l->runner_err);
    l->listen_fd = l->runner_err = -1;
    zn_buf_fini(&l->runner_text);
}
