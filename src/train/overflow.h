/* SPDX-License-Identifier: Apache-2.0 */
/* overflow.h — what to tell people about a gradient that is not finite. Layer: train. */
#ifndef ZN_TRAIN_OVERFLOW_H
#define ZN_TRAIN_OVERFLOW_H

#include "train/train_internal.h"

/* A step that overflowed. Borrowed during the call. */
typedef struct zn_train_overflow {
    int64_t step;            /* from 0 */
    const zn_batch *batches; /* [accumulation] */
    const double *weights;   /* [accumulation] of a token's loss */
    const zn_engine_step_result *result;
} zn_train_overflow;

/** Run the step's micro-batches again to find the first tensor that is not finite, and put one
 *  sentence without a full stop into out[n]: step, tensor, rank, micro-batch and training rows.
 *  Collective. */
ZINC_MUST_CHECK zinc_status zn_train_explain_overflow(const zn_train_setup *setup,
                                                      zn_engine *engine,
                                                      const zn_train_overflow *overflow, char *out,
                                                      size_t n);

#endif
