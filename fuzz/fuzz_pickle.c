/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a pickle with one storage of 16 bytes; tensors must lie inside it. Layer: ckpt. */
#include "fuzz.h"

#include <string.h>

#include "ckpt/unpickle.h"

static const unsigned char bytes[16];

static zinc_status give_storage(void *ctx, const char *key, size_t n_key,
                                const unsigned char **data, size_t *n_bytes)
{
    (void)ctx;
    (void)key;
    *data = bytes;
    *n_bytes = n_key == 1 ? sizeof bytes : 0;
    return ZINC_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zn_pickle *pickle = NULL;
    if (zn_pickle_parse(data, n, "input", give_storage, NULL, &pickle) == ZINC_OK) {
        const zn_pickle_value *root = zn_pickle_root(pickle);
        const zn_pickle_value *t = zn_pickle_get(root, "a") ? zn_pickle_get(root, "a") : root;
        if (t->kind == ZN_PICKLE_TENSOR && t->u.tensor.data &&
            (t->u.tensor.data < bytes ||
             t->u.tensor.n_elems * (int64_t)zn_dtype_size(t->u.tensor.dtype) >
                 bytes + sizeof bytes - t->u.tensor.data))
            __builtin_trap();
    }
    zn_pickle_destroy(pickle);
    return 0;
}
