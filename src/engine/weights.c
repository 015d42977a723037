/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/weights.h"

#include <string.h>

#include "base/hash.h"

struct zn_weight_map {
    zn_weights *weights;
    const zn_tensor_info **tensor_of; /* [n_specs] by parameter id */
};

#define MAX_LISTED 8 /* tensors named in one message; the rest are counted */

/* Collects "missing a, b, …" without end. */
typedef struct complaints {
    zn_buf text;
    int n;
} complaints;

static zinc_status complain(complaints *list, const char *format, const char *name,
                            const char *detail)
{
    list->n++;
    if (list->n > MAX_LISTED)
        return ZINC_OK;
    if (list->n > 1)
        ZN_TRY(zn_buf_puts(&list->text, "; "));
    return zn_buf_printf(&list->text, "%s %s%s", format, name, detail);
}

static zinc_status shape_text(const int64_t *shape, int n_dims, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "["));
    for (int d = 0; d < n_dims; d++)
        ZN_TRY(zn_buf_printf(out, d ? ", %lld" : "%lld", (long long)shape[d]));
    return zn_buf_puts(out, "]");
}

static bool same_shape(const zn_param_spec *spec, const zn_tensor_info *tensor)
{
    if (spec->n_dims != tensor->n_dims)
        return false;
    for (int d = 0; d < spec->n_dims; d++)
        if (spec->shape[d] != tensor->shape[d])
            return false;
    return true;
}

static zinc_status check_shape(const zn_param_spec *spec, const zn_tensor_info *tensor,
                               complaints *list)
{
    zinc_status status;
    zn_buf detail = {0};
    if (same_shape(spec, tensor))
        return ZINC_OK;
    ZN_TRY_GOTO(zn_buf_puts(&detail, " of shape "));
    ZN_TRY_GOTO(shape_text(tensor->shape, tensor->n_dims, &detail));
    ZN_TRY_GOTO(zn_buf_puts(&detail, " where config.json asks for "));
    ZN_TRY_GOTO(shape_text(spec->shape, spec->n_dims, &detail));
    ZN_TRY_GOTO(complain(list, "misshapen", tensor->name, detail.data));
    zn_buf_fini(&detail);
    return ZINC_OK;
fail:
    zn_buf_fini(&detail);
    return status;
}

static zinc_status match(zn_weight_map *map, const zn_model_spec *spec, const zn_param_list *list,
                         complaints *bad)
{
    char name[512];
    for (int i = 0; i < zn_weights_n(map->weights); i++) {
        const zn_tensor_info *tensor = zn_weights_at(map->weights, i);
        bool known = false;
        const char *canonical = zn_model_tensor_name(spec, tensor->name, name, sizeof name, &known);
        const int id = canonical ? zn_param_list_find(list, canonical) : -1;
        if (!known || (canonical && id < 0)) {
            ZN_TRY(complain(bad, "unexpected", tensor->name, ""));
        } else if (canonical) {
            ZN_TRY(check_shape(&list->specs[id], tensor, bad));
            map->tensor_of[id] = tensor;
        }
    }
    for (int i = 0; i < list->n_specs; i++)
        if (!map->tensor_of[i])
            ZN_TRY(complain(bad, "missing", list->specs[i].name, ""));
    return ZINC_OK;
}

zinc_status zn_weight_map_open(const char *model_dir, const zn_model_spec *spec,
                               const zn_param_list *list, zn_weight_map **out)
{
    zinc_status status;
    complaints bad = {0};
    zn_weight_map *map = NULL;
    ZN_TRY(zn_alloc(&map, sizeof *map, "a weight map"));
    ZN_TRY_GOTO(zn_alloc_array(&map->tensor_of, (size_t)list->n_specs, sizeof *map->tensor_of,
                               "a weight map"));
    ZN_TRY_GOTO(zn_weights_open(model_dir, &map->weights));
    ZN_TRY_GOTO(match(map, spec, list, &bad));
    if (bad.n > MAX_LISTED)
        ZN_TRY_GOTO(zn_buf_printf(&bad.text, "; and %d more", bad.n - MAX_LISTED));
    if (bad.n > 0)
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s does not hold the weights of its %s config.json: %s",
                     model_dir, spec->model_type, bad.text.data);
    zn_buf_fini(&bad.text);
    *out = map;
    return ZINC_OK;
fail:
    zn_buf_fini(&bad.text);
    zn_weight_map_destroy(map);
    return status;
}

void zn_weight_map_destroy(zn_weight_map *map)
{
    if (!map)
        return;
    zn_weights_close(map->weights);
    zn_free(map->tensor_of);
    zn_free(map);
}

zn_dtype zn_weight_map_dtype(const zn_weight_map *map, int param)
{
    return map->tensor_of[param]->dtype;
}

zinc_status zn_weight_map_read(void *map, int param, int64_t offset, int64_t n, float *out)
{
    return zn_tensor_read(((zn_weight_map *)map)->tensor_of[param], offset, n, out);
}

zinc_status zn_random_weights_read(void *random, int param, int64_t offset, int64_t n, float *out)
{
    const zn_random_weights *r = random;
    const zn_param_spec *spec = &r->list->specs[param];
    const uint64_t key =
        zn_hash_fold(r->seed, zn_hash_bytes(0xcbf29ce484222325u, spec->name, strlen(spec->name)));
    for (int64_t i = 0; i < n; i++)
        out[i] =
            spec->init == ZN_INIT_ZEROS ? 0.0f
            : spec->init == ZN_INIT_ONES
                ? 1.0f
                : spec->init_std * (float)zn_hash_normal(zn_hash_fold(key, (uint64_t)(offset + i)));
    return ZINC_OK;
}
