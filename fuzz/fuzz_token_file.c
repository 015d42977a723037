/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .bin token file; every row that is accepted is read. Layer: data.
 * Needs: src/data/dataset.c */
#include "fuzz.h"

#include "data/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    const char *files[] = {path};
    const zn_dataset_params params = {
        .files = files, .n_files = 1, .block_size = 8, .vocab_size = 1000, .eos_id = -1};
    zn_dataset *dataset = NULL;
    if (fuzz_put_file(data, n, "bin", path) != 0)
        return 0;
    if (zn_dataset_open(&params, &dataset) == ZINC_OK) {
        for (int64_t i = 0; i < zn_dataset_n_rows(dataset); i++) {
            zn_row row;
            zn_dataset_row(dataset, i, &row);
            for (int64_t k = 0; k < row.n; k++)
                if (row.ids[k] < 0 || row.ids[k] >= 1000)
                    __builtin_trap();
        }
    }
    zn_dataset_destroy(dataset);
    unlink(path);
    return 0;
}
