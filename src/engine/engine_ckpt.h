/* SPDX-License-Identifier: Apache-2.0 */
/* engine_ckpt.h — an engine's state in and out of checkpoints: Zinc's, and DeepSpeed's (in).
 *
 * What a rank saves is the ranges that zn_zero_visit shows it, in that order: masters, then each
 * state. Nothing is gathered. Loading asks only for what the rank keeps, whatever wrote it.
 * Layer: engine. */
#ifndef ZN_ENGINE_ENGINE_CKPT_H
#define ZN_ENGINE_ENGINE_CKPT_H

#include "ckpt/checkpoint.h"
#include "ckpt/ds_layout.h"
#include "engine/engine.h"

/* The ranges of one rank; they do not change while the engine lives. Set the first four, which are
 * borrowed, and zero-initialise the rest; release with zn_snapshot_fini. */
typedef struct zn_snapshot {
    zn_zero *zero;
    zn_engine *engine; /* of `zero`, for frozen parameters as they were read; NULL: as held */
    const zn_optim_ops *optim;
    const bool *left_out;  /* [n_specs] parameters that are not saved; NULL: none */
    zn_ckpt_range *ranges; /* [n_ranges] of at most ZN_CKPT_MAX_RANGE elements */
    int n_ranges;
    int64_t n_elems; /* of all ranges */
} zn_snapshot;

/** Find the ranges. Not collective. */
ZINC_MUST_CHECK zinc_status zn_snapshot_plan(zn_snapshot *snapshot);
void zn_snapshot_fini(zn_snapshot *snapshot);
/** Copy the values as they are now to out [n_elems]. Not collective. */
ZINC_MUST_CHECK zinc_status zn_snapshot_copy(const zn_snapshot *snapshot, float *out);
/** Write them to a part without a copy. Not collective. */
ZINC_MUST_CHECK zinc_status zn_snapshot_write(const zn_snapshot *snapshot, zn_part *part);

/** Masters and optimizer state from a checkpoint of any world size and stage. `list` is what `zero`
 *  was made of. Collective. Errors: E_CONFIG if parameters are missing, unknown or misshapen; as
 *  zn_ckpt_read. */
ZINC_MUST_CHECK zinc_status zn_zero_restore_ckpt(zn_zero *zero, zn_comm *comm,
                                                 const zn_param_list *list, zn_ckpt *ckpt);

/** The same of a trainer's engine, with the counts and the loss scale. Collective. */
ZINC_MUST_CHECK zinc_status zn_engine_restore(zn_engine *engine, zn_ckpt *ckpt);

/* ---- nodes that share no file system (engine_ckpt_nodes.c) ---- */

/** Open checkpoint folder `path` on every rank, where each node may have only the files it has
 *  written: the manifest is rank 0's, the shard-*.json that a node lacks are sent to it. Of data
 *  nothing is sent. `scratch` is a folder for what is sent; it is not seen there. Collective.
 *  Errors: E_IO names a file that no node has, and the node that wrote it; as zn_ckpt_open. */
ZINC_MUST_CHECK zinc_status zn_ckpt_open_nodes(zn_comm *comm, const char *path, const char *scratch,
                                               zn_ckpt **out);
/** Send to each node the data files that its ranks' shards need and that it lacks: none at the
 * world size and placing that wrote them (stage 0 needs all). They take disk until the close.
 * Collective. Errors: E_IO; as zn_engine_restore. */
ZINC_MUST_CHECK zinc_status zn_engine_fetch(zn_engine *engine, zn_ckpt *ckpt, const char *scratch);
/** Note in `ckpt` which files a restore of this rank would read. Collective. */
ZINC_MUST_CHECK zinc_status zn_engine_want(zn_engine *engine, zn_ckpt *ckpt);
/** Give root's text to all ranks; the others' is replaced. Collective. */
ZINC_MUST_CHECK zinc_status zn_comm_share_text(zn_comm *comm, int root, zn_buf *text);

/** The same from a DeepSpeed checkpoint of any world size and stage. `spec` is the model's.
 * Collective. Errors: E_CONFIG, E_FORMAT. */
ZINC_MUST_CHECK zinc_status zn_engine_restore_ds(zn_engine *engine, const zn_model_spec *spec,
                                                 const zn_optim_ops *optim,
                                                 const zn_ds_checkpoint *ckpt);

#endif
