/* SPDX-License-Identifier: Apache-2.0 */
/* zero_plan.h — what zn_zero_create and a step would hold and move, without memory and ranks.
 *
 * The layout is the one of training (layout.c), and gathers, prefetches and unit gradients follow
 * the rules of gather.c and grads.c over the order in which the decoder uses its units. Nothing is
 * allocated but tables of regions, so a question about 1,024 ranks is as cheap as one about two;
 * tests/zero/test_zero_plan.c holds answers and accounts together. Layer: zero. */
#ifndef ZN_ZERO_ZERO_PLAN_H
#define ZN_ZERO_ZERO_PLAN_H

#include "zero/zero.h"

#define ZN_ZERO_N_TIERS 3 /* zn_zero_tier: device, host, disk */

/* A slice must hold at least ZN_ZERO_ALIGN elements of a chunk. */
#define ZN_ZERO_MAX_RANKS ((int)(ZN_ZERO_CHUNK / ZN_ZERO_ALIGN))

/* What works side by side in a step. */
typedef enum zn_zero_stream {
    ZN_ZERO_COMPUTES,
    ZN_ZERO_SENDS, /* collectives */
    ZN_ZERO_SENDS_UP,
    ZN_ZERO_SENDS_DOWN, /* over the link, to the device and back */
    ZN_ZERO_UPDATES,
    ZN_ZERO_USES_DISK,
    ZN_ZERO_N_STREAMS,
} zn_zero_stream;

/* Seconds that parts of a step take on some machine. */
typedef struct zn_zero_costs {
    const double *forward, *backward; /* [n_units] computation of a unit in a micro-batch; the
                                         head's is all in backward */
    double group_byte, secondary_byte, replica_byte; /* of a byte that a rank sends in its group */
    double link_byte, link_copy;   /* of a byte over the link, and of each copy besides */
    double device_byte, host_byte; /* of memory that an update reads or writes */
    double disk_byte;              /* read or written */
    int64_t checkpoint_bytes;      /* of a block's input that waits on the host; 0: it does not */
    zn_zero_step_args step;        /* clip and unchecked decide when updates begin */
} zn_zero_costs;

typedef struct zn_zero_plan_params {
    const zn_zero_params *zero; /* tiers too; dev, comm, kernels, disk_path may be NULL */
    int n_ranks;                /* 1..ZN_ZERO_MAX_RANKS */
    bool shared;                /* ranks share memory: share_parameters takes effect */
    bool tied;                  /* the head uses unit 0 too */
    const zn_zero_costs *costs; /* NULL: no times */
} zn_zero_plan_params;

/* Bytes and elements of one rank; times are an optimizer step. */
typedef struct zn_zero_plan {
    int64_t parameters[ZN_ZERO_N_TIERS], gradients[ZN_ZERO_N_TIERS];
    int64_t masters[ZN_ZERO_N_TIERS], optimizer_state[ZN_ZERO_N_TIERS];
    int64_t unit_gradients; /* device: fp32 gradients of units in backward */
    int64_t live_units;     /* device: gathered units, prefetched ones too */
    int64_t buckets;        /* device: what collectives and copies to the host pass through */
    int64_t staging;        /* host: windows over what is on disk, and copies under way */
    int64_t padded_elems, trainable_padded, largest_unit, live_peak;
    int64_t shard_elems;                /* trainable elements that this rank updates */
    int64_t offloaded_elems;            /* of them, on the host */
    int shard_ranks, n_replicas;        /* S and R: W = S x R */
    int64_t reduce_elems, gather_elems; /* of the full tensors; a rank sends (S-1)/S of them */
    double reduce_bytes, gather_bytes;  /* that a rank sends inside its shard group */
    double replica_bytes;               /* that a rank sends to its R-1 replicas */
    double secondary_bytes;             /* that a rank sends inside its secondary group */
    int64_t n_collectives;
    int64_t to_device_bytes, to_host_bytes; /* over the link, copies of offloaded state */
    int64_t disk_read_bytes, disk_written_bytes;
    double step_s;                    /* with costs: a step among others like it, */
    double busy_s[ZN_ZERO_N_STREAMS]; /* and what each stream works in it */
} zn_zero_plan;

/** Work it out. Errors: E_INVALID for settings that do not exist, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_zero_plan_make(const zn_zero_plan_params *params,
                                              const zn_param_list *list, zn_zero_plan *out);

/** The layout alone: regions, units, places and their counts, without pieces. */
struct zn_zero;
ZINC_MUST_CHECK zinc_status zn_zero_layout_regions(struct zn_zero *zero);

#endif
