/* SPDX-License-Identifier: Apache-2.0 */
/* unpickle_value.c — values: where they live, and how callers look into them. */
#include "ckpt/unpickle_internal.h"

#include <string.h>

#define MAX_VALUES ((size_t)4 << 20)

zinc_status zn_pickle_new(pickle_machine *m, zn_pickle_kind kind, zn_pickle_value **out)
{
    zn_pickle *pickle = m->pickle;
    if (pickle->n_values >= MAX_VALUES)
        ZN_FAIL(ZINC_E_FORMAT, "%s: the pickle holds more than %zu values", m->where, MAX_VALUES);
    if (!pickle->blocks || pickle->n_in_block == ZN_PICKLE_BLOCK) {
        pickle_block *block;
        ZN_TRY(zn_alloc(&block, sizeof *block, "pickle values"));
        block->next = pickle->blocks;
        pickle->blocks = block;
        pickle->n_in_block = 0;
    }
    zn_pickle_value *value = &pickle->blocks->values[pickle->n_in_block++];
    pickle->n_values++;
    value->kind = kind;
    *out = value;
    return ZINC_OK;
}

zinc_status zn_pickle_append(zn_pickle_value *seq, zn_pickle_value *item)
{
    const size_t used = seq->kind == ZN_PICKLE_DICT ? 2 * seq->u.seq.n : seq->u.seq.n;
    /* A dict is appended to in pairs, and n counts pairs; the caller adds the second half. */
    if (used + 2 > seq->u.seq.capacity) {
        const size_t capacity = used < 4 ? 8 : 2 * used + 2;
        ZN_TRY(zn_realloc_array(&seq->u.seq.items, capacity, sizeof *seq->u.seq.items,
                                "pickle items"));
        seq->u.seq.capacity = capacity;
    }
    seq->u.seq.items[used] = item;
    if (seq->kind != ZN_PICKLE_DICT)
        seq->u.seq.n++;
    return ZINC_OK;
}

void zn_pickle_destroy(zn_pickle *pickle)
{
    if (!pickle)
        return;
    size_t n = pickle->n_in_block;
    for (pickle_block *block = pickle->blocks; block; n = ZN_PICKLE_BLOCK) {
        pickle_block *next = block->next;
        for (size_t i = 0; i < n; i++) {
            const zn_pickle_kind kind = block->values[i].kind;
            if (kind == ZN_PICKLE_LIST || kind == ZN_PICKLE_TUPLE || kind == ZN_PICKLE_DICT)
                zn_free(block->values[i].u.seq.items);
        }
        zn_free(block);
        block = next;
    }
    zn_free(pickle);
}

const zn_pickle_value *zn_pickle_root(const zn_pickle *pickle)
{
    return pickle->root;
}

bool zn_pickle_is(const zn_pickle_value *value, zn_pickle_kind kind)
{
    return value && value->kind == kind;
}

static bool equals(const char *text, size_t n, const char *wanted, size_t n_wanted)
{
    return n == n_wanted && memcmp(text, wanted, n) == 0;
}

bool zn_pickle_is_global(const zn_pickle_value *value, const char *module, const char *name)
{
    return zn_pickle_is(value, ZN_PICKLE_GLOBAL) &&
           equals(value->u.global.module, value->u.global.n_module, module, strlen(module)) &&
           equals(value->u.global.name, value->u.global.n_name, name, strlen(name));
}

const zn_pickle_value *zn_pickle_get_n(const zn_pickle_value *dict, const char *key, size_t n)
{
    if (!zn_pickle_is(dict, ZN_PICKLE_DICT))
        return NULL;
    for (size_t i = dict->u.seq.n; i-- > 0;) { /* the last of equal keys wins, as in Python */
        const zn_pickle_value *k = dict->u.seq.items[2 * i];
        if (k->kind == ZN_PICKLE_STRING && equals(k->u.string.text, k->u.string.n, key, n))
            return dict->u.seq.items[2 * i + 1];
    }
    return NULL;
}

const zn_pickle_value *zn_pickle_get(const zn_pickle_value *dict, const char *key)
{
    return zn_pickle_get_n(dict, key, strlen(key));
}

const zn_pickle_value *zn_pickle_attribute(const zn_pickle_value *object, const char *name)
{
    return zn_pickle_is(object, ZN_PICKLE_OPAQUE) ? zn_pickle_get(object->u.opaque.state, name)
                                                  : NULL;
}
