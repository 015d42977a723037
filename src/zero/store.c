/* SPDX-License-Identifier: Apache-2.0 */
/* store.c — who holds what: one slab a quantity, views into it, and the pools of the step. */
#include "zero/zero_internal.h"

#include <limits.h>
#include <string.h>

void zn_zero_params_defaults(zn_zero_params *out)
{
    *out = (zn_zero_params){.param_dtype = ZN_DTYPE_F32,
                            .wire_dtype = ZN_DTYPE_F32,
                            .grad_accum_dtype = ZN_DTYPE_F32,
                            .gradient_accumulation_steps = 1,
                            .reduce_bucket = 500000000,
                            .allgather_bucket = 500000000,
                            .prefetch_bucket = 50000000,
                            .persistence_threshold = 100000,
                            .model_persistence_threshold = INT64_MAX,
                            .max_live = 1000000000,
                            .max_reuse_distance = 1000000000,
                            .sub_group = 1000000000,
                            .share_parameters = true,
                            .split_masters = true,
                            .disk_io = zn_disk_io_defaults(),
                            .max_param_on_host = 1000000000,
                            .param_buffer_elems = 100000000,
                            .n_param_buffers = 5,
                            .offload_ratio = 1};
}

bool zn_zero_keeps_full_grads(const zn_zero *zero)
{
    return zero->p.stage == 0 || (zero->p.stage == 1 && zero->p.gradient_accumulation_steps > 1);
}

bool zn_zero_adds_in_place(const zn_zero *zero)
{
    return zn_zero_keeps_full_grads(zero) && zero->p.grad_accum_dtype == ZN_DTYPE_F32;
}

bool zn_zero_grad_stays(const zn_zero *zero, const zn_zero_region *region)
{
    return region->tied && region->trainable && !region->offloaded &&
           !zn_zero_keeps_full_grads(zero) && zero->p.gradient_accumulation_steps == 1 &&
           zero->p.grad_accum_dtype == ZN_DTYPE_F32;
}

static zn_zero_view full_view(const zn_zero_region *region, void *base, zn_dtype dtype)
{
    return (zn_zero_view){base, dtype, region->chunk_elems, region->slice_elems};
}

static zn_zero_view packed_view(const zn_zero_region *region, void *base, zn_dtype dtype)
{
    return (zn_zero_view){base, dtype, region->slice_elems, 0};
}

/* Elements a region takes in one slab. */
static int64_t slab_elems(const zn_zero_region *region, bool full)
{
    return full ? region->padded_elems : region->n_chunks * region->slice_elems;
}

static zinc_status slab_alloc(zn_zero *zero, zn_mem_category category, int64_t n_elems,
                              zn_dtype dtype, const char *what, void *out)
{
    const int64_t n_bytes = n_elems * (int64_t)zn_dtype_size(dtype);
    void *slab = NULL;
    if (n_bytes > 0)
        ZN_TRY(zn_device_alloc_zeroed(zero->p.dev, ZN_PLACE_DEVICE, category, (size_t)n_bytes, what,
                                      &slab));
    memcpy(out, &slab, sizeof slab);
    return ZINC_OK;
}

/* One buffer for all ranks' slices, if ranks share memory and are asked to. */
static zinc_status share_params(zn_zero *zero)
{
    if (!zero->p.share_parameters || zero->p.stage == 0 || zero->n_ranks == 1)
        return ZINC_OK;
    const size_t n_bytes = (size_t)zero->stats.padded_elems * zn_dtype_size(zero->p.param_dtype);
    const zinc_status status = zn_comm_alloc_shared(zero->group, n_bytes, &zero->shared_slab);
    if (status == ZINC_E_UNSUPPORTED)
        return ZINC_OK; /* private copies then: same results, more memory and traffic */
    if (status != ZINC_OK)
        return status;
    const int64_t mine = (int64_t)n_bytes / zero->n_ranks;
    ZN_TRY(zn_device_charge(zero->p.dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS, mine,
                            "this rank's slices of the shared parameters"));
    zero->shared_charge = mine;
    return ZINC_OK;
}

/* This rank's part of the copy that its secondary group keeps of what is gathered. */
static zinc_status alloc_secondary(zn_zero *zero)
{
    const zn_dtype dtype = zero->p.param_dtype;
    int64_t total = 0;
    if (!zero->secondaries)
        return ZINC_OK;
    const int n = zn_comm_n_ranks(zero->secondaries);
    for (int r = 0; r < zero->n_regions; r++)
        total += zero->regions[r].full ? 0 : zero->regions[r].padded_elems / n;
    ZN_TRY(slab_alloc(zero, ZN_MEM_PARAMETERS, total, dtype, "secondary parameter shards",
                      &zero->secondary_slab));
    char *base = zero->secondary_slab;
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (region->full)
            continue;
        region->secondary = (zn_zero_view){base, dtype, region->chunk_elems / n, 0};
        base += (size_t)(region->padded_elems / n) * zn_dtype_size(dtype);
    }
    return ZINC_OK;
}

/* Whether the embedding program owns the parameters that are always whole. */
static bool owns_kept(const zn_zero *zero)
{
    return zero->p.memory.get && zero->p.stage < 3;
}

static zinc_status alloc_params(zn_zero *zero)
{
    ZN_TRY(share_params(zero));
    int64_t total = 0;
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        region->full = zero->shared_slab || zero->p.stage < 3 || region->persistent;
        if (!zn_zero_param_is_off(region))
            total += slab_elems(region, region->full);
    }
    ZN_TRY(alloc_secondary(zero));
    char *base = zero->shared_slab;
    if (!base && owns_kept(zero)) {
        zero->kept_bytes = (size_t)total * zn_dtype_size(zero->p.param_dtype);
        ZN_TRY(zn_zero_block_get(zero, ZN_ZERO_KEPT, ZN_MEM_PARAMETERS, zero->kept_bytes,
                                 &zero->param_slab));
        ZN_TRY(zero->p.kernels->zero(zn_device_compute(zero->p.dev), zero->param_slab,
                                     (int64_t)zero->kept_bytes));
        base = zero->param_slab;
    } else if (!base) {
        ZN_TRY(slab_alloc(zero, ZN_MEM_PARAMETERS, total, zero->p.param_dtype, "parameters",
                          &zero->param_slab));
        base = zero->param_slab;
    }
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (zn_zero_param_is_off(region))
            continue;
        region->param = region->full ? full_view(region, base, zero->p.param_dtype)
                                     : packed_view(region, base, zero->p.param_dtype);
        base += (size_t)slab_elems(region, region->full) * zn_dtype_size(zero->p.param_dtype);
    }
    return ZINC_OK;
}

/* Which trainable regions a slab on the device is for. */
typedef bool (*region_filter)(const zn_zero_region *region);

static bool is_resident(const zn_zero_region *region)
{
    return region->trainable && !region->offloaded;
}

static bool has_packed_grads(const zn_zero_region *region)
{
    return is_resident(region) && !region->grad_stays;
}

static bool has_whole_masters(const zn_zero_region *region)
{
    return is_resident(region) && !region->master_is_param && !region->split;
}

static bool has_low_halves(const zn_zero_region *region)
{
    return is_resident(region) && region->split;
}

/* Lay one quantity of these regions into a new slab. */
static zinc_status alloc_quantity(zn_zero *zero, zn_mem_category category, region_filter filter,
                                  bool full, zn_dtype dtype, const char *what, void **slab,
                                  size_t view_offset)
{
    int64_t total = 0;
    for (int r = 0; r < zero->n_regions; r++)
        if (filter(&zero->regions[r]))
            total += slab_elems(&zero->regions[r], full);
    ZN_TRY(slab_alloc(zero, category, total, dtype, what, slab));
    char *base = *slab;
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (!filter(region))
            continue;
        const zn_zero_view view =
            full ? full_view(region, base, dtype) : packed_view(region, base, dtype);
        memcpy((char *)region + view_offset, &view, sizeof view);
        base += (size_t)slab_elems(region, full) * zn_dtype_size(dtype);
    }
    return ZINC_OK;
}

static zinc_status alloc_optimizer(zn_zero *zero)
{
    const bool full = zero->p.stage == 0;
    const size_t master = offsetof(zn_zero_region, master);
    for (int r = 0; r < zero->n_regions; r++)
        if (!zero->regions[r].offloaded && zero->regions[r].master_is_param)
            zero->regions[r].master = zero->regions[r].param;
    ZN_TRY(alloc_quantity(zero, ZN_MEM_MASTERS, has_whole_masters, full, ZN_DTYPE_F32,
                          "fp32 master weights", &zero->master_slab, master));
    ZN_TRY(alloc_quantity(zero, ZN_MEM_MASTERS, has_low_halves, full, ZN_DTYPE_BF16,
                          "low halves of master weights", &zero->low_slab, master));
    const int n_states = zero->p.optim ? zero->p.optim->n_states : 0;
    for (int k = 0; k < n_states; k++)
        ZN_TRY(alloc_quantity(zero, ZN_MEM_OPTIMIZER_STATE, is_resident, full, ZN_DTYPE_F32,
                              zero->p.optim->state_names[k], &zero->state_slab[k],
                              offsetof(zn_zero_region, state) + (size_t)k * sizeof(zn_zero_view)));
    return ZINC_OK;
}

/* Where the model adds micro-batches up: the gradients at rest themselves, unless those are
 * offloaded. */
static zinc_status alloc_accumulators(zn_zero *zero)
{
    int64_t total = 0;
    if (!zn_zero_adds_in_place(zero))
        return ZINC_OK;
    for (int r = 0; r < zero->n_regions; r++)
        if (zero->regions[r].offloaded)
            total += zero->regions[r].padded_elems;
    ZN_TRY(slab_alloc(zero, ZN_MEM_GRADIENTS, total, ZN_DTYPE_F32, "accumulated gradients",
                      &zero->accumulator_slab));
    float *next = zero->accumulator_slab;
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        region->unit_grad = region->offloaded ? next : region->grad.base;
        next += region->offloaded ? region->padded_elems : 0;
    }
    return ZINC_OK;
}

static zinc_status alloc_own_grads(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++) {
        zn_zero_region *region = &zero->regions[r];
        if (!zn_zero_grad_stays(zero, region))
            continue;
        ZN_TRY(slab_alloc(zero, ZN_MEM_GRADIENTS, region->padded_elems, ZN_DTYPE_F32,
                          "a tied gradient", &region->own_grad));
        region->grad = full_view(region, region->own_grad, ZN_DTYPE_F32);
        region->grad_stays = true;
    }
    return ZINC_OK;
}

/* Packed gradients, as if they had been so from the beginning; all reductions have ended. */
zinc_status zn_zero_part_grad(zn_zero *zero, zn_zero_region *region)
{
    void *slab = NULL;
    ZN_TRY(slab_alloc(zero, ZN_MEM_GRADIENTS, slab_elems(region, false), ZN_DTYPE_F32, "gradients",
                      &slab));
    const zn_zero_view packed = packed_view(region, slab, ZN_DTYPE_F32);
    region->parted_grad = slab;
    for (int64_t c = 0; c < region->n_chunks; c++)
        ZN_TRY(zero->p.kernels->convert(
            zn_device_compute(zero->p.dev), zn_zero_at(&packed, c, zero->rank), ZN_DTYPE_F32,
            zn_zero_at(&region->grad, c, zero->rank), ZN_DTYPE_F32, 1.0f, region->slice_elems));
    region->grad = packed;
    region->grad_stays = false;
    return ZINC_OK;
}

static zinc_status alloc_grads(zn_zero *zero)
{
    const bool full = zn_zero_keeps_full_grads(zero);
    ZN_TRY(alloc_own_grads(zero));
    ZN_TRY(alloc_quantity(zero, ZN_MEM_GRADIENTS, has_packed_grads, full, zero->p.grad_accum_dtype,
                          "gradients", &zero->grad_slab, offsetof(zn_zero_region, grad)));
    ZN_TRY(alloc_accumulators(zero));
    if (zero->p.wire_dtype == ZN_DTYPE_F32)
        return ZINC_OK;
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        if (!region->trainable)
            continue;
        const int64_t chunks = zn_zero_bucket_chunks(region, zero->p.reduce_bucket);
        if (chunks * region->chunk_elems > zero->staging_elems)
            zero->staging_elems = chunks * region->chunk_elems;
    }
    for (int i = 0; i < (zero->p.overlap_comm ? 2 : 1); i++)
        ZN_TRY(slab_alloc(zero, ZN_MEM_BUFFERS, zero->staging_elems, zero->p.wire_dtype,
                          "reduce bucket", &zero->staging[i]));
    return ZINC_OK;
}

zinc_status zn_zero_store_alloc(zn_zero *zero)
{
    zero->gather_pool = (zn_zero_pool){.category = ZN_MEM_BUFFERS, .what = "a gathered unit"};
    zero->grad_pool = (zn_zero_pool){.category = ZN_MEM_GRADIENTS, .what = "a unit's gradient"};
    ZN_TRY(zn_zero_offload_alloc(zero));
    ZN_TRY(alloc_params(zero));
    ZN_TRY(alloc_optimizer(zero));
    ZN_TRY(alloc_grads(zero));
    ZN_TRY(zn_device_alloc(zero->p.dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, sizeof(float),
                           "the gradient scale", &zero->grad_scale));
    const size_t n_partials = (size_t)((zero->n_chunks + 1) * zero->n_ranks);
    ZN_TRY(zn_alloc_array(&zero->partials, n_partials, sizeof(double), "norm partials"));
    ZN_TRY(zn_alloc_array(&zero->exchange, n_partials, sizeof(double), "norm partials"));
    ZN_TRY(zn_alloc_array(&zero->exchange_mine, n_partials, sizeof(double), "norm partials"));
    return zn_alloc_array(&zero->fill_buffer, (size_t)ZN_ZERO_IO_ELEMS, sizeof(float),
                          "a parameter range");
}

static void pool_free(zn_zero *zero, zn_zero_pool *pool)
{
    for (int i = 0; i < pool->n_items; i++)
        zn_device_free(zero->p.dev, pool->items[i].ptr);
    zn_free(pool->items);
    memset(pool, 0, sizeof *pool);
}

/* What the embedding program owns goes back to it. */
static void give_back(zn_zero *zero)
{
    for (int r = 0; r < zero->n_regions; r++)
        if (zero->regions[r].gathered)
            zn_zero_block_put(zero, r, ZN_MEM_BUFFERS,
                              (size_t)zero->regions[r].padded_elems *
                                  zn_dtype_size(zero->p.param_dtype),
                              zero->regions[r].gathered);
    if (owns_kept(zero) && zero->param_slab) {
        zn_zero_block_put(zero, ZN_ZERO_KEPT, ZN_MEM_PARAMETERS, zero->kept_bytes,
                          zero->param_slab);
        zero->param_slab = NULL;
    }
}

void zn_zero_store_free(zn_zero *zero)
{
    if (zero->p.memory.get)
        give_back(zero);
    zn_zero_offload_free(zero);
    for (int r = 0; r < zero->n_regions; r++) {
        zn_device_free(zero->p.dev, zero->regions[r].own_grad);
        zn_device_free(zero->p.dev, zero->regions[r].parted_grad);
    }
    pool_free(zero, &zero->gather_pool);
    pool_free(zero, &zero->grad_pool);
    zn_device_free(zero->p.dev, zero->accumulator_slab);
    zn_device_free(zero->p.dev, zero->param_slab);
    zn_device_free(zero->p.dev, zero->secondary_slab);
    zn_device_free(zero->p.dev, zero->master_slab);
    zn_device_free(zero->p.dev, zero->low_slab);
    zn_device_free(zero->p.dev, zero->grad_slab);
    for (int k = 0; k < ZN_OPTIM_MAX_STATES; k++)
        zn_device_free(zero->p.dev, zero->state_slab[k]);
    for (int i = 0; i < 2; i++)
        zn_device_free(zero->p.dev, zero->staging[i]);
    zn_device_free(zero->p.dev, zero->grad_scale);
    if (zero->shared_charge)
        zn_ignore(zn_device_charge(zero->p.dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS,
                                   -zero->shared_charge, "shared parameters")); /* only ever less */
    if (zero->shared_slab)
        zn_comm_free_shared(zero->group, zero->shared_slab);
    zn_free(zero->partials);
    zn_free(zero->exchange);
    zn_free(zero->exchange_mine);
    zn_free(zero->fill_buffer);
}

zinc_status zn_zero_pool_get(zn_zero *zero, zn_zero_pool *pool, size_t n_bytes, void *out)
{
    struct zn_zero_pool_item *best = NULL;
    for (int i = 0; i < pool->n_items; i++) {
        struct zn_zero_pool_item *item = &pool->items[i];
        if (!item->used && item->n_bytes >= n_bytes && (!best || item->n_bytes < best->n_bytes))
            best = item;
    }
    if (!best) {
        ZN_TRY(zn_realloc_array(&pool->items, (size_t)pool->n_items + 1, sizeof *pool->items,
                                "a buffer pool"));
        best = &pool->items[pool->n_items];
        *best = (struct zn_zero_pool_item){.n_bytes = n_bytes};
        ZN_TRY(zn_device_alloc(zero->p.dev, ZN_PLACE_DEVICE, pool->category, n_bytes, pool->what,
                               &best->ptr));
        pool->n_items++;
    }
    best->used = true;
    memcpy(out, &best->ptr, sizeof best->ptr);
    return ZINC_OK;
}

void zn_zero_pool_put(zn_zero_pool *pool, void *ptr)
{
    for (int i = 0; i < pool->n_items; i++)
        if (pool->items[i].ptr == ptr)
            pool->items[i].used = false;
}

zinc_status zn_zero_block_get(zn_zero *zero, int block, zn_mem_category category, size_t n_bytes,
                              void **out)
{
    ZN_TRY(zn_device_charge(zero->p.dev, ZN_PLACE_DEVICE, category, (int64_t)n_bytes,
                            "the program's memory for parameters"));
    void *ptr = zero->p.memory.get(zero->p.memory.ctx, block, n_bytes);
    if (ptr && (uintptr_t)ptr % 64 == 0) {
        *out = ptr;
        return ZINC_OK;
    }
    zn_zero_block_put(zero, block, category, n_bytes, ptr);
    if (!ptr)
        ZN_FAIL(ZINC_E_NOMEM, "the program has no %zu bytes for parameters (block %d)", n_bytes,
                block);
    ZN_FAIL(ZINC_E_INVALID, "the program's memory for parameters (block %d) is not 64-byte aligned",
            block);
}

void zn_zero_block_put(zn_zero *zero, int block, zn_mem_category category, size_t n_bytes,
                       void *ptr)
{
    zn_ignore(zn_device_charge(zero->p.dev, ZN_PLACE_DEVICE, category, -(int64_t)n_bytes,
                               "parameters")); /* only ever less */
    if (ptr)
        zero->p.memory.put(zero->p.memory.ctx, block, ptr);
}
