/* SPDX-License-Identifier: Apache-2.0 */
/* zero_plan.c — a rank's bytes and traffic from the layout and a walk over the units that moves
 * nothing. */
#include "zero/zero_plan.h"

#include <string.h>

#include "zero/zero_dry.h"

#define WALKED 3 /* micro-batches until nothing new is asked for */

/* ---- sums ---- */

/* Elements over all regions; what store.c and offload.c sum up when they allocate. */
typedef struct dry_sums {
    int64_t whole, shard;                /* parameters on the device: in full, slices */
    int64_t host_params, disk_params;    /* positions of those off it */
    int64_t secondary;                   /* slices of the second copy */
    int64_t trainable, trainable_shard;  /* padded elements, and a rank's slices */
    int64_t tied, tied_shard;            /* of them what is reduced inside its full gradient */
    int64_t resident, resident_shard;    /* of them what is not offloaded, */
    int64_t offloaded, offloaded_padded; /* and what is: positions, and the regions they are of */
    int64_t sent_back;                   /* offloaded, and its parameters are on the device */
    int64_t persistent;                  /* trainable ones that every rank keeps in full */
    int64_t device_masters;              /* bytes */
    int64_t bucket;                      /* most elements of a reduction */
} dry_sums;

static void sum_trainable(const zn_zero_dry *run, const zn_zero_region *region, dry_sums *sums)
{
    const int64_t shard = region->n_chunks * region->slice_elems;
    const int64_t chunks = zn_zero_bucket_chunks(region, run->zero->p.reduce_bucket);
    if (chunks * region->chunk_elems > sums->bucket)
        sums->bucket = chunks * region->chunk_elems;
    sums->trainable += region->padded_elems;
    sums->trainable_shard += shard;
    if (region->persistent)
        sums->persistent += region->padded_elems;
    if (!region->offloaded) {
        const int64_t held = run->zero->p.stage == 0 ? region->padded_elems : shard;
        sums->device_masters += held * (region->master_is_param ? 0 : region->split ? 2 : 4);
        if (zn_zero_grad_stays(run->zero, region)) {
            sums->tied += region->padded_elems;
            sums->tied_shard += shard;
        }
        sums->resident += region->padded_elems;
        sums->resident_shard += shard;
        return;
    }
    sums->offloaded += region->n_chunks * region->slab_stride;
    sums->offloaded_padded += region->padded_elems;
    sums->sent_back += zn_zero_param_is_off(region) ? 0 : shard;
}

static dry_sums sum_regions(const zn_zero_dry *run)
{
    const zn_zero *zero = run->zero;
    dry_sums sums = {0};
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        const int64_t positions = region->n_chunks * region->slab_stride;
        if (run->n_secondary > 1 && !zn_zero_dry_whole(run, region))
            sums.secondary += region->padded_elems / run->n_secondary;
        if (region->param_on_host)
            sums.host_params += positions;
        else if (region->param_on_disk)
            sums.disk_params += positions;
        else if (zn_zero_dry_whole(run, region) && !run->shared)
            sums.whole += region->padded_elems;
        else
            sums.shard += region->n_chunks * region->slice_elems;
        if (region->trainable)
            sum_trainable(run, region, &sums);
    }
    return sums;
}

static int64_t n_states(const zn_zero_dry *run)
{
    return run->zero->p.optim ? run->zero->p.optim->n_states : 0;
}

static void fill_states(const zn_zero_dry *run, const dry_sums *sums, zn_zero_plan *out)
{
    const zn_zero_params *p = &run->zero->p;
    const zn_zero_tier optimizer = p->optimizer_tier;
    const int64_t param_bytes = (int64_t)zn_dtype_size(p->param_dtype);
    const int64_t accum_bytes = (int64_t)zn_dtype_size(p->grad_accum_dtype);
    const int64_t held = p->stage == 0 ? sums->resident : sums->resident_shard;
    out->parameters[ZN_ZERO_ON_DEVICE] =
        (sums->whole + sums->shard + sums->secondary) * param_bytes;
    out->parameters[ZN_ZERO_ON_HOST] = sums->host_params * param_bytes;
    out->parameters[ZN_ZERO_ON_DISK] = sums->disk_params * param_bytes;
    out->gradients[ZN_ZERO_ON_DEVICE] =
        (run->full_grads ? sums->resident : sums->resident_shard - sums->tied_shard + sums->tied) *
        accum_bytes;
    if (run->adds_in_place)
        out->gradients[ZN_ZERO_ON_DEVICE] += sums->offloaded_padded * 4;
    out->gradients[run->zero->grads_on_disk ? ZN_ZERO_ON_DISK : ZN_ZERO_ON_HOST] +=
        sums->offloaded * 4;
    out->masters[ZN_ZERO_ON_DEVICE] = sums->device_masters;
    out->masters[ZN_ZERO_ON_HOST] = run->zero->host_masters * 4 + run->zero->host_low_elems * 2;
    if (optimizer == ZN_ZERO_ON_DISK)
        out->masters[ZN_ZERO_ON_DISK] = sums->offloaded * 4;
    out->optimizer_state[ZN_ZERO_ON_DEVICE] = held * 4 * n_states(run);
    out->optimizer_state[optimizer] += sums->offloaded * 4 * n_states(run);
    out->padded_elems = run->zero->stats.padded_elems;
    out->trainable_padded = sums->trainable;
    out->largest_unit = run->zero->stats.largest_unit;
    out->shard_elems = p->stage == 0 ? sums->trainable : sums->trainable_shard;
    out->offloaded_elems = sums->offloaded;
}

/* Device buckets, and what offloading passes through. */
static void fill_buffers(const zn_zero_dry *run, const dry_sums *sums, zn_zero_plan *out)
{
    const zn_zero_params *p = &run->zero->p;
    out->unit_gradients = run->grads.n_bytes;
    out->live_units = run->gathers.n_bytes;
    out->live_peak = run->zero->stats.live_peak;
    if (p->wire_dtype != ZN_DTYPE_F32)
        out->buckets =
            sums->bucket * (int64_t)zn_dtype_size(p->wire_dtype) * (p->overlap_comm ? 2 : 1);
    const zn_zero *zero = run->zero;
    const int64_t param_bytes = (int64_t)zn_dtype_size(p->param_dtype);
    out->buckets += 2 * zero->landing_elems * 4;
    out->staging = zero->landing_elems * 4 * (zero->grads_on_disk ? 3 : 1) +
                   (zero->sends_back ? 2 * zero->window_elems * param_bytes : 0) +
                   zero->n_param_buffers * zero->param_buffer_elems * param_bytes +
                   ZN_ZERO_N_WINDOWS * zero->window_bytes;
}

/* Elements gathered from all ranks of the shard group in a step: with a second copy, each once. */
static int64_t from_primary(const zn_zero_dry *run)
{
    const int64_t micro = run->zero->p.gradient_accumulation_steps;
    return run->n_secondary > 1 ? run->primary_elems : run->gathered_elems * micro;
}

static void fill_traffic(const zn_zero_dry *run, const dry_sums *sums, zn_zero_plan *out)
{
    const zn_zero_params *p = &run->zero->p;
    const int64_t micro = p->gradient_accumulation_steps;
    const int64_t reductions = run->full_grads ? 1 : micro;
    const double sent = (double)(run->zero->n_ranks - 1) / run->zero->n_ranks;
    const double grad_bytes = (double)zn_dtype_size(p->grad_accum_dtype);
    const double param_bytes = (double)zn_dtype_size(p->param_dtype);
    const int64_t published = run->shared || p->stage == 0 ? 0
                              : p->stage < 3               ? sums->trainable
                                                           : sums->persistent;
    const int64_t from_second = run->gathered_elems * micro - from_primary(run);
    const int64_t gathered = from_primary(run) + published;
    out->reduce_elems = sums->trainable * reductions;
    out->reduce_bytes = sent * (double)out->reduce_elems * (double)zn_dtype_size(p->wire_dtype);
    out->gather_elems = gathered + (p->stage == 0 ? sums->trainable : 0);
    out->gather_bytes = sent * (p->stage == 0 ? (double)sums->trainable * grad_bytes
                                              : (double)gathered * param_bytes);
    if (run->n_secondary > 1)
        out->secondary_bytes =
            (double)from_second * param_bytes * (run->n_secondary - 1) / run->n_secondary;
    out->replica_bytes = 2.0 * (double)sums->trainable_shard * sizeof(float) *
                         (out->n_replicas - 1) / out->n_replicas;
    out->n_collectives = run->n_reduces * reductions + run->n_gathers * micro +
                         (p->stage == 0 ? run->n_reduces : published > 0) +
                         (out->n_replicas > 1 ? 2 * run->n_reduces : 0);
}

/* Copies between device, host and disk in one optimizer step. */
static void fill_transfers(const zn_zero_dry *run, const dry_sums *sums, zn_zero_plan *out)
{
    const zn_zero_params *p = &run->zero->p;
    const int64_t micro = p->gradient_accumulation_steps;
    const int64_t reductions = run->full_grads ? 1 : micro;
    const int64_t param_bytes = (int64_t)zn_dtype_size(p->param_dtype);
    const int64_t grad_bytes = sums->offloaded * 4;
    out->to_host_bytes = grad_bytes * reductions;
    out->to_device_bytes = sums->sent_back * param_bytes;
    if (p->optimizer_tier == ZN_ZERO_ON_DISK)
        out->disk_read_bytes = out->disk_written_bytes = sums->offloaded * (4 + 4 * n_states(run));
    if (run->zero->grads_on_disk) { /* read to be added to, and for the update */
        out->disk_read_bytes += grad_bytes * reductions;
        out->disk_written_bytes += grad_bytes * reductions;
    }
    if (p->param_tier == ZN_ZERO_ON_DEVICE)
        return;
    out->to_device_bytes += from_primary(run) / run->zero->n_ranks * param_bytes;
    out->disk_read_bytes += run->from_disk * (run->n_secondary > 1 ? 1 : micro) * param_bytes;
    out->disk_written_bytes += run->zero->trainable_params_end * param_bytes;
}

static zinc_status check(const zn_zero_plan_params *params)
{
    const zn_zero_params *p = params->zero;
    if (p->stage < 0 || p->stage > 3)
        ZN_FAIL(ZINC_E_INVALID, "zero_optimization.stage is %d; 0, 1, 2 and 3 exist", p->stage);
    if (params->n_ranks < 1 || params->n_ranks > ZN_ZERO_MAX_RANKS)
        ZN_FAIL(ZINC_E_INVALID, "%d ranks: from 1 to %d can be planned", params->n_ranks,
                ZN_ZERO_MAX_RANKS);
    if (p->optimizer_tier != ZN_ZERO_ON_DEVICE && p->stage == 0)
        ZN_FAIL(ZINC_E_INVALID, "zero_optimization.offload_optimizer needs stage 1, 2 or 3; the "
                                "stage is 0");
    if (p->param_tier != ZN_ZERO_ON_DEVICE && p->stage != 3)
        ZN_FAIL(ZINC_E_INVALID, "zero_optimization.offload_param needs stage 3; the stage is %d",
                p->stage);
    return ZINC_OK;
}

static zinc_status start(zn_zero_dry *run, const zn_param_list *list)
{
    zn_zero *zero = run->zero;
    const size_t n = (size_t)list->n_units * 4;
    zero->p = *run->params->zero;
    ZN_TRY(zn_zero_groups_check(&zero->p, run->params->n_ranks, &zero->n_ranks));
    zero->n_replicas = run->params->n_ranks / zero->n_ranks;
    zero->hooks.first_trainable_unit = zn_zero_first_trainable(list);
    ZN_TRY(zn_zero_join_units(zero, list));
    zero->training = true;
    if (zero->p.keep_for_backward)
        zero->p.max_live = zero->p.max_reuse_distance = INT64_MAX;
    run->shared = run->params->shared && zero->p.share_parameters && zero->p.stage > 0 &&
                  zero->n_ranks > 1 && zero->p.param_tier == ZN_ZERO_ON_DEVICE;
    run->n_secondary = run->shared || zero->p.stage < 3 ? 0 : zero->p.secondary_ranks;
    run->full_grads = zn_zero_keeps_full_grads(zero);
    run->adds_in_place = zn_zero_adds_in_place(zero);
    ZN_TRY(zn_zero_layout_regions(zero));
    zn_zero_place_tiers(zero);
    ZN_TRY(zn_alloc_array(&run->gather_item, n, sizeof(int), "planned units"));
    ZN_TRY(zn_alloc_array(&run->grad_item, n, sizeof(int), "planned units"));
    memset(run->gather_item, 0xff, n * sizeof(int)); /* -1: nothing held */
    memset(run->grad_item, 0xff, n * sizeof(int));
    return ZINC_OK;
}

/* ---- times ---- */

#define TIMED 3 /* micro-batches before the last; further ones take as long as the third */

/* A step in the steady state of steps. */
static zinc_status time_step(zn_zero_dry *run, double *seconds)
{
    zn_zero_clock *clock = run->clock;
    const int64_t before = run->zero->p.gradient_accumulation_steps - 1;
    const double began = clock->free[ZN_ZERO_COMPUTES];
    double more = 0;
    memset(clock->busy, 0, sizeof clock->busy);
    for (int64_t m = 0; m <= before && m <= TIMED; m++) {
        zn_zero_clock old = *clock;
        clock->accumulate = m > 0 && !run->full_grads;
        clock->boundary = m == before || m == TIMED;
        ZN_TRY(zn_zero_dry_micro_batch(run));
        if (m + 1 != TIMED || before <= TIMED)
            continue;
        const double times = (double)(before - TIMED);
        more = times * (clock->free[ZN_ZERO_COMPUTES] - old.free[ZN_ZERO_COMPUTES]);
        for (int i = 0; i < ZN_ZERO_N_STREAMS; i++)
            clock->busy[i] += times * (clock->busy[i] - old.busy[i]);
    }
    zn_zero_clock_step(clock);
    *seconds = clock->free[ZN_ZERO_COMPUTES] - began + more;
    return ZINC_OK;
}

static zinc_status fill_times(zn_zero_dry *run, zn_zero_plan *out)
{
    zinc_status status;
    zn_zero_clock clock = {.zero = run->zero, .costs = run->params->costs, .shared = run->shared};
    if (!clock.costs)
        return ZINC_OK;
    ZN_TRY(zn_alloc_array(&clock.arrived, (size_t)run->zero->n_regions, sizeof(double),
                          "planned gathers"));
    run->clock = &clock;
    for (int i = 0; i < 2; i++) /* the first begins with idle streams */
        ZN_TRY_GOTO(time_step(run, &out->step_s));
    memcpy(out->busy_s, clock.busy, sizeof out->busy_s);
    status = ZINC_OK;
fail:
    run->clock = NULL;
    zn_free(clock.arrived);
    return status;
}

static void finish(zn_zero_dry *run)
{
    if (run->zero) {
        zn_param_list_fini(&run->zero->list);
        zn_free(run->zero->members);
        zn_free(run->zero->regions);
        zn_free(run->zero->places);
        zn_free(run->zero->placed);
        zn_free(run->zero->units);
        zn_free(run->zero->trace);
    }
    zn_free(run->zero);
    zn_free(run->gathers.items);
    zn_free(run->grads.items);
    zn_free(run->gather_item);
    zn_free(run->grad_item);
}

zinc_status zn_zero_plan_make(const zn_zero_plan_params *params, const zn_param_list *list,
                              zn_zero_plan *out)
{
    zinc_status status;
    zn_zero_dry run = {.params = params};
    zn_zero_plan plan = {0};
    ZN_TRY(check(params));
    ZN_TRY_GOTO(zn_alloc(&run.zero, sizeof *run.zero, "a plan"));
    ZN_TRY_GOTO(start(&run, list));
    for (int i = 0; i < WALKED; i++)
        ZN_TRY_GOTO(zn_zero_dry_micro_batch(&run));
    const dry_sums sums = sum_regions(&run);
    fill_states(&run, &sums, &plan);
    fill_buffers(&run, &sums, &plan);
    plan.shard_ranks = run.zero->n_ranks;
    plan.n_replicas = run.zero->n_replicas;
    fill_traffic(&run, &sums, &plan);
    fill_transfers(&run, &sums, &plan);
    ZN_TRY_GOTO(fill_times(&run, &plan));
    *out = plan;
    status = ZINC_OK;
fail:
    finish(&run);
    return status;
}
