/* SPDX-License-Identifier: Apache-2.0 */
/* zero.h — ZeRO stages 0 to 3 over one flat layout: units, shards, buckets, prefetch, the step.
 *
 * Knows parameters, not layers, and no file format. The stage only says which of {parameters,
 * gradients, optimizer state} exist in full on every rank and which only as this rank's shard:
 *
 *      stage   parameters   gradients   masters + optimizer state
 *        0        full         full        full
 *        1        full        shard *      shard        * full while accumulation sums
 * micro-batches 2        full        shard        shard 3       shard        shard        shard (a
 * unit is gathered while it is used)
 *
 * Layout (layout.c): a unit's parameters lie in up to four regions, {trainable, frozen} x {above,
 * at or below the persistence threshold}; in a region back to back in registration order, each
 * aligned to ZN_ZERO_ALIGN elements. A region is a row of equal chunks of at most ZN_ZERO_CHUNK
 * elements; each chunk is cut into S slices and rank r of a shard group owns slice r of every
 * chunk. The layout depends on parameters, units, S, W and regions alone, never on stage, buckets
 * or sub-groups.
 *
 * Groups (groups.c): W = S x R. A shard group is S consecutive ranks, which hold everything once
 * between them; R such groups are replicas. R is 1 unless shard_ranks says otherwise. Parameters
 * are gathered inside a group only; gradients are summed inside it, and at the boundary each rank's
 * shard is summed over its R peers, so all groups update alike.
 *
 * Life: create (lays out, allocates) -> fill -> per micro-batch: begin, the model runs over
 * zn_zero_hooks, backward_end -> step at the boundary. Collective where it says so; all ranks make
 * the same calls in the same order. Losses, norms and weights are bit-identical across stages,
 * buckets, overlap, prefetch, sharing and backends (for accumulation > 1: 0 = 1 and 2 = 3).
 * Reading order: zero.h, zero_internal.h, units.c, groups.c, layout.c, store.c, fill.c, schedule.c,
 * gather.c, grads.c, step.c; off the device: tiers.c, offload.c, windows.c, early.c. Source:
 * Rajbhandari et al., "ZeRO", 2020. Layer: zero (may use base, device, comm, tensor, kernels,
 * optim). */
#ifndef ZN_ZERO_ZERO_H
#define ZN_ZERO_ZERO_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "device/device.h"
#include "device/disk.h"
#include "kernels/kernels.h"
#include "optim/optim.h"
#include "tensor/param.h"

#define ZN_ZERO_CHUNK ((int64_t)1 << 22) /* most elements of a chunk; a constant, not a setting */
#define ZN_ZERO_ALIGN 32                 /* elements; 64 bytes in 16-bit types */

typedef struct zn_zero zn_zero;

/* Where a part of the state lives. */
typedef enum zn_zero_tier {
    ZN_ZERO_ON_DEVICE,
    ZN_ZERO_ON_HOST,
    ZN_ZERO_ON_DISK,
} zn_zero_tier;

#define ZN_ZERO_KEPT (-1) /* block of the parameters that are always whole */

/* Memory for whole parameters that the embedding program owns; get NULL: the device's. A block is
 * asked for under the same number each time: ZN_ZERO_KEPT once (stages 0 to 2: all parameters), or
 * 0, 1, … at every gather (stage 3), and put back when the parameters are let go. */
typedef struct zn_zero_memory {
    void *(*get)(void *ctx, int block, size_t n_bytes); /* 64-byte aligned; NULL: none */
    void (*put)(void *ctx, int block, void *ptr);
    void *ctx;
} zn_zero_memory;

/* Sizes are elements. Start from zn_zero_params_defaults. */
typedef struct zn_zero_params {
    zn_device *dev; /* borrowed, as all below */
    zn_comm *comm;
    const zn_kernels *kernels;
    const zn_optim_ops *optim; /* NULL: no optimizer, gradients only */
    int stage;                 /* 0..3 */
    int shard_ranks;           /* S, a divisor of W; 0: W. Below W: stages 1 to 3 only */
    int secondary_ranks;       /* stage 3: so many consecutive ranks keep a second copy of gathered
                                  parameters between them, from which they are gathered again until
                                  they change; 0, 1: none */
    bool keep_for_backward; /* stage 3: parameters gathered in forward stay until their backward */
    int64_t min_unit_elems; /* consecutive units are joined until each has so many elements */
    zn_dtype param_dtype;   /* F32, BF16, F16 */
    zn_dtype wire_dtype;    /* gradients between ranks: communication_data_type */
    zn_dtype grad_accum_dtype; /* reduced gradients at rest */
    int64_t gradient_accumulation_steps;
    int64_t reduce_bucket;         /* reduce_bucket_size */
    int64_t allgather_bucket;      /* allgather_bucket_size */
    int64_t prefetch_bucket;       /* stage3_prefetch_bucket_size */
    int64_t persistence_threshold; /* stage3_param_persistence_threshold */
    int64_t model_persistence_threshold;
    int64_t max_live;           /* stage3_max_live_parameters */
    int64_t max_reuse_distance; /* stage3_max_reuse_distance */
    int64_t sub_group;          /* sub_group_size */
    bool overlap_comm;
    bool share_parameters; /* where ranks share memory: one buffer holds all ranks' slices */
    bool split_masters;    /* bf16, masters beside their parameters: only the low halves are kept */
    /* Stages 1 to 3: masters, optimizer state and reduced gradients live on the host, or masters
     * and state on disk (gradients too where host_bytes is small); the update runs on the host. */
    zn_zero_tier optimizer_tier;
    zn_zero_tier param_tier;     /* stage 3: shards of parameters above the persistence threshold */
    const char *disk_path;       /* folder for ON_DISK, made if missing; borrowed during create */
    const char *param_disk_path; /* the same for parameters */
    zn_disk_io disk_io;
    int64_t host_bytes; /* of the host's memory for this rank: gradients that would take more than a
                           third of it go to disk with the state; 0: they never do */
    int64_t max_param_on_host;  /* max_in_cpu: elements of a shard that stay there */
    int64_t param_buffer_elems; /* buffer_size of the pool that parameters pass through, */
    int n_param_buffers;        /* and its buffer_count */
    double offload_ratio;       /* share of the optimizer's elements that is offloaded, by unit */
    zn_zero_memory memory;
} zn_zero_params;

/** DeepSpeed 0.19.8's defaults; dev, comm, kernels and optim NULL. */
void zn_zero_params_defaults(zn_zero_params *out);

/** Lay out `list` and allocate. Collective. list and group_of_param ([n_specs], index into the
 *  step's groups; NULL: all 0) are copied. Errors: E_NOMEM, E_UNSUPPORTED, E_COMM. */
ZINC_MUST_CHECK zinc_status zn_zero_create(const zn_zero_params *params, const zn_param_list *list,
                                           const int *group_of_param, zn_zero **out);
/** Release everything; NULL is fine. Not collective, except that shared buffers need every rank to
 *  have stopped, and that groups of ranks are closed together (zn_comm_close). */
void zn_zero_destroy(zn_zero *zero);

/** Read elements [offset, offset + n) of a parameter as fp32 into out. */
typedef zinc_status (*zn_zero_read_fn)(void *ctx, int param, int64_t offset, int64_t n, float *out);

/** Give every parameter its value. Each rank asks only for the ranges it keeps; full copies are
 *  gathered. Masters start from the value rounded to param_dtype, as DeepSpeed's do. Collective. */
ZINC_MUST_CHECK zinc_status zn_zero_fill(zn_zero *zero, zn_zero_read_fn read, void *ctx);

/** Read elements [offset, offset + n) of `what` (ZN_ZERO_MASTERS, or optimizer state >= 0) of a
 *  parameter as fp32 into out. */
typedef zinc_status (*zn_zero_restore_fn)(void *ctx, int what, int param, int64_t offset, int64_t n,
                                          float *out);

/** Put back masters and optimizer state exactly as zn_zero_visit gave them, from any world size and
 *  stage; the training-type parameters follow from the masters. Each rank asks only for what it
 *  keeps. Of a frozen parameter only ZN_ZERO_MASTERS is asked for. Collective. */
ZINC_MUST_CHECK zinc_status zn_zero_restore(zn_zero *zero, zn_zero_restore_fn read, void *ctx);

/** What the model calls. Borrowed; one thread per rank. */
const zn_param_hooks *zn_zero_hooks(zn_zero *zero);

/** Start a training micro-batch. boundary: the step follows it. Not collective. */
ZINC_MUST_CHECK zinc_status zn_zero_begin(zn_zero *zero, bool boundary);
/** Say anew whether the step follows, inside a micro-batch of which nothing is ready yet. Not
 *  collective. */
void zn_zero_set_boundary(zn_zero *zero, bool boundary);
/** Forget a micro-batch that was begun and has no gradient yet. Every rank does. */
ZINC_MUST_CHECK zinc_status zn_zero_abandon(zn_zero *zero);
/** Backward is over: units whose gradients did not come count as zero, gathered units are let go.
 *  Collective. */
ZINC_MUST_CHECK zinc_status zn_zero_backward_end(zn_zero *zero);

typedef struct zn_zero_step_args {
    const zn_optim_hyper *groups; /* [n_groups] of this step */
    int64_t t;                    /* number of this applied step, from 1 */
    double loss_scale;            /* the loss was multiplied by it */
    double clip;                  /* gradient_clipping; 0: off */
    double shrink;                /* gradients are divided by it too, after the norm is taken and
                                     before they are clipped; 0: they are not */
    bool unchecked; /* apply gradients that are not finite too (they never scale the others) */
} zn_zero_step_args;

/** Say before a boundary's micro-batch what its step will be. Where nothing more has to be known
 *  (early.c), updates on the host begin while backward runs, and zn_zero_step must follow with the
 *  same args. args->groups are copied. Otherwise nothing happens. Not collective. Errors: E_NOMEM.
 */
ZINC_MUST_CHECK zinc_status zn_zero_announce_step(zn_zero *zero, const zn_zero_step_args *args);

typedef struct zn_zero_step_result {
    double grad_norm; /* global L2 norm before clipping, unscaled; inf or nan if not finite */
    double clip_coef; /* what gradients were multiplied by (1: not clipped) */
    bool overflow;    /* a gradient was not finite: nothing was changed */
    int bad_param;    /* overflow: first parameter with a non-finite gradient, else -1 */
    int bad_rank;     /* overflow: the rank that owns that slice, else -1 */
} zn_zero_step_result;

/** Norm, clip, update, publish the new parameters; or, on overflow, change nothing. Forgets the
 *  accumulated gradients either way. Collective. */
ZINC_MUST_CHECK zinc_status zn_zero_step(zn_zero *zero, const zn_zero_step_args *args,
                                         zn_zero_step_result *out);
/** Wait until what the last step wrote to disk is there; the next one does so by itself. Not
 *  collective. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_zero_disk_wait(zn_zero *zero);
/** Forget the accumulated gradients without a step (no target in the whole batch). Collective. */
ZINC_MUST_CHECK zinc_status zn_zero_skip(zn_zero *zero);

#define ZN_ZERO_MASTERS (-1)
#define ZN_ZERO_GRADS (-2) /* reduced gradients, sums as they came; between boundary and step */

/** Called for each range this rank saves; values [n] fp32, borrowed during the call. */
typedef zinc_status (*zn_zero_visit_fn)(void *ctx, int param, int64_t offset, int64_t n,
                                        const float *values);

/** Visit this rank's part of the masters (ZN_ZERO_MASTERS; of frozen parameters the values
 *  themselves), of optimizer state `what` >= 0 or of ZN_ZERO_GRADS (trainable ones). Over all ranks
 * every element is visited exactly once, in every stage, and nothing is gathered. Not collective.
 */
ZINC_MUST_CHECK zinc_status zn_zero_visit(zn_zero *zero, int what, zn_zero_visit_fn visit,
                                          void *ctx);

/* Counts that tests and the profile read. Elements include alignment and chunk padding. */
typedef struct zn_zero_stats {
    int64_t padded_elems;     /* of all regions: Psi of the traffic formulas */
    int64_t trainable_padded; /* of trainable regions */
    int64_t persistent_elems; /* kept full under stage 3 */
    int64_t largest_unit;     /* most elements gathered for one unit */
    int64_t n_gathers, n_prefetches, n_reduces, n_optimizer_calls;
    int64_t n_early_updates; /* of the optimizer calls: submitted before backward was over */
    int64_t live_peak;       /* gathered elements at once, persistent ones not counted */
    int64_t prefetch_peak;   /* elements gathered ahead and not yet used, at once */
    int64_t trace_resets;    /* times the order of use changed */
    int64_t to_device_bytes, to_host_bytes; /* over the link */
    int64_t disk_read_bytes, disk_written_bytes;
    double gather_wait_s;  /* seconds that this rank stood waiting for parameters */
    double reduce_wait_s;  /* ... and for reductions of gradients */
    double forward_s;      /* from begin to the first use in backward; waits included. The head
                              computes loss and gradient at once and counts as backward */
    double forward_wait_s; /* the part of gather_wait_s that is in forward_s */
    int64_t replica_bytes; /* sent to replicas: all that leaves the shard group, but for scalars */
    int64_t secondary_bytes; /* sent inside the secondary group */
} zn_zero_stats;

void zn_zero_get_stats(const zn_zero *zero, zn_zero_stats *out);
/** Start counts and peaks again; those of zn_zero_params.comm are the caller's. */
void zn_zero_reset_stats(zn_zero *zero);

/* Model-state bytes of one rank by formula, not by layout: the textbook table of docs/memory.md. */
typedef struct zn_zero_formula {
    double parameters, gradients, masters, optimizer_state;
} zn_zero_formula;

/** Psi = n_trainable + n_frozen elements on n_ranks; shared as zn_zero_params.share_parameters. The
 *  secondary copy counts as parameters. */
void zn_zero_formula_bytes(const zn_zero_params *params, int n_ranks, const zn_param_list *list,
                           zn_zero_formula *out);

#endif
