/* SPDX-License-Identifier: Apache-2.0 */
/* Learning a byte-level BPE: count the words that GPT-2's pattern cuts, then again and again join
 * the most frequent pair of neighbours. Pair counts are kept up to date from the words a merge
 * touches, so a merge costs what it changes. Deterministic: of equally frequent pairs the one with
 * the smaller (left id, right id) wins; ids 0..255 are the bytes in the order of their byte-level
 * characters, then the merges in order, then "<|endoftext|>". */
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/bpe_train_internal.h"

#define END_OF_TEXT "<|endoftext|>"

/* ---- words and their counts ---- */

static zinc_status words_grow(trainer *t)
{
    const size_t n_slots = t->n_word_slots ? 2 * t->n_word_slots : 1024;
    int32_t *slots = NULL;
    ZN_TRY(zn_alloc_array(&slots, n_slots, sizeof *slots, "the words of a text"));
    memset(slots, 0xFF, n_slots * sizeof *slots);
    for (int32_t i = 0; i < t->n_words; i++) {
        size_t slot = t->words[i].hash & (n_slots - 1);
        while (slots[slot] >= 0)
            slot = (slot + 1) & (n_slots - 1);
        slots[slot] = i;
    }
    zn_free(t->word_slots);
    t->word_slots = slots;
    t->n_word_slots = n_slots;
    return ZINC_OK;
}

static zinc_status add_word(trainer *t, const char *text, size_t n, uint64_t hash, size_t slot)
{
    if (t->n_words == INT32_MAX || n > UINT32_MAX)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "too many different words to learn from");
    if (t->n_words == t->words_capacity) {
        const int32_t capacity = t->words_capacity ? 2 * t->words_capacity : 1024;
        ZN_TRY(zn_realloc_array(&t->words, (size_t)capacity, sizeof *t->words, "words"));
        t->words_capacity = capacity;
    }
    t->words[t->n_words] =
        (train_word){.hash = hash, .count = 1, .text = t->text.n, .n = (uint32_t)n};
    ZN_TRY(zn_buf_append(&t->text, text, n));
    t->word_slots[slot] = t->n_words++;
    return ZINC_OK;
}

static zinc_status count_word(trainer *t, const char *text, size_t n)
{
    if (2 * (size_t)t->n_words >= t->n_word_slots)
        ZN_TRY(words_grow(t));
    const uint64_t hash = zn_hash_text(text, n);
    size_t slot = hash & (t->n_word_slots - 1);
    for (; t->word_slots[slot] >= 0; slot = (slot + 1) & (t->n_word_slots - 1)) {
        train_word *word = &t->words[t->word_slots[slot]];
        if (word->hash == hash && word->n == n && memcmp(t->text.data + word->text, text, n) == 0) {
            word->count++;
            return ZINC_OK;
        }
    }
    return add_word(t, text, n, hash, slot);
}

static zinc_status count_text(trainer *t, const char *text, size_t n)
{
    size_t from = 0, last_end = SIZE_MAX;
    for (;;) {
        bool found;
        size_t start, end;
        ZN_TRY(
            zn_regex_find(&t->pattern, &t->regex, text, n, from, last_end, &found, &start, &end));
        if (!found)
            return ZINC_OK;
        ZN_TRY(count_word(t, text + start, end - start));
        from = last_end = end;
    }
}

/* The end-of-text token marks ends of documents, and is no text to learn from. */
static zinc_status count_documents(trainer *t, const char *text, size_t n)
{
    size_t from = 0, last_end = SIZE_MAX;
    for (;;) {
        bool found;
        size_t start, end;
        ZN_TRY(
            zn_regex_find(&t->end_mark, &t->regex, text, n, from, last_end, &found, &start, &end));
        ZN_TRY(count_text(t, text + from, (found ? start : n) - from));
        if (!found)
            return ZINC_OK;
        from = last_end = end;
    }
}

static zinc_status count_file(trainer *t, const char *path)
{
    zinc_status status;
    zn_map map = {0};
    zn_buf clean = {0};
    ZN_TRY(zn_map_open(path, &map));
    const char *text = map.data ? (const char *)map.data : "";
    size_t n = map.n_bytes;
    if (!zn_utf8_valid(text, n)) {
        ZN_TRY_GOTO(zn_utf8_append_lossy(&clean, text, n));
        text = clean.data;
        n = clean.n;
    }
    ZN_TRY_GOTO(count_documents(t, text, n));
fail:
    zn_map_close(&map);
    zn_buf_fini(&clean);
    return status;
}

/* ---- pairs and their counts ---- */

static size_t pair_slot(const trainer *t, uint64_t key)
{
    size_t slot = zn_hash_mix(key) & (t->n_pair_slots - 1);
    while (t->pair_slots[slot] >= 0 && t->pairs[t->pair_slots[slot]].key != key)
        slot = (slot + 1) & (t->n_pair_slots - 1);
    return slot;
}

static zinc_status pairs_grow(trainer *t)
{
    const size_t n_slots = t->n_pair_slots ? 2 * t->n_pair_slots : 4096;
    ZN_TRY(zn_realloc_array(&t->pair_slots, n_slots, sizeof *t->pair_slots, "pairs"));
    t->n_pair_slots = n_slots;
    memset(t->pair_slots, 0xFF, n_slots * sizeof *t->pair_slots);
    for (int32_t i = 0; i < t->n_pairs; i++)
        t->pair_slots[pair_slot(t, t->pairs[i].key)] = i;
    return ZINC_OK;
}

/* The pair's entry, made if it is new. */
static zinc_status pair_get(trainer *t, uint64_t key, int32_t *out)
{
    if (2 * (size_t)t->n_pairs >= t->n_pair_slots)
        ZN_TRY(pairs_grow(t));
    const size_t slot = pair_slot(t, key);
    if (t->pair_slots[slot] < 0) {
        if (t->n_pairs == t->pairs_capacity) {
            const int32_t capacity = t->pairs_capacity ? 2 * t->pairs_capacity : 4096;
            ZN_TRY(zn_realloc_array(&t->pairs, (size_t)capacity, sizeof *t->pairs, "pairs"));
            t->pairs_capacity = capacity;
        }
        t->pairs[t->n_pairs] = (train_pair){.key = key, .mark = -1};
        t->pair_slots[slot] = t->n_pairs++;
    }
    *out = t->pair_slots[slot];
    return ZINC_OK;
}

static uint64_t key_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static zinc_status touch(trainer *t, int32_t pair)
{
    if (t->n_touched == t->touched_capacity) {
        const int32_t capacity = t->touched_capacity ? 2 * t->touched_capacity : 1024;
        ZN_TRY(zn_realloc_array(&t->touched, (size_t)capacity, sizeof *t->touched, "pairs"));
        t->touched_capacity = capacity;
    }
    t->touched[t->n_touched++] = pair;
    return ZINC_OK;
}

/* One more place in word `w` where left and right are neighbours. */
static zinc_status pair_add(trainer *t, int32_t left, int32_t right, int32_t w)
{
    int32_t i;
    ZN_TRY(pair_get(t, key_of(left, right), &i));
    train_pair *pair = &t->pairs[i];
    pair->count += t->words[w].count;
    if (pair->mark != t->n_merges) {
        pair->mark = t->n_merges;
        ZN_TRY(touch(t, i));
    }
    if (pair->n_words > 0 && pair->words[pair->n_words - 1] == w)
        return ZINC_OK;
    if (pair->n_words == pair->capacity) {
        const int32_t capacity = pair->capacity ? 2 * pair->capacity : 4;
        ZN_TRY(zn_realloc_array(&pair->words, (size_t)capacity, sizeof *pair->words, "pairs"));
        pair->capacity = capacity;
    }
    pair->words[pair->n_words++] = w;
    return ZINC_OK;
}

static zinc_status pair_remove(trainer *t, int32_t left, int32_t right, int32_t w)
{
    int32_t i;
    ZN_TRY(pair_get(t, key_of(left, right), &i));
    t->pairs[i].count -= t->words[w].count;
    return ZINC_OK;
}

/* ---- the queue: most frequent first; a count that has fallen since is found when it comes up ----
 */

static bool better(const train_candidate *a, const train_candidate *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static zinc_status queue_push(trainer *t, train_candidate candidate)
{
    if (t->n_queue == t->queue_capacity) {
        const size_t capacity = t->queue_capacity ? 2 * t->queue_capacity : 4096;
        ZN_TRY(zn_realloc_array(&t->queue, capacity, sizeof *t->queue, "pairs"));
        t->queue_capacity = capacity;
    }
    size_t i = t->n_queue++;
    while (i > 0 && better(&candidate, &t->queue[(i - 1) / 2])) {
        t->queue[i] = t->queue[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    t->queue[i] = candidate;
    return ZINC_OK;
}

static train_candidate queue_pop(trainer *t)
{
    const train_candidate top = t->queue[0], last = t->queue[--t->n_queue];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= t->n_queue)
            break;
        if (child + 1 < t->n_queue && better(&t->queue[child + 1], &t->queue[child]))
            child++;
        if (!better(&t->queue[child], &last))
            break;
        t->queue[i] = t->queue[child];
        i = child;
    }
    t->queue[i] = last;
    return top;
}

/* ---- merging ---- */

/* Join left and right everywhere in word w. */
static zinc_status merge_in_word(trainer *t, int32_t w, int32_t left, int32_t right, int32_t id)
{
    train_word *word = &t->words[w];
    int32_t *s = t->symbols + word->symbols;
    uint32_t n = 0;
    for (uint32_t i = 0; i < word->n; i++) {
        if (i + 1 == word->n || s[i] != left || s[i + 1] != right) {
            s[n++] = s[i];
            continue;
        }
        /* s[n - 1] is already what it will be; s[i + 2] is still what it was */
        ZN_TRY(pair_remove(t, left, right, w));
        if (n > 0) {
            ZN_TRY(pair_remove(t, s[n - 1], left, w));
            ZN_TRY(pair_add(t, s[n - 1], id, w));
        }
        if (i + 2 < word->n) {
            ZN_TRY(pair_remove(t, right, s[i + 2], w));
            ZN_TRY(pair_add(t, id, s[i + 2], w));
        }
        s[n++] = id;
        i++;
    }
    word->n = n;
    return ZINC_OK;
}

/* Queue the pairs that are in more places than before. */
static zinc_status queue_touched(trainer *t)
{
    for (int32_t i = 0; i < t->n_touched; i++) {
        const train_pair *pair = &t->pairs[t->touched[i]];
        if (pair->count > 0)
            ZN_TRY(queue_push(t, (train_candidate){.count = pair->count, .key = pair->key}));
    }
    t->n_touched = 0;
    return ZINC_OK;
}

static zinc_status merge(trainer *t, train_merge m)
{
    int32_t p;
    ZN_TRY(pair_get(t, key_of(m.left, m.right), &p));
    const int32_t n = t->pairs[p].n_words;
    int32_t *words = t->pairs[p].words; /* taken: more places of this pair start a new list */
    t->pairs[p].words = NULL;
    t->pairs[p].n_words = t->pairs[p].capacity = 0;
    zinc_status status = ZINC_OK;
    for (int32_t i = 0; i < n && status == ZINC_OK; i++)
        status = merge_in_word(t, words[i], m.left, m.right, m.id);
    zn_free(words);
    ZN_TRY(status);
    return queue_touched(t);
}

static zinc_status count_pairs(trainer *t)
{
    ZN_TRY(zn_alloc_array(&t->symbols, t->text.n, sizeof *t->symbols, "the words of a text"));
    for (int32_t w = 0; w < t->n_words; w++) {
        train_word *word = &t->words[w];
        word->symbols = word->text; /* one symbol a byte */
        for (uint32_t i = 0; i < word->n; i++) {
            const uint8_t byte = (uint8_t)t->text.data[word->text + i];
            t->symbols[word->symbols + i] = t->id_of_byte[byte];
            if (i > 0)
                ZN_TRY(pair_add(t, t->symbols[word->symbols + i - 1], t->id_of_byte[byte], w));
        }
    }
    return queue_touched(t);
}

/* Id of what a pair becomes. Two pairs may spell the same token ("a" + "bc", "ab" + "c"); it then
 * has one id. */
static zinc_status token_of_pair(trainer *t, int32_t left, int32_t right, int32_t *id)
{
    zinc_status status;
    zn_buf text = {0};
    const int32_t half[2] = {left, right};
    for (int k = 0; k < 2; k++) {
        size_t n = 0;
        const char *part = zn_vocab_text(&t->tokens, half[k], &n);
        ZN_TRY_GOTO(zn_buf_append(&text, part, n));
    }
    *id = zn_vocab_find(&t->tokens, text.data, text.n);
    if (*id < 0) {
        ZN_TRY_GOTO(zn_vocab_add(&t->tokens, text.data, text.n, t->n_ids));
        *id = t->n_ids++;
    }
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status learn_merge(trainer *t, uint64_t key)
{
    train_merge m = {.left = (int32_t)(key >> 32), .right = (int32_t)(key & UINT32_MAX)};
    ZN_TRY(token_of_pair(t, m.left, m.right, &m.id));
    if (t->n_merges == t->merges_capacity) {
        const int32_t capacity = t->merges_capacity ? 2 * t->merges_capacity : 1024;
        ZN_TRY(zn_realloc_array(&t->merges, (size_t)capacity, sizeof *t->merges, "merges"));
        t->merges_capacity = capacity;
    }
    t->merges[t->n_merges++] = m;
    return merge(t, m);
}

static zinc_status learn(trainer *t, int32_t n_ids)
{
    ZN_TRY(count_pairs(t));
    while (t->n_ids < n_ids && t->n_queue > 0) {
        train_candidate top = queue_pop(t);
        int32_t p;
        ZN_TRY(pair_get(t, top.key, &p));
        const int64_t count = t->pairs[p].count;
        if (count == top.count) {
            ZN_TRY(learn_merge(t, top.key));
        } else if (count > 0) {
            top.count = count;
            ZN_TRY(queue_push(t, top));
        }
    }
    return ZINC_OK;
}

/* ---- the whole ---- */

static void trainer_fini(trainer *t)
{
    for (int32_t i = 0; i < t->n_pairs; i++)
        zn_free(t->pairs[i].words);
    zn_free(t->pairs);
    zn_free(t->pair_slots);
    zn_free(t->queue);
    zn_free(t->words);
    zn_free(t->word_slots);
    zn_free(t->symbols);
    zn_free(t->touched);
    zn_free(t->merges);
    zn_vocab_fini(&t->tokens);
    zn_buf_fini(&t->text);
    zn_regex_fini(&t->pattern);
    zn_regex_fini(&t->end_mark);
    zn_regex_work_fini(&t->regex);
}

/* Bytes sorted by the character that stands for them. */
static zinc_status add_bytes(trainer *t, int32_t vocab_size)
{
    char utf8[4];
    ZN_TRY(zn_vocab_init(&t->tokens, (size_t)vocab_size, vocab_size));
    for (int32_t code = 0; code < 0x144; code++) {
        const int byte = zn_char_to_byte(code);
        if (byte < 0)
            continue;
        ZN_TRY(zn_vocab_add(&t->tokens, utf8, zn_utf8_put(code, utf8), t->n_ids));
        t->id_of_byte[byte] = t->n_ids++;
    }
    return ZINC_OK;
}

zinc_status zn_tokenizer_train(const char *const *files, int n_files, int32_t vocab_size,
                               const char *output)
{
    zinc_status status;
    trainer t = {0};
    if (vocab_size < 257 || vocab_size > ZN_TOK_MAX_ID)
        ZN_FAIL(ZINC_E_INVALID, "vocab_size %d: it counts 256 bytes, the merges and %s, so 257..%d",
                vocab_size, END_OF_TEXT, ZN_TOK_MAX_ID);
    ZN_TRY_GOTO(add_bytes(&t, vocab_size));
    ZN_TRY_GOTO(zn_regex_work_init(&t.regex));
    ZN_TRY_GOTO(zn_regex_compile(ZN_GPT2_PATTERN, strlen(ZN_GPT2_PATTERN), "words", &t.pattern));
    ZN_TRY_GOTO(zn_regex_compile_literal(END_OF_TEXT, strlen(END_OF_TEXT), "end", &t.end_mark));
    for (int i = 0; i < n_files; i++)
        ZN_TRY_GOTO(count_file(&t, files[i]));
    if (t.n_words == 0)
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "no text to learn a tokenizer from in %s",
                     n_files > 0 ? files[0] : "no files");
    ZN_TRY_GOTO(learn(&t, vocab_size - 1));
    if (t.n_ids < vocab_size - 1)
        zn_warn("data", "the text has pairs for %d ids only, not for %d", t.n_ids + 1, vocab_size);
    ZN_TRY_GOTO(zn_train_write(&t, output));
fail:
    trainer_fini(&t);
    return status;
}
