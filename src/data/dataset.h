/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.h — rows of tokens from .txt, .jsonl and .bin, and who reads which row when.
 *
 * A row: ids, labels (-100: ignored; not shifted) and an attention mask. Text is tokenised, ended
 * with EOS where the tokenizer has one, concatenated and packed into rows of block_size (the tail
 * that does not fill one is kept if it has at least 2 tokens). A .jsonl row with input_ids is one
 * row as it stands; {"text"} rows are packed; {"prompt","completion"} rows are one row each with
 * the loss on the completion. Rows longer than block_size are cut, and counted, or refused. The
 * order is a pure function of (seed, epoch, position): any rank, any world size, any resume point
 * finds its samples without replaying. Layer: data (may use base, config). */
#ifndef ZN_DATA_DATASET_H
#define ZN_DATA_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "data/chat.h"
#include "data/tokenizer.h"

typedef struct zn_dataset zn_dataset;

typedef struct zn_dataset_params {
    const char *const *files; /* [n_files]; kind by extension */
    int n_files;
    const zn_tokenizer *tokenizer; /* NULL is fine if no file has text */
    int64_t block_size;            /* >= 2 */
    bool refuse_long;              /* a .jsonl row that does not fit is an error, and not cut */
    int32_t vocab_size;            /* of the model; an id beyond it is an error with file and row */
    int32_t eos_id;                /* appended after every text; -1: none */
    const zn_chat *chat;           /* writes rows of "messages"; NULL is fine if there are none */
    bool loss_on_all;              /* of rows of "messages": every token is learned */
    bool packing_boundaries;       /* packed texts do not see one another */
} zn_dataset_params;

/* Borrowed from the dataset. */
typedef struct zn_row {
    int64_t n;
    const int32_t *ids;    /* [n] */
    const int32_t *labels; /* [n], or NULL: the ids themselves */
    const uint8_t *mask;   /* [n], or NULL: all 1 */
    const uint8_t *first;  /* [n] 1 where another document begins; NULL: the row is one */
} zn_row;

/** Read the files. Errors: E_IO; E_FORMAT with file, line and reason (bad JSON, lengths that
 * differ, an id out of the vocabulary, .bin header or size wrong, nothing in it). */
ZINC_MUST_CHECK zinc_status zn_dataset_open(const zn_dataset_params *params, zn_dataset **out);
void zn_dataset_destroy(zn_dataset *dataset);
int64_t zn_dataset_n_rows(const zn_dataset *dataset);
void zn_dataset_row(const zn_dataset *dataset, int64_t i, zn_row *out);
/** Rows without any target (all labels ignored), rows that were cut, tokens in all. */
int64_t zn_dataset_n_empty(const zn_dataset *dataset);
int64_t zn_dataset_n_cut(const zn_dataset *dataset);
int64_t zn_dataset_n_tokens(const zn_dataset *dataset);

/** Row that position `position` of the whole run reads: with shuffle, a permutation of each epoch
 *  keyed by (seed, epoch) in O(1) memory and time (a Feistel network over the row numbers);
 * without, position % n_rows. position counts samples from 0 over the run. */
int64_t zn_sampler_row(int64_t n_rows, uint64_t seed, bool shuffle, int64_t position);

/* One micro-batch, padded to its longest row. Zero-initialise; reused between calls; release with
 * zn_batch_fini. */
typedef struct zn_batch {
    int64_t B, T;
    int32_t *ids;      /* [B,T], 0 where padded */
    int32_t *targets;  /* [B,T]: the NEXT token's label, -1 where there is none */
    uint8_t *mask;     /* [B,T], or NULL if every position of every row is real */
    int32_t *segment;  /* [B,T] document of the row, from 0; NULL if every row is one */
    int32_t *position; /* [B,T] place in the document; NULL with segment */
    int64_t *sample;   /* [B] index of the row in the global batch */
    int64_t n_targets; /* targets >= 0 */
    int64_t n_tokens;  /* real (unpadded) positions */
    int64_t capacity;  /* allocated elements of [B,T] */
    int64_t capacity_rows;
    uint8_t *mask_storage;
    int32_t *segment_storage, *position_storage;
} zn_batch;

/** Fill a batch from B rows. The last token of a document inside a row has no target, as at the end
 *  of a row. row_index < 0 gives an empty row (all padding, no target), which
 *  evaluation uses to end evenly. first_sample is the global index of the first one. */
ZINC_MUST_CHECK zinc_status zn_batch_fill(zn_batch *batch, const zn_dataset *dataset,
                                          const int64_t *row_index, int64_t B,
                                          int64_t first_sample);
void zn_batch_fini(zn_batch *batch);

/** Build a .bin token file (cli.md) from text files. *n_tokens gets how many. */
ZINC_MUST_CHECK zinc_status zn_token_file_build(const zn_tokenizer *tokenizer,
                                                const char *const *files, int n_files,
                                                int32_t eos_id, const char *output,
                                                int64_t *n_tokens);

#endif
