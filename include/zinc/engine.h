/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h — ZeRO for any program that has parameters and gradients.
 *
 * The program computes; the engine decides where parameters, gradients and optimizer state live,
 * moves them between ranks, and runs the optimizer. Parameters are registered in units: what is
 * used together, a layer say, is gathered and let go together.
 *
 *   create -> add_unit, add_param … -> build -> fill
 *   every micro-batch:
 *     forward    acquire(unit) … data(param) … release(unit)
 *     backward   acquire(unit) … grad(param) is added to … release(unit), reduce(unit)
 *     backward_end
 *   after the last micro-batch of a step: step
 *
 * The same calls work for every stage (0 to 3), type (fp32, bf16, fp16) and kind of comm. Losses,
 * gradients' norms and weights are equal bit for bit across stages, buckets and kinds of comm; with
 * several micro-batches a step, stages 0 and 1 are equal, and stages 2 and 3.
 *
 * Gradients are sums: over the micro-batches of a step and over all ranks. Divide the loss by the
 * number of terms, or set grad_divisor. Under fp16 multiply it by zinc_engine_loss_scale.
 *
 * Collective (comm.h): every rank makes the same calls that are marked so, in the same order;
 * ranks may compute different things in between. Threads: one engine is used by one thread at a
 * time. After an error of a collective call the engine and its comm can only be destroyed. */
#ifndef ZINC_ENGINE_H
#define ZINC_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "zinc/comm.h"
#include "zinc/config.h"
#include "zinc/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zinc_engine zinc_engine;

#define ZINC_KEEP (-1.0)

/* Hyper-parameters of one group of parameters. ZINC_KEEP keeps what the configuration says; of lr:
 * what the schedule says. Fields that the optimizer does not have are ignored. Start from
 * ZINC_GROUP_INIT, which keeps everything. */
typedef struct zinc_group {
    size_t struct_size;
    double lr, weight_decay, beta1, beta2, eps, momentum, dampening;
} zinc_group;

#define ZINC_GROUP_INIT                                                                            \
    {                                                                                              \
        sizeof(zinc_group), ZINC_KEEP, ZINC_KEEP, ZINC_KEEP, ZINC_KEEP, ZINC_KEEP, ZINC_KEEP,      \
            ZINC_KEEP                                                                              \
    }

typedef enum zinc_optimizer {
    /* The "optimizer" block of the configuration; without one AdamW at the Trainer's rate, 5e-5. */
    ZINC_OPTIMIZER_CONFIG = 0,
    /* None: gradients are reduced and their norm is told, and step changes no parameter. */
    ZINC_OPTIMIZER_NONE = 1
} zinc_optimizer;

#define ZINC_KEPT_BLOCK (-1)

/* Memory for whole parameters that the program owns, so that its own tensors can show them without
 * a copy. Start from ZINC_PARAM_MEMORY_INIT. */
typedef struct zinc_param_memory {
    size_t struct_size;
    void *ctx; /* handed to both; borrowed until the engine is destroyed */
    /** n_bytes, 64-byte aligned, under the number `block`: ZINC_KEPT_BLOCK once, in build, for all
     *  parameters (stages 0 to 2); or 0, 1, … at every gather (stage 3), where a number means the
     *  same parameters, at the same offsets, each time. NULL: there is none. */
    void *(*get)(void *ctx, int block, size_t n_bytes);
    /** The parameters in it are let go, or the engine is destroyed. */
    void (*put)(void *ctx, int block, void *ptr);
} zinc_param_memory;

#define ZINC_PARAM_MEMORY_INIT                                                                     \
    {                                                                                              \
        sizeof(zinc_param_memory), NULL, NULL, NULL                                                \
    }

/* Start from ZINC_ENGINE_PARAMS_INIT and set comm and config. */
typedef struct zinc_engine_params {
    size_t struct_size;
    zinc_comm *comm;           /* borrowed until the engine is destroyed */
    const zinc_config *config; /* resolved for comm's number of ranks; read during create only */
    zinc_optimizer optimizer;
    const zinc_group *groups; /* [n_groups], borrowed during create; NULL: one, as configured */
    int n_groups;
    double grad_divisor;  /* what sums of gradients are divided by, > 0: 1 sums, n_ranks means */
    int share_parameters; /* 1: ranks that share memory keep one copy of the parameters (stages
                             1 to 3); 0: each rank its own */
    const zinc_param_memory *param_memory; /* copied during create; NULL: the library's own. Ranks
                                              do not share parameters then */
    int unscale_grown; /* fp16, a step after which the loss scale grows. 1: its gradients are
                          divided by the grown scale before they are clipped, so that they count
                          half, as in DeepSpeed; 0: by the one that its loss was multiplied by */
} zinc_engine_params;

#define ZINC_ENGINE_PARAMS_INIT                                                                    \
    {                                                                                              \
        sizeof(zinc_engine_params), NULL, NULL, ZINC_OPTIMIZER_CONFIG, NULL, 0, 1.0, 1, NULL, 0    \
    }

/** Make an engine without parameters. Stage, types, buckets, offload, optimizer, schedule, loss
 *  scale, clipping and accumulation come from the configuration. Not collective. *out is owned,
 *  release it with zinc_engine_destroy. Errors: E_INVALID, E_CONFIG, E_UNSUPPORTED (names the key).
 */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_create(const zinc_engine_params *params,
                                                        zinc_engine **out);

/** Release an engine, before its comm. NULL is fine. Pointers that it gave are then dead. Every
 *  rank stops using its engine before any rank destroys its own. */
ZINC_API void zinc_engine_destroy(zinc_engine *engine);

/* ---- what there is ---- */

/** Add a unit; its number, from 0, goes to *out (may be NULL). Not collective, but every rank
 *  registers the same units and parameters in the same order. name is copied. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_add_unit(zinc_engine *engine, const char *name,
                                                          int *out);

#define ZINC_MAX_DIMS 4

/* Start from ZINC_PARAM_INIT. */
typedef struct zinc_param {
    size_t struct_size;
    const char *name; /* copied; names are unique */
    int unit;
    int n_dims;                   /* 1 … ZINC_MAX_DIMS */
    int64_t shape[ZINC_MAX_DIMS]; /* elements, each >= 1 */
    int trainable;                /* 0: no gradient, no optimizer state */
    int group;                    /* index of its hyper-parameters */
} zinc_param;

#define ZINC_PARAM_INIT                                                                            \
    {                                                                                              \
        sizeof(zinc_param), NULL, 0, 1, {1, 1, 1, 1}, 1, 0                                         \
    }

/** Add a parameter; its number, from 0, goes to *out (may be NULL). Not collective. Before build.
 *  Errors: E_INVALID (a name twice, no such unit or group, a shape with nothing in it). */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_add_param(zinc_engine *engine,
                                                           const zinc_param *param, int *out);

/** Lay out everything and allocate. Collective. Parameters have no value yet. Errors: E_NOMEM,
 *  whose message has the account; E_INVALID if there is nothing, or if ranks registered different
 *  things. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_build(zinc_engine *engine);

/** Numbers of parameters and units, and a parameter by name: -1 if there is none. Not collective.
 */
ZINC_API int zinc_engine_n_params(const zinc_engine *engine);
ZINC_API int zinc_engine_n_units(const zinc_engine *engine);
ZINC_API int zinc_engine_find_param(const zinc_engine *engine, const char *name);

/** What was registered; out->name is borrowed. out->struct_size must be set. Not collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_get_param(const zinc_engine *engine, int param,
                                                           zinc_param *out);

/** Element type of zinc_engine_data: the training type of the configuration. Not collective. */
ZINC_API zinc_dtype zinc_engine_param_dtype(const zinc_engine *engine);

/* ---- values in ---- */

/** Give elements [offset, offset + n) of parameter `param` as fp32 in out [n]. Returns ZINC_OK or
 *  the status of a failure (zinc_fail), which fill passes on. */
typedef zinc_status (*zinc_fill_fn)(void *ctx, int param, int64_t offset, int64_t n, float *out);

/** Give every parameter its value. Each rank asks only for the ranges it keeps, in pieces of at
 *  most 2^18 elements. Masters start from the value rounded to the training type, as DeepSpeed's
 *  do; zinc_engine_restore keeps them exact. Collective; a rank's failure is every rank's. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_fill(zinc_engine *engine, zinc_fill_fn fill,
                                                      void *ctx);

#define ZINC_MASTERS (-1)
#define ZINC_GRADS (-2) /* for zinc_engine_visit and zinc_engine_read */

/** The same of `what`: ZINC_MASTERS, or optimizer state 0 … zinc_engine_n_states - 1. */
typedef zinc_status (*zinc_restore_fn)(void *ctx, int what, int param, int64_t offset, int64_t n,
                                       float *out);

/* What goes on from step to step beside the parameters and their states. Start from
 * ZINC_PROGRESS_INIT. */
typedef struct zinc_progress {
    size_t struct_size;
    int64_t n_applied;       /* steps so far; the schedule and bias correction go by it */
    int64_t n_skipped;       /* steps so far that changed nothing */
    double loss_scale;       /* of the next step; 0 in restore: start as the configuration says */
    int64_t hysteresis_left; /* dynamic loss scale: overflows it still bears */
    int64_t scale_steps;     /* steps the loss scale has seen */
    int64_t last_overflow;   /* the last of these that overflowed; -1: none has */
} zinc_progress;

#define ZINC_PROGRESS_INIT                                                                         \
    {                                                                                              \
        sizeof(zinc_progress), 0, 0, 0, 0, 0, -1                                                   \
    }

/** Equal on every rank. out->struct_size must be set. Not collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_get_progress(const zinc_engine *engine,
                                                              zinc_progress *out);

/** Put back masters and optimizer state exactly as zinc_engine_visit gave them, and the progress,
 *  from any number of ranks and any stage. Frozen parameters are asked for ZINC_MASTERS alone.
 *  Collective; `progress` is equal on every rank. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_restore(zinc_engine *engine,
                                                         zinc_restore_fn restore, void *ctx,
                                                         const zinc_progress *progress);

/* ---- a micro-batch ---- */

typedef enum zinc_pass {
    ZINC_PASS_FORWARD = 0,
    ZINC_PASS_BACKWARD = 1, /* forward again, for checkpointed activations, is backward */
    ZINC_PASS_EVAL = 2      /* no gradients will follow */
} zinc_pass;

/** Whether the next step follows this micro-batch, or the one that begins next if none is open.
 *  Without this call the engine counts gradient_accumulation_steps. Not collective, but equal on
 *  every rank; before the micro-batch's first gradient. Errors: E_INVALID after it. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_set_boundary(zinc_engine *engine, int boundary);

/** Make the parameters of a unit readable until the release that matches. Counted: a unit may be
 *  acquired again while it is held. Collective under stage 3. A pass other than EVAL begins a
 *  micro-batch if none is open. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_acquire(zinc_engine *engine, int unit,
                                                         zinc_pass pass);

/** The program will not read them again until the next acquire. In any order. Not collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_release(zinc_engine *engine, int unit);

/** The full parameter, [n_elems] of zinc_engine_param_dtype, row-major, in its shape; 64-byte
 *  aligned. Borrowed until its unit is released. Not to be written. Not collective.
 *  Errors: E_INVALID if the unit is not acquired. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_data(zinc_engine *engine, int param,
                                                      const void **out);

/** Where to ADD this micro-batch's gradient of the loss: [n_elems] fp32, in the parameter's shape;
 *  it may hold earlier micro-batches' sum. NULL in *out for a frozen parameter. Borrowed until
 *  reduce of its unit. Not collective; a unit need not be acquired. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_grad(zinc_engine *engine, int param, float **out);

/** Add a gradient that lies elsewhere: values [n_elems] of `dtype` (F32, BF16 or F16), borrowed
 *  during the call. Not collective. Errors: E_INVALID for a frozen parameter. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_grad_ready(zinc_engine *engine, int param,
                                                            const void *values, zinc_dtype dtype);

/** All gradients of a unit are added for this micro-batch: send them on. Once a unit and
 *  micro-batch, after the last use of the unit; a gradient that was not given counts as zero.
 *  Collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_reduce(zinc_engine *engine, int unit);

/** The micro-batch is over: what was not reduced is reduced now. Collective. Errors: E_INVALID
 *  while a unit is acquired. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_backward_end(zinc_engine *engine);

/* ---- the step ---- */

/* Start from ZINC_STEP_RESULT_INIT. */
typedef struct zinc_step_result {
    size_t struct_size;
    int skipped;  /* 1: a gradient was not finite, and nothing was changed but the loss scale */
    int bad_rank; /* skipped: rank whose slice held it; else -1 */
    const char *bad_param; /* skipped: name of the first such parameter, borrowed; else NULL */
    double grad_norm;      /* global L2 norm before clipping, unscaled and divided */
    double clip_coef;      /* what gradients were multiplied by; 1: not clipped */
    double loss_scale;     /* used in this step */
    double lr;             /* of group 0, used in this step */
    int64_t n_applied, n_skipped; /* so far, this step included */
} zinc_step_result;

#define ZINC_STEP_RESULT_INIT                                                                      \
    {                                                                                              \
        sizeof(zinc_step_result), 0, -1, NULL, 0, 0, 0, 0, 0, 0                                    \
    }

/** Norm, clipping, optimizer, and new parameters for all. After a boundary micro-batch.
 *  Collective.
 *  groups  [n_groups] of the engine, hyper-parameters of this step and the ones after it, equal on
 *          every rank; NULL: as before
 *  out     may be NULL
 *  Errors: E_INVALID without a boundary; E_ABORTED when fp16's loss scale cannot be lowered any
 *  more (*out is set then, too). */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_step(zinc_engine *engine, const zinc_group *groups,
                                                      zinc_step_result *out);

/** Forget the gradients of this step; counts as skipped, the loss scale stays. Between
 *  micro-batches. Collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_skip(zinc_engine *engine);

/** What the next loss is to be multiplied by (1 unless fp16), and the rate of the next step. Not
 *  collective. */
ZINC_API double zinc_engine_loss_scale(const zinc_engine *engine);
ZINC_API double zinc_engine_lr(const zinc_engine *engine);

/* ---- values out ---- */

/** Number of optimizer states a parameter has, and their names as torch calls them ("exp_avg").
 *  Static storage; NULL if there is no such state. Not collective. */
ZINC_API int zinc_engine_n_states(const zinc_engine *engine);
ZINC_API const char *zinc_engine_state_name(const zinc_engine *engine, int state);

/** Elements [offset, offset + n) of `param` in values, fp32, borrowed during the call. */
typedef zinc_status (*zinc_visit_fn)(void *ctx, int param, int64_t offset, int64_t n,
                                     const float *values);

/** Visit this rank's part of the masters (ZINC_MASTERS; of frozen parameters the values), of
 *  optimizer state `what`, or of the gradients (ZINC_GRADS; both of trainable ones). Gradients are
 *  there after a boundary's backward_end and until the step: the sums of all ranks and
 *  micro-batches as they came, times the loss scale and not divided by grad_divisor. Over all ranks
 * every element is visited exactly once, in every stage; nothing is gathered. Not collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_visit(zinc_engine *engine, int what,
                                                       zinc_visit_fn visit, void *ctx);

/** The whole of one parameter's masters, state or gradient, fp32, in out [n_elems] on every rank.
 * For looking at, not for saving large models: that is zinc_engine_visit. Collective. Errors:
 * E_INVALID for the state of a frozen parameter. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_read(zinc_engine *engine, int what, int param,
                                                      float *out);

/** Write model.safetensors (or shards with an index) into `dir` from the masters, rounded to dtype;
 *  each rank writes its own ranges. max_shard_bytes 0: one file. Collective. Errors: E_IO, E_NOMEM;
 *  a rank's failure is every rank's, and leaves no half-written file under a final name. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_save(zinc_engine *engine, const char *dir,
                                                      zinc_dtype dtype, int64_t max_shard_bytes);

/* ---- looking inside ---- */

/* Where memory is: where the rank computes, or host memory that offloaded parts lie in. On the CPU
 * both are host memory, counted apart. */
typedef enum zinc_place { ZINC_PLACE_DEVICE = 0, ZINC_PLACE_HOST = 1 } zinc_place;

typedef enum zinc_memory_category {
    ZINC_MEMORY_PARAMETERS = 0,
    ZINC_MEMORY_GRADIENTS = 1,
    ZINC_MEMORY_MASTERS = 2,
    ZINC_MEMORY_OPTIMIZER_STATE = 3,
    ZINC_MEMORY_ACTIVATIONS = 4,
    ZINC_MEMORY_BUFFERS = 5
} zinc_memory_category;

#define ZINC_N_MEMORY_CATEGORIES 6

/* Bytes of this rank. peak_total is the peak of the sum, not the sum of the peaks. Start from
 * ZINC_MEMORY_INIT. */
typedef struct zinc_memory {
    size_t struct_size;
    int64_t now[ZINC_N_MEMORY_CATEGORIES];
    int64_t peak[ZINC_N_MEMORY_CATEGORIES];
    int64_t total_now, total_peak;
} zinc_memory;

#define ZINC_MEMORY_INIT                                                                           \
    {                                                                                              \
        sizeof(zinc_memory), {0}, {0}, 0, 0                                                        \
    }

/** What the engine and its comm hold and held at most, of one place. Not collective. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_memory(const zinc_engine *engine, zinc_place place,
                                                        zinc_memory *out);
/** "parameters", "gradients", …; NULL if there is no such category. Static storage. */
ZINC_API const char *zinc_memory_category_name(zinc_memory_category category);

/* Counts since build. Elements include alignment and padding. Start from ZINC_STATS_INIT. */
typedef struct zinc_stats {
    size_t struct_size;
    int64_t padded_elems;     /* of all parameters: what is moved when everything is gathered */
    int64_t trainable_padded; /* of trainable ones: what is moved when gradients are reduced */
    int64_t persistent_elems; /* kept full under stage 3 */
    int64_t n_gathers, n_prefetches, n_reduces;
    int64_t live_peak; /* most gathered elements at once, persistent ones not counted */
} zinc_stats;

#define ZINC_STATS_INIT                                                                            \
    {                                                                                              \
        sizeof(zinc_stats), 0, 0, 0, 0, 0, 0, 0                                                    \
    }

/** Not collective. Errors: E_INVALID before build. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_get_stats(const zinc_engine *engine,
                                                           zinc_stats *out);

#ifdef __cplusplus
}
#endif

#endif
