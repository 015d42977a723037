/* SPDX-License-Identifier: Apache-2.0 */
/* ds_state.c — optimizer state of a DeepSpeed checkpoint.
 *
 * Group g of a rank's fp32 weights, one flat tensor, has its states as flat tensors of the same
 * layout under the integer g:
 *   stage 1, 2   base_optimizer_state: {"state": {g: {"exp_avg": …}}}, or a list of such, by group
 *   stage 3      optimizer_state_dict: {"state": {g: …}}, g counting the sub-groups
 * So a piece of a weight is the same piece of its states. Stage 0: ds_stage0.c. Source: as
 * ds_layout.h. */
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

const zn_pickle_value *zn_ds_by_number(const zn_pickle_value *dict, int64_t key)
{
    for (size_t i = 0; zn_pickle_is(dict, ZN_PICKLE_DICT) && i < dict->u.seq.n; i++) {
        const zn_pickle_value *k = dict->u.seq.items[2 * i];
        if (k->kind == ZN_PICKLE_INT && k->u.integer == key)
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
        entry = zn_ds_by_number(zn_pickle_get(base, "state"), (int64_t)group);
    return zn_pickle_get(entry, state);
}

static zinc_status read_piece(const zn_ds_checkpoint *ckpt, const zn_ds_weight *weight,
                              const zn_ds_piece *p, const char *state, int64_t skip, int64_t n,
                              float *out)
{
    int rank = 0;
    size_t group = 0;
    const zn_pickle_value *t = NULL;
    int64_t at = p->offset + skip;
    if (weight->states) {
        t = zn_pickle_get(weight->states, state);
        at = weight->state_offset + skip;
    } else if (find_group(ckpt, p->tensor, &rank, &group)) {
        t = state_tensor(ckpt, rank, group, state);
    }
    if (!zn_pickle_is(t, ZN_PICKLE_TENSOR) || !t->u.tensor.data)
        ZN_FAIL(ZINC_E_FORMAT, "%s: holds no %s of %.200s", p->path, state, weight->name);
    const zn_tensor_info info = {.name = weight->name,
                                 .dtype = t->u.tensor.dtype,
                                 .n_elems = t->u.tensor.n_elems,
                                 .file = p->path,
                                 .data = t->u.tensor.data,
                                 .mapped = true};
    return zn_tensor_read(&info, at, n, out);
}

zinc_status zn_ds_read_state(const zn_ds_checkpoint *ckpt, int i, const char *state, int64_t offset,
                             int64_t n, float *out)
{
    const zn_ds_weight *weight = &ckpt->weights[i];
    ZN_TRY(zn_ds_check_range(weight, offset, n));
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

static int64_t count_or(const zn_pickle_value *value, int64_t otherwise)
{
    return zn_pickle_is(value, ZN_PICKLE_INT) && value->u.integer >= -1 ? value->u.integer
                                                                        : otherwise;
}

/* Stages 1 to 3 keep an object, stage 0 its numbers under the optimizer. */
bool zn_ds_scaler(const zn_ds_checkpoint *ckpt, zn_loss_scaler *out)
{
    const zn_pickle_value *object =
        ckpt->files.n_ranks > 0 ? zn_ds_optim_get(ckpt, 0, "loss_scaler") : NULL;
    const zn_pickle_value *numbers =
        object ? object->u.opaque.state
               : zn_pickle_get(zn_torch_root(ckpt->files.models[0]), "optimizer");
    const zn_pickle_value *scale, *dynamic;
    if (object && !zn_pickle_is(object, ZN_PICKLE_OPAQUE))
        return false;
    scale = zn_pickle_get(numbers, "cur_scale");
    dynamic = zn_pickle_get(numbers, object ? "dynamic" : "dynamic_loss_scale");
    if (!zn_pickle_is(scale, ZN_PICKLE_FLOAT) || !(scale->u.real > 0) ||
        !zn_pickle_is(dynamic, ZN_PICKLE_BOOL))
        return false;
    *out = (zn_loss_scaler){
        .dynamic = dynamic->u.integer != 0,
        .scale = scale->u.real,
        .min_scale = 1,
        .window = count_or(zn_pickle_get(numbers, "scale_window"), 1000),
        .hysteresis = (int)count_or(zn_pickle_get(numbers, "delayed_shift"), 1),
        .hysteresis_left = (int)count_or(zn_pickle_get(numbers, "cur_hysteresis"), 1),
        .iteration = count_or(zn_pickle_get(numbers, "cur_iter"), 0),
        .last_overflow = count_or(zn_pickle_get(numbers, "last_overflow_iter"), -1)};
    return true;
}
