/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/hash.h"
#include "data/dataset_internal.h"

#define FEISTEL_ROUNDS 8

/* One permutation of 0..4^half_bits - 1: a balanced Feistel network, a bijection whatever the round
 * function is. */
static uint64_t feistel(uint64_t x, int half_bits, uint64_t key)
{
    const uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        const uint64_t next = left ^ (zn_hash_fold(zn_hash_fold(key, round), right) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

/* The domain is the power of four at or above n_rows, so less than four times as large. Walking the
 * permutation's cycle until it is back below n_rows gives a permutation of the rows (Black and
 * Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). */
int64_t zn_sampler_row(int64_t n_rows, uint64_t seed, bool shuffle, int64_t position)
{
    ZN_ASSERT(n_rows > 0 && position >= 0);
    const int64_t row = position % n_rows, epoch = position / n_rows;
    if (!shuffle || n_rows < 2)
        return row;
    int half_bits = 1;
    while (((uint64_t)1 << (2 * half_bits)) < (uint64_t)n_rows)
        half_bits++;
    const uint64_t key = zn_hash_fold(zn_hash_mix(seed), (uint64_t)epoch);
    uint64_t x = (uint64_t)row;
    do
        x = feistel(x, half_bits, key);
    while (x >= (uint64_t)n_rows);
    return (int64_t)x;
}

static zinc_status reserve(zn_batch *batch, int64_t B, int64_t T)
{
    if (B > batch->capacity_rows) {
        ZN_TRY(zn_realloc_array(&batch->sample, (size_t)B, sizeof *batch->sample, "a micro-batch"));
        batch->capacity_rows = B;
    }
    if (T > INT64_MAX / B)
        ZN_FAIL(ZINC_E_INVALID, "a micro-batch of %lld rows of %lld tokens", (long long)B,
                (long long)T);
    if (B * T > batch->capacity) {
        const size_t n = (size_t)(B * T);
        ZN_TRY(zn_realloc_array(&batch->ids, n, sizeof *batch->ids, "a micro-batch"));
        ZN_TRY(zn_realloc_array(&batch->targets, n, sizeof *batch->targets, "a micro-batch"));
        ZN_TRY(zn_realloc_array(&batch->mask_storage, n, 1, "a micro-batch"));
        ZN_TRY(zn_realloc_array(&batch->segment_storage, n, sizeof *batch->segment_storage,
                                "a micro-batch"));
        ZN_TRY(zn_realloc_array(&batch->position_storage, n, sizeof *batch->position_storage,
                                "a micro-batch"));
        batch->capacity = B * T;
    }
    return ZINC_OK;
}

/* Write row b of the batch. */
static void fill_row(zn_batch *batch, int64_t b, const zn_row *row)
{
    const int64_t T = batch->T;
    int32_t *ids = batch->ids + b * T, *targets = batch->targets + b * T;
    uint8_t *mask = batch->mask_storage + b * T;
    int32_t *segment = batch->segment_storage + b * T, document = 0, place = 0;
    int32_t *position = batch->position_storage + b * T;
    for (int64_t t = 0; t < row->n; t++) {
        const bool last = t + 1 == row->n || (row->first && row->first[t + 1]);
        const int32_t label = last          ? ZN_IGNORED_LABEL
                              : row->labels ? row->labels[t + 1]
                                            : row->ids[t + 1];
        if (t > 0 && row->first && row->first[t]) {
            document++;
            place = 0;
        }
        position[t] = place++;
        ids[t] = row->ids[t];
        targets[t] = label < 0 ? -1 : label;
        mask[t] = row->mask ? row->mask[t] : 1;
        segment[t] = document;
        batch->n_targets += label >= 0;
        batch->n_tokens += mask[t];
    }
    for (int64_t t = row->n; t < T; t++) {
        ids[t] = 0;
        targets[t] = -1;
        mask[t] = 0;
        segment[t] = document;
        position[t] = 0;
    }
    if (document > 0) {
        batch->segment = batch->segment_storage;
        batch->position = batch->position_storage;
    }
}

zinc_status zn_batch_fill(zn_batch *batch, const zn_dataset *dataset, const int64_t *row_index,
                          int64_t B, int64_t first_sample)
{
    zn_row row = {0};
    int64_t T = 1; /* a batch of empty rows only still has a shape */
    if (B < 1)
        ZN_FAIL(ZINC_E_INVALID, "a micro-batch of %lld rows; it must have at least 1",
                (long long)B);
    for (int64_t b = 0; b < B; b++) {
        if (row_index[b] >= zn_dataset_n_rows(dataset))
            ZN_FAIL(ZINC_E_INVALID, "row %lld of a data set of %lld rows", (long long)row_index[b],
                    (long long)zn_dataset_n_rows(dataset));
        if (row_index[b] >= 0)
            zn_dataset_row(dataset, row_index[b], &row);
        T = row.n > T ? row.n : T;
    }
    ZN_TRY(reserve(batch, B, T));
    batch->B = B;
    batch->T = T;
    batch->n_targets = batch->n_tokens = 0;
    batch->segment = batch->position = NULL;
    for (int64_t b = 0; b < B; b++) {
        row = (zn_row){0};
        if (row_index[b] >= 0)
            zn_dataset_row(dataset, row_index[b], &row);
        fill_row(batch, b, &row);
        batch->sample[b] = first_sample + b;
    }
    batch->mask = batch->n_tokens == B * T ? NULL : batch->mask_storage;
    return ZINC_OK;
}

void zn_batch_fini(zn_batch *batch)
{
    zn_free(batch->ids);
    zn_free(batch->targets);
    zn_free(batch->sample);
    zn_free(batch->mask_storage);
    zn_free(batch->segment_storage);
    zn_free(batch->position_storage);
    memset(batch, 0, sizeof *batch);
}
