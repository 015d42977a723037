/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_dataset.h — any bytes as a dataset's file; every row that is accepted is read. */
#ifndef ZN_FUZZ_DATASET_H
#define ZN_FUZZ_DATASET_H

#include "fuzz.h"

#include "data/dataset.h"

#define FUZZ_VOCAB 1000

static inline void fuzz_dataset(const uint8_t *data, size_t n, const char *extension)
{
    char path[64];
    const char *files[] = {path};
    const zn_dataset_params params = {
        .files = files, .n_files = 1, .block_size = 8, .vocab_size = FUZZ_VOCAB, .eos_id = -1};
    zn_dataset *dataset = NULL;
    if (fuzz_put_file(data, n, extension, path) != 0)
        return;
    if (zn_dataset_open(&params, &dataset) == ZINC_OK) {
        for (int64_t i = 0; i < zn_dataset_n_rows(dataset); i++) {
            zn_row row;
            zn_dataset_row(dataset, i, &row);
            for (int64_t k = 0; k < row.n; k++)
                if (row.ids[k] < 0 || row.ids[k] >= FUZZ_VOCAB)
                    __builtin_trap();
        }
    }
    zn_dataset_destroy(dataset);
    unlink(path);
}

#endif
