/* SPDX-License-Identifier: Apache-2.0 */
/* launcher_internal.h — one attempt at running a plan: agents, their output, how it ended
 * (launcher.c, launcher_events.c, runner.c, rank_output.c). Layer: launch. */
#ifndef ZN_LAUNCH_LAUNCHER_INTERNAL_H
#define ZN_LAUNCH_LAUNCHER_INTERNAL_H

#include <poll.h>
#include <sys/types.h>

#include "launch/launch_internal.h"
#include "launch/wire.h"

#define ZN_FAILURE_GRACE_S 5.0 /* SIGTERM to SIGKILL for the others when a rank has failed */
#define ZN_LAST_LINES 12

/* ---- rank_output.c ---- */

/* Where lines go, without ever blocking: standard output or error. */
typedef struct zn_sink {
    int fd;
    zn_buf pending;
    size_t at; /* bytes of `pending` that are written */
} zn_sink;

size_t zn_sink_left(const zn_sink *sink);

void zn_sink_flush(zn_sink *sink, short revents);

typedef struct zn_rank_output {
    const char *host; /* borrowed */
    int rank;
    bool prefixed;             /* lines carry [host:rank] */
    zn_buf line[2];            /* what stands after the last line end */
    char *last[ZN_LAST_LINES]; /* ring of the newest lines, owned */
    int n_lines;               /* lines so far */
} zn_rank_output;

/** Take bytes of stream 1 or 2 and hand whole lines to the sink. A progress bar's line (ended by
 *  a carriage return) is passed on for rank 0 only. */
ZINC_MUST_CHECK zinc_status zn_rank_output_take(zn_rank_output *output, int stream,
                                                const char *bytes, size_t n_bytes, zn_sink *sink);
/** Hand over what has no line end yet. */
ZINC_MUST_CHECK zinc_status zn_rank_output_end(zn_rank_output *output, int stream, zn_sink *sink);
/** Append the newest lines, indented. */
ZINC_MUST_CHECK zinc_status zn_rank_output_last(const zn_rank_output *output, zn_buf *out);
void zn_rank_output_fini(zn_rank_output *output);

/* ---- the attempt ---- */

typedef enum zn_agent_state {
    ZN_AGENT_WAITED_FOR, /* it has not said that it is there */
    ZN_AGENT_CHECKING,   /* it has the job and looks at it */
    ZN_AGENT_CHECKED,
    ZN_AGENT_RUNNING,
    ZN_AGENT_DONE,
    ZN_AGENT_LOST, /* or never there */
} zn_agent_state;

typedef struct zn_host_agent {
    int host; /* in the plan; -1: this host's, for a plan of one command */
    bool local;
    zn_agent_state state;
    pid_t pid; /* of the agent, or of its ssh; 0: none of its own, or reaped */
    zn_wire wire;
    int err; /* read end of what ssh says; -1: none */
    zn_buf err_text;
    char *problem;    /* why it is not there; owned */
    int problem_code; /* exit code that this alone would mean; 0: a lost host's */
} zn_host_agent;

typedef struct zn_rank_state {
    zn_rank_output output;
    pid_t pid; /* on its host */
    bool ended, stopped, beats;
    double beat_at, stopped_at;
    int agent; /* -1: it runs elsewhere (--no_ssh) */
} zn_rank_state;

typedef struct zn_launcher {
    const zn_launch_options *options;
    zn_plan *plan;
    zn_host_agent *agents;
    int n_agents;
    zn_rank_state *ranks; /* [plan->n_processes] */
    zn_sink sinks[2];
    zn_buf others;    /* children that this process had before (zn_spawn_children) */
    zn_buf *captured; /* [plan->n_processes] standard output is kept here; NULL: passed on */
    int signal_fd;
    /* a runner that starts all agents (runner.c), and where they connect to */
    pid_t runner;
    double runner_gone_at; /* 0: it is there, or there is none */
    int runner_err, listen_fd;
    zn_buf runner_text;
    zn_wire *callers; /* connections whose place is not known yet */
    int n_callers;

    bool running; /* the ranks were started */
    bool ending;
    double began_at, end_at, progress_at;
    int exit_code;
    bool failed;         /* a rank or host was the cause; exit_code is its */
    int signal;          /* that ended the job; 0: none */
    int n_stacks;        /* of hanging ranks that are asked for and have not come */
    double stacks_until; /* then the job ends without them; 0: none was asked for */
    int passed_on;       /* SIGUSR1 or SIGUSR2 once passed on: a rank may end by it */
    int n_signals;       /* so far */
} zn_launcher;

/** Run the plan once; standard output of rank r goes to captured[r] unless that is NULL. *exit_code
 * as zn_launch_run. E_COMM: hosts could not be used; each is named in the log and marked in
 * lost[host]. */
ZINC_MUST_CHECK zinc_status zn_launcher_run(const zn_launch_options *options, zn_plan *plan,
                                            zn_buf *captured, bool *lost, int *exit_code,
                                            int *signal);

/* launcher_events.c */
ZINC_MUST_CHECK zinc_status zn_launcher_read_agent(zn_launcher *l, zn_host_agent *agent);
/** `agent` is gone; say why, and end the job if it runs. */
void zn_launcher_lose(zn_launcher *l, zn_host_agent *agent, const char *why);
void zn_launcher_end(zn_launcher *l, double grace_s);
ZINC_MUST_CHECK zinc_status zn_launcher_send_job(zn_launcher *l, zn_host_agent *agent);
/** Whether nothing has moved for --hang_timeout; then the job is ended. */
ZINC_MUST_CHECK zinc_status zn_launcher_watch(zn_launcher *l, double now);

/* runner.c */
/** Whether agents are started by one command and connect back. */
bool zn_runner_is_collective(const zn_launch_options *options);
ZINC_MUST_CHECK zinc_status zn_runner_start_agent(zn_launcher *l, zn_host_agent *agent);
ZINC_MUST_CHECK zinc_status zn_runner_start_all(zn_launcher *l);
/** Accept connections and find out which host each is. */
ZINC_MUST_CHECK zinc_status zn_runner_accept(zn_launcher *l);
/** What the runner has said that is of use to a person, in one line. */
void zn_runner_said(const zn_launcher *l, char *out, size_t n_bytes);
void zn_runner_close(zn_launcher *l);

#endif
