/* SPDX-License-Identifier: Apache-2.0 */
/* grads.c — gradients from the model's buffer to the reduced shard.
 *
 *   unit_grad (full, fp32)  --round once-->  staging (wire type)  --sum over ranks, fp32-->  grad
 *
 * An fp32 wire needs no staging: peers read unit_grad itself. Where a full accumulator is kept
 * (stage 0; stage 1 with accumulation) unit_grad is that accumulator, micro-batches add up in it,
 * and it is reduced in place at the boundary only. An accumulator of 16 bits (grad_accum_dtype) is
 * widened into unit_grad, the micro-batch is added in fp32, and the sum is rounded once: back into
 * the accumulator, or at the boundary to the wire. So stage 0 equals stage 1, and without
 * accumulation it equals 2 and 3. A tied parameter's unit_grad is needed from the head to the end
 * of backward; with one micro-batch a step its sums lie in that buffer too (grad_stays). */
#include "zero/zero_internal.h"

/* A further micro-batch although one a step was announced: the buffer is written again. */
static zinc_status free_own_grad(zn_zero *zero, zn_zero_region *region)
{
    ZN_TRY(zn_zero_reduce_wait(zero));
    return region->grad_stays ? zn_zero_part_grad(zero, region) : ZINC_OK;
}

static zinc_status touch_region(zn_zero *zero, zn_zero_region *region)
{
    if (region->unit_grad_touched)
        return ZINC_OK;
    const size_t n_bytes = (size_t)region->padded_elems * sizeof(float);
    if (region->own_grad && zero->micro_batches > 0)
        ZN_TRY(free_own_grad(zero, region));
    if (region->own_grad)
        region->unit_grad = region->own_grad;
    else if (!region->unit_grad)
        ZN_TRY(zn_zero_pool_get(zero, &zero->grad_pool, n_bytes, &region->unit_grad));
    if (zn_zero_keeps_full_grads(zero) && !zn_zero_adds_in_place(zero) && zero->micro_batches > 0)
        ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev), region->unit_grad,
                                        ZN_DTYPE_F32, region->grad.base, region->grad.dtype, 1.0f,
                                        region->padded_elems));
    else
        ZN_TRY(zero->p.kernels->zero(zn_device_compute(zero->p.dev), region->unit_grad,
                                     (int64_t)n_bytes));
    region->unit_grad_touched = true;
    return ZINC_OK;
}

float *zn_zero_grad(void *ctx, int param)
{
    zn_zero *zero = ctx;
    const zn_zero_place *place = &zero->places[param];
    zn_zero_region *region = &zero->regions[place->region];
    if (!region->trainable || zero->grad_status != ZINC_OK)
        return NULL;
    zero->grad_status = touch_region(zero, region);
    if (zero->grad_status != ZINC_OK) {
        zn_error_save(&zero->grad_error, zero->grad_status);
        return NULL;
    }
    return region->unit_grad + place->offset;
}

static zinc_status reap_pending(zn_zero *zero, int keep)
{
    while (zero->n_pending > keep) {
        ZN_TRY(zn_zero_wait(zero->pending[0].event, &zero->stats.reduce_wait_s));
        zn_zero_pool_put(&zero->grad_pool, zero->pending[0].buffer);
        zero->n_pending--;
        for (int i = 0; i < zero->n_pending; i++)
            zero->pending[i] = zero->pending[i + 1];
    }
    return ZINC_OK;
}

zinc_status zn_zero_reduce_wait(zn_zero *zero)
{
    ZN_TRY(reap_pending(zero, 0));
    for (int i = 0; i < 2; i++) /* the last one may have been of a region that stays here */
        ZN_TRY(zn_zero_wait(zero->landing_event[i], &zero->stats.reduce_wait_s));
    return zn_zero_wait(zero->last_reduce, &zero->stats.reduce_wait_s);
}

/* Where the wire reads chunks [chunk, chunk + n): unit_grad itself, or a staging buffer. */
static zinc_status put_on_wire(zn_zero *zero, const zn_zero_region *region, int64_t chunk,
                               int64_t n, const void **out, int *slot)
{
    const float *from = region->unit_grad + chunk * region->chunk_elems;
    *slot = -1;
    if (zero->p.wire_dtype == ZN_DTYPE_F32) {
        *out = from;
        return ZINC_OK;
    }
    const int i = zero->staging_next;
    if (zero->p.overlap_comm)
        zero->staging_next = 1 - i;
    ZN_TRY(zn_zero_wait(zero->staging_event[i], &zero->stats.reduce_wait_s));
    ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev), zero->staging[i],
                                    zero->p.wire_dtype, from, ZN_DTYPE_F32, 1.0f,
                                    n * region->chunk_elems));
    *out = zero->staging[i];
    *slot = i;
    return ZINC_OK;
}

/* At the boundary the shard group's sums of chunks [chunk, chunk + n) are summed over the replicas,
 * in place and in fp32: a rank's slice is cut once more into R parts, one replica sums each, and
 * all gather them. */
static zinc_status sum_replicas(zn_zero *zero, const zn_zero_region *region, int64_t chunk,
                                int64_t n)
{
    const char *name = zero->list.unit_names[region->unit];
    const bool packed = region->grad.chunk_stride == region->slice_elems;
    const int64_t part = region->slice_elems / zero->n_replicas;
    const zn_slices layout = {.dtype = ZN_DTYPE_F32,
                              .slice_elems = part,
                              .n_blocks = packed ? n : 1,
                              .shard_stride = region->slice_elems};
    const int64_t mine = zn_comm_rank(zero->replicas) * part;
    ZN_TRY(zn_stream_wait_event(zn_comm_stream(zero->replicas), zero->last_reduce));
    for (int64_t c = chunk; c < chunk + n; c += layout.n_blocks) {
        float *slice = zn_zero_at(&region->grad, c, zero->rank);
        ZN_TRY(zn_comm_reduce_scatter(zero->replicas, slice, slice + mine, &layout, ZN_DTYPE_F32,
                                      false, name, &zero->last_reduce));
        ZN_TRY(zn_comm_all_gather(zero->replicas, slice, slice + mine, &layout, name,
                                  &zero->last_reduce));
    }
    return ZINC_OK;
}

static zinc_status reduce_chunks(zn_zero *zero, zn_zero_region *region, int64_t chunk, int64_t n)
{
    const void *wire = NULL;
    int slot = -1, landing = -1;
    void *to = NULL;
    const bool accumulate = !zn_zero_keeps_full_grads(zero) && zero->micro_batches > 0;
    ZN_TRY(put_on_wire(zero, region, chunk, n, &wire, &slot));
    ZN_TRY(zn_zero_order_after_compute(zero));
    if (region->offloaded)
        ZN_TRY(zn_zero_landing_get(zero, &landing, &to));
    else
        to = zn_zero_at(&region->grad, chunk, zero->rank);
    const zn_slices layout = {.dtype = zero->p.wire_dtype,
                              .slice_elems = region->slice_elems,
                              .n_blocks = n,
                              .shard_stride = region->grad.chunk_stride};
    ZN_TRY(zn_comm_reduce_scatter(zero->group, wire, to, &layout, region->grad.dtype,
                                  accumulate && !region->offloaded,
                                  zero->list.unit_names[region->unit], &zero->last_reduce));
    zero->stats.n_reduces++;
    if (slot >= 0)
        zero->staging_event[slot] = zero->last_reduce;
    const zn_zero_source sums = zn_zero_primary(zero, region, &region->grad);
    if (zero->p.stage == 0)
        ZN_TRY(zn_zero_gather_chunks(zero, region, &sums, region->grad.base, chunk, n, INT64_MAX,
                                     &zero->last_reduce));
    if (region->offloaded)
        ZN_TRY(zn_zero_land(zero, region, chunk, n, landing, accumulate));
    if (zero->replicas && zero->boundary)
        ZN_TRY(sum_replicas(zero, region, chunk, n));
    return zero->p.overlap_comm ? ZINC_OK
                                : zn_zero_wait(zero->last_reduce, &zero->stats.reduce_wait_s);
}

/* The transient buffer goes back at once if the wire has its own copy, else after the reduction. */
static zinc_status return_buffer(zn_zero *zero, zn_zero_region *region)
{
    if (zn_zero_adds_in_place(zero))
        return ZINC_OK;
    float *buffer = region->unit_grad;
    region->unit_grad = NULL;
    region->unit_grad_touched = false;
    if (region->own_grad)
        return ZINC_OK;
    if (zero->p.wire_dtype != ZN_DTYPE_F32) {
        zn_zero_pool_put(&zero->grad_pool, buffer);
        return ZINC_OK;
    }
    ZN_TRY(reap_pending(zero, zero->p.overlap_comm ? ZN_ZERO_MAX_PENDING - 1 : 0));
    zero->pending[zero->n_pending++] =
        (zn_zero_pending){.event = zero->last_reduce, .buffer = buffer};
    return zero->p.overlap_comm ? ZINC_OK : reap_pending(zero, 0);
}

static zinc_status reduce_region(zn_zero *zero, zn_zero_region *region)
{
    const int64_t step = zn_zero_bucket_chunks(region, zero->p.reduce_bucket);
    for (int64_t chunk = 0; chunk < region->n_chunks; chunk += step) {
        const int64_t left = region->n_chunks - chunk;
        ZN_TRY(reduce_chunks(zero, region, chunk, left < step ? left : step));
    }
    ZN_TRY(zn_zero_update_early(zero, region));
    return return_buffer(zero, region);
}

/* Between boundaries: the sum so far back into a 16-bit accumulator. */
static zinc_status store_sum(zn_zero *zero, zn_zero_region *region)
{
    if (zn_zero_adds_in_place(zero))
        return ZINC_OK;
    ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev), region->grad.base,
                                    region->grad.dtype, region->unit_grad, ZN_DTYPE_F32, 1.0f,
                                    region->padded_elems));
    zn_zero_pool_put(&zero->grad_pool, region->unit_grad);
    region->unit_grad = NULL;
    region->unit_grad_touched = false;
    return ZINC_OK;
}

zinc_status zn_zero_grads_ready(void *ctx, int member)
{
    zn_zero *zero = ctx;
    zn_zero_member *m = &zero->members[member];
    zn_zero_unit *u = &zero->units[m->unit];
    if (zero->grad_status != ZINC_OK)
        return zn_error_restore(&zero->grad_error);
    if (m->ready)
        ZN_FAIL(ZINC_E_INVALID, "gradients of unit %s were handed over twice in one backward",
                zero->list.unit_names[m->unit]);
    m->ready = true;
    if (++u->n_ready < u->n_members)
        return ZINC_OK;
    for (int k = 0; k < u->n_regions; k++) {
        zn_zero_region *region = &zero->regions[u->regions[k]];
        if (!region->trainable)
            continue;
        ZN_TRY(touch_region(zero, region)); /* no gradient at all counts as zero */
        ZN_TRY(!zn_zero_keeps_full_grads(zero) || zero->boundary ? reduce_region(zero, region)
                                                                 : store_sum(zero, region));
    }
    return ZINC_OK;
}

void zn_zero_forget_grads(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++)
        zero->regions[r].unit_grad_touched = false;
    zero->micro_batches = 0;
    zn_zero_early_end(zero);
}
