/* SPDX-License-Identifier: Apache-2.0 */
/* zero_dry.h — a micro-batch of which only sizes and counts exist. Between zero_plan.c, which asks,
 * and zero_dry.c, which walks. Layer: zero. */
#ifndef ZN_ZERO_ZERO_DRY_H
#define ZN_ZERO_ZERO_DRY_H

#include "zero/zero_clock.h"
#include "zero/zero_internal.h"
#include "zero/zero_plan.h"

/* Counts what zn_zero_pool would hold. */
typedef struct zn_zero_dry_pool {
    struct zn_zero_dry_item {
        int64_t n_bytes;
        bool used;
    } * items;
    int n_items;
    int64_t n_bytes;
} zn_zero_dry_pool;

typedef struct zn_zero_dry {
    const zn_zero_plan_params *params;
    zn_zero *zero; /* regions and trace; no buffer of it exists */
    bool shared, full_grads, adds_in_place;
    int n_secondary; /* ranks that share a second copy; at most 1: there is none */
    zn_zero_dry_pool gathers, grads;
    int *gather_item, *grad_item; /* [n_regions] index in the pool, -1: none */
    int pending[ZN_ZERO_MAX_PENDING], n_pending;
    int64_t gathered_elems, n_gathers, n_reduces; /* of the micro-batch that is walked */
    int64_t primary_elems; /* of them, what no second copy had: all, if there is none */
    int64_t from_disk;     /* positions read for its gathers */
    zn_zero_clock *clock;  /* NULL: this walk is not timed */
} zn_zero_dry;

/** Whether a region's parameters are complete on every rank, so that nothing is gathered. */
bool zn_zero_dry_whole(const zn_zero_dry *run, const zn_zero_region *region);
/** Walk one micro-batch in the decoder's order. The first records the trace, the second prefetches,
 *  and by the third nothing new is asked for. */
ZINC_MUST_CHECK zinc_status zn_zero_dry_micro_batch(zn_zero_dry *run);

#endif
