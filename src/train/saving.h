/* SPDX-License-Identifier: Apache-2.0 */
/* saving.h — checkpoints of a running training: taken at a step, written behind its back.
 *
 *   save(step)   all ranks: copy own ranges to a host buffer; a thread a rank starts to write
 *   ready        whether this rank's thread has ended; ranks exchange it with their batch sizes
 *   finish       all ranks: when every thread has ended, rank 0 publishes the folder
 * At most one save is under way: a second waits for the first. Where the copy does not fit, a rank
 * writes at once and training waits. A save that fails removes its .tmp folder and is reported;
 * the run goes on unless --save_failure stop. Layer: train. */
#ifndef ZN_TRAIN_SAVING_H
#define ZN_TRAIN_SAVING_H

#include "train/nodes.h"

typedef struct zn_saver zn_saver;

/** Not collective; nothing is allocated before the first save. All is borrowed until the destroy.
 *  nodes: NULL where all ranks see one folder. */
ZINC_MUST_CHECK zinc_status zn_saver_create(const zn_train_setup *setup, zn_device *dev,
                                            zn_engine *engine, const zn_nodes *nodes,
                                            zn_saver **out);
/** Waits for a thread that still writes; what was not finished is left to the next start. NULL is
 *  fine. Not collective. */
void zn_saver_destroy(zn_saver *saver);

/** Whether a checkpoint is due after `step` steps: every --save_steps, and at the end of a run that
 *  was long enough for one. */
bool zn_saver_due(const zn_train_setup *setup, int64_t step);
/** Take a checkpoint of the state after `step` steps. Collective. Errors: of the ranks' exchange;
 *  of the save itself only with --save_failure stop. */
ZINC_MUST_CHECK zinc_status zn_saver_save(zn_saver *saver, int64_t step);
/** Whether this rank has a save under way that is written. Not collective. */
bool zn_saver_ready(const zn_saver *saver);
/** Wait for the save under way, if any, and publish it. Collective. Errors: as zn_saver_save. */
ZINC_MUST_CHECK zinc_status zn_saver_finish(zn_saver *saver);
/** Step of the newest checkpoint of this process, or -1. */
int64_t zn_saver_last(const zn_saver *saver);

#endif
