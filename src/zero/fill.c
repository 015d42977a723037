/* SPDX-License-Identifier: Apache-2.0 */
/* fill.c — values in and out: each rank touches only its own slices. */
#include "zero/zero_internal.h"

#include "base/sys.h"

static zinc_status fill_piece(zn_zero *zero, const zn_zero_piece *piece, zn_zero_read_fn read,
                              void *ctx)
{
    const zn_zero_view *view = &zero->regions[piece->region].param;
    for (int64_t done = 0; done < piece->n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = piece->n - done;
        const int64_t n = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(read(ctx, piece->param, piece->param_offset + done, n, zero->fill_buffer));
        ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev),
                                        zn_zero_piece_at(view, piece, done), view->dtype,
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

/* Nothing moves where ranks share the buffer; that all have written is waited for. */
static zinc_status publish_shared(zn_zero *zero)
{
    const double start = zn_sys_now();
    const zinc_status status = zn_comm_barrier(zero->p.comm, "parameters published");
    zero->stats.gather_wait_s += zn_sys_now() - start;
    return status;
}

zinc_status zn_zero_publish(zn_zero *zero)
{
    zn_event event = {0};
    if (zero->shared_slab)
        return publish_shared(zero);
    ZN_TRY(zn_zero_order_after_compute(zero));
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        if (region->full && (zero->p.stage > 0 || zero->filling) &&
            (region->trainable || zero->filling))
            ZN_TRY(zn_zero_gather_chunks(zero, region, &region->param, region->param.base, 0,
                                         region->n_chunks, zero->p.allgather_bucket, &event));
        if (!zero->p.overlap_comm)
            ZN_TRY(zn_zero_wait(event, &zero->stats.gather_wait_s));
    }
    return zn_zero_wait(event, &zero->stats.gather_wait_s);
}

static zinc_status publish_everything(zn_zero *zero)
{
    zero->filling = true;
    const zinc_status status = zn_zero_publish(zero);
    zero->filling = false;
    return status;
}

zinc_status zn_zero_fill(zn_zero *zero, zn_zero_read_fn read, void *ctx)
{
    /* a rank that cannot read its part must not leave the others in the gather */
    ZN_TRY(zn_comm_agree(zero->p.comm, fill_slices(zero, read, ctx)));
    ZN_TRY(publish_everything(zero));
    for (int r = 0; r < zero->n_regions; r++)
        if (zero->regions[r].trainable && !zero->regions[r].master_is_param)
            ZN_TRY(fill_master(zero, &zero->regions[r]));
    return ZINC_OK;
}

static zinc_status visit_frozen(zn_zero *zero, const zn_zero_piece *piece, zn_zero_visit_fn visit,
                                void *ctx)
{
    const zn_zero_view *view = &zero->regions[piece->region].param;
    for (int64_t done = 0; done < piece->n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = piece->n - done;
        const int64_t n = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev), zero->fill_buffer,
                                        ZN_DTYPE_F32, zn_zero_piece_at(view, piece, done),
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
        ZN_TRY(visit(ctx, piece->param, piece->param_offset, piece->n,
                     zn_zero_piece_at(view, piece, 0)));
    }
    return ZINC_OK;
}

/* ---- restoring ---- */

static zinc_status restore_piece(zn_zero *zero, const zn_zero_piece *piece, zn_zero_restore_fn read,
                                 void *ctx)
{
    const zn_zero_region *region = &zero->regions[piece->region];
    const int n_states = zero->p.optim ? zero->p.optim->n_states : 0;
    float *master = zn_zero_piece_at(&region->master, piece, 0);
    ZN_TRY(read(ctx, ZN_ZERO_MASTERS, piece->param, piece->param_offset, piece->n, master));
    for (int k = 0; k < n_states; k++)
        ZN_TRY(read(ctx, k, piece->param, piece->param_offset, piece->n,
                    zn_zero_piece_at(&region->state[k], piece, 0)));
    if (region->master_is_param)
        return ZINC_OK;
    return zero->p.kernels->convert(zn_device_compute(zero->p.dev),
                                    zn_zero_piece_at(&region->param, piece, 0), region->param.dtype,
                                    master, ZN_DTYPE_F32, 1.0f, piece->n);
}

/* A frozen parameter goes the way it first came. */
typedef struct frozen_source {
    zn_zero_restore_fn read;
    void *ctx;
} frozen_source;

static zinc_status read_frozen(void *ctx, int param, int64_t offset, int64_t n, float *out)
{
    const frozen_source *source = ctx;
    return source->read(source->ctx, ZN_ZERO_MASTERS, param, offset, n, out);
}

static zinc_status restore_slices(zn_zero *zero, zn_zero_restore_fn read, void *ctx)
{
    frozen_source source = {.read = read, .ctx = ctx};
    for (int64_t i = 0; i < zero->n_pieces; i++) {
        const zn_zero_piece *piece = &zero->pieces[i];
        if (zn_zero_updates_here(zero, piece))
            ZN_TRY(restore_piece(zero, piece, read, ctx));
        else if (!zero->regions[piece->region].trainable && piece->rank == zero->rank)
            ZN_TRY(fill_piece(zero, piece, read_frozen, &source));
    }
    return ZINC_OK;
}

zinc_status zn_zero_restore(zn_zero *zero, zn_zero_restore_fn read, void *ctx)
{
    ZN_TRY(zn_comm_agree(zero->p.comm, restore_slices(zero, read, ctx)));
    return publish_everything(zero);
}
