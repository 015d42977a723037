/* SPDX-License-Identifier: Apache-2.0 */
/* banner.h — what a run will do, and which file, argument or default says so. Layer: train. */
#ifndef ZN_TRAIN_BANNER_H
#define ZN_TRAIN_BANNER_H

#include "train/train_internal.h"

/** The settings that runs go wrong by, on stderr: batch, optimizer, schedule, clipping, precision,
 *  order. */
void zn_train_print_settings(const zn_train_setup *setup);

#endif
