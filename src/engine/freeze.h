/* SPDX-License-Identifier: Apache-2.0 */
/* freeze.h — which parameters are not trained, and how they reach the saved model unchanged.
 * Layer: engine. */
#ifndef ZN_ENGINE_FREEZE_H
#define ZN_ENGINE_FREEZE_H

#include "tensor/param.h"
#include "zero/zero.h"

/** Clear `trainable` of every parameter whose name matches one of the globs ("*", "?", "[...]"; a
 *  star crosses dots). Errors: E_CONFIG for a pattern that matches nothing, with the nearest names,
 *  and when nothing is left to train. */
ZINC_MUST_CHECK zinc_status zn_freeze_parameters(zn_param_list *list, const char *const *patterns,
                                                 int n_patterns);

/* A visitor of masters that takes frozen parameters from where they were first read: in 16-bit
 * training the engine holds them rounded, and they are to be saved as they were. What does not
 * round to the values that training saw (the file has changed since) is not taken. */
typedef struct zn_frozen_reader {
    const zn_param_list *list;
    zn_zero_read_fn read; /* NULL: what the engine holds is exact */
    void *read_ctx;
    zn_zero_visit_fn visit; /* gets every range */
    void *visit_ctx;
    float *values;  /* [ZN_FROZEN_IO_ELEMS]; needed with read */
    zn_dtype dtype; /* that the engine holds them in: BF16, F16 */
    int64_t n_kept; /* elements of ranges that were not taken */
} zn_frozen_reader;

#define ZN_FROZEN_IO_ELEMS ((int64_t)1 << 16)

/** A zn_zero_visit_fn: ctx is a zn_frozen_reader. */
zinc_status zn_frozen_visit(void *reader, int param, int64_t offset, int64_t n,
                            const float *values);

#endif
