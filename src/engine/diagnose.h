/* SPDX-License-Identifier: Apache-2.0 */
/* diagnose.h — where a number that is not finite comes from.
 *
 * A step that overflows leaves the parameters as they were, so its micro-batches can be run again
 * with eyes open: weights first, then each micro-batch's activations, loss and gradients in the
 * order in which they are computed. Costs one more forward and backward. Layer: engine. */
#ifndef ZN_ENGINE_DIAGNOSE_H
#define ZN_ENGINE_DIAGNOSE_H

#include "data/dataset.h"
#include "model/model.h"
#include "zero/zero.h"

typedef enum zn_bad_kind {
    ZN_BAD_NONE,       /* every micro-batch is finite: only a sum over them or over ranks is not */
    ZN_BAD_WEIGHT,     /* name: a parameter that is not finite in the training type */
    ZN_BAD_ACTIVATION, /* name: the unit whose output is not finite */
    ZN_BAD_LOSS,
    ZN_BAD_GRADIENT, /* name: the first parameter, in backward's order, whose gradient is not finite
                        in the type it travels in */
} zn_bad_kind;

typedef struct zn_bad_value {
    zn_bad_kind kind;
    const char *name; /* borrowed from the parameter list, or NULL */
    int rank;         /* that computed it (WEIGHT: that owns it) */
    int64_t micro;    /* micro-batch of the step, from 0; WEIGHT: -1 */
} zn_bad_value;

typedef struct zn_diagnosis {
    zn_device *dev; /* borrowed, as all below */
    zn_comm *comm;
    zn_zero *zero;
    zn_model *model;
    const zn_param_list *list;
    zn_dtype param_dtype, wire_dtype;
    const zn_batch *batches; /* [n] of the step that overflowed */
    const double *weights;   /* [n] of a token's loss, without the loss scale */
    int64_t n;
    double loss_scale;
    uint64_t dropout_seed; /* of that step */
} zn_diagnosis;

/** Find the first. Collective. */
ZINC_MUST_CHECK zinc_status zn_diagnose(const zn_diagnosis *d, zn_bad_value *out);

#endif
