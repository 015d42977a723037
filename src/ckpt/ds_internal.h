/* SPDX-License-Identifier: Apache-2.0 */
/* ds_internal.h — between the files of a DeepSpeed checkpoint (ds_files.c) and its weights
 * (ds_layout.c). */
#ifndef ZN_CKPT_DS_INTERNAL_H
#define ZN_CKPT_DS_INTERNAL_H

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

#endif
