/* SPDX-License-Identifier: Apache-2.0 */
/* One process a rank, over MPI. Every call sends its header to every peer and waits for theirs:
 * that is the meeting that has a deadline, finds mismatches, and knows who is missing. Then bytes
 * move straight between the buffers in pieces; sums are made here, in rank order, from staged
 * pieces. */
#include "comm/mpi_internal.h"

#ifdef ZINC_HAVE_MPI

#include <string.h>

#include "base/mem.h"

#define MOVE_BYTES ((size_t)32 << 20)   /* largest message; far below INT_MAX */
#define STAGING_BYTES ((size_t)4 << 20) /* both halves, all peers */
#define MIN_PIECE_ELEMS 1024
#define MIN_REQUESTS 64

/* ---- opening and closing ---- */

static zinc_status init_batch(mpi_batch *batch, int capacity)
{
    const size_t n = (size_t)capacity;
    batch->capacity = capacity;
    ZN_TRY(zn_alloc_array(&batch->requests, n, sizeof *batch->requests, "MPI requests"));
    ZN_TRY(zn_alloc_array(&batch->peers, n, sizeof *batch->peers, "MPI request peers"));
    ZN_TRY(zn_alloc_array(&batch->receives, n, sizeof *batch->receives, "MPI request kinds"));
    for (int i = 0; i < capacity; i++)
        batch->requests[i] = MPI_REQUEST_NULL;
    return ZINC_OK;
}

static void free_state(mpi_comm *m)
{
    if (!m)
        return;
    for (int i = 0; i < 2; i++) {
        zn_free(m->batches[i].requests);
        zn_free(m->batches[i].peers);
        zn_free(m->batches[i].receives);
    }
    if (!m->staging_busy)
        zn_device_free(m->comm->dev, m->staging);
    zn_free(m->indices);
    zn_free(m->statuses);
    zn_free(m->abort_sends);
    zn_free(m->mpi_ranks);
    zn_free(m->headers);
    zn_free(m->sources);
    zn_free(m->missing);
    zn_free(m);
}

static zinc_status create_state(zn_comm *comm, int id, mpi_comm **out)
{
    zinc_status status;
    mpi_comm *m = NULL;
    const size_t n = (size_t)comm->n_ranks;
    const int capacity = comm->n_ranks > MIN_REQUESTS / 2 ? 2 * comm->n_ranks : MIN_REQUESTS;
    ZN_TRY(zn_alloc(&m, sizeof *m, "mpi comm"));
    m->comm = comm;
    m->id = id;
    ZN_TRY_GOTO(init_batch(&m->batches[0], capacity));
    ZN_TRY_GOTO(init_batch(&m->batches[1], capacity));
    ZN_TRY_GOTO(
        zn_alloc_array(&m->indices, (size_t)capacity, sizeof *m->indices, "request indices"));
    ZN_TRY_GOTO(
        zn_alloc_array(&m->statuses, (size_t)capacity, sizeof *m->statuses, "request states"));
    ZN_TRY_GOTO(zn_alloc_array(&m->abort_sends, n, sizeof *m->abort_sends, "abort requests"));
    ZN_TRY_GOTO(zn_alloc_array(&m->mpi_ranks, n, sizeof *m->mpi_ranks, "MPI ranks"));
    ZN_TRY_GOTO(zn_alloc_array(&m->headers, n, sizeof *m->headers, "headers"));
    ZN_TRY_GOTO(zn_alloc_array(&m->sources, n, sizeof *m->sources, "source pointers"));
    ZN_TRY_GOTO(zn_alloc_array(&m->missing, n, sizeof *m->missing, "missing ranks"));
    for (size_t r = 0; r < n; r++) {
        m->mpi_ranks[r] = (int)r;
        m->abort_sends[r] = MPI_REQUEST_NULL;
    }
    *out = m;
    return ZINC_OK;
fail:
    free_state(m);
    return status;
}

static zinc_status mpi_open(zn_comm *comm, const zn_comm_params *params)
{
    zinc_status status;
    mpi_comm *m = NULL;
    int rank = 0, n_ranks = 0, id = 0;
    ZN_TRY(zn_mpi_begin(&rank, &n_ranks, &id));
    if (params->n_ranks != 0 && (params->n_ranks != n_ranks || params->rank != rank))
        ZN_FAIL_GOTO(ZINC_E_INVALID, "MPI started rank %d of %d, not rank %d of %d", rank, n_ranks,
                     params->rank, params->n_ranks);
    comm->rank = rank;
    comm->n_ranks = n_ranks;
    ZN_TRY_GOTO(create_state(comm, id, &m));
    ZN_TRY_GOTO(zn_mpi_register(m));
    comm->state = m;
    return ZINC_OK;
fail:
    free_state(m);
    zn_mpi_end(true);
    return status;
}

static zinc_status create_group(const zn_comm *comm, const int *group, int id, zn_comm *child)
{
    zinc_status status;
    const mpi_comm *const parent = comm->state;
    mpi_comm *m = NULL;
    ZN_TRY(create_state(child, id, &m));
    for (int r = 0; r < child->n_ranks; r++)
        m->mpi_ranks[r] = parent->mpi_ranks[group[r]];
    ZN_TRY_GOTO(zn_mpi_register(m));
    child->state = m;
    return ZINC_OK;
fail:
    free_state(m);
    return status;
}

static zinc_status mpi_split(zn_comm *comm, const int *group, zn_comm *child)
{
    const int64_t mine = zn_mpi_next_group();
    int64_t taken = 0;
    ZN_TRY(zn_comm_exchange(comm, &mine, sizeof mine, comm->words, "split"));
    for (int r = 0; r < comm->n_ranks; r++)
        taken = comm->words[r] > taken ? comm->words[r] : taken;
    const int id = zn_mpi_take_group(taken);
    return zn_comm_agree(comm, create_group(comm, group, id, child));
}

static void mpi_close(zn_comm *comm)
{
    mpi_comm *const m = comm->state;
    if (!m)
        return;
    zn_mpi_forget(m);
    free_state(m);
    if (!comm->parent)
        zn_mpi_end(comm->failed);
}

static void mpi_abort(zn_comm *comm, const zn_error *error)
{
    if (comm->state)
        zn_mpi_send_abort(comm->state, error);
}

/* ---- moving bytes ---- */

static int peer_after(const zn_comm *comm, int i)
{
    return (comm->rank + i) % comm->n_ranks;
}

static int peer_before(const zn_comm *comm, int i)
{
    return (comm->rank + comm->n_ranks - i) % comm->n_ranks;
}

/* Every rank's header to every rank, and the comparison. */
static zinc_status meet(mpi_comm *m, const zn_comm_header *header)
{
    const zn_comm *const comm = m->comm;
    mpi_batch *const batch = &m->batches[0];
    m->mine = *header;
    m->headers[comm->rank] = *header;
    for (int i = 1; i < comm->n_ranks; i++) {
        const int from = peer_before(comm, i), to = peer_after(comm, i);
        ZN_TRY(zn_mpi_post(m, batch, true, &m->headers[from], sizeof *header, from, 2 * m->id));
        ZN_TRY(zn_mpi_post(m, batch, false, &m->mine, sizeof *header, to, 2 * m->id));
    }
    ZN_TRY(zn_mpi_finish(m, batch, true));
    for (int r = 1; r < comm->n_ranks; r++)
        ZN_TRY(zn_comm_compare(0, &m->headers[0], r, &m->headers[r]));
    return ZINC_OK;
}

static zinc_status receive(mpi_comm *m, mpi_batch *batch, void *buf, size_t n_bytes, int peer)
{
    return zn_mpi_post(m, batch, true, buf, n_bytes, peer, 2 * m->id + 1);
}

static zinc_status send(mpi_comm *m, mpi_batch *batch, const void *buf, size_t n_bytes, int peer)
{
    /* MPI_Isend takes const memory; zn_mpi_post serves both directions with one pointer. */
    return zn_mpi_post(m, batch, false, (void *)(uintptr_t)buf, n_bytes, peer, 2 * m->id + 1);
}

/* Room for one message to and one from every peer. */
static zinc_status make_room(mpi_comm *m, mpi_batch *batch)
{
    if (batch->n + 2 * (m->comm->n_ranks - 1) <= batch->capacity)
        return ZINC_OK;
    return zn_mpi_finish(m, batch, false);
}

/* One block of an all_gather: `full` [n_ranks][n_bytes], `mine` [n_bytes]. */
static zinc_status gather_block(mpi_comm *m, char *full, const char *mine, size_t n_bytes)
{
    const zn_comm *const comm = m->comm;
    mpi_batch *const batch = &m->batches[0];
    for (size_t at = 0; at < n_bytes; at += MOVE_BYTES) {
        const size_t n = n_bytes - at < MOVE_BYTES ? n_bytes - at : MOVE_BYTES;
        ZN_TRY(make_room(m, batch));
        for (int i = 1; i < comm->n_ranks; i++) {
            const int from = peer_before(comm, i);
            ZN_TRY(receive(m, batch, full + (size_t)from * n_bytes + at, n, from));
            ZN_TRY(send(m, batch, mine + at, n, peer_after(comm, i)));
        }
    }
    char *const place = full + (size_t)comm->rank * n_bytes;
    if (place != mine && n_bytes)
        memmove(place, mine, n_bytes);
    return ZINC_OK;
}

static zinc_status all_gather(mpi_comm *m, const zn_comm_call *call)
{
    const size_t n_bytes = zn_comm_slice_bytes(&call->header);
    const size_t block_bytes = n_bytes * (size_t)m->comm->n_ranks;
    const size_t stride = (size_t)call->shard_stride * zn_dtype_size((zn_dtype)call->header.dtype);
    for (int64_t b = 0; b < call->header.n_blocks; b++)
        ZN_TRY(gather_block(m, (char *)call->out + (size_t)b * block_bytes,
                            (const char *)call->in + (size_t)b * stride, n_bytes));
    return zn_mpi_finish(m, &m->batches[0], false);
}

static zinc_status broadcast(mpi_comm *m, const zn_comm_call *call)
{
    const zn_comm *const comm = m->comm;
    mpi_batch *const batch = &m->batches[0];
    const size_t n_bytes = (size_t)call->header.slice_elems;
    for (size_t at = 0; at < n_bytes; at += MOVE_BYTES) {
        const size_t n = n_bytes - at < MOVE_BYTES ? n_bytes - at : MOVE_BYTES;
        ZN_TRY(make_room(m, batch));
        if (comm->rank != call->header.root) {
            ZN_TRY(receive(m, batch, (char *)call->out + at, n, call->header.root));
            continue;
        }
        for (int i = 1; i < comm->n_ranks; i++)
            ZN_TRY(send(m, batch, (const char *)call->in + at, n, peer_after(comm, i)));
    }
    return zn_mpi_finish(m, batch, false);
}

/* ---- reduce_scatter ---- */

/* A run of elements of one slice. */
typedef struct piece {
    int64_t block, offset, n; /* elements */
} piece;

/* The piece after `p`, of at most n_max elements; false after the last. Start with n 0. */
static bool next_piece(const zn_comm_header *h, int64_t n_max, piece *p)
{
    p->offset += p->n;
    if (p->offset >= h->slice_elems) {
        p->offset = 0;
        p->block++;
    }
    p->n = h->slice_elems - p->offset < n_max ? h->slice_elems - p->offset : n_max;
    return p->block < h->n_blocks && p->n > 0;
}

static int64_t piece_elems(const zn_comm *comm, const zn_comm_header *h)
{
    const size_t n_peers = comm->n_ranks > 1 ? (size_t)comm->n_ranks - 1 : 1;
    int64_t n = (int64_t)(STAGING_BYTES / 2 / n_peers / zn_dtype_size((zn_dtype)h->dtype));
    n = n / MIN_PIECE_ELEMS * MIN_PIECE_ELEMS;
    n = n < MIN_PIECE_ELEMS ? MIN_PIECE_ELEMS : n;
    return n < h->slice_elems ? n : h->slice_elems;
}

static zinc_status need_staging(mpi_comm *m, size_t n_bytes)
{
    zn_device *const dev = m->comm->dev;
    if (n_bytes <= m->staging_bytes)
        return ZINC_OK;
    zn_device_free(dev, m->staging);
    m->staging = NULL;
    m->staging_bytes = 0;
    ZN_TRY(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, n_bytes, "reduce_scatter staging",
                           &m->staging));
    m->staging_bytes = n_bytes;
    return ZINC_OK;
}

typedef struct scatter {
    const zn_comm_call *call;
    size_t size;       /* of a wire element */
    size_t slot_bytes; /* staging of one piece of one peer */
    size_t slice_bytes;
} scatter;

/* Where the piece of `slice` of the local full buffer begins. */
static const char *local_piece(const zn_comm *comm, const scatter *s, const piece *p, int slice)
{
    const size_t slot = (size_t)p->block * (size_t)comm->n_ranks + (size_t)slice;
    return (const char *)s->call->in + slot * s->slice_bytes + (size_t)p->offset * s->size;
}

/* Staging of half 0 or 1 for the peer that is `i` ranks before this one, 1 <= i < n_ranks. */
static char *staged_piece(const mpi_comm *m, const scatter *s, int half, int i)
{
    const size_t slot = (size_t)half * (size_t)(m->comm->n_ranks - 1) + (size_t)(i - 1);
    return m->staging + slot * s->slot_bytes;
}

static zinc_status post_piece(mpi_comm *m, const scatter *s, const piece *p, int half)
{
    const size_t n_bytes = (size_t)p->n * s->size;
    for (int i = 1; i < m->comm->n_ranks; i++) {
        const int to = peer_after(m->comm, i);
        ZN_TRY(receive(m, &m->batches[half], staged_piece(m, s, half, i), n_bytes,
                       peer_before(m->comm, i)));
        ZN_TRY(send(m, &m->batches[half], local_piece(m->comm, s, p, to), n_bytes, to));
    }
    return ZINC_OK;
}

static void sum_piece(mpi_comm *m, const scatter *s, const piece *p, int half)
{
    const zn_comm_call *const call = s->call;
    const size_t at = (size_t)(p->block * call->shard_stride + p->offset);
    m->sources[m->comm->rank] = local_piece(m->comm, s, p, m->comm->rank);
    for (int i = 1; i < m->comm->n_ranks; i++)
        m->sources[peer_before(m->comm, i)] = staged_piece(m, s, half, i);
    zn_reduce_sum(&(zn_reduce){
        .src = m->sources,
        .n_src = m->comm->n_ranks,
        .src_dtype = (zn_dtype)call->header.dtype,
        .dst_dtype = call->shard_dtype,
        .dst = (char *)call->out + at * zn_dtype_size(call->shard_dtype),
        .accumulate = call->accumulate,
        .n_elems = p->n,
    });
}

static zinc_status reduce_scatter(mpi_comm *m, const zn_comm_call *call)
{
    const zn_comm_header *const h = &call->header;
    const int64_t n_max = piece_elems(m->comm, h);
    scatter s = {.call = call,
                 .size = zn_dtype_size((zn_dtype)h->dtype),
                 .slice_bytes = zn_comm_slice_bytes(h)};
    piece now = {0}, next;
    int half = 0;
    s.slot_bytes = ((size_t)n_max * s.size + 63) / 64 * 64;
    if (!next_piece(h, n_max, &now))
        return ZINC_OK;
    ZN_TRY(need_staging(m, 2 * (size_t)(m->comm->n_ranks - 1) * s.slot_bytes));
    ZN_TRY(post_piece(m, &s, &now, half));
    for (bool more = true; more; half ^= 1, now = next) {
        next = now;
        more = next_piece(h, n_max, &next);
        if (more)
            ZN_TRY(post_piece(m, &s, &next, half ^ 1));
        ZN_TRY(zn_mpi_finish(m, &m->batches[half], false));
        sum_piece(m, &s, &now, half);
    }
    return ZINC_OK;
}

/* ---- the table ---- */

static zinc_status run_call(mpi_comm *m, const zn_comm_call *call)
{
    ZN_TRY(meet(m, &call->header));
    switch ((zn_comm_kind)call->header.kind) {
    case ZN_COMM_ALL_GATHER:
    case ZN_COMM_EXCHANGE: /* one block of bytes */
        return all_gather(m, call);
    case ZN_COMM_REDUCE_SCATTER:
        return reduce_scatter(m, call);
    case ZN_COMM_BROADCAST:
        return broadcast(m, call);
    case ZN_COMM_BARRIER:
    case ZN_COMM_N_KINDS:
        break;
    }
    return ZINC_OK;
}

static zinc_status mpi_run(zn_comm *comm, const zn_comm_call *call)
{
    mpi_comm *const m = comm->state;
    const zinc_status status = run_call(m, call);
    for (int i = 0; status != ZINC_OK && i < 2; i++)
        zn_mpi_drop(m, &m->batches[i]);
    return status;
}

const zn_comm_ops zn_comm_mpi_ops = {
    .name = "mpi",
    .shares_memory = false,
    .open = mpi_open,
    .split = mpi_split,
    .close = mpi_close,
    .run = mpi_run,
    .abort = mpi_abort,
};

#endif
