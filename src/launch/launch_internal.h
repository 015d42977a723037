/* SPDX-License-Identifier: Apache-2.0 */
/* launch_internal.h — what the files of launch/ share: lists of words, hosts, the plan, quoting.
 * Layer: launch. */
#ifndef ZN_LAUNCH_LAUNCH_INTERNAL_H
#define ZN_LAUNCH_LAUNCH_INTERNAL_H

#include "launch/launch.h"

#define ZN_DEFAULT_HOSTFILE "/job/hostfile"
#define ZN_DEFAULT_MASTER_PORT 29500
#define ZN_MAX_SLOTS 65536 /* of all hosts together */

/* ---- words.c: owned strings; items[n] is always NULL, so that items can be an argv ---- */

typedef struct zn_words {
    char **items;
    int n, capacity;
} zn_words;

ZINC_MUST_CHECK zinc_status zn_words_add(zn_words *words, const char *text);
ZINC_MUST_CHECK zinc_status zn_words_add_n(zn_words *words, const char *text, size_t n_bytes);
ZINC_MUST_CHECK zinc_status zn_words_addf(zn_words *words, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
ZINC_MUST_CHECK zinc_status zn_words_add_all(zn_words *words, const zn_words *more);
/** Put "NAME=VALUE" in, in place of an earlier one of that name. */
ZINC_MUST_CHECK zinc_status zn_words_set(zn_words *words, const char *assignment);
/** Value of NAME, or NULL. */
const char *zn_words_value(const zn_words *words, const char *name);
void zn_words_fini(zn_words *words);
/** Append the count and the words, each with its NUL: any bytes but NUL survive. */
ZINC_MUST_CHECK zinc_status zn_words_encode(const zn_words *words, zn_buf *out);
/** Read one encoded list at *at and move *at behind it. E_FORMAT: not such a list. */
ZINC_MUST_CHECK zinc_status zn_words_decode(const char *bytes, size_t n_bytes, size_t *at,
                                            zn_words *out);

/* ---- shell_quote.c: the only place where words become shell text ---- */

/** Append `word` so that a POSIX shell reads exactly its bytes as one word. */
ZINC_MUST_CHECK zinc_status zn_shell_quote(const char *word, zn_buf *out);
/** All words, quoted, with spaces between: the text of a remote command. */
ZINC_MUST_CHECK zinc_status zn_shell_command(const zn_words *words, zn_buf *out);
/** Split as a shell does: quotes and backslashes, nothing is expanded. E_INVALID: open quote. */
ZINC_MUST_CHECK zinc_status zn_shell_split(const char *text, const char *option, zn_words *out);

/* ---- hostfile.c, host_filter.c ---- */

typedef struct zn_host {
    char *name;
    int *slots; /* [n_slots] ascending */
    int n_slots;
} zn_host;

typedef struct zn_pool {
    zn_host *hosts; /* in the hostfile's order */
    int n;
    bool is_hostfile;   /* the slots are what a file says */
    bool is_allocation; /* the hosts are what Slurm has given */
} zn_pool;

void zn_pool_fini(zn_pool *pool);
/** Add a host with slots 0 … n_slots-1, or those given. */
ZINC_MUST_CHECK zinc_status zn_pool_add(zn_pool *pool, const char *name, size_t name_bytes,
                                        int n_slots, const int *slots);
/** Parse "NAME slots=N" lines; `path` is for messages, which name file, line and column. E_CONFIG.
 */
ZINC_MUST_CHECK zinc_status zn_hostfile_parse(const char *text, size_t n_bytes, const char *path,
                                              zn_pool *out);
/** Keep what include names, or drop what exclude names (NULL or "": not given), and drop hosts
 *  without slots. E_INVALID names the host or slot that is not there, and those that are. */
ZINC_MUST_CHECK zinc_status zn_pool_filter(zn_pool *pool, const char *include, const char *exclude);
/** Keep the first n_nodes hosts and n_ranks slots of each (0 or less: all). */
ZINC_MUST_CHECK zinc_status zn_pool_trim(zn_pool *pool, int64_t n_nodes, int64_t n_ranks);
/** Slots of this machine: what CUDA_VISIBLE_DEVICES lists, else its GPUs, else its cores. */
ZINC_MUST_CHECK zinc_status zn_pool_add_this_host(zn_pool *pool, const char *name, int64_t n_ranks);
int zn_pool_n_slots(const zn_pool *pool);

/* ---- cores.c ---- */

/** "a,b-c" of non-negative integers into *out (zn_free), ascending without doubles. */
ZINC_MUST_CHECK zinc_status zn_parse_core_list(const char *text, int **out, int *n);
/** The cores that this process may run on, of `list` (NULL or "": of all), into *out (zn_free). */
ZINC_MUST_CHECK zinc_status zn_cores_usable(const char *list, int **out, int *n);
/** The i-th of n_ranks gets *n of a host's n_cores cores, from the *first-th on. */
void zn_cores_of_rank(int n_cores, int n_ranks, int i, int *first, int *n);

/* ---- slurm_hosts.c ---- */

/** Hosts of the Slurm allocation, with n_ranks slots each; 0 or less: as many as GPUs, else tasks.
 *  E_CONFIG: a variable is not understood, or srun has started several of this process. */
ZINC_MUST_CHECK zinc_status zn_slurm_pool(int64_t n_ranks, zn_pool *pool);
/** "n[01-03],m" to names, in order. */
ZINC_MUST_CHECK zinc_status zn_slurm_parse_hosts(const char *text, zn_words *out);
/** "4(x2),1" to out[n]. */
ZINC_MUST_CHECK zinc_status zn_slurm_parse_counts(const char *text, int n, int *out);

/* ---- launch_env.c: the environment of this process ---- */

const char *zn_launch_getenv(const char *name);
/** NAME=VALUE lines of .deepspeed_env (or DS_ENV_FILE's name) and .zinc_env in the home folder,
 *  then here; then exports. Later ones win. E_CONFIG names file and line. */
ZINC_MUST_CHECK zinc_status zn_env_collect(const char *const *exports, int n_exports,
                                           zn_words *out);
ZINC_MUST_CHECK zinc_status zn_env_parse(const char *text, size_t n_bytes, const char *path,
                                         zn_words *out);
/** NAME=VALUE of this environment's variables that another host needs too (docs/launch.md). */
ZINC_MUST_CHECK zinc_status zn_env_forward(zn_words *out);

/* ---- connect.c ---- */

/** A connected, blocking socket (the caller's to close) to `host`, a name or a number, within
 *  `seconds`; each address that the name has gets its share of them. A signal ends the try.
 *  Errors: E_COMM, with every address tried and why it failed. */
ZINC_MUST_CHECK zinc_status zn_connect(const char *host, int port, double seconds, int *out);

/* ---- launch_plan.c, launch_native.c, launch_plan_print.c ---- */

typedef struct zn_process {
    int rank, host, local_rank;
    zn_words env;  /* NAME=VALUE, on top of what the agent has */
    zn_words argv; /* argv[0] is looked up in PATH */
    int *cores;    /* [n_cores] that it is bound to; NULL: not bound, or its host divides its own */
    int n_cores;
} zn_process;

struct zn_plan {
    zn_pool pool;
    zn_process *processes; /* in rank order */
    int n_processes;       /* world size, or 1 where zinc train makes the ranks itself */
    int world;
    bool native;       /* the program is zinc train */
    int by_hand_rank;  /* this machine's place, where each starts the command itself; else -1 */
    bool bound;        /* each process has cores of its own */
    bool this_host;    /* all processes start from this host's agent, wherever their ranks are */
    char *master_addr; /* owned */
    int master_port;
    int port_fd; /* keeps the port from other launchers here; -1: none */
    char *cwd;   /* ranks start here on every host */
    char *self;  /* this program; the same path is expected on every host */
};

/** zn_plan_create without the hosts of these names (NULL: with all). */
ZINC_MUST_CHECK zinc_status zn_plan_create_without(const zn_launch_options *options,
                                                   const zn_words *lost, zn_plan **out);

/** "zinc train …": one process with --ranks on one host, mpirun over several. */
bool zn_native_program(const zn_launch_options *options);
ZINC_MUST_CHECK zinc_status zn_native_processes(const zn_launch_options *options, zn_plan *plan,
                                                const zn_words *env);
/** Put those "NAME=VALUE" in whose names this process's environment has not. */
ZINC_MUST_CHECK zinc_status zn_env_default(zn_words *env, const char *const *assignments, int n);
/** What every mpirun of Open MPI is told: root may start it, and a cut link is found soon. */
ZINC_MUST_CHECK zinc_status zn_env_openmpi(zn_words *env);
/** The words that every ssh gets here, for a variable of a program that starts ssh itself. */
ZINC_MUST_CHECK zinc_status zn_ssh_options(const zn_launch_options *options, zn_buf *out);
/** Value of an option among the program's words, dashes or underscores; NULL if it is not there. */
const char *zn_program_option(const char *const *words, int n, const char *name);

/** Whether `name` is this machine; with `resolve` addresses are looked up too. */
bool zn_host_is_local(const char *name, bool resolve);
/** `name` without "user@". */
const char *zn_host_address(const char *name);
/** Whether TCP port `port` can be bound here; port 0 gives a free one in *out. */
bool zn_port_is_free(int port, int *out);

#endif
