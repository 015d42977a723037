/* SPDX-License-Identifier: Apache-2.0 */
/* units.c — the model's units joined to the engine's: what is gathered and released together.
 *
 * Consecutive units of the model are joined until each has min_unit_elems, so one setting says all
 * three wrapping policies: 0 leaves every unit by itself, INT64_MAX makes the whole model one. The
 * engine's own list then speaks of joined units only; `members` says where each unit of the model
 * has gone, and hooks translate (gather.c, grads.c). */
#include "zero/zero_internal.h"

static int64_t unit_elems(const zn_param_list *list, int unit)
{
    int64_t n = 0;
    for (int i = 0; i < list->n_specs; i++)
        if (list->specs[i].unit == unit)
            n += list->specs[i].n_elems;
    return n;
}

/* Number the joined units. A last one that is too small goes to the one before it. */
static int join(const zn_param_list *list, int64_t min_elems, zn_zero_member *members)
{
    int n = 0, first = 0;
    int64_t elems = 0;
    for (int u = 0; u < list->n_units; u++) {
        if (u > 0 && elems >= min_elems) {
            n++;
            first = u;
            elems = 0;
        }
        members[u].unit = n;
        elems += unit_elems(list, u);
    }
    for (int u = first; n > 0 && elems < min_elems && u < list->n_units; u++)
        members[u].unit = n - 1;
    return n > 0 && elems < min_elems ? n : n + 1;
}

/* Mark the ends of each joined unit and give it a name: "h.0", or "h.0 to h.3". */
static zinc_status name_units(zn_zero *zero, const zn_param_list *list, int n_units)
{
    int first = 0;
    for (int unit = 0; unit < n_units; unit++) {
        int last = first;
        while (last + 1 < list->n_units && zero->members[last + 1].unit == unit)
            last++;
        zero->members[first].first = zero->members[last].last = true;
        char *name = NULL;
        if (first == last)
            ZN_TRY(zn_strdup(list->unit_names[first], &name));
        else
            ZN_TRY(zn_format(&name, "%s to %s", list->unit_names[first], list->unit_names[last]));
        const zinc_status status = zn_param_list_add_unit(&zero->list, name, NULL);
        zn_free(name);
        if (status != ZINC_OK)
            return status;
        first = last + 1;
    }
    return ZINC_OK;
}

zinc_status zn_zero_join_units(zn_zero *zero, const zn_param_list *list)
{
    zero->n_members = list->n_units;
    ZN_TRY(zn_alloc_array(&zero->members, (size_t)list->n_units, sizeof *zero->members, "units"));
    const int n_units = join(list, zero->p.min_unit_elems, zero->members);
    ZN_TRY(name_units(zero, list, n_units));
    for (int i = 0; i < list->n_specs; i++) {
        zn_param_spec spec = list->specs[i];
        spec.unit = zero->members[spec.unit].unit;
        ZN_TRY(zn_param_list_add(&zero->list, &spec, NULL));
    }
    return ZINC_OK;
}

int zn_zero_first_trainable(const zn_param_list *list)
{
    int first = list->n_units;
    for (int i = 0; i < list->n_specs; i++)
        if (list->specs[i].trainable && list->specs[i].unit < first)
            first = list->specs[i].unit;
    return first;
}
