/* SPDX-License-Identifier: Apache-2.0 */
/* fill.c — values in and out: each rank touches only its own slices. */
#include "zero/zero_internal.h"

#include <string.h>

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

/* Masters from the parameters just filled; states begin at zero. */
static zinc_status fill_masters(zn_zero *zero)
{
    const int n_states = zero->p.optim ? zero->p.optim->n_states : 0;
    zn_zero_walk walk = {.write = true};
    while (zn_zero_walk_next(zero, &walk)) {
        const zn_zero_region *region = &zero->regions[walk.piece->region];
        for (int k = 0; zero->window && k < n_states; k++)
            memset(zn_zero_state_at(zero, k, walk.piece, walk.offset), 0,
                   (size_t)walk.n * sizeof(float));
        if (region->master_is_param)
            continue;
        ZN_TRY(zero->p.kernels->convert(
            zn_device_compute(zero->p.dev),
            zn_zero_state_at(zero, ZN_ZERO_MASTERS, walk.piece, walk.offset), ZN_DTYPE_F32,
            zn_zero_piece_at(&region->param, walk.piece, walk.offset), region->param.dtype, 1.0f,
            walk.n));
    }
    return walk.status;
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
    const zinc_status status = zn_comm_barrier(zero->group, "parameters published");
    zero->stats.gather_wait_s += zn_sys_now() - start;
    return status;
}

zinc_status zn_zero_publish(zn_zero *zero)
{
    zn_event event = {0};
    if (zero->shared_slab)
        return publish_shared(zero);
    ZN_TRY(zn_zero_release_all(zero)); /* an evaluation may have left a unit gathered */
    zn_zero_forget_secondary(zero, zero->filling);
    ZN_TRY(zn_zero_order_after_compute(zero));
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        const zn_zero_source source = zn_zero_primary(zero, region, &region->param);
        if (region->full && (zero->p.stage > 0 || zero->filling) &&
            (region->trainable || zero->filling))
            ZN_TRY(zn_zero_gather_chunks(zero, region, &source, region->param.base, 0,
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
    return fill_masters(zero);
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

/* Replicas share the work: they hold the same pieces and take turns. */
static bool saves_here(const zn_zero *zero, int64_t index)
{
    const int64_t turn = zero->replicas ? zn_comm_rank(zero->replicas) : 0;
    return zero->pieces[index].rank == zero->rank && index % zero->n_replicas == turn;
}

zinc_status zn_zero_visit(zn_zero *zero, int what, zn_zero_visit_fn visit, void *ctx)
{
    zn_zero_walk walk = {.read = true};
    for (int64_t i = 0; what == ZN_ZERO_MASTERS && i < zero->n_pieces; i++)
        if (saves_here(zero, i) && !zero->regions[zero->pieces[i].region].trainable)
            ZN_TRY(visit_frozen(zero, &zero->pieces[i], visit, ctx));
    while (zn_zero_walk_next(zero, &walk))
        if (saves_here(zero, walk.index))
            ZN_TRY(visit(ctx, walk.piece->param, walk.piece->param_offset + walk.offset, walk.n,
                         zn_zero_state_at(zero, what, walk.piece, walk.offset)));
    return walk.status;
}

/* ---- restoring ---- */

static zinc_status restore_part(zn_zero *zero, const zn_zero_walk *walk, zn_zero_restore_fn read,
                                void *ctx)
{
    const zn_zero_piece *piece = walk->piece;
    const zn_zero_region *region = &zero->regions[piece->region];
    const int n_states = zero->p.optim ? zero->p.optim->n_states : 0;
    const int64_t at = piece->param_offset + walk->offset;
    float *master = zn_zero_state_at(zero, ZN_ZERO_MASTERS, piece, walk->offset);
    ZN_TRY(read(ctx, ZN_ZERO_MASTERS, piece->param, at, walk->n, master));
    for (int k = 0; k < n_states; k++)
        ZN_TRY(read(ctx, k, piece->param, at, walk->n,
                    zn_zero_state_at(zero, k, piece, walk->offset)));
    if (region->master_is_param)
        return ZINC_OK;
    return zero->p.kernels->convert(zn_device_compute(zero->p.dev),
                                    zn_zero_piece_at(&region->param, piece, walk->offset),
                                    region->param.dtype, master, ZN_DTYPE_F32, 1.0f, walk->n);
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
    zn_zero_walk walk = {.write = true};
    for (int64_t i = 0; i < zero->n_pieces; i++)
        if (zero->pieces[i].rank == zero->rank && !zero->regions[zero->pieces[i].region].trainable)
            ZN_TRY(fill_piece(zero, &zero->pieces[i], read_frozen, &source));
    while (zn_zero_walk_next(zero, &walk))
        ZN_TRY(restore_part(zero, &walk, read, ctx));
    return walk.status;
}

zinc_status zn_zero_restore(zn_zero *zero, zn_zero_restore_fn read, void *ctx)
{
    ZN_TRY(zn_comm_agree(zero->p.comm, restore_slices(zero, read, ctx)));
    return publish_everything(zero);
}
