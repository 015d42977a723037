/* SPDX-License-Identifier: Apache-2.0 */
/* config_internal.h — what the files of config/ share.
 *
 *   bytes -> zn_node tree (reader.c, node.c) -> one zn_slot per row of the key table (bind.c)
 *         -> slots filled from arguments (override.c) -> second set of slots, resolved (resolve.c)
 *         -> zn_config_values (store.c), JSON and tables (print.c)
 * The slots that were read are kept as they are, so a configuration can be resolved again with
 * better facts. Layer: config. */
#ifndef ZN_CONFIG_CONFIG_INTERNAL_H
#define ZN_CONFIG_CONFIG_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

#define ZN_PATH_BYTES 1024

/* ---- the text ---- */

typedef enum zn_node_kind {
    ZN_NODE_NULL,
    ZN_NODE_BOOL,
    ZN_NODE_NUMBER,
    ZN_NODE_STRING,
    ZN_NODE_ARRAY,
    ZN_NODE_OBJECT,
} zn_node_kind;

/* Lines and columns count from 1, columns in code points. */
typedef struct zn_node {
    zn_node_kind kind;
    int line, column;
    char *key; /* as a member of an object; NULL otherwise */
    int key_line, key_column;
    char *text; /* STRING: unescaped; NUMBER: as written */
    double number;
    bool flag;
    bool integral; /* `integer` holds the number exactly */
    int64_t integer;
    struct zn_node *first, *next; /* children in file order */
} zn_node;

typedef struct zn_syntax_error {
    int line, column;
    char message[240];
    const char *hint; /* static; NULL: none */
} zn_syntax_error;

/** Read n bytes into a tree; an empty text gives an empty object. Release with zn_node_destroy.
 *  Errors: E_FORMAT with *error filled; E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_reader_parse(const char *text, size_t n, zn_syntax_error *error,
                                            zn_node **out);
void zn_node_destroy(zn_node *node);
/** The member `key` of an object, or NULL. */
const zn_node *zn_node_get(const zn_node *object, const char *key);

/** Bytes at p that are a number as JSON writes it; 0: none. */
size_t zn_number_length(const char *p, const char *end);
/** Make a node the number that n bytes of `text`, as zn_number_length found them, spell. */
ZINC_MUST_CHECK zinc_status zn_node_set_number(zn_node *node, const char *text, size_t n);

/** The same tree from YAML: one document of mappings, lists and plain values. Anchors, aliases and
 *  tags are refused. Errors: as zn_reader_parse. */
ZINC_MUST_CHECK zinc_status zn_yaml_parse(const char *text, size_t n, zn_syntax_error *error,
                                          zn_node **out);

/** Append a tree as strict JSON, indented; `depth` is where it stands. */
ZINC_MUST_CHECK zinc_status zn_node_append(const zn_node *node, int depth, zn_buf *out);

/* ---- the table ---- */

typedef enum zn_key_type {
    ZN_KEY_BOOL,
    ZN_KEY_INT,
    ZN_KEY_REAL,
    ZN_KEY_TEXT,
    ZN_KEY_CHOICE, /* one of `words` */
    ZN_KEY_PAIR,   /* list of two numbers */
    ZN_KEY_ANY,    /* not looked into */
    ZN_KEY_BLOCK,  /* object whose keys are rows of the table */
    ZN_KEY_NAMES,  /* object whose keys are only checked against `words` (NULL: not at all) */
} zn_key_type;

typedef enum zn_key_status {
    ZN_KEY_HONOURED,
    ZN_KEY_ACCEPTED, /* checked, no effect: a note says why */
    ZN_KEY_REFUSED,  /* any value but the default is an error; NAMES: unless switched off */
    ZN_KEY_REMOVED,  /* as REFUSED; DeepSpeed 0.19.8 no longer has it */
    ZN_KEY_ALIAS,    /* another spelling of the key named in `reason` */
} zn_key_status;

enum {
    ZN_KEY_AUTO = 1,         /* "auto" is allowed */
    ZN_KEY_NULL = 2,         /* null is allowed and means absent */
    ZN_KEY_POSITIVE = 4,     /* min is exclusive */
    ZN_KEY_NO_CASE = 8,      /* CHOICE: upper and lower case are the same */
    ZN_KEY_INFINITY = 16,    /* a bare Infinity is allowed and means 0 (never) */
    ZN_KEY_BOOL_TO_CPU = 32, /* ALIAS: true means device "cpu" */
    ZN_KEY_BELOW_MAX = 64,   /* max is exclusive */
    ZN_KEY_NO_POINT = 128,   /* INT: 10.0 is refused, as DeepSpeed's scheduler does */
    ZN_KEY_FULFILLED = 256,  /* ACCEPTED: what another value asks for happens anyway; no note */
};

/* How a value lies in zn_config_values. */
typedef enum zn_store {
    ZN_STORE_NONE,
    ZN_STORE_BOOL,
    ZN_STORE_INT, /* int */
    ZN_STORE_I64,
    ZN_STORE_F64,
    ZN_STORE_TEXT,
    ZN_STORE_TRI,    /* int: -1 not given, 0, 1 */
    ZN_STORE_CHOICE, /* an enum whose values are the places of the row's words */
    ZN_STORE_BETAS,
    ZN_STORE_COMM_DTYPE,
    ZN_STORE_ACCUM_DTYPE,
} zn_store;

typedef struct zn_key {
    const char *path;
    zn_key_type type;
    zn_key_status status;
    unsigned flags;
    double min, max;          /* numbers; max 0: no limit */
    const char *default_text; /* as JSON; NULL: none. NAMES: the key inside that switches it on */
    zn_store store;
    size_t offset;      /* in zn_config_values */
    const char *words;  /* space-separated: choices, or names inside */
    const char *only;   /* optimizers or schedulers that have this parameter; NULL: all */
    const char *reason; /* accepted, refused: why; alias: the real key */
    const char *doc;
} zn_key;

extern const zn_key zn_keys[];
extern const int zn_n_keys;

/** Index of a row, or -1. */
int zn_key_find(const char *path);
/** Index of the row `name` (n bytes) directly inside block `parent` ("" for the top), or -1. */
int zn_key_find_in(const char *parent, const char *name, size_t n);
/** Whether row i lies directly inside block `parent`; *name is its last part. */
bool zn_key_is_in(int i, const char *parent, const char **name);
/** Whether a number is finite and inside the row's bounds. */
bool zn_key_allows(const zn_key *key, double x);
/** Whether `word` is one of a space-separated list. */
bool zn_word_in(const char *words, const char *word, bool no_case);
/** Split a space-separated list; word i in *out (n bytes), false past the end. */
bool zn_word_at(const char *words, int i, const char **out, size_t *n);
/** Call zn_nearest_name on a space-separated list; the result is written to buf, or NULL. */
const char *zn_nearest_word(const char *name, const char *words, char *buf, size_t n_buf);
/** Type and bounds in words: "an integer >= 1". */
void zn_key_type_text(const zn_key *key, char *buf, size_t n);

/* ---- values ---- */

typedef enum zn_slot_state { ZN_SLOT_ABSENT, ZN_SLOT_AUTO, ZN_SLOT_GIVEN } zn_slot_state;
typedef enum zn_slot_source {
    ZN_FROM_DEFAULT,
    ZN_FROM_FILE,
    ZN_FROM_ARGUMENT,
    ZN_FROM_AUTO, /* computed */
} zn_slot_source;

typedef struct zn_slot {
    zn_slot_state state;
    zn_slot_source source;
    int line, column;     /* in the file; 0: not there */
    const char *file;     /* borrowed from the configuration */
    int alias;            /* row of the spelling that was used, -1: its own */
    const char *argument; /* name, static */
    const char *why;      /* FROM_AUTO, static */
    bool flag;
    int64_t integer; /* INT */
    double number;   /* INT and REAL */
    double pair[2];
    char *text;   /* TEXT and CHOICE; owned */
    char *origin; /* resolved slots only; owned */
} zn_slot;

typedef struct zn_issue {
    char *path, *message, *hint, *line_text; /* owned; hint may be NULL */
    int line, column;
} zn_issue;

struct zn_config {
    const char *name; /* of the file that is being read, or was read last, for messages */
    char *names[2];   /* owned: a file, and the ds_config.json that goes with a YAML */
    bool is_yaml;     /* names[0] is an accelerate YAML */
    bool in_yaml;     /* it is being bound */
    bool is_resolved; /* the file is what `zinc config check --json` prints */
    zn_node *root;
    zn_slot *slots;    /* [zn_n_keys] as read and filled by arguments */
    zn_slot *resolved; /* [zn_n_keys] */
    zn_issue *errors;
    int n_errors, n_read_errors; /* the latter: before zn_config_resolve */
    char **notes;
    int n_notes, n_read_notes;
    double warmup_steps, warmup_ratio; /* arguments; NaN: not given */
    int64_t max_steps;                 /* argument; 0: not given */
    double n_epochs;                   /* argument num_train_epochs; NaN: not given */
    zn_config_values values;
};

/** Add one error; line 0: no place in the file. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_config_add_error(zn_config *config, const char *path, int line,
                                                int column, const char *hint, const char *format,
                                                ...) __attribute__((format(printf, 6, 7)));
/** Add a note unless it is there already. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_config_add_note(zn_config *config, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** E_CONFIG with the first error as its message, or OK if there is none. */
ZINC_MUST_CHECK zinc_status zn_config_conclude(const zn_config *config);

/** The row of a name in a block, or -1. accelerate takes names of fsdp_config without their prefix
 *  too. */
int zn_config_find_row(const char *parent, const char *name);
/** Tree to slots. Only E_NOMEM fails; errors of the file are collected. */
ZINC_MUST_CHECK zinc_status zn_config_bind(zn_config *config);
/** The same for the tree of an accelerate YAML, whose top is the block "accelerate". */
ZINC_MUST_CHECK zinc_status zn_config_bind_accelerate(zn_config *config, const zn_node *root);
/** Move what the block "accelerate" says to the keys that mean it here, with their places; find
 *  contradictions. has_file: a ds_config.json has been read too. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_accelerate_translate(zn_config *config, bool has_file);
/** What the slots of fsdp_config mean for the keys of this table. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_accelerate_translate_fsdp(zn_config *config);
/** Bind a tree as the block fsdp_config of a YAML. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_config_bind_fsdp(zn_config *config, const zn_node *root);
/** Give words and numbers of a YAML the type of their row, as accelerate's own conversions do. */
ZINC_MUST_CHECK zinc_status zn_accelerate_soften(zn_node *block, const char *parent);
/** Check a node against a row and put its value into *slot; an error of the file is collected under
 *  `path` and leaves the slot absent. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_config_bind_value(zn_config *config, const zn_key *key,
                                                 const zn_node *node, const char *path,
                                                 zn_slot *slot);
/** Whether a slot's value is the row's default. */
bool zn_slot_is_default(const zn_key *key, const zn_slot *slot);
/** Whether two given slots of a row have the same value; a NaN of `value` stands for any. */
bool zn_slot_same(const zn_key *key, const zn_slot *slot, const zn_slot *value);
void zn_slot_fini(zn_slot *slot);
/** Copy a slot, its text too. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_slot_copy(const zn_slot *from, zn_slot *to);
/** Value as people write it, for messages and tables. */
ZINC_MUST_CHECK zinc_status zn_slot_append(const zn_key *key, const zn_slot *slot, zn_buf *out);
/** "ds.json:7", "argument --x", "default" or "auto: why". Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_slot_origin(const zn_slot *slot, char **out);

/** The slot of a key that is in the table, as read or resolved. */
zn_slot *zn_slot_at(zn_slot *slots, const char *path);

/** Whether the file's optimizer or scheduler has the parameter of this row. */
bool zn_config_applies(const zn_config *config, const zn_key *key);
/** An empty configuration called `name`. Release with zn_config_destroy. */
ZINC_MUST_CHECK zinc_status zn_config_create(const char *name, zn_config **out);
/** Hand over what has been read, or release it if reading itself failed: the end of every load. */
ZINC_MUST_CHECK zinc_status zn_config_finish(zn_config *config, zinc_status status,
                                             zn_config **out);
/** A file's text; one without any is refused, with the `smallest` that would do. */
ZINC_MUST_CHECK zinc_status zn_config_read_file(const char *path, const char *smallest,
                                                zn_buf *out);
/** Put an argument's value into a slot that the file does not fix; `text` is the value as typed. A
 *  contradiction is collected. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_config_fill(zn_config *config, zn_slot *slots, const char *path,
                                           const zn_slot *value, const char *text);
/** Drop resolved values, and errors and notes that came with them. */
void zn_config_forget_resolved(zn_config *config);

/** Fill *slot with the row's default if it has one. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_slot_set_default(const zn_key *key, zn_slot *slot);
/** Write every slot to its place in values; texts are borrowed from the slots. */
void zn_config_store(const zn_slot *slots, zn_config_values *values);

/** Resolve the batch triad in config->resolved; errors are collected. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_config_resolve_batch(zn_config *config, int64_t world_size,
                                                    int64_t default_micro_batch);
/** What fsdp.sharding_strategy means for the stage, the shards and the schedule, in
 *  config->resolved; contradictions are collected. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_config_resolve_strategy(zn_config *config,
                                                       const zn_config_facts *facts);
/** Rules that span keys, after every value is known; errors are collected. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_config_check_rules(zn_config *config);

#endif
