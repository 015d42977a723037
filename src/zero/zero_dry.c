/* SPDX-License-Identifier: Apache-2.0 */
/* zero_dry.c — gather.c and grads.c without the data: who holds what while units are used. */
#include "zero/zero_dry.h"

#include <limits.h>

static zinc_status pool_get(zn_zero_dry_pool *pool, int64_t n_bytes, int *out)
{
    int best = -1;
    for (int i = 0; i < pool->n_items; i++)
        if (!pool->items[i].used && pool->items[i].n_bytes >= n_bytes &&
            (best < 0 || pool->items[i].n_bytes < pool->items[best].n_bytes))
            best = i;
    if (best < 0) {
        ZN_TRY(zn_realloc_array(&pool->items, (size_t)pool->n_items + 1, sizeof *pool->items,
                                "a planned pool"));
        best = pool->n_items++;
        pool->items[best].n_bytes = n_bytes;
        pool->n_bytes += n_bytes;
    }
    pool->items[best].used = true;
    *out = best;
    return ZINC_OK;
}

/* ---- gathers: gather.c without the data ---- */

bool zn_zero_dry_whole(const zn_zero_dry *run, const zn_zero_region *region)
{
    return run->shared || run->zero->p.stage < 3 || region->persistent;
}

static void let_go(zn_zero_dry *run, int unit)
{
    zn_zero *zero = run->zero;
    const zn_zero_unit *u = &zero->units[unit];
    for (int k = 0; k < u->n_regions; k++) {
        zn_zero_region *region = &zero->regions[u->regions[k]];
        int *item = &run->gather_item[u->regions[k]];
        if (*item < 0)
            continue;
        run->gathers.items[*item].used = false;
        *item = -1;
        zero->prefetched -= region->prefetched;
        zero->live -= region->padded_elems;
        region->prefetched = region->chunks_issued = 0;
    }
}

static bool unit_is_held(const zn_zero_dry *run, int unit)
{
    const zn_zero_unit *u = &run->zero->units[unit];
    bool held = false;
    for (int k = 0; k < u->n_regions; k++)
        held = held || run->gather_item[u->regions[k]] >= 0;
    return held;
}

static void make_room(zn_zero_dry *run, int64_t n)
{
    zn_zero *zero = run->zero;
    while (zero->live + n > zero->p.max_live) {
        int victim = -1;
        int64_t farthest = -1;
        for (int u = 0; u < zero->list.n_units; u++) {
            if (zero->units[u].users > 0 || !unit_is_held(run, u))
                continue;
            const int64_t distance = zn_zero_next_use(zero, u);
            if (distance > farthest) {
                farthest = distance;
                victim = u;
            }
        }
        if (victim < 0)
            return;
        let_go(run, victim);
    }
}

static zinc_status hold(zn_zero_dry *run, int r)
{
    zn_zero *zero = run->zero;
    const int64_t n = zero->regions[r].padded_elems;
    ZN_TRY(pool_get(&run->gathers, n * (int64_t)zn_dtype_size(zero->p.param_dtype),
                    &run->gather_item[r]));
    zero->live += n;
    if (zero->live > zero->stats.live_peak)
        zero->stats.live_peak = zero->live;
    return ZINC_OK;
}

static void gather(zn_zero_dry *run, zn_zero_region *region, int64_t n_chunks)
{
    const int64_t n_elems = n_chunks * region->chunk_elems;
    if (run->clock)
        zn_zero_clock_gather(run->clock, region, n_chunks,
                             run->n_secondary > 1 && region->secondary_chunks == region->n_chunks);
    if (region->secondary_chunks < region->n_chunks) {
        run->primary_elems += n_elems;
        run->from_disk += region->param_on_disk ? n_chunks * region->slab_stride : 0;
        if (run->n_secondary > 1 && region->chunks_issued == region->secondary_chunks)
            region->secondary_chunks += n_chunks;
    }
    region->chunks_issued += n_chunks;
    run->gathered_elems += n_elems;
    run->n_gathers++;
}

/* The next region's share of the prefetch bucket; false: the bucket is full. */
static zinc_status prefetch_region(zn_zero_dry *run, int r, bool *more)
{
    zn_zero *zero = run->zero;
    zn_zero_region *region = &zero->regions[r];
    const int64_t missing = region->n_chunks - region->chunks_issued;
    *more = true;
    if (zn_zero_dry_whole(run, region) || missing == 0)
        return ZINC_OK;
    int64_t chunks = (zero->p.prefetch_bucket - zero->prefetched) / region->chunk_elems;
    chunks = chunks < missing ? chunks : missing;
    *more = chunks >= 1 &&
            (run->gather_item[r] >= 0 || zero->live + region->padded_elems <= zero->p.max_live);
    if (!*more)
        return ZINC_OK;
    if (run->gather_item[r] < 0)
        ZN_TRY(hold(run, r));
    gather(run, region, chunks);
    region->prefetched += chunks * region->chunk_elems;
    zero->prefetched += chunks * region->chunk_elems;
    *more = chunks == missing;
    return ZINC_OK;
}

static zinc_status prefetch(zn_zero_dry *run)
{
    zn_zero *zero = run->zero;
    bool more = zero->trace_known && zero->p.overlap_comm;
    for (int64_t i = zero->cursor; more && i < zn_zero_prefetch_end(zero); i++) {
        const zn_zero_unit *u = &zero->units[zero->trace[i]];
        for (int k = 0; more && k < u->n_regions; k++)
            ZN_TRY(prefetch_region(run, u->regions[k], &more));
    }
    return ZINC_OK;
}

static void wait_unit(const zn_zero_dry *run, const zn_zero_unit *u)
{
    for (int k = 0; run->clock && k < u->n_regions; k++)
        if (!zn_zero_dry_whole(run, &run->zero->regions[u->regions[k]]))
            zn_zero_clock_arrive(run->clock, &run->zero->regions[u->regions[k]]);
}

static zinc_status acquire(zn_zero_dry *run, int member)
{
    zn_zero *zero = run->zero;
    const int unit = zero->members[member].unit;
    const zn_zero_unit *u = &zero->units[unit];
    if (zero->units[unit].users++ > 0 || zero->p.stage < 3 || run->shared)
        return ZINC_OK;
    ZN_TRY(zn_zero_trace_acquire(zero, unit));
    for (int k = 0; k < u->n_regions; k++) {
        zn_zero_region *region = &zero->regions[u->regions[k]];
        if (zn_zero_dry_whole(run, region))
            continue;
        if (run->gather_item[u->regions[k]] < 0) {
            make_room(run, region->padded_elems);
            ZN_TRY(hold(run, u->regions[k]));
        }
        if (region->chunks_issued < region->n_chunks)
            gather(run, region, region->n_chunks - region->chunks_issued);
        zero->prefetched -= region->prefetched;
        region->prefetched = 0;
    }
    ZN_TRY(prefetch(run));
    wait_unit(run, u);
    return ZINC_OK;
}

static void release(zn_zero_dry *run, int member, zn_pass pass)
{
    zn_zero *zero = run->zero;
    const int unit = zero->members[member].unit;
    if (--zero->units[unit].users > 0 || zero->p.stage < 3 || run->shared)
        return;
    if (!zn_zero_keeps(zero, member, pass))
        let_go(run, unit);
}

/* ---- unit gradients: grads.c without the data ---- */

static zinc_status touch(zn_zero_dry *run, int member)
{
    const zn_zero_unit *u = &run->zero->units[run->zero->members[member].unit];
    for (int k = 0; !run->adds_in_place && k < u->n_regions; k++) {
        const zn_zero_region *region = &run->zero->regions[u->regions[k]];
        if (region->trainable && !zn_zero_grad_stays(run->zero, region) &&
            run->grad_item[u->regions[k]] < 0)
            ZN_TRY(pool_get(&run->grads, region->padded_elems * (int64_t)sizeof(float),
                            &run->grad_item[u->regions[k]]));
    }
    return ZINC_OK;
}

static void reap(zn_zero_dry *run, int keep)
{
    while (run->n_pending > keep) {
        run->grads.items[run->pending[0]].used = false;
        run->n_pending--;
        for (int i = 0; i < run->n_pending; i++)
            run->pending[i] = run->pending[i + 1];
    }
}

static void return_grad(zn_zero_dry *run, int item)
{
    const bool overlap = run->zero->p.overlap_comm;
    if (run->zero->p.wire_dtype != ZN_DTYPE_F32) {
        run->grads.items[item].used = false;
        return;
    }
    reap(run, overlap ? ZN_ZERO_MAX_PENDING - 1 : 0);
    run->pending[run->n_pending++] = item;
    if (!overlap)
        reap(run, 0);
}

static zinc_status ready(zn_zero_dry *run, int member)
{
    const zn_zero_member *m = &run->zero->members[member];
    const zn_zero_unit *u = &run->zero->units[m->unit];
    if (!m->first) /* backward comes to a unit's first member last */
        return ZINC_OK;
    ZN_TRY(touch(run, member));
    for (int k = 0; k < u->n_regions; k++) {
        const zn_zero_region *region = &run->zero->regions[u->regions[k]];
        const int64_t step = zn_zero_bucket_chunks(region, run->zero->p.reduce_bucket);
        if (!region->trainable)
            continue;
        run->n_reduces += (region->n_chunks + step - 1) / step;
        if (run->clock)
            zn_zero_clock_reduce(run->clock, region);
        if (run->grad_item[u->regions[k]] >= 0)
            return_grad(run, run->grad_item[u->regions[k]]);
        run->grad_item[u->regions[k]] = -1;
    }
    return ZINC_OK;
}

/* ---- the decoder's order ---- */

static zinc_status use(zn_zero_dry *run, int member, zn_pass pass)
{
    ZN_TRY(acquire(run, member));
    if (run->clock)
        zn_zero_clock_use(run->clock, member, pass);
    if (pass == ZN_PASS_BACKWARD)
        ZN_TRY(touch(run, member));
    release(run, member, pass);
    return ZINC_OK;
}

/* Loss and gradient of the head are one use; a tied embedding's gradient begins there. */
static zinc_status use_head(zn_zero_dry *run, int head)
{
    const bool tied = run->params->tied && head > 0;
    ZN_TRY(acquire(run, head));
    if (tied)
        ZN_TRY(acquire(run, 0));
    if (run->clock)
        zn_zero_clock_use(run->clock, head, ZN_PASS_BACKWARD);
    ZN_TRY(touch(run, head));
    if (tied) {
        ZN_TRY(touch(run, 0));
        release(run, 0, ZN_PASS_BACKWARD);
    }
    release(run, head, ZN_PASS_BACKWARD);
    return ready(run, head);
}

zinc_status zn_zero_dry_micro_batch(zn_zero_dry *run)
{
    zn_zero *zero = run->zero;
    const int head = zero->n_members - 1, first = zero->hooks.first_trainable_unit;
    run->gathered_elems = run->primary_elems = run->from_disk = run->n_gathers = run->n_reduces = 0;
    if (!run->clock || !run->clock->accumulate)
        zn_zero_forget_secondary(zero, false);
    zero->cursor = 0;
    for (int u = 0; u < head; u++)
        ZN_TRY(use(run, u, ZN_PASS_FORWARD));
    ZN_TRY(use_head(run, head));
    for (int u = head - 1; u >= 0; u--) {
        if (u >= first && u > 0)
            ZN_TRY(use(run, u, ZN_PASS_BACKWARD));
        else if (u >= first) /* the embedding's gradient does not read it */
            ZN_TRY(touch(run, u));
        ZN_TRY(ready(run, u)); /* below the first trained unit: nothing to reduce */
    }
    if (zero->p.gradient_accumulation_steps == 1) /* else only the step waits for all reductions */
        reap(run, 0);
    for (int u = 0; u < zero->list.n_units; u++)
        let_go(run, u);
    zero->trace_known = true;
    return ZINC_OK;
}
