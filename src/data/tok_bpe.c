/* SPDX-License-Identifier: Apache-2.0 */
/* Merges of one word. The order is that of Hugging Face tokenizers: lowest rank first, then
 * leftmost; a candidate whose pair has changed since it was queued still counts if the pair there
 * now gives the same token. A heap over a linked list: n log n for a word of n characters. */
#include <string.h>

#include "base/hash.h"
#include "data/tokenizer_internal.h"

/* ---- the heap ---- */

static bool before(const zn_candidate *a, const zn_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static zinc_status heap_push(zn_tok_work *work, zn_candidate candidate)
{
    if (work->n_heap == work->heap_capacity) {
        const size_t capacity = work->heap_capacity ? 2 * work->heap_capacity : 64;
        ZN_TRY(zn_realloc_array(&work->heap, capacity, sizeof *work->heap, "merge candidates"));
        work->heap_capacity = capacity;
    }
    size_t i = work->n_heap++;
    while (i > 0 && before(&candidate, &work->heap[(i - 1) / 2])) {
        work->heap[i] = work->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    work->heap[i] = candidate;
    return ZINC_OK;
}

static zn_candidate heap_pop(zn_tok_work *work)
{
    zn_candidate *heap = work->heap;
    const zn_candidate top = heap[0], last = heap[--work->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= work->n_heap)
            break;
        if (child + 1 < work->n_heap && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* ---- a word's first symbols ---- */

static zinc_status add_symbol(zn_tok_work *work, int32_t id)
{
    if (work->n_symbols == work->symbols_capacity) {
        const size_t capacity = work->symbols_capacity ? 2 * work->symbols_capacity : 64;
        ZN_TRY(zn_realloc_array(&work->symbols, capacity, sizeof *work->symbols, "a word"));
        work->symbols_capacity = capacity;
    }
    const int32_t i = (int32_t)work->n_symbols++;
    work->symbols[i] = (zn_symbol){.id = id, .prev = i - 1, .next = i + 1};
    return ZINC_OK;
}

/* All bytes have a "<0xXX>" token. */
static bool has_byte_tokens(const zn_bpe *bpe, const char *text, size_t n)
{
    if (!bpe->byte_fallback)
        return false;
    for (size_t i = 0; i < n; i++)
        if (bpe->byte_id[(uint8_t)text[i]] < 0)
            return false;
    return true;
}

/* One character with the prefix or suffix that its place in the word asks for. */
static zinc_status affixed(const zn_bpe *bpe, zn_tok_work *work, const char *text, size_t n,
                           bool first, bool last)
{
    work->word.n = 0;
    if (!first && bpe->prefix)
        ZN_TRY(zn_buf_puts(&work->word, bpe->prefix));
    ZN_TRY(zn_buf_append(&work->word, text, n));
    if (last && bpe->suffix)
        ZN_TRY(zn_buf_puts(&work->word, bpe->suffix));
    return ZINC_OK;
}

static zinc_status first_symbols(const zn_bpe *bpe, zn_tok_work *work, const char *word, size_t n)
{
    bool unknown = false; /* an unknown token waits: more characters may fuse with it */
    work->n_symbols = 0;
    for (size_t i = 0, len; i < n; i += len) {
        (void)zn_utf8_get(word + i, &len);
        const char *text = word + i;
        size_t n_text = len;
        if (bpe->prefix || bpe->suffix) {
            ZN_TRY(affixed(bpe, work, text, len, i == 0, i + len == n));
            text = work->word.data;
            n_text = work->word.n;
        }
        const int32_t id = zn_vocab_find(&bpe->vocab, text, n_text);
        if (id >= 0) {
            if (unknown)
                ZN_TRY(add_symbol(work, bpe->unk_id));
            unknown = false;
            ZN_TRY(add_symbol(work, id));
        } else if (has_byte_tokens(bpe, text, n_text)) {
            /* A waiting unknown token comes after these: odd, but what the peer does. */
            for (size_t k = 0; k < n_text; k++)
                ZN_TRY(add_symbol(work, bpe->byte_id[(uint8_t)text[k]]));
        } else {
            if (bpe->unk_id < 0)
                ZN_FAIL(
                    ZINC_E_FORMAT,
                    "the character \"%.*s\" has no token, and the tokenizer has no unknown token",
                    (int)len, word + i);
            if (unknown && !bpe->fuse_unk)
                ZN_TRY(add_symbol(work, bpe->unk_id));
            unknown = true;
        }
    }
    return unknown ? add_symbol(work, bpe->unk_id) : ZINC_OK;
}

/* ---- merging ---- */

static zinc_status queue_pair(const zn_bpe *bpe, zn_tok_work *work, int32_t left, int32_t right)
{
    const zn_merge *merge =
        zn_merges_find(&bpe->merges, work->symbols[left].id, work->symbols[right].id);
    if (!merge)
        return ZINC_OK;
    return heap_push(work,
                     (zn_candidate){.rank = merge->rank, .pos = (uint32_t)left, .id = merge->id});
}

static zinc_status merge_symbols(const zn_bpe *bpe, zn_tok_work *work)
{
    zn_symbol *symbols = work->symbols;
    const int32_t n = (int32_t)work->n_symbols;
    work->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++)
        ZN_TRY(queue_pair(bpe, work, i, i + 1));
    while (work->n_heap > 0) {
        const zn_candidate top = heap_pop(work);
        const int32_t left = (int32_t)top.pos, right = symbols[left].next;
        if (symbols[left].id < 0 || right >= n)
            continue;
        const zn_merge *merge = zn_merges_find(&bpe->merges, symbols[left].id, symbols[right].id);
        if (!merge || merge->id != top.id)
            continue;
        symbols[left].id = top.id;
        symbols[left].next = symbols[right].next;
        symbols[right].id = -1;
        if (symbols[left].next < n) {
            symbols[symbols[left].next].prev = left;
            ZN_TRY(queue_pair(bpe, work, left, symbols[left].next));
        }
        if (symbols[left].prev >= 0)
            ZN_TRY(queue_pair(bpe, work, symbols[left].prev, left));
    }
    return ZINC_OK;
}

/* ---- the cache of words ---- */

static zinc_status cache_add(zn_tok_work *work, uint64_t hash, const char *word, size_t n,
                             const int32_t *ids, size_t n_ids)
{
    if (!work->cache)
        ZN_TRY(zn_alloc_array(&work->cache, ZN_CACHE_SLOTS, sizeof *work->cache, "a word cache"));
    if (work->n_cached >= ZN_CACHE_SLOTS / 2) {
        memset(work->cache, 0, ZN_CACHE_SLOTS * sizeof *work->cache);
        work->n_cached = work->cache_text.n = 0;
        work->cache_ids.n = 0;
    }
    const uint32_t ids_at = (uint32_t)work->cache_ids.n, text_at = (uint32_t)work->cache_text.n;
    ZN_TRY(zn_buf_append(&work->cache_text, word, n));
    for (size_t i = 0; i < n_ids; i++)
        ZN_TRY(zn_ids_push(&work->cache_ids, ids[i]));
    size_t slot = hash & (ZN_CACHE_SLOTS - 1);
    while (work->cache[slot].hash != 0)
        slot = (slot + 1) & (ZN_CACHE_SLOTS - 1);
    work->cache[slot] = (zn_cache_entry){.hash = hash,
                                         .text = text_at,
                                         .ids = ids_at,
                                         .n_text = (uint16_t)n,
                                         .n_ids = (uint16_t)n_ids};
    work->n_cached++;
    return ZINC_OK;
}

static const zn_cache_entry *cache_find(const zn_tok_work *work, uint64_t hash, const char *word,
                                        size_t n)
{
    if (!work->cache)
        return NULL;
    size_t slot = hash & (ZN_CACHE_SLOTS - 1);
    for (; work->cache[slot].hash != 0; slot = (slot + 1) & (ZN_CACHE_SLOTS - 1)) {
        const zn_cache_entry *entry = &work->cache[slot];
        if (entry->hash == hash && entry->n_text == n &&
            memcmp(work->cache_text.data + entry->text, word, n) == 0)
            return entry;
    }
    return NULL;
}

/* `whole`: the word may be a token as it stands (ignore_merges). */
static zinc_status encode_word(const zn_bpe *bpe, zn_tok_work *work, const char *word, size_t n,
                               bool whole)
{
    const bool cached = n <= ZN_CACHE_MAX_TEXT;
    const uint64_t hash = cached ? zn_hash_text(word, n) | 1 : 0;
    const zn_cache_entry *entry = cached ? cache_find(work, hash, word, n) : NULL;
    if (entry) {
        for (int i = 0; i < entry->n_ids; i++)
            ZN_TRY(zn_ids_push(work->out, work->cache_ids.ids[entry->ids + (uint32_t)i]));
        return ZINC_OK;
    }
    const int64_t first = work->out->n;
    const int32_t id = whole && bpe->ignore_merges ? zn_vocab_find(&bpe->vocab, word, n) : -1;
    if (id >= 0) {
        ZN_TRY(zn_ids_push(work->out, id));
    } else {
        if (n > INT32_MAX / 2)
            ZN_FAIL(ZINC_E_UNSUPPORTED,
                    "a text of %zu bytes that the pre-tokenizer does not cut; give it in parts", n);
        ZN_TRY(first_symbols(bpe, work, word, n));
        ZN_TRY(merge_symbols(bpe, work));
        for (size_t i = 0; i < work->n_symbols; i++)
            if (work->symbols[i].id >= 0)
                ZN_TRY(zn_ids_push(work->out, work->symbols[i].id));
    }
    const size_t n_ids = (size_t)(work->out->n - first);
    if (!cached || n_ids > ZN_CACHE_MAX_IDS)
        return ZINC_OK;
    return cache_add(work, hash, word, n, work->out->ids + first, n_ids);
}

/* ---- long texts ---- */

static uint64_t inner_key(int32_t a, int32_t b)
{
    return (uint64_t)a << 32 | (uint64_t)(uint32_t)b | (uint64_t)1 << 63;
}

static bool inner_has(const zn_bpe *bpe, uint64_t key, size_t *slot)
{
    size_t i = zn_hash_mix(key) & (bpe->n_inner_slots - 1);
    while (bpe->inner_pairs[i] != 0 && bpe->inner_pairs[i] != key)
        i = (i + 1) & (bpe->n_inner_slots - 1);
    *slot = i;
    return bpe->inner_pairs[i] == key;
}

zinc_status zn_bpe_find_inner_pairs(zn_bpe *bpe)
{
    if (bpe->prefix || bpe->suffix)
        return ZINC_OK; /* the first and last characters of a piece would get other symbols */
    bpe->n_inner_slots = 16;
    while (bpe->n_inner_slots < 2 * bpe->vocab.text.n)
        bpe->n_inner_slots *= 2;
    ZN_TRY(zn_alloc_array(&bpe->inner_pairs, bpe->n_inner_slots, sizeof *bpe->inner_pairs,
                          "character pairs"));
    for (int32_t id = 0; id < bpe->vocab.n_ids; id++) {
        size_t n = 0, len;
        const char *text = zn_vocab_text(&bpe->vocab, id, &n);
        int32_t last = -1;
        for (size_t i = 0; i < n; i += len) {
            const int32_t code = zn_utf8_get(text + i, &len);
            size_t slot;
            if (last >= 0 && !inner_has(bpe, inner_key(last, code), &slot))
                bpe->inner_pairs[slot] = inner_key(last, code);
            last = code;
        }
    }
    return ZINC_OK;
}

/* No merge acts across this place: both characters have tokens of their own (so no byte tokens and
 * no unknown token touch it), and no token has the one after the other. */
static bool can_cut(const zn_bpe *bpe, const char *left, size_t n_left, int32_t a,
                    const char *right, size_t n_right, int32_t b)
{
    size_t slot;
    return !inner_has(bpe, inner_key(a, b), &slot) &&
           zn_vocab_find(&bpe->vocab, left, n_left) >= 0 &&
           zn_vocab_find(&bpe->vocab, right, n_right) >= 0;
}

zinc_status zn_bpe_encode(const zn_bpe *bpe, zn_tok_work *work, const char *word, size_t n)
{
    if (n == 0)
        return ZINC_OK;
    if (!bpe->inner_pairs)
        return encode_word(bpe, work, word, n, true);
    if (bpe->ignore_merges) {
        const int32_t id = zn_vocab_find(&bpe->vocab, word, n);
        if (id >= 0)
            return zn_ids_push(work->out, id);
    }
    size_t start = 0, last = 0, last_len;
    int32_t a = zn_utf8_get(word, &last_len);
    for (size_t i = last_len, len; i < n; i += len) {
        const int32_t b = zn_utf8_get(word + i, &len);
        if (can_cut(bpe, word + last, last_len, a, word + i, len, b)) {
            ZN_TRY(encode_word(bpe, work, word + start, i - start, false));
            start = i;
        }
        a = b;
        last = i;
        last_len = len;
    }
    return encode_word(bpe, work, word + start, n - start, false);
}

void zn_bpe_fini(zn_bpe *bpe)
{
    zn_vocab_fini(&bpe->vocab);
    zn_free(bpe->merges.slots);
    zn_free(bpe->prefix);
    zn_free(bpe->suffix);
    zn_free(bpe->inner_pairs);
    memset(bpe, 0, sizeof *bpe);
}
