/* SPDX-License-Identifier: Apache-2.0 */
/* launcher_events.c — what the launcher does about what agents say. */
#include "launch/agent_internal.h"
#include "launch/launcher_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "zinc/version.h"

#define EXIT_HANG 5
#define MAX_STACKS 8       /* ranks whose stacks are asked for in a hang */
#define MAX_STACK_LINES 60 /* of each */
#define STACK_WAIT_S 5.0
#define MPIRUN_LOST_HOST 205 /* of Open MPI, when a remote daemon has gone */

static const char *agent_name(const zn_launcher *l, const zn_host_agent *agent)
{
    return agent->host >= 0 ? l->plan->pool.hosts[agent->host].name : "this host";
}

static bool is_its(const zn_launcher *l, const zn_host_agent *agent, int rank)
{
    return l->ranks[rank].agent == (int)(agent - l->agents);
}

void zn_launcher_end(zn_launcher *l, double grace_s)
{
    l->ending = true;
    if (l->end_at == 0 || zn_sys_now() + grace_s < l->end_at)
        l->end_at = zn_sys_now() + grace_s;
    for (int i = 0; i < l->n_agents; i++) /* one that cannot be told is about to be lost anyway */
        if (l->agents[i].state < ZN_AGENT_DONE)
            zn_ignore(
                zn_wire_send(&l->agents[i].wire, ZN_FRAME_END, 0, (int)(grace_s * 1e3), NULL, 0));
}

/* The first failure decides the exit code; what follows is its echo. */
static bool is_first_failure(zn_launcher *l, int exit_code)
{
    if (l->failed || l->signal)
        return false;
    l->failed = true;
    l->exit_code = exit_code;
    return true;
}

/* ---- a lost host ---- */

static void read_err(zn_host_agent *agent)
{
    char bytes[2048];
    ssize_t n;
    while (agent->err >= 0 && (n = read(agent->err, bytes, sizeof bytes)) > 0)
        zn_ignore(zn_buf_append(&agent->err_text, bytes, (size_t)n)); /* a shorter message then */
}

/* How its ssh ended; -1 if it has not within a moment. */
static int ssh_exit(zn_host_agent *agent)
{
    int wait_status;
    for (int i = 0; i < 25 && agent->pid > 0; i++) {
        if (waitpid(agent->pid, &wait_status, WNOHANG) == agent->pid) {
            agent->pid = 0;
            return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
        }
        zn_sys_sleep(0.02);
    }
    return -1;
}

/* The last line that ssh has said, cut out of its text. */
static const char *last_words(zn_buf *text)
{
    while (text->n > 0 && strchr("\r\n ", text->data[text->n - 1]))
        text->data[--text->n] = '\0';
    const char *line = text->n ? strrchr(text->data, '\n') : NULL;
    return !text->n ? "it says nothing" : line ? line + 1 : text->data;
}

static zinc_status explain_ssh(zn_launcher *l, zn_host_agent *agent, const char *why)
{
    const char *name = agent_name(l, agent);
    read_err(agent);
    const int code = ssh_exit(agent);
    read_err(agent);
    const char *said = last_words(&agent->err_text);
    if (code == 127 || code == 126)
        return zn_format(&agent->problem, "there is no %s on it (%s); install the same zinc there",
                         l->plan->self, said);
    if (code == 255)
        return zn_format(&agent->problem,
                         "ssh fails: %s; 'ssh %s true' must work without a "
                         "question",
                         said, name);
    return zn_format(&agent->problem, "%s (ssh: %s)", why, said);
}

void zn_launcher_lose(zn_launcher *l, zn_host_agent *agent, const char *why)
{
    if (agent->state >= ZN_AGENT_DONE)
        return;
    const bool was_running = agent->state == ZN_AGENT_RUNNING;
    agent->state = ZN_AGENT_LOST;
    /* without memory for the reason the host is lost all the same */
    if (!was_running && agent->err >= 0 && !agent->problem)
        zn_ignore(explain_ssh(l, agent, why));
    else if (!agent->problem)
        zn_ignore(zn_strdup(why, &agent->problem));
    if (agent->pid > 0)
        kill(agent->pid, SIGKILL);
    zn_wire_close(&agent->wire);
    for (int i = 0; i < l->plan->n_processes; i++) {
        zn_rank_state *r = &l->ranks[i];
        if (!is_its(l, agent, i) || r->ended)
            continue;
        r->ended = true;
        if (agent->local && r->pid > 0)
            kill(-r->pid, SIGKILL); /* what the dead agent could not end */
    }
    if (!was_running)
        return;
    if (is_first_failure(l, ZN_EXIT_LOST_HOST))
        zn_log(ZN_LOG_ERROR, "launch", "host %s is lost: %s", agent_name(l, agent), why);
    zn_launcher_end(l, ZN_FAILURE_GRACE_S);
}

/* ---- the job ---- */

static zinc_status add_settings(const zn_launcher *l, const zn_host_agent *agent, zn_words *out)
{
    const zn_launch_options *o = l->options;
    char stamp[32];
    const time_t now = time(NULL);
    struct tm parts;
    const bool python = o->n_program > 0 && !l->plan->native && !o->module &&
                        strlen(o->program[0]) > 3 &&
                        strcmp(o->program[0] + strlen(o->program[0]) - 3, ".py") == 0;
    strftime(stamp, sizeof stamp, "%Y%m%d%H%M%S", localtime_r(&now, &parts));
    const bool inherit = agent->local && l->plan->n_processes == 1 && !o->log_dir &&
                         o->hang_timeout_s <= 0 && isatty(STDERR_FILENO);
    ZN_TRY(zn_words_addf(out, "cwd=%s", l->plan->cwd));
    ZN_TRY(zn_words_addf(out, "inherit=%d", inherit));
    ZN_TRY(zn_words_addf(out, "remote=%d", !agent->local));
    ZN_TRY(zn_words_addf(out, "beat=%d", o->hang_timeout_s > 0));
    ZN_TRY(zn_words_addf(out, "bind=%d", l->plan->bound));
    ZN_TRY(zn_words_addf(out, "core_list=%s", o->bind_core_list ? o->bind_core_list : ""));
    ZN_TRY(zn_words_addf(out, "log_dir=%s", o->log_dir ? o->log_dir : ""));
    ZN_TRY(zn_words_addf(out, "log_stamp=%s", stamp));
    return zn_words_addf(out, "file=%s", python ? o->program[0] : "");
}

zinc_status zn_launcher_send_job(zn_launcher *l, zn_host_agent *agent)
{
    zinc_status status;
    zn_buf bytes = {0};
    zn_job job = {0};
    ZN_TRY_GOTO(zn_alloc_array(&job.processes, (size_t)l->plan->n_processes, sizeof *job.processes,
                               "the job"));
    for (int i = 0; i < l->plan->n_processes; i++)
        if (is_its(l, agent, i))
            job.processes[job.n_processes++] = l->plan->processes[i]; /* borrowed */
    ZN_TRY_GOTO(add_settings(l, agent, &job.settings));
    if (!agent->local)
        ZN_TRY_GOTO(zn_env_forward(&job.env));
    ZN_TRY_GOTO(zn_job_encode(&job, &bytes));
    ZN_TRY_GOTO(zn_wire_send(&agent->wire, ZN_FRAME_JOB, 0, 0, bytes.data, bytes.n));
    agent->state = ZN_AGENT_CHECKING;
fail:
    job.n_processes = 0; /* not owned */
    zn_job_fini(&job);
    zn_buf_fini(&bytes);
    return status;
}

/* ---- frames ---- */

static zinc_status take_ready(zn_launcher *l, zn_host_agent *agent, const zn_frame *frame)
{
    if (frame->n_bytes == 0 || strcmp(frame->data, zinc_version()) != 0) {
        char why[128];
        snprintf(why, sizeof why, "zinc %.20s runs there, %s here; install the same on every host",
                 frame->n_bytes ? frame->data : "?", zinc_version());
        if (!agent->problem)
            ZN_TRY(zn_strdup(why, &agent->problem));
        zn_launcher_lose(l, agent, why);
        return ZINC_OK;
    }
    return agent->state == ZN_AGENT_WAITED_FOR ? zn_launcher_send_job(l, agent) : ZINC_OK;
}

static zinc_status take_checked(zn_launcher *l, zn_host_agent *agent, const zn_frame *frame)
{
    if (frame->n_bytes == 0) {
        agent->state = ZN_AGENT_CHECKED;
        return ZINC_OK;
    }
    size_t n = frame->n_bytes;
    while (n > 0 && frame->data[n - 1] == '\n')
        n--;
    zn_free(agent->problem);
    agent->problem = NULL;
    agent->problem_code = frame->stream;
    ZN_TRY(zn_format(&agent->problem, "%.*s", (int)n, frame->data));
    zn_launcher_lose(l, agent, agent->problem);
    return ZINC_OK;
}

static zinc_status report_failure(zn_launcher *l, const zn_rank_state *r, int wait_status)
{
    zinc_status status;
    zn_buf text = {0};
    const int sig = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    if (l->plan->this_host)
        ZN_TRY_GOTO(zn_buf_printf(&text, "mpirun of %d ranks ", l->plan->world));
    else
        ZN_TRY_GOTO(zn_buf_printf(&text, "rank %d on %s ", r->output.rank, r->output.host));
    if (sig)
        ZN_TRY_GOTO(
            zn_buf_printf(&text, "was ended by signal %d (%s)%s", sig, strsignal(sig),
                          sig == SIGKILL ? "; if nobody sent it, the host is out of memory" : ""));
    else
        ZN_TRY_GOTO(zn_buf_printf(&text, "exited with code %d", WEXITSTATUS(wait_status)));
    if (l->plan->n_processes > 1) {
        if (r->output.n_lines)
            ZN_TRY_GOTO(zn_buf_puts(&text, "; its last lines:"));
        ZN_TRY_GOTO(zn_rank_output_last(&r->output, &text));
    }
    zn_log(ZN_LOG_ERROR, "launch", "%s", text.data);
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status take_exit(zn_launcher *l, zn_rank_state *r, const zn_frame *frame)
{
    const int wait_status = (int)strtol(frame->data, NULL, 10);
    int code = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    if (l->plan->this_host && code == MPIRUN_LOST_HOST)
        code = ZN_EXIT_LOST_HOST;
    r->ended = true;
    for (int s = 1; s <= 2; s++)
        ZN_TRY(zn_rank_output_end(&r->output, s, &l->sinks[s - 1]));
    if (l->passed_on && code == 128 + l->passed_on && !l->failed)
        l->signal = l->passed_on;
    if (code == 0 || !is_first_failure(l, code))
        return ZINC_OK;
    ZN_TRY(report_failure(l, r, wait_status));
    zn_launcher_end(l, ZN_FAILURE_GRACE_S);
    return ZINC_OK;
}

/* Whether gdb's line says where a thread is. */
static bool is_frame(const char *line)
{
    return line[0] == '#' || strncmp(line, "Thread ", 7) == 0;
}

/* The frames of gdb's text, or the last line it has where there are none: why it could not look. */
static zinc_status take_stack(zn_launcher *l, const zn_rank_state *r, const zn_frame *frame)
{
    zinc_status status = ZINC_OK;
    zn_buf text = {0};
    const char *last = "";
    int n_lines = 0, n_last = 0;
    l->n_stacks--;
    for (const char *line = frame->data; *line && n_lines < MAX_STACK_LINES;) {
        const int n = (int)strcspn(line, "\n");
        if (is_frame(line)) {
            ZN_TRY_GOTO(zn_buf_printf(&text, "\n    %.*s", n < 160 ? n : 160, line));
            n_lines++;
        } else if (n > 0) {
            last = line;
            n_last = n;
        }
        line += n + (line[n] == '\n');
    }
    if (n_lines > 0)
        zn_log(ZN_LOG_ERROR, "launch", "where rank %d on %s is:%s", r->output.rank, r->output.host,
               text.data);
    else if (n_last > 0)
        zn_log(ZN_LOG_ERROR, "launch", "where rank %d on %s is, gdb cannot say: %.*s",
               r->output.rank, r->output.host, n_last, last);
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status take_rank_frame(zn_launcher *l, const zn_host_agent *agent,
                                   const zn_frame *frame)
{
    const double now = zn_sys_now();
    if (frame->rank < 0 || frame->rank >= l->plan->n_processes || !is_its(l, agent, frame->rank))
        ZN_FAIL(ZINC_E_FORMAT, "the agent of %s speaks of rank %d, which is not its",
                agent_name(l, agent), frame->rank);
    zn_rank_state *r = &l->ranks[frame->rank];
    switch (frame->type) {
    case ZN_FRAME_STARTED:
        r->pid = (pid_t)strtol(frame->data, NULL, 10);
        return ZINC_OK;
    case ZN_FRAME_OUTPUT:
        l->progress_at = now;
        if (l->captured && frame->stream == 1)
            return zn_buf_append(&l->captured[frame->rank], frame->data, frame->n_bytes);
        return frame->stream == 1 || frame->stream == 2
                   ? zn_rank_output_take(&r->output, frame->stream, frame->data, frame->n_bytes,
                                         &l->sinks[frame->stream - 1])
                   : ZINC_OK;
    case ZN_FRAME_BEAT:
        r->beats = true;
        r->beat_at = l->progress_at = now;
        return ZINC_OK;
    case ZN_FRAME_STATE:
        r->stopped = frame->stream == 1;
        r->stopped_at = now;
        return ZINC_OK;
    case ZN_FRAME_STACK:
        return take_stack(l, r, frame);
    case ZN_FRAME_EXIT:
        return take_exit(l, r, frame);
    default:
        return ZINC_OK;
    }
}

static zinc_status take_frame(zn_launcher *l, zn_host_agent *agent, const zn_frame *frame)
{
    switch (frame->type) {
    case ZN_FRAME_HEARTBEAT:
        return ZINC_OK;
    case ZN_FRAME_READY:
        return take_ready(l, agent, frame);
    case ZN_FRAME_CHECKED:
        return take_checked(l, agent, frame);
    case ZN_FRAME_DONE:
        agent->state = ZN_AGENT_DONE;
        return ZINC_OK;
    default:
        return take_rank_frame(l, agent, frame);
    }
}

zinc_status zn_launcher_read_agent(zn_launcher *l, zn_host_agent *agent)
{
    zn_frame frame;
    bool got = true;
    if (zn_wire_fill(&agent->wire) != ZINC_OK)
        return ZINC_E_NOMEM;
    const bool closed = agent->wire.closed;
    agent->wire.closed = false; /* what has come before the end still counts */
    while (got && agent->state < ZN_AGENT_DONE) {
        if (zn_wire_next(&agent->wire, &frame, &got) != ZINC_OK) {
            zn_launcher_lose(l, agent, zinc_last_error());
            return ZINC_OK;
        }
        if (got)
            ZN_TRY(take_frame(l, agent, &frame));
    }
    if (agent->state == ZN_AGENT_LOST)
        return ZINC_OK;
    agent->wire.closed = closed;
    read_err(agent);
    if (closed)
        zn_launcher_lose(l, agent, "its agent has gone");
    return ZINC_OK;
}

/* ---- hangs ---- */

/* Say what hangs, and ask where `rank` is, or every rank (-1) up to MAX_STACKS; the answers come
 * before the end. */
static zinc_status begin_hang(zn_launcher *l, const char *what, int rank, double now)
{
    if (is_first_failure(l, EXIT_HANG))
        zn_log(ZN_LOG_ERROR, "launch", "%s for %g s (--hang_timeout); the job is ended", what,
               l->options->hang_timeout_s);
    l->stacks_until = now + STACK_WAIT_S;
    for (int i = 0; i < l->plan->n_processes && l->n_stacks < MAX_STACKS; i++) {
        if (l->ranks[i].ended || (rank >= 0 && i != rank))
            continue;
        ZN_TRY(zn_wire_send(&l->agents[l->ranks[i].agent].wire, ZN_FRAME_STACK, 0, i, NULL, 0));
        l->n_stacks++;
    }
    return ZINC_OK;
}

zinc_status zn_launcher_watch(zn_launcher *l, double now)
{
    const double limit = l->options->hang_timeout_s;
    char what[512];
    if (limit <= 0 || !l->running || l->ending || l->signal)
        return ZINC_OK;
    if (l->stacks_until > 0) {
        if (l->n_stacks <= 0 || now > l->stacks_until)
            zn_launcher_end(l, ZN_FAILURE_GRACE_S);
        return ZINC_OK;
    }
    const bool silent = now - l->progress_at > limit;
    for (int i = 0; i < l->plan->n_processes; i++) {
        const zn_rank_state *r = &l->ranks[i];
        const bool stopped = r->stopped && (silent || now - r->stopped_at > limit);
        if (r->ended || (!stopped && !(r->beats && now - r->beat_at > limit)))
            continue;
        snprintf(what, sizeof what, "rank %d on %s (process %ld) %s", r->output.rank,
                 r->output.host, (long)r->pid,
                 r->stopped ? "was stopped by a signal" : "has made no step");
        return begin_hang(l, what, i, now);
    }
    return silent ? begin_hang(l, "no rank has printed or made a step", -1, now) : ZINC_OK;
}
