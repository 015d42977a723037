/* SPDX-License-Identifier: Apache-2.0 */
/* run_state.h — what a run is, as its checkpoints say it, and whether another may go on from it.
 * Layer: train. */
#ifndef ZN_TRAIN_RUN_STATE_H
#define ZN_TRAIN_RUN_STATE_H

#include "ckpt/checkpoint.h"
#include "train/train_internal.h"

/** Everything of `out` that does not change from step to step (no counts, no scaler, no run).
 *  Release with zn_ckpt_meta_fini. Errors: E_IO, E_FORMAT (config.json), E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_run_state_fill(const zn_train_setup *setup, zn_ckpt_meta *out);

/** Whether the run of `setup` may go on from a checkpoint of `path`; what differs and does no harm
 *  is logged if `tell`. Errors: E_CONFIG names what differs, with both values. */
ZINC_MUST_CHECK zinc_status zn_run_state_check(const zn_train_setup *setup, const char *path,
                                               const zn_ckpt_meta *saved, bool tell);

#endif
