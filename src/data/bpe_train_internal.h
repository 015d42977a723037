/* SPDX-License-Identifier: Apache-2.0 */
/* bpe_train_internal.h — the state of learning a tokenizer (bpe_train.c) and the writer of its
 * file (bpe_write.c). */
#ifndef ZN_DATA_BPE_TRAIN_INTERNAL_H
#define ZN_DATA_BPE_TRAIN_INTERNAL_H

#include "data/tokenizer_internal.h"

/* A different word of the text. */
typedef struct train_word {
    uint64_t hash;
    int64_t count;
    size_t text, symbols; /* offsets in trainer.text and trainer.symbols */
    uint32_t n;           /* bytes, later symbols */
} train_word;

typedef struct train_pair {
    uint64_t key; /* left id << 32 | right id */
    int64_t count;
    int32_t *words; /* [n_words] words it was seen in; it may have left some since */
    int32_t n_words, capacity;
    int32_t mark; /* the last merge that found it in more places */
} train_pair;

typedef struct train_merge {
    int32_t left, right, id;
} train_merge;

typedef struct train_candidate {
    int64_t count; /* when it was queued */
    uint64_t key;
} train_candidate;

typedef struct trainer {
    zn_regex pattern, end_mark;
    zn_regex_work regex;
    int32_t id_of_byte[256];
    train_word *words;
    int32_t n_words, words_capacity;
    int32_t *word_slots; /* [n_word_slots] word index, -1: free */
    size_t n_word_slots;
    zn_buf text;      /* all words, back to back */
    int32_t *symbols; /* [text.n] */
    train_pair *pairs;
    int32_t n_pairs, pairs_capacity;
    int32_t *pair_slots; /* [n_pair_slots] pair index, -1: free */
    size_t n_pair_slots;
    train_candidate *queue; /* a heap */
    size_t n_queue, queue_capacity;
    int32_t *touched; /* [n_touched] pairs that this merge found in more places */
    int32_t n_touched, touched_capacity;
    zn_vocab tokens; /* byte-level spellings */
    int32_t n_ids;
    train_merge *merges;
    int32_t n_merges, merges_capacity;
} trainer;

/** Write tokenizer.json: ids 0..n_ids - 1 of t->tokens, then the end-of-text token. */
ZINC_MUST_CHECK zinc_status zn_train_write(const trainer *t, const char *output);

#endif
