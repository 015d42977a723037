/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h — one rank of a job: its place among the others, its memory account, its compute threads.
 *
 *   self     one rank
 *   thread   ranks are threads of one process: make a zinc_thread_world, then one comm a thread
 *   mpi      one process a rank, started by mpirun or a batch system
 *   host     the embedding program moves the bytes (torch.distributed, a cluster's own library)
 *
 * Promises, of every kind: sums over ranks are made in fp32 in rank order 0, 1, …, so results
 * repeat bit for bit and are equal on every kind; every wait has a deadline; calls of different
 * ranks that do not match are an error that names both calls; after any error the comm is unusable
 * and every later call returns that error.
 *
 * "Collective" in a description means: every rank of the job makes this call, all in the same
 * order. Threads: one comm is used by one thread at a time; different comms are independent. */
#ifndef ZINC_COMM_H
#define ZINC_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "zinc/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zinc_comm zinc_comm;
typedef struct zinc_thread_world zinc_thread_world;

/* Start from ZINC_COMM_PARAMS_INIT. */
typedef struct zinc_comm_params {
    size_t struct_size;
    int64_t timeout_ms;         /* deadline of every wait, > 0 */
    int64_t device_limit_bytes; /* most bytes the rank may hold where it computes; 0: no limit */
    int64_t host_limit_bytes;   /* the same of what is offloaded to host memory; 0: no limit */
    int n_threads; /* compute threads of this rank; 0: this machine's cores, divided by the number
                      of ranks for kinds thread and host */
} zinc_comm_params;

#define ZINC_COMM_PARAMS_INIT                                                                      \
    {                                                                                              \
        sizeof(zinc_comm_params), 600000, 0, 0, 0                                                  \
    }

/* Every zinc_comm_create_*: params NULL takes the defaults; *out is owned, release it with
 * zinc_comm_destroy; all are collective. Errors: E_INVALID, E_NOMEM, E_TIMEOUT (a rank never came).
 */

/** The only rank of a job. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_create_self(const zinc_comm_params *params,
                                                           zinc_comm **out);

/** What the ranks of one process share. Make it before the rank threads start, destroy it after
 *  they have ended. Not collective. n_ranks >= 1. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_thread_world_create(int n_ranks, zinc_thread_world **out);
/** NULL is fine. */
ZINC_API void zinc_thread_world_destroy(zinc_thread_world *world);

/** Rank `rank` of `world` (borrowed until the comm is destroyed), for the thread that calls. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_create_thread(zinc_thread_world *world, int rank,
                                                             const zinc_comm_params *params,
                                                             zinc_comm **out);

/** This process's rank in its MPI job; MPI is started if the program has not done so.
 *  Errors: E_UNSUPPORTED if the library was built without MPI. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_create_mpi(const zinc_comm_params *params,
                                                          zinc_comm **out);

/* How the embedding program moves bytes between ranks. It adds nothing up: libzinc sums what
 * all_to_all brings, so that the bits are those of every other kind of comm.
 *
 * A collective is started, gives a token, and is finished by `wait` (or `test`, polled, where there
 * is no `wait`). Up to 8 are started before the first is waited for; they are started in the same
 * order on every rank, and waited for in that order. Buffers are borrowed until the wait returns.
 * All functions are called only on a thread that is inside a libzinc call. They return ZINC_OK or
 * the status of a failure, with zinc_fail() to say why; a failed comm cannot be used any more. */
typedef struct zinc_comm_host {
    size_t struct_size;
    void *ctx; /* handed to every function */
    int rank, n_ranks;
    /* 1: compare every call with the other ranks' by one small all_gather before it; 0: trust the
     * program to make equal calls. */
    int check_calls;

    /** recv[r * n_bytes …] becomes rank r's send[0 … n_bytes), on every rank. `send` may lie at its
     *  own place in recv. n_bytes > 0 is the same on every rank. */
    zinc_status (*all_gather)(void *ctx, const void *send, void *recv, size_t n_bytes,
                              int64_t *token);
    /** recv[s * n_bytes …] becomes rank s's send[r * n_bytes …), where r is the rank that receives.
     *  NULL: all_gather is used in its place and moves n_ranks times as much. */
    zinc_status (*all_to_all)(void *ctx, const void *send, void *recv, size_t n_bytes,
                              int64_t *token);
    /** buf [n_bytes] of rank `root` goes to every rank. NULL: all_gather is used. */
    zinc_status (*broadcast)(void *ctx, void *buf, size_t n_bytes, int root, int64_t *token);
    /** Finish a collective, at the latest after timeout_ms: ZINC_E_TIMEOUT then. May be NULL if
     *  there is `test`. */
    zinc_status (*wait)(void *ctx, int64_t token, int64_t timeout_ms);
    /** Set *done to 1 if the collective is finished, and its token then is not used again, else to
     *  0; does not block. May be NULL if there is `wait`. */
    zinc_status (*test)(void *ctx, int64_t token, int *done);
    /** This rank cannot go on: tell the others, without blocking. May be NULL: the others then meet
     *  their deadline. */
    void (*abort)(void *ctx, const char *reason);
    /** Make a group of these ranks [n], of which this is one: rank i of the group is ranks[i] of
     *  this comm. *out begins as ZINC_COMM_HOST_INIT and gets the group's ctx, rank, n_ranks and
     *  functions; the ctx is borrowed until `close`. All ranks call it at the same time, each with
     *  its own group. NULL: there are no groups, and settings that need them are refused. */
    zinc_status (*split)(void *ctx, const int *ranks, int n, struct zinc_comm_host *out);
    /** A group that `split` made is not used any more. ctx is the group's. May be NULL. */
    void (*close)(void *ctx);
} zinc_comm_host;

#define ZINC_COMM_HOST_INIT                                                                        \
    {                                                                                              \
        sizeof(zinc_comm_host), NULL, 0, 0, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL      \
    }

/** A rank whose bytes the embedding program moves. `host` is copied; its ctx is borrowed until the
 *  comm is destroyed. The ranks do not share memory. Errors: E_INVALID names what is missing. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_create_host(const zinc_comm_host *host,
                                                           const zinc_comm_params *params,
                                                           zinc_comm **out);

/** Release a comm after the engines that use it. Waits for the other ranks unless the comm has
 *  failed. NULL is fine. Collective. */
ZINC_API void zinc_comm_destroy(zinc_comm *comm);

/** This rank, its number of ranks, and "self", "thread", "mpi" or "host". Not collective. */
ZINC_API int zinc_comm_rank(const zinc_comm *comm);
ZINC_API int zinc_comm_n_ranks(const zinc_comm *comm);
ZINC_API const char *zinc_comm_kind(const zinc_comm *comm);

/* `tag` says in messages what a call is for; it is compared across ranks. */

/** Wait until every rank is here. Collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_barrier(zinc_comm *comm, const char *tag);

/** Gather `mine` [n_bytes] of every rank into out [n_ranks * n_bytes], in rank order; for small
 *  things. Collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_exchange(zinc_comm *comm, const void *mine,
                                                        size_t n_bytes, void *out, const char *tag);

/** Copy root's buf [n_bytes] to every rank. Collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_broadcast(zinc_comm *comm, void *buf, size_t n_bytes,
                                                         int root, const char *tag);

/** Replace values [n] by their sums over the ranks, added in rank order, in fp64: losses and
 *  counts. Collective. 0 <= n <= 64. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_sum(zinc_comm *comm, double *values, int n,
                                                   const char *tag);

/** Make all ranks agree on the outcome of a phase: every rank returns OK if all passed OK, else the
 *  status and message of the lowest rank that failed. `status` is what this rank's phase returned,
 *  right after it returned it. Collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_agree(zinc_comm *comm, zinc_status status);

/** Tell the other ranks that this one cannot go on: their waits return E_ABORTED with `reason`.
 *  Never blocks. Not collective. */
ZINC_API void zinc_comm_abort(zinc_comm *comm, const char *reason);

/* What this rank has moved, counted as the ZeRO paper counts (sec. 7): a collective over a full
 * buffer of n elements moves (P-1)/P * n a rank. */
typedef struct zinc_comm_stats {
    size_t struct_size;
    int64_t n_all_gather, n_reduce_scatter, n_broadcast;
    int64_t all_gather_bytes, reduce_scatter_bytes;
} zinc_comm_stats;

#define ZINC_COMM_STATS_INIT                                                                       \
    {                                                                                              \
        sizeof(zinc_comm_stats), 0, 0, 0, 0, 0                                                     \
    }

/** Counts since the comm was made or the last reset. out->struct_size must be set. Not collective.
 */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_comm_get_stats(zinc_comm *comm, zinc_comm_stats *out);
ZINC_API void zinc_comm_reset_stats(zinc_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
