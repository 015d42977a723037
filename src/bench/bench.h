/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h — how fast this machine and this build are, each number beside its limit.
 *
 * A limit is measured in the same run, just before the first row that needs it: peak fused
 * multiply-adds for arithmetic, memory traffic for what streams. Numbers of different runs on a
 * shared machine are not comparable, shares are. What works inside a cache can exceed the limit of
 * memory. Every number is the best of several runs.
 *
 *   bench_run.c     the groups, the clock, the limits
 *   bench_memory.c  memory and arithmetic limits as rows
 *   bench_model.c   matrix products, attention, norms and loss at a model's own shapes
 *   bench_update.c  optimizer steps
 *   bench_comm.c    collectives between ranks that are threads, or processes over MPI
 *   bench_system.c  files and start-up
 *   bench_offload.c an optimizer step from disk
 * Layer: bench (may use zero, comm, model, kernels, device, base). */
#ifndef ZN_BENCH_BENCH_H
#define ZN_BENCH_BENCH_H

#include <stdbool.h>

#include "base/status.h"

typedef struct zn_bench_row {
    const char *name;           /* group first: "gemm.gpt2.qkv.forward"; borrowed during the call */
    const char *unit;           /* "GB/s", "GFLOP/s", "ms" */
    double value, limit, share; /* share: of the limit, 1 is all; NaN limit: there is none */
} zn_bench_row;

typedef struct zn_bench_params {
    const char *const *names; /* groups, or beginnings of row names; none: all */
    int n_names;
    int n_threads;     /* of rows that say nothing else */
    double seconds;    /* at least this long each row, after one call to warm up */
    const char *model; /* "gpt2", "smollm2", or a folder with config.json; NULL: both shapes */
    const char *dir;   /* where the rows of `disk` write */
    bool mpi;          /* this is one process of an MPI job: the collectives among its processes
                          are measured and nothing else, and rank 0 hands over the rows */
    zinc_status (*row)(void *context, const zn_bench_row *row);
    void *context;
} zn_bench_params;

/** Measure and hand over rows. Errors: E_INVALID a name that no row can have; E_IO, E_NOMEM,
 *  E_UNSUPPORTED the model; the callback's. */
ZINC_MUST_CHECK zinc_status zn_bench_run(const zn_bench_params *params);

/** The names of all groups, "memory, flops, …". Static. */
const char *zn_bench_group_names(void);

#endif
