/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h — collectives between ranks.
 *
 * A zn_comm is one rank's handle on a group of ranks. Every collective is put on the comm's own
 * stream, runs there in the order of submission (the same on every rank) and is waited for by
 * event. Backends (one file + one row in comm/registry.c): `self` one rank; `thread` ranks are
 * threads of one process that read each other's buffers; `mpi` one process a rank, over Open MPI;
 * `host` the embedding program moves the bytes, by functions it gives.
 *
 * Promises, of every backend:
 *   - sums are fp32, added in rank order 0, 1, …, whatever the wire type, so results repeat bit for
 *     bit and are the same on every backend;
 *   - every wait has a deadline (params.timeout_ms); when it passes, E_TIMEOUT names the
 *     collective (kind, size, sequence number, tag) and the ranks that have not arrived;
 *   - sequence number, kind, tag and size are compared across ranks; the first mismatch is
 *     E_COMM naming both ranks and both calls;
 *   - after any error the comm is unusable and every later call returns that error; peers are told
 *     (zn_comm_abort) and do not hang.
 *
 * Slice layout. Flat buffers are rows of blocks; block b of a full buffer holds the slices of ranks
 * 0..W-1 side by side:   full: [b0:r0|b0:r1|…|b1:r0|b1:r1|…]      shard of r: [b0:r | b1:r | …]
 * so that a gathered buffer is contiguous and final. A shard's slices lie `stride` elements apart:
 * equal to slice_elems when the shard is packed, to slice_elems * W when it lies inside a full
 * buffer.
 *
 * Threads: one thread submits to a comm at a time. Layer: comm (may use base, device). */
#ifndef ZN_COMM_COMM_H
#define ZN_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "device/device.h"
#include "zinc/comm.h"

typedef struct zn_comm zn_comm;
typedef struct zn_thread_world zn_thread_world;

typedef struct zn_comm_params {
    const char *backend;        /* "self", "thread", "mpi", "host" */
    int rank, n_ranks;          /* thread: both; self, host: ignored; mpi: 0, 0 = ask MPI */
    zn_thread_world *world;     /* thread: shared by its ranks */
    const zinc_comm_host *host; /* host: copied */
    zn_device *dev;             /* borrowed; its account is charged for staging buffers */
    int64_t timeout_ms;         /* deadline of every wait, > 0 */
} zn_comm_params;

/** What the ranks of the `thread` backend share. Made once, before the rank threads start;
 *  destroyed after they have ended. */
ZINC_MUST_CHECK zinc_status zn_thread_world_create(int n_ranks, zn_thread_world **out);
void zn_thread_world_destroy(zn_thread_world *world);

/** Open this rank's handle. Collective. Errors: E_UNSUPPORTED names the backends of this build. */
ZINC_MUST_CHECK zinc_status zn_comm_open(const zn_comm_params *params, zn_comm **out);
/** Drain and close; NULL is fine. Not collective after an error, collective otherwise. */
void zn_comm_close(zn_comm *comm);

/** Split into disjoint groups by color; ranks of a group are ordered by (key, rank). Collective.
 *  *out is owned by the caller and must be closed before `comm`. When `comm` fails, so do its
 *  groups. */
ZINC_MUST_CHECK zinc_status zn_comm_split(zn_comm *comm, int color, int key, zn_comm **out);

int zn_comm_rank(const zn_comm *comm);
int zn_comm_n_ranks(const zn_comm *comm);
const char *zn_comm_backend(const zn_comm *comm);
zn_stream *zn_comm_stream(zn_comm *comm);

/* A slice layout: n_blocks blocks of n_ranks slices of slice_elems elements. */
typedef struct zn_slices {
    zn_dtype dtype;
    int64_t slice_elems;
    int64_t n_blocks;
    int64_t shard_stride; /* elements between two slices of the shard, >= slice_elems */
} zn_slices;

/** Gather the ranks' shards into `full` on every rank. Collective; asynchronous.
 *  full   [n_blocks * n_ranks * slice_elems]; borrowed until *event
 *  shard  this rank's slices, shard_stride apart; may lie in its final place inside `full`, and
 *         then nothing is copied for it
 *  tag    what it is for, in messages (a literal, e.g. the unit's name); borrowed until *event
 *  Moves: (n_ranks - 1) / n_ranks of the full buffer a rank. */
ZINC_MUST_CHECK zinc_status zn_comm_all_gather(zn_comm *comm, void *full, const void *shard,
                                               const zn_slices *slices, const char *tag,
                                               zn_event *event);

/** Sum the ranks' `full` buffers and leave this rank's slices of the sum in `shard`. Collective;
 *  asynchronous.
 *  full        [n_blocks * n_ranks * slice_elems] of slices->dtype (F32, BF16, F16); read by peers
 *              until *event, not written
 *  shard       this rank's slices, slices->shard_stride elements of shard_dtype apart; may alias
 *              its own slices of `full` when both are F32
 *  accumulate  shard = round(shard + sum) instead of round(sum); sums are fp32
 *  Moves: (n_ranks - 1) / n_ranks of the full buffer a rank. */
ZINC_MUST_CHECK zinc_status zn_comm_reduce_scatter(zn_comm *comm, const void *full, void *shard,
                                                   const zn_slices *slices, zn_dtype shard_dtype,
                                                   bool accumulate, const char *tag,
                                                   zn_event *event);

/** Copy root's n_bytes to every rank. Collective; asynchronous. */
ZINC_MUST_CHECK zinc_status zn_comm_broadcast(zn_comm *comm, void *buf, size_t n_bytes, int root,
                                              const char *tag, zn_event *event);

/** Wait until every rank is here. Collective; blocking. */
ZINC_MUST_CHECK zinc_status zn_comm_barrier(zn_comm *comm, const char *tag);

/** Gather n_bytes of every rank into out[n_ranks * n_bytes] on every rank. Collective; blocking;
 *  for small host data. Not counted as gradient or parameter traffic. */
ZINC_MUST_CHECK zinc_status zn_comm_exchange(zn_comm *comm, const void *mine, size_t n_bytes,
                                             void *out, const char *tag);

/** Make all ranks agree on the outcome of a phase: every rank returns OK if all passed OK, else
 *  the status and message of the lowest failing rank (prefixed "rank N: " on the others).
 *  Collective; blocking. If the comm itself fails, a rank that failed keeps its own error. */
ZINC_MUST_CHECK zinc_status zn_comm_agree(zn_comm *comm, zinc_status status);

/** Tell all ranks that this one cannot go on; their pending and later waits return E_ABORTED with
 *  `reason`. Not collective; never blocks. */
void zn_comm_abort(zn_comm *comm, const char *reason);

/** Allocate one buffer that all ranks of the comm can read and write (not zeroed, 64-byte
 *  aligned). Collective. *out is the same memory on every rank; not charged to any account.
 *  Errors: E_UNSUPPORTED where ranks do not share memory: keep private copies then. */
ZINC_MUST_CHECK zinc_status zn_comm_alloc_shared(zn_comm *comm, size_t n_bytes, void *out);
/** Free it: every rank calls this once, when it has stopped using the memory, and the last one
 * frees it. Does not wait; also after an error. NULL is fine. */
void zn_comm_free_shared(zn_comm *comm, void *ptr);

/* What a rank has moved, counted the way the ZeRO paper counts (sec. 7): a collective over a full
 * buffer of n elements sends (P-1)/P * n per rank. What groups split from the comm moved is in it,
 * but for in_flight. */
typedef struct zn_comm_stats {
    int64_t n_all_gather, n_reduce_scatter, n_broadcast;
    int64_t all_gather_elems, reduce_scatter_elems;
    int64_t all_gather_bytes, reduce_scatter_bytes;
    int64_t in_flight;      /* of these three kinds: submitted, not finished */
    int64_t in_flight_peak; /* most at once */
} zn_comm_stats;

void zn_comm_get_stats(zn_comm *comm, zn_comm_stats *out);
void zn_comm_reset_stats(zn_comm *comm);

#endif
