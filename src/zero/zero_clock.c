/* SPDX-License-Identifier: Apache-2.0 */
/* zero_clock.c — seconds of gathers, reductions, copies and updates, as their streams order them.
 */
#include "zero/zero_clock.h"

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Work of so many seconds, not before `after`; returns its end. */
static double work(zn_zero_clock *clock, zn_zero_stream stream, double after, double seconds)
{
    clock->free[stream] = later(clock->free[stream], after) + seconds;
    clock->busy[stream] += seconds;
    return clock->free[stream];
}

static double now(const zn_zero_clock *clock)
{
    return clock->free[ZN_ZERO_COMPUTES];
}

/* Whoever computes stands still until t. */
static void wait_until(zn_zero_clock *clock, double t)
{
    clock->free[ZN_ZERO_COMPUTES] = later(now(clock), t);
}

static double over_link(zn_zero_clock *clock, bool up, double after, double n_bytes,
                        int64_t n_copies)
{
    const zn_zero_costs *c = clock->costs;
    return work(clock, up ? ZN_ZERO_SENDS_UP : ZN_ZERO_SENDS_DOWN, after,
                n_bytes * c->link_byte + (double)n_copies * c->link_copy);
}

static double on_disk(zn_zero_clock *clock, double after, int64_t n_bytes)
{
    return work(clock, ZN_ZERO_USES_DISK, after, (double)n_bytes * clock->costs->disk_byte);
}

/* A rank sends all but its own part of n_bytes. */
static double collective(zn_zero_clock *clock, double after, int64_t n_bytes, int n_ranks,
                         double byte)
{
    return work(clock, ZN_ZERO_SENDS, after, (double)n_bytes * (n_ranks - 1) / n_ranks * byte);
}

/* ---- computation, and blocks' inputs that wait on the host (model/checkpoints.c) ---- */

static bool input_is_away(const zn_zero_clock *clock, int member)
{
    const int last_block = clock->zero->n_members - 2;
    return clock->costs->checkpoint_bytes > 0 && member >= 1 && member < last_block;
}

static void fetch_inputs(zn_zero_clock *clock, int member)
{
    const double n_bytes = (double)clock->costs->checkpoint_bytes;
    if (input_is_away(clock, member))
        wait_until(clock, clock->fetched);
    if (input_is_away(clock, member - 1))
        clock->fetched =
            over_link(clock, true, later(now(clock), clock->saved[(member - 1) % 2]), n_bytes, 1);
}

static void save_input(zn_zero_clock *clock, int member)
{
    if (input_is_away(clock, member))
        clock->saved[member % 2] =
            over_link(clock, false, now(clock), (double)clock->costs->checkpoint_bytes, 1);
    if (input_is_away(clock, member - 1))
        wait_until(clock, clock->saved[(member - 1) % 2]);
}

void zn_zero_clock_use(zn_zero_clock *clock, int member, zn_pass pass)
{
    const zn_zero_costs *c = clock->costs;
    if (pass == ZN_PASS_BACKWARD)
        fetch_inputs(clock, member);
    else
        save_input(clock, member);
    work(clock, ZN_ZERO_COMPUTES, 0,
         pass == ZN_PASS_BACKWARD ? c->backward[member] : c->forward[member]);
}

/* ---- parameters (gather.c, offload.c) ---- */

/* Read with the padding to whole blocks, sent without. */
static double shard_from_disk(zn_zero_clock *clock, const zn_zero_region *region, int64_t n_elems)
{
    const zn_zero *zero = clock->zero;
    const int64_t size = (int64_t)zn_dtype_size(zero->p.param_dtype);
    const double sent = (double)region->slice_elems / (double)region->slab_stride;
    double copied = 0;
    for (int64_t at = 0; at < n_elems; at += zero->param_buffer_elems) {
        const int64_t left = n_elems - at;
        const int64_t m = left < zero->param_buffer_elems ? left : zero->param_buffer_elems;
        double *buffer = &clock->param_buffer[clock->param_buffer_next];
        clock->param_buffer_next = (clock->param_buffer_next + 1) % zero->n_param_buffers;
        copied = on_disk(clock, later(now(clock), *buffer), m * size);
        copied = over_link(clock, true, copied, sent * (double)(m * size), 1);
        *buffer = copied;
    }
    return copied;
}

void zn_zero_clock_gather(zn_zero_clock *clock, const zn_zero_region *region, int64_t n_chunks,
                          bool second)
{
    const zn_zero *zero = clock->zero;
    const int64_t size = (int64_t)zn_dtype_size(zero->p.param_dtype);
    const int64_t n_bytes = n_chunks * region->chunk_elems * size;
    double ready = now(clock);
    if (second) {
        ready = collective(clock, ready, n_bytes, zero->p.secondary_ranks,
                           clock->costs->secondary_byte);
    } else {
        if (region->param_on_disk)
            ready = shard_from_disk(clock, region, n_chunks * region->slab_stride);
        else if (region->param_on_host)
            ready = over_link(clock, true, ready, (double)(n_chunks * region->slice_elems * size),
                              n_chunks);
        ready = collective(clock, ready, n_bytes, zero->n_ranks, clock->costs->group_byte);
    }
    clock->arrived[region - zero->regions] = ready;
}

void zn_zero_clock_arrive(zn_zero_clock *clock, const zn_zero_region *region)
{
    wait_until(clock, clock->arrived[region - clock->zero->regions]);
}

/* ---- gradients (grads.c, offload.c) ---- */

/* One bucket's slices to the host, and from there to the disk. */
static void land(zn_zero_clock *clock, const zn_zero_region *region, int64_t n_chunks, int slot)
{
    const zn_zero *zero = clock->zero;
    const int64_t n_bytes = n_chunks * region->slab_stride * (int64_t)sizeof(float);
    double after = clock->last_reduce;
    if (zero->grads_on_disk)
        after = later(after, clock->grad_out[slot]);
    clock->last_reduce = over_link(clock, false, after, (double)n_bytes, 1);
    if (zero->grads_on_disk) {
        if (clock->accumulate)
            clock->last_reduce = on_disk(clock, clock->last_reduce, n_bytes);
        clock->grad_out[slot] = on_disk(clock, clock->last_reduce, n_bytes);
    }
    clock->landing[slot] = clock->last_reduce;
}

static void reduce_bucket(zn_zero_clock *clock, const zn_zero_region *region, int64_t n_chunks)
{
    const zn_zero *zero = clock->zero;
    const bool staged = zero->p.wire_dtype != ZN_DTYPE_F32;
    const int64_t n_elems = n_chunks * region->chunk_elems;
    const int stage = clock->staging_next, slot = clock->landing_next;
    const double group_byte = clock->costs->group_byte;
    if (staged) {
        clock->staging_next = zero->p.overlap_comm ? 1 - stage : stage;
        wait_until(clock, clock->staging[stage]);
    }
    double after = now(clock);
    if (region->offloaded) {
        clock->landing_next = 1 - slot;
        after = later(after, clock->landing[slot]);
    }
    clock->last_reduce =
        collective(clock, after, n_elems * (int64_t)zn_dtype_size(zero->p.wire_dtype),
                   zero->n_ranks, group_byte);
    if (staged)
        clock->staging[stage] = clock->last_reduce;
    if (zero->p.stage == 0)
        clock->last_reduce = collective(clock, clock->last_reduce,
                                        n_elems * (int64_t)zn_dtype_size(zero->p.grad_accum_dtype),
                                        zero->n_ranks, group_byte);
    if (region->offloaded)
        land(clock, region, n_chunks, slot);
    if (zero->n_replicas > 1 && clock->boundary) /* a reduce-scatter and an all-gather */
        clock->last_reduce = collective(clock, clock->last_reduce,
                                        2 * n_chunks * region->slice_elems * (int64_t)sizeof(float),
                                        zero->n_replicas, clock->costs->replica_byte);
    if (!zero->p.overlap_comm)
        wait_until(clock, clock->last_reduce);
}

static void reap(zn_zero_clock *clock, int keep)
{
    for (; clock->n_pending > keep; clock->n_pending--) {
        wait_until(clock, clock->pending[0]);
        for (int i = 1; i < clock->n_pending; i++)
            clock->pending[i - 1] = clock->pending[i];
    }
}

static void return_buffer(zn_zero_clock *clock, const zn_zero_region *region)
{
    const bool overlap = clock->zero->p.overlap_comm;
    if (zn_zero_adds_in_place(clock->zero) || zn_zero_grad_stays(clock->zero, region) ||
        clock->zero->p.wire_dtype != ZN_DTYPE_F32)
        return;
    reap(clock, overlap ? ZN_ZERO_MAX_PENDING - 1 : 0);
    clock->pending[clock->n_pending++] = clock->last_reduce;
    if (!overlap)
        reap(clock, 0);
}

/* ---- updates (step.c, windows.c, early.c) ---- */

/* Gradient, master and states are read; master, states and the parameter written. */
static double update_bytes(const zn_zero *zero)
{
    const int n_states = zero->p.optim ? zero->p.optim->n_states : 0;
    return 4 + 8 + 8 * n_states + (zero->p.param_dtype == ZN_DTYPE_F32 ? 0 : 2);
}

/* n elements on the host; `sent` new parameters leave for the device as they are ready. */
static double update_window(zn_zero_clock *clock, double after, int64_t n_elems, double sent,
                            int n_copies)
{
    const zn_zero *zero = clock->zero;
    double *out = &clock->out[clock->out_next];
    if (sent > 0) {
        clock->out_next = 1 - clock->out_next;
        after = later(after, *out);
    }
    const double updated = work(clock, ZN_ZERO_UPDATES, after,
                                (double)n_elems * update_bytes(zero) * clock->costs->host_byte);
    if (sent > 0)
        *out = over_link(clock, true, updated, sent * (double)zn_dtype_size(zero->p.param_dtype),
                         n_copies);
    return updated;
}

/* Of the positions of a region, those that go back to the device: all but the padding, or none. */
static double sent_elems(const zn_zero_region *region)
{
    return region->offloaded && !zn_zero_param_is_off(region)
               ? (double)(region->n_chunks * region->slice_elems)
               : 0;
}

static double update_region(zn_zero_clock *clock, const zn_zero_region *region, double after)
{
    const int64_t positions = region->n_chunks * region->slab_stride;
    const int64_t window = clock->zero->window_elems;
    const double share = sent_elems(region) / (double)positions;
    for (int64_t at = 0; at < positions; at += window) {
        const int64_t n = positions - at < window ? positions - at : window;
        after = update_window(clock, after, n, share * (double)n, region->n_params);
    }
    return after;
}

void zn_zero_clock_reduce(zn_zero_clock *clock, const zn_zero_region *region)
{
    const zn_zero *zero = clock->zero;
    const int64_t step = zn_zero_bucket_chunks(region, zero->p.reduce_bucket);
    if (zn_zero_keeps_full_grads(zero) && !clock->boundary)
        return;
    for (int64_t chunk = 0; chunk < region->n_chunks; chunk += step) {
        const int64_t left = region->n_chunks - chunk;
        reduce_bucket(clock, region, left < step ? left : step);
    }
    if (region->offloaded && clock->boundary && zn_zero_can_update_early(zero, &clock->costs->step))
        update_region(clock, region, clock->last_reduce);
    return_buffer(clock, region);
}

/* The norm reads every gradient at rest. */
static void norm(zn_zero_clock *clock)
{
    const zn_zero *zero = clock->zero;
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        const int64_t n =
            zero->p.stage == 0 ? region->padded_elems : region->n_chunks * region->slice_elems;
        if (region->trainable && !(region->offloaded && zero->grads_on_disk))
            work(clock, ZN_ZERO_COMPUTES, 0,
                 (double)n * sizeof(float) *
                     (region->offloaded ? clock->costs->host_byte : clock->costs->device_byte));
    }
}

/* Bytes of window `index` that are read before its update, or written after it. */
static int64_t window_bytes(const zn_zero *zero, int64_t index, bool write)
{
    const int64_t first = index * zero->window_elems;
    int64_t n_bytes = 0;
    for (int k = 0; k < ZN_ZERO_N_RUNS; k++) {
        const bool params = k == ZN_ZERO_RUN_PARAMS;
        const int64_t left = (params ? zero->trainable_params_end : zero->offloaded_elems) - first;
        if (left > 0 && k != (write ? (int)ZN_ZERO_RUN_GRADS : (int)ZN_ZERO_RUN_PARAMS))
            n_bytes +=
                zero->runs[k].elem_bytes * (left < zero->window_elems ? left : zero->window_elems);
    }
    return n_bytes;
}

/* Through three windows of what is on disk: one is read, one updated, one written. */
static void update_from_disk(zn_zero_clock *clock)
{
    const zn_zero *zero = clock->zero;
    const int64_t end = zero->offloaded_elems, window = zero->window_elems;
    double sent = 0;
    for (int r = 0; r < zero->n_regions; r++)
        sent += sent_elems(&zero->regions[r]) / (double)end;
    double ready[2] = {on_disk(clock, now(clock), window_bytes(zero, 0, false)), 0};
    for (int64_t k = 0; k * window < end; k++) {
        double *written = clock->window_written;
        const int64_t left = end - k * window;
        if (left > window)
            ready[(k + 1) % 2] =
                on_disk(clock, later(now(clock), written[(k + 1) % ZN_ZERO_N_WINDOWS]),
                        window_bytes(zero, k + 1, false));
        const int64_t n = left < window ? left : window;
        wait_until(clock,
                   update_window(clock, later(now(clock), ready[k % 2]), n, sent * (double)n, 1));
        written[k % ZN_ZERO_N_WINDOWS] = on_disk(clock, now(clock), window_bytes(zero, k, true));
    }
}

static void update_here(zn_zero_clock *clock)
{
    const zn_zero *zero = clock->zero;
    const bool early = zn_zero_can_update_early(zero, &clock->costs->step);
    double done = later(now(clock), clock->free[ZN_ZERO_UPDATES]);
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        const int64_t held =
            zero->p.stage == 0 ? region->padded_elems : region->n_chunks * region->slice_elems;
        if (!region->trainable)
            continue;
        if (!region->offloaded)
            done = work(clock, ZN_ZERO_UPDATES, done,
                        (double)held * update_bytes(zero) * clock->costs->device_byte);
        else if (!early && zero->window_bytes == 0)
            done = update_region(clock, region, done);
    }
    wait_until(clock, done);
    if (zero->window_bytes > 0 && zero->offloaded_elems > 0)
        update_from_disk(clock);
    for (int i = 0; i < 2; i++)
        wait_until(clock, clock->out[i]);
}

/* What every rank keeps whole. */
static void publish(zn_zero_clock *clock)
{
    const zn_zero *zero = clock->zero;
    const int64_t size = (int64_t)zn_dtype_size(zero->p.param_dtype);
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        if (region->trainable && zero->p.stage > 0 && !clock->shared &&
            (zero->p.stage < 3 || region->persistent))
            wait_until(clock, collective(clock, now(clock), region->padded_elems * size,
                                         zero->n_ranks, clock->costs->group_byte));
    }
}

void zn_zero_clock_step(zn_zero_clock *clock)
{
    reap(clock, 0);
    wait_until(clock, later(clock->landing[0], clock->landing[1]));
    wait_until(clock, clock->last_reduce);
    norm(clock);
    if (clock->zero->p.optim)
        update_here(clock);
    publish(clock);
}
