/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/param.h"

#include <string.h>

#include "base/mem.h"

zinc_status zn_param_list_add_unit(zn_param_list *list, const char *name, int *out)
{
    ZN_TRY(zn_realloc_array(&list->unit_names, (size_t)list->n_units + 1, sizeof *list->unit_names,
                            "unit names"));
    ZN_TRY(zn_strdup(name, &list->unit_names[list->n_units]));
    if (out)
        *out = list->n_units;
    list->n_units++;
    return ZINC_OK;
}

zinc_status zn_param_list_add(zn_param_list *list, const zn_param_spec *spec, int *out)
{
    if (spec->n_dims < 1 || spec->n_dims > ZN_MAX_DIMS)
        ZN_FAIL(ZINC_E_INVALID, "parameter %s has %d dimensions; 1 to %d are supported", spec->name,
                spec->n_dims, ZN_MAX_DIMS);
    if (spec->unit < 0 || spec->unit >= list->n_units)
        ZN_FAIL(ZINC_E_INVALID, "parameter %s names unit %d of %d", spec->name, spec->unit,
                list->n_units);
    zn_param_spec copy = *spec;
    copy.n_elems = 1;
    for (int d = 0; d < spec->n_dims; d++) {
        if (spec->shape[d] < 1 || spec->shape[d] > INT64_MAX / 8 / copy.n_elems)
            ZN_FAIL(ZINC_E_INVALID, "parameter %s: dimension %d is %lld", spec->name, d,
                    (long long)spec->shape[d]);
        copy.n_elems *= spec->shape[d];
    }
    ZN_TRY(zn_realloc_array(&list->specs, (size_t)list->n_specs + 1, sizeof *list->specs,
                            "parameter specs"));
    ZN_TRY(zn_strdup(spec->name, &copy.name));
    list->specs[list->n_specs] = copy;
    if (out)
        *out = list->n_specs;
    list->n_specs++;
    return ZINC_OK;
}

int zn_param_list_find(const zn_param_list *list, const char *name)
{
    for (int i = 0; i < list->n_specs; i++)
        if (strcmp(list->specs[i].name, name) == 0)
            return i;
    return -1;
}

int64_t zn_param_list_elems(const zn_param_list *list, bool trainable_only)
{
    int64_t n = 0;
    for (int i = 0; i < list->n_specs; i++)
        if (list->specs[i].trainable || !trainable_only)
            n += list->specs[i].n_elems;
    return n;
}

void zn_param_list_fini(zn_param_list *list)
{
    for (int i = 0; i < list->n_specs; i++)
        zn_free(list->specs[i].name);
    for (int i = 0; i < list->n_units; i++)
        zn_free(list->unit_names[i]);
    zn_free(list->specs);
    zn_free(list->unit_names);
    memset(list, 0, sizeof *list);
}
