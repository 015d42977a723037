/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c — the order in which units are used, recorded once and then known.
 *
 * A trace is the row of units of one training micro-batch, in order of acquire. It is a hint: an
 * order that differs is followed on demand, and recorded anew. Ranks compare traces before anybody
 * prefetches, since a gather one rank issues early must be issued early by all. */
#include "zero/zero_internal.h"

#include <limits.h>

#include "base/hash.h"
#include "base/log.h"

int64_t zn_zero_unit_elems(const zn_zero *zero, int unit)
{
    int64_t n = 0;
    for (int k = 0; k < zero->units[unit].n_regions; k++) {
        const zn_zero_region *region = &zero->regions[zero->units[unit].regions[k]];
        if (!region->persistent)
            n += region->padded_elems;
    }
    return n;
}

zinc_status zn_zero_trace_acquire(zn_zero *zero, int unit)
{
    if (zero->trace_known && !zero->trace_broken) {
        if (zero->cursor < zero->n_trace && zero->trace[zero->cursor] == unit) {
            zero->cursor++;
            return ZINC_OK;
        }
        zero->trace_broken = true; /* prefetching stops; recorded again next time */
        zero->stats.trace_resets++;
        zn_debug("zero", "unit %s is not the recorded next use: gathers on demand",
                 zero->list.unit_names[unit]);
    }
    if (zero->trace_known)
        return ZINC_OK;
    if (zero->n_trace == zero->trace_capacity) {
        const int64_t capacity = zero->trace_capacity ? 2 * zero->trace_capacity : 256;
        ZN_TRY(zn_realloc_array(&zero->trace, (size_t)capacity, sizeof *zero->trace, "a trace"));
        zero->trace_capacity = capacity;
    }
    zero->trace[zero->n_trace++] = unit;
    return ZINC_OK;
}

/* A recorded trace is used only if all ranks recorded the same one. */
static zinc_status compare_traces(zn_zero *zero)
{
    uint64_t mine = (uint64_t)zero->n_trace;
    for (int64_t i = 0; i < zero->n_trace; i++)
        mine = zn_hash_fold(mine, (uint64_t)zero->trace[i]);
    ZN_TRY(zn_comm_exchange(zero->group, &mine, sizeof mine, zero->exchange, "trace"));
    const uint64_t *all = (const uint64_t *)(const void *)zero->exchange;
    zero->trace_known = true;
    for (int r = 0; r < zero->n_ranks; r++)
        zero->trace_known = zero->trace_known && all[r] == mine;
    return ZINC_OK;
}

zinc_status zn_zero_trace_end(zn_zero *zero)
{
    if (zero->p.stage == 3) {
        if (!zero->trace_known)
            ZN_TRY(compare_traces(zero));
        else if (zero->trace_broken || zero->cursor != zero->n_trace)
            zero->trace_known = false;
    }
    if (!zero->trace_known)
        zero->n_trace = 0;
    zero->trace_broken = false;
    zero->cursor = 0;
    return ZINC_OK;
}

int64_t zn_zero_next_use(const zn_zero *zero, int unit)
{
    if (!zero->training || !zero->trace_known || zero->trace_broken)
        return INT64_MAX;
    int64_t distance = 0;
    for (int64_t i = zero->cursor; i < zero->n_trace; i++) {
        if (zero->trace[i] == unit)
            return distance;
        distance += zn_zero_unit_elems(zero, zero->trace[i]);
    }
    return INT64_MAX;
}

/* Parameters that lie off the device pass through two buffers: the unit in use and the next. */
int64_t zn_zero_prefetch_end(const zn_zero *zero)
{
    if (zero->p.param_tier == ZN_ZERO_ON_DEVICE || zero->cursor == zero->n_trace)
        return zero->n_trace;
    return zero->cursor + 1;
}
