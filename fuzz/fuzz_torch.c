/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .pt file: the zip directory, then the pickle in it. Layer: ckpt. */
#include "fuzz.h"

#include "ckpt/torch_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zn_torch_file *file = NULL;
    if (zn_torch_parse(data, n, "input", &file) == ZINC_OK) {
        const zn_pickle_value *module = zn_pickle_get(zn_torch_root(file), "module");
        (void)zn_pickle_get(module, "a.weight");
    }
    zn_torch_close(file);
    return 0;
}
