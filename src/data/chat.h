/* SPDX-License-Identifier: Apache-2.0 */
/* chat.h — conversations as the tokenizer's chat template writes them.
 *
 * A template is a Jinja program. Zinc runs none: it knows the templates of the common families by
 * their exact text (length and hash, chat_families.c) and writes what they write. Any other
 * template is an error that shows the script which writes the rows once, outside. The ids are those
 * of transformers' apply_chat_template(tokenize=True): the text is encoded as a whole, without the
 * post-processor, so BOS and EOS stand where the template puts them and nowhere else.
 * Layer: data (may use base). */
#ifndef ZN_DATA_CHAT_H
#define ZN_DATA_CHAT_H

#include "data/tokenizer.h"

typedef struct zn_chat zn_chat;

typedef struct zn_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* [n_content] UTF-8 */
    size_t n_content;
} zn_message;

/** Read the template beside a tokenizer: chat_template.jinja, else "chat_template" of
 *  tokenizer_config.json. `tokenizer_path` is the tokenizer.json. That there is none, or one Zinc
 *  does not know, is an error of zn_chat_encode only. Errors: E_IO, E_FORMAT. */
ZINC_MUST_CHECK zinc_status zn_chat_open(const char *tokenizer_path, zn_chat **out);
void zn_chat_destroy(zn_chat *chat);

/** Append the text of a conversation; generation_prompt: and the beginning of an answer. Errors:
 *  E_UNSUPPORTED (the template), E_FORMAT (roles and their order). */
ZINC_MUST_CHECK zinc_status zn_chat_render(const zn_chat *chat, const zn_message *messages, int n,
                                           bool generation_prompt, zn_buf *out);

/** Append the ids of a conversation. labels (may be NULL) gets the id where an assistant wrote the
 *  token — its answer and the token that ends it, not the header before — and -100 elsewhere. A
 *  token that lies across the beginning of an answer belongs to it. Errors as zn_chat_render. */
ZINC_MUST_CHECK zinc_status zn_chat_encode(const zn_chat *chat, const zn_tokenizer *tokenizer,
                                           const zn_message *messages, int n,
                                           bool generation_prompt, zn_ids *ids, zn_ids *labels);

/** The text that ends an answer, e.g. "<|im_end|>"; NULL if the template is not known. */
const char *zn_chat_end(const zn_chat *chat);

#endif
