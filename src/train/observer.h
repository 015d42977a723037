/* SPDX-License-Identifier: Apache-2.0 */
/* observer.h — what a ds_config.json wants to see of a run beside metrics.jsonl.
 *
 *   tensorboard, csv_monitor  -> monitor.h
 *   wall_clock_breakdown      where the time of a step went; every step, or every steps_per_print
 *   memory_breakdown          the device account by category; every steps_per_print, else every
 *                             --logging_steps, and at the end
 *   flops_profiler            parameters, FLOPs, time and FLOP/s of one step's phases
 *   dump_state                every resolved value and where it came from, at start
 * and OUTPUT_DIR/eval.jsonl, a line for each evaluation: {"step", "eval_loss", "perplexity"}.
 *
 * Rank 0 has an observer; the functions that are called during a step accept NULL and then do
 * nothing. Its clock is cut into laps; time that the ZeRO engine stood waiting inside a lap is
 * taken out of it, so that the parts of a step never overlap:
 *
 *   begin --data--> lap --forward, backward--> lap --step--> lap --writing rows--> (in step)
 *
 * Layer: train. */
#ifndef ZN_TRAIN_OBSERVER_H
#define ZN_TRAIN_OBSERVER_H

#include "train/progress.h"
#include "train/train_internal.h"

typedef struct zn_observer zn_observer;

typedef enum zn_phase {
    ZN_PHASE_DATA, /* rows of this rank; the ranks' agreement on the number of targets too */
    ZN_PHASE_COMPUTE,
    ZN_PHASE_STEP, /* norm, clip, update, and the exchange of the loss */
    ZN_PHASE_LOGGING,
    ZN_N_PHASES,
} zn_phase;

/** Open; first_step is the number of steps that earlier runs did. Everything is borrowed until
 *  zn_observer_close. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_observer_open(const zn_train_setup *setup, zn_engine *engine,
                                             zn_device *dev, int64_t first_step, zn_observer **out);

/** A step begins; `now` is zn_sys_now(). */
void zn_observer_begin(zn_observer *observer, double now);
/** What ran since the last call was `phase`. The phases and waits of a step so add up to the time
 *  from its begin to its last lap, whatever they are. */
void zn_observer_lap(zn_observer *observer, zn_phase phase, double now);
/** The step computes this micro-batch: its matrix FLOPs are counted, padding included. */
void zn_observer_count(zn_observer *observer, const zn_batch *batch);

/** The step is over: write and print what is due. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_observer_step(zn_observer *observer, const zn_metrics_row *row,
                                             zn_progress *progress);
/** An evaluation after `step`. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_observer_eval(zn_observer *observer, int64_t step, double loss);

/** Write of the whole run, step by step on average: time, share of the time, FLOPs and share of
 * what `peak_flops` a second would do, by phase (--profile). Before the first step there is nothing
 * to write. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_observer_summary(const zn_observer *observer, double peak_flops,
                                                zn_progress *progress);

/** Close; NULL is fine. */
void zn_observer_close(zn_observer *observer);

#endif
