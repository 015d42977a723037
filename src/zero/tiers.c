/* SPDX-License-Identifier: Apache-2.0 */
/* tiers.c — which parts of the state leave the device, and where each then lies. Nothing is
 * allocated here, so that training and plans decide the same thing by the same code.
 *
 * Every offloaded region, and every frozen one whose parameters are on disk, has a *position*: its
 * slices stand one behind the other in a row of elements over all these regions, in layout order.
 * Host slabs and runs of a file are indexed by it, and it is what windows cut. Where the disk is
 * written slice by slice (gradients, parameters) each slice begins on a block. */
#include "zero/zero_internal.h"

static int n_states(const zn_zero *zero)
{
    return zero->p.optim ? zero->p.optim->n_states : 0;
}

static int64_t shard_elems(const zn_zero_region *region)
{
    return region->n_chunks * region->slice_elems;
}

/* Gradients stay on the host while they take at most a third of what this rank has of it: writing
 * them would add 4 bytes a parameter to the 12 of the state. Replicas sum theirs on the host. */
static bool wants_grads_on_disk(const zn_zero *zero)
{
    const int64_t bytes = zero->stats.trainable_padded / zero->n_ranks * (int64_t)sizeof(float);
    return zero->p.optimizer_tier == ZN_ZERO_ON_DISK && zero->n_replicas == 1 &&
           zero->p.host_bytes > 0 && bytes > zero->p.host_bytes / 3;
}

static void resolve(zn_zero *zero)
{
    if (zero->p.param_tier != ZN_ZERO_ON_DEVICE) {
        zero->p.share_parameters = false; /* each rank streams its own */
        zero->p.max_reuse_distance = 0;   /* one working set, whatever the depth */
        if (zero->p.optimizer_tier == ZN_ZERO_ON_DEVICE)
            zero->p.optimizer_tier = ZN_ZERO_ON_HOST; /* updates run where the shards are */
    }
    zero->grads_on_disk = wants_grads_on_disk(zero);
}

/* Offload whole units, the first ones, until the asked share of elements is reached. */
static void place_optimizer(zn_zero *zero)
{
    const int64_t wanted =
        (int64_t)((double)zero->stats.trainable_padded / zero->n_ranks * zero->p.offload_ratio);
    const bool blocks = zero->grads_on_disk || zero->p.param_tier == ZN_ZERO_ON_DISK;
    int64_t chosen = 0;
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        const int64_t chunks = zn_zero_bucket_chunks(region, zero->p.reduce_bucket);
        region->slab_stride =
            blocks ? zn_zero_round_up(region->slice_elems, ZN_ZERO_BLOCK) : region->slice_elems;
        if (!region->trainable || zero->p.optimizer_tier == ZN_ZERO_ON_DEVICE || chosen >= wanted)
            continue;
        region->offloaded = true;
        region->slab_first = zero->offloaded_elems;
        chosen += shard_elems(region);
        zero->offloaded_elems += region->n_chunks * region->slab_stride;
        if (chunks * region->slab_stride > zero->landing_elems)
            zero->landing_elems = chunks * region->slab_stride;
    }
}

/* Parameters go to the disk but for the last max_param_on_host elements of the shard. What the
 * device updates (offload_ratio below 1) stays on the host as well. */
static void choose_params(zn_zero *zero)
{
    int64_t room = zero->p.max_param_on_host;
    for (int r = zero->n_regions - 1; r >= 0; r--) {
        zn_zero_region *region = &zero->regions[r];
        if (zero->p.param_tier == ZN_ZERO_ON_DEVICE || region->persistent)
            continue;
        const bool updated_on_device = region->trainable && !region->offloaded;
        region->param_on_host = zero->p.param_tier == ZN_ZERO_ON_HOST || updated_on_device ||
                                shard_elems(region) <= room;
        region->param_on_disk = !region->param_on_host;
        if (region->param_on_host)
            room -= shard_elems(region);
        else if (region->trainable && zero->trainable_params_end == 0)
            zero->trainable_params_end =
                region->slab_first + region->n_chunks * region->slab_stride;
    }
}

/* Frozen parameters on disk begin a window of their own: no update writes into it. */
static void place_frozen(zn_zero *zero)
{
    int64_t frozen = 0;
    for (int r = 0; r < zero->n_regions; r++)
        if (zero->regions[r].param_on_disk && !zero->regions[r].trainable)
            frozen += zero->regions[r].n_chunks * zero->regions[r].slab_stride;
    zero->window_elems = zn_zero_window_elems(zero->offloaded_elems + frozen);
    zero->params_end = zero->trainable_params_end;
    if (frozen == 0)
        return;
    zero->params_end = zn_zero_round_up(zero->offloaded_elems, zero->window_elems);
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (!region->param_on_disk || region->trainable)
            continue;
        region->slab_first = zero->params_end;
        zero->params_end += region->n_chunks * region->slab_stride;
    }
}

static void add_run(zn_zero *zero, int run, zn_zero_file file, int64_t elem_bytes, int64_t n_elems)
{
    zero->runs[run] = (zn_zero_run){.file = file,
                                    .elem_bytes = elem_bytes,
                                    .in_window = zero->window_bytes,
                                    .in_file = zero->file_bytes[file]};
    zero->window_bytes += zero->window_elems * elem_bytes;
    zero->file_bytes[file] += zn_zero_round_up(n_elems, ZN_ZERO_BLOCK) * elem_bytes;
}

static void place_runs(zn_zero *zero)
{
    if (zero->p.optimizer_tier == ZN_ZERO_ON_DISK && zero->offloaded_elems > 0) {
        for (int k = 0; k < 1 + n_states(zero); k++)
            add_run(zero, k, ZN_ZERO_STATE_FILE, sizeof(float), zero->offloaded_elems);
        if (zero->grads_on_disk)
            add_run(zero, ZN_ZERO_RUN_GRADS, ZN_ZERO_STATE_FILE, sizeof(float),
                    zero->offloaded_elems);
    }
    if (zero->params_end > 0)
        add_run(zero, ZN_ZERO_RUN_PARAMS, ZN_ZERO_PARAM_FILE,
                (int64_t)zn_dtype_size(zero->p.param_dtype), zero->params_end);
}

/* The pool that parameters from the disk pass through holds at most the largest gather. */
static void size_param_buffers(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        const int64_t n = region->n_chunks * region->slab_stride;
        if (region->param_on_disk && n > zero->param_buffer_elems)
            zero->param_buffer_elems = n;
    }
    const int64_t most = zn_zero_round_up(zero->p.param_buffer_elems, ZN_ZERO_BLOCK);
    if (zero->param_buffer_elems > most)
        zero->param_buffer_elems = most;
    zero->n_param_buffers = zero->params_end == 0 ? 0
                            : zero->p.n_param_buffers > ZN_ZERO_MAX_PARAM_BUFFERS
                                ? ZN_ZERO_MAX_PARAM_BUFFERS
                                : zero->p.n_param_buffers;
}

int64_t zn_zero_window_elems(int64_t n_elems)
{
    const int64_t n = zn_zero_round_up(n_elems, ZN_ZERO_BLOCK);
    return n < ZN_ZERO_CHUNK ? n : ZN_ZERO_CHUNK;
}

/* What a region's masters are: its parameters (fp32 and beside them), their low halves (bf16 and
 * beside them), or whole. On disk they are always whole: a window holds one kind. */
static void choose_masters(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        const bool on_device = !region->offloaded && !zn_zero_param_is_off(region);
        const bool on_host =
            region->offloaded && region->param_on_host && zero->p.optimizer_tier == ZN_ZERO_ON_HOST;
        const bool whole_on_host = region->offloaded && zero->p.optimizer_tier == ZN_ZERO_ON_HOST;
        int64_t *end = &zero->host_masters;
        region->master_is_param =
            zero->p.param_dtype == ZN_DTYPE_F32 && (on_host || !region->offloaded);
        region->split = region->trainable && zero->p.split_masters &&
                        zero->p.param_dtype == ZN_DTYPE_BF16 && (on_device || on_host);
        if (!whole_on_host || region->master_is_param)
            continue;
        if (region->split)
            end = &zero->host_low_elems;
        region->master_first = *end;
        *end += region->n_chunks * region->slab_stride;
    }
}

void zn_zero_place_tiers(zn_zero *zero)
{
    resolve(zero);
    place_optimizer(zero);
    choose_params(zero);
    place_frozen(zero);
    place_runs(zero);
    size_param_buffers(zero);
    choose_masters(zero);
    for (int r = 0; r < zero->n_regions; r++)
        zero->sends_back = zero->sends_back ||
                           (zero->regions[r].offloaded && !zn_zero_param_is_off(&zero->regions[r]));
}
