/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c — full parameters while they are used: gather, prefetch, keep, let go (stage 3). */
#include "zero/zero_internal.h"

#include <limits.h>

#include "base/sys.h"
#include "device/trace.h"

zinc_status zn_zero_wait(zn_event event, double *seconds)
{
    const double start = zn_sys_now();
    const zinc_status status = zn_event_wait(event, -1);
    *seconds += zn_sys_now() - start;
    return status;
}

zinc_status zn_zero_order_after_compute(zn_zero *zero)
{
    zn_event computed = {0};
    ZN_TRY(zn_stream_point(zn_device_compute(zero->p.dev), &computed));
    if (zero->secondaries)
        ZN_TRY(zn_stream_wait_event(zn_comm_stream(zero->secondaries), computed));
    return zn_stream_wait_event(zn_comm_stream(zero->group), computed);
}

zn_zero_source zn_zero_primary(const zn_zero *zero, const zn_zero_region *region,
                               const zn_zero_view *slices)
{
    return (zn_zero_source){zero->group, region->slice_elems, *slices};
}

zinc_status zn_zero_gather_chunks(zn_zero *zero, const zn_zero_region *region,
                                  const zn_zero_source *source, void *full, int64_t first,
                                  int64_t n, int64_t bucket, zn_event *event)
{
    const zn_zero_view *slices = &source->slices;
    const int rank = zn_comm_rank(source->comm);
    const int64_t step = zn_zero_bucket_chunks(region, bucket);
    for (int64_t chunk = first; chunk < first + n; chunk += step) {
        const zn_slices layout = {.dtype = slices->dtype,
                                  .slice_elems = source->slice_elems,
                                  .n_blocks = first + n - chunk < step ? first + n - chunk : step,
                                  .shard_stride = slices->chunk_stride};
        char *to =
            (char *)full + (size_t)(chunk * region->chunk_elems) * zn_dtype_size(slices->dtype);
        ZN_TRY(zn_comm_all_gather(source->comm, to, zn_zero_at(slices, chunk, rank), &layout,
                                  zero->list.unit_names[region->unit], event));
        zero->stats.n_gathers++;
    }
    return ZINC_OK;
}

static size_t gathered_bytes(const zn_zero *zero, const zn_zero_region *region)
{
    return (size_t)region->padded_elems * zn_dtype_size(zero->p.param_dtype);
}

static void forget_region(zn_zero *zero, zn_zero_region *region)
{
    if (!region->gathered)
        return;
    if (zero->p.memory.get)
        zn_zero_block_put(zero, (int)(region - zero->regions), ZN_MEM_BUFFERS,
                          gathered_bytes(zero, region), region->gathered);
    else
        zn_zero_pool_put(&zero->gather_pool, region->gathered);
    zero->prefetched -= region->prefetched;
    zero->live -= region->padded_elems;
    region->prefetched = 0;
    region->gathered = NULL;
    region->chunks_issued = 0;
}

/* A buffer may be given away only when nothing writes to it any more. */
static zinc_status release_region(zn_zero *zero, zn_zero_region *region)
{
    if (region->gathered && region->chunks_issued > 0)
        ZN_TRY(zn_zero_wait(region->gather_event, &zero->stats.gather_wait_s));
    forget_region(zero, region);
    return ZINC_OK;
}

static zinc_status release_unit(zn_zero *zero, int unit)
{
    const zn_zero_unit *u = &zero->units[unit];
    for (int k = 0; k < u->n_regions; k++)
        ZN_TRY(release_region(zero, &zero->regions[u->regions[k]]));
    return ZINC_OK;
}

zinc_status zn_zero_release_all(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++)
        ZN_TRY(release_region(zero, &zero->regions[r]));
    return ZINC_OK;
}

/* Make room for n more elements: let go of kept units, the one used last of all first. */
static zinc_status make_room(zn_zero *zero, int64_t n)
{
    while (zero->live + n > zero->p.max_live) {
        int victim = -1;
        int64_t farthest = -1;
        for (int r = 0; r < zero->n_regions; r++) {
            const zn_zero_region *region = &zero->regions[r];
            if (!region->gathered || zero->units[region->unit].users > 0)
                continue;
            const int64_t distance = zn_zero_next_use(zero, region->unit);
            if (distance > farthest) {
                farthest = distance;
                victim = region->unit;
            }
        }
        if (victim < 0)
            return ZINC_OK; /* what is in use must fit: a unit is never cut */
        ZN_TRY(release_unit(zero, victim));
    }
    return ZINC_OK;
}

static zinc_status hold_region(zn_zero *zero, zn_zero_region *region)
{
    const size_t n_bytes = gathered_bytes(zero, region);
    if (zero->p.memory.get)
        ZN_TRY(zn_zero_block_get(zero, (int)(region - zero->regions), ZN_MEM_BUFFERS, n_bytes,
                                 &region->gathered));
    else
        ZN_TRY(zn_zero_pool_get(zero, &zero->gather_pool, n_bytes, &region->gathered));
    zero->live += region->padded_elems;
    if (zero->live > zero->stats.live_peak)
        zero->stats.live_peak = zero->live;
    return ZINC_OK;
}

/* ---- the secondary copy ---- */

void zn_zero_forget_secondary(zn_zero *zero, bool all)
{
    for (int r = 0; r < zero->n_regions; r++)
        if (all || zero->regions[r].trainable)
            zero->regions[r].secondary_chunks = 0;
}

/* Behind a gather, on its stream: this rank's part of chunks [first, first + n). */
static zinc_status keep_secondary(zn_zero *zero, zn_zero_region *region, int64_t first, int64_t n)
{
    const int64_t n_elems = region->chunk_elems / zn_comm_n_ranks(zero->secondaries);
    const size_t size = zn_dtype_size(region->secondary.dtype);
    const int64_t mine = zn_comm_rank(zero->secondaries) * n_elems;
    if (first != region->secondary_chunks)
        return ZINC_OK;
    for (int64_t chunk = first; chunk < first + n; chunk++)
        ZN_TRY(zn_device_copy(zn_comm_stream(zero->group), zn_zero_at(&region->secondary, chunk, 0),
                              (char *)region->gathered +
                                  (size_t)(chunk * region->chunk_elems + mine) * size,
                              (size_t)n_elems * size, &region->gather_event));
    region->secondary_chunks = first + n;
    return ZINC_OK;
}

static zinc_status gather_secondary(zn_zero *zero, zn_zero_region *region, int64_t n_chunks)
{
    const zn_zero_source source = {zero->secondaries,
                                   region->chunk_elems / zn_comm_n_ranks(zero->secondaries),
                                   region->secondary};
    /* what wrote the copy ran on another stream */
    ZN_TRY(zn_stream_wait_event(zn_comm_stream(zero->secondaries), region->gather_event));
    return zn_zero_gather_chunks(zero, region, &source, region->gathered, region->chunks_issued,
                                 n_chunks, INT64_MAX, &region->gather_event);
}

static zinc_status gather_primary(zn_zero *zero, zn_zero_region *region, int64_t n_chunks)
{
    const int64_t first = region->chunks_issued;
    zn_zero_source source = zn_zero_primary(zero, region, &region->param);
    if (zn_zero_param_is_off(
            region)) { /* first to its place in the gathered buffer, then to the peers */
        ZN_TRY(zn_zero_param_to_device(zero, region, region->gathered, first, n_chunks));
        source.slices = (zn_zero_view){region->gathered, region->param.dtype, region->chunk_elems,
                                       region->slice_elems};
    }
    ZN_TRY(zn_zero_gather_chunks(zero, region, &source, region->gathered, first, n_chunks,
                                 INT64_MAX, &region->gather_event));
    return region->secondary.base ? keep_secondary(zero, region, first, n_chunks) : ZINC_OK;
}

static zinc_status gather_more(zn_zero *zero, zn_zero_region *region, int64_t n_chunks)
{
    if (region->secondary.base && region->secondary_chunks == region->n_chunks)
        ZN_TRY(gather_secondary(zero, region, n_chunks));
    else
        ZN_TRY(gather_primary(zero, region, n_chunks));
    region->chunks_issued += n_chunks;
    return ZINC_OK;
}

/* ---- gathering ahead and on demand ---- */

/* Issue gathers for the units that come next, inside the prefetch bucket and max_live. Only whole
 * chunks, in trace order, so that every rank issues the same ones. */
static zinc_status prefetch(zn_zero *zero)
{
    if (!zero->training || !zero->trace_known || zero->trace_broken || !zero->p.overlap_comm)
        return ZINC_OK;
    for (int64_t i = zero->cursor; i < zn_zero_prefetch_end(zero); i++) {
        const zn_zero_unit *u = &zero->units[zero->trace[i]];
        for (int k = 0; k < u->n_regions; k++) {
            zn_zero_region *region = &zero->regions[u->regions[k]];
            const int64_t missing = region->n_chunks - region->chunks_issued;
            if (region->full || missing == 0)
                continue;
            int64_t chunks = (zero->p.prefetch_bucket - zero->prefetched) / region->chunk_elems;
            chunks = chunks < missing ? chunks : missing;
            if (chunks < 1)
                return ZINC_OK;
            if (!region->gathered) {
                if (zero->live + region->padded_elems > zero->p.max_live)
                    return ZINC_OK;
                ZN_TRY(hold_region(zero, region));
            }
            ZN_TRY(gather_more(zero, region, chunks));
            region->prefetched += chunks * region->chunk_elems;
            zero->prefetched += chunks * region->chunk_elems;
            zero->stats.n_prefetches++;
            if (zero->prefetched > zero->stats.prefetch_peak)
                zero->stats.prefetch_peak = zero->prefetched;
            if (chunks < missing)
                return ZINC_OK;
        }
    }
    return ZINC_OK;
}

static zinc_status issue_unit(zn_zero *zero, int unit)
{
    const zn_zero_unit *u = &zero->units[unit];
    for (int k = 0; k < u->n_regions; k++) {
        zn_zero_region *region = &zero->regions[u->regions[k]];
        if (region->full)
            continue;
        if (!region->gathered) {
            ZN_TRY(make_room(zero, region->padded_elems));
            ZN_TRY(hold_region(zero, region));
        }
        if (region->chunks_issued < region->n_chunks)
            ZN_TRY(gather_more(zero, region, region->n_chunks - region->chunks_issued));
        zero->prefetched -= region->prefetched;
        region->prefetched = 0;
    }
    return ZINC_OK;
}

static zinc_status wait_unit(zn_zero *zero, int unit)
{
    const zn_zero_unit *u = &zero->units[unit];
    for (int k = 0; k < u->n_regions; k++) {
        const zn_zero_region *region = &zero->regions[u->regions[k]];
        if (!region->full)
            ZN_TRY(zn_zero_wait(region->gather_event, &zero->stats.gather_wait_s));
    }
    return ZINC_OK;
}

/* A use begins when the parameters are here. */
static zinc_status begin_use(zn_zero *zero, int unit)
{
    if (zn_device_trace(zero->p.dev))
        zero->units[unit].began = zn_sys_now();
    return ZINC_OK;
}

static void trace_use(const zn_zero *zero, int unit, zn_pass pass)
{
    zn_trace *trace = zn_device_trace(zero->p.dev);
    if (trace)
        zn_trace_span(trace, zero->rank, ZN_TRACE_UNITS,
                      pass == ZN_PASS_BACKWARD ? "backward" : "forward",
                      zero->list.unit_names[unit], zero->units[unit].began, zn_sys_now());
}

zinc_status zn_zero_before_use(void *ctx, int member, zn_pass pass)
{
    zn_zero *zero = ctx;
    const int unit = zero->members[member].unit;
    if (pass == ZN_PASS_BACKWARD && zero->forward_began > 0) {
        zero->stats.forward_s += zn_sys_now() - zero->forward_began;
        zero->stats.forward_wait_s += zero->stats.gather_wait_s - zero->forward_began_wait;
        zero->forward_began = 0;
    }
    if (zero->units[unit].users++ > 0)
        return ZINC_OK;
    if (zero->p.stage < 3 || zero->shared_slab)
        return begin_use(zero, unit);
    if (zero->training)
        ZN_TRY(zn_zero_trace_acquire(zero, unit));
    ZN_TRY(zn_zero_order_after_compute(zero));
    ZN_TRY(issue_unit(zero, unit));
    ZN_TRY(prefetch(zero));
    ZN_TRY(wait_unit(zero, unit));
    return begin_use(zero, unit);
}

bool zn_zero_keeps(const zn_zero *zero, int member, zn_pass pass)
{
    const zn_zero_member *m = &zero->members[member];
    if (pass == ZN_PASS_BACKWARD ? !m->first : !m->last)
        return true; /* its neighbours in the unit are still to come */
    if (zero->p.keep_for_backward && pass == ZN_PASS_FORWARD)
        return true;
    const int64_t distance = zn_zero_next_use(zero, m->unit);
    return distance != INT64_MAX && distance < zero->p.max_reuse_distance &&
           zero->live <= zero->p.max_live;
}

zinc_status zn_zero_after_use(void *ctx, int member, zn_pass pass)
{
    zn_zero *zero = ctx;
    const int unit = zero->members[member].unit;
    if (--zero->units[unit].users > 0)
        return ZINC_OK;
    trace_use(zero, unit, pass);
    if (zero->p.stage < 3 || zero->shared_slab || zn_zero_keeps(zero, member, pass))
        return ZINC_OK;
    return release_unit(zero, unit);
}

const void *zn_zero_data(void *ctx, int param)
{
    const zn_zero *zero = ctx;
    const zn_zero_place *place = &zero->places[param];
    const zn_zero_region *region = &zero->regions[place->region];
    const char *base = region->full ? region->param.base : region->gathered;
    return base + (size_t)place->offset * zn_dtype_size(zero->p.param_dtype);
}
