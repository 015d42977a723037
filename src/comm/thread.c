/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks are threads of one process and read each other's buffers.
 *
 * Every call is: put its header and pointers in this rank's mailbox; meet; compare all mailboxes;
 * do this rank's part straight from the peers' buffers; meet again, after which the buffers and the
 * mailbox may change.
 *
 * The first meeting has a deadline and can be aborted. It is all or nothing: whoever gives up marks
 * the world under its lock before the last rank arrives, and then nobody passes. All ranks compare
 * the same mailboxes, so either all go on to the second meeting or none does. In the second meeting
 * every rank is only copying memory of this process and must be waited for, since it reads our
 * buffers: no deadline, no abort. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/copy.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sys.h"
#include "comm/comm_internal.h"

#define SPIN_SECONDS 20e-6

typedef struct mailbox {
    bool taken;        /* a rank has opened it */
    int64_t n_arrived; /* meetings this rank has come to */
    zn_comm_header header;
    const void *in;
    size_t stride_bytes; /* between two slices of the shard; ranks may differ */
} mailbox;

/* A world for each comm: the one the ranks were given, and one for each group split off it, owned
 * by its parent world until its last rank closes it. */
struct zn_thread_world {
    int n_ranks;
    bool spin; /* a meeting may spin for a moment: every rank has a core */
    zn_thread_world *parent;
    zn_thread_world *children, *next; /* guarded by the parent's lock */
    int n_users;                      /* of a child; guarded by the parent's lock */
    bool has_lock, has_cond;
    pthread_mutex_t lock; /* guards all below; a parent's is taken before a child's */
    pthread_cond_t cond;
    _Atomic int64_t n_meetings; /* completed; written under the lock, read by spinning too */
    int n_arrived;              /* at the meeting that is not complete */
    bool aborted;
    int64_t aborted_at; /* n_meetings then */
    zn_error abort_error;
    mailbox *boxes; /* [n_ranks] written by their rank before a meeting, read by all after it */
};

typedef struct thread_comm {
    zn_thread_world *world;
    const void **sources; /* [n_ranks] scratch of reduce_scatter */
    bool *missing;        /* [n_ranks] scratch of messages */
} thread_comm;

/* ---- worlds ---- */

zinc_status zn_thread_world_create(int n_ranks, zn_thread_world **out)
{
    zinc_status status;
    zn_thread_world *world = NULL;
    pthread_condattr_t attr;
    if (n_ranks < 1)
        ZN_FAIL(ZINC_E_INVALID, "a world needs at least 1 rank, not %d", n_ranks);
    ZN_TRY(zn_alloc(&world, sizeof *world, "thread world"));
    world->n_ranks = n_ranks;
    world->spin = n_ranks <= zn_sys_cores();
    ZN_TRY_GOTO(zn_alloc_array(&world->boxes, (size_t)n_ranks, sizeof *world->boxes, "mailboxes"));
    world->has_lock = pthread_mutex_init(&world->lock, NULL) == 0;
    if (!world->has_lock || pthread_condattr_init(&attr) != 0)
        ZN_FAIL_GOTO(ZINC_E_DEVICE, "the system gave no mutex for %d ranks", n_ranks);
    world->has_cond = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
                      pthread_cond_init(&world->cond, &attr) == 0;
    pthread_condattr_destroy(&attr);
    if (!world->has_cond)
        ZN_FAIL_GOTO(ZINC_E_DEVICE, "the system gave no condition variable for %d ranks", n_ranks);
    *out = world;
    return ZINC_OK;
fail:
    zn_thread_world_destroy(world);
    return status;
}

void zn_thread_world_destroy(zn_thread_world *world)
{
    if (!world)
        return;
    while (world->children) {
        zn_thread_world *const child = world->children;
        world->children = child->next;
        zn_thread_world_destroy(child);
    }
    if (world->has_cond)
        pthread_cond_destroy(&world->cond);
    if (world->has_lock)
        pthread_mutex_destroy(&world->lock);
    zn_free(world->boxes);
    zn_free(world);
}

static void leave_world(zn_thread_world *world)
{
    zn_thread_world *const parent = world->parent;
    if (!parent)
        return;
    pthread_mutex_lock(&parent->lock);
    const bool last = --world->n_users == 0;
    zn_thread_world **link = &parent->children;
    while (last && *link != world)
        link = &(*link)->next;
    if (last)
        *link = world->next;
    pthread_mutex_unlock(&parent->lock);
    if (last)
        zn_thread_world_destroy(world);
}

/* A group's ranks cannot go on either when their world cannot. */
static void abort_world(zn_thread_world *world, const zn_error *error)
{
    pthread_mutex_lock(&world->lock);
    if (!world->aborted) {
        world->abort_error = *error;
        world->aborted_at = world->n_meetings;
        world->aborted = true;
        pthread_cond_broadcast(&world->cond);
    }
    for (zn_thread_world *child = world->children; child; child = child->next)
        abort_world(child, error);
    pthread_mutex_unlock(&world->lock);
}

/* ---- meetings ---- */

/* Lock held. This rank gives up on a meeting that is not complete, by deadline or because a peer
 * did; a peer's deadline at this very meeting is ours too, and then we name what we miss. */
static zinc_status give_up(const zn_comm *comm, const zn_comm_header *header)
{
    const thread_comm *const state = comm->state;
    zn_thread_world *const world = state->world;
    const bool same =
        world->aborted_at == world->n_meetings && world->abort_error.status == ZINC_E_TIMEOUT;
    if (world->aborted && (!same || world->boxes[comm->rank].n_arrived == world->n_meetings)) {
        (void)zn_error_restore(&world->abort_error);
        if (world->abort_error.status != ZINC_E_ABORTED)
            zn_error_prefix("stopped by a peer: ");
        return ZINC_E_ABORTED;
    }
    for (int r = 0; r < world->n_ranks; r++)
        state->missing[r] = world->boxes[r].n_arrived <= world->n_meetings;
    const zinc_status status = zn_comm_timed_out(comm, header, state->missing);
    if (!world->aborted) {
        zn_error_save(&world->abort_error, status);
        world->aborted_at = world->n_meetings;
        world->aborted = true;
        pthread_cond_broadcast(&world->cond);
    }
    return status;
}

/* Lock held. True for the last rank, whose arrival completes the meeting. */
static bool arrive(zn_thread_world *world, int rank)
{
    world->boxes[rank].n_arrived++;
    if (++world->n_arrived < world->n_ranks)
        return false;
    world->n_arrived = 0;
    world->n_meetings++;
    pthread_cond_broadcast(&world->cond);
    return true;
}

static void spin_for(const zn_thread_world *world, int64_t meeting)
{
    const double end = zn_sys_now() + SPIN_SECONDS;
    while (world->spin && world->n_meetings < meeting && zn_sys_now() < end)
        ;
}

/* The first meeting of a call. Errors: E_TIMEOUT, E_ABORTED; then no rank passes it. */
static zinc_status meet(const zn_comm *comm, const zn_comm_header *header)
{
    const thread_comm *const state = comm->state;
    zn_thread_world *const world = state->world;
    const struct timespec end = zn_sys_deadline(comm->timeout_ms);
    zinc_status status = ZINC_OK;
    int rc = 0;
    pthread_mutex_lock(&world->lock);
    const int64_t meeting = world->n_meetings + 1;
    if (!world->aborted && !arrive(world, comm->rank)) {
        pthread_mutex_unlock(&world->lock);
        spin_for(world, meeting);
        pthread_mutex_lock(&world->lock);
    }
    while (world->n_meetings < meeting && !world->aborted && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&world->cond, &world->lock, &end);
    if (world->n_meetings < meeting)
        status = give_up(comm, header);
    pthread_mutex_unlock(&world->lock);
    return status;
}

/* The second meeting: the peers have stopped reading our buffers and mailbox. */
static void part(const zn_comm *comm)
{
    const thread_comm *const state = comm->state;
    zn_thread_world *const world = state->world;
    pthread_mutex_lock(&world->lock);
    const int64_t meeting = world->n_meetings + 1;
    if (!arrive(world, comm->rank)) {
        pthread_mutex_unlock(&world->lock);
        spin_for(world, meeting);
        pthread_mutex_lock(&world->lock);
    }
    while (world->n_meetings < meeting)
        pthread_cond_wait(&world->cond, &world->lock);
    pthread_mutex_unlock(&world->lock);
}

/* ---- collectives ---- */

static void gather_slices(const zn_comm *comm, const zn_comm_call *call, int peer)
{
    const thread_comm *const state = comm->state;
    const mailbox *const box = &state->world->boxes[peer];
    const size_t n_bytes = zn_comm_slice_bytes(&call->header);
    for (int64_t b = 0; b < call->header.n_blocks; b++) {
        const size_t slot = (size_t)b * (size_t)comm->n_ranks + (size_t)peer;
        zn_copy((char *)call->out + slot * n_bytes,
                (const char *)box->in + (size_t)b * box->stride_bytes, n_bytes);
    }
}

static void all_gather(const zn_comm *comm, const zn_comm_call *call)
{
    /* Each rank starts at itself, so that the ranks do not all read the same peer at once. */
    for (int i = 0; i < comm->n_ranks; i++) {
        const int peer = (comm->rank + i) % comm->n_ranks;
        if (peer != comm->rank || !zn_comm_in_place(comm, call))
            gather_slices(comm, call, peer);
    }
}

static void reduce_scatter(const zn_comm *comm, const zn_comm_call *call)
{
    const thread_comm *const state = comm->state;
    const size_t n_bytes = zn_comm_slice_bytes(&call->header);
    const size_t stride = (size_t)call->shard_stride * zn_dtype_size(call->shard_dtype);
    for (int64_t b = 0; b < call->header.n_blocks; b++) {
        const size_t slot = (size_t)b * (size_t)comm->n_ranks + (size_t)comm->rank;
        for (int r = 0; r < comm->n_ranks; r++)
            state->sources[r] = (const char *)state->world->boxes[r].in + slot * n_bytes;
        zn_reduce_sum(&(zn_reduce){
            .src = state->sources,
            .n_src = comm->n_ranks,
            .src_dtype = (zn_dtype)call->header.dtype,
            .dst_dtype = call->shard_dtype,
            .dst = (char *)call->out + (size_t)b * stride,
            .accumulate = call->accumulate,
            .n_elems = call->header.slice_elems,
        });
    }
}

static void copy_from(const zn_comm *comm, const zn_comm_call *call, int peer, size_t at)
{
    const thread_comm *const state = comm->state;
    const size_t n_bytes = (size_t)call->header.slice_elems;
    if (n_bytes)
        memmove((char *)call->out + at, state->world->boxes[peer].in, n_bytes);
}

/* All ranks make the same call here. */
static void do_part(const zn_comm *comm, const zn_comm_call *call)
{
    switch ((zn_comm_kind)call->header.kind) {
    case ZN_COMM_ALL_GATHER:
        all_gather(comm, call);
        break;
    case ZN_COMM_REDUCE_SCATTER:
        reduce_scatter(comm, call);
        break;
    case ZN_COMM_BROADCAST:
        if (comm->rank != call->header.root)
            copy_from(comm, call, call->header.root, 0);
        break;
    case ZN_COMM_EXCHANGE:
        for (int r = 0; r < comm->n_ranks; r++)
            copy_from(comm, call, r, (size_t)r * (size_t)call->header.slice_elems);
        break;
    case ZN_COMM_BARRIER:
    case ZN_COMM_N_KINDS:
        break;
    }
}

static zinc_status thread_run(zn_comm *comm, const zn_comm_call *call)
{
    const thread_comm *const state = comm->state;
    mailbox *const boxes = state->world->boxes;
    mailbox *const mine = &boxes[comm->rank];
    mine->header = call->header;
    mine->in = call->in;
    mine->stride_bytes = (size_t)call->shard_stride * zn_dtype_size((zn_dtype)call->header.dtype);
    ZN_TRY(meet(comm, &call->header));
    for (int r = 1; r < comm->n_ranks; r++)
        ZN_TRY(zn_comm_compare(0, &boxes[0].header, r, &boxes[r].header));
    do_part(comm, call);
    part(comm);
    return ZINC_OK;
}

/* ---- opening and closing ---- */

/* Takes this rank's mailbox in `world`. */
static zinc_status join_world(zn_comm *comm, zn_thread_world *world)
{
    zinc_status status;
    thread_comm *state = NULL;
    ZN_TRY(zn_alloc(&state, sizeof *state, "thread comm"));
    state->world = world;
    ZN_TRY_GOTO(zn_alloc_array(&state->sources, (size_t)comm->n_ranks, sizeof *state->sources,
                               "source pointers"));
    ZN_TRY_GOTO(zn_alloc_array(&state->missing, (size_t)comm->n_ranks, sizeof *state->missing,
                               "missing ranks"));
    pthread_mutex_lock(&world->lock);
    const bool failed = world->aborted, taken = world->boxes[comm->rank].taken;
    world->boxes[comm->rank].taken |= !failed;
    pthread_mutex_unlock(&world->lock);
    if (failed) /* for good: abort_error is not written any more */
        ZN_FAIL_GOTO(ZINC_E_ABORTED, "these ranks stopped before: %s", world->abort_error.message);
    if (taken)
        ZN_FAIL_GOTO(ZINC_E_INVALID, "rank %d of this world is open already", comm->rank);
    comm->state = state;
    return ZINC_OK;
fail:
    zn_free(state->sources);
    zn_free(state->missing);
    zn_free(state);
    return status;
}

static zinc_status thread_open(zn_comm *comm, const zn_comm_params *params)
{
    if (!params->world)
        ZN_FAIL(ZINC_E_INVALID, "the thread backend needs a world that its ranks share");
    if (params->n_ranks != params->world->n_ranks || params->rank < 0 ||
        params->rank >= params->n_ranks)
        ZN_FAIL(ZINC_E_INVALID, "rank %d of %d does not fit in a world of %d ranks", params->rank,
                params->n_ranks, params->world->n_ranks);
    comm->rank = params->rank;
    comm->n_ranks = params->n_ranks;
    return join_world(comm, params->world);
}

/* Made by the first rank of a group; its parent owns it from here on. */
static zinc_status create_group_world(zn_thread_world *parent, int n_ranks, int64_t *word)
{
    zn_thread_world *world = NULL;
    ZN_TRY(zn_thread_world_create(n_ranks, &world));
    world->parent = parent;
    world->n_users = n_ranks;
    pthread_mutex_lock(&parent->lock);
    world->next = parent->children;
    parent->children = world;
    pthread_mutex_unlock(&parent->lock);
    *word = (int64_t)(uintptr_t)world;
    return ZINC_OK;
}

static zinc_status thread_split(zn_comm *comm, const int *group, zn_comm *child)
{
    const thread_comm *const state = comm->state;
    zinc_status status = ZINC_OK;
    int64_t word = 0;
    if (child->rank == 0)
        status = create_group_world(state->world, child->n_ranks, &word);
    ZN_TRY(zn_comm_agree(comm, status));
    ZN_TRY(zn_comm_exchange(comm, &word, sizeof word, comm->words, "split"));
    zn_thread_world *const world = (zn_thread_world *)(uintptr_t)comm->words[group[0]];
    return zn_comm_agree(comm, join_world(child, world));
}

static void thread_close(zn_comm *comm)
{
    thread_comm *const state = comm->state;
    if (!state)
        return;
    pthread_mutex_lock(&state->world->lock);
    state->world->boxes[comm->rank].taken = false;
    pthread_mutex_unlock(&state->world->lock);
    leave_world(state->world);
    zn_free(state->sources);
    zn_free(state->missing);
    zn_free(state);
}

static void thread_abort(zn_comm *comm, const zn_error *error)
{
    const thread_comm *const state = comm->state;
    if (state)
        abort_world(state->world, error);
}

const zn_comm_ops zn_comm_thread_ops = {
    .name = "thread",
    .shares_memory = true,
    .open = thread_open,
    .split = thread_split,
    .close = thread_close,
    .run = thread_run,
    .abort = thread_abort,
};
