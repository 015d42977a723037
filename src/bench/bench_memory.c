/* SPDX-License-Identifier: Apache-2.0 */
/* Memory traffic as programs see it: bytes that they read and bytes that they write. A store that
 * misses the caches makes the memory read the line too, which is not counted; stores past the
 * caches avoid it. */
#include <stdio.h>
#include <string.h>

#include "base/copy.h"
#include "bench/bench_internal.h"
#include "kernels/peak.h"

/* One stream of loads waits for memory: several are in flight here, each asked for 1 KiB ahead. */
#define N_STREAMS 8
#define LINE 16 /* floats */
#define PREFETCH_ELEMS 256

typedef struct range {
    int64_t from, to;
} range;

static range part(int64_t n, int n_parts, int i)
{
    const int64_t step = (n / n_parts + 15) / 16 * 16;
    const int64_t from = step * i < n ? step * i : n;
    return (range){from, from + step < n ? from + step : n};
}

static uint64_t read_line(const float *x)
{
    uint64_t word[LINE / 2], sum = 0;
    memcpy(word, x, sizeof word);
    for (int k = 0; k < LINE / 2; k++) /* integers, so that the compiler may reorder them */
        sum += word[k];
    return sum;
}

/* Whole lines; the streams are equal parts of the range. */
static uint64_t read_part(const float *x, range r)
{
    const int64_t n = (r.to - r.from) / LINE / N_STREAMS * LINE;
    uint64_t sum[N_STREAMS] = {0};
    for (int64_t i = 0; i < n; i += LINE)
        for (int s = 0; s < N_STREAMS; s++) {
            const float *p = x + r.from + s * n + i;
            __builtin_prefetch(p + PREFETCH_ELEMS);
            sum[s] += read_line(p);
        }
    for (int s = 1; s < N_STREAMS; s++)
        sum[0] += sum[s];
    return sum[0];
}

static void update_part(float *x, range r, float factor)
{
    const int64_t n = (r.to - r.from) / LINE / N_STREAMS * LINE;
    for (int64_t i = 0; i < n; i += LINE)
        for (int s = 0; s < N_STREAMS; s++) {
            float *p = x + r.from + s * n + i;
            __builtin_prefetch(p + PREFETCH_ELEMS, 1);
            for (int k = 0; k < LINE; k++)
                p[k] *= factor;
        }
}

/* As an optimizer step: the first array is read, the others are updated, all side by side. Two
 * streams of each. */
static uint64_t step_part(float *x, int n_arrays, range r, float factor)
{
    const int64_t n = (r.to - r.from) / LINE / 2 * LINE;
    uint64_t sum = 0;
    for (int64_t i = 0; i < 2 * n; i += LINE) {
        float *const line = x + r.from + (i / LINE % 2) * n + i / (2 * LINE) * LINE;
        __builtin_prefetch(line + PREFETCH_ELEMS);
        sum += read_line(line);
        for (int a = 1; a < n_arrays; a++) {
            float *p = line + a * ZN_BENCH_STREAM_ELEMS;
            __builtin_prefetch(p + PREFETCH_ELEMS, 1);
            for (int k = 0; k < LINE; k++)
                p[k] *= factor;
        }
    }
    return sum;
}

/* Elements that all threads divide among them, and bytes moved for each. */
typedef struct loop_shape {
    int64_t n_elems;
    double n_bytes;
} loop_shape;

static loop_shape shape_of(zn_bench_loop loop)
{
    static const loop_shape shapes[ZN_BENCH_N_LOOPS] = {
        [ZN_BENCH_LOOP_READ] = {ZN_BENCH_ARRAYS * ZN_BENCH_STREAM_ELEMS, 4},
        [ZN_BENCH_LOOP_WRITE] = {ZN_BENCH_ARRAYS * ZN_BENCH_STREAM_ELEMS, 4},
        [ZN_BENCH_LOOP_COPY] = {ZN_BENCH_ARRAYS / 2 * ZN_BENCH_STREAM_ELEMS, 8},
        [ZN_BENCH_LOOP_UPDATE] = {ZN_BENCH_ARRAYS * ZN_BENCH_STREAM_ELEMS, 8},
        [ZN_BENCH_LOOP_STEP_3] = {ZN_BENCH_STREAM_ELEMS, 20},
        [ZN_BENCH_LOOP_STEP_4] = {ZN_BENCH_STREAM_ELEMS, 28},
    };
    return shapes[loop];
}

/* The kernels of the table work on one thread each here, whatever stream they are given. */
static zinc_status loop_part(const zn_bench *b, zn_stream *one, zn_bench_loop loop, float *x,
                             range r)
{
    volatile uint64_t sink;
    volatile float one_f32 = 1.0f;
    const int64_t n = r.to - r.from;
    switch (loop) {
    case ZN_BENCH_LOOP_READ:
        sink = read_part(x, r);
        (void)sink;
        return ZINC_OK;
    case ZN_BENCH_LOOP_WRITE:
        return b->k->zero(one, x + r.from, n * (int64_t)sizeof *x);
    case ZN_BENCH_LOOP_COPY:
        zn_copy(x + r.from, x + shape_of(loop).n_elems + r.from, (size_t)n * sizeof *x);
        return ZINC_OK;
    case ZN_BENCH_LOOP_STEP_3:
    case ZN_BENCH_LOOP_STEP_4:
        sink = step_part(x, loop == ZN_BENCH_LOOP_STEP_3 ? 3 : 4, r, one_f32);
        (void)sink;
        return ZINC_OK;
    default:
        update_part(x, r, one_f32);
        return ZINC_OK;
    }
}

/* Every thread times its own part, so that none pays for another one's waiting on a busy machine;
 * the rates add up. */
static zinc_status run_loop(const zn_bench *b, zn_stream *one, zn_bench_loop loop, float *x,
                            int n_threads, double *rate)
{
    const loop_shape shape = shape_of(loop);
    zinc_status worst = ZINC_OK;
    double sum = 0;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(n_threads) reduction(+ : sum)                \
    reduction(max : worst) if (n_threads > 1)
#endif
    for (int i = 0; i < n_threads; i++) {
        const range r = part(shape.n_elems, n_threads, i);
        zinc_status status = ZINC_OK;
        zn_bench_clock clock = zn_bench_start(b);
        clock.one_thread = true;
        while (status == ZINC_OK && zn_bench_again(&clock))
            status = loop_part(b, one, loop, x, r);
        sum += (double)(r.to - r.from) * shape.n_bytes / clock.best;
        worst = status > worst ? status : worst;
    }
    *rate = sum;
    return worst;
}

zinc_status zn_bench_stream(zn_bench *b, zn_bench_loop loop, int n_threads, double *out)
{
    zinc_status status;
    float *x = NULL;
    zn_stream *one = NULL;
    const size_t n_bytes = (size_t)(ZN_BENCH_ARRAYS * ZN_BENCH_STREAM_ELEMS) * sizeof *x;
    ZN_TRY_GOTO(zn_stream_create_inline(b->dev, "one thread", &one));
    ZN_TRY_GOTO(zn_device_alloc(b->dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, n_bytes, "stream", &x));
    memset(x, 0, n_bytes);
    ZN_TRY_GOTO(run_loop(b, one, loop, x, n_threads, out));
fail:
    zn_device_free(b->dev, x);
    zn_stream_destroy(one);
    return status;
}

zinc_status zn_bench_memory(zn_bench *b)
{
    static const char *const names[ZN_BENCH_N_LOOPS] = {
        "read", "write", "copy", "update", "read_1_update_2", "read_1_update_3"};
    static const zn_bench_limit_kind kinds[ZN_BENCH_N_LOOPS] = {ZN_BENCH_READ,   ZN_BENCH_NO_LIMIT,
                                                                ZN_BENCH_COPY,   ZN_BENCH_UPDATE,
                                                                ZN_BENCH_STEP_3, ZN_BENCH_STEP_4};
    for (int loop = 0; loop < ZN_BENCH_N_LOOPS; loop++)
        for (int n = 1; n <= b->p->n_threads; n += b->p->n_threads > 1 ? b->p->n_threads - 1 : 1) {
            char name[64];
            double rate = 0;
            snprintf(name, sizeof name, "memory.%s.%d_thread%s", names[loop], n, n > 1 ? "s" : "");
            if (!zn_bench_wants(b, name))
                continue;
            ZN_TRY(zn_bench_stream(b, (zn_bench_loop)loop, n, &rate));
            if (n == b->p->n_threads)
                b->limits[kinds[loop]] = rate; /* so that the run has one number for it */
            ZN_TRY(zn_bench_rate(b, name, "GB/s", rate, 1, ZN_BENCH_NO_LIMIT));
        }
    return ZINC_OK;
}

zinc_status zn_bench_flops(zn_bench *b)
{
    for (int n = 1; n <= b->p->n_threads; n += b->p->n_threads > 1 ? b->p->n_threads - 1 : 1) {
        char name[64];
        snprintf(name, sizeof name, "flops.fma_f32.%d_thread%s", n, n > 1 ? "s" : "");
        if (!zn_bench_wants(b, name))
            continue;
        const double peak = zn_peak_flops(n, b->p->seconds);
        if (n == b->p->n_threads)
            b->limits[ZN_BENCH_FMA] = peak;
        ZN_TRY(zn_bench_rate(b, name, "GFLOP/s", peak, 1, ZN_BENCH_NO_LIMIT));
    }
    return ZINC_OK;
}
