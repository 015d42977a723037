/* SPDX-License-Identifier: Apache-2.0 */
/* param.h — where a model and the ZeRO engine meet: parameter specs, units, hooks.
 *
 * The model says which parameters it has and in which units they are used together; the engine
 * decides where they live. While it computes, the model asks for a unit before it reads it and says
 * when it is done; in backward it adds gradients into buffers the engine gives, and says when a
 * unit's gradients are complete. Neither side includes the other; either can be tested with a fake.
 *
 * A unit is gathered and released as a whole: one transformer block, the embedding, the head.
 * Layer: tensor (may use base, device). */
#ifndef ZN_TENSOR_PARAM_H
#define ZN_TENSOR_PARAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

#define ZN_MAX_DIMS 4

typedef enum zn_init {
    ZN_INIT_ZEROS,
    ZN_INIT_ONES,
    ZN_INIT_NORMAL, /* mean 0, std init_std */
} zn_init;

typedef struct zn_param_spec {
    char *name;                 /* as in the Hugging Face checkpoint; owned by the list */
    int n_dims;                 /* 1..ZN_MAX_DIMS */
    int64_t shape[ZN_MAX_DIMS]; /* as stored in the checkpoint */
    int64_t n_elems;            /* product of shape */
    int unit;                   /* index into zn_param_list.unit_names */
    bool trainable;             /* frozen ones have no gradient and no optimizer state */
    bool tied;                  /* another unit reads it too: its gradient grows from there on */
    bool no_decay;              /* biases and norm weights: no weight decay under no_bias_norm */
    zn_init init;               /* for training from scratch */
    float init_std;
} zn_param_spec;

/* All parameters of a model, in registration order. Zero-initialise; release with
 * zn_param_list_fini. */
typedef struct zn_param_list {
    zn_param_spec *specs; /* [n_specs]; index = parameter id */
    int n_specs;
    char **unit_names; /* [n_units], in order of first use in forward */
    int n_units;
} zn_param_list;

/** Add a unit; its index goes to *out (may be NULL). */
ZINC_MUST_CHECK zinc_status zn_param_list_add_unit(zn_param_list *list, const char *name, int *out);
/** Add a parameter (copied; name is duplicated, n_elems computed); its id goes to *out (may be
 *  NULL). */
ZINC_MUST_CHECK zinc_status zn_param_list_add(zn_param_list *list, const zn_param_spec *spec,
                                              int *out);
/** Id of the parameter called `name`, or -1. */
int zn_param_list_find(const zn_param_list *list, const char *name);
/** Sum of n_elems (trainable ones only, if asked). */
int64_t zn_param_list_elems(const zn_param_list *list, bool trainable_only);
void zn_param_list_fini(zn_param_list *list);

typedef enum zn_pass {
    ZN_PASS_FORWARD,
    ZN_PASS_BACKWARD, /* forward again under activation checkpointing counts as backward */
    ZN_PASS_EVAL,     /* no gradients will follow */
} zn_pass;

/* What the engine does for the model. All calls of one rank come from one thread. */
typedef struct zn_param_hooks {
    void *ctx;
    zn_dtype param_dtype;     /* element type of data(): F32, BF16 or F16 */
    int first_trainable_unit; /* units before it are frozen whole: backward may end there */

    /** Make the unit's parameters readable. Nests: counted per unit. Collective under stage 3. */
    zinc_status (*before_use)(void *ctx, int unit, zn_pass pass);
    /** The model will not read them again until the next before_use. */
    zinc_status (*after_use)(void *ctx, int unit, zn_pass pass);
    /** The full parameter, [n_elems] of param_dtype, contiguous; valid between before_use and
     *  after_use of its unit. */
    const void *(*data)(void *ctx, int param);
    /** Where to ADD this micro-batch's gradient, [n_elems] fp32; NULL for a frozen parameter.
     *  Valid from the first call in a backward pass until grads_ready of its unit. */
    float *(*grad)(void *ctx, int param);
    /** The same for a caller that now gives the parameter's gradient of all its elements at once,
     *  so that nobody need zero the memory first: stored where *add is false, added where it is
     *  true. *dtype is F32; or BF16, rounded as base/dtype.h says, only if `last`: nothing more is
     *  added to it in this micro-batch. May be NULL: callers use grad. */
    void *(*grad_whole)(void *ctx, int param, bool last, zn_dtype *dtype, bool *add);
    /** All gradients of the unit have been added for this micro-batch. Once per unit and backward
     *  pass. Collective under stages 1-3 (and 0 at a boundary). */
    zinc_status (*grads_ready)(void *ctx, int unit);
} zn_param_hooks;

#endif
