/* SPDX-License-Identifier: Apache-2.0 */
/* tensorboard.h — scalars in a file that TensorBoard opens: events.out.tfevents.<time>.<host>.
 *
 *   file    record, record, …
 *   record  length u64 | masked CRC-32C of it u32 | event, `length` bytes | masked CRC-32C u32
 *   event   protobuf {1 wall_time f64, 2 step i64, 3 file_version | 5 summary | 7 session_log}
 *   summary {1 value {1 tag, 2 simple_value f32}}*
 * All numbers are little-endian. A record reaches the file in one write. Sources: TensorFlow's
 * record_writer.cc, core/util/event.proto, core/framework/summary.proto (field numbers only).
 * Layer: train (may use base). */
#ifndef ZN_TRAIN_TENSORBOARD_H
#define ZN_TRAIN_TENSORBOARD_H

#include <stdint.h>

#include "base/mem.h"

typedef struct zn_tensorboard zn_tensorboard;

/** Start a new file in `dir`, which is made. purge_from > 0 tells TensorBoard to drop what older
 *  files of the folder say about steps >= purge_from. Close with zn_tensorboard_close.
 *  Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_tensorboard_open(const char *dir, int64_t purge_from,
                                                zn_tensorboard **out);

/** Write n scalars at one step, as one event. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_tensorboard_write(zn_tensorboard *tb, int64_t step,
                                                 const char *const *tags, const double *values,
                                                 int n);

/** Close; NULL is fine. */
void zn_tensorboard_close(zn_tensorboard *tb);

#endif
