/* SPDX-License-Identifier: Apache-2.0 */
/* zero_clock.h — when each stream of a rank would be done, while zero_dry.c walks.
 *
 *   compute    unit | wait |  unit  | …       a stream does one thing after the other,
 *   network      gather |  reduce   | …       and begins it no earlier than what it waits for
 *   up, down   shards in, gradients out       the two directions of the link
 *   optimizer  updates on the host            disk: reads and writes together
 *
 * The calls mirror gather.c, grads.c, offload.c and step.c: same buffers, same order, same waits,
 * seconds instead of data. Layer: zero. */
#ifndef ZN_ZERO_ZERO_CLOCK_H
#define ZN_ZERO_ZERO_CLOCK_H

#include "zero/zero_internal.h"
#include "zero/zero_plan.h"

typedef struct zn_zero_clock {
    const zn_zero *zero;
    const zn_zero_costs *costs;
    bool shared;                    /* ranks share the parameters */
    double free[ZN_ZERO_N_STREAMS]; /* seconds from the beginning until it has done all it got */
    double busy[ZN_ZERO_N_STREAMS]; /* of them, spent working */
    double *arrived;                /* [n_regions] end of the last gather */
    double last_reduce;
    double staging[2], landing[2], grad_out[2], out[2], saved[2];
    double pending[ZN_ZERO_MAX_PENDING];
    double param_buffer[ZN_ZERO_MAX_PARAM_BUFFERS];
    double window_written[ZN_ZERO_N_WINDOWS];
    double fetched;
    int staging_next, landing_next, out_next, param_buffer_next, n_pending;
    bool boundary, accumulate; /* of this micro-batch */
} zn_zero_clock;

/** The unit `member` of the model computes; blocks fetch and save their inputs. */
void zn_zero_clock_use(zn_zero_clock *clock, int member, zn_pass pass);
/** Chunks of a region are gathered, from the second copy or from where the shards are. */
void zn_zero_clock_gather(zn_zero_clock *clock, const zn_zero_region *region, int64_t n_chunks,
                          bool second);
void zn_zero_clock_arrive(zn_zero_clock *clock, const zn_zero_region *region);
/** A region's gradients are reduced and, where the step was announced, applied. */
void zn_zero_clock_reduce(zn_zero_clock *clock, const zn_zero_region *region);
/** Backward is over, and the step behind it. */
void zn_zero_clock_step(zn_zero_clock *clock);

#endif
