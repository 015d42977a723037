/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/freeze.h"

#include <fnmatch.h>

#include "base/mem.h"
#include "config/config.h"

static int freeze_matching(zn_param_list *list, const char *pattern)
{
    int n = 0;
    for (int i = 0; i < list->n_specs; i++)
        if (fnmatch(pattern, list->specs[i].name, 0) == 0) {
            list->specs[i].trainable = false;
            n++;
        }
    return n;
}

/* The nearest name, or the first of the model to show how its names look. */
static zinc_status no_match(const zn_param_list *list, const char *pattern)
{
    zinc_status status;
    const char **names = NULL;
    ZN_TRY(zn_alloc_array(&names, (size_t)list->n_specs, sizeof *names, "parameter names"));
    for (int i = 0; i < list->n_specs; i++)
        names[i] = list->specs[i].name;
    const char *near = zn_nearest_name(pattern, names, list->n_specs);
    if (near)
        ZN_FAIL_GOTO(ZINC_E_CONFIG,
                     "--freeze %s matches no parameter of the model; did you mean %s?", pattern,
                     near);
    ZN_FAIL_GOTO(ZINC_E_CONFIG,
                 "--freeze %s matches no parameter of the model; its %d names run from %s over %s "
                 "to %s, and * stands for any letters",
                 pattern, list->n_specs, names[0], names[list->n_specs / 2],
                 names[list->n_specs - 1]);
fail:
    zn_free(names);
    return status;
}

zinc_status zn_freeze_parameters(zn_param_list *list, const char *const *patterns, int n_patterns)
{
    for (int i = 0; i < n_patterns; i++)
        if (freeze_matching(list, patterns[i]) == 0)
            return no_match(list, patterns[i]);
    if (n_patterns > 0 && zn_param_list_elems(list, true) == 0)
        ZN_FAIL(ZINC_E_CONFIG, "--freeze %s%s leaves no parameter to train", patterns[0],
                n_patterns > 1 ? " …" : "");
    return ZINC_OK;
}

static bool rounds_to(const float *exact, const float *held, int64_t n, zn_dtype dtype)
{
    for (int64_t i = 0; i < n; i++) {
        const float rounded = dtype == ZN_DTYPE_BF16 ? zn_bf16_to_f32(zn_f32_to_bf16(exact[i]))
                                                     : zn_f16_to_f32(zn_f32_to_f16(exact[i]));
        if (zn_f32_bits(rounded) != zn_f32_bits(held[i]) &&
            rounded == rounded) /* NaNs have kinds */
            return false;
    }
    return true;
}

zinc_status zn_frozen_visit(void *reader, int param, int64_t offset, int64_t n, const float *values)
{
    zn_frozen_reader *r = reader;
    if (!r->read || r->list->specs[param].trainable)
        return r->visit(r->visit_ctx, param, offset, n, values);
    for (int64_t done = 0; done < n; done += ZN_FROZEN_IO_ELEMS) {
        const int64_t k = n - done < ZN_FROZEN_IO_ELEMS ? n - done : ZN_FROZEN_IO_ELEMS;
        ZN_TRY(r->read(r->read_ctx, param, offset + done, k, r->values));
        const bool same = rounds_to(r->values, values + done, k, r->dtype);
        r->n_kept += same ? 0 : k;
        ZN_TRY(r->visit(r->visit_ctx, param, offset + done, k, same ? r->values : values + done));
    }
    return ZINC_OK;
}
