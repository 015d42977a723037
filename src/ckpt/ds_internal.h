/* SPDX-License-Identifier: Apache-2.0 */
/* ds_internal.h — between the files of a DeepSpeed checkpoint (ds_files.c) and its weights
 * (ds_layout.c, ds_stage0.c) and states (ds_state.c). */
#ifndef ZN_CKPT_DS_INTERNAL_H
#define ZN_CKPT_DS_INTERNAL_H

#include "ckpt/ds_layout.h"
#include "ckpt/torch_file.h"

/* All .pt files of one tag. Zero-initialise; release with zn_ds_files_close. */
typedef struct zn_ds_files {
    char *dir;
    zn_torch_file **models; /* [n_models]: one (stages 0-2) or one a rank (stage 3) */
    int n_models;
    zn_torch_file **optims; /* [n_ranks]; none in stage 0 */
    int n_ranks;
} zn_ds_files;

/** Find and open every file. Errors as zn_ds_open. */
ZINC_MUST_CHECK zinc_status zn_ds_files_open(const char *path, zn_ds_files *out);
void zn_ds_files_close(zn_ds_files *files);

/* Consecutive elements of a weight: n from element `offset` of a stored tensor. */
typedef struct zn_ds_piece {
    const zn_pickle_value *tensor;
    const char *path;
    int64_t offset, n;
} zn_ds_piece;

typedef struct zn_ds_weight {
    char *name;
    int n_dims;
    int64_t shape[ZN_MAX_DIMS];
    int64_t n_elems;
    zn_ds_piece *pieces; /* [n_pieces] in element order */
    int n_pieces;
    bool is_alias;
    const zn_pickle_value *states; /* stage 0: DICT of its states, or NULL */
    int64_t state_offset;          /* its first element in them */
} zn_ds_weight;

struct zn_ds_checkpoint {
    zn_ds_files files;
    int stage;
    zn_ds_weight *weights; /* [n_weights] */
    int n_weights;
};

/** Stage 0, after the weights of the module: which of them are copies, the fp32 masters of 16-bit
 *  ones, and where their optimizer states are. */
ZINC_MUST_CHECK zinc_status zn_ds_add_stage0(zn_ds_checkpoint *ckpt);

/** Value of an integer key of a DICT, or NULL. */
const zn_pickle_value *zn_ds_by_number(const zn_pickle_value *dict, int64_t key);

/** A member of a rank's optimizer_state_dict, or NULL. */
const zn_pickle_value *zn_ds_optim_get(const zn_ds_checkpoint *ckpt, int rank, const char *key);

/** E_INVALID, naming the weight, unless it has the elements [offset, offset + n). */
ZINC_MUST_CHECK zinc_status zn_ds_check_range(const zn_ds_weight *weight, int64_t offset,
                                              int64_t n);

#endif
