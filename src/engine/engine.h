/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h — one rank's trainer: a model, its ZeRO engine, optimizer, schedule and loss scaler,
 * wired from a resolved configuration.
 *
 *   create -> load or random -> { micro_batch x gradient_accumulation_steps -> step } … -> save
 *
 * Every call is collective unless it says otherwise. Reading order: engine.h, engine.c, weights.h,
 * hyper.h, engine_save.c. Layer: engine (may use everything below). */
#ifndef ZN_ENGINE_ENGINE_H
#define ZN_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "config/config.h"
#include "data/dataset.h"
#include "device/device.h"
#include "engine/diagnose.h"
#include "model/model.h"
#include "optim/loss_scale.h"
#include "optim/lr_schedule.h"
#include "zero/zero.h"

typedef struct zn_engine zn_engine;

typedef struct zn_engine_params {
    zn_device *dev; /* borrowed, as all below */
    zn_comm *comm;
    const zn_config_values *config; /* resolved */
    const zn_model_spec *spec;
    const zn_optim_ops *optim;
    zn_optim_hyper hyper; /* of the decayed group; the other has weight_decay 0 */
    zn_lr_schedule schedule;
    bool decay_all; /* weight decay for biases and norm weights too */
    bool activation_checkpointing;
    float dropout_scale; /* 1: as config.json says, 0: none */
    bool share_parameters;
    uint64_t seed;
    const char *const *freeze; /* globs on names of parameters that are not trained */
    int n_freeze;
} zn_engine_params;

/** Build the rank's engine; parameters have no value yet. Errors: E_NOMEM (the message has the
 *  account), E_UNSUPPORTED. */
ZINC_MUST_CHECK zinc_status zn_engine_create(const zn_engine_params *params, zn_engine **out);
void zn_engine_destroy(zn_engine *engine);

/** Weights from a model folder; each rank reads only what it keeps. */
ZINC_MUST_CHECK zinc_status zn_engine_load(zn_engine *engine, const char *model_dir);
/** Weights from the specs' initialisation: the same on any number of ranks. */
ZINC_MUST_CHECK zinc_status zn_engine_random(zn_engine *engine, uint64_t seed);

/** Say where frozen parameters can be read as they were before training rounded them, if neither of
 *  the two above did: a model folder, or NULL for zn_engine_random's values. Not collective. */
ZINC_MUST_CHECK zinc_status zn_engine_set_source(zn_engine *engine, const char *model_dir,
                                                 uint64_t seed);
/** zn_zero_visit, with frozen parameters as they were read and not as training holds them. Not
 *  collective. */
ZINC_MUST_CHECK zinc_status zn_engine_visit(zn_engine *engine, int what, zn_zero_visit_fn visit,
                                            void *ctx);

/** Forward and backward of one micro-batch. The gradient is that of grad_weight times the sum of
 *  its token losses (times the loss scale, inside); that sum is added to *loss_sum. */
ZINC_MUST_CHECK zinc_status zn_engine_micro_batch(zn_engine *engine, const zn_batch *batch,
                                                  double grad_weight, bool boundary,
                                                  double *loss_sum);

typedef struct zn_engine_step_result {
    double lr;         /* used in this step */
    double loss_scale; /* used in this step */
    double grad_norm, clip_coef;
    bool overflow;
    const char *bad_param; /* overflow: first parameter with a non-finite gradient; borrowed */
    int bad_rank;
    int64_t n_applied, n_skipped; /* so far, this step included */
} zn_engine_step_result;

/** The optimizer step after a boundary. On overflow nothing changes but the loss scale. Errors:
 *  E_ABORTED when the loss scale cannot be lowered any more; *out is set then too. */
ZINC_MUST_CHECK zinc_status zn_engine_step(zn_engine *engine, zn_engine_step_result *out);
/** Where the overflow of the step before came from: run its n micro-batches again and look. weights
 *  and loss_scale as they were; parameters stay as they are. */
ZINC_MUST_CHECK zinc_status zn_engine_find_bad(zn_engine *engine, const zn_batch *batches,
                                               const double *weights, int64_t n, double loss_scale,
                                               zn_bad_value *out);
/** Close an accumulation window that had no target: counted as skipped, the scale is untouched. */
ZINC_MUST_CHECK zinc_status zn_engine_skip(zn_engine *engine, zn_engine_step_result *out);

/** Forward only: adds the sum of the token losses to *loss_sum. */
ZINC_MUST_CHECK zinc_status zn_engine_eval(zn_engine *engine, const zn_batch *batch,
                                           double *loss_sum);

/** Write model.safetensors (or shards) into dir from the fp32 masters, rounded to dtype; every rank
 *  writes its own ranges, nothing is gathered. max_shard_bytes 0: one file. as_loaded: what is fp32
 *  in an otherwise 16-bit folder that the weights came from stays fp32. Frozen parameters are
 *  read again where they came from if training holds them rounded. */
ZINC_MUST_CHECK zinc_status zn_engine_save(zn_engine *engine, const char *dir, zn_dtype dtype,
                                           bool as_loaded, int64_t max_shard_bytes);

/* What a run has besides parameters and optimizer state. */
typedef struct zn_engine_progress {
    int64_t n_applied, n_skipped;
    zn_loss_scaler scaler;
} zn_engine_progress;

/** Not collective. */
void zn_engine_get_progress(const zn_engine *engine, zn_engine_progress *out);
/** Go on from there, the same on all ranks. Of the scaler only a dynamic scale's state is taken,
 *  and only if this engine's is dynamic too; its settings stay. Not collective. */
void zn_engine_set_progress(zn_engine *engine, const zn_engine_progress *progress);

/** The ranks of this engine. Borrowed. Not collective. */
zn_comm *zn_engine_comm(zn_engine *engine);
/** The ZeRO engine inside, for counts. Borrowed. Not collective. */
zn_zero *zn_engine_zero(zn_engine *engine);
const zn_param_list *zn_engine_param_list(const zn_engine *engine);

/** What zn_engine_create will make of these parameters. Not collective. */
void zn_engine_zero_params(const zn_engine_params *params, zn_zero_params *out);

#endif
