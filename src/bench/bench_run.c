/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/sys.h"
#include "bench/bench_internal.h"
#include "kernels/peak.h"

#define PEAK_SECONDS 0.02

typedef struct group {
    const char *name;
    zinc_status (*run)(zn_bench *b);
} group;

static const group groups[] = {
    {"memory", zn_bench_memory},       {"flops", zn_bench_flops},         {"gemm", zn_bench_gemm},
    {"gemm_bf16", zn_bench_gemm_bf16}, {"attention", zn_bench_attention}, {"norm", zn_bench_norm},
    {"loss", zn_bench_loss},           {"optimizer", zn_bench_optimizer}, {"comm", zn_bench_comm},
    {"disk", zn_bench_disk},           {"startup", zn_bench_startup},
};
#define N_GROUPS ((int)(sizeof groups / sizeof groups[0]))

const char *zn_bench_group_names(void)
{
    return "memory, flops, gemm, gemm_bf16, attention, norm, loss, optimizer, comm, disk, startup";
}

/* ---- the clock ---- */

zn_bench_clock zn_bench_start(const zn_bench *b)
{
    return (zn_bench_clock){.seconds = b->p->seconds,
                            .one_thread = b->p->n_threads == 1,
                            .n_runs = -2,
                            .best = (double)INFINITY};
}

/* Of work on one thread the thread's own time counts, which is the clock's but for the time that
 * others had the core. */
static double spent(const zn_bench_clock *clock)
{
    struct timespec t;
    if (!clock->one_thread || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        return zn_sys_now();
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n_runs counts finished calls that are measured: -1 while the warm-up runs. */
bool zn_bench_again(zn_bench_clock *clock)
{
    const double now = spent(clock);
    clock->n_runs++;
    if (clock->n_runs == 0)
        clock->began = zn_sys_now();
    if (clock->n_runs > 0 && now - clock->last < clock->best)
        clock->best = now - clock->last;
    if (clock->n_runs >= ZN_BENCH_MIN_RUNS && zn_sys_now() - clock->began >= clock->seconds)
        return false;
    clock->last = spent(clock);
    return true;
}

/* ---- buffers ---- */

zinc_status zn_bench_numbers(zn_bench *b, int64_t n, float size, float **out)
{
    float *x = NULL;
    ZN_ASSERT(b->n_buffers < ZN_BENCH_MAX_BUFFERS);
    ZN_TRY(zn_device_alloc(b->dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, (size_t)n * sizeof *x,
                           "numbers of a benchmark", &x));
    b->buffers[b->n_buffers++] = x;
    for (int64_t i = 0; i < n; i++)
        x[i] = size * (float)(zn_hash_unit(zn_hash_mix((uint64_t)i & 0xFFFF)) - 0.5);
    *out = x;
    return ZINC_OK;
}

void zn_bench_free_buffers(zn_bench *b)
{
    while (b->n_buffers > 0)
        zn_device_free(b->dev, b->buffers[--b->n_buffers]);
}

/* ---- limits ---- */

static zn_bench_loop loop_of(zn_bench_limit_kind kind)
{
    static const zn_bench_loop loops[ZN_BENCH_N_LIMITS] = {
        [ZN_BENCH_COPY] = ZN_BENCH_LOOP_COPY,     [ZN_BENCH_READ] = ZN_BENCH_LOOP_READ,
        [ZN_BENCH_UPDATE] = ZN_BENCH_LOOP_UPDATE, [ZN_BENCH_STEP_3] = ZN_BENCH_LOOP_STEP_3,
        [ZN_BENCH_STEP_4] = ZN_BENCH_LOOP_STEP_4,
    };
    return loops[kind];
}

zinc_status zn_bench_limit(zn_bench *b, zn_bench_limit_kind kind, double *out)
{
    double *limit = &b->limits[kind];
    const int n = b->p->n_threads;
    if (*limit == 0 && kind == ZN_BENCH_FMA)
        *limit = zn_peak_flops(n, PEAK_SECONDS);
    else if (*limit == 0 && kind == ZN_BENCH_BF16)
        *limit = zn_peak_bf16_flops(n, PEAK_SECONDS);
    else if (*limit == 0)
        ZN_TRY(zn_bench_stream(b, loop_of(kind), n, limit));
    *out = *limit;
    return ZINC_OK;
}

/* ---- rows ---- */

/* A wanted "gemm.gpt2" is in "gemm.gpt2.qkv.forward", not in "gemm.gpt20". */
static bool begins(const char *name, const char *with)
{
    const size_t n = strlen(with);
    return strncmp(name, with, n) == 0 && (name[n] == '.' || name[n] == '\0');
}

bool zn_bench_wants(const zn_bench *b, const char *name)
{
    for (int i = 0; i < b->p->n_names; i++)
        if (begins(name, b->p->names[i]))
            return true;
    return b->p->n_names == 0;
}

static bool wants_group(const zn_bench_params *p, const char *name)
{
    for (int i = 0; i < p->n_names; i++)
        if (begins(p->names[i], name))
            return true;
    return p->n_names == 0;
}

zinc_status zn_bench_emit(const zn_bench *b, const zn_bench_row *row)
{
    return b->p->row(b->p->context, row);
}

zinc_status zn_bench_rate(zn_bench *b, const char *name, const char *unit, double work,
                          double seconds, zn_bench_limit_kind kind)
{
    double limit = (double)NAN;
    if (kind != ZN_BENCH_NO_LIMIT)
        ZN_TRY(zn_bench_limit(b, kind, &limit));
    const double rate = work / seconds;
    const zn_bench_row row = {.name = name,
                              .unit = unit,
                              .value = rate * 1e-9,
                              .limit = limit * 1e-9,
                              .share = rate / limit};
    return zn_bench_emit(b, &row);
}

static zinc_status check_names(const zn_bench_params *p)
{
    for (int i = 0; i < p->n_names; i++) {
        bool known = false;
        for (int g = 0; g < N_GROUPS; g++)
            known = known || begins(p->names[i], groups[g].name);
        if (!known)
            ZN_FAIL(ZINC_E_INVALID,
                    "nothing is called \"%s\"; a name is one of %s, or begins a row's name, as "
                    "gemm.gpt2 does",
                    p->names[i], zn_bench_group_names());
    }
    return ZINC_OK;
}

zinc_status zn_bench_run(const zn_bench_params *params)
{
    zinc_status status;
    zn_bench b = {.p = params};
    const zn_device_params device = {.n_threads = params->n_threads};
    ZN_TRY(check_names(params));
    ZN_TRY_GOTO(zn_device_open("cpu", &device, &b.dev));
    b.s = zn_device_compute(b.dev);
    b.k = zn_kernels_get(b.dev);
    for (int g = 0; g < N_GROUPS; g++) {
        if (!wants_group(params, groups[g].name) || (params->mpi && groups[g].run != zn_bench_comm))
            continue;
        ZN_TRY_GOTO(groups[g].run(&b));
        zn_bench_free_buffers(&b);
    }
fail:
    zn_bench_free_buffers(&b);
    zn_device_close(b.dev);
    return status;
}
