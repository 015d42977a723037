/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_internal.h — between the files of Zinc's checkpoints. Layer: ckpt. */
#ifndef ZN_CKPT_CHECKPOINT_INTERNAL_H
#define ZN_CKPT_CHECKPOINT_INTERNAL_H

#include "base/fs.h"
#include "ckpt/checkpoint.h"

#define ZN_CKPT_FORMAT "zinc-checkpoint"
#define ZN_CKPT_PART_FORMAT "zinc-checkpoint-part"
#define ZN_CKPT_MAX_JSON_BYTES ((size_t)1 << 30)

/* A manifest as it was read. Zero-initialise; release with zn_manifest_fini. */
typedef struct zn_manifest {
    char *path;
    zn_ckpt_meta meta;
    zn_tensor_plan *params; /* [n_params]; names borrowed from `root` */
    int n_params;
    zn_ckpt_file *files; /* [n_files] */
    int n_files;
    json_t *root;
} zn_manifest;

/** The members of a manifest; its own checksum is not looked at (the fuzz target has none). `path`
 *  names it. Errors: E_FORMAT, E_UNSUPPORTED. */
ZINC_MUST_CHECK zinc_status zn_manifest_parse(const char *text, size_t n, const char *path,
                                              zn_manifest *out);
/** The same, and the checksum. */
ZINC_MUST_CHECK zinc_status zn_manifest_take(const char *text, size_t n, const char *path,
                                             zn_manifest *out);
/** Read DIR/manifest.json. Errors: E_IO, E_FORMAT, E_UNSUPPORTED. */
ZINC_MUST_CHECK zinc_status zn_manifest_read(const char *dir, zn_manifest *out);
/** Every listed file exists and has its size; one that a node has may be missing here. Errors:
 * E_IO, E_FORMAT name the first that is not. */
ZINC_MUST_CHECK zinc_status zn_manifest_check_sizes(const char *dir, const zn_manifest *manifest);
void zn_manifest_fini(zn_manifest *manifest);

/* Members of a JSON object that must be there; `where` names the file. */
ZINC_MUST_CHECK zinc_status zn_member_int(const json_t *object, const char *key, const char *where,
                                          int64_t *out);
ZINC_MUST_CHECK zinc_status zn_member_text(const json_t *object, const char *key, const char *where,
                                           const char **out);
/** 16 hexadecimal digits. */
ZINC_MUST_CHECK zinc_status zn_member_hex(const json_t *object, const char *key, const char *where,
                                          uint64_t *out);

/** Whether `name` may name a file inside a checkpoint: no folder, not hidden. */
bool zn_ckpt_plain_name(const char *name);

/* The stored ranges of one checkpoint, with what they lie in. */
typedef struct zn_stored {
    zn_ckpt_range r;
    int file; /* of the manifest */
} zn_stored;

/* Where a file of the manifest is. */
typedef struct zn_found_file {
    char *path;     /* NULL: absent */
    int descriptor; /* + 1; 0: not open yet */
    bool wanted;
} zn_found_file;

struct zn_ckpt {
    char *dir;
    zn_manifest manifest;
    zn_found_file *found; /* [manifest.n_files] */
    zn_stored *stored;    /* [n_stored] by param, what, first */
    int n_stored;
    float *range;     /* [ZN_CKPT_MAX_RANGE] values of stored range `in_range`, or NULL */
    int in_range;     /* -1: none */
    bool partial;     /* some shard-*.json may be absent: not everything need be there */
    zn_error trouble; /* of a file that was not taken */
};

/** What is in the folder `path` alone, whatever is missing because another node has it. For looking
 *  at, not for loading. */
ZINC_MUST_CHECK zinc_status zn_ckpt_open_partial(const char *path, zn_ckpt **out);
/** Add the ranges of a shard-*.json; `where` names it. Errors: E_FORMAT. */
ZINC_MUST_CHECK zinc_status zn_ckpt_add_ranges(zn_ckpt *ckpt, const char *text, size_t n,
                                               const char *where);

/** After the last of them: sort, and see that every element is there once. Errors: E_FORMAT. */
ZINC_MUST_CHECK zinc_status zn_ckpt_arrange(zn_ckpt *ckpt);

/** "master" or the name of a state, for messages. */
const char *zn_ckpt_what(const zn_ckpt *ckpt, int what);
/** Read stored range `at` and hold it against its checksum. Errors: as zn_ckpt_read. */
ZINC_MUST_CHECK zinc_status zn_ckpt_check_range(zn_ckpt *ckpt, int at);

#endif
