/* SPDX-License-Identifier: Apache-2.0 */
/* model_batch.h — a micro-batch of the data layer as the model takes it. Layer: engine. */
#ifndef ZN_ENGINE_MODEL_BATCH_H
#define ZN_ENGINE_MODEL_BATCH_H

#include "data/dataset.h"
#include "model/model.h"

/** Borrows everything; the caller adds the dropout seed. */
static inline zn_model_batch zn_model_batch_of(const zn_batch *batch)
{
    return (zn_model_batch){.B = batch->B,
                            .T = batch->T,
                            .ids = batch->ids,
                            .targets = batch->targets,
                            .mask = batch->mask,
                            .segment = batch->segment,
                            .position = batch->position,
                            .sample = batch->sample};
}

#endif
