/* SPDX-License-Identifier: Apache-2.0 */
/* unpickle.h — Python pickles (protocol 2) as plain data. Nothing that a pickle names is ever run.
 *
 * Dicts, lists, tuples, numbers, strings and tensors are built. collections.OrderedDict, torch.Size
 * and torch's tensor rebuilders are known by name and are data here; every other global becomes an
 * opaque object with its name and arguments, whatever a pickle asks to call. The machine has an
 * explicit stack (no recursion) and limits on bytes, values, stack and nesting.
 * Opcodes: Python's pickletools. Layer: ckpt. */
#ifndef ZN_CKPT_UNPICKLE_H
#define ZN_CKPT_UNPICKLE_H

#include "base/dtype.h"
#include "base/mem.h"

#define ZN_PICKLE_MAX_DIMS 8

typedef enum zn_pickle_kind {
    ZN_PICKLE_NONE,
    ZN_PICKLE_BOOL,
    ZN_PICKLE_INT,
    ZN_PICKLE_FLOAT,
    ZN_PICKLE_STRING,
    ZN_PICKLE_LIST,
    ZN_PICKLE_TUPLE,
    ZN_PICKLE_DICT,
    ZN_PICKLE_TENSOR,
    ZN_PICKLE_STORAGE,
    ZN_PICKLE_GLOBAL, /* a class or function by name */
    ZN_PICKLE_OPAQUE, /* what a call of a global we do not know would have made */
} zn_pickle_kind;

typedef struct zn_pickle_value zn_pickle_value;

/* Strings and tensor data point into the pickle and its storages; the rest is owned by the
 * zn_pickle. Values may be shared and may contain one another: look things up, do not walk. */
struct zn_pickle_value {
    zn_pickle_kind kind;
    union {
        int64_t integer; /* BOOL, INT */
        double real;
        struct {
            const char *text; /* [n], UTF-8 as found, no NUL at the end */
            size_t n;
        } string;
        struct {
            zn_pickle_value **items; /* LIST, TUPLE: [n]; DICT: [2 * n] key, value, … */
            size_t n, capacity;
        } seq;
        struct {
            const char *module, *name; /* [n_module], [n_name] */
            size_t n_module, n_name;
        } global;
        struct {
            const zn_pickle_value *callable; /* GLOBAL or another OPAQUE */
            const zn_pickle_value *args;     /* TUPLE */
            const zn_pickle_value *state;    /* DICT of its attributes, or NULL */
        } opaque;
        struct {
            zn_dtype dtype;
            int64_t n_elems;
            const unsigned char *data; /* [n_elems * size] */
        } storage;
        struct {
            zn_dtype dtype;
            int n_dims;
            int64_t shape[ZN_PICKLE_MAX_DIMS];
            int64_t n_elems;
            const unsigned char *data; /* first element; NULL if strides are not row-major */
        } tensor;
    } u;
};

/** Find the raw bytes of a storage by its key. Errors: E_FORMAT if there is none. */
typedef zinc_status (*zn_pickle_storage_fn)(void *ctx, const char *key, size_t n_key,
                                            const unsigned char **data, size_t *n_bytes);

typedef struct zn_pickle zn_pickle;

/** Read n bytes. `where` names them in messages and is borrowed until the call returns; bytes are
 *  borrowed until zn_pickle_destroy. Errors: E_FORMAT (with the byte), E_UNSUPPORTED (opcode),
 *  E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_pickle_parse(const unsigned char *bytes, size_t n, const char *where,
                                            zn_pickle_storage_fn storage, void *ctx,
                                            zn_pickle **out);
void zn_pickle_destroy(zn_pickle *pickle);
const zn_pickle_value *zn_pickle_root(const zn_pickle *pickle);

/** Value of a string key of a DICT, or NULL (also if `dict` is NULL or no dict). */
const zn_pickle_value *zn_pickle_get(const zn_pickle_value *dict, const char *key);
const zn_pickle_value *zn_pickle_get_n(const zn_pickle_value *dict, const char *key, size_t n);
/** Value of an attribute of an OPAQUE object, or NULL (also if `object` is NULL or none). */
const zn_pickle_value *zn_pickle_attribute(const zn_pickle_value *object, const char *name);
/** Whether `value` is not NULL and of this kind. */
bool zn_pickle_is(const zn_pickle_value *value, zn_pickle_kind kind);
/** Whether `value` is the global module.name. */
bool zn_pickle_is_global(const zn_pickle_value *value, const char *module, const char *name);

#endif
