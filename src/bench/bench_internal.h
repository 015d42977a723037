/* SPDX-License-Identifier: Apache-2.0 */
/* bench_internal.h — what the groups share: buffers, clock, limits, reporting. Layer: bench. */
#ifndef ZN_BENCH_BENCH_INTERNAL_H
#define ZN_BENCH_BENCH_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/bench.h"
#include "kernels/kernels.h"

#define ZN_BENCH_MAX_BUFFERS 16
#define ZN_BENCH_MIN_RUNS 5

/* f32 elements of one array of an optimizer step. What memory gives is measured on as much as the
 * four of AdamW are, 512 MiB, so that a large cache helps neither more than the other. */
#define ZN_BENCH_STREAM_ELEMS ((int64_t)32 << 20)
#define ZN_BENCH_ARRAYS 4

typedef enum zn_bench_limit_kind {
    ZN_BENCH_NO_LIMIT,
    ZN_BENCH_FMA,    /* FLOP/s */
    ZN_BENCH_BF16,   /* FLOP/s of bf16 products */
    ZN_BENCH_COPY,   /* bytes/s, read and written ones added */
    ZN_BENCH_READ,   /* bytes/s */
    ZN_BENCH_UPDATE, /* bytes/s of reading and writing in place */
    ZN_BENCH_STEP_3, /* bytes/s of what a step over three arrays moves, without its arithmetic */
    ZN_BENCH_STEP_4, /* the same over four */
    ZN_BENCH_N_LIMITS,
} zn_bench_limit_kind;

typedef struct zn_bench {
    const zn_bench_params *p;
    zn_device *dev;
    zn_stream *s;
    const zn_kernels *k;
    void *buffers[ZN_BENCH_MAX_BUFFERS]; /* freed when a group ends */
    int n_buffers;
    double limits[ZN_BENCH_N_LIMITS]; /* 0: not measured yet */
} zn_bench;

/* while (zn_bench_again(&clock)) { what is measured } */
typedef struct zn_bench_clock {
    double seconds;  /* to go on for */
    bool one_thread; /* time is this thread's own */
    double began, last;
    int n_runs; /* -1: the first call, which warms up, comes next */
    double best;
} zn_bench_clock;

zn_bench_clock zn_bench_start(const zn_bench *b);
bool zn_bench_again(zn_bench_clock *clock);

/** Whether a row of this name was asked for. */
bool zn_bench_wants(const zn_bench *b, const char *name);

/** n floats around 0 of the given size, the same in every run; freed when the group ends. Errors:
 *  E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_bench_numbers(zn_bench *b, int64_t n, float size, float **out);
void zn_bench_free_buffers(zn_bench *b);

/** The limit with params.n_threads, measured at the first call. */
ZINC_MUST_CHECK zinc_status zn_bench_limit(zn_bench *b, zn_bench_limit_kind kind, double *out);

/** Report `work` (FLOPs or bytes) in `seconds` as a rate in 10^9 `unit`. */
ZINC_MUST_CHECK zinc_status zn_bench_rate(zn_bench *b, const char *name, const char *unit,
                                          double work, double seconds, zn_bench_limit_kind kind);
/** Report a number as it is; limit NaN: none. */
ZINC_MUST_CHECK zinc_status zn_bench_emit(const zn_bench *b, const zn_bench_row *row);

/* ---- groups ---- */
ZINC_MUST_CHECK zinc_status zn_bench_memory(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_flops(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_gemm(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_gemm_bf16(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_attention(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_norm(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_loss(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_optimizer(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_comm(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_disk(zn_bench *b);
ZINC_MUST_CHECK zinc_status zn_bench_offload(zn_bench *b); /* a row of the group disk */
ZINC_MUST_CHECK zinc_status zn_bench_startup(zn_bench *b);

/* ---- memory loops (bench_memory.c): all of a group of threads, each a part ---- */
typedef enum zn_bench_loop {
    ZN_BENCH_LOOP_READ,
    ZN_BENCH_LOOP_WRITE,  /* past the caches */
    ZN_BENCH_LOOP_COPY,   /* past the caches */
    ZN_BENCH_LOOP_UPDATE, /* each element read and written */
    ZN_BENCH_LOOP_STEP_3, /* one array read, two updated */
    ZN_BENCH_LOOP_STEP_4, /* one array read, three updated */
    ZN_BENCH_N_LOOPS,
} zn_bench_loop;
/** Bytes a second, read and written ones added, of one loop over ZN_BENCH_ARRAYS *
 *  ZN_BENCH_STREAM_ELEMS elements (STEP_3: over three quarters of them). */
ZINC_MUST_CHECK zinc_status zn_bench_stream(zn_bench *b, zn_bench_loop loop, int n_threads,
                                            double *out);

#endif
