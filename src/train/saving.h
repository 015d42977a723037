/* SPDX-License-Identifier: Apache-2.0 */
/* saving.h — checkpoints of a running training: taken at a step, written behind its back.
 *
 *   expect       a rank whose step ends in a save: its copy's memory is taken meanwhile
 *   save(step)   all ranks: copy own ranges to a host buffer; a thread a rank starts to write
 *   ready        whether this rank's thread has ended; ranks exchange it with their batch sizes
 *   advance      all ranks, when every thread has ended: rank 0's next one publishes the folder and
 *                deletes old ones; at the second time it is complete
 * At most one save is under way: a second waits for the first. Where the copy does not fit, a rank
 * writes at once and training waits. A save that fails removes its .tmp folder and is reported;
 * the run goes on unless --save_failure stop. Layer: train. */
#ifndef ZN_TRAIN_SAVING_H
#define ZN_TRAIN_SAVING_H

#include "train/nodes.h"

typedef struct zn_saver zn_saver;

/** Not collective; nothing is allocated before the first save is expected. All is borrowed until
 * the destroy. nodes: NULL where all ranks see one folder. */
ZINC_MUST_CHECK zinc_status zn_saver_create(const zn_train_setup *setup, zn_device *dev,
                                            zn_engine *engine, const zn_nodes *nodes,
                                            zn_saver **out);
/** Waits for a thread that still writes; what was not finished is left to the next start. NULL is
 *  fine. Not collective. */
void zn_saver_destroy(zn_saver *saver);

/** Whether a checkpoint is due after `step` steps: every --save_steps, and at the end of a run that
 *  was long enough for one. */
bool zn_saver_due(const zn_train_setup *setup, int64_t step);
/** A save is due after the step under way, whose activations are held by now. Before the first one
 * a thread begins to touch the copy's memory, which costs more than the copy; the save waits for
 * it. Not collective. */
void zn_saver_expect(zn_saver *saver);
/** Take a checkpoint of the state after `step` steps. Collective. Errors: of the ranks' exchange;
 *  of the save itself only with --save_failure stop. */
ZINC_MUST_CHECK zinc_status zn_saver_save(zn_saver *saver, int64_t step);
/** Whether this rank has a save under way whose thread has ended. Not collective. */
bool zn_saver_ready(const zn_saver *saver);
/** Take the save under way, if there is one, a phase further; waits for this rank's thread.
 *  Collective. Errors: as zn_saver_save. */
ZINC_MUST_CHECK zinc_status zn_saver_advance(zn_saver *saver);
/** Wait for the save under way, if any, until it is complete. Collective. Errors: as zn_saver_save.
 */
ZINC_MUST_CHECK zinc_status zn_saver_finish(zn_saver *saver);
/** Step of the newest checkpoint of this process, or -1. */
int64_t zn_saver_last(const zn_saver *saver);

#endif
