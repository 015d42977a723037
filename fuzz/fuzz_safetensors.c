/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .safetensors file; what is accepted is read. Layer: ckpt. */
#include "fuzz.h"

#include "ckpt/safetensors_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zn_st_file file = {0};
    if (zn_strdup("input", &file.path) == ZINC_OK &&
        zn_st_file_parse(&file, data, n, n) == ZINC_OK) {
        for (int i = 0; i < file.n_tensors; i++) {
            zn_tensor_info *tensor = &file.tensors[i];
            float ends[2];
            tensor->data = data + tensor->position;
            if (tensor->n_elems == 0 || zn_tensor_read(tensor, 0, 1, ends) != ZINC_OK)
                continue;
            if (zn_tensor_read(tensor, tensor->n_elems - 1, 1, ends + 1) != ZINC_OK)
                __builtin_trap();
        }
    }
    zn_st_file_close(&file);
    return 0;
}
