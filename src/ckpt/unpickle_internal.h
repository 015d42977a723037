/* SPDX-License-Identifier: Apache-2.0 */
/* unpickle_internal.h — the machine (unpickle.c) and what known globals build (unpickle_torch.c).
 */
#ifndef ZN_CKPT_UNPICKLE_INTERNAL_H
#define ZN_CKPT_UNPICKLE_INTERNAL_H

#include "ckpt/unpickle.h"

#define ZN_PICKLE_BLOCK 1024

typedef struct pickle_block {
    struct pickle_block *next;
    zn_pickle_value values[ZN_PICKLE_BLOCK];
} pickle_block;

struct zn_pickle {
    pickle_block *blocks; /* newest first; owns every value */
    size_t n_in_block;    /* used of the newest */
    size_t n_values;
    zn_pickle_value *root;
};

typedef struct pickle_machine {
    zn_pickle *pickle;
    const unsigned char *bytes;
    size_t n, at; /* at: the next byte; op_at: where the current opcode is */
    size_t op_at;
    const char *where;
    zn_pickle_storage_fn storage;
    void *storage_ctx;
    zn_pickle_value **stack;
    size_t n_stack, stack_capacity;
    size_t *marks; /* stack heights */
    size_t n_marks, marks_capacity;
    zn_pickle_value **memo; /* [n_memo], NULL where nothing was put */
    size_t n_memo, n_puts;
} pickle_machine;

ZINC_MUST_CHECK zinc_status zn_pickle_new(pickle_machine *m, zn_pickle_kind kind,
                                          zn_pickle_value **out);
ZINC_MUST_CHECK zinc_status zn_pickle_append(zn_pickle_value *seq, zn_pickle_value *item);

/** What `callable(*args)` is, as data. */
ZINC_MUST_CHECK zinc_status zn_pickle_reduce(pickle_machine *m, zn_pickle_value *callable,
                                             zn_pickle_value *args, zn_pickle_value **out);
/** The storage that a persistent id ('storage', class, key, location, n_elems) names. */
ZINC_MUST_CHECK zinc_status zn_pickle_persistent(pickle_machine *m, const zn_pickle_value *id,
                                                 zn_pickle_value **out);

#endif
