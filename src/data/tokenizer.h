/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h — tokenizer.json as Hugging Face `tokenizers` reads it: BPE, byte-level (GPT-2,
 * Llama-3, Qwen, SmolLM kinds) and SentencePiece-like (Llama-2 kind), with normalizers,
 * pre-tokenizers, added tokens, post-processor templates and decoders.
 *
 * A component that is not supported is an error that names it; nothing is skipped silently.
 * Threads: encode and decode may run in several threads on one tokenizer. Layer: data. */
#ifndef ZN_DATA_TOKENIZER_H
#define ZN_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

typedef struct zn_tokenizer zn_tokenizer;

/* A growing row of ids. Zero-initialise; release with zn_ids_fini. */
typedef struct zn_ids {
    int32_t *ids;
    int64_t n, capacity;
} zn_ids;
ZINC_MUST_CHECK zinc_status zn_ids_push(zn_ids *ids, int32_t id);
void zn_ids_fini(zn_ids *ids);

/** Load tokenizer.json. Errors: E_IO; E_FORMAT; E_UNSUPPORTED names the component. */
ZINC_MUST_CHECK zinc_status zn_tokenizer_load(const char *path, zn_tokenizer **out);
void zn_tokenizer_destroy(zn_tokenizer *tokenizer);
/** Number of ids, added tokens included. */
int32_t zn_tokenizer_vocab_size(const zn_tokenizer *tokenizer);
/** Id of a token by its exact text (added tokens first), or -1. */
int32_t zn_tokenizer_id(const zn_tokenizer *tokenizer, const char *token);

/** Whether an id is an added token that the file calls special. */
bool zn_tokenizer_is_special(const zn_tokenizer *tokenizer, int32_t id);

/** Append the ids of n bytes of text. Errors: E_FORMAT if a character has no token and there is no
 *  unknown token. Text that is not UTF-8 is read with U+FFFD in place of bad bytes. */
ZINC_MUST_CHECK zinc_status zn_tokenizer_encode(const zn_tokenizer *tokenizer, const char *text,
                                                size_t n, bool add_special_tokens, zn_ids *out);
/** Append the text of ids. Errors: E_INVALID for an id out of range. */
ZINC_MUST_CHECK zinc_status zn_tokenizer_decode(const zn_tokenizer *tokenizer, const int32_t *ids,
                                                int64_t n, bool skip_special_tokens, zn_buf *out);

/** Learn a byte-level BPE (GPT-2 pre-tokenizer, 256 base tokens, "<|endoftext|>" as the last id)
 *  from text files and write tokenizer.json. vocab_size counts everything, >= 257. */
ZINC_MUST_CHECK zinc_status zn_tokenizer_train(const char *const *files, int n_files,
                                               int32_t vocab_size, const char *output);

#endif
