/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_internal.h — the parts of a tokenizer, one file each.
 *
 *   text -> added tokens cut out (tok_added.c) -> normalizers (tok_normalize.c)
 *        -> pre-tokenizer steps (tok_split.c) -> merges (tok_bpe.c) -> template (tokenizer.c)
 *   ids  -> token texts -> decoder steps (tok_decode.c) -> text
 *
 * tok_json.c and tok_load.c turn tokenizer.json into these parts: each component of the file
 * becomes one or more primitive steps, so that running them needs no knowledge of the file.
 * Pre-tokenizing is depth first: a piece runs through all steps and the merges before the next one
 * is cut, so memory does not grow with the text. A loaded tokenizer never changes; everything that
 * does change while encoding is in a zn_tok_work, which a call borrows from the tokenizer's pool.
 */
#ifndef ZN_DATA_TOKENIZER_INTERNAL_H
#define ZN_DATA_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>

#include "base/json.h"
#include "data/tokenizer.h"

#define ZN_TOK_MAX_STEPS 24
#define ZN_TOK_MAX_ID ((1 << 24) - 1) /* bounds the tables a hostile file can ask for */

/* ---- tok_text.c: UTF-8, character classes, the byte-level alphabet ---- */

/** Code point at p (n > 0 bytes left) and its length; -1 and the length of the longest prefix that
 *  could have been well-formed if it is not UTF-8 (Unicode 15, table 3-7). */
int32_t zn_utf8_next(const char *p, size_t n, size_t *len);
/** The same for text known to be UTF-8. */
int32_t zn_utf8_get(const char *p, size_t *len);
size_t zn_utf8_put(int32_t code, char out[4]);
bool zn_utf8_valid(const char *text, size_t n);
/** Append text with U+FFFD for each maximal ill-formed part, as Rust's and Python's decoders do. */
ZINC_MUST_CHECK zinc_status zn_utf8_append_lossy(zn_buf *buf, const char *text, size_t n);
bool zn_char_is_space(int32_t code); /* Unicode White_Space */
bool zn_char_is_word(int32_t code);  /* \w of Rust's regex */
/** Make room for n more bytes and the final NUL. */
ZINC_MUST_CHECK zinc_status zn_buf_reserve(zn_buf *buf, size_t n);
/** Code point that stands for `byte` in byte-level token texts, and back (-1: none). */
int32_t zn_byte_to_char(uint8_t byte);
int zn_char_to_byte(int32_t code);
/** Append the byte-level spelling of n bytes. */
ZINC_MUST_CHECK zinc_status zn_append_byte_level(zn_buf *buf, const char *bytes, size_t n);

/* ---- tok_regex.c: patterns written for Oniguruma, run by PCRE2 ---- */

typedef struct zn_regex {
    pcre2_code *code;
} zn_regex;

typedef struct zn_regex_work {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} zn_regex_work;

/** Compile n bytes of pattern. E_FORMAT: not a regex; E_UNSUPPORTED: something that means another
 *  thing in PCRE2. `where` names the component. */
ZINC_MUST_CHECK zinc_status zn_regex_compile(const char *pattern, size_t n, const char *where,
                                             zn_regex *out);
/** Pattern that matches n bytes literally. */
ZINC_MUST_CHECK zinc_status zn_regex_compile_literal(const char *text, size_t n, const char *where,
                                                     zn_regex *out);
void zn_regex_fini(zn_regex *regex);
ZINC_MUST_CHECK zinc_status zn_regex_work_init(zn_regex_work *work);
void zn_regex_work_fini(zn_regex_work *work);
/** Next match at or after `from`; *found false if there is none. Never returns an empty match at
 *  `last_end` (SIZE_MAX: no match yet). */
ZINC_MUST_CHECK zinc_status zn_regex_find(const zn_regex *regex, zn_regex_work *work,
                                          const char *text, size_t n, size_t from, size_t last_end,
                                          bool *found, size_t *start, size_t *end);
/** Append text to out with every match replaced by `content`. */
ZINC_MUST_CHECK zinc_status zn_regex_replace(const zn_regex *regex, zn_regex_work *work,
                                             const char *text, size_t n, const char *content,
                                             size_t n_content, zn_buf *out);

/* ---- tok_vocab.c: token texts, ids, merges ---- */

typedef struct zn_vocab {
    zn_buf text;     /* all token texts, back to back */
    uint64_t *start; /* [n_ids] offset in text; UINT64_MAX: no token has this id */
    uint32_t *len;   /* [n_ids] */
    int32_t n_ids;   /* largest id + 1 */
    int32_t *slots;  /* [n_slots] text hash -> id, -1: free */
    size_t n_slots;  /* power of two */
    uint32_t max_len;
} zn_vocab;

typedef struct zn_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free */
    uint32_t rank;
    int32_t id; /* what the pair becomes */
} zn_merge;

typedef struct zn_merges {
    zn_merge *slots;
    size_t n_slots; /* power of two */
} zn_merges;

ZINC_MUST_CHECK zinc_status zn_vocab_init(zn_vocab *vocab, size_t n_tokens, int32_t n_ids);
/** The text must be new. E_FORMAT if the id is taken. */
ZINC_MUST_CHECK zinc_status zn_vocab_add(zn_vocab *vocab, const char *text, size_t n, int32_t id);
void zn_vocab_fini(zn_vocab *vocab);
/** Id of a text, or -1. */
int32_t zn_vocab_find(const zn_vocab *vocab, const char *text, size_t n);
/** Text of an id, or NULL. */
const char *zn_vocab_text(const zn_vocab *vocab, int32_t id, size_t *n);

ZINC_MUST_CHECK zinc_status zn_merges_init(zn_merges *merges, size_t n);
/** A pair that is there already gets the later rank. */
void zn_merges_set(zn_merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t id);
/** The merge of two ids, or NULL. */
const zn_merge *zn_merges_find(const zn_merges *merges, int32_t left, int32_t right);
uint64_t zn_hash_text(const char *text, size_t n);

/* ---- the parts of a tokenizer ---- */

typedef struct zn_added_token {
    char *text;    /* as written in the file */
    char *pattern; /* what is searched: text, normalized if `normalized` */
    size_t n_text, n_pattern;
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
} zn_added_token;

/* Tokens searched together, sorted by pattern; first[b]..first[b + 1] start with byte b. */
typedef struct zn_added_set {
    const zn_added_token **tokens; /* [n] */
    int32_t n;
    int32_t first[257];
} zn_added_set;

typedef enum zn_step_kind {
    ZN_STEP_NFC, /* normalizers */
    ZN_STEP_NFD,
    ZN_STEP_NFKC,
    ZN_STEP_NFKD,
    ZN_STEP_LOWERCASE,
    ZN_STEP_STRIP_ACCENTS,
    ZN_STEP_TRIM,    /* normalizer Strip: start, stop say which sides */
    ZN_STEP_PREPEND, /* text, unless empty */
    ZN_STEP_REPLACE, /* regex -> text; also a decoder */
    ZN_STEP_BYTES,  /* bytes -> byte-level characters; also a pre-tokenizer, and a decoder (back) */
    ZN_STEP_PREFIX, /* pre-tokenizers: a space in front unless there is one */
    ZN_STEP_SPLIT,
    ZN_STEP_METASPACE,     /* spaces -> text, and text in front by scheme; decoder: back */
    ZN_STEP_BYTE_FALLBACK, /* decoders */
    ZN_STEP_FUSE,
    ZN_STEP_STRIP, /* up to start / stop characters `text` at the ends of each token */
    ZN_STEP_BPE_SUFFIX,
} zn_step_kind;

typedef enum zn_split_behavior {
    ZN_SPLIT_REMOVED,
    ZN_SPLIT_ISOLATED,
    ZN_SPLIT_MERGED_WITH_PREVIOUS,
    ZN_SPLIT_MERGED_WITH_NEXT,
    ZN_SPLIT_CONTIGUOUS,
} zn_split_behavior;

typedef enum zn_prepend_scheme {
    ZN_PREPEND_ALWAYS,
    ZN_PREPEND_FIRST,
    ZN_PREPEND_NEVER,
} zn_prepend_scheme;

typedef struct zn_step {
    zn_step_kind kind;
    zn_regex regex;
    char *text;
    size_t n_text;
    zn_split_behavior behavior;
    bool invert;
    zn_prepend_scheme scheme;
    int64_t start, stop;
} zn_step;

typedef struct zn_steps {
    zn_step step[ZN_TOK_MAX_STEPS];
    int n;
} zn_steps;

/* What is put around the ids of a text: ids, and -1 where the text itself stands. */
typedef struct zn_template {
    int32_t *items;
    int n;
} zn_template;

typedef struct zn_bpe {
    zn_vocab vocab;
    zn_merges merges;
    int32_t unk_id;        /* -1: none */
    int32_t byte_id[256];  /* of "<0xXX>" with byte_fallback; -1: none */
    char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; NULL: none */
    bool fuse_unk, byte_fallback, ignore_merges;
    /* Character pairs that lie inside some token, for texts no pre-tokenizer cuts: between two
     * characters that no token joins, no merge can act. NULL: do not cut. 0: free slot. */
    uint64_t *inner_pairs;
    size_t n_inner_slots;
} zn_bpe;

typedef struct zn_tok_work zn_tok_work;

/* Work areas that no call uses now. */
typedef struct zn_tok_pool {
    pthread_mutex_t mutex;
    zn_tok_work *free_list;
} zn_tok_pool;

struct zn_tokenizer {
    zn_bpe bpe;
    zn_added_token *added; /* [n_added] */
    int n_added;
    int32_t n_ids;                /* largest id + 1, added tokens included */
    int32_t *added_of_id;         /* [n_ids] index in added, or -1 */
    zn_added_set raw, normalized; /* searched before and after the normalizers */
    zn_steps normalizers, splits, decoders;
    bool has_decoder;
    zn_template template_;
    zn_tok_pool *pool;
};

/* ---- work areas ---- */

typedef struct zn_symbol {
    int32_t id; /* -1: merged into the one before */
    int32_t prev, next;
} zn_symbol;

typedef struct zn_candidate {
    uint32_t rank, pos;
    int32_t id; /* what the pair would become */
} zn_candidate;

typedef struct zn_cache_entry {
    uint64_t hash; /* 0: free */
    uint32_t text, ids;
    uint16_t n_text, n_ids;
} zn_cache_entry;

#define ZN_CACHE_SLOTS (1u << 16)
#define ZN_CACHE_MAX_TEXT 96
#define ZN_CACHE_MAX_IDS 256

struct zn_tok_work {
    zn_tok_work *next; /* in the pool's free list */
    zn_regex_work regex;
    zn_buf clean, norm[2], step[ZN_TOK_MAX_STEPS];
    zn_buf word;
    zn_symbol *symbols;
    size_t n_symbols, symbols_capacity;
    zn_candidate *heap;
    size_t n_heap, heap_capacity;
    zn_ids *out;
    /* Words already merged. Cleared when full. */
    zn_cache_entry *cache; /* [ZN_CACHE_SLOTS] */
    size_t n_cached;
    zn_buf cache_text;
    zn_ids cache_ids;
};

/* ---- steps of encoding ---- */

ZINC_MUST_CHECK zinc_status zn_tok_work_get(const zn_tokenizer *tokenizer, zn_tok_work **out);
void zn_tok_work_put(const zn_tokenizer *tokenizer, zn_tok_work *work);
void zn_tok_work_destroy(zn_tok_work *work);

/** Run the normalizers on text; *out and *n_out point into work or are the text itself. */
ZINC_MUST_CHECK zinc_status zn_tok_normalize(const zn_steps *steps, zn_tok_work *work,
                                             const char *text, size_t n, const char **out,
                                             size_t *n_out);
/** Next added token at or after `from`: spaces it strips are in [*start, *stop). */
typedef struct zn_added_match {
    const zn_added_token *token; /* NULL: none */
    size_t start, stop;          /* what it takes from the text, stripped spaces included */
    size_t resume;               /* where the search goes on */
} zn_added_match;
zn_added_match zn_added_find(const zn_added_set *set, const char *text, size_t n, size_t from,
                             size_t last_stop);
ZINC_MUST_CHECK zinc_status zn_added_set_init(zn_added_set *set, const zn_added_token *tokens,
                                              int n, bool normalized);
void zn_added_set_fini(zn_added_set *set);

/** Cut a piece into words by steps i.. and append their ids to work->out. at_start: the piece
 *  begins where the whole text begins. */
ZINC_MUST_CHECK zinc_status zn_tok_split(const zn_tokenizer *tokenizer, zn_tok_work *work, int i,
                                         const char *text, size_t n, bool at_start);
/** Append the ids of one word to work->out. */
ZINC_MUST_CHECK zinc_status zn_bpe_encode(const zn_bpe *bpe, zn_tok_work *work, const char *word,
                                          size_t n);
/** Fill bpe->inner_pairs. */
ZINC_MUST_CHECK zinc_status zn_bpe_find_inner_pairs(zn_bpe *bpe);
void zn_bpe_fini(zn_bpe *bpe);

ZINC_MUST_CHECK zinc_status zn_tok_decode(const zn_tokenizer *tokenizer, const int32_t *ids,
                                          int64_t n, bool skip_special_tokens, zn_buf *out);

/* ---- loading ---- */

#define ZN_GPT2_PATTERN                                                                            \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/** Fill a zeroed tokenizer (its pool set) from the whole file. */
ZINC_MUST_CHECK zinc_status zn_load_tokenizer(const json_t *json, zn_tokenizer *tokenizer);
ZINC_MUST_CHECK zinc_status zn_load_model(const json_t *json, zn_bpe *bpe);
ZINC_MUST_CHECK zinc_status zn_load_normalizer(const json_t *json, zn_steps *steps);
ZINC_MUST_CHECK zinc_status zn_load_pre_tokenizer(const json_t *json, zn_steps *steps);
ZINC_MUST_CHECK zinc_status zn_load_decoder(const json_t *json, zn_steps *steps);
ZINC_MUST_CHECK zinc_status zn_load_template(const json_t *json, zn_template *template_);
void zn_steps_fini(zn_steps *steps);

/* Fields of a component; `where` is the component's name. Absent and null give the fallback. */
ZINC_MUST_CHECK zinc_status zn_field_bool(const json_t *json, const char *where, const char *key,
                                          bool fallback, bool *out);
ZINC_MUST_CHECK zinc_status zn_field_int(const json_t *json, const char *where, const char *key,
                                         int64_t fallback, int64_t *out);
/** *out is NULL if the field is absent or null. Borrowed from json. */
ZINC_MUST_CHECK zinc_status zn_field_string(const json_t *json, const char *where, const char *key,
                                            const char **out, size_t *n);
/** "type" of a component. */
ZINC_MUST_CHECK zinc_status zn_field_type(const json_t *json, const char *where, const char **out);
ZINC_MUST_CHECK zinc_status zn_field_array(const json_t *json, const char *where, const char *key,
                                           const json_t **out);
ZINC_MUST_CHECK zinc_status zn_strndup(const char *text, size_t n, char **out);

#endif
