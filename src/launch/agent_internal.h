/* SPDX-License-Identifier: Apache-2.0 */
/* agent_internal.h — one host's agent: its job and its ranks (agent.c, agent_ranks.c, job.c).
 * Layer: launch. */
#ifndef ZN_LAUNCH_AGENT_INTERNAL_H
#define ZN_LAUNCH_AGENT_INTERNAL_H

#include <sys/types.h>
#include <time.h>

#include "launch/launch_internal.h"
#include "launch/wire.h"

/* What one agent is to run; travels in a ZN_FRAME_JOB. */
typedef struct zn_job {
    zn_words settings; /* NAME=VALUE: version, cwd, inherit, remote, bind, core_list, log_dir,
                          log_stamp, beat, program */
    zn_words env;      /* for all ranks, before their own */
    zn_process *processes;
    int n_processes;
} zn_job;

ZINC_MUST_CHECK zinc_status zn_job_encode(const zn_job *job, zn_buf *out);
ZINC_MUST_CHECK zinc_status zn_job_decode(const char *bytes, size_t n_bytes, zn_job *out);
/** Value of a setting, or "". */
const char *zn_job_setting(const zn_job *job, const char *name);
bool zn_job_flag(const zn_job *job, const char *name);
void zn_job_fini(zn_job *job);

typedef struct zn_agent_rank {
    const zn_process *process;
    pid_t pid;   /* 0: not started, or gone and reaped */
    int pipe[2]; /* read ends of its standard output and error; -1: none */
    int log;     /* its own log file; -1: none */
    char *beat;  /* path of its heartbeat file; NULL: none */
    struct timespec beat_at;
    bool stopped;
    pid_t stack_pid; /* gdb at work; 0: none */
    int stack_fd;    /* what it prints; -1: it was never asked for */
} zn_agent_rank;

typedef struct zn_agent {
    zn_wire wire;
    zn_job job;
    zn_agent_rank *ranks; /* [job.n_processes] */
    int n_running;
    bool by_runner; /* mpirun, srun or pdsh has started it */
    int signal_fd;
    bool started, ending, killed, finished, told_to_leave;
    double kill_at;     /* once ending: when SIGKILL follows */
    double next_tick_s; /* when heartbeat files and states are looked at */
} zn_agent;

/** Append one line a problem that keeps the job from starting here; *code is 127 if the program is
 *  the only one, else 1. */
ZINC_MUST_CHECK zinc_status zn_agent_check(zn_agent *agent, zn_buf *problems, int *code);
/** Start all ranks. One that cannot run counts as having exited with 126 or 127. */
ZINC_MUST_CHECK zinc_status zn_agent_start(zn_agent *agent);
/** Read what rank i has written to stream s (0 output, 1 error) and pass it on; `all`: even if the
 *  launcher is slow to take it, for a rank that has ended. */
ZINC_MUST_CHECK zinc_status zn_agent_drain(zn_agent *agent, int i, int s, bool all);
/** Collect ended children and report those that are ranks. */
ZINC_MUST_CHECK zinc_status zn_agent_reap(zn_agent *agent);
/** Look at heartbeat files and process states. */
ZINC_MUST_CHECK zinc_status zn_agent_tick(zn_agent *agent);
/** Ask gdb for the stack of a rank; the reply to the launcher follows, empty where there is no gdb
 *  (agent_stack.c). E_IO. */
ZINC_MUST_CHECK zinc_status zn_agent_stack_begin(zn_agent *agent, int rank);
/** Its gdb has ended: send what it has printed. */
ZINC_MUST_CHECK zinc_status zn_agent_stack_end(zn_agent *agent, zn_agent_rank *r);
void zn_agent_signal_ranks(zn_agent *agent, int sig);
/** Whether a process is stopped by a signal. */
bool zn_process_is_stopped(pid_t pid);
/** Start the child that kills this process if it stays stopped (agent_guard.c). It is one of the
 *  leftovers at the end. E_IO. */
ZINC_MUST_CHECK zinc_status zn_agent_guard_start(void);
void zn_agent_close_ranks(zn_agent *agent);

#endif
