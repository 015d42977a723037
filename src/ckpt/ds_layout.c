/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/ds_layout.h"

#include <string.h>

#include "base/log.h"
#include "ckpt/ds_internal.h"
#include "ckpt/safetensors_internal.h"

/* Reads a row of tensors as if they lay back to back. */
typedef struct cursor {
    const zn_pickle_value **tensors; /* [n] */
    const char **paths;              /* [n] */
    int n, at;
    int64_t offset; /* in tensors[at] */
    int64_t taken;
} cursor;

static const zn_pickle_value *model_get(const zn_ds_checkpoint *ckpt, int file, const char *key)
{
    return zn_pickle_get(zn_torch_root(ckpt->files.models[file]), key);
}

/* Number in an int, an enum member (a call with one argument) or the first of a list; -1: none. */
static int64_t int_of(const zn_pickle_value *value)
{
    if (zn_pickle_is(value, ZN_PICKLE_OPAQUE) && value->u.opaque.args)
        value = value->u.opaque.args;
    if ((zn_pickle_is(value, ZN_PICKLE_TUPLE) || zn_pickle_is(value, ZN_PICKLE_LIST)) &&
        value->u.seq.n > 0)
        value = value->u.seq.items[0];
    return zn_pickle_is(value, ZN_PICKLE_INT) ? value->u.integer : -1;
}

static zinc_status add_weight(zn_ds_checkpoint *ckpt, const zn_pickle_value *key,
                              const int64_t *shape, int n_dims, zn_ds_weight **out)
{
    static const char wrapper[] = "module."; /* what a wrapping module adds */
    const char *text = key->u.string.text;
    size_t n = key->u.string.n;
    if (n > sizeof wrapper - 1 && memcmp(text, wrapper, sizeof wrapper - 1) == 0) {
        text += sizeof wrapper - 1;
        n -= sizeof wrapper - 1;
    }
    const int shown = (int)(n < 200 ? n : 200);
    if (n_dims > ZN_MAX_DIMS)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: %.*s has %d dimensions; at most %d are supported",
                ckpt->files.dir, shown, text, n_dims, ZN_MAX_DIMS);
    ZN_TRY(zn_realloc_array(&ckpt->weights, (size_t)ckpt->n_weights + 1, sizeof *ckpt->weights,
                            "weights"));
    zn_ds_weight *weight = &ckpt->weights[ckpt->n_weights];
    memset(weight, 0, sizeof *weight);
    weight->n_dims = n_dims;
    for (int d = 0; d < n_dims; d++)
        weight->shape[d] = shape[d];
    weight->n_elems = zn_st_n_elems(weight->shape, n_dims);
    if (weight->n_elems < 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: %.*s has a shape that is negative or too large",
                ckpt->files.dir, shown, text);
    ZN_TRY(zn_alloc(&weight->name, n + 1, "a name"));
    memcpy(weight->name, text, n);
    ckpt->n_weights++;
    *out = weight;
    return ZINC_OK;
}

/* A weight by its torch.Size. */
static zinc_status add_sized(zn_ds_checkpoint *ckpt, const zn_pickle_value *key,
                             const zn_pickle_value *size, zn_ds_weight **out)
{
    int64_t shape[ZN_PICKLE_MAX_DIMS];
    if (key->kind != ZN_PICKLE_STRING || size->kind != ZN_PICKLE_TUPLE ||
        size->u.seq.n > ZN_PICKLE_MAX_DIMS)
        ZN_FAIL(ZINC_E_FORMAT, "%s: an entry of the parameter shapes is no name and size",
                ckpt->files.dir);
    for (size_t d = 0; d < size->u.seq.n; d++) {
        const zn_pickle_value *dim = size->u.seq.items[d];
        shape[d] = dim->kind == ZN_PICKLE_INT ? dim->u.integer : -1;
    }
    return add_weight(ckpt, key, shape, (int)size->u.seq.n, out);
}

static zinc_status add_piece(zn_ds_weight *weight, const zn_ds_piece *p)
{
    ZN_TRY(zn_realloc_array(&weight->pieces, (size_t)weight->n_pieces + 1, sizeof *weight->pieces,
                            "pieces of a weight"));
    weight->pieces[weight->n_pieces++] = *p;
    return ZINC_OK;
}

static zinc_status cursor_init(cursor *c, int n)
{
    ZN_TRY(zn_alloc_array(&c->tensors, (size_t)n, sizeof *c->tensors, "flat groups"));
    return zn_alloc_array(&c->paths, (size_t)n, sizeof *c->paths, "flat groups");
}

static void cursor_fini(cursor *c)
{
    zn_free(c->tensors);
    zn_free(c->paths);
}

/* The i-th tensor of a list, which must be flat. */
static zinc_status cursor_add(cursor *c, const zn_pickle_value *list, size_t i, const char *path)
{
    const zn_pickle_value *tensor =
        zn_pickle_is(list, ZN_PICKLE_LIST) && i < list->u.seq.n ? list->u.seq.items[i] : NULL;
    if (!zn_pickle_is(tensor, ZN_PICKLE_TENSOR) || !tensor->u.tensor.data)
        ZN_FAIL(ZINC_E_FORMAT, "%s: fp32 group %zu is missing or no flat tensor", path, i);
    c->tensors[c->n] = tensor;
    c->paths[c->n] = path;
    c->n++;
    return ZINC_OK;
}

static int64_t cursor_total(const cursor *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->n; i++)
        n += c->tensors[i]->u.tensor.n_elems;
    return n;
}

/* Move over n elements and give them to `weight`; NULL: skip them. */
static zinc_status cursor_take(cursor *c, int64_t n, zn_ds_weight *weight, const char *name)
{
    c->taken += n;
    while (n > 0) {
        if (c->at == c->n)
            ZN_FAIL(ZINC_E_FORMAT,
                    "%s: the fp32 groups end inside %.200s: a file is missing or damaged",
                    c->n ? c->paths[0] : "the checkpoint", name);
        const zn_pickle_value *tensor = c->tensors[c->at];
        const int64_t left = tensor->u.tensor.n_elems - c->offset;
        const int64_t m = n < left ? n : left;
        const zn_ds_piece p = {tensor, c->paths[c->at], c->offset, m};
        if (weight && m > 0)
            ZN_TRY(add_piece(weight, &p));
        c->offset += m;
        n -= m;
        if (c->offset == tensor->u.tensor.n_elems) {
            c->at++;
            c->offset = 0;
        }
    }
    return ZINC_OK;
}

static zinc_status walk_group(zn_ds_checkpoint *ckpt, const zn_pickle_value *shapes, size_t group,
                              cursor *c)
{
    for (int r = 0; r < ckpt->files.n_ranks; r++)
        ZN_TRY(cursor_add(c, zn_ds_optim_get(ckpt, r, "single_partition_of_fp32_groups"), group,
                          zn_torch_path(ckpt->files.optims[r])));
    for (size_t i = 0; i < shapes->u.seq.n; i++) {
        zn_ds_weight *weight = NULL;
        ZN_TRY(
            add_sized(ckpt, shapes->u.seq.items[2 * i], shapes->u.seq.items[2 * i + 1], &weight));
        ZN_TRY(cursor_take(c, weight->n_elems, weight, weight->name));
    }
    /* The group was padded to a multiple of 2 W elements; padding may have been stripped. */
    const int64_t align = 2 * (int64_t)ckpt->files.n_ranks;
    const int64_t total = cursor_total(c);
    if ((c->taken + align - 1) / align != (total + align - 1) / align)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: the parameters of group %zu have %lld elements, but the files hold %lld",
                ckpt->files.dir, group, (long long)c->taken, (long long)total);
    return ZINC_OK;
}

static zinc_status add_stage12(zn_ds_checkpoint *ckpt, const zn_pickle_value *groups)
{
    for (size_t g = 0; g < groups->u.seq.n; g++) {
        cursor c = {0};
        const zn_pickle_value *shapes = groups->u.seq.items[g];
        if (shapes->kind != ZN_PICKLE_DICT)
            ZN_FAIL(ZINC_E_FORMAT, "%s: param_shapes is no list of dicts", ckpt->files.dir);
        zinc_status status = cursor_init(&c, ckpt->files.n_ranks);
        if (status == ZINC_OK)
            status = walk_group(ckpt, shapes, g, &c);
        cursor_fini(&c);
        ZN_TRY(status);
    }
    return ZINC_OK;
}

/* Rank r holds elements [r p, (r + 1) p) of every parameter, p = ceil(n / W), zero-padded. */
static zinc_status take_partitioned(cursor *cursors, int n_ranks, zn_ds_weight *weight)
{
    const int64_t part = (weight->n_elems + n_ranks - 1) / n_ranks;
    for (int r = 0; r < n_ranks; r++) {
        const int64_t left = weight->n_elems - r * part;
        const int64_t n = left < 0 ? 0 : left < part ? left : part;
        ZN_TRY(cursor_take(&cursors[r], n, weight, weight->name));
        ZN_TRY(cursor_take(&cursors[r], part - n, NULL, weight->name));
    }
    return ZINC_OK;
}

static zinc_status walk_stage3(zn_ds_checkpoint *ckpt, const zn_pickle_value *groups,
                               cursor *cursors)
{
    for (int r = 0; r < ckpt->files.n_ranks; r++) {
        const zn_pickle_value *flat = zn_ds_optim_get(ckpt, r, "fp32_flat_groups");
        const size_t n = zn_pickle_is(flat, ZN_PICKLE_LIST) ? flat->u.seq.n : 0;
        ZN_TRY(cursor_init(&cursors[r], (int)n));
        for (size_t i = 0; i < n; i++)
            ZN_TRY(cursor_add(&cursors[r], flat, i, zn_torch_path(ckpt->files.optims[r])));
    }
    for (size_t g = 0; g < groups->u.seq.n; g++) {
        const zn_pickle_value *shapes = groups->u.seq.items[g];
        if (shapes->kind != ZN_PICKLE_DICT)
            ZN_FAIL(ZINC_E_FORMAT, "%s: param_shapes is no list of dicts", ckpt->files.dir);
        for (size_t i = 0; i < shapes->u.seq.n; i++) {
            zn_ds_weight *weight = NULL;
            ZN_TRY(add_sized(ckpt, shapes->u.seq.items[2 * i], shapes->u.seq.items[2 * i + 1],
                             &weight));
            ZN_TRY(take_partitioned(cursors, ckpt->files.n_ranks, weight));
        }
    }
    for (int r = 0; r < ckpt->files.n_ranks; r++)
        if (cursors[r].taken != cursor_total(&cursors[r]))
            ZN_FAIL(ZINC_E_FORMAT, "%s: the parameters need %lld elements, but the file holds %lld",
                    zn_torch_path(ckpt->files.optims[r]), (long long)cursors[r].taken,
                    (long long)cursor_total(&cursors[r]));
    return ZINC_OK;
}

static zinc_status add_stage3(zn_ds_checkpoint *ckpt, const zn_pickle_value *groups)
{
    cursor *cursors = NULL;
    ZN_TRY(zn_alloc_array(&cursors, (size_t)ckpt->files.n_ranks, sizeof *cursors, "flat groups"));
    const zinc_status status = walk_stage3(ckpt, groups, cursors);
    for (int r = 0; r < ckpt->files.n_ranks; r++)
        cursor_fini(&cursors[r]);
    zn_free(cursors);
    return status;
}

/* Frozen parameters lie in the model files: whole, or in stage 3 a fragment a rank. */
static zinc_status add_frozen(zn_ds_checkpoint *ckpt)
{
    const zn_pickle_value *shapes = model_get(ckpt, 0, "frozen_param_shapes");
    if (!zn_pickle_is(shapes, ZN_PICKLE_DICT))
        return ZINC_OK;
    for (size_t i = 0; i < shapes->u.seq.n; i++) {
        const zn_pickle_value *key = shapes->u.seq.items[2 * i];
        zn_ds_weight *weight = NULL;
        ZN_TRY(add_sized(ckpt, key, shapes->u.seq.items[2 * i + 1], &weight));
        int64_t left = weight->n_elems;
        for (int f = 0; f < ckpt->files.n_models; f++) {
            const zn_pickle_value *t = zn_pickle_get_n(model_get(ckpt, f, "frozen_param_fragments"),
                                                       key->u.string.text, key->u.string.n);
            if (!zn_pickle_is(t, ZN_PICKLE_TENSOR) || !t->u.tensor.data)
                ZN_FAIL(ZINC_E_FORMAT, "%s: the frozen parameter %.200s is missing",
                        zn_torch_path(ckpt->files.models[f]), weight->name);
            const int64_t n = t->u.tensor.n_elems < left ? t->u.tensor.n_elems : left;
            const zn_ds_piece p = {t, zn_torch_path(ckpt->files.models[f]), 0, n};
            ZN_TRY(add_piece(weight, &p));
            left -= n;
        }
        if (left > 0)
            ZN_FAIL(ZINC_E_FORMAT, "%s: the fragments of the frozen parameter %.200s are too short",
                    ckpt->files.dir, weight->name);
    }
    return ZINC_OK;
}

/* One entry of the module's state, as it is. */
static zinc_status add_module_tensor(zn_ds_checkpoint *ckpt, const zn_pickle_value *key,
                                     const zn_pickle_value *t)
{
    zn_ds_weight *weight = NULL;
    const bool is_float = zn_pickle_is(t, ZN_PICKLE_TENSOR) && t->u.tensor.data &&
                          (t->u.tensor.dtype == ZN_DTYPE_F32 ||
                           t->u.tensor.dtype == ZN_DTYPE_BF16 || t->u.tensor.dtype == ZN_DTYPE_F16);
    if (!is_float) {
        zn_warn("ckpt", "%s: %.*s is no plain floating-point tensor and is left out",
                ckpt->files.dir, (int)(key->u.string.n < 200 ? key->u.string.n : 200),
                key->u.string.text);
        return ZINC_OK;
    }
    ZN_TRY(add_weight(ckpt, key, t->u.tensor.shape, t->u.tensor.n_dims, &weight));
    const zn_ds_piece p = {t, zn_torch_path(ckpt->files.models[0]), 0, weight->n_elems};
    return add_piece(weight, &p);
}

static zinc_status add_buffers(zn_ds_checkpoint *ckpt)
{
    const zn_pickle_value *names = model_get(ckpt, 0, "buffer_names");
    const zn_pickle_value *module = model_get(ckpt, 0, "module");
    for (size_t i = 0; zn_pickle_is(names, ZN_PICKLE_LIST) && i < names->u.seq.n; i++) {
        const zn_pickle_value *key = names->u.seq.items[i];
        if (key->kind != ZN_PICKLE_STRING)
            continue;
        const zn_pickle_value *t = zn_pickle_get_n(module, key->u.string.text, key->u.string.n);
        if (t) /* buffers that are not persistent have no entry */
            ZN_TRY(add_module_tensor(ckpt, key, t));
    }
    return ZINC_OK;
}

static zinc_status add_module(zn_ds_checkpoint *ckpt)
{
    const zn_pickle_value *module = model_get(ckpt, 0, "module");
    if (!zn_pickle_is(module, ZN_PICKLE_DICT) || ckpt->files.n_models > 1)
        ZN_FAIL(ZINC_E_IO,
                "%s holds no *_optim_states.pt, where ZeRO keeps the fp32 weights: the checkpoint "
                "is not complete",
                ckpt->files.dir);
    for (size_t i = 0; i < module->u.seq.n; i++)
        if (module->u.seq.items[2 * i]->kind == ZN_PICKLE_STRING)
            ZN_TRY(add_module_tensor(ckpt, module->u.seq.items[2 * i],
                                     module->u.seq.items[2 * i + 1]));
    return zn_ds_add_stage0(ckpt);
}

/* shared_params: alias -> the name under which the weight is stored. */
static zinc_status add_shared(zn_ds_checkpoint *ckpt)
{
    const zn_pickle_value *shared = model_get(ckpt, 0, "shared_params");
    for (size_t i = 0; zn_pickle_is(shared, ZN_PICKLE_DICT) && i < shared->u.seq.n; i++) {
        const zn_pickle_value *alias = shared->u.seq.items[2 * i];
        const zn_pickle_value *original = shared->u.seq.items[2 * i + 1];
        if (alias->kind != ZN_PICKLE_STRING || original->kind != ZN_PICKLE_STRING)
            continue;
        int from = 0;
        while (from < ckpt->n_weights &&
               (strlen(ckpt->weights[from].name) != original->u.string.n ||
                memcmp(ckpt->weights[from].name, original->u.string.text, original->u.string.n)))
            from++;
        if (from == ckpt->n_weights)
            continue;
        zn_ds_weight *copy = NULL;
        const int n_dims = ckpt->weights[from].n_dims;
        int64_t shape[ZN_MAX_DIMS];
        memcpy(shape, ckpt->weights[from].shape, sizeof shape);
        ZN_TRY(add_weight(ckpt, alias, shape, n_dims, &copy));
        copy->is_alias = true;
        for (int p = 0; p < ckpt->weights[from].n_pieces; p++)
            ZN_TRY(add_piece(copy, &ckpt->weights[from].pieces[p]));
    }
    return ZINC_OK;
}

static zinc_status check_world(const zn_ds_checkpoint *ckpt)
{
    const int64_t n = int_of(zn_ds_optim_get(ckpt, 0, "partition_count"));
    if (n > 0 && n != ckpt->files.n_ranks)
        ZN_FAIL(ZINC_E_IO,
                "%s was written by %lld ranks, but holds the optimizer files of %d: copy the files "
                "of all nodes into one folder",
                ckpt->files.dir, (long long)n, ckpt->files.n_ranks);
    return ZINC_OK;
}

static zinc_status build(zn_ds_checkpoint *ckpt)
{
    const zn_pickle_value *groups = model_get(ckpt, 0, "param_shapes");
    if (ckpt->files.n_ranks == 0)
        return add_module(ckpt);
    ZN_TRY(check_world(ckpt));
    ckpt->stage = (int)int_of(zn_ds_optim_get(ckpt, 0, "zero_stage"));
    if (!zn_pickle_is(groups, ZN_PICKLE_LIST))
        ZN_FAIL(ZINC_E_FORMAT, "%s: has no param_shapes list",
                zn_torch_path(ckpt->files.models[0]));
    if (zn_ds_optim_get(ckpt, 0, "single_partition_of_fp32_groups"))
        ZN_TRY(add_stage12(ckpt, groups));
    else if (zn_ds_optim_get(ckpt, 0, "fp32_flat_groups"))
        ZN_TRY(add_stage3(ckpt, groups));
    else
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: holds no fp32 weights of ZeRO stage 1, 2 or 3",
                zn_torch_path(ckpt->files.optims[0]));
    ZN_TRY(add_frozen(ckpt));
    ZN_TRY(add_buffers(ckpt));
    return add_shared(ckpt);
}

zinc_status zn_ds_open(const char *path, zn_ds_checkpoint **out)
{
    zinc_status status;
    zn_ds_checkpoint *ckpt = NULL;
    ZN_TRY(zn_alloc(&ckpt, sizeof *ckpt, "checkpoint"));
    ZN_TRY_GOTO(zn_ds_files_open(path, &ckpt->files));
    ZN_TRY_GOTO(build(ckpt));
    *out = ckpt;
    return ZINC_OK;
fail:
    zn_ds_close(ckpt);
    return status;
}

void zn_ds_close(zn_ds_checkpoint *ckpt)
{
    if (!ckpt)
        return;
    for (int i = 0; i < ckpt->n_weights; i++) {
        zn_free(ckpt->weights[i].name);
        zn_free(ckpt->weights[i].pieces);
    }
    zn_free(ckpt->weights);
    zn_ds_files_close(&ckpt->files);
    zn_free(ckpt);
}

int zn_ds_n_ranks(const zn_ds_checkpoint *ckpt)
{
    return ckpt->files.n_ranks;
}

int zn_ds_stage(const zn_ds_checkpoint *ckpt)
{
    return ckpt->stage;
}

int zn_ds_n(const zn_ds_checkpoint *ckpt)
{
    return ckpt->n_weights;
}

zn_tensor_plan zn_ds_at(const zn_ds_checkpoint *ckpt, int i)
{
    const zn_ds_weight *weight = &ckpt->weights[i];
    zn_tensor_plan plan = {.name = weight->name, .dtype = ZN_DTYPE_F32, .n_dims = weight->n_dims};
    memcpy(plan.shape, weight->shape, sizeof plan.shape);
    return plan;
}

int64_t zn_ds_n_elems(const zn_ds_checkpoint *ckpt, int i)
{
    return ckpt->weights[i].n_elems;
}

bool zn_ds_is_alias(const zn_ds_checkpoint *ckpt, int i)
{
    return ckpt->weights[i].is_alias;
}

zinc_status zn_ds_check_range(const zn_ds_weight *weight, int64_t offset, int64_t n)
{
    if (offset < 0 || n < 0 || offset > weight->n_elems || n > weight->n_elems - offset)
        ZN_FAIL(ZINC_E_INVALID, "%.200s has %lld elements, not [%lld, +%lld)", weight->name,
                (long long)weight->n_elems, (long long)offset, (long long)n);
    return ZINC_OK;
}

zinc_status zn_ds_read(const zn_ds_checkpoint *ckpt, int i, int64_t offset, int64_t n, float *out)
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
        const zn_tensor_info info = {.name = weight->name,
                                     .dtype = p->tensor->u.tensor.dtype,
                                     .n_elems = p->tensor->u.tensor.n_elems,
                                     .file = p->path,
                                     .data = p->tensor->u.tensor.data,
                                     .mapped = true};
        ZN_TRY(zn_tensor_read(&info, p->offset + offset, m, out));
        out += m;
        n -= m;
        offset = 0;
    }
    return ZINC_OK;
}
