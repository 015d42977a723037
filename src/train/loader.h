/* SPDX-License-Identifier: Apache-2.0 */
/* loader.h — a rank's micro-batches, assembled one step ahead by a thread of their own. Which rows
 * a step takes is a function of seed, step and rank alone, so who assembles them when changes
 * nothing. Layer: train. */
#ifndef ZN_TRAIN_LOADER_H
#define ZN_TRAIN_LOADER_H

#include "data/dataset.h"
#include "device/device.h"

typedef struct zn_loader zn_loader;

typedef struct zn_loader_params {
    const zn_dataset *dataset; /* borrowed until the end */
    zn_device *dev;
    uint64_t seed;
    bool shuffle;
    int rank, n_ranks;
    int64_t micro_batch, accumulation; /* rows; micro-batches of a step */
    int64_t end;                       /* no step from here on is asked for */
} zn_loader_params;

ZINC_MUST_CHECK zinc_status zn_loader_create(const zn_loader_params *params, zn_loader **out);
/** Waits for what is being assembled; NULL is fine. */
void zn_loader_destroy(zn_loader *loader);

/** *out is the micro-batches [accumulation] of a step, borrowed until the next call, and those of
 *  the next step are begun. The first step, or one that does not follow the last, is assembled on
 *  the spot. Errors: those of zn_batch_fill. */
ZINC_MUST_CHECK zinc_status zn_loader_step(zn_loader *loader, int64_t step, zn_batch **out);

/** Micro-batches that were assembled on the caller's thread. */
int64_t zn_loader_n_on_the_spot(const zn_loader *loader);

#endif
