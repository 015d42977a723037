/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h — tokenizer.json as Hugging Face `tokenizers` reads it: byte-level and
 * SentencePiece-like BPE. A part of the file that is not supported is an error that names it.
 *
 * Nothing here is collective. Threads: encode and decode may run in several threads at once on one
 * tokenizer. */
#ifndef ZINC_TOKENIZER_H
#define ZINC_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "zinc/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zinc_tokenizer zinc_tokenizer;

/** Load a tokenizer.json. *out is owned. Errors: E_IO; E_FORMAT; E_UNSUPPORTED names the part. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_tokenizer_load(const char *path, zinc_tokenizer **out);
/** NULL is fine. */
ZINC_API void zinc_tokenizer_destroy(zinc_tokenizer *tokenizer);

/** Number of ids, added tokens included. */
ZINC_API int32_t zinc_tokenizer_vocab_size(const zinc_tokenizer *tokenizer);
/** Id of a token by its exact text, or -1. */
ZINC_API int32_t zinc_tokenizer_id(const zinc_tokenizer *tokenizer, const char *token);

/** Ids of n_bytes of UTF-8 text; bytes that are not UTF-8 are read as U+FFFD.
 *  add_special_tokens  1: also what the post-processor adds (a beginning-of-text token, say)
 *  *ids  [*n_ids], owned, free it with zinc_free */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_tokenizer_encode(const zinc_tokenizer *tokenizer,
                                                           const char *text, size_t n_bytes,
                                                           int add_special_tokens, int32_t **ids,
                                                           int64_t *n_ids);

/** Text of ids [n_ids]. *text is owned, free it with zinc_free. Errors: E_INVALID for an id out of
 *  range. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_tokenizer_decode(const zinc_tokenizer *tokenizer,
                                                           const int32_t *ids, int64_t n_ids,
                                                           int skip_special_tokens, char **text);

#ifdef __cplusplus
}
#endif

#endif
