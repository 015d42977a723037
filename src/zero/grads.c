/* SPDX-License-Identifier: Apache-2.0 */
/* grads.c — gradients from the model's buffer to the reduced shard.
 *
 *   unit_grad (full, fp32)  --round once-->  staging (wire type)  --sum over ranks, fp32-->  grad
 *
 * A matrix whose gradient comes whole may be rounded straight into staging (zn_zero_grad_whole): it
 * is the same rounding, and 26 bytes an element less of memory traffic.
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

static zn_zero_place *place_of(zn_zero *zero, const zn_zero_region *region, int k)
{
    return &zero->places[zero->placed[region->first_piece + k]];
}

static zinc_status zero_elems(zn_zero *zero, const zn_zero_region *region, int64_t from, int64_t to)
{
    return zero->p.kernels->zero(zn_device_compute(zero->p.dev), region->unit_grad + from,
                                 (to - from) * (int64_t)sizeof(float));
}

/* Have memory for the region's gradients. Only what lies between parameters is zeroed: most of
 * these are stored, not added to. */
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
    const bool widen =
        zn_zero_keeps_full_grads(zero) && !zn_zero_adds_in_place(zero) && zero->micro_batches > 0;
    if (widen)
        ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev), region->unit_grad,
                                        ZN_DTYPE_F32, region->grad.base, region->grad.dtype, 1.0f,
                                        region->padded_elems));
    int64_t end = 0;
    for (int k = 0; k < region->n_params; k++) {
        zn_zero_place *place = place_of(zero, region, k);
        place->grad_in = widen ? ZN_ZERO_GRAD_UNIT : ZN_ZERO_GRAD_NONE;
        if (!widen)
            ZN_TRY(zero_elems(zero, region, end, place->offset));
        end = place->offset + place->n_elems;
    }
    if (!widen)
        ZN_TRY(zero_elems(zero, region, end, region->padded_elems));
    region->unit_grad_touched = true;
    return ZINC_OK;
}

/* Have the parameter's gradient in unit_grad. What was rounded already is widened, which is exact.
 */
static zinc_status into_unit(zn_zero *zero, const zn_zero_region *region, zn_zero_place *place)
{
    if (place->grad_in == ZN_ZERO_GRAD_NONE)
        ZN_TRY(zero_elems(zero, region, place->offset, place->offset + place->n_elems));
    if (place->grad_in == ZN_ZERO_GRAD_WIRE)
        ZN_TRY(zero->p.kernels->convert(
            zn_device_compute(zero->p.dev), region->unit_grad + place->offset, ZN_DTYPE_F32,
            (const uint16_t *)zero->staging[zero->staging_held] + place->offset, ZN_DTYPE_BF16,
            1.0f, place->n_elems));
    place->grad_in = ZN_ZERO_GRAD_UNIT;
    return ZINC_OK;
}

/* A gradient in fp32: where it is added to, or stored if there is none yet and the caller can
 * (stores). */
static zinc_status in_fp32(zn_zero *zero, int param, bool stores, bool *add, float **out)
{
    zn_zero_place *place = &zero->places[param];
    zn_zero_region *region = &zero->regions[place->region];
    ZN_TRY(touch_region(zero, region));
    *add = !stores || place->grad_in != ZN_ZERO_GRAD_NONE;
    if (*add)
        ZN_TRY(into_unit(zero, region, place));
    place->grad_in = ZN_ZERO_GRAD_UNIT;
    *out = region->unit_grad + place->offset;
    return ZINC_OK;
}

/* A staging buffer that is free for the next reduction. */
static zinc_status next_staging(zn_zero *zero, int *out)
{
    *out = zero->staging_next;
    if (zero->p.overlap_comm)
        zero->staging_next = 1 - *out;
    return zn_zero_wait(zero->staging_event[*out], &zero->stats.reduce_wait_s);
}

/* Let the region's gradients be stored into the staging buffer that its reduction will read. Only
 * one region at a time can, and one that is reduced at once. */
static zinc_status hold_staging(zn_zero *zero, zn_zero_region *region, bool *held)
{
    *held = zero->staging_holder == region;
    if (*held || zero->staging_holder || zero->p.wire_dtype != ZN_DTYPE_BF16 ||
        zn_zero_keeps_full_grads(zero) ||
        zn_zero_bucket_chunks(region, zero->p.reduce_bucket) < region->n_chunks)
        return ZINC_OK;
    ZN_TRY(next_staging(zero, &zero->staging_held));
    zero->staging_holder = region;
    *held = true;
    return ZINC_OK;
}

static zinc_status whole(zn_zero *zero, int param, bool last, zn_dtype *dtype, bool *add,
                         void **out)
{
    zn_zero_place *place = &zero->places[param];
    zn_zero_region *region = &zero->regions[place->region];
    bool held = false;
    ZN_TRY(touch_region(zero, region));
    if (last && place->grad_in == ZN_ZERO_GRAD_NONE)
        ZN_TRY(hold_staging(zero, region, &held));
    if (held) {
        *dtype = ZN_DTYPE_BF16;
        *add = false;
        *out = (uint16_t *)zero->staging[zero->staging_held] + place->offset;
        place->grad_in = ZN_ZERO_GRAD_WIRE;
        return ZINC_OK;
    }
    float *at = NULL;
    ZN_TRY(in_fp32(zero, param, true, add, &at));
    *dtype = ZN_DTYPE_F32;
    *out = at;
    return ZINC_OK;
}

/* Hooks that give a pointer cannot give an error: it is told at the next grads_ready. */
static bool wants_grad(zn_zero *zero, int param)
{
    return zero->regions[zero->places[param].region].trainable && zero->grad_status == ZINC_OK;
}

static void keep_error(zn_zero *zero, zinc_status status)
{
    zero->grad_status = status;
    if (status != ZINC_OK)
        zn_error_save(&zero->grad_error, status);
}

float *zn_zero_grad(void *ctx, int param)
{
    zn_zero *zero = ctx;
    float *at = NULL;
    bool add;
    if (!wants_grad(zero, param))
        return NULL;
    keep_error(zero, in_fp32(zero, param, false, &add, &at));
    return at;
}

void *zn_zero_grad_whole(void *ctx, int param, bool last, zn_dtype *dtype, bool *add)
{
    zn_zero *zero = ctx;
    void *at = NULL;
    *dtype = ZN_DTYPE_F32;
    *add = true;
    if (!wants_grad(zero, param))
        return NULL;
    keep_error(zero, whole(zero, param, last, dtype, add, &at));
    return at;
}

/* Every parameter has a gradient: zero where nobody gave one. */
static zinc_status complete(zn_zero *zero, zn_zero_region *region)
{
    ZN_TRY(touch_region(zero, region));
    for (int k = 0; k < region->n_params; k++) {
        zn_zero_place *place = place_of(zero, region, k);
        if (place->grad_in == ZN_ZERO_GRAD_NONE)
            ZN_TRY(into_unit(zero, region, place));
    }
    return ZINC_OK;
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

/* Elements [from, to) of unit_grad into a staging buffer that begins with element `first`. */
static zinc_status round_into(zn_zero *zero, const zn_zero_region *region, int slot, int64_t first,
                              int64_t from, int64_t to)
{
    char *at =
        (char *)zero->staging[slot] + (size_t)(from - first) * zn_dtype_size(zero->p.wire_dtype);
    return zero->p.kernels->convert(zn_device_compute(zero->p.dev), at, zero->p.wire_dtype,
                                    region->unit_grad + from, ZN_DTYPE_F32, 1.0f, to - from);
}

/* What is not in the staging buffer yet that the region holds. */
static zinc_status round_rest(zn_zero *zero, const zn_zero_region *region)
{
    int64_t from = 0;
    for (int k = 0; k < region->n_params; k++) {
        const zn_zero_place *place = place_of(zero, region, k);
        if (place->grad_in != ZN_ZERO_GRAD_WIRE)
            continue;
        ZN_TRY(round_into(zero, region, zero->staging_held, 0, from, place->offset));
        from = place->offset + place->n_elems;
    }
    return round_into(zero, region, zero->staging_held, 0, from, region->padded_elems);
}

/* Another region's turn has come before the holder's. */
static zinc_status take_back_staging(zn_zero *zero)
{
    zn_zero_region *region = zero->staging_holder;
    for (int k = 0; k < region->n_params; k++) {
        zn_zero_place *place = place_of(zero, region, k);
        if (place->grad_in == ZN_ZERO_GRAD_WIRE)
            ZN_TRY(into_unit(zero, region, place));
    }
    zero->staging_holder = NULL;
    return ZINC_OK;
}

/* Where the wire reads chunks [chunk, chunk + n): unit_grad itself, or a staging buffer. */
static zinc_status put_on_wire(zn_zero *zero, const zn_zero_region *region, int64_t chunk,
                               int64_t n, const void **out, int *slot)
{
    const int64_t first = chunk * region->chunk_elems;
    *slot = -1;
    *out = region->unit_grad + first;
    if (zero->p.wire_dtype == ZN_DTYPE_F32)
        return ZINC_OK;
    if (zero->staging_holder == region) {
        ZN_TRY(round_rest(zero, region));
        *slot = zero->staging_held;
        zero->staging_holder = NULL;
    } else {
        ZN_TRY(next_staging(zero, slot));
        if (zero->staging_holder && zero->staging_held == *slot)
            ZN_TRY(take_back_staging(zero));
        ZN_TRY(round_into(zero, region, *slot, first, first, first + n * region->chunk_elems));
    }
    *out = zero->staging[*slot];
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
        ZN_TRY(complete(zero, region));
        ZN_TRY(!zn_zero_keeps_full_grads(zero) || zero->boundary ? reduce_region(zero, region)
                                                                 : store_sum(zero, region));
    }
    return ZINC_OK;
}

void zn_zero_forget_grads(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++)
        zero->regions[r].unit_grad_touched = false;
    zero->staging_holder = NULL;
    zero->micro_batches = 0;
    zn_zero_early_end(zero);
}
