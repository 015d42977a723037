/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h — the tensors of a checkpoint folder, matched to a model's parameters.
 *
 * Stored names come with and without prefixes and beside constant buffers; after matching there is
 * one tensor a parameter, of the right shape, or one message that names everything that is missing,
 * unknown or misshapen. Layer: engine. */
#ifndef ZN_ENGINE_WEIGHTS_H
#define ZN_ENGINE_WEIGHTS_H

#include "ckpt/safetensors.h"
#include "model/model.h"
#include "tensor/param.h"

typedef struct zn_weight_map zn_weight_map;

/** Open `model_dir` and match its tensors to `list` (parameters of `spec`). Not collective.
 *  Errors: E_IO, E_FORMAT. Release with zn_weight_map_destroy. */
ZINC_MUST_CHECK zinc_status zn_weight_map_open(const char *model_dir, const zn_model_spec *spec,
                                               const zn_param_list *list, zn_weight_map **out);
void zn_weight_map_destroy(zn_weight_map *map);

/** What the folder stores a parameter as. */
zn_dtype zn_weight_map_dtype(const zn_weight_map *map, int param);

/** Elements [offset, offset + n) of parameter `param` as fp32. A zn_zero_read_fn: ctx is the map.
 */
zinc_status zn_weight_map_read(void *map, int param, int64_t offset, int64_t n, float *out);

/* Random initialisation: element i of a parameter is a function of (seed, name, i) alone, so it is
 * the same on any number of ranks. */
typedef struct zn_random_weights {
    const zn_param_list *list;
    uint64_t seed;
} zn_random_weights;

/** A zn_zero_read_fn: ctx is a zn_random_weights. */
zinc_status zn_random_weights_read(void *random, int param, int64_t offset, int64_t n, float *out);

#endif
