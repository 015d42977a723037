/* SPDX-License-Identifier: Apache-2.0 */
/* run_json.h — OUTPUT_DIR/run.json: what a run was asked to do and what it resolved that to.
 *
 *   {"zinc", "started", "run": {steps, batch, ranks, …}, "model": {…}, "data": {…},
 *    "options": {…}, "config": {"ok", "resolved", "origin", "notes"}}
 * "config" is the document of `zinc config check --json`; "run", "model", "data" and "options" hold
 * plain names with plain values, so that a reader can show them without knowing them.
 * Layer: train. */
#ifndef ZN_TRAIN_RUN_JSON_H
#define ZN_TRAIN_RUN_JSON_H

#include "train/train_internal.h"

/** Append the document. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_run_json_append(const zn_train_setup *setup, zn_buf *out);

/** Write it to OUTPUT_DIR/run.json, replacing an older one. By one rank. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_run_json_write(const zn_train_setup *setup);

#endif
