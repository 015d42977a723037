/* SPDX-License-Identifier: Apache-2.0 */
/* this_machine.c — the preset "cpu": rates of the machine that plans, measured in some 50 ms. */
#include <string.h>
#include <time.h>

#include "base/sys.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

#define SECONDS 10e-3 /* of each measurement; the best run counts */
/* A product as blocks of small models have them. */
#define ROWS ((int64_t)256)
#define SIDE ((int64_t)768)
#define UPDATED ((int64_t)8 << 20) /* elements that are read and written in place */
/* What is no matrix product (norms, attention's softmax, activations, their gradients, changes of
 * type) costs as much as passing over each byte that backward needs so often. Fitted to Llama and
 * GPT-2 shapes of 15 to 55 million parameters. */
#define PASSES 40

typedef struct sample {
    zn_device *dev;
    const zn_kernels *kernels;
    float *a, *b, *c, *scratch;
} sample;

/* One thread's own time leaves out what others had of its core. */
static double spent(const sample *s)
{
    struct timespec t;
    if (zn_device_n_threads(s->dev) > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        return zn_sys_now();
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static zinc_status multiply(const sample *s)
{
    return s->kernels->gemm(zn_device_compute(s->dev), false, true, ROWS, SIDE, SIDE, 1, s->a, SIDE,
                            s->b, SIDE, 0, s->c, SIDE);
}

static zinc_status multiply_bf16(const sample *s)
{
    const zn_operand a = {.p = s->a, .dtype = ZN_DTYPE_F32, .ld = SIDE};
    const zn_operand b = {.p = s->b, .dtype = ZN_DTYPE_BF16, .trans = true, .ld = SIDE};
    const zn_result c = {.p = s->c, .ld = SIDE};
    return s->kernels->gemm_bf16(zn_device_compute(s->dev), ROWS, SIDE, SIDE, &a, &b, &c,
                                 s->scratch);
}

static zinc_status pass_over(const sample *s)
{
    return s->kernels->scale(zn_device_compute(s->dev), s->a, 0.5f, UPDATED);
}

/* The best of the runs that some milliseconds allow, as `amount` a second. */
static zinc_status rate_of(const sample *s, zinc_status (*run)(const sample *), double amount,
                           double *out)
{
    const double end = zn_sys_now() + SECONDS;
    double best = 0;
    for (int i = 0; i < 3 || zn_sys_now() < end; i++) {
        const double start = spent(s);
        ZN_TRY(run(s));
        ZN_TRY(zn_stream_sync(zn_device_compute(s->dev), -1));
        const double rate = amount / (spent(s) - start + 1e-9);
        best = rate > best ? rate : best;
    }
    *out = best;
    return ZINC_OK;
}

static zinc_status zeros(const sample *s, int64_t n, float **out)
{
    ZN_TRY(zn_device_alloc(s->dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, (size_t)n * sizeof(float),
                           "a sample", out));
    memset(*out, 0, (size_t)n * sizeof(float));
    return ZINC_OK;
}

static zinc_status measure(sample *s, int n_threads, zn_plan_hardware *hw)
{
    const zn_device_params params = {.n_threads = n_threads};
    const double flops = 2.0 * ROWS * SIDE * SIDE;
    ZN_TRY(zn_device_open("cpu", &params, &s->dev));
    s->kernels = zn_kernels_get(s->dev);
    ZN_TRY(zeros(s, UPDATED, &s->a));
    ZN_TRY(zeros(s, SIDE * SIDE, &s->b));
    ZN_TRY(zeros(s, ROWS * SIDE, &s->c));
    ZN_TRY(zeros(s, zn_gemm_bf16_scratch(SIDE, n_threads), &s->scratch));
    ZN_TRY(rate_of(s, multiply, flops, &hw->fp32_flops));
    hw->flops = hw->fp32_flops;
    if (zn_kernels_bf16_pays(s->kernels))
        ZN_TRY(rate_of(s, multiply_bf16, flops, &hw->flops));
    return rate_of(s, pass_over, 2.0 * UPDATED * sizeof(float), &hw->host_rate);
}

zinc_status zn_plan_this_machine(int n_threads, zn_plan_hardware *hw)
{
    const double memory = (double)zn_sys_memory_bytes();
    const int wanted = hw->gpus * n_threads, cores = zn_sys_cores();
    sample s = {0};
    const zinc_status status = measure(&s, wanted < cores ? wanted : cores, hw);
    if (s.dev) {
        zn_device_free(s.dev, s.a);
        zn_device_free(s.dev, s.b);
        zn_device_free(s.dev, s.c);
        zn_device_free(s.dev, s.scratch);
        zn_device_close(s.dev);
    }
    hw->flops /= hw->gpus;
    hw->fp32_flops /= hw->gpus;
    hw->compute_share = 1;
    hw->device_bytes = memory / hw->gpus;
    hw->host_bytes = memory;
    hw->device_rate = hw->peer = hw->link = hw->host_rate / hw->gpus;
    hw->pass_rate = hw->device_rate / PASSES;
    return status;
}
