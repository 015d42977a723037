/* SPDX-License-Identifier: Apache-2.0 */
/* ds_layout.h — DeepSpeed's checkpoints as a list of whole fp32 weights, read by range.
 *
 *   stage 0    mp_rank_00_model_states.pt: "module" holds the weights; of 16-bit ones the fp32
 *              masters are with the optimizer (ds_stage0.c)
 *   stage 1, 2 every rank's optim_states.pt holds a slice of one flat fp32 buffer a parameter
 *              group: the ranks' slices back to back are the group's parameters back to back
 *   stage 3    every parameter is cut into W pieces of ceil(n / W) elements on its own; a rank's
 *              flat groups back to back are its pieces of all parameters back to back
 * Frozen parameters and buffers come from the model_states files; shared ones repeat their
 * original. A weight is a row of pieces that point into the mapped files; nothing is gathered in
 * memory. Sources: zero_to_fp32.py and the file layout of DeepSpeed 0.19.8. Layer: ckpt. */
#ifndef ZN_CKPT_DS_LAYOUT_H
#define ZN_CKPT_DS_LAYOUT_H

#include <stdbool.h>

#include "ckpt/safetensors.h"
#include "optim/loss_scale.h"

typedef struct zn_ds_checkpoint zn_ds_checkpoint;

/** Whether a folder looks like one of DeepSpeed's: it, or the folder that its `latest` names, holds
 *  *_model_states.pt. */
bool zn_ds_is_checkpoint(const char *path);

/** Open a checkpoint: the folder that holds `latest`, or one tag's folder. Not collective.
 *  Errors: E_IO (files missing; says which), E_FORMAT, E_UNSUPPORTED (tensor or expert parallel).
 */
ZINC_MUST_CHECK zinc_status zn_ds_open(const char *path, zn_ds_checkpoint **out);
void zn_ds_close(zn_ds_checkpoint *ckpt);

int zn_ds_n_ranks(const zn_ds_checkpoint *ckpt);
int zn_ds_stage(const zn_ds_checkpoint *ckpt);
int zn_ds_n(const zn_ds_checkpoint *ckpt);
/** Name and shape of weight i; dtype is F32. Names are borrowed until the close. */
zn_tensor_plan zn_ds_at(const zn_ds_checkpoint *ckpt, int i);
int64_t zn_ds_n_elems(const zn_ds_checkpoint *ckpt, int i);
/** Whether weight i only repeats another one (a tied head). */
bool zn_ds_is_alias(const zn_ds_checkpoint *ckpt, int i);
/** Elements [offset, offset + n) of weight i as fp32. */
ZINC_MUST_CHECK zinc_status zn_ds_read(const zn_ds_checkpoint *ckpt, int i, int64_t offset,
                                       int64_t n, float *out);

/* ---- optimizer state (ds_state.c) ---- */

/** Steps done and how many of them were skipped; samples read. -1 where the file does not say. */
void zn_ds_progress(const zn_ds_checkpoint *ckpt, int64_t *steps, int64_t *skipped,
                    int64_t *samples);
/** The state of fp16's loss scale; false: there is none. */
bool zn_ds_scaler(const zn_ds_checkpoint *ckpt, zn_loss_scaler *out);
/** Elements [offset, offset + n) of the state called `state` ("exp_avg") of weight i. Every rank's
 *  state lies as its fp32 groups do. Errors: E_FORMAT if there is none. */
ZINC_MUST_CHECK zinc_status zn_ds_read_state(const zn_ds_checkpoint *ckpt, int i, const char *state,
                                             int64_t offset, int64_t n, float *out);

#endif
