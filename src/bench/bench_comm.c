/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between ranks that are threads of this process, two or as many as --threads, or
 * between the processes of an MPI job.
 *
 * Rates are the memory traffic of all ranks together, compared with a copy by as many threads:
 *   all_gather      every rank reads the slices of the others and writes them; its own lies in its
 *                   place already, as parameters do
 *   reduce_scatter  every rank reads its slice of all ranks and writes the sum, in fp32 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/sys.h"
#include "bench/bench_internal.h"
#include "comm/comm.h"

#define N_RUNS 7
#define TIMEOUT_MS 60000

typedef struct collective {
    bool reduce;
    zn_dtype dtype;
    int64_t n_elems; /* of the full buffer */
} collective;

typedef struct rank_job {
    pthread_t thread;
    bool started;
    zn_thread_world *world;
    int rank, n_ranks;
    const collective *what;
    double best; /* seconds */
    zn_error error;
} rank_job;

/* One collective after another, all ranks starting together. */
static zinc_status measure(const collective *c, zn_comm *comm, void *full, void *shard,
                           double *best)
{
    const int64_t slice = c->n_elems / zn_comm_n_ranks(comm);
    const zn_slices layout = {
        .dtype = c->dtype, .slice_elems = slice, .n_blocks = 1, .shard_stride = slice};
    *best = (double)INFINITY;
    const size_t mine = (size_t)(slice * zn_comm_rank(comm)) * zn_dtype_size(c->dtype);
    for (int run = -1; run < N_RUNS; run++) {
        zn_event done;
        ZN_TRY(zn_comm_barrier(comm, "start"));
        const double start = zn_sys_now();
        if (c->reduce)
            ZN_TRY(zn_comm_reduce_scatter(comm, full, shard, &layout, ZN_DTYPE_F32, false,
                                          "benchmark", &done));
        else
            ZN_TRY(
                zn_comm_all_gather(comm, full, (char *)full + mine, &layout, "benchmark", &done));
        ZN_TRY(zn_event_wait(done, -1));
        const double took = zn_sys_now() - start;
        if (run >= 0 && took < *best)
            *best = took;
    }
    return ZINC_OK;
}

/* This rank's best run, with buffers that are new and touched. */
static zinc_status measure_new(const collective *c, zn_device *dev, zn_comm *comm, double *best)
{
    zinc_status status;
    char *full = NULL, *shard = NULL;
    const size_t n_bytes = (size_t)c->n_elems * zn_dtype_size(c->dtype);
    const size_t shard_bytes = (size_t)(c->n_elems / zn_comm_n_ranks(comm)) * sizeof(float);
    zn_stream *compute = zn_device_compute(dev);
    ZN_TRY_GOTO(
        zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, n_bytes, "full buffer", &full));
    ZN_TRY_GOTO(
        zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, shard_bytes, "shard", &shard));
    ZN_TRY_GOTO(zn_kernels_get(dev)->zero(compute, full, (int64_t)n_bytes));
    ZN_TRY_GOTO(zn_kernels_get(dev)->zero(compute, shard, (int64_t)shard_bytes));
    ZN_TRY_GOTO(measure(c, comm, full, shard, best));
fail:
    zn_device_free(dev, full);
    zn_device_free(dev, shard);
    return status;
}

static zinc_status run_rank(rank_job *job)
{
    zinc_status status;
    zn_device *dev = NULL;
    zn_comm *comm = NULL;
    const zn_device_params device = {.rank = job->rank, .n_threads = 1};
    ZN_TRY_GOTO(zn_device_open("cpu", &device, &dev));
    const zn_comm_params params = {.backend = "thread",
                                   .rank = job->rank,
                                   .n_ranks = job->n_ranks,
                                   .world = job->world,
                                   .dev = dev,
                                   .timeout_ms = TIMEOUT_MS};
    ZN_TRY_GOTO(zn_comm_open(&params, &comm));
    ZN_TRY_GOTO(measure_new(job->what, dev, comm, &job->best));
fail:
    if (status != ZINC_OK && comm)
        zn_comm_abort(comm, zinc_last_error());
    zn_comm_close(comm);
    zn_device_close(dev);
    return status;
}

static void *run_thread(void *arg)
{
    rank_job *job = arg;
    zn_error_save(&job->error, run_rank(job));
    return NULL;
}

/* Seconds of the slowest rank's best run. */
static zinc_status run_ranks(const collective *c, rank_job *jobs, int n_ranks, double *out)
{
    zinc_status status;
    zn_thread_world *world = NULL;
    ZN_TRY(zn_thread_world_create(n_ranks, &world));
    for (int r = 0; r < n_ranks; r++) {
        jobs[r] = (rank_job){.world = world, .rank = r, .n_ranks = n_ranks, .what = c};
        jobs[r].started = pthread_create(&jobs[r].thread, NULL, run_thread, &jobs[r]) == 0;
        if (!jobs[r].started)
            zn_error_save(&jobs[r].error, zn_error_set(ZINC_E_DEVICE, __FILE__, __LINE__, __func__,
                                                       "the system gave no thread for rank %d", r));
    }
    for (int r = 0; r < n_ranks; r++)
        if (jobs[r].started)
            pthread_join(jobs[r].thread, NULL);
    *out = 0;
    status = ZINC_OK;
    for (int r = 0; r < n_ranks; r++) {
        if (jobs[r].error.status != ZINC_OK && status == ZINC_OK)
            status = zn_error_restore(&jobs[r].error);
        *out = jobs[r].best > *out ? jobs[r].best : *out;
    }
    zn_thread_world_destroy(world);
    return status;
}

/* Bytes that all ranks read and write. */
static double traffic(const collective *c, int n_ranks)
{
    const double n = (double)c->n_elems, size = (double)zn_dtype_size(c->dtype);
    return c->reduce ? n * size * n_ranks + n * (double)sizeof(float)
                     : 2 * n * size * (n_ranks - 1);
}

#define N_ROWS 12

/* Row i; false: it was not asked for. */
static bool row_of(const zn_bench *b, int i, int n_ranks, const char *backend, collective *out,
                   char name[96])
{
    static const int64_t sizes[] = {256 << 10, 4 << 20, 32 << 20};
    *out = (collective){.reduce = i / 6 == 1,
                        .dtype = i / 3 % 2 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32,
                        .n_elems = sizes[i % 3] / n_ranks * n_ranks};
    snprintf(name, 96, "comm.%s.%s.%s.%lldKi_elements", backend,
             out->reduce ? "reduce_scatter" : "all_gather",
             out->dtype == ZN_DTYPE_F32 ? "f32" : "bf16", (long long)(sizes[i % 3] >> 10));
    return zn_bench_wants(b, name);
}

static zinc_status bench_threads(zn_bench *b)
{
    zinc_status status;
    const int n_ranks = b->p->n_threads > 1 ? b->p->n_threads : 2;
    rank_job *jobs = NULL;
    ZN_TRY(zn_alloc_array(&jobs, (size_t)n_ranks, sizeof *jobs, "ranks of a benchmark"));
    for (int i = 0; i < N_ROWS; i++) {
        char name[96];
        double seconds = 0;
        collective c;
        if (!row_of(b, i, n_ranks, "thread", &c, name))
            continue;
        ZN_TRY_GOTO(run_ranks(&c, jobs, n_ranks, &seconds));
        ZN_TRY_GOTO(zn_bench_rate(b, name, "GB/s", traffic(&c, n_ranks), seconds, ZN_BENCH_COPY));
    }
    status = ZINC_OK;
fail:
    zn_free(jobs);
    return status;
}

/* The numbers of all ranks, [n_ranks]. */
static zinc_status exchange(zn_comm *comm, double mine, double *all)
{
    return zn_comm_exchange(comm, &mine, sizeof mine, all, "benchmark");
}

/* Rows of one process of the job. The limit: what one thread of each copies, all at once. */
static zinc_status bench_processes(zn_bench *b, zn_comm *comm, double *all)
{
    const int n_ranks = zn_comm_n_ranks(comm);
    double mine = 0;
    ZN_TRY(zn_comm_agree(comm, zn_bench_stream(b, ZN_BENCH_LOOP_COPY, 1, &mine)));
    ZN_TRY(exchange(comm, mine, all));
    b->limits[ZN_BENCH_COPY] = 0;
    for (int r = 0; r < n_ranks; r++)
        b->limits[ZN_BENCH_COPY] += all[r];
    for (int i = 0; i < N_ROWS; i++) {
        char name[96];
        double seconds = 0;
        collective c;
        if (!row_of(b, i, n_ranks, "mpi", &c, name))
            continue;
        ZN_TRY(zn_comm_agree(comm, measure_new(&c, b->dev, comm, &mine)));
        ZN_TRY(exchange(comm, mine, all));
        for (int r = 0; r < n_ranks; r++)
            seconds = all[r] > seconds ? all[r] : seconds;
        if (zn_comm_rank(comm) == 0)
            ZN_TRY(zn_bench_rate(b, name, "GB/s", traffic(&c, n_ranks), seconds, ZN_BENCH_COPY));
    }
    return ZINC_OK;
}

static zinc_status bench_mpi(zn_bench *b)
{
    zinc_status status;
    zn_comm *comm = NULL;
    double *all = NULL;
    const zn_comm_params params = {.backend = "mpi", .dev = b->dev, .timeout_ms = TIMEOUT_MS};
    ZN_TRY(zn_comm_open(&params, &comm));
    ZN_TRY_GOTO(zn_alloc_array(&all, (size_t)zn_comm_n_ranks(comm), sizeof *all, "numbers"));
    ZN_TRY_GOTO(bench_processes(b, comm, all));
fail:
    if (status != ZINC_OK)
        zn_comm_abort(comm, zinc_last_error());
    zn_comm_close(comm);
    zn_free(all);
    return status;
}

zinc_status zn_bench_comm(zn_bench *b)
{
    return b->p->mpi ? bench_mpi(b) : bench_threads(b);
}
