/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c — `zinc agent`: one event loop between the launcher and this host's ranks.
 *
 * It ends with its last rank, and ends its ranks when the launcher says so, closes the wire, or (on
 * another host) says nothing for ZN_SILENCE_S. Processes that ranks leave behind become its
 * children (it is a subreaper) and are killed at the end; ranks die with it (PR_SET_PDEATHSIG). */
#include "launch/agent_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sys.h"
#include "launch/spawn.h"
#include "zinc/version.h"

#define TICK_S 1.0
#define CONNECT_S 15.0
#define LOST_GRACE_S 3.0 /* SIGTERM to SIGKILL when the launcher is gone */

static void begin_end(zn_agent *agent, double grace_s)
{
    const double kill_at = zn_sys_now() + grace_s;
    if (!agent->ending)
        zn_agent_signal_ranks(agent, SIGTERM);
    if (!agent->ending || kill_at < agent->kill_at)
        agent->kill_at = kill_at;
    agent->ending = true;
}

static zinc_status take_job(zn_agent *agent, const zn_frame *frame)
{
    zinc_status status;
    zn_buf problems = {0};
    int code = 0;
    if (agent->job.settings.n)
        ZN_FAIL(ZINC_E_FORMAT, "launcher and agent disagree: a second job");
    ZN_TRY_GOTO(zn_job_decode(frame->data, frame->n_bytes, &agent->job));
    ZN_TRY_GOTO(zn_agent_check(agent, &problems, &code));
    ZN_TRY_GOTO(zn_wire_send(&agent->wire, ZN_FRAME_CHECKED, code, 0, problems.data, problems.n));
fail:
    zn_buf_fini(&problems);
    return status;
}

static zinc_status take_frame(zn_agent *agent, const zn_frame *frame)
{
    switch (frame->type) {
    case ZN_FRAME_JOB:
        return take_job(agent, frame);
    case ZN_FRAME_GO:
        return agent->started ? ZINC_OK : zn_agent_start(agent);
    case ZN_FRAME_SIGNAL:
        zn_agent_signal_ranks(agent, frame->rank);
        return ZINC_OK;
    case ZN_FRAME_STACK:
        return zn_agent_stack_begin(agent, frame->rank);
    case ZN_FRAME_END:
        agent->told_to_leave = agent->finished;
        begin_end(agent, frame->rank / 1e3);
        return ZINC_OK;
    default:
        return ZINC_OK; /* a heartbeat */
    }
}

static zinc_status read_launcher(zn_agent *agent)
{
    bool got;
    zn_frame frame;
    ZN_TRY(zn_wire_fill(&agent->wire));
    for (;;) {
        ZN_TRY(zn_wire_next(&agent->wire, &frame, &got));
        if (!got)
            return ZINC_OK;
        ZN_TRY(take_frame(agent, &frame));
    }
}

static zinc_status read_signals(zn_agent *agent)
{
    struct signalfd_siginfo info;
    while (read(agent->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGUSR1 || info.ssi_signo == SIGUSR2)
            zn_agent_signal_ranks(agent,
                                  (int)info.ssi_signo); /* Slurm's --signal comes to agents */
        else if (info.ssi_signo != SIGCHLD)
            begin_end(agent, LOST_GRACE_S);
    return zn_agent_reap(agent);
}

/* Wait for something to happen, and see to it. */
static zinc_status one_round(zn_agent *agent, struct pollfd *fds)
{
    nfds_t n = 2;
    const int n_ranks = agent->ranks ? agent->job.n_processes : 0;
    const bool full = agent->wire.pending.n > ZN_WIRE_BACKLOG;
    fds[0] = (struct pollfd){.fd = agent->wire.closed ? -1 : agent->wire.in, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = agent->signal_fd, .events = POLLIN};
    for (int i = 0; i < n_ranks; i++)
        for (int s = 0; s < 2; s++)
            fds[n++] = (struct pollfd){.fd = full ? -1 : agent->ranks[i].pipe[s], .events = POLLIN};
    fds[n++] =
        (struct pollfd){.fd = agent->wire.pending.n && !agent->wire.closed ? agent->wire.out : -1,
                        .events = POLLOUT};
    if (poll(fds, n, 200) < 0 && errno != EINTR)
        ZN_FAIL(ZINC_E_IO, "the agent cannot poll: %s", strerror(errno));
    if (fds[1].revents)
        ZN_TRY(read_signals(agent));
    for (int i = 0; i < n_ranks; i++)
        for (int s = 0; s < 2; s++)
            if (fds[2 + 2 * i + s].revents)
                ZN_TRY(zn_agent_drain(agent, i, s, false));
    if (fds[0].revents) /* last: it may start ranks */
        ZN_TRY(read_launcher(agent));
    return ZINC_OK;
}

static zinc_status keep_time(zn_agent *agent)
{
    const double now = zn_sys_now();
    const bool remote = zn_job_flag(&agent->job, "remote");
    if (agent->wire.closed || (remote && now - agent->wire.heard > ZN_SILENCE_S)) {
        agent->wire.closed = true;
        begin_end(agent, LOST_GRACE_S);
    }
    if (agent->ending && !agent->killed && now >= agent->kill_at) {
        agent->killed = true;
        zn_agent_signal_ranks(agent, SIGKILL);
    }
    if (now >= agent->next_tick_s) {
        agent->next_tick_s = now + TICK_S;
        ZN_TRY(zn_agent_tick(agent));
    }
    return zn_wire_beat(&agent->wire, now);
}

static zinc_status serve(zn_agent *agent)
{
    zinc_status status;
    struct pollfd *fds = NULL;
    int capacity = 0;
    do {
        const int wanted = 2 * agent->job.n_processes + 3;
        if (wanted > capacity) {
            ZN_TRY_GOTO(zn_realloc_array(&fds, (size_t)wanted, sizeof *fds, "poll"));
            capacity = wanted;
        }
        ZN_TRY_GOTO(one_round(agent, fds));
        ZN_TRY_GOTO(keep_time(agent));
        zn_wire_flush(&agent->wire);
        agent->finished = agent->n_running == 0 && (agent->started || agent->ending);
    } while (!agent->finished);
    status = ZINC_OK;
fail:
    zn_free(fds);
    return status;
}

/* Send what is left, however slowly it is taken, as long as the launcher is there. */
static void say_goodbye(zn_agent *agent)
{
    zn_wire *wire = &agent->wire;
    zn_ignore(zn_wire_send(wire, ZN_FRAME_DONE, 0, 0, NULL, 0)); /* closing says it too */
    while (!wire->closed && wire->pending.n && !agent->told_to_leave) {
        struct pollfd fds[2] = {{.fd = wire->out, .events = POLLOUT},
                                {.fd = wire->in, .events = POLLIN}};
        poll(fds, 2, 200);
        if ((fds[1].revents && read_launcher(agent) != ZINC_OK) ||
            (zn_job_flag(&agent->job, "remote") && zn_sys_now() - wire->heard > ZN_SILENCE_S))
            break;
        zn_wire_flush(wire);
    }
}

/* ---- reaching the launcher ---- */

static zinc_status connect_to(const char *address, int *out)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    const long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (port < 1 || port > 65535 || *end || (size_t)(colon - address) >= sizeof host)
        ZN_FAIL(ZINC_E_INVALID, "--connect %s: expected HOST:PORT", address);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    const zinc_status status = zn_connect(host, (int)port, CONNECT_S, out);
    if (status != ZINC_OK)
        zn_error_prefix("cannot connect to the launcher at %s: ", address);
    return status;
}

/* Place in the plan, from who started this process. */
static int own_place(const zn_agent_options *o)
{
    if (o->place >= 0)
        return (int)o->place;
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (int i = 0; i < 3; i++) {
        const char *text = zn_launch_getenv(names[i]);
        if (text)
            return (int)strtol(text, NULL, 10);
    }
    return -1;
}

static zinc_status make_token(char token[ZN_TOKEN_BYTES + 1])
{
    unsigned char bytes[ZN_TOKEN_BYTES / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        ZN_FAIL(ZINC_E_IO, "the kernel gives no random bytes: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return ZINC_OK;
}

/* Let the runner carry the token to the launcher (runner.c). */
static zinc_status announce(const char *token)
{
    char line[64];
    const int n = snprintf(line, sizeof line, ZN_ANNOUNCEMENT "%s\n", token);
    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        ZN_FAIL(ZINC_E_IO, "the agent cannot write to its standard output: %s", strerror(errno));
    return ZINC_OK;
}

static zinc_status open_wire(const zn_agent_options *o, zn_agent *agent)
{
    char token[ZN_TOKEN_BYTES + 1] = "";
    zn_buf hello = {0};
    zinc_status status;
    int fd = (int)o->fd;
    if (o->connect) {
        ZN_TRY(make_token(token));
        ZN_TRY(connect_to(o->connect, &fd));
        ZN_TRY(announce(token));
    }
    zn_wire_open(&agent->wire, fd >= 0 ? fd : STDIN_FILENO, fd >= 0 ? fd : STDOUT_FILENO);
    agent->wire.greeted = true; /* only an agent greets */
    ZN_TRY_GOTO(zn_wire_greet(&agent->wire));
    ZN_TRY_GOTO(zn_buf_append(&hello, zinc_version(), strlen(zinc_version()) + 1));
    ZN_TRY_GOTO(zn_buf_append(&hello, token, strlen(token) + 1));
    ZN_TRY_GOTO(zn_wire_send(&agent->wire, ZN_FRAME_READY, 0, o->connect ? own_place(o) : 0,
                             hello.data, hello.n));
fail:
    zn_buf_fini(&hello);
    return status;
}

static zinc_status catch_signals(zn_agent *agent)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    agent->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (agent->signal_fd < 0)
        ZN_FAIL(ZINC_E_IO, "the agent cannot catch signals: %s", strerror(errno));
    return ZINC_OK;
}

zinc_status zn_agent_run(const zn_agent_options *options)
{
    zinc_status status;
    zn_agent agent = {
        .wire = {.in = -1, .out = -1}, .signal_fd = -1, .by_runner = options->connect != NULL};
    zn_spawn_adopt();
    ZN_TRY_GOTO(catch_signals(&agent));
    ZN_TRY_GOTO(zn_agent_guard_start());
    ZN_TRY_GOTO(open_wire(options, &agent));
    ZN_TRY_GOTO(serve(&agent));
fail:
    if (status != ZINC_OK) {
        const char *text = zinc_last_error();
        zn_agent_signal_ranks(&agent, SIGKILL);
        zn_ignore(zn_wire_send(&agent.wire, ZN_FRAME_CHECKED, 1, 0, text, strlen(text)));
    }
    zn_spawn_kill_leftovers("");
    say_goodbye(&agent);
    zn_agent_close_ranks(&agent);
    zn_wire_close(&agent.wire);
    zn_job_fini(&agent.job);
    if (agent.signal_fd >= 0)
        close(agent.signal_fd);
    return status;
}
