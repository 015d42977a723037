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

ZINC_MUST_CHECK zinc_status zn_manifest_write(const zn_publish_params *params, const char *dir,
                                              int64_t *n_bytes);
/** Read DIR/manifest.json. Errors: E_IO, E_FORMAT, E_UNSUPPORTED. */
ZINC_MUST_CHECK zinc_status zn_manifest_read(const char *dir, zn_manifest *out);
/** Every listed file exists and has its size. Errors: E_IO, E_FORMAT name the first that is not. */
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
    int file; /* index into the part files */
    bool checked;
} zn_stored;

typedef struct zn_part_file {
    char *path;
    zn_map map;
} zn_part_file;

struct zn_ckpt {
    char *dir;
    zn_manifest manifest;
    zn_part_file *parts; /* [n_parts] the .safetensors files */
    int n_parts;
    zn_stored *stored; /* [n_stored] by param, what, first */
    int n_stored;
};

/** "master" or the name of a state, for messages. */
const char *zn_ckpt_what(const zn_ckpt *ckpt, int what);
/** Hold one stored range against its checksum. */
ZINC_MUST_CHECK zinc_status zn_ckpt_check_range(zn_ckpt *ckpt, zn_stored *s);

#endif
