/* SPDX-License-Identifier: Apache-2.0 */
/* chat_internal.h — between chat.c (finding the template, ids and labels) and chat_families.c (the
 * known templates and what they write). */
#ifndef ZN_DATA_CHAT_INTERNAL_H
#define ZN_DATA_CHAT_INTERNAL_H

#include "data/chat.h"

typedef enum zn_chat_kind {
    ZN_CHAT_TURNS, /* open ROLE middle CONTENT close, for every role */
    ZN_CHAT_INST,  /* user_open CONTENT user_close answer_open CONTENT answer_close EOS */
} zn_chat_kind;

/* What a template writes. Texts that are NULL are left out. */
typedef struct zn_chat_family {
    const char *name;
    zn_chat_kind kind;
    bool bos;       /* the template writes BOS: at the start, or (bos_each) before each user */
    bool bos_each;  /* inst */
    bool trim;      /* white space at both ends of a content goes */
    bool alternate; /* user, assistant, user, … (after a system message) or an error */
    bool no_system; /* a system message is an error */
    /* turns */
    const char *open, *header_end, *middle, *close, *after;
    const char *assistant;       /* what the role is called */
    const char *default_system;  /* where the first message is no system message; NULL: none */
    const char *system_preamble; /* a system turn is always written and begins so */
    bool always_prompt;          /* the beginning of an answer ends every text */
    /* inst */
    const char *user_open, *user_close, *answer_open, *answer_close, *after_eos;
    const char *system_open, *system_close; /* around the system text, in the first user message */
} zn_chat_family;

/** The family of a template's exact text (one newline at its end does not count), or NULL. */
const zn_chat_family *zn_chat_family_of(const char *text, size_t n);
/** The same by length and FNV-1a hash. */
const zn_chat_family *zn_chat_family_of_hash(size_t n, uint64_t hash);
/** Names of the families, for messages. */
#define ZN_CHAT_FAMILY_NAMES "ChatML, SmolLM2, Qwen 1.5 to 2.5, Llama 2, 3 and 3.1, Mistral, Gemma"

/* A run of text that is all an assistant's or all not, or one special token. */
typedef struct zn_chat_piece {
    size_t start, n; /* in text */
    bool answer;
} zn_chat_piece;

/* Zero-initialise; release with zn_chat_text_fini. */
typedef struct zn_chat_text {
    zn_buf text;
    zn_chat_piece *pieces;
    int n, capacity;
} zn_chat_text;
void zn_chat_text_fini(zn_chat_text *text);

/** bos and eos: the tokens' texts; NULL is an error where the template needs them. */
ZINC_MUST_CHECK zinc_status zn_chat_write(const zn_chat_family *family, const char *bos,
                                          const char *eos, const zn_message *messages, int n,
                                          bool generation_prompt, zn_chat_text *out);

#endif
