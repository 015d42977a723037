/* SPDX-License-Identifier: Apache-2.0 */
/* offload.c — masters, optimizer state, reduced gradients and parameter shards off the device.
 *
 *   reduce-scatter -> landing (device) ==link==> gradients (host) -> update (host) -> out (host)
 *        ==link==> parameters (device)         masters and states: host slabs, or windows on disk
 *
 * An offloaded shard is one row of elements over all offloaded regions, in layout order. It is
 * worked on in windows of at most ZN_ZERO_CHUNK elements, so every buffer here has a stated size.
 * The two directions of the link and of the disk are streams of their own; buffers of the link come
 * in pairs and windows in threes, so that an update runs beside its neighbours' transfers. */
#include <string.h>

#include "zero/zero_internal.h"

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

int64_t zn_zero_window_elems(int64_t offloaded_elems)
{
    const int64_t n = round_up(offloaded_elems, ZN_ZERO_BLOCK);
    return n < ZN_ZERO_CHUNK ? n : ZN_ZERO_CHUNK;
}

static int n_states(const zn_zero *zero)
{
    return zero->p.optim ? zero->p.optim->n_states : 0;
}

/* ---- layout ---- */

/* Offload whole units, the first ones, until the asked share of elements is reached. */
static void choose_regions(zn_zero *zero)
{
    const int64_t wanted =
        (int64_t)((double)zero->stats.trainable_padded / zero->n_ranks * zero->p.offload_ratio);
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        region->param_on_host = zero->p.param_tier != ZN_ZERO_ON_DEVICE && !region->persistent;
        if (!region->trainable || zero->p.optimizer_tier == ZN_ZERO_ON_DEVICE ||
            zero->offloaded_elems >= wanted)
            continue;
        region->offloaded = true;
        region->slab_first = zero->offloaded_elems;
        zero->offloaded_elems += region->n_chunks * region->slice_elems;
    }
}

static zinc_status check_tiers(const zn_zero *zero)
{
    if (zero->p.optimizer_tier != ZN_ZERO_ON_DEVICE && zero->p.stage == 0)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "zero_optimization.offload_optimizer needs stage 1, 2 or 3: at "
                                    "stage 0 every rank would update everything on the host");
    if (zero->p.param_tier != ZN_ZERO_ON_DEVICE && zero->p.stage != 3)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "zero_optimization.offload_param needs stage 3");
    if (zero->p.param_tier == ZN_ZERO_ON_DISK)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "zero_optimization.offload_param.device nvme: parameters can go to the host "
                "(\"cpu\") in this version, optimizer state also to disk");
    if (zero->p.optimizer_tier != ZN_ZERO_ON_DEVICE && zero->p.grad_accum_dtype != ZN_DTYPE_F32)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "data_types.grad_accum_dtype %s: offloaded gradients are fp32; leave the key out",
                zn_dtype_name(zero->p.grad_accum_dtype));
    return ZINC_OK;
}

static zinc_status host_alloc(zn_zero *zero, zn_mem_category category, int64_t n_bytes,
                              const char *what, void *out)
{
    void *ptr = NULL;
    ZN_TRY(zn_device_alloc(zero->p.dev, ZN_PLACE_HOST, category, (size_t)n_bytes, what, &ptr));
    memset(ptr, 0, (size_t)n_bytes);
    memcpy(out, &ptr, sizeof ptr);
    return ZINC_OK;
}

static zn_zero_view packed_at(const zn_zero_region *region, void *slab, int64_t first,
                              zn_dtype dtype)
{
    return (zn_zero_view){(char *)slab + (size_t)first * zn_dtype_size(dtype), dtype,
                          region->slice_elems, 0};
}

/* Shards of parameters on the host, trainable and frozen, in region order. */
static zinc_status alloc_host_params(zn_zero *zero)
{
    int64_t total = 0;
    for (int r = 0; r < zero->n_regions; r++)
        if (zero->regions[r].param_on_host)
            total += zero->regions[r].n_chunks * zero->regions[r].slice_elems;
    if (total == 0)
        return ZINC_OK;
    const zn_dtype dtype = zero->p.param_dtype;
    ZN_TRY(host_alloc(zero, ZN_MEM_PARAMETERS, total * (int64_t)zn_dtype_size(dtype),
                      "parameter shards", &zero->host_param_slab));
    int64_t first = 0;
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (!region->param_on_host)
            continue;
        region->param = packed_at(region, zero->host_param_slab, first, dtype);
        first += region->n_chunks * region->slice_elems;
    }
    return ZINC_OK;
}

/* fp32 shards on the host are their own masters, unless masters go to disk. */
static bool masters_are_params(const zn_zero *zero, const zn_zero_region *region)
{
    return zero->p.param_dtype == ZN_DTYPE_F32 && region->param_on_host &&
           zero->p.optimizer_tier == ZN_ZERO_ON_HOST;
}

static void place_masters(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (!region->offloaded)
            continue;
        region->master_is_param = masters_are_params(zero, region);
        if (region->master_is_param)
            region->master = region->param;
        else if (zero->host_master_slab)
            region->master =
                packed_at(region, zero->host_master_slab, region->slab_first, ZN_DTYPE_F32);
        else
            region->master = (zn_zero_view){0}; /* in windows */
        for (int k = 0; k < n_states(zero) && zero->host_state_slab[k]; k++)
            region->state[k] =
                packed_at(region, zero->host_state_slab[k], region->slab_first, ZN_DTYPE_F32);
        region->grad = packed_at(region, zero->host_grad_slab, region->slab_first, ZN_DTYPE_F32);
    }
}

static zinc_status alloc_host_optimizer(zn_zero *zero)
{
    const int64_t n_bytes = zero->offloaded_elems * (int64_t)sizeof(float);
    bool own_masters = false;
    for (int r = 0; r < zero->n_regions; r++)
        own_masters = own_masters ||
                      (zero->regions[r].offloaded && !masters_are_params(zero, &zero->regions[r]));
    ZN_TRY(host_alloc(zero, ZN_MEM_GRADIENTS, n_bytes, "gradients", &zero->host_grad_slab));
    if (zero->p.optimizer_tier == ZN_ZERO_ON_HOST && own_masters)
        ZN_TRY(host_alloc(zero, ZN_MEM_MASTERS, n_bytes, "fp32 master weights",
                          &zero->host_master_slab));
    for (int k = 0; zero->p.optimizer_tier == ZN_ZERO_ON_HOST && k < n_states(zero); k++)
        ZN_TRY(host_alloc(zero, ZN_MEM_OPTIMIZER_STATE, n_bytes, zero->p.optim->state_names[k],
                          &zero->host_state_slab[k]));
    place_masters(zero);
    return ZINC_OK;
}

/* ---- buffers of the transfers ---- */

static zinc_status alloc_landing(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        const int64_t chunks = zn_zero_bucket_chunks(region, zero->p.reduce_bucket);
        if (region->offloaded && chunks * region->slice_elems > zero->landing_elems)
            zero->landing_elems = chunks * region->slice_elems;
    }
    const int64_t n_bytes = zero->landing_elems * (int64_t)sizeof(float);
    for (int i = 0; i < 2; i++)
        ZN_TRY(zn_device_alloc(zero->p.dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, (size_t)n_bytes,
                               "reduced gradients on their way to the host", &zero->landing[i]));
    return host_alloc(zero, ZN_MEM_BUFFERS, n_bytes, "gradients to be added", &zero->bounce);
}

static zinc_status alloc_out(zn_zero *zero)
{
    const int64_t n_bytes = zero->window_elems * (int64_t)zn_dtype_size(zero->p.param_dtype);
    for (int i = 0; i < 2; i++)
        ZN_TRY(host_alloc(zero, ZN_MEM_BUFFERS, n_bytes, "updated parameters on their way back",
                          &zero->out[i]));
    return ZINC_OK;
}

static int64_t disk_run_bytes(const zn_zero *zero)
{
    return round_up(zero->offloaded_elems, ZN_ZERO_BLOCK) * (int64_t)sizeof(float);
}

static zinc_status alloc_disk(zn_zero *zero)
{
    const int64_t runs = 1 + n_states(zero);
    const zn_disk_params params = {.dir = zero->p.disk_path,
                                   .n_bytes = runs * disk_run_bytes(zero),
                                   .what = "optimizer state",
                                   .io = zero->p.disk_io};
    ZN_TRY(zn_disk_open(zero->p.dev, &params, &zero->disk));
    for (int i = 0; i < ZN_ZERO_N_WINDOWS; i++)
        ZN_TRY(host_alloc(zero, ZN_MEM_BUFFERS, runs * zero->window_elems * (int64_t)sizeof(float),
                          "a window of optimizer state", &zero->windows[i].buffer));
    return ZINC_OK;
}

zinc_status zn_zero_offload_alloc(zn_zero *zero)
{
    ZN_TRY(check_tiers(zero));
    choose_regions(zero);
    if (zero->p.param_tier != ZN_ZERO_ON_DEVICE)
        ZN_TRY(alloc_host_params(zero));
    if (zero->offloaded_elems == 0)
        return ZINC_OK;
    zero->window_elems = zn_zero_window_elems(zero->offloaded_elems);
    ZN_TRY(alloc_host_optimizer(zero));
    ZN_TRY(alloc_landing(zero));
    ZN_TRY(alloc_out(zero));
    if (!zn_device_link(zero->p.dev, true) || !zn_device_link(zero->p.dev, false))
        ZN_FAIL(ZINC_E_DEVICE, "the device has no copy engine");
    return zero->p.optimizer_tier == ZN_ZERO_ON_DISK ? alloc_disk(zero) : ZINC_OK;
}

void zn_zero_offload_free(zn_zero *zero)
{
    zn_device *dev = zero->p.dev;
    if (zero->offloaded_elems > 0) { /* copies may still be under way after an error elsewhere */
        zn_stream *const links[] = {zn_device_link(dev, true), zn_device_link(dev, false)};
        for (int i = 0; i < 2; i++)
            if (links[i])
                zn_ignore(zn_stream_sync(links[i], -1)); /* an error was told before */
    }
    zn_disk_close(zero->disk); /* before the memory that it reads and writes */
    zn_device_free(dev, zero->host_param_slab);
    zn_device_free(dev, zero->host_master_slab);
    zn_device_free(dev, zero->host_grad_slab);
    for (int k = 0; k < ZN_OPTIM_MAX_STATES; k++)
        zn_device_free(dev, zero->host_state_slab[k]);
    for (int i = 0; i < 2; i++) {
        zn_device_free(dev, zero->landing[i]);
        zn_device_free(dev, zero->out[i]);
    }
    for (int i = 0; i < ZN_ZERO_N_WINDOWS; i++)
        zn_device_free(dev, zero->windows[i].buffer);
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

zinc_status zn_zero_land(zn_zero *zero, const zn_zero_region *region, int64_t chunk, int64_t n,
                         int slot, bool accumulate)
{
    zn_stream *back = zn_device_link(zero->p.dev, false);
    float *to = zn_zero_at(&region->grad, chunk, 0);
    const int64_t n_elems = n * region->slice_elems;
    const size_t n_bytes = (size_t)n_elems * sizeof(float);
    ZN_TRY(zn_stream_wait_event(back, zero->last_reduce));
    ZN_TRY(zn_device_copy(back, accumulate ? zero->bounce : to, zero->landing[slot], n_bytes,
                          &zero->last_reduce));
    if (accumulate) {
        const add_args add = {.to = to, .from = zero->bounce, .n = n_elems};
        ZN_TRY(zn_stream_submit(back, add_work, &add, sizeof add, &zero->last_reduce));
    }
    zero->landing_event[slot] = zero->last_reduce;
    zero->stats.to_host_bytes += (int64_t)n_bytes;
    return ZINC_OK;
}

/* ---- parameters to the device ---- */

zinc_status zn_zero_param_to_device(zn_zero *zero, const zn_zero_region *region, void *full,
                                    int64_t first, int64_t n)
{
    zn_stream *to_device = zn_device_link(zero->p.dev, true);
    const size_t size = zn_dtype_size(region->param.dtype);
    const size_t n_bytes = (size_t)region->slice_elems * size;
    zn_event copied = {0};
    if (!to_device)
        ZN_FAIL(ZINC_E_DEVICE, "the device has no copy engine");
    for (int64_t chunk = first; chunk < first + n; chunk++) {
        const int64_t at = chunk * region->chunk_elems + zero->rank * region->slice_elems;
        ZN_TRY(zn_device_copy(to_device, (char *)full + (size_t)at * size,
                              zn_zero_at(&region->param, chunk, zero->rank), n_bytes, &copied));
        zero->stats.to_device_bytes += (int64_t)n_bytes;
    }
    return zn_stream_wait_event(zn_comm_stream(zero->group), copied);
}

static int64_t slab_position(const zn_zero *zero, const zn_zero_piece *piece, int64_t offset)
{
    const zn_zero_region *region = &zero->regions[piece->region];
    return region->slab_first + piece->chunk * region->slice_elems + piece->in_slice + offset;
}

zinc_status zn_zero_out_get(zn_zero *zero, const zn_zero_walk *walk, void **out)
{
    const zn_zero_region *region = &zero->regions[walk->piece->region];
    if (region->master_is_param) {
        *out = NULL;
        return ZINC_OK;
    }
    if (!region->offloaded || region->param_on_host) {
        *out = zn_zero_piece_at(&region->param, walk->piece, walk->offset);
        return ZINC_OK;
    }
    const int64_t position = slab_position(zero, walk->piece, walk->offset);
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

zinc_status zn_zero_out_send(zn_zero *zero, const zn_zero_walk *walk, void *out)
{
    const zn_zero_region *region = &zero->regions[walk->piece->region];
    const size_t n_bytes = (size_t)walk->n * zn_dtype_size(zero->p.param_dtype);
    if (!out || !region->offloaded || region->param_on_host)
        return ZINC_OK;
    zero->stats.to_device_bytes += (int64_t)n_bytes;
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

/* ---- windows on disk ---- */

static zinc_status submit_window(zn_zero *zero, int64_t index, bool write, zn_event after)
{
    zn_zero_window *window = &zero->windows[index % ZN_ZERO_N_WINDOWS];
    zn_disk_run runs[1 + ZN_OPTIM_MAX_STATES];
    window->first = index * zero->window_elems;
    window->n = zero->offloaded_elems - window->first;
    if (window->n > zero->window_elems)
        window->n = zero->window_elems;
    const int n_runs = 1 + n_states(zero);
    for (int k = 0; k < n_runs; k++) {
        runs[k] = (zn_disk_run){
            .memory = window->buffer + k * zero->window_elems,
            .offset = k * disk_run_bytes(zero) + window->first * (int64_t)sizeof(float),
            .n_bytes = round_up(window->n, ZN_ZERO_BLOCK) * (int64_t)sizeof(float)};
        *(write ? &zero->stats.disk_written_bytes : &zero->stats.disk_read_bytes) +=
            window->n * (int64_t)sizeof(float);
    }
    return zn_disk_submit(zero->disk, write, runs, n_runs, after,
                          write ? &window->written : &window->ready);
}

/* The first read of a walk comes after every write of the walks before. */
static zinc_status read_window(zn_zero *zero, zn_zero_walk *walk, int64_t index)
{
    const zn_zero_window *window = &zero->windows[index % ZN_ZERO_N_WINDOWS];
    if (walk->next_read > index || index * zero->window_elems >= zero->offloaded_elems)
        return ZINC_OK;
    const zn_event after = walk->next_read == 0 ? zero->last_write : window->written;
    walk->next_read = index + 1;
    return submit_window(zero, index, false, after);
}

/* One window is read ahead of the one that is worked on, while the one behind it is written. */
static zinc_status open_window(zn_zero *zero, zn_zero_walk *walk, int64_t index)
{
    zn_zero_window *window = &zero->windows[index % ZN_ZERO_N_WINDOWS];
    if (walk->read) {
        ZN_TRY(read_window(zero, walk, index));
        ZN_TRY(read_window(zero, walk, index + 1));
    }
    ZN_TRY(zn_event_wait(walk->read ? window->ready : window->written, -1));
    window->first = index * zero->window_elems;
    zero->window = window;
    zero->window_index = index;
    return ZINC_OK;
}

static zinc_status close_window(zn_zero *zero, const zn_zero_walk *walk)
{
    if (!zero->window)
        return ZINC_OK;
    zn_zero_window *window = zero->window;
    zero->window = NULL;
    if (!walk->write)
        return ZINC_OK;
    ZN_TRY(submit_window(zero, zero->window_index, true, (zn_event){0}));
    zero->last_write = window->written;
    return ZINC_OK;
}

float *zn_zero_state_at(const zn_zero *zero, int what, const zn_zero_piece *piece, int64_t offset)
{
    const zn_zero_region *region = &zero->regions[piece->region];
    const zn_zero_view *view = what == ZN_ZERO_MASTERS ? &region->master : &region->state[what];
    if (view->base)
        return zn_zero_piece_at(view, piece, offset);
    return zero->window->buffer + (what + 1) * zero->window_elems +
           slab_position(zero, piece, offset) - zero->window->first;
}

/* ---- the walk ---- */

/* Cut the part at the end of its window, and have that window open. */
static zinc_status enter_part(zn_zero *zero, zn_zero_walk *walk)
{
    if (walk->most > 0 && walk->n > walk->most)
        walk->n = walk->most;
    if (!zero->regions[walk->piece->region].offloaded)
        return ZINC_OK;
    const int64_t position = slab_position(zero, walk->piece, walk->offset);
    const int64_t index = position / zero->window_elems;
    const int64_t left = (index + 1) * zero->window_elems - position;
    if (walk->n > left)
        walk->n = left;
    if (!zero->disk || (zero->window && zero->window_index == index))
        return ZINC_OK;
    ZN_TRY(close_window(zero, walk));
    return open_window(zero, walk, index);
}

bool zn_zero_walk_next(zn_zero *zero, zn_zero_walk *walk)
{
    int64_t done = walk->piece ? walk->offset + walk->n : 0;
    while (walk->index < zero->n_pieces) {
        const zn_zero_piece *piece = &zero->pieces[walk->index];
        if (zn_zero_updates_here(zero, piece) && done < piece->n) {
            walk->piece = piece;
            walk->offset = done;
            walk->n = piece->n - done;
            walk->status = enter_part(zero, walk);
            return walk->status == ZINC_OK;
        }
        walk->index++;
        done = 0;
    }
    walk->status = close_window(zero, walk);
    return false;
}
