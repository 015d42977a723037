/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a tokenizer.json; one that is accepted encodes the same bytes and decodes what came
 * of them. Layer: data. Needs: src/data/tokenizer.c */
#include "fuzz.h"

#include "data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    zn_tokenizer *tokenizer = NULL;
    zn_ids ids = {0};
    zn_buf text = {0};
    if (fuzz_put_file(data, n, "json", path) != 0)
        return 0;
    if (zn_tokenizer_load(path, &tokenizer) == ZINC_OK &&
        zn_tokenizer_encode(tokenizer, (const char *)data, n, true, &ids) == ZINC_OK) {
        /* Ids that encoding gave can always be decoded. */
        if (zn_tokenizer_decode(tokenizer, ids.ids, ids.n, false, &text) != ZINC_OK)
            __builtin_trap();
    }
    zn_ids_fini(&ids);
    zn_buf_fini(&text);
    zn_tokenizer_destroy(tokenizer);
    unlink(path);
    return 0;
}
