/* SPDX-License-Identifier: Apache-2.0 */
/* fill.c — values in and out: each rank touches only its own slices. */
#include "zero/zero_internal.h"

static float *add_elems(void *base, int64_t n)
{
    return (float *)base + n;
}

static void *offset_elems(void *base, zn_dtype dtype, int64_t n)
{
    return (char *)base + n * (int64_t)zn_dtype_size(dtype);
}

static zinc_status fill_piece(zn_zero *zero, const zn_zero_piece *piece, zn_zero_read_fn read,
                              void *ctx)
{
    const zn_zero_view *view = &zero->regions[piece->region].param;
    void *to =
        offset_elems(zn_zero_at(view, piece->chunk, piece->rank), view->dtype, piece->in_slice);
    for (int64_t done = 0; done < piece->n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = piece->n - done;
        const int64_t n = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(read(ctx, piece->param, piece->param_offset + done, n, zero->fill_buffer));
        ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev),
                                        offset_elems(to, view->dtype, done), view->dtype,
                                        zero->fill_buffer, ZN_DTYPE_F32, 1.0f, n));
    }
    return ZINC_OK;
}

static zinc_status fill_master(zn_zero *zero, zn_zero_region *region)
{
    const int first = zero->p.stage == 0 ? 0 : zero->rank;
    const int last = zero->p.stage == 0 ? zero->n_ranks - 1 : zero->rank;
    for (int64_t chunk = 0; chunk < region->n_chunks; chunk++)
        for (int rank = first; rank <= last; rank++)
            ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev),
                                            zn_zero_at(&region->master, chunk, rank), ZN_DTYPE_F32,
                                            zn_zero_at(&region->param, chunk, rank),
                                            region->param.dtype, 1.0f, region->slice_elems));
    return ZINC_OK;
}

static zinc_status fill_slices(zn_zero *zero, zn_zero_read_fn read, void *ctx)
{
    for (int64_t i = 0; i < zero->n_pieces; i++)
        if (zero->pieces[i].rank == zero->rank)
            ZN_TRY(fill_piece(zero, &zero->pieces[i], read, ctx));
    return ZINC_OK;
}

zinc_status zn_zero_publish(zn_zero *zero)
{
    zn_event event = {0};
    if (zero->shared_slab)
        return zn_comm_barrier(zero->p.comm, "parameters published");
    ZN_TRY(zn_zero_order_after_compute(zero));
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        if (region->full && (zero->p.stage > 0 || zero->filling) &&
            (region->trainable || zero->filling))
            ZN_TRY(zn_zero_gather_chunks(zero, region, &region->param, region->param.base, 0,
                                         region->n_chunks, zero->p.allgather_bucket, &event));
        if (!zero->p.overlap_comm)
            ZN_TRY(zn_event_wait(event, -1));
    }
    return zn_event_wait(event, -1);
}

zinc_status zn_zero_fill(zn_zero *zero, zn_zero_read_fn read, void *ctx)
{
    /* a rank that cannot read its part must not leave the others in the gather */
    ZN_TRY(zn_comm_agree(zero->p.comm, fill_slices(zero, read, ctx)));
    zero->filling = true;
    const zinc_status status = zn_zero_publish(zero);
    zero->filling = false;
    if (status != ZINC_OK)
        return status;
    for (int r = 0; r < zero->n_regions; r++)
        if (zero->regions[r].trainable && !zero->regions[r].master_is_param)
            ZN_TRY(fill_master(zero, &zero->regions[r]));
    return ZINC_OK;
}

static zinc_status visit_frozen(zn_zero *zero, const zn_zero_piece *piece, zn_zero_visit_fn visit,
                                void *ctx)
{
    const zn_zero_view *view = &zero->regions[piece->region].param;
    void *from =
        offset_elems(zn_zero_at(view, piece->chunk, piece->rank), view->dtype, piece->in_slice);
    for (int64_t done = 0; done < piece->n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = piece->n - done;
        const int64_t n = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev), zero->fill_buffer,
                                        ZN_DTYPE_F32, offset_elems(from, view->dtype, done),
                                        view->dtype, 1.0f, n));
        ZN_TRY(visit(ctx, piece->param, piece->param_offset + done, n, zero->fill_buffer));
    }
    return ZINC_OK;
}

zinc_status zn_zero_visit(zn_zero *zero, int what, zn_zero_visit_fn visit, void *ctx)
{
    for (int64_t i = 0; i < zero->n_pieces; i++) {
        const zn_zero_piece *piece = &zero->pieces[i];
        const zn_zero_region *region = &zero->regions[piece->region];
        if (piece->rank != zero->rank)
            continue;
        if (!region->trainable) {
            if (what == ZN_ZERO_MASTERS)
                ZN_TRY(visit_frozen(zero, piece, visit, ctx));
            continue;
        }
        const zn_zero_view *view = what == ZN_ZERO_MASTERS ? &region->master : &region->state[what];
        const float *values =
            add_elems(zn_zero_at(view, piece->chunk, piece->rank), piece->in_slice);
        ZN_TRY(visit(ctx, piece->param, piece->param_offset, piece->n, values));
    }
    return ZINC_OK;
}
