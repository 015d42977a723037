/* SPDX-License-Identifier: Apache-2.0 */
/* nodes.h — output folders of a run whose ranks are processes: which ranks see the same one.
 *
 * One folder on a shared file system, or one on each node. Found by looking: every rank puts a file
 * into its folder, and looks for those of the others. Layer: train. */
#ifndef ZN_TRAIN_NODES_H
#define ZN_TRAIN_NODES_H

#include "train/train_internal.h"

typedef struct zn_nodes {
    int n_folders;
    bool first;                        /* this rank is the lowest of its folder, and keeps it */
    char (*names)[ZN_CKPT_NODE_BYTES]; /* [n_ranks] each rank's host */
} zn_nodes;

/** Rank 0 takes the output folder, or finds what to go on from, as zn_train_begin; all others learn
 *  it. Then the folders are found, and each is taken by its lowest rank. Collective. Errors: as
 *  zn_train_begin. Release with zn_nodes_fini. */
ZINC_MUST_CHECK zinc_status zn_train_begin_processes(zn_train_setup *setup, zn_comm *comm,
                                                     zn_nodes *out);
void zn_nodes_fini(zn_nodes *nodes);

#endif
