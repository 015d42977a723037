/* SPDX-License-Identifier: Apache-2.0 */
/* ds_stage0.c — the optimizer of a DeepSpeed checkpoint without ZeRO, all in
 * mp_rank_00_model_states.pt under "optimizer".
 *
 *   fp32        torch's state_dict: {"state": {k: {"exp_avg": …}}, "param_groups": [{"params":
 * [k…]}]}; a state has the shape of its parameter fp16, bf16  {"fp32_groups_flat": [masters of
 * group g], "optimizer_state_dict": {"state": {g: …}}}; the parameters of a group back to back, and
 * its states likewise Parameters are numbered, not named: the order of a group is that of the
 * module. With several groups a parameter belongs to the only one whose next shape is its own.
 * Source: fused_optimizer.py of DeepSpeed 0.19.8, torch.optim. */
#include "ckpt/ds_internal.h"

#include <string.h>

#include "base/log.h"

#define MAX_GROUPS 16

static bool is_buffer(const zn_ds_checkpoint *ckpt, const zn_ds_weight *weight)
{
    const zn_pickle_value *names =
        zn_pickle_get(zn_torch_root(ckpt->files.models[0]), "buffer_names");
    for (size_t i = 0; zn_pickle_is(names, ZN_PICKLE_LIST) && i < names->u.seq.n; i++) {
        const zn_pickle_value *name = names->u.seq.items[i];
        if (name->kind == ZN_PICKLE_STRING && name->u.string.n == strlen(weight->name) &&
            memcmp(name->u.string.text, weight->name, name->u.string.n) == 0)
            return true;
    }
    return false;
}

/* Tensors of one storage are one parameter (a tied head): torch writes it once. */
static void mark_copies(zn_ds_checkpoint *ckpt)
{
    for (int i = 0; i < ckpt->n_weights; i++)
        for (int k = 0; k < i && !ckpt->weights[i].is_alias; k++)
            ckpt->weights[i].is_alias = ckpt->weights[i].n_elems > 0 &&
                                        ckpt->weights[i].n_elems == ckpt->weights[k].n_elems &&
                                        ckpt->weights[i].pieces[0].tensor->u.tensor.data ==
                                            ckpt->weights[k].pieces[0].tensor->u.tensor.data;
}

/* ---- 16 bits: one flat tensor ---- */

static zinc_status add_flat(zn_ds_checkpoint *ckpt, const zn_pickle_value *optimizer,
                            const zn_pickle_value *flats)
{
    const char *path = zn_torch_path(ckpt->files.models[0]);
    const zn_pickle_value *flat = flats->u.seq.n == 1 ? flats->u.seq.items[0] : NULL;
    const zn_pickle_value *states = zn_ds_by_number(
        zn_pickle_get(zn_pickle_get(optimizer, "optimizer_state_dict"), "state"), 0);
    int64_t at = 0;
    for (int i = 0; i < ckpt->n_weights; i++)
        if (!ckpt->weights[i].is_alias && !is_buffer(ckpt, &ckpt->weights[i]))
            at += ckpt->weights[i].n_elems;
    if (!zn_pickle_is(flat, ZN_PICKLE_TENSOR) || !flat->u.tensor.data ||
        flat->u.tensor.n_elems != at) {
        zn_warn("ckpt",
                "%s: the fp32 weights are in %zu groups whose parameters are not named; the 16-bit "
                "weights are taken, and the run cannot be gone on with",
                path, flats->u.seq.n);
        return ZINC_OK;
    }
    at = 0;
    for (int i = 0; i < ckpt->n_weights; i++) {
        zn_ds_weight *w = &ckpt->weights[i];
        if (w->is_alias || is_buffer(ckpt, w))
            continue;
        w->pieces[0] = (zn_ds_piece){flat, path, at, w->n_elems};
        w->states = states;
        w->state_offset = at;
        at += w->n_elems;
    }
    for (int i = 0; i < ckpt->n_weights; i++) /* copies of 16-bit tensors follow their originals */
        for (int k = 0; ckpt->weights[i].is_alias && k < i; k++)
            if (!ckpt->weights[k].is_alias && ckpt->weights[k].pieces[0].tensor == flat &&
                ckpt->weights[k].n_elems == ckpt->weights[i].n_elems)
                ckpt->weights[i].pieces[0] = ckpt->weights[k].pieces[0];
    return ZINC_OK;
}

/* ---- fp32: a state a parameter ---- */

typedef struct slots {
    const zn_pickle_value *state;  /* by number */
    const zn_pickle_value *groups; /* LIST */
    size_t next[MAX_GROUPS];       /* of each group's parameters */
} slots;

/* The states that come next in a group, or NULL. */
static const zn_pickle_value *next_of(const slots *s, size_t group)
{
    const zn_pickle_value *params = zn_pickle_get(s->groups->u.seq.items[group], "params");
    if (!zn_pickle_is(params, ZN_PICKLE_LIST) || s->next[group] >= params->u.seq.n ||
        params->u.seq.items[s->next[group]]->kind != ZN_PICKLE_INT)
        return NULL;
    return zn_ds_by_number(s->state, params->u.seq.items[s->next[group]]->u.integer);
}

/* Whether some state of these has the shape of the weight. */
static bool fits(const zn_pickle_value *states, const zn_ds_weight *weight)
{
    for (size_t i = 0; zn_pickle_is(states, ZN_PICKLE_DICT) && i < states->u.seq.n; i++) {
        const zn_pickle_value *t = states->u.seq.items[2 * i + 1];
        if (zn_pickle_is(t, ZN_PICKLE_TENSOR) && t->u.tensor.n_dims == weight->n_dims &&
            memcmp(t->u.tensor.shape, weight->shape,
                   (size_t)weight->n_dims * sizeof *weight->shape) == 0)
            return true;
    }
    return false;
}

/* A weight whose group cannot be told gets no states: a run that needs them says so. */
static void add_shaped(zn_ds_checkpoint *ckpt, slots *s)
{
    const size_t n = s->groups->u.seq.n;
    for (int i = 0; i < ckpt->n_weights; i++) {
        zn_ds_weight *w = &ckpt->weights[i];
        size_t group = n;
        bool several = false;
        for (size_t g = 0; g < n && !w->is_alias && !is_buffer(ckpt, w); g++)
            if (fits(next_of(s, g), w)) {
                several = group < n;
                group = g;
            }
        if (several)
            return;
        if (group == n)
            continue;
        w->states = next_of(s, group);
        s->next[group]++;
    }
}

zinc_status zn_ds_add_stage0(zn_ds_checkpoint *ckpt)
{
    const zn_pickle_value *root = zn_torch_root(ckpt->files.models[0]);
    const zn_pickle_value *optimizer = zn_pickle_get(root, "optimizer");
    const zn_pickle_value *flats = zn_pickle_get(optimizer, "fp32_groups_flat");
    slots s = {.state = zn_pickle_get(optimizer, "state"),
               .groups = zn_pickle_get(optimizer, "param_groups")};
    mark_copies(ckpt);
    if (zn_pickle_is(flats, ZN_PICKLE_LIST))
        return add_flat(ckpt, optimizer, flats);
    if (zn_pickle_is(s.groups, ZN_PICKLE_LIST) && s.groups->u.seq.n <= MAX_GROUPS)
        add_shaped(ckpt, &s);
    return ZINC_OK;
}
