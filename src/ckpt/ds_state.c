/* SPDX-License-Identifier: Apache-2.0 */
/* ds_state.c — optimizer state of a DeepSpeed checkpoint.
 *
 * Group g of a rank's fp32 weights, one flat tensor, has its states as flat tensors of the same
 * layout under the integer g:
 *   stage 1, 2   base_optimizer_state: {"state": {g: {"exp_avg": …}}}, or a list of such, by group
 *   stage 3      optimizer_state_dict: {"state": {g: …}}, g counting the sub-groups
 * So a piece of a weight is the same piece of its states. Source: as ds_layout.h. */
#include "ckpt/ds_internal.h"

static const char groups_key[] = "single_partition_of_fp32_groups"; /* stages 1 and 2 */
static const char flat_key[] = "fp32_flat_groups";                  /* stage 3 */

const zn_pickle_value *zn_ds_optim_get(const zn_ds_checkpoint *ckpt, int rank, const char *key)
{
    const zn_pickle_value *root = zn_torch_root(ckpt->files.optims[rank]);
    return zn_pickle_get(zn_pickle_get(root, "optimizer_state_dict"), key);
}

/* Rank and group whose flat fp32 tensor is `tensor`; false for a frozen parameter's. */
static bool find_group(const zn_ds_checkpoint *ckpt, const zn_pickle_value *tensor, int *rank,
                       size_t *group)
{
    for (int r = 0; r < ckpt->files.n_ranks; r++) {
        const zn_pickle_value *list = zn_ds_optim_get(ckpt, r, groups_key);
        if (!list)
            list = zn_ds_optim_get(ckpt, r, flat_key);
        for (size_t g = 0; zn_pickle_is(list, ZN_PICKLE_LIST) && g < list->u.seq.n; g++)
            if (list->u.seq.items[g] == tensor) {
                *rank = r;
                *group = g;
                return true;
            }
    }
    return false;
}

static const zn_pickle_value *by_number(const zn_pickle_value *dict, size_t key)
{
    for (size_t i = 0; zn_pickle_is(dict, ZN_PICKLE_DICT) && i < dict->u.seq.n; i++) {
        const zn_pickle_value *k = dict->u.seq.items[2 * i];
        if (k->kind == ZN_PICKLE_INT && k->u.integer == (int64_t)key)
            return dict->u.seq.items[2 * i + 1];
    }
    return NULL;
}

/* The flat state beside group `group` of a rank, or NULL. */
static const zn_pickle_value *state_tensor(const zn_ds_checkpoint *ckpt, int rank, size_t group,
                                           const char *state)
{
    const zn_pickle_value *base = zn_ds_optim_get(ckpt, rank, "base_optimizer_state");
    const zn_pickle_value *entry;
    if (!base)
        base = zn_ds_optim_get(ckpt, rank, "optimizer_state_dict");
    if (zn_pickle_is(base, ZN_PICKLE_LIST))
        entry = group < base->u.seq.n ? base->u.seq.items[group] : NULL;
    else
        entry = by_number(zn_pickle_get(base, "state"), group);
    return zn_pickle_get(entry, state);
}

static zinc_status read_piece(const zn_ds_checkpoint *ckpt, const zn_ds_weight *weight,
                              const zn_ds_piece *p, const char *state, int64_t skip, int64_t n,
                              float *out)
{
    int rank = 0;
    size_t group = 0;
    const zn_pickle_value *t = NULL;
    if (find_group(ckpt, p->tensor, &rank, &group))
        t = state_tensor(ckpt, rank, group, state);
    if (!zn_pickle_is(t, ZN_PICKLE_TENSOR) || !t->u.tensor.data)
        ZN_FAIL(ZINC_E_FORMAT, "%s: holds no %s of %.200s", p->path, state, weight->name);
    const zn_tensor_info info = {.name = weight->name,
                                 .dtype = t->u.tensor.dtype,
                                 .n_elems = t->u.tensor.n_elems,
                                 .file = p->path,
                                 .data = t->u.tensor.data,
                                 .mapped = true};
    return zn_tensor_read(&info, p->offset + skip, n, out);
}

zinc_status zn_ds_read_state(const zn_ds_checkpoint *ckpt, int i, const char *state, int64_t offset,
                             int64_t n, float *out)
{
    const zn_ds_weight *weight = &ckpt->weights[i];
    if (offset < 0 || n < 0 || offset > weight->n_elems || n > weight->n_elems - offset)
        ZN_FAIL(ZINC_E_INVALID, "%.200s has %lld elements, not [%lld, +%lld)", weight->name,
                (long long)weight->n_elems, (long long)offset, (long long)n);
    for (int k = 0; k < weight->n_pieces && n > 0; k++) {
        const zn_ds_piece *p = &weight->pieces[k];
        if (offset >= p->n) {
            offset -= p->n;
            continue;
        }
        const int64_t m = n < p->n - offset ? n : p->n - offset;
        ZN_TRY(read_piece(ckpt, weight, p, state, offset, m, out));
        out += m;
        n -= m;
        offset = 0;
    }
    return ZINC_OK;
}

static int64_t count_of(const zn_pickle_value *root, const char *key)
{
    const zn_pickle_value *value = zn_pickle_get(root, key);
    return zn_pickle_is(value, ZN_PICKLE_INT) ? value->u.integer : -1;
}

void zn_ds_progress(const zn_ds_checkpoint *ckpt, int64_t *steps, int64_t *skipped,
                    int64_t *samples)
{
    const zn_pickle_value *root = zn_torch_root(ckpt->files.models[0]);
    *steps = count_of(root, "global_steps");
    *skipped = count_of(root, "skipped_steps");
    *samples = count_of(root, "global_samples");
}
