/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h — start one program on many ranks and hosts, watch it, and end all of it.
 *
 *   options -> zn_plan            which host, slot, rank, environment and words; no process yet
 *   zn_plan -> agents             one `zinc agent` a host, started here, over ssh, or by a runner
 *   agents  -> ranks              each a process group; output, exit codes and beats come back
 *
 * Invariants: nothing of the program starts before every host has answered and passed its checks;
 * arguments and values are data and reach a rank byte for byte; when this process, an agent or a
 * rank goes, everything else goes within seconds; the exit code is the first failing rank's own.
 * Reading order: launch.h, launch_internal.h, hostfile.c, host_filter.c, cores.c, launch_plan.c,
 * wire.c, agent.c, agent_ranks.c, agent_stack.c, agent_guard.c, launcher.c, launcher_events.c,
 * runner.c, restart.c, by_hand.c. Layer: launch. */
#ifndef ZN_LAUNCH_LAUNCH_H
#define ZN_LAUNCH_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

/* What the command line says. NULL, 0 or -1 where not given, as noted. All borrowed. */
typedef struct zn_launch_options {
    const char *hostfile;          /* NULL: /job/hostfile if it is there, else the
                                      Slurm allocation, else this host */
    const char *include, *exclude; /* NAME[:SLOT,…][@NAME…] */
    int64_t num_nodes, num_ranks;  /* 0 or less: all */
    const char *master_addr;
    int64_t master_port;  /* 0: MASTER_PORT, else 29500 if free, else any free one */
    const char *launcher; /* ssh, local, openmpi, mpich, slurm, pdsh; NULL: ssh */
    const char *launcher_args;
    int64_t ssh_port; /* 0: ssh's own */
    bool no_ssh, force_multi;
    bool this_host;    /* only here, whatever hostfile or allocation there is */
    int64_t node_rank; /* with no_ssh: this host's place in the plan; -1: not given */
    bool module, no_python, bind_cores;
    const char *bind_core_list, *venv_script, *log_dir;
    bool save_pid;
    const char *const *exports; /* NAME=VALUE, or NAME with the value it has here */
    int n_exports;
    int64_t max_restarts, min_nodes;
    double hang_timeout_s; /* 0: never */
    double connect_timeout_s, grace_s;
    const char *const *program; /* the program and its arguments */
    int n_program;
} zn_launch_options;

typedef struct zn_plan zn_plan;

/** Whether the hosts are those of the Slurm allocation that this process runs in; --launcher is
 *  then slurm unless it is given. */
bool zn_launch_in_allocation(const zn_launch_options *options);

/** Everything that is decided before a process starts. Reads files and looks at this machine;
 *  reaches no other host. Free with zn_plan_destroy. Errors: E_INVALID the options contradict each
 *  other; E_CONFIG a hostfile, filter or environment file is wrong (with file and line); E_IO. */
ZINC_MUST_CHECK zinc_status zn_plan_create(const zn_launch_options *options, zn_plan **out);
void zn_plan_destroy(zn_plan *plan);

/** The plan as one JSON object, or as a table for people. */
ZINC_MUST_CHECK zinc_status zn_plan_json(const zn_plan *plan, zn_buf *out);
ZINC_MUST_CHECK zinc_status zn_plan_text(const zn_plan *plan, zn_buf *out);

/** Run the plan to its end, restarts included; *exit_code is the first failing rank's own, 128+n
 *  for a signal, 5 for a hang, 6 for a lost host. Errors: what kept it from starting. */
ZINC_MUST_CHECK zinc_status zn_launch_run(const zn_launch_options *options, int *exit_code);

#define ZN_EXIT_LOST_HOST 6

/** Whether `zinc train` is to be started on every machine by a person or another tool (no_ssh,
 *  num_nodes > 1, num_ranks each): zn_launch_by_hand is then what runs it. */
bool zn_launch_is_by_hand(const zn_launch_options *options);

/** The same for `zinc train` over num_nodes machines, on each of which this is called with its
 *  node_rank: 0 waits at master_addr for the others and runs mpirun. Errors: E_COMM a machine did
 *  not come within connect_timeout_s; it is named. */
ZINC_MUST_CHECK zinc_status zn_launch_by_hand(const zn_launch_options *options, int *exit_code);
/** What mpirun starts in place of ssh then: run the words on `host`; its exit code. */
ZINC_MUST_CHECK zinc_status zn_launch_relay(const char *host, const char *const *words, int n_words,
                                            int *exit_code);

/* What one host has printed. */
typedef struct zn_host_text {
    char *host;
    zn_buf text;
} zn_host_text;

/** Run a program that does not fail on every rank, and keep its standard output, rank by rank, in
 *  *out (zn_host_texts_destroy). Hosts that cannot be used are named in the log and left out;
 *  *exit_code is then 6, else as zn_launch_run. Errors: as zn_launch_run; E_COMM no host is left.
 */
ZINC_MUST_CHECK zinc_status zn_launch_collect(const zn_launch_options *options, zn_host_text **out,
                                              int *n, int *exit_code);
void zn_host_texts_destroy(zn_host_text *hosts, int n);

/* How an agent reaches its launcher. */
typedef struct zn_agent_options {
    int64_t fd;          /* an open socket; -1: standard input and output */
    const char *connect; /* HOST:PORT instead */
    int64_t place;       /* with connect: of this host in the plan; -1: what mpirun or srun says */
} zn_agent_options;

/** One host's agent; returns when its ranks are gone. */
ZINC_MUST_CHECK zinc_status zn_agent_run(const zn_agent_options *options);

#endif
