/* SPDX-License-Identifier: Apache-2.0 */
/* early.c — the update of what is on the host, unit by unit, while backward still runs.
 *
 *   backward:  unit u+1        unit u          unit u-1 …
 *   link down:          grads u+1       grads u
 *   host:                       update u+1      update u
 *   link up:                            params u+1      params u
 *
 * A unit's gradients are final once its last micro-batch has been reduced, and its parameters are
 * read no more by then (a tied embedding is ready last of all). What its update needs besides is
 * known before backward only where no norm has to be: no clipping, gradients that are applied
 * unchecked (bf16), no sums over whole parameters. Elsewhere zn_zero_step updates everything when
 * backward is over, and each window's update runs beside its neighbours' copies. */
#include <string.h>

#include "zero/zero_internal.h"

bool zn_zero_can_update_early(const zn_zero *zero, const zn_zero_step_args *args)
{
    return zero->p.optim && zero->p.optim->n_sums == 0 && zero->offloaded_elems > 0 &&
           zero->p.optimizer_tier == ZN_ZERO_ON_HOST && zero->window_bytes == 0 &&
           zero->n_replicas == 1 && args->unchecked && !(args->clip > 0);
}

/* The caller may prepare its groups for the step again while updates read them. */
static zinc_status copy_groups(zn_zero *zero, const zn_optim_hyper *groups)
{
    int n = 1;
    for (int i = 0; i < zero->list.n_specs; i++)
        if (zero->group_of_param[i] >= n)
            n = zero->group_of_param[i] + 1;
    if (!zero->early_groups)
        ZN_TRY(zn_alloc_array(&zero->early_groups, (size_t)n, sizeof *groups, "step settings"));
    memcpy(zero->early_groups, groups, (size_t)n * sizeof *groups);
    return ZINC_OK;
}

zinc_status zn_zero_announce_step(zn_zero *zero, const zn_zero_step_args *args)
{
    zero->early = zn_zero_can_update_early(zero, args);
    if (!zero->early)
        return ZINC_OK;
    if (!zero->updates)
        ZN_TRY(zn_stream_create(zero->p.dev, "updates on the host", &zero->updates));
    zero->early_t = args->t;
    ZN_TRY(copy_groups(zero, args->groups));
    ZN_TRY(zero->p.kernels->fill(zn_device_compute(zero->p.dev), zero->grad_scale,
                                 (float)(1 / args->loss_scale), 1));
    return zn_stream_sync(zn_device_compute(zero->p.dev), -1);
}

typedef struct update_args {
    zn_zero *zero;
    const zn_zero_region *region;
} update_args;

static zinc_status update_work(void *arg)
{
    const update_args *a = arg;
    zn_zero *zero = a->zero;
    const zn_optim_step step = {.stream = zero->updates,
                                .kernels = zero->p.kernels,
                                .groups = zero->early_groups,
                                .t = zero->early_t,
                                .grad_scale = zero->grad_scale};
    zn_zero_walk walk = {.only = a->region};
    return zn_zero_update(zero, &step, &walk, &zero->early_stats);
}

zinc_status zn_zero_update_early(zn_zero *zero, zn_zero_region *region)
{
    const update_args args = {zero, region};
    if (!zero->early || !zero->boundary || !region->offloaded)
        return ZINC_OK;
    region->updated = true;
    ZN_TRY(zn_stream_wait_event(zero->updates, zero->last_reduce));
    return zn_stream_submit(zero->updates, update_work, &args, sizeof args, NULL);
}

zinc_status zn_zero_early_wait(zn_zero *zero)
{
    if (!zero->updates)
        return ZINC_OK;
    ZN_TRY(zn_stream_sync(zero->updates, -1));
    zero->stats.n_optimizer_calls += zero->early_stats.n_optimizer_calls;
    zero->stats.n_early_updates += zero->early_stats.n_optimizer_calls;
    zero->stats.to_device_bytes += zero->early_stats.to_device_bytes;
    zero->early_stats = (zn_zero_stats){0};
    return ZINC_OK;
}

void zn_zero_early_end(zn_zero *zero)
{
    zero->early = false;
    for (int r = 0; r < zero->n_regions; r++)
        zero->regions[r].updated = false;
}
