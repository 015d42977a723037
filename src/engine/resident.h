/* SPDX-License-Identifier: Apache-2.0 */
/* resident.h — a whole model in memory on one rank, for evaluation and generation.
 *
 * The simplest owner of parameters behind tensor/param.h's hooks: everything is always there, and
 * there are no gradients. Layer: engine. */
#ifndef ZN_ENGINE_RESIDENT_H
#define ZN_ENGINE_RESIDENT_H

#include "device/device.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "tensor/param.h"

typedef struct zn_resident zn_resident;

/** Load the weights of a model folder as `dtype` (F32, BF16, F16). Errors: E_IO, E_FORMAT (missing,
 *  extra or misshapen tensors are named), E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_resident_load(const char *model_dir, const zn_model_spec *spec,
                                             zn_dtype dtype, zn_device *dev, zn_resident **out);
void zn_resident_destroy(zn_resident *resident);

/** Hooks for zn_model_eval and zn_model_last_logits. Borrowed. */
const zn_param_hooks *zn_resident_hooks(zn_resident *resident);

#endif
