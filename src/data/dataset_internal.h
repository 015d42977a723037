/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_internal.h — between dataset.c (rows and packing), dataset_read.c (files to documents),
 * dataset_batch.c (sampler, micro-batches) and token_file.c (.bin). */
#ifndef ZN_DATA_DATASET_INTERNAL_H
#define ZN_DATA_DATASET_INTERNAL_H

#include "base/json.h"
#include "data/dataset.h"

#define ZN_IGNORED_LABEL (-100)

typedef enum zn_file_kind {
    ZN_FILE_TEXT,
    ZN_FILE_JSONL,
    ZN_FILE_TOKENS,
} zn_file_kind;

/* What a .txt file or a line of .jsonl holds. */
typedef struct zn_document {
    const char *where;      /* "FILE" or "FILE:LINE" */
    const char *text;       /* "text", or NULL */
    const char *prompt;     /* "prompt", or NULL */
    const char *completion; /* with prompt */
    size_t n_text, n_prompt, n_completion;
    const json_t *ids, *labels, *mask; /* arrays; ids NULL: none, labels and mask may be NULL */
    const json_t *messages;            /* "messages", or NULL */
} zn_document;

typedef zinc_status (*zn_document_fn)(void *context, const zn_document *document);

/** Kind by extension. E_UNSUPPORTED says how to convert .parquet, .csv and others. */
ZINC_MUST_CHECK zinc_status zn_file_kind_of(const char *path, zn_file_kind *out);
/** Call `fn` for each document of a text or .jsonl file. E_FORMAT if there is none. */
ZINC_MUST_CHECK zinc_status zn_documents_read(const char *path, zn_file_kind kind,
                                              zn_document_fn fn, void *context);

/** Append the ids of a document: special tokens of the tokenizer's template (once, even if the
 *  text has them already) and eos_id at the end (-1: none). */
ZINC_MUST_CHECK zinc_status zn_document_encode(const zn_tokenizer *tokenizer, const char *text,
                                               size_t n, int32_t eos_id, zn_ids *out);

/** Append ids and labels of a "messages" row (dataset_chat.c). */
ZINC_MUST_CHECK zinc_status zn_messages_encode(const zn_dataset_params *params,
                                               const zn_document *document, zn_ids *ids,
                                               zn_ids *labels);

/* A .bin file, mapped. Zero-initialise; release with zn_token_file_close. */
typedef struct zn_token_file {
    const unsigned char *data; /* the ids, little-endian */
    int64_t n;
    int bytes_per_token; /* 2 or 4 */
    const unsigned char *map;
    size_t n_map;
} zn_token_file;
ZINC_MUST_CHECK zinc_status zn_token_file_open(const char *path, zn_token_file *out);
void zn_token_file_close(zn_token_file *file);
uint32_t zn_token_file_get(const zn_token_file *file, int64_t i);

#endif
