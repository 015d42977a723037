/* SPDX-License-Identifier: Apache-2.0 */
/* unpickle_torch.c — the few globals whose calls are data: ordered dicts, sizes, tensors. */
#include "ckpt/unpickle_internal.h"

#include <string.h>

static const struct {
    const char *name;
    zn_dtype dtype;
} storages[] = {
    {"FloatStorage", ZN_DTYPE_F32}, {"BFloat16Storage", ZN_DTYPE_BF16},
    {"HalfStorage", ZN_DTYPE_F16},  {"DoubleStorage", ZN_DTYPE_F64},
    {"IntStorage", ZN_DTYPE_I32},   {"LongStorage", ZN_DTYPE_I64},
    {"ByteStorage", ZN_DTYPE_U8},   {"BoolStorage", ZN_DTYPE_BOOL},
};

static const zn_pickle_value *arg(const zn_pickle_value *tuple, size_t i, zn_pickle_kind kind)
{
    if (!zn_pickle_is(tuple, ZN_PICKLE_TUPLE) || i >= tuple->u.seq.n)
        return NULL;
    const zn_pickle_value *value = tuple->u.seq.items[i];
    return value->kind == kind ? value : NULL;
}

zinc_status zn_pickle_persistent(pickle_machine *m, const zn_pickle_value *id,
                                 zn_pickle_value **out)
{
    const zn_pickle_value *tag = arg(id, 0, ZN_PICKLE_STRING);
    const zn_pickle_value *type = arg(id, 1, ZN_PICKLE_GLOBAL);
    const zn_pickle_value *key = arg(id, 2, ZN_PICKLE_STRING);
    const zn_pickle_value *n = arg(id, 4, ZN_PICKLE_INT);
    if (!tag || tag->u.string.n != 7 || memcmp(tag->u.string.text, "storage", 7) != 0 || !type ||
        !key || !n || n->u.integer < 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: a persistent id at byte %zu that is no tensor storage",
                m->where, m->op_at);
    const size_t n_known = sizeof storages / sizeof storages[0];
    size_t i = 0;
    while (i < n_known && !zn_pickle_is_global(type, "torch", storages[i].name))
        i++;
    if (i == n_known) /* a type we have no use for; its tensors stay opaque */
        return zn_pickle_new(m, ZN_PICKLE_OPAQUE, out);
    const unsigned char *data = NULL;
    size_t n_bytes = 0;
    ZN_TRY(m->storage(m->storage_ctx, key->u.string.text, key->u.string.n, &data, &n_bytes));
    const size_t size = zn_dtype_size(storages[i].dtype);
    if ((uint64_t)n->u.integer != n_bytes / size || n_bytes % size != 0)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: storage %.*s has %zu bytes, but %lld elements of %zu bytes "
                "should be there",
                m->where, (int)(key->u.string.n < 40 ? key->u.string.n : 40), key->u.string.text,
                n_bytes, (long long)n->u.integer, size);
    zn_pickle_value *value = NULL;
    ZN_TRY(zn_pickle_new(m, ZN_PICKLE_STORAGE, &value));
    value->u.storage.dtype = storages[i].dtype;
    value->u.storage.n_elems = n->u.integer;
    value->u.storage.data = data;
    *out = value;
    return ZINC_OK;
}

static zinc_status bad_tensor(const pickle_machine *m, const char *what)
{
    ZN_FAIL(ZINC_E_FORMAT, "%s: a tensor at byte %zu of the pickle %s", m->where, m->op_at, what);
}

/* Shape and strides of `tensor`; whether it is row-major goes to *dense, and the elements from the
 * first to the last one, both included, to *extent. */
static zinc_status measure(const pickle_machine *m, const zn_pickle_value *size,
                           const zn_pickle_value *stride, zn_pickle_value *tensor, bool *dense,
                           int64_t *extent)
{
    int64_t n = 1;
    int64_t reach = 0;
    *dense = true;
    for (int d = tensor->u.tensor.n_dims - 1; d >= 0; d--) {
        const zn_pickle_value *dim = arg(size, (size_t)d, ZN_PICKLE_INT);
        const zn_pickle_value *step = arg(stride, (size_t)d, ZN_PICKLE_INT);
        if (!dim || !step || dim->u.integer < 0 || step->u.integer < 0)
            return bad_tensor(m, "has a shape or stride that is no count");
        const int64_t k = dim->u.integer;
        const int64_t s = step->u.integer;
        tensor->u.tensor.shape[d] = k;
        if (k > 1 && s != n)
            *dense = false;
        if (k > 1 && s > (INT64_MAX / 16 - reach) / (k - 1))
            return bad_tensor(m, "is too large");
        reach += k > 1 ? (k - 1) * s : 0;
        if (k > 0 && n > INT64_MAX / 16 / k)
            return bad_tensor(m, "is too large");
        n *= k;
    }
    tensor->u.tensor.n_elems = n;
    *extent = n == 0 ? 0 : reach + 1;
    return ZINC_OK;
}

/* torch._utils._rebuild_tensor_v2(storage, offset, size, stride, …) */
static zinc_status rebuild_tensor(pickle_machine *m, const zn_pickle_value *args,
                                  zn_pickle_value **out)
{
    const zn_pickle_value *storage = arg(args, 0, ZN_PICKLE_STORAGE);
    const zn_pickle_value *offset = arg(args, 1, ZN_PICKLE_INT);
    const zn_pickle_value *size = arg(args, 2, ZN_PICKLE_TUPLE);
    const zn_pickle_value *stride = arg(args, 3, ZN_PICKLE_TUPLE);
    zn_pickle_value *tensor = NULL;
    if (arg(args, 0, ZN_PICKLE_OPAQUE))
        return zn_pickle_new(m, ZN_PICKLE_OPAQUE, out);
    if (!storage || !offset || !size || !stride)
        return bad_tensor(m, "has no storage, offset, size and stride");
    if (size->u.seq.n != stride->u.seq.n || size->u.seq.n > ZN_PICKLE_MAX_DIMS)
        return bad_tensor(m, "has too many dimensions, or other strides than sizes");
    ZN_TRY(zn_pickle_new(m, ZN_PICKLE_TENSOR, &tensor));
    tensor->u.tensor.dtype = storage->u.storage.dtype;
    tensor->u.tensor.n_dims = (int)size->u.seq.n;
    bool dense = false;
    int64_t extent = 0;
    ZN_TRY(measure(m, size, stride, tensor, &dense, &extent));
    const int64_t first = offset->u.integer;
    if (first < 0 || first > storage->u.storage.n_elems ||
        extent > storage->u.storage.n_elems - first)
        return bad_tensor(m, "reaches outside its storage");
    if (dense)
        tensor->u.tensor.data =
            storage->u.storage.data + (size_t)first * zn_dtype_size(tensor->u.tensor.dtype);
    *out = tensor;
    return ZINC_OK;
}

/* collections.OrderedDict(), or of a list of pairs as old pickles have it. */
static zinc_status ordered_dict(pickle_machine *m, const zn_pickle_value *args,
                                zn_pickle_value **out)
{
    zn_pickle_value *dict = NULL;
    ZN_TRY(zn_pickle_new(m, ZN_PICKLE_DICT, &dict));
    const zn_pickle_value *pairs = arg(args, 0, ZN_PICKLE_LIST);
    for (size_t i = 0; pairs && i < pairs->u.seq.n; i++) {
        const zn_pickle_value *pair = pairs->u.seq.items[i];
        if ((pair->kind != ZN_PICKLE_LIST && pair->kind != ZN_PICKLE_TUPLE) || pair->u.seq.n != 2)
            ZN_FAIL(ZINC_E_FORMAT, "%s: an ordered dict at byte %zu of something else than pairs",
                    m->where, m->op_at);
        ZN_TRY(zn_pickle_append(dict, pair->u.seq.items[0]));
        dict->u.seq.items[2 * dict->u.seq.n + 1] = pair->u.seq.items[1];
        dict->u.seq.n++;
    }
    *out = dict;
    return ZINC_OK;
}

static bool in_module(const zn_pickle_value *callable, const char *module)
{
    const size_t n = strlen(module);
    return callable->u.global.n_module >= n && memcmp(callable->u.global.module, module, n) == 0 &&
           (callable->u.global.n_module == n || callable->u.global.module[n] == '.');
}

/* Nothing is ever called, so an object of a class that we do not know does no harm. But a call that
 * only an attack would have in a checkpoint says that the file is one. */
static zinc_status refuse_attack(const pickle_machine *m, const zn_pickle_value *callable)
{
    static const char *const modules[] = {"os",     "posix",     "nt",    "subprocess", "sys",
                                          "shutil", "importlib", "runpy", "socket",     "pty",
                                          "ctypes", "code",      "pip",   "webbrowser", "pickle"};
    static const char *const functions[] = {"eval",     "exec",    "compile",    "open",
                                            "getattr",  "setattr", "__import__", "globals",
                                            "execfile", "input",   "breakpoint", "vars"};
    bool attack = false;
    if (callable->kind != ZN_PICKLE_GLOBAL)
        return ZINC_OK;
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++)
        attack = attack || in_module(callable, modules[i]);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        attack = attack || zn_pickle_is_global(callable, "builtins", functions[i]) ||
                 zn_pickle_is_global(callable, "__builtin__", functions[i]);
    if (attack)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: the pickle asks at byte %zu to call %.*s.%.*s, which no checkpoint needs: the "
                "file is an attack. Nothing of it was run; do not load it with Python",
                m->where, m->op_at, (int)callable->u.global.n_module, callable->u.global.module,
                (int)callable->u.global.n_name, callable->u.global.name);
    return ZINC_OK;
}

/* A wrapper gives its argument: torch.Size(tuple), _rebuild_parameter(tensor, …),
 * _rebuild_from_type_v2(function, type, args, state). */
zinc_status zn_pickle_reduce(pickle_machine *m, zn_pickle_value *callable, zn_pickle_value *args,
                             zn_pickle_value **out)
{
    if (zn_pickle_is_global(callable, "torch._tensor", "_rebuild_from_type_v2") &&
        arg(args, 0, ZN_PICKLE_GLOBAL) && arg(args, 2, ZN_PICKLE_TUPLE)) {
        callable = args->u.seq.items[0];
        args = args->u.seq.items[2];
    }
    ZN_TRY(refuse_attack(m, callable));
    if (zn_pickle_is_global(callable, "torch._utils", "_rebuild_tensor_v2"))
        return rebuild_tensor(m, args, out);
    if (zn_pickle_is_global(callable, "torch._utils", "_rebuild_parameter") &&
        arg(args, 0, ZN_PICKLE_TENSOR)) {
        *out = args->u.seq.items[0];
        return ZINC_OK;
    }
    if (zn_pickle_is_global(callable, "torch", "Size") && arg(args, 0, ZN_PICKLE_TUPLE)) {
        *out = args->u.seq.items[0];
        return ZINC_OK;
    }
    if (zn_pickle_is_global(callable, "collections", "OrderedDict"))
        return ordered_dict(m, args, out);
    zn_pickle_value *value = NULL;
    ZN_TRY(zn_pickle_new(m, ZN_PICKLE_OPAQUE, &value));
    value->u.opaque.callable = callable;
    value->u.opaque.args = args;
    *out = value;
    return ZINC_OK;
}
