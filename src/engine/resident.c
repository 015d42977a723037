/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/resident.h"

#include "engine/weights.h"

/* Elements converted at a time on the way to a 16-bit type. */
#define STAGING_ELEMS ((int64_t)1 << 20)
#define ALIGN_ELEMS 32 /* 64 bytes in 16-bit types */

struct zn_resident {
    zn_device *dev;
    zn_param_list list;
    zn_dtype dtype;
    int64_t *offset; /* [n_specs] elements into slab */
    char *slab;      /* all parameters, of dtype */
    float *staging;  /* [STAGING_ELEMS]; only while a 16-bit type is filled */
    zn_param_hooks hooks;
};

static zinc_status no_use(void *ctx, int unit, zn_pass pass)
{
    (void)ctx;
    (void)unit;
    (void)pass;
    return ZINC_OK;
}

static char *place(const zn_resident *r, int param)
{
    return r->slab + (size_t)r->offset[param] * zn_dtype_size(r->dtype);
}

static const void *data(void *ctx, int param)
{
    return place(ctx, param);
}

static float *no_grad(void *ctx, int param)
{
    (void)ctx;
    (void)param;
    return NULL;
}

static zinc_status no_ready(void *ctx, int unit)
{
    (void)ctx;
    (void)unit;
    return ZINC_OK;
}

static zinc_status allocate(zn_resident *r)
{
    int64_t n = 0;
    ZN_TRY(zn_alloc_array(&r->offset, (size_t)r->list.n_specs, sizeof *r->offset,
                          "parameter offsets"));
    for (int i = 0; i < r->list.n_specs; i++) {
        r->offset[i] = n;
        n += (r->list.specs[i].n_elems + ALIGN_ELEMS - 1) / ALIGN_ELEMS * ALIGN_ELEMS;
    }
    if (r->dtype != ZN_DTYPE_F32)
        ZN_TRY(zn_device_alloc(r->dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS,
                               (size_t)STAGING_ELEMS * sizeof(float), "weights being read",
                               &r->staging));
    return zn_device_alloc(r->dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS,
                           (size_t)n * zn_dtype_size(r->dtype), "parameters", &r->slab);
}

static zinc_status fill(zn_resident *r, zn_weight_map *map, int param)
{
    const zn_kernels *kernels = zn_kernels_get(r->dev);
    zn_stream *stream = zn_device_compute(r->dev);
    const int64_t n = r->list.specs[param].n_elems;
    if (r->dtype == ZN_DTYPE_F32)
        return zn_weight_map_read(map, param, 0, n, (float *)(void *)place(r, param));
    for (int64_t at = 0; at < n; at += STAGING_ELEMS) {
        const int64_t part = n - at < STAGING_ELEMS ? n - at : STAGING_ELEMS;
        ZN_TRY(zn_weight_map_read(map, param, at, part, r->staging));
        ZN_TRY(kernels->convert(stream, place(r, param) + (size_t)at * zn_dtype_size(r->dtype),
                                r->dtype, r->staging, ZN_DTYPE_F32, 1, part));
        ZN_TRY(zn_stream_sync(stream, -1)); /* staging is written again */
    }
    return ZINC_OK;
}

zinc_status zn_resident_load(const char *model_dir, const zn_model_spec *spec, zn_dtype dtype,
                             zn_device *dev, zn_resident **out)
{
    zinc_status status = ZINC_OK;
    zn_resident *r = NULL;
    zn_weight_map *map = NULL;
    if (dtype != ZN_DTYPE_F32 && dtype != ZN_DTYPE_BF16 && dtype != ZN_DTYPE_F16)
        ZN_FAIL(ZINC_E_INVALID, "a model is kept as float32, bfloat16 or float16, not as %s",
                zn_dtype_name(dtype));
    ZN_TRY(zn_alloc(&r, sizeof *r, "resident model"));
    r->dev = dev;
    r->dtype = dtype;
    ZN_TRY_GOTO(zn_model_param_list(spec, &r->list));
    ZN_TRY_GOTO(zn_weight_map_open(model_dir, spec, &r->list, &map));
    ZN_TRY_GOTO(allocate(r));
    for (int i = 0; i < r->list.n_specs; i++)
        ZN_TRY_GOTO(fill(r, map, i));
    zn_device_free(dev, r->staging);
    r->staging = NULL;
    r->hooks = (zn_param_hooks){
        .ctx = r,
        .param_dtype = dtype,
        .before_use = no_use,
        .after_use = no_use,
        .data = data,
        .grad = no_grad,
        .grads_ready = no_ready,
    };
    zn_weight_map_destroy(map);
    *out = r;
    return ZINC_OK;
fail:
    zn_weight_map_destroy(map);
    zn_resident_destroy(r);
    return status;
}

void zn_resident_destroy(zn_resident *r)
{
    if (!r)
        return;
    zn_device_free(r->dev, r->staging);
    zn_device_free(r->dev, r->slab);
    zn_free(r->offset);
    zn_param_list_fini(&r->list);
    zn_free(r);
}

const zn_param_hooks *zn_resident_hooks(zn_resident *r)
{
    return &r->hooks;
}
