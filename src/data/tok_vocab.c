/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/hash.h"
#include "data/tokenizer_internal.h"

uint64_t zn_hash_text(const char *text, size_t n)
{
    uint64_t h = n, eight = 0;
    for (; n >= sizeof eight; text += sizeof eight, n -= sizeof eight) {
        memcpy(&eight, text, sizeof eight);
        h = zn_hash_mix(h ^ eight);
    }
    eight = 0;
    memcpy(&eight, text, n);
    return zn_hash_mix(h ^ eight);
}

/* Power of two that keeps n entries at most half full. */
static size_t slots_for(size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

zinc_status zn_vocab_init(zn_vocab *vocab, size_t n_tokens, int32_t n_ids)
{
    vocab->n_slots = slots_for(n_tokens);
    vocab->n_ids = n_ids;
    ZN_TRY(zn_alloc_array(&vocab->slots, vocab->n_slots, sizeof *vocab->slots, "a vocabulary"));
    ZN_TRY(zn_alloc_array(&vocab->start, (size_t)n_ids, sizeof *vocab->start, "a vocabulary"));
    ZN_TRY(zn_alloc_array(&vocab->len, (size_t)n_ids, sizeof *vocab->len, "a vocabulary"));
    memset(vocab->slots, 0xFF, vocab->n_slots * sizeof *vocab->slots);
    memset(vocab->start, 0xFF, (size_t)n_ids * sizeof *vocab->start);
    return ZINC_OK;
}

zinc_status zn_vocab_add(zn_vocab *vocab, const char *text, size_t n, int32_t id)
{
    ZN_ASSERT(id >= 0 && id < vocab->n_ids);
    if (n > UINT32_MAX / 2)
        ZN_FAIL(ZINC_E_FORMAT, "token %d is longer than 2 GiB", id);
    if (vocab->start[id] != UINT64_MAX)
        ZN_FAIL(ZINC_E_FORMAT, "tokens \"%.80s\" and \"%.80s\" have the same id %d",
                vocab->text.data + vocab->start[id], text, id);
    vocab->start[id] = vocab->text.n;
    vocab->len[id] = (uint32_t)n;
    ZN_TRY(zn_buf_append(&vocab->text, text, n));
    size_t slot = zn_hash_text(text, n) & (vocab->n_slots - 1);
    while (vocab->slots[slot] >= 0)
        slot = (slot + 1) & (vocab->n_slots - 1);
    vocab->slots[slot] = id;
    if (n > vocab->max_len)
        vocab->max_len = (uint32_t)n;
    return ZINC_OK;
}

void zn_vocab_fini(zn_vocab *vocab)
{
    zn_buf_fini(&vocab->text);
    zn_free(vocab->start);
    zn_free(vocab->len);
    zn_free(vocab->slots);
    memset(vocab, 0, sizeof *vocab);
}

int32_t zn_vocab_find(const zn_vocab *vocab, const char *text, size_t n)
{
    if (n > vocab->max_len)
        return -1;
    size_t slot = zn_hash_text(text, n) & (vocab->n_slots - 1);
    for (; vocab->slots[slot] >= 0; slot = (slot + 1) & (vocab->n_slots - 1)) {
        const int32_t id = vocab->slots[slot];
        if (vocab->len[id] == n && memcmp(vocab->text.data + vocab->start[id], text, n) == 0)
            return id;
    }
    return -1;
}

const char *zn_vocab_text(const zn_vocab *vocab, int32_t id, size_t *n)
{
    if (id < 0 || id >= vocab->n_ids || vocab->start[id] == UINT64_MAX)
        return NULL;
    *n = vocab->len[id];
    return vocab->text.data + vocab->start[id];
}

static size_t merge_slot(const zn_merges *merges, uint64_t pair)
{
    size_t slot = zn_hash_mix(pair) & (merges->n_slots - 1);
    while (merges->slots[slot].pair != pair && merges->slots[slot].pair != UINT64_MAX)
        slot = (slot + 1) & (merges->n_slots - 1);
    return slot;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

zinc_status zn_merges_init(zn_merges *merges, size_t n)
{
    merges->n_slots = slots_for(n);
    ZN_TRY(zn_alloc_array(&merges->slots, merges->n_slots, sizeof *merges->slots, "the merges"));
    for (size_t i = 0; i < merges->n_slots; i++)
        merges->slots[i].pair = UINT64_MAX;
    return ZINC_OK;
}

void zn_merges_set(zn_merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    const uint64_t pair = pair_of(left, right);
    merges->slots[merge_slot(merges, pair)] = (zn_merge){.pair = pair, .rank = rank, .id = id};
}

const zn_merge *zn_merges_find(const zn_merges *merges, int32_t left, int32_t right)
{
    const uint64_t pair = pair_of(left, right);
    const zn_merge *merge = &merges->slots[merge_slot(merges, pair)];
    return merge->pair == pair ? merge : NULL;
}
