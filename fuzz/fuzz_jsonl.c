/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .jsonl dataset of rows of ids. Layer: data.
 * Needs: src/data/dataset.c */
#include "fuzz_dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_dataset(data, n, "jsonl");
    return 0;
}
