/* SPDX-License-Identifier: Apache-2.0 */
/* offload.c — masters, optimizer state, reduced gradients and parameter shards off the device:
 * the buffers, and what travels over the link.
 *
 *   reduce-scatter -> landing (device) ==link==> gradients (host) -> update (host) -> out (host)
 *        ==link==> parameters (device)         host: slabs; disk: windows of it (windows.c)
 *
 * An offloaded shard is one row of elements over all offloaded regions, in layout order. It is
 * worked on in windows of at most ZN_ZERO_CHUNK elements, so every buffer here has a stated size.
 * The two directions of the link and of the disk are streams of their own; buffers of the link come
 * in pairs and windows in threes, so that an update runs beside its neighbours' transfers. */
#include <string.h>

#include "zero/zero_internal.h"

static int n_states(const zn_zero *zero)
{
    return zero->p.optim ? zero->p.optim->n_states : 0;
}

static zinc_status check_tiers(const zn_zero *zero)
{
    if (zero->p.optimizer_tier != ZN_ZERO_ON_DEVICE && zero->p.stage == 0)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "zero_optimization.offload_optimizer needs stage 1, 2 or 3: at "
                                    "stage 0 every rank would update everything on the host");
    if (zero->p.param_tier != ZN_ZERO_ON_DEVICE && zero->p.stage != 3)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "zero_optimization.offload_param needs stage 3");
    if (zero->p.optimizer_tier != ZN_ZERO_ON_DEVICE && zero->p.grad_accum_dtype != ZN_DTYPE_F32)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "data_types.grad_accum_dtype %s: offloaded gradients are fp32; leave the key out",
                zn_dtype_name(zero->p.grad_accum_dtype));
    return ZINC_OK;
}

zinc_status zn_zero_host_alloc(zn_zero *zero, zn_mem_category category, int64_t n_bytes,
                               const char *what, void *out)
{
    return zn_device_alloc_zeroed(zero->p.dev, ZN_PLACE_HOST, category, (size_t)n_bytes, what, out);
}

static zn_zero_view packed_at(const zn_zero_region *region, void *slab, int64_t first,
                              zn_dtype dtype)
{
    return (zn_zero_view){(char *)slab + (size_t)first * zn_dtype_size(dtype), dtype,
                          region->slab_stride, 0};
}

/* Shards of parameters on the host, trainable and frozen, in region order. */
static zinc_status alloc_host_params(zn_zero *zero)
{
    int64_t total = 0;
    for (int r = 0; r < zero->n_regions; r++)
        if (zero->regions[r].param_on_host)
            total += zero->regions[r].n_chunks * zero->regions[r].slab_stride;
    if (total == 0)
        return ZINC_OK;
    const zn_dtype dtype = zero->p.param_dtype;
    ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_PARAMETERS, total * (int64_t)zn_dtype_size(dtype),
                              "parameter shards", &zero->host_param_slab));
    int64_t first = 0;
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (!region->param_on_host)
            continue;
        region->param = packed_at(region, zero->host_param_slab, first, dtype);
        first += region->n_chunks * region->slab_stride;
    }
    return ZINC_OK;
}

/* Of what is on disk the view has no memory; its elements are in windows. */
static void place_masters(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (region->param_on_disk)
            region->param = (zn_zero_view){NULL, zero->p.param_dtype, region->slab_stride, 0};
        if (!region->offloaded)
            continue;
        if (region->master_is_param)
            region->master = region->param;
        else if (region->split)
            region->master =
                packed_at(region, zero->host_low_slab, region->master_first, ZN_DTYPE_BF16);
        else if (zero->host_master_slab)
            region->master =
                packed_at(region, zero->host_master_slab, region->master_first, ZN_DTYPE_F32);
        else
            region->master = (zn_zero_view){0};
        for (int k = 0; k < n_states(zero) && zero->host_state_slab[k]; k++)
            region->state[k] =
                packed_at(region, zero->host_state_slab[k], region->slab_first, ZN_DTYPE_F32);
        region->grad =
            zero->host_grad_slab
                ? packed_at(region, zero->host_grad_slab, region->slab_first, ZN_DTYPE_F32)
                : (zn_zero_view){NULL, ZN_DTYPE_F32, region->slab_stride, 0};
    }
}

static zinc_status alloc_host_optimizer(zn_zero *zero)
{
    const int64_t n_bytes = zero->offloaded_elems * (int64_t)sizeof(float);
    const bool on_host = zero->p.optimizer_tier == ZN_ZERO_ON_HOST;
    if (!zero->grads_on_disk)
        ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_GRADIENTS, n_bytes, "gradients",
                                  &zero->host_grad_slab));
    if (zero->host_masters > 0)
        ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_MASTERS, zero->host_masters * (int64_t)sizeof(float),
                                  "fp32 master weights", &zero->host_master_slab));
    if (zero->host_low_elems > 0)
        ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_MASTERS,
                                  zero->host_low_elems * (int64_t)sizeof(uint16_t),
                                  "low halves of master weights", &zero->host_low_slab));
    for (int k = 0; on_host && k < n_states(zero); k++)
        ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_OPTIMIZER_STATE, n_bytes,
                                  zero->p.optim->state_names[k], &zero->host_state_slab[k]));
    return ZINC_OK;
}

/* ---- buffers of the transfers ---- */

static zinc_status alloc_landing(zn_zero *zero)
{
    const int64_t n_bytes = zero->landing_elems * (int64_t)sizeof(float);
    for (int i = 0; i < 2; i++) {
        ZN_TRY(zn_device_alloc(zero->p.dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, (size_t)n_bytes,
                               "reduced gradients on their way to the host", &zero->landing[i]));
        if (zero->grads_on_disk)
            ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_BUFFERS, n_bytes,
                                      "gradients on their way to the disk", &zero->grad_out[i]));
    }
    return zn_zero_host_alloc(zero, ZN_MEM_BUFFERS, n_bytes, "gradients to be added",
                              &zero->bounce);
}

static zinc_status alloc_out(zn_zero *zero)
{
    const int64_t n_bytes = zero->window_elems * (int64_t)zn_dtype_size(zero->p.param_dtype);
    for (int i = 0; zero->sends_back && i < 2; i++)
        ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_BUFFERS, n_bytes,
                                  "updated parameters on their way back", &zero->out[i]));
    return ZINC_OK;
}

static zinc_status alloc_param_buffers(zn_zero *zero)
{
    const int64_t n_bytes = zero->param_buffer_elems * (int64_t)zn_dtype_size(zero->p.param_dtype);
    for (int i = 0; i < zero->n_param_buffers; i++)
        ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_BUFFERS, n_bytes, "parameters from the disk",
                                  &zero->param_buffers[i]));
    return ZINC_OK;
}

zinc_status zn_zero_offload_alloc(zn_zero *zero)
{
    ZN_TRY(check_tiers(zero));
    zn_zero_place_tiers(zero);
    ZN_TRY(alloc_host_params(zero));
    if (zero->offloaded_elems > 0) {
        ZN_TRY(alloc_host_optimizer(zero));
        ZN_TRY(alloc_landing(zero));
        ZN_TRY(alloc_out(zero));
        if (!zn_device_link(zero->p.dev, true) || !zn_device_link(zero->p.dev, false))
            ZN_FAIL(ZINC_E_DEVICE, "the device has no copy engine");
    }
    place_masters(zero);
    ZN_TRY(alloc_param_buffers(zero));
    return zn_zero_windows_alloc(zero);
}

void zn_zero_offload_free(zn_zero *zero)
{
    zn_device *dev = zero->p.dev;
    zn_stream_destroy(zero->updates); /* waits for what was submitted */
    zero->updates = NULL;
    if (zero->offloaded_elems > 0 || zero->n_param_buffers > 0) {
        /* copies may still be under way after an error elsewhere */
        zn_stream *const links[] = {zn_device_link(dev, true), zn_device_link(dev, false)};
        for (int i = 0; i < 2; i++)
            if (links[i])
                zn_ignore(zn_stream_sync(links[i], -1)); /* an error was told before */
    }
    zn_zero_windows_free(zero);
    zn_device_free(dev, zero->host_param_slab);
    zn_device_free(dev, zero->host_master_slab);
    zn_device_free(dev, zero->host_low_slab);
    zn_device_free(dev, zero->host_grad_slab);
    for (int k = 0; k < ZN_OPTIM_MAX_STATES; k++)
        zn_device_free(dev, zero->host_state_slab[k]);
    for (int i = 0; i < 2; i++) {
        zn_device_free(dev, zero->landing[i]);
        zn_device_free(dev, zero->grad_out[i]);
        zn_device_free(dev, zero->out[i]);
    }
    for (int i = 0; i < zero->n_param_buffers; i++)
        zn_device_free(dev, zero->param_buffers[i]);
    zn_device_free(dev, zero->bounce);
}

/* ---- gradients to the host ---- */

zinc_status zn_zero_landing_get(zn_zero *zero, int *slot, void **out)
{
    const int i = zero->landing_next;
    zero->landing_next = 1 - i;
    ZN_TRY(zn_stream_wait_event(zn_comm_stream(zero->group), zero->landing_event[i]));
    *slot = i;
    *out = zero->landing[i];
    return ZINC_OK;
}

typedef struct add_args {
    float *to;
    const float *from;
    int64_t n;
} add_args;

/* to += from, as the collective's own accumulation would: one fp32 addition an element. */
static zinc_status add_work(void *arg)
{
    const add_args *add = arg;
    for (int64_t i = 0; i < add->n; i++)
        add->to[i] += add->from[i];
    return ZINC_OK;
}

typedef struct square_args {
    const zn_zero *zero;
    const zn_zero_region *region;
    int64_t chunk, n;
    const char *from;
} square_args;

/* The norm's partial sums of slices that are about to leave for the disk. */
static zinc_status square_work(void *arg)
{
    const square_args *a = arg;
    const zn_zero *zero = a->zero;
    zn_stream *back = zn_device_link(zero->p.dev, false);
    for (int64_t i = 0; i < a->n; i++) {
        const int64_t chunk = a->region->first_chunk + a->chunk + i;
        ZN_TRY(zero->p.kernels->sum_squares(
            back, a->from + i * a->region->slab_stride * (int64_t)sizeof(float), ZN_DTYPE_F32,
            a->region->slice_elems, &zero->partials[chunk * zero->n_ranks + zero->rank]));
    }
    return ZINC_OK;
}

/* The gradients of a bucket have arrived in grad_out[slot]: add what the disk has, and write. */
static zinc_status land_on_disk(zn_zero *zero, const zn_zero_region *region, int64_t chunk,
                                int64_t n, int slot, bool accumulate)
{
    zn_disk *disk = zero->disks[ZN_ZERO_STATE_FILE];
    zn_stream *back = zn_device_link(zero->p.dev, false);
    zn_event *last = &zero->last_write[ZN_ZERO_STATE_FILE];
    const int64_t n_elems = n * region->slab_stride, size = sizeof(float);
    zn_disk_run run = {
        .memory = zero->bounce,
        .offset = zero->runs[ZN_ZERO_RUN_GRADS].in_file +
                  (region->slab_first + chunk * region->slab_stride) * size,
        .n_bytes = n_elems * size,
    };
    if (accumulate) {
        zn_event read = {0};
        const add_args add = {.to = zero->grad_out[slot], .from = zero->bounce, .n = n_elems};
        ZN_TRY(zn_disk_submit(disk, false, &run, 0, zero->bounce_event, &read));
        ZN_TRY(zn_disk_submit(disk, false, &run, 1, *last, &read));
        ZN_TRY(zn_stream_wait_event(back, read));
        ZN_TRY(zn_stream_submit(back, add_work, &add, sizeof add, &zero->last_reduce));
        zero->bounce_event = zero->last_reduce;
        zero->stats.disk_read_bytes += run.n_bytes;
    }
    if (zero->boundary) {
        const square_args squares = {zero, region, chunk, n, zero->grad_out[slot]};
        ZN_TRY(zn_stream_submit(back, square_work, &squares, sizeof squares, &zero->last_reduce));
    }
    run.memory = zero->grad_out[slot];
    ZN_TRY(zn_disk_submit(disk, true, &run, 1, zero->last_reduce, &zero->grad_out_event[slot]));
    *last = zero->grad_out_event[slot];
    zero->stats.disk_written_bytes += run.n_bytes;
    return ZINC_OK;
}

zinc_status zn_zero_land(zn_zero *zero, const zn_zero_region *region, int64_t chunk, int64_t n,
                         int slot, bool accumulate)
{
    zn_stream *back = zn_device_link(zero->p.dev, false);
    const int64_t n_elems = n * region->slab_stride;
    const size_t n_bytes = (size_t)n_elems * sizeof(float);
    const bool on_disk = zero->grads_on_disk;
    float *at_rest = on_disk ? zero->grad_out[slot] : zn_zero_at(&region->grad, chunk, 0);
    ZN_TRY(zn_stream_wait_event(back, zero->last_reduce));
    if (on_disk)
        ZN_TRY(zn_stream_wait_event(back, zero->grad_out_event[slot]));
    ZN_TRY(zn_device_copy(back, accumulate && !on_disk ? zero->bounce : at_rest,
                          zero->landing[slot], n_bytes, &zero->last_reduce));
    if (on_disk) {
        ZN_TRY(land_on_disk(zero, region, chunk, n, slot, accumulate));
    } else if (accumulate) {
        const add_args add = {.to = at_rest, .from = zero->bounce, .n = n_elems};
        ZN_TRY(zn_stream_submit(back, add_work, &add, sizeof add, &zero->last_reduce));
    }
    zero->landing_event[slot] = zero->last_reduce;
    zero->stats.to_host_bytes += (int64_t)n_bytes;
    return ZINC_OK;
}

/* ---- parameters to the device ---- */

/* Copy elements [from, from + n) of the region's shard (positions from its first) out of `memory`
 * to where they belong in `full`. */
static zinc_status spread(zn_zero *zero, const zn_zero_region *region, const char *memory,
                          int64_t from, int64_t n, void *full, zn_event *copied)
{
    const int64_t size = (int64_t)zn_dtype_size(region->param.dtype);
    const int64_t stride = region->slab_stride, slice = region->slice_elems;
    for (int64_t at = from; at < from + n;) {
        const int64_t chunk = at / stride, in_slice = at % stride;
        const int64_t next = (chunk + 1) * stride < from + n ? (chunk + 1) * stride : from + n;
        const int64_t end = next - chunk * stride < slice ? next - chunk * stride : slice;
        const int64_t to = chunk * region->chunk_elems + zero->rank * slice + in_slice;
        if (end > in_slice) {
            ZN_TRY(zn_device_copy(zn_device_link(zero->p.dev, true), (char *)full + to * size,
                                  memory + (at - from) * size, (size_t)((end - in_slice) * size),
                                  copied));
            zero->stats.to_device_bytes += (end - in_slice) * size;
        }
        at = next;
    }
    return ZINC_OK;
}

/* Through the pool: each buffer is filled again when its copies have left it. */
static zinc_status param_from_disk(zn_zero *zero, const zn_zero_region *region, void *full,
                                   int64_t first, int64_t n, zn_event *copied)
{
    zn_disk *disk = zero->disks[ZN_ZERO_PARAM_FILE];
    const int64_t size = (int64_t)zn_dtype_size(region->param.dtype);
    const int64_t end = (first + n) * region->slab_stride;
    for (int64_t at = first * region->slab_stride; at < end; at += zero->param_buffer_elems) {
        const int64_t left = end - at;
        const int64_t m = left < zero->param_buffer_elems ? left : zero->param_buffer_elems;
        const int b = zero->param_buffer_next;
        zn_event read = {0};
        const zn_disk_run run = {.memory = zero->param_buffers[b],
                                 .offset = zero->runs[ZN_ZERO_RUN_PARAMS].in_file +
                                           (region->slab_first + at) * size,
                                 .n_bytes = m * size};
        ZN_TRY(zn_disk_submit(disk, false, &run, 0, zero->last_write[ZN_ZERO_PARAM_FILE], &read));
        ZN_TRY(zn_disk_submit(disk, false, &run, 1, zero->param_buffer_event[b], &read));
        ZN_TRY(zn_stream_wait_event(zn_device_link(zero->p.dev, true), read));
        ZN_TRY(spread(zero, region, zero->param_buffers[b], at, m, full, copied));
        zero->param_buffer_event[b] = *copied;
        zero->param_buffer_next = (b + 1) % zero->n_param_buffers;
        zero->stats.disk_read_bytes += run.n_bytes;
    }
    return ZINC_OK;
}

zinc_status zn_zero_param_to_device(zn_zero *zero, const zn_zero_region *region, void *full,
                                    int64_t first, int64_t n)
{
    zn_event copied = {0};
    if (!zn_device_link(zero->p.dev, true))
        ZN_FAIL(ZINC_E_DEVICE, "the device has no copy engine");
    if (region->param_on_disk)
        ZN_TRY(param_from_disk(zero, region, full, first, n, &copied));
    else
        ZN_TRY(spread(zero, region, zn_zero_at(&region->param, first, 0),
                      first * region->slab_stride, n * region->slab_stride, full, &copied));
    return zn_stream_wait_event(zn_comm_stream(zero->group), copied);
}

zinc_status zn_zero_out_get(zn_zero *zero, const zn_zero_walk *walk, void **out)
{
    const zn_zero_region *region = &zero->regions[walk->piece->region];
    if (region->master_is_param) {
        *out = NULL;
        return ZINC_OK;
    }
    if (!region->offloaded || zn_zero_param_is_off(region)) {
        *out = zn_zero_param_at(zero, walk->piece, walk->offset);
        return ZINC_OK;
    }
    const int64_t position = zn_zero_position(zero, walk->piece, walk->offset);
    const int64_t window = position / zero->window_elems;
    if (window != zero->out_window) {
        zero->out_window = window;
        zero->out_next = 1 - zero->out_next;
        ZN_TRY(zn_event_wait(zero->out_event[zero->out_next], -1));
    }
    *out = (char *)zero->out[zero->out_next] +
           (size_t)(position % zero->window_elems) * zn_dtype_size(zero->p.param_dtype);
    return ZINC_OK;
}

zinc_status zn_zero_out_send(zn_zero *zero, const zn_zero_walk *walk, void *out,
                             zn_zero_stats *stats)
{
    const zn_zero_region *region = &zero->regions[walk->piece->region];
    const size_t n_bytes = (size_t)walk->n * zn_dtype_size(zero->p.param_dtype);
    if (!out || !region->offloaded || zn_zero_param_is_off(region))
        return ZINC_OK;
    stats->to_device_bytes += (int64_t)n_bytes;
    return zn_device_copy(zn_device_link(zero->p.dev, true),
                          zn_zero_piece_at(&region->param, walk->piece, walk->offset), out, n_bytes,
                          &zero->out_event[zero->out_next]);
}

zinc_status zn_zero_out_wait(zn_zero *zero)
{
    zero->out_window = -1;
    for (int i = 0; i < 2; i++)
        ZN_TRY(zn_event_wait(zero->out_event[i], -1));
    return ZINC_OK;
}
