/* SPDX-License-Identifier: Apache-2.0 */
/* The embedding program moves bytes; this rank adds them up.
 *
 *   all_gather      block by block, straight into the full buffer
 *   reduce_scatter  block by block: all_to_all brings the ranks' versions of my slice side by side
 *                   into staging, and they are summed from there in rank order. Two stagings, so
 *                   that the next block moves while one is summed
 *
 * The program's functions may be called only on a thread that is inside a call of it, so calls run
 * inside submit (zn_comm_ops.on_caller). */
#include <string.h>

#include "base/mem.h"
#include "base/sys.h"
#include "comm/comm_internal.h"

#define N_STARTED 8 /* collectives started before the first is waited for; zinc/comm.h says so */
#define POLL_SECONDS_MIN 20e-6
#define POLL_SECONDS_MAX 1e-3

typedef struct host_comm {
    zinc_comm_host h;
    zn_comm_header *headers; /* [n_ranks] received; own one included */
    const void **sources;    /* [n_ranks] scratch of reduce_scatter */
    char *staging;           /* two halves */
    size_t staging_bytes;
    bool staging_busy; /* the program may still write there: never freed */
} host_comm;

/* ---- calling the program ---- */

/* The program's own message, if it left one with zinc_fail, follows ours. */
static void forget_message(void)
{
    static const zn_error none = {.status = ZINC_OK};
    zn_ignore(zn_error_restore(&none));
}

static zinc_status host_failed(const zn_comm *comm, const zn_comm_header *header, const char *name,
                               zinc_status status)
{
    char what[ZN_COMM_TEXT_BYTES];
    zn_error own;
    zn_error_save(&own, status);
    zn_comm_describe(header, what);
    if (status == ZINC_E_TIMEOUT)
        ZN_FAIL(ZINC_E_TIMEOUT,
                "rank %d waited %lld ms in %s; not all ranks have arrived%s%.2048s. Look at the "
                "log of the others, or raise the timeout",
                comm->rank, (long long)comm->timeout_ms, what, own.message[0] ? ": " : "",
                own.message);
    const bool known = status < 0 && status >= ZINC_E_INTERNAL;
    ZN_FAIL(known ? status : ZINC_E_COMM, "the host program's %s failed on rank %d in %s%s%.2048s",
            name, comm->rank, what, own.message[0] ? ": " : "", own.message);
}

static zinc_status poll_token(const zn_comm *comm, int64_t token)
{
    const zinc_comm_host *const h = &((const host_comm *)comm->state)->h;
    const double end = zn_sys_now() + (double)comm->timeout_ms * 1e-3;
    double pause = POLL_SECONDS_MIN;
    for (;;) {
        int done = 0;
        const zinc_status status = h->test(h->ctx, token, &done);
        if (status != ZINC_OK || done)
            return status;
        if (zn_sys_now() > end)
            return ZINC_E_TIMEOUT;
        zn_sys_sleep(pause);
        pause = pause * 2 < POLL_SECONDS_MAX ? pause * 2 : POLL_SECONDS_MAX;
    }
}

static zinc_status finish(const zn_comm *comm, const zn_comm_header *header, int64_t token)
{
    const zinc_comm_host *const h = &((const host_comm *)comm->state)->h;
    forget_message();
    const zinc_status status =
        h->wait ? h->wait(h->ctx, token, comm->timeout_ms) : poll_token(comm, token);
    return status == ZINC_OK ? ZINC_OK
                             : host_failed(comm, header, h->wait ? "wait" : "test", status);
}

static zinc_status start_gather(const zn_comm *comm, const zn_comm_header *header, const void *send,
                                void *recv, size_t n_bytes, int64_t *token)
{
    const zinc_comm_host *const h = &((const host_comm *)comm->state)->h;
    forget_message();
    const zinc_status status = h->all_gather(h->ctx, send, recv, n_bytes, token);
    return status == ZINC_OK ? ZINC_OK : host_failed(comm, header, "all_gather", status);
}

static zinc_status gather_now(const zn_comm *comm, const zn_comm_header *header, const void *send,
                              void *recv, size_t n_bytes)
{
    int64_t token = 0;
    if (n_bytes == 0)
        return ZINC_OK;
    ZN_TRY(start_gather(comm, header, send, recv, n_bytes, &token));
    return finish(comm, header, token);
}

/* ---- the collectives ---- */

/* Every rank makes the same call, or the first difference is named. */
static zinc_status meet(const zn_comm *comm, const zn_comm_header *header)
{
    const host_comm *const state = comm->state;
    ZN_TRY(gather_now(comm, header, header, state->headers, sizeof *header));
    for (int r = 1; r < comm->n_ranks; r++)
        ZN_TRY(zn_comm_compare(0, &state->headers[0], r, &state->headers[r]));
    return ZINC_OK;
}

static zinc_status gather_blocks(const zn_comm *comm, const zn_comm_call *call)
{
    const zn_comm_header *const h = &call->header;
    const size_t n_bytes = zn_comm_slice_bytes(h);
    const size_t stride = (size_t)call->shard_stride * zn_dtype_size((zn_dtype)h->dtype);
    int64_t tokens[N_STARTED], started = 0;
    if (n_bytes == 0)
        return ZINC_OK;
    for (int64_t b = 0; b < h->n_blocks; b++) {
        for (; started < h->n_blocks && started - b < N_STARTED; started++)
            ZN_TRY(
                start_gather(comm, h, (const char *)call->in + (size_t)started * stride,
                             (char *)call->out + (size_t)started * n_bytes * (size_t)comm->n_ranks,
                             n_bytes, &tokens[started % N_STARTED]));
        ZN_TRY(finish(comm, h, tokens[b % N_STARTED]));
    }
    return ZINC_OK;
}

/* Bytes that one block brings: my slice of every rank, or without all_to_all all slices. */
static size_t brought_bytes(const zn_comm *comm, const zn_comm_header *header)
{
    const host_comm *const state = comm->state;
    const size_t n = zn_comm_slice_bytes(header) * (size_t)comm->n_ranks;
    return state->h.all_to_all ? n : n * (size_t)comm->n_ranks;
}

static zinc_status need_staging(const zn_comm *comm, size_t n_bytes)
{
    host_comm *const state = comm->state;
    if (n_bytes <= state->staging_bytes)
        return ZINC_OK;
    zn_device_free(comm->dev, state->staging);
    state->staging = NULL;
    state->staging_bytes = 0;
    ZN_TRY(zn_device_alloc(comm->dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, n_bytes,
                           "gradients of other ranks, for summing", &state->staging));
    state->staging_bytes = n_bytes;
    return ZINC_OK;
}

static zinc_status start_block(const zn_comm *comm, const zn_comm_call *call, int64_t b, char *to,
                               int64_t *token)
{
    const zinc_comm_host *const host = &((const host_comm *)comm->state)->h;
    const size_t n_bytes = zn_comm_slice_bytes(&call->header);
    const size_t n_block = n_bytes * (size_t)comm->n_ranks;
    const char *const from = (const char *)call->in + (size_t)b * n_block;
    if (!host->all_to_all)
        return start_gather(comm, &call->header, from, to, n_block, token);
    forget_message();
    const zinc_status status = host->all_to_all(host->ctx, from, to, n_bytes, token);
    return status == ZINC_OK ? ZINC_OK : host_failed(comm, &call->header, "all_to_all", status);
}

static void sum_block(const zn_comm *comm, const zn_comm_call *call, int64_t b, const char *from)
{
    const host_comm *const state = comm->state;
    const size_t n_bytes = zn_comm_slice_bytes(&call->header);
    const size_t step = state->h.all_to_all ? n_bytes : n_bytes * (size_t)comm->n_ranks;
    const size_t skip = state->h.all_to_all ? 0 : n_bytes * (size_t)comm->rank;
    for (int r = 0; r < comm->n_ranks; r++)
        state->sources[r] = from + (size_t)r * step + skip;
    zn_reduce_sum(&(zn_reduce){
        .src = state->sources,
        .n_src = comm->n_ranks,
        .src_dtype = (zn_dtype)call->header.dtype,
        .dst_dtype = call->shard_dtype,
        .dst =
            (char *)call->out + (size_t)(b * call->shard_stride) * zn_dtype_size(call->shard_dtype),
        .accumulate = call->accumulate,
        .n_elems = call->header.slice_elems,
    });
}

static zinc_status reduce_blocks(const zn_comm *comm, const zn_comm_call *call)
{
    host_comm *const state = comm->state;
    const zn_comm_header *const h = &call->header;
    const size_t half = brought_bytes(comm, h);
    int64_t tokens[2];
    if (half == 0 || h->n_blocks == 0)
        return ZINC_OK;
    ZN_TRY(need_staging(comm, 2 * half));
    state->staging_busy = true;
    ZN_TRY(start_block(comm, call, 0, state->staging, &tokens[0]));
    for (int64_t b = 0; b < h->n_blocks; b++) {
        if (b + 1 < h->n_blocks)
            ZN_TRY(start_block(comm, call, b + 1, state->staging + (size_t)((b + 1) % 2) * half,
                               &tokens[(b + 1) % 2]));
        ZN_TRY(finish(comm, h, tokens[b % 2]));
        sum_block(comm, call, b, state->staging + (size_t)(b % 2) * half);
    }
    state->staging_busy = false;
    return ZINC_OK;
}

static zinc_status broadcast_bytes(const zn_comm *comm, const zn_comm_call *call)
{
    host_comm *const state = comm->state;
    const zinc_comm_host *const host = &state->h;
    const size_t n_bytes = (size_t)call->header.slice_elems;
    int64_t token = 0;
    if (n_bytes == 0)
        return ZINC_OK;
    if (!host->broadcast) {
        ZN_TRY(need_staging(comm, n_bytes * (size_t)comm->n_ranks));
        state->staging_busy = true;
        ZN_TRY(gather_now(comm, &call->header, call->in, state->staging, n_bytes));
        state->staging_busy = false;
        memcpy(call->out, state->staging + (size_t)call->header.root * n_bytes, n_bytes);
        return ZINC_OK;
    }
    forget_message();
    const zinc_status status =
        host->broadcast(host->ctx, call->out, n_bytes, call->header.root, &token);
    if (status != ZINC_OK)
        return host_failed(comm, &call->header, "broadcast", status);
    return finish(comm, &call->header, token);
}

static zinc_status host_run(zn_comm *comm, const zn_comm_call *call)
{
    const host_comm *const state = comm->state;
    const zn_comm_kind kind = (zn_comm_kind)call->header.kind;
    if (state->h.check_calls || kind == ZN_COMM_BARRIER)
        ZN_TRY(meet(comm, &call->header));
    switch (kind) {
    case ZN_COMM_ALL_GATHER:
        return gather_blocks(comm, call);
    case ZN_COMM_REDUCE_SCATTER:
        return reduce_blocks(comm, call);
    case ZN_COMM_BROADCAST:
        return broadcast_bytes(comm, call);
    case ZN_COMM_EXCHANGE:
        return gather_now(comm, &call->header, call->in, call->out,
                          (size_t)call->header.slice_elems);
    case ZN_COMM_BARRIER:
    case ZN_COMM_N_KINDS:
        break;
    }
    return ZINC_OK;
}

/* ---- opening and closing ---- */

static zinc_status check_host(const zinc_comm_host *host)
{
    if (!host)
        ZN_FAIL(ZINC_E_INVALID, "the host backend needs the host program's functions");
    if (host->n_ranks < 1 || host->rank < 0 || host->rank >= host->n_ranks)
        ZN_FAIL(ZINC_E_INVALID, "the host program says rank %d of %d: no such rank", host->rank,
                host->n_ranks);
    if (!host->all_gather)
        ZN_FAIL(ZINC_E_INVALID, "the host program gives no all_gather function");
    if (!host->wait && !host->test)
        ZN_FAIL(ZINC_E_INVALID, "the host program gives neither a wait nor a test function");
    return ZINC_OK;
}

/* comm->state is released by host_close, also half-built. */
static zinc_status create_state(zn_comm *comm, const zinc_comm_host *host)
{
    host_comm *state = NULL;
    ZN_TRY(zn_alloc(&state, sizeof *state, "host comm"));
    comm->state = state;
    state->h = *host;
    ZN_TRY(zn_alloc_array(&state->headers, (size_t)comm->n_ranks, sizeof *state->headers,
                          "headers of a comm"));
    return zn_alloc_array(&state->sources, (size_t)comm->n_ranks, sizeof *state->sources,
                          "source pointers");
}

static zinc_status host_open(zn_comm *comm, const zn_comm_params *params)
{
    ZN_TRY(check_host(params->host));
    comm->rank = params->host->rank;
    comm->n_ranks = params->host->n_ranks;
    return create_state(comm, params->host);
}

/* Not collective: the program's split is. */
static zinc_status open_group(const zn_comm *comm, const int *group, zn_comm *child)
{
    const host_comm *const state = comm->state;
    zinc_comm_host host = ZINC_COMM_HOST_INIT;
    if (!state->h.split)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "the host program makes no groups of ranks (zinc_comm_host.split)");
    forget_message();
    const zinc_status status = state->h.split(state->h.ctx, group, child->n_ranks, &host);
    if (status != ZINC_OK) {
        zn_error own;
        zn_error_save(&own, status);
        ZN_FAIL(ZINC_E_COMM, "the host program's split failed on rank %d%s%.2048s", comm->rank,
                own.message[0] ? ": " : "", own.message);
    }
    ZN_TRY(create_state(child, &host)); /* closes the program's group from here on */
    ZN_TRY(check_host(&host));
    if (host.rank != child->rank || host.n_ranks != child->n_ranks)
        ZN_FAIL(ZINC_E_INVALID,
                "the host program's split made rank %d of %d where rank %d of %d was asked for",
                host.rank, host.n_ranks, child->rank, child->n_ranks);
    return ZINC_OK;
}

static zinc_status host_split(zn_comm *comm, const int *group, zn_comm *child)
{
    return zn_comm_agree(comm, open_group(comm, group, child));
}

static void host_close(zn_comm *comm)
{
    host_comm *const state = comm->state;
    if (!state)
        return;
    if (comm->parent && state->h.close)
        state->h.close(state->h.ctx);
    if (!state->staging_busy)
        zn_device_free(comm->dev, state->staging);
    zn_free(state->headers);
    zn_free(state->sources);
    zn_free(state);
}

static void host_abort(zn_comm *comm, const zn_error *error)
{
    const host_comm *const state = comm->state;
    if (state && state->h.abort)
        state->h.abort(state->h.ctx, error->message);
}

const zn_comm_ops zn_comm_host_ops = {
    .name = "host",
    .on_caller = true,
    .open = host_open,
    .split = host_split,
    .close = host_close,
    .run = host_run,
    .abort = host_abort,
};
