/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h — Zinc's own checkpoints: everything that a run needs to go on, at any number of
 * ranks and any stage. docs/formats.md has the format byte by byte.
 *
 *   OUTPUT/checkpoint-40/    shard-00000-of-00002.safetensors   what rank 0 kept: fp32 ranges
 *                            shard-00000-of-00002.json          which ranges, where, checksums
 *                            shard-00001-…                      rank 1
 *                            config.json, tokenizer files
 *                            manifest.json                      written last; without it: nothing
 *   OUTPUT/latest            the name of the newest complete one
 *
 * Writing: every rank a zn_part in OUTPUT/checkpoint-40.tmp, then one rank zn_ckpt_publish. A
 * folder without the .tmp is complete. Nothing here is collective; ranks agree above.
 * Reading order: checkpoint.h, checkpoint_part.c, checkpoint_manifest.c, checkpoint_read.c,
 * checkpoint_dir.c. Layer: ckpt (may use optim, tensor, base). */
#ifndef ZN_CKPT_CHECKPOINT_H
#define ZN_CKPT_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "ckpt/bulk_file.h"
#include "ckpt/safetensors.h"
#include "optim/loss_scale.h"
#include "optim/optim.h"
#include "tensor/param.h"

#define ZN_CKPT_VERSION 1
#define ZN_CKPT_MANIFEST "manifest.json"
#define ZN_CKPT_NAME_BYTES 96
#define ZN_CKPT_NODE_BYTES 64

/* What the run was at. Zero-initialise; release with zn_ckpt_meta_fini. */
typedef struct zn_ckpt_meta {
    int64_t step;                 /* optimizer steps done, skipped ones included */
    int64_t n_applied, n_skipped; /* step = n_applied + n_skipped */
    double epoch;
    int64_t n_samples; /* of the global order that have been read: the next position */
    uint64_t seed;
    bool shuffle;
    int64_t n_rows, n_tokens; /* of the training set */
    int64_t train_batch_size; /* samples of an optimizer step */
    zn_loss_scaler scaler;
    char optimizer[32];
    int n_states;
    char state_names[ZN_OPTIM_MAX_STATES][32];
    /* Of the run that wrote it; nothing depends on them. */
    int stage, n_ranks;
    char dtype[16];
    uint64_t model_hash, tokenizer_hash; /* of config.json and tokenizer.json; 0: none */
    uint64_t run_id;                     /* the same in all checkpoints of a run and its resumes */
    int64_t created_ns;                  /* since 1970 */
    json_t *schedule, *hyper, *config;   /* objects, to be compared as a whole; owned */
} zn_ckpt_meta;

void zn_ckpt_meta_fini(zn_ckpt_meta *meta);

/* One file of a checkpoint; ranks exchange it as bytes. */
typedef struct zn_ckpt_file {
    char name[ZN_CKPT_NAME_BYTES]; /* without the folder */
    char node[ZN_CKPT_NODE_BYTES]; /* whose folder has it; "": all that the manifest is in */
    int64_t n_bytes;
    uint64_t checksum;
} zn_ckpt_file;

/** Size and checksum of DIR/NAME. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_ckpt_file_of(const char *dir, const char *name, zn_ckpt_file *out);

/* ---- writing: one rank's part ---- */

#define ZN_CKPT_MAX_RANGE ((int64_t)1 << 20) /* elements: what one checksum covers */
#define ZN_CKPT_MASTER (-1)                  /* `what` of the weights; states are 0, 1, … */

/* Elements [first, first + count) of one quantity of one parameter. */
typedef struct zn_ckpt_range {
    int param, what;
    int64_t first, count;
    int64_t offset;    /* byte in the part's .safetensors */
    uint64_t checksum; /* of its bytes */
} zn_ckpt_range;

typedef struct zn_part_params {
    const char *dir; /* the .tmp folder; exists */
    int rank, n_ranks;
    const zn_param_list *list;      /* names; borrowed until the destroy, as the next two */
    const char *const *state_names; /* by `what` */
    zn_ckpt_range *ranges;          /* [n_ranges] in the order they will be written; offset and
                                     * checksum are filled in */
    int n_ranges;
    zn_bulk_progress_fn progress; /* or NULL */
    void *ctx;
} zn_part_params;

typedef struct zn_part zn_part;

/** Create the part's .safetensors with its header, at full length (bulk_file.h: that is all that
 *  is held of its data). Errors: E_IO (a full disk shows here). Destroy with zn_part_destroy, which
 *  removes nothing. */
ZINC_MUST_CHECK zinc_status zn_part_create(const zn_part_params *params, zn_part **out);
/** The next n elements, ranges back to back; calls may cut anywhere. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_part_write(zn_part *part, const float *values, int64_t n);
/** Instead: all n elements at once, from memory that stays as it is until zn_part_finish or
 * _destroy and can be read up to a multiple of ZN_BULK_ALIGN bytes. Nothing is copied; the
 * checksums are taken while the writes are under way. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_part_write_kept(zn_part *part, const float *values, int64_t n);
/** After the last element: flush to disk, write the .json. files[0] is the .safetensors, files[1]
 *  the .json. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_part_finish(zn_part *part, zn_ckpt_file files[2]);
void zn_part_destroy(zn_part *part);

/* ---- writing: the folder ---- */

typedef struct zn_publish_params {
    const char *output;        /* the run's folder; it holds checkpoint-STEP.tmp */
    const char *name;          /* of the checkpoint's folder; NULL: checkpoint-STEP */
    bool keep_latest;          /* `latest` stays what it is */
    const zn_ckpt_meta *meta;  /* of this step */
    const zn_param_list *list; /* names and shapes */
    const zn_ckpt_file *files; /* [n_files] all that is in the folder */
    int n_files;
} zn_publish_params;

/** Path of checkpoint-STEP, or of its .tmp, in `output`. Free with zn_free. */
ZINC_MUST_CHECK zinc_status zn_ckpt_path(const char *output, int64_t step, bool temporary,
                                         char **out);
/** Make an empty checkpoint-STEP.tmp; one that a broken run left is removed. */
ZINC_MUST_CHECK zinc_status zn_ckpt_begin(const char *output, int64_t step);
/** The same of a checkpoint with a name of its own; a replacement of it that was cut off is
 * finished first. *out is the path of OUTPUT/NAME.tmp; free with zn_free. Errors: E_INVALID if it
 * cannot be the name of a folder; E_IO. */
ZINC_MUST_CHECK zinc_status zn_ckpt_begin_named(const char *output, const char *name, char **out);
/** Size and checksum of the files beside the parts in the folder `dir`, added to files [max] from
 *  *n on. Errors: E_IO, also if there are more. */
ZINC_MUST_CHECK zinc_status zn_ckpt_other_files(const char *dir, zn_ckpt_file *files, int max,
                                                int *n);
/** Write the manifest, compare sizes, flush, rename to its final name (an older checkpoint of that
 *  step is replaced) and move `latest`. Errors: E_IO; what was there before is then still there. */
ZINC_MUST_CHECK zinc_status zn_ckpt_publish(const zn_publish_params *params);
/* The steps of zn_ckpt_publish, for folders of one checkpoint on several nodes: each node seals its
 * own with the one manifest; when all have, each reveals it; when all have, each moves `latest`. So
 * whatever is cut off, what `latest` names on any node is there on all. */
/** The text of the manifest. Free with zn_buf_fini. */
ZINC_MUST_CHECK zinc_status zn_manifest_build(const zn_publish_params *params, zn_buf *out);
/** Write the manifest into the temporary folder, compare the sizes of what is there, flush. */
ZINC_MUST_CHECK zinc_status zn_ckpt_seal(const zn_publish_params *params, const zn_buf *manifest);
/** Give the sealed folder its name. */
ZINC_MUST_CHECK zinc_status zn_ckpt_reveal(const zn_publish_params *params);
/** Let `latest` name it, if it is to. */
ZINC_MUST_CHECK zinc_status zn_ckpt_set_latest(const zn_publish_params *params);

/** Remove checkpoint-STEP.tmp; trouble is logged. */
void zn_ckpt_discard(const char *output, int64_t step);
/** The same of the folder `path` that zn_ckpt_begin_named made. */
void zn_ckpt_discard_named(const char *path);
/** Remove what runs that were killed left in `output`: .tmp folders with parts of ours in them,
 *  and finish a replacement that was cut off. Trouble is logged. */
void zn_ckpt_clean(const char *output);

/* ---- reading ---- */

typedef struct zn_ckpt zn_ckpt;

/** Whether a folder is one of Zinc's checkpoints: it has a manifest of ours. */
bool zn_ckpt_is(const char *path);
/** Open checkpoint folder `path`: manifest, sizes, parts, and whether every element is there. No
 *  data are read yet. Errors: E_IO (missing, short), E_FORMAT, E_UNSUPPORTED (newer version);
 *  each names the file. One thread at a time. */
ZINC_MUST_CHECK zinc_status zn_ckpt_open(const char *path, zn_ckpt **out);
/** The same from the folders of several nodes; a file may be in any of them. Errors also if they
 * are not of one checkpoint; a file that is in none is named with its node. */
ZINC_MUST_CHECK zinc_status zn_ckpt_open_folders(const char *const *paths, int n, zn_ckpt **out);
void zn_ckpt_close(zn_ckpt *ckpt);
const zn_ckpt_meta *zn_ckpt_get_meta(const zn_ckpt *ckpt);
const char *zn_ckpt_folder(const zn_ckpt *ckpt);
int zn_ckpt_n(const zn_ckpt *ckpt);
/** Name and shape of parameter i; dtype is F32. Names are borrowed until the close. */
zn_tensor_plan zn_ckpt_at(const zn_ckpt *ckpt, int i);
int64_t zn_ckpt_n_elems(const zn_ckpt *ckpt, int i);
/** Index of the parameter called `name`, or -1. */
int zn_ckpt_find(const zn_ckpt *ckpt, const char *name);
/** Elements [offset, offset + n) of quantity `what` of parameter i. Each stored range that is
 *  touched is read whole and held against its checksum; the last one is kept. Errors: E_FORMAT and
 *  E_IO name file, parameter, bytes. */
ZINC_MUST_CHECK zinc_status zn_ckpt_read(zn_ckpt *ckpt, int i, int what, int64_t offset, int64_t n,
                                         float *out);
/** Read every byte of every file that is here (see zn_ckpt_elsewhere); problem() is called for each
 * thing that is wrong. *n_problems counts them. Errors: E_NOMEM; a checkpoint that cannot be opened
 * is a problem. */
ZINC_MUST_CHECK zinc_status zn_ckpt_verify(const char *path,
                                           void (*problem)(void *ctx, const char *text), void *ctx,
                                           int *n_problems);
/** How many of its files are not in this folder, because another node has written them. */
ZINC_MUST_CHECK zinc_status zn_ckpt_elsewhere(const char *path, int *n);
/** Only the manifest, checked against its own checksum, and that its files have their sizes. */
ZINC_MUST_CHECK zinc_status zn_ckpt_read_meta(const char *path, zn_ckpt_meta *out,
                                              int64_t *n_bytes);

/* ---- reading where each node has its own files (engine_ckpt.h does it) ---- */

/** What of a checkpoint is in the folder `path` of this node, by a manifest [n] that is given.
 * Files that are missing, or not those of the manifest, are absent. Next: supply absent
 * shard-*.json, zn_ckpt_index, want, supply, read. */
ZINC_MUST_CHECK zinc_status zn_ckpt_open_here(const char *path, const char *manifest, size_t n,
                                              zn_ckpt **out);
int zn_ckpt_n_files(const zn_ckpt *ckpt);
const zn_ckpt_file *zn_ckpt_file_at(const zn_ckpt *ckpt, int k);
/** Whether file k is one that loading reads, and which of the two. */
bool zn_ckpt_is_index(const zn_ckpt *ckpt, int k);
bool zn_ckpt_is_data(const zn_ckpt *ckpt, int k);
bool zn_ckpt_has(const zn_ckpt *ckpt, int k);
/** n bytes from `offset` on of a file that is here. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_ckpt_bytes(zn_ckpt *ckpt, int k, int64_t offset, size_t n,
                                          void *out);
/** Take what lies in the file `fd` for file k. Errors: E_IO, E_FORMAT (not its checksum). */
ZINC_MUST_CHECK zinc_status zn_ckpt_supply(zn_ckpt *ckpt, int k, int fd);
/** Read the ranges, once all shard-*.json are there. Errors: E_FORMAT. */
ZINC_MUST_CHECK zinc_status zn_ckpt_index(zn_ckpt *ckpt);
/** Note the files that zn_ckpt_read of the same range would read. Errors: as there. */
ZINC_MUST_CHECK zinc_status zn_ckpt_want(zn_ckpt *ckpt, int i, int what, int64_t offset, int64_t n);
/** Whether file k was wanted and is absent. */
bool zn_ckpt_wants(const zn_ckpt *ckpt, int k);
/** Why a file that is here was not taken, or "". */
const char *zn_ckpt_trouble(const zn_ckpt *ckpt);

/* ---- the folders of a run ---- */

typedef struct zn_ckpt_entry {
    char *path;        /* OUTPUT/checkpoint-N */
    int64_t step;      /* by its name */
    int64_t n_bytes;   /* of all files; 0 if not complete */
    zn_ckpt_meta meta; /* zeroed if not complete */
    char *trouble;     /* NULL: complete (sizes; zn_ckpt_verify reads) */
    bool ours;         /* has a manifest of ours, whole or not */
} zn_ckpt_entry;

/** Every folder checkpoint-N of `output`, oldest first by when it was made (those that are not
 *  complete come first). Free with zn_ckpt_list_free. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_ckpt_list(const char *output, zn_ckpt_entry **out, int *n);
void zn_ckpt_list_free(zn_ckpt_entry *entries, int n);
/** What OUTPUT/latest names, as a path. Errors: E_IO if there is none, E_FORMAT. */
ZINC_MUST_CHECK zinc_status zn_ckpt_latest(const char *output, char **out);
/** Delete complete checkpoints (of run `run_id`; 0: of any) but the newest `keep` (>= 1). What
 *  `latest` names stays, and so does every file that no manifest lists. removed() hears of each;
 *  NULL: none. */
ZINC_MUST_CHECK zinc_status zn_ckpt_prune(const char *output, int64_t keep, uint64_t run_id,
                                          void (*removed)(void *ctx, const char *path), void *ctx);

#endif
