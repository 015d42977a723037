/* SPDX-License-Identifier: Apache-2.0 */
/* fill.c — values in and out: each rank touches only its own slices. */
#include "zero/zero_internal.h"

#include <string.h>

#include "base/sys.h"

/* Elements [offset, offset + n) of a piece, which are in memory or in the open window. */
static zinc_status fill_part(zn_zero *zero, const zn_zero_piece *piece, int64_t offset, int64_t n,
                             zn_zero_read_fn read, void *ctx)
{
    const zn_dtype dtype = zero->regions[piece->region].param.dtype;
    for (int64_t done = offset; done < offset + n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = offset + n - done;
        const int64_t m = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(read(ctx, piece->param, piece->param_offset + done, m, zero->fill_buffer));
        ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev),
                                        zn_zero_param_at(zero, piece, done), dtype,
                                        zero->fill_buffer, ZN_DTYPE_F32, 1.0f, m));
    }
    return ZINC_OK;
}

/* Masters from the parameters just filled; states begin at zero. */
static zinc_status fill_masters(zn_zero *zero)
{
    const int n_states = zero->p.optim ? zero->p.optim->n_states : 0;
    zn_zero_walk walk = {.read = ZN_ZERO_PARAM_RUNS, .write = ZN_ZERO_STATE_RUNS};
    while (zn_zero_walk_next(zero, &walk)) {
        const zn_zero_region *region = &zero->regions[walk.piece->region];
        for (int k = 0; zero->window && k < n_states; k++)
            memset(zn_zero_state_at(zero, k, walk.piece, walk.offset), 0,
                   (size_t)walk.n * sizeof(float));
        if (region->master_is_param)
            continue;
        if (region->split) { /* a rounded value has no low half */
            ZN_TRY(zero->p.kernels->zero(zn_device_compute(zero->p.dev),
                                         zn_zero_low_at(zero, walk.piece, walk.offset),
                                         walk.n * 2));
            continue;
        }
        ZN_TRY(zero->p.kernels->convert(
            zn_device_compute(zero->p.dev),
            zn_zero_state_at(zero, ZN_ZERO_MASTERS, walk.piece, walk.offset), ZN_DTYPE_F32,
            zn_zero_param_at(zero, walk.piece, walk.offset), region->param.dtype, 1.0f, walk.n));
    }
    return walk.status;
}

/* What is on disk goes there window by window. */
static zinc_status fill_disk(zn_zero *zero, bool frozen, zn_zero_read_fn read, void *ctx)
{
    zn_zero_walk walk = {.write = ZN_ZERO_PARAM_RUNS, .frozen = frozen};
    if (zero->params_end == 0)
        return ZINC_OK;
    while (zn_zero_walk_next(zero, &walk))
        if (zero->regions[walk.piece->region].param_on_disk)
            ZN_TRY(fill_part(zero, walk.piece, walk.offset, walk.n, read, ctx));
    return walk.status;
}

static zinc_status fill_slices(zn_zero *zero, zn_zero_read_fn read, void *ctx)
{
    for (int64_t i = 0; i < zero->n_pieces; i++) {
        const zn_zero_piece *piece = &zero->pieces[i];
        if (piece->rank == zero->rank && !zero->regions[piece->region].param_on_disk)
            ZN_TRY(fill_part(zero, piece, 0, piece->n, read, ctx));
    }
    ZN_TRY(fill_disk(zero, false, read, ctx));
    return fill_disk(zero, true, read, ctx);
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

static zinc_status visit_frozen(zn_zero *zero, const zn_zero_piece *piece, int64_t offset,
                                int64_t n, zn_zero_visit_fn visit, void *ctx)
{
    const zn_dtype dtype = zero->regions[piece->region].param.dtype;
    for (int64_t done = offset; done < offset + n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = offset + n - done;
        const int64_t m = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(zero->p.kernels->convert(zn_device_compute(zero->p.dev), zero->fill_buffer,
                                        ZN_DTYPE_F32, zn_zero_param_at(zero, piece, done), dtype,
                                        1.0f, m));
        ZN_TRY(visit(ctx, piece->param, piece->param_offset + done, m, zero->fill_buffer));
    }
    return ZINC_OK;
}

/* Replicas share the work: they hold the same pieces and take turns. */
static bool saves_here(const zn_zero *zero, int64_t index)
{
    const int64_t turn = zero->replicas ? zn_comm_rank(zero->replicas) : 0;
    return zero->pieces[index].rank == zero->rank && index % zero->n_replicas == turn;
}

static bool is_frozen_in_memory(const zn_zero *zero, const zn_zero_piece *piece)
{
    const zn_zero_region *region = &zero->regions[piece->region];
    return piece->rank == zero->rank && !region->trainable && !region->param_on_disk;
}

static zinc_status visit_all_frozen(zn_zero *zero, zn_zero_visit_fn visit, void *ctx)
{
    zn_zero_walk walk = {.read = ZN_ZERO_PARAM_RUNS, .frozen = true};
    for (int64_t i = 0; i < zero->n_pieces; i++)
        if (saves_here(zero, i) && is_frozen_in_memory(zero, &zero->pieces[i]))
            ZN_TRY(visit_frozen(zero, &zero->pieces[i], 0, zero->pieces[i].n, visit, ctx));
    while (zn_zero_walk_next(zero, &walk))
        if (saves_here(zero, walk.index))
            ZN_TRY(visit_frozen(zero, walk.piece, walk.offset, walk.n, visit, ctx));
    return walk.status;
}

/* Masters in halves are joined for the visit. */
static zinc_status visit_split(zn_zero *zero, const zn_zero_walk *walk, zn_zero_visit_fn visit,
                               void *ctx)
{
    const zn_zero_piece *piece = walk->piece;
    for (int64_t done = 0; done < walk->n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = walk->n - done, at = walk->offset + done;
        const int64_t m = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        const uint16_t *hi = zn_zero_param_at(zero, piece, at);
        const uint16_t *lo = zn_zero_low_at(zero, piece, at);
        zn_device_memory_open(zero->p.dev);
        for (int64_t i = 0; i < m; i++)
            zero->fill_buffer[i] = zn_f32_join(hi[i], lo[i]);
        zn_device_memory_close(zero->p.dev);
        ZN_TRY(visit(ctx, piece->param, piece->param_offset + at, m, zero->fill_buffer));
    }
    return ZINC_OK;
}

/* Whether a region's masters and state are in memory that the host cannot touch. */
static bool out_of_reach(const zn_zero *zero, const zn_zero_region *region)
{
    return !region->offloaded && !zn_device_host_readable(zero->p.dev);
}

static zinc_status visit_part(zn_zero *zero, int what, const zn_zero_walk *walk,
                              zn_zero_visit_fn visit, void *ctx)
{
    if (what == ZN_ZERO_MASTERS && zero->regions[walk->piece->region].split)
        return visit_split(zero, walk, visit, ctx);
    const zn_zero_piece *piece = walk->piece;
    const float *from = zn_zero_state_at(zero, what, piece, walk->offset);
    const int64_t at = piece->param_offset + walk->offset;
    if (!out_of_reach(zero, &zero->regions[piece->region]))
        return visit(ctx, piece->param, at, walk->n, from);
    for (int64_t done = 0; done < walk->n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = walk->n - done;
        const int64_t m = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(zn_device_copy_now(zero->p.dev, zero->fill_buffer, from + done,
                                  (size_t)m * sizeof(float)));
        ZN_TRY(visit(ctx, piece->param, at + done, m, zero->fill_buffer));
    }
    return ZINC_OK;
}

static zinc_status visit_grads(zn_zero *zero, zn_zero_visit_fn visit, void *ctx)
{
    zn_zero_walk walk = {.read = ZN_ZERO_GRAD_RUNS, .most = ZN_ZERO_IO_ELEMS};
    while (zn_zero_walk_next(zero, &walk)) {
        if (!saves_here(zero, walk.index))
            continue;
        ZN_TRY(
            zero->p.kernels->convert(zn_device_compute(zero->p.dev), zero->fill_buffer,
                                     ZN_DTYPE_F32, zn_zero_grad_at(zero, walk.piece, walk.offset),
                                     zero->regions[walk.piece->region].grad.dtype, 1.0f, walk.n));
        ZN_TRY(visit(ctx, walk.piece->param, walk.piece->param_offset + walk.offset, walk.n,
                     zero->fill_buffer));
    }
    return walk.status;
}

zinc_status zn_zero_visit(zn_zero *zero, int what, zn_zero_visit_fn visit, void *ctx)
{
    if (what == ZN_ZERO_GRADS)
        return visit_grads(zero, visit, ctx);
    zn_zero_walk walk = {.read = 1u << (ZN_ZERO_RUN_MASTERS + what - ZN_ZERO_MASTERS)};
    if (what == ZN_ZERO_MASTERS)
        ZN_TRY(visit_all_frozen(zero, visit, ctx));
    while (zn_zero_walk_next(zero, &walk))
        if (saves_here(zero, walk.index))
            ZN_TRY(visit_part(zero, what, &walk, visit, ctx));
    return walk.status;
}

/* ---- restoring ---- */

static zinc_status restore_split(zn_zero *zero, const zn_zero_walk *walk, zn_zero_restore_fn read,
                                 void *ctx)
{
    const zn_zero_piece *piece = walk->piece;
    for (int64_t done = 0; done < walk->n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = walk->n - done, at = walk->offset + done;
        const int64_t m = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        uint16_t *hi = zn_zero_param_at(zero, piece, at), *lo = zn_zero_low_at(zero, piece, at);
        ZN_TRY(read(ctx, ZN_ZERO_MASTERS, piece->param, piece->param_offset + at, m,
                    zero->fill_buffer));
        zn_device_memory_open(zero->p.dev);
        for (int64_t i = 0; i < m; i++) {
            hi[i] = zn_f32_to_bf16(zero->fill_buffer[i]);
            lo[i] = zn_f32_low(zero->fill_buffer[i]);
        }
        zn_device_memory_close(zero->p.dev);
    }
    return ZINC_OK;
}

/* Masters or a state of a walk's part, by way of the host's memory where they are out of reach. */
static zinc_status restore_values(zn_zero *zero, const zn_zero_walk *walk, int what,
                                  zn_zero_restore_fn read, void *ctx)
{
    const zn_zero_piece *piece = walk->piece;
    float *to = zn_zero_state_at(zero, what, piece, walk->offset);
    const int64_t at = piece->param_offset + walk->offset;
    if (!out_of_reach(zero, &zero->regions[piece->region]))
        return read(ctx, what, piece->param, at, walk->n, to);
    for (int64_t done = 0; done < walk->n; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = walk->n - done;
        const int64_t m = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(read(ctx, what, piece->param, at + done, m, zero->fill_buffer));
        ZN_TRY(zn_device_copy_now(zero->p.dev, to + done, zero->fill_buffer,
                                  (size_t)m * sizeof(float)));
    }
    return ZINC_OK;
}

static zinc_status restore_master(zn_zero *zero, const zn_zero_walk *walk, zn_zero_restore_fn read,
                                  void *ctx)
{
    const zn_zero_piece *piece = walk->piece;
    const zn_zero_region *region = &zero->regions[piece->region];
    if (region->split)
        return restore_split(zero, walk, read, ctx);
    const float *master = zn_zero_state_at(zero, ZN_ZERO_MASTERS, piece, walk->offset);
    ZN_TRY(restore_values(zero, walk, ZN_ZERO_MASTERS, read, ctx));
    if (region->master_is_param)
        return ZINC_OK;
    return zero->p.kernels->convert(zn_device_compute(zero->p.dev),
                                    zn_zero_param_at(zero, piece, walk->offset),
                                    region->param.dtype, master, ZN_DTYPE_F32, 1.0f, walk->n);
}

static zinc_status restore_part(zn_zero *zero, const zn_zero_walk *walk, zn_zero_restore_fn read,
                                void *ctx)
{
    const int n_states = zero->p.optim ? zero->p.optim->n_states : 0;
    ZN_TRY(restore_master(zero, walk, read, ctx));
    for (int k = 0; k < n_states; k++)
        ZN_TRY(restore_values(zero, walk, k, read, ctx));
    return ZINC_OK;
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
    zn_zero_walk walk = {.write = ZN_ZERO_STATE_RUNS | ZN_ZERO_PARAM_RUNS};
    for (int64_t i = 0; i < zero->n_pieces; i++)
        if (is_frozen_in_memory(zero, &zero->pieces[i]))
            ZN_TRY(fill_part(zero, &zero->pieces[i], 0, zero->pieces[i].n, read_frozen, &source));
    ZN_TRY(fill_disk(zero, true, read_frozen, &source));
    while (zn_zero_walk_next(zero, &walk))
        ZN_TRY(restore_part(zero, &walk, read, ctx));
    return walk.status;
}

zinc_status zn_zero_restore(zn_zero *zero, zn_zero_restore_fn read, void *ctx)
{
    ZN_TRY(zn_comm_agree(zero->p.comm, restore_slices(zero, read, ctx)));
    return publish_everything(zero);
}
