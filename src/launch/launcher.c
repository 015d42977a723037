/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.c — one attempt: start agents, wait for all to be there, let go, watch, end. */
#include "launch/launcher_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "launch/spawn.h"

#define RUNNER_GRACE_S 1.0 /* a runner that ends after its agents may be seen before they are */

/* ---- open and close ---- */

static zinc_status catch_signals(zn_launcher *l, sigset_t *before)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaddset(&set, signals[i]);
    sigprocmask(SIG_BLOCK, &set, before);
    l->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (l->signal_fd < 0)
        ZN_FAIL(ZINC_E_IO, "cannot catch signals: %s", strerror(errno));
    return ZINC_OK;
}

static zinc_status make_agents(zn_launcher *l)
{
    const zn_launch_options *o = l->options;
    const zn_plan *plan = l->plan;
    const bool one = plan->this_host || o->no_ssh;
    const bool all_local = one || (o->launcher && strcmp(o->launcher, "local") == 0);
    ZN_TRY(zn_alloc_array(&l->agents, (size_t)plan->pool.n, sizeof *l->agents, "agents"));
    l->n_agents = one ? 1 : plan->pool.n;
    for (int i = 0; i < l->n_agents; i++) {
        zn_host_agent *agent = &l->agents[i];
        agent->host = plan->this_host ? -1 : o->no_ssh ? (int)o->node_rank : i;
        agent->wire = (zn_wire){.in = -1, .out = -1};
        agent->err = -1;
        agent->local = all_local || (!o->force_multi &&
                                     zn_host_is_local(plan->pool.hosts[agent->host].name, true));
    }
    return ZINC_OK;
}

static zinc_status make_ranks(zn_launcher *l)
{
    const zn_plan *plan = l->plan;
    ZN_TRY(zn_alloc_array(&l->ranks, (size_t)plan->n_processes + 1, sizeof *l->ranks, "ranks"));
    for (int i = 0; i < plan->n_processes; i++) {
        const zn_process *p = &plan->processes[i];
        zn_rank_state *r = &l->ranks[i];
        r->agent = -1;
        for (int k = 0; k < l->n_agents; k++)
            if (l->agents[k].host == p->host || plan->this_host)
                r->agent = k;
        r->ended = r->agent < 0; /* --no_ssh: it runs elsewhere */
        r->output = (zn_rank_output){.host = plan->pool.hosts[p->host].name,
                                     .rank = p->rank,
                                     .prefixed = plan->n_processes > 1};
    }
    return ZINC_OK;
}

static zinc_status start_agents(zn_launcher *l)
{
    bool all_local = true;
    for (int i = 0; i < l->n_agents; i++)
        all_local = all_local && l->agents[i].local;
    if (!all_local && zn_runner_is_collective(l->options)) {
        for (int i = 0; i < l->n_agents; i++)
            l->agents[i].local = false;
        return zn_runner_start_all(l);
    }
    for (int i = 0; i < l->n_agents; i++)
        ZN_TRY(zn_runner_start_agent(l, &l->agents[i]));
    return ZINC_OK;
}

static void close_launcher(zn_launcher *l)
{
    for (int i = 0; i < l->n_agents; i++) {
        zn_host_agent *agent = &l->agents[i];
        zn_wire_close(&agent->wire); /* an agent that is still there ends its ranks now */
        if (agent->err >= 0)
            close(agent->err);
        zn_buf_fini(&agent->err_text);
        zn_free(agent->problem);
    }
    zn_runner_close(l);
    for (int i = 0; l->ranks && i < l->plan->n_processes; i++)
        zn_rank_output_fini(&l->ranks[i].output);
    zn_free(l->agents);
    zn_free(l->ranks);
    zn_buf_fini(&l->others);
    for (int s = 0; s < 2; s++)
        zn_buf_fini(&l->sinks[s].pending);
    if (l->signal_fd >= 0)
        close(l->signal_fd);
}

/* ---- events ---- */

static void take_signal(zn_launcher *l, int sig)
{
    const bool ends = sig != SIGUSR1 && sig != SIGUSR2;
    /* mpirun kills its ranks at SIGTERM, but passes SIGUSR1 on: zinc train ends after its step */
    const int passed = ends && l->plan->this_host ? SIGUSR1 : sig;
    for (int i = 0; i < l->n_agents; i++) /* one that cannot be told is about to be lost */
        if (l->agents[i].state == ZN_AGENT_RUNNING)
            zn_ignore(zn_wire_send(&l->agents[i].wire, ZN_FRAME_SIGNAL, 0, passed, NULL, 0));
    if (!ends) {
        l->passed_on = sig;
        return;
    }
    if (l->n_signals++ > 0 || !l->running) {
        zn_launcher_end(l, 0);
    } else if (!l->ending) {
        l->end_at = zn_sys_now() + l->options->grace_s;
    }
    if (!l->failed && !l->signal)
        l->signal = sig;
}

static void reap(zn_launcher *l)
{
    int wait_status;
    if (l->runner > 0 && waitpid(l->runner, &wait_status, WNOHANG) == l->runner) {
        l->runner = 0;
        l->runner_gone_at = zn_sys_now();
    }
    for (int i = 0; i < l->n_agents; i++) {
        zn_host_agent *agent = &l->agents[i];
        if (agent->local && agent->pid > 0 &&
            waitpid(agent->pid, &wait_status, WNOHANG) == agent->pid)
            agent->pid = 0; /* its wire says the rest */
    }
}

static void read_signals(zn_launcher *l)
{
    struct signalfd_siginfo info;
    while (read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGCHLD)
            reap(l);
        else
            take_signal(l, (int)info.ssi_signo);
}

static void read_runner(zn_launcher *l)
{
    char bytes[4096];
    ssize_t n;
    while (l->runner_err >= 0 && (n = read(l->runner_err, bytes, sizeof bytes)) > 0)
        if (l->runner_text.n < 1 << 20) /* tokens, and what a message may need */
            zn_ignore(zn_buf_append(&l->runner_text, bytes, (size_t)n));
}

/* Wait for something to happen, and see to it. */
static zinc_status one_round(zn_launcher *l, struct pollfd *fds)
{
    nfds_t n = 5;
    bool full = false;
    for (int s = 0; s < 2; s++) {
        full = full || zn_sink_left(&l->sinks[s]) > ZN_WIRE_BACKLOG;
        fds[s] = (struct pollfd){.fd = zn_sink_left(&l->sinks[s]) ? l->sinks[s].fd : -1,
                                 .events = POLLOUT};
    }
    fds[2] = (struct pollfd){.fd = l->signal_fd, .events = POLLIN};
    fds[3] = (struct pollfd){.fd = l->listen_fd, .events = POLLIN};
    fds[4] = (struct pollfd){.fd = l->runner > 0 ? l->runner_err : -1, .events = POLLIN};
    for (int i = 0; i < l->n_agents; i++) {
        const zn_host_agent *a = &l->agents[i];
        const bool live = a->state < ZN_AGENT_DONE && a->wire.in >= 0;
        fds[n++] = (struct pollfd){.fd = live && !full ? a->wire.in : -1, .events = POLLIN};
        fds[n++] =
            (struct pollfd){.fd = live && a->wire.pending.n ? a->wire.out : -1, .events = POLLOUT};
        if (full && live)
            l->agents[i].wire.heard = zn_sys_now(); /* we are not listening */
    }
    if (poll(fds, n, 200) < 0 && errno != EINTR)
        ZN_FAIL(ZINC_E_IO, "the launcher cannot poll: %s", strerror(errno));
    for (int s = 0; s < 2; s++)
        if (fds[s].revents)
            zn_sink_flush(&l->sinks[s], fds[s].revents);
    if (fds[2].revents)
        read_signals(l);
    read_runner(l);
    if (l->listen_fd >= 0)
        ZN_TRY(zn_runner_accept(l));
    for (int i = 0; i < l->n_agents; i++) {
        zn_host_agent *a = &l->agents[i];
        const bool seated = a->wire.in >= 0 && a->wire.received.n > a->wire.read_at;
        if (a->state < ZN_AGENT_DONE && (fds[5 + 2 * i].revents || seated))
            ZN_TRY(zn_launcher_read_agent(l, a));
        if (a->state < ZN_AGENT_DONE)
            zn_wire_flush(&a->wire);
    }
    return ZINC_OK;
}

/* Which hosts are late or silent. */
static void watch_agents(zn_launcher *l, double now)
{
    char why[1024], said[512];
    const double limit = l->options->connect_timeout_s;
    for (int i = 0; i < l->n_agents; i++) {
        zn_host_agent *a = &l->agents[i];
        if (a->state < ZN_AGENT_CHECKED && l->listen_fd >= 0 && a->wire.in < 0 && l->runner == 0) {
            zn_runner_said(l, said, sizeof said);
            snprintf(why, sizeof why, "%s ended before the host's agent was there: %s",
                     l->options->launcher, said);
            zn_launcher_lose(l, a, why);
        } else if (a->state < ZN_AGENT_DONE && l->runner_gone_at > 0 &&
                   now - l->runner_gone_at > RUNNER_GRACE_S) {
            snprintf(why, sizeof why, "%s has gone", l->options->launcher);
            zn_launcher_lose(l, a, why);
        } else if (a->state < ZN_AGENT_CHECKED && now - l->began_at > limit) {
            zn_runner_said(l, said, sizeof said);
            snprintf(why, sizeof why, "it did not answer within %g s (--connect_timeout)%s%s",
                     limit, l->runner ? "; the runner: " : "", l->runner ? said : "");
            zn_launcher_lose(l, a, why);
        } else if ((a->state == ZN_AGENT_CHECKED || a->state == ZN_AGENT_RUNNING) &&
                   now - a->wire.heard > ZN_SILENCE_S) {
            snprintf(why, sizeof why, "it has said nothing for %g s", ZN_SILENCE_S);
            zn_launcher_lose(l, a, why);
        } else if (a->state >= ZN_AGENT_CHECKING && a->state <= ZN_AGENT_RUNNING &&
                   zn_wire_beat(&a->wire, now) != ZINC_OK) {
            zn_launcher_lose(l, a, zinc_last_error());
        }
    }
}

static zinc_status let_go(zn_launcher *l)
{
    bool all = true;
    for (int i = 0; i < l->n_agents; i++)
        all = all && l->agents[i].state == ZN_AGENT_CHECKED;
    if (!all || l->ending)
        return ZINC_OK;
    for (int i = 0; i < l->n_agents; i++) {
        ZN_TRY(zn_wire_send(&l->agents[i].wire, ZN_FRAME_GO, 0, 0, NULL, 0));
        l->agents[i].state = ZN_AGENT_RUNNING;
        l->agents[i].wire.heard = zn_sys_now();
    }
    l->running = true;
    l->progress_at = zn_sys_now();
    return ZINC_OK;
}

static bool is_over(const zn_launcher *l)
{
    bool over = true, decided = true;
    for (int i = 0; i < l->n_agents; i++) {
        over = over && l->agents[i].state >= ZN_AGENT_DONE;
        decided = decided &&
                  (l->agents[i].state == ZN_AGENT_CHECKED || l->agents[i].state == ZN_AGENT_LOST);
    }
    if (!l->running) /* every host has answered, and not all are fit; or a signal came */
        return decided || l->ending;
    return over;
}

static zinc_status serve(zn_launcher *l)
{
    zinc_status status;
    struct pollfd *fds = NULL;
    ZN_TRY_GOTO(zn_alloc_array(&fds, (size_t)(5 + 2 * l->n_agents), sizeof *fds, "poll"));
    while (!is_over(l)) {
        ZN_TRY_GOTO(one_round(l, fds));
        const double now = zn_sys_now();
        if (!l->running)
            ZN_TRY_GOTO(let_go(l));
        watch_agents(l, now);
        ZN_TRY_GOTO(zn_launcher_watch(l, now));
        if (l->end_at > 0 && !l->ending && now > l->end_at)
            zn_launcher_end(l, 0);
        for (int i = 0; i < l->n_agents && l->ending && now > l->end_at + ZN_SILENCE_S; i++)
            zn_launcher_lose(l, &l->agents[i], "it does not end");
    }
fail:
    zn_free(fds);
    return status;
}

/* What ranks have printed goes out, as slowly as it is read; a signal ends the waiting. */
static void flush_sinks(zn_launcher *l)
{
    for (int s = 0; s < 2; s++)
        while (zn_sink_left(&l->sinks[s]) > 0) {
            struct pollfd fds[2] = {{.fd = l->sinks[s].fd, .events = POLLOUT},
                                    {.fd = l->signal_fd, .events = POLLIN}};
            if (poll(fds, 2, l->signal ? 1000 : -1) == 0)
                return;
            if (fds[0].revents)
                zn_sink_flush(&l->sinks[s], fds[0].revents);
            const int n_before = l->n_signals;
            if (fds[1].revents)
                read_signals(l);
            if (l->n_signals > n_before)
                return;
        }
}

/* Every process of ours ends: agents that are done exit by themselves, the rest is killed, also
 * what a runner has left (pdsh its ssh) or an agent that was killed. */
static void collect(zn_launcher *l)
{
    const double now = zn_sys_now();
    bool lost = !l->running;
    for (int i = 0; i < l->n_agents; i++)
        lost = lost || l->agents[i].state == ZN_AGENT_LOST;
    if (l->runner > 0 && lost) /* it may wait for a host that does not answer */
        kill(l->runner, SIGTERM);
    for (int i = -1; i < l->n_agents; i++) {
        pid_t *pid = i < 0 ? &l->runner : &l->agents[i].pid;
        if (i >= 0)
            zn_wire_close(&l->agents[i].wire);
        while (*pid > 0 && waitpid(*pid, NULL, WNOHANG) == 0) {
            /* an agent takes 3 s to end its ranks */
            if (zn_sys_now() > now + (i < 0 && lost ? 2 : ZN_SILENCE_S))
                kill(*pid, SIGKILL);
            zn_sys_sleep(0.01);
        }
        *pid = 0;
    }
    zn_spawn_kill_leftovers(l->others.n ? l->others.data : "");
}

/* All hosts that cannot be used, each with its reason, in one message. */
static zinc_status report_unfit(const zn_launcher *l, bool *lost, int *exit_code)
{
    zinc_status status;
    zn_buf text = {0};
    int n = 0;
    *exit_code = 0;
    for (int i = 0; i < l->n_agents; i++) {
        const zn_host_agent *a = &l->agents[i];
        if (a->state != ZN_AGENT_LOST)
            continue;
        *exit_code = n == 0 || a->problem_code == *exit_code ? a->problem_code : 0;
        n++;
        if (a->host >= 0)
            lost[a->host] = true;
        ZN_TRY_GOTO(zn_buf_printf(&text, "\n  %s: %s",
                                  a->host >= 0 ? l->plan->pool.hosts[a->host].name : "this host",
                                  a->problem ? a->problem : "unknown"));
    }
    if (*exit_code != 0 && n == l->n_agents) { /* all say the same: the program, not the hosts */
        zn_log(ZN_LOG_ERROR, "launch", "nothing was started:%s", text.data);
        status = ZINC_OK;
        goto fail;
    }
    ZN_FAIL_GOTO(ZINC_E_COMM, "%d of %d hosts cannot be used; nothing was started:%s", n,
                 l->n_agents, text.data);
fail:
    zn_buf_fini(&text);
    return status;
}

zinc_status zn_launcher_run(const zn_launch_options *options, zn_plan *plan, zn_buf *captured,
                            bool *lost, int *exit_code, int *signal)
{
    zinc_status status;
    sigset_t before;
    zn_launcher l = {.options = options,
                     .plan = plan,
                     .captured = captured,
                     .signal_fd = -1,
                     .runner_err = -1,
                     .listen_fd = -1,
                     .sinks = {{.fd = STDOUT_FILENO}, {.fd = STDERR_FILENO}},
                     .began_at = zn_sys_now()};
    status = zn_spawn_children(&l.others);
    if (status != ZINC_OK) { /* before anything that would be cleaned up without it */
        zn_buf_fini(&l.others);
        return status;
    }
    sigprocmask(SIG_BLOCK, NULL, &before);
    zn_spawn_adopt();
    ZN_TRY_GOTO(catch_signals(&l, &before));
    ZN_TRY_GOTO(make_agents(&l));
    ZN_TRY_GOTO(make_ranks(&l));
    ZN_TRY_GOTO(start_agents(&l));
    ZN_TRY_GOTO(serve(&l));
    if (!l.running && !l.signal)
        ZN_TRY_GOTO(report_unfit(&l, lost, &l.exit_code));
    for (int i = 0; i < l.n_agents; i++)
        if (l.agents[i].state == ZN_AGENT_LOST && l.agents[i].host >= 0)
            lost[l.agents[i].host] = true;
    flush_sinks(&l);
    *exit_code = l.signal ? 128 + l.signal : l.exit_code;
    *signal = l.signal;
fail:
    collect(&l);
    sigprocmask(SIG_SETMASK, &before, NULL);
    close_launcher(&l);
    return status;
}
