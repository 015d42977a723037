/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer step whose masters and moments are on disk, beside what the disk gives when the same
 * bytes are only read and written: direct requests through io_uring where there is one, both ways
 * at once.
 *
 * Disks are unsteady, so a round times the two one after the other, and the round whose share is
 * the median counts. Either ends when everything is written. Values are random: a disk may be quick
 * with zeros. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/sys.h"
#include "bench/bench_internal.h"
#include "zero/zero.h"

#define N_ELEMS ((int64_t)32 << 20)
#define STATE_BYTES (N_ELEMS * 12) /* fp32 master and two moments; read and written in a step */
#define RAW_BYTES ((int64_t)16 << 20)
#define RAW_BUFFERS 4
#define ROUNDS 7

/* ---- the limit ---- */

typedef struct raw {
    zn_disk *disk;
    char *buffers[2][RAW_BUFFERS]; /* of reads, of writes */
} raw;

/* What was never written is no read of the disk. */
static zinc_status raw_prepare(raw *r)
{
    zn_event written = {0};
    for (int64_t at = 0; at < STATE_BYTES; at += RAW_BYTES) {
        const zn_disk_run run = {r->buffers[1][0], at, RAW_BYTES};
        ZN_TRY(zn_disk_submit(r->disk, true, &run, 1, written, &written));
    }
    return zn_event_wait(written, -1);
}

/* The lower half of the file is read while the upper half is written. */
static zinc_status raw_pass(raw *r)
{
    zn_event events[2][RAW_BUFFERS] = {{{0}}};
    for (int64_t at = 0, i = 0; at < STATE_BYTES; at += RAW_BYTES, i = (i + 1) % RAW_BUFFERS)
        for (int write = 0; write < 2; write++) {
            const zn_disk_run run = {r->buffers[write][i], at + write * STATE_BYTES, RAW_BYTES};
            ZN_TRY(zn_disk_submit(r->disk, write, &run, 1, events[write][i], &events[write][i]));
        }
    for (int i = 0; i < 2 * RAW_BUFFERS; i++)
        ZN_TRY(zn_event_wait(events[i / RAW_BUFFERS][i % RAW_BUFFERS], -1));
    return ZINC_OK;
}

static zinc_status open_raw(zn_bench *b, raw *r)
{
    zn_disk_params params = {.dir = b->p->dir,
                             .n_bytes = 2 * STATE_BYTES,
                             .what = "benchmark",
                             .io = zn_disk_io_defaults()};
    params.io.queue_depth = 32;
    for (int i = 0; i < 2 * RAW_BUFFERS; i++)
        ZN_TRY(zn_bench_numbers(b, RAW_BYTES / (int64_t)sizeof(float), 1,
                                (float **)(void *)&r->buffers[i / RAW_BUFFERS][i % RAW_BUFFERS]));
    return zn_disk_open(b->dev, &params, &r->disk);
}

/* ---- the step ---- */

typedef struct job {
    zn_comm *comm;
    zn_param_list list;
    zn_zero *zero;
    zn_optim_hyper hyper;
    int64_t t;
} job;

static float small_value(int64_t i)
{
    return 0.01f * (float)zn_hash_unit(zn_hash_mix((uint64_t)i));
}

static zinc_status small_values(void *context, int param, int64_t offset, int64_t n, float *out)
{
    (void)context, (void)param;
    for (int64_t i = 0; i < n; i++)
        out[i] = small_value(offset + i);
    return ZINC_OK;
}

static zinc_status open_job(zn_bench *b, job *j)
{
    char name[] = "w";
    const zn_comm_params comm = {.backend = "self", .dev = b->dev, .timeout_ms = 60000};
    const zn_param_spec spec = {.name = name, .n_dims = 1, .shape = {N_ELEMS}, .trainable = true};
    zn_zero_params params;
    zn_zero_params_defaults(&params);
    ZN_TRY(zn_comm_open(&comm, &j->comm));
    ZN_TRY(zn_param_list_add_unit(&j->list, "unit", NULL));
    ZN_TRY(zn_param_list_add(&j->list, &spec, NULL));
    ZN_TRY(zn_optim_find("adamw", &params.optim));
    params.optim->defaults(&j->hyper);
    params.dev = b->dev;
    params.comm = j->comm;
    params.kernels = b->k;
    params.stage = 1;
    params.param_dtype = params.wire_dtype = ZN_DTYPE_BF16;
    params.reduce_bucket = 1;
    params.optimizer_tier = ZN_ZERO_ON_DISK;
    params.disk_path = b->p->dir;
    ZN_TRY(zn_zero_create(&params, &j->list, NULL, &j->zero));
    return zn_zero_fill(j->zero, small_values, NULL);
}

static void close_job(job *j)
{
    zn_zero_destroy(j->zero);
    zn_param_list_fini(&j->list);
    zn_comm_close(j->comm);
}

/* Backward of one unit, and the step. */
static zinc_status step_pass(job *j, double *seconds)
{
    const zn_param_hooks *hooks = zn_zero_hooks(j->zero);
    const zn_zero_step_args args = {.groups = &j->hyper, .t = ++j->t, .loss_scale = 1};
    zn_zero_step_result result;
    ZN_TRY(zn_zero_begin(j->zero, true));
    float *grad = hooks->grad(hooks->ctx, 0);
    for (int64_t i = 0; grad && i < N_ELEMS; i++)
        grad[i] = small_value(i);
    ZN_TRY(hooks->grads_ready(hooks->ctx, 0));
    ZN_TRY(zn_zero_backward_end(j->zero));
    const double start = zn_sys_now();
    ZN_TRY(zn_zero_step(j->zero, &args, &result));
    ZN_TRY(zn_zero_disk_wait(j->zero));
    *seconds = zn_sys_now() - start;
    return ZINC_OK;
}

typedef struct bench_round {
    double limit, step; /* seconds */
} bench_round;

static int by_share(const void *a, const void *b)
{
    const bench_round *x = a, *y = b;
    const double left = x->limit * y->step, right = y->limit * x->step;
    return (left > right) - (left < right);
}

static zinc_status measure(zn_bench *b, raw *r, job *j)
{
    bench_round rounds[ROUNDS];
    ZN_TRY(open_raw(b, r));
    ZN_TRY(raw_prepare(r));
    ZN_TRY(open_job(b, j));
    for (int i = 0; i < ROUNDS; i++) {
        const double start = zn_sys_now();
        ZN_TRY(raw_pass(r));
        rounds[i].limit = zn_sys_now() - start;
        ZN_TRY(step_pass(j, &rounds[i].step));
    }
    qsort(rounds, ROUNDS, sizeof rounds[0], by_share);
    const bench_round *median = &rounds[ROUNDS / 2];
    const double bytes = 2.0 * (double)STATE_BYTES;
    const zn_bench_row row = {.name = "disk.optimizer_step",
                              .unit = "GB/s",
                              .value = bytes / median->step * 1e-9,
                              .limit = bytes / median->limit * 1e-9,
                              .share = median->limit / median->step};
    return zn_bench_emit(b, &row);
}

zinc_status zn_bench_offload(zn_bench *b)
{
    raw r = {0};
    job j = {0};
    if (!zn_bench_wants(b, "disk.optimizer_step"))
        return ZINC_OK;
    const zinc_status status = measure(b, &r, &j);
    zn_disk_close(r.disk);
    close_job(&j);
    return status;
}
