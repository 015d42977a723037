/* SPDX-License-Identifier: Apache-2.0 */
/* The front of every backend: argument checks, counting, and putting calls on the comm's stream. */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/sys.h"
#include "device/trace.h"

/* A group cannot go on when the comm it was split from cannot. */
static zinc_status check_usable(const zn_comm *comm)
{
    for (; comm; comm = comm->parent)
        if (comm->failed)
            return zn_error_restore(&comm->error);
    return ZINC_OK;
}

/* ---- opening and closing ---- */

zinc_status zn_comm_handle_create(const zn_comm_ops *ops, zn_device *dev, int64_t timeout_ms,
                                  zn_comm **out)
{
    zinc_status status;
    zn_comm *comm = NULL;
    ZN_TRY(zn_alloc(&comm, sizeof *comm, "comm"));
    comm->ops = ops;
    comm->dev = dev;
    comm->timeout_ms = timeout_ms;
    if (pthread_mutex_init(&comm->lock, NULL) != 0)
        ZN_FAIL_GOTO(ZINC_E_DEVICE, "the system gave no mutex for a comm");
    comm->has_lock = true;
    ZN_TRY_GOTO(ops->on_caller ? zn_stream_create_inline(dev, "comm", &comm->stream)
                               : zn_stream_create(dev, "comm", &comm->stream));
    *out = comm;
    return ZINC_OK;
fail:
    zn_comm_handle_destroy(comm);
    return status;
}

zinc_status zn_comm_handle_size(zn_comm *comm)
{
    return zn_alloc_array(&comm->words, 2 * (size_t)comm->n_ranks, sizeof *comm->words,
                          "exchange words of a comm");
}

void zn_comm_handle_destroy(zn_comm *comm)
{
    if (!comm)
        return;
    zn_stream_destroy(comm->stream); /* drains */
    comm->ops->close(comm);
    if (comm->has_lock)
        pthread_mutex_destroy(&comm->lock);
    zn_free(comm->words);
    zn_free(comm);
}

zinc_status zn_comm_open(const zn_comm_params *params, zn_comm **out)
{
    zinc_status status;
    zn_comm *comm = NULL;
    const zn_comm_ops *ops = NULL;
    ZN_TRY(zn_comm_find_backend(params->backend, &ops));
    if (!params->dev)
        ZN_FAIL(ZINC_E_INVALID, "a comm needs a device");
    if (params->timeout_ms <= 0)
        ZN_FAIL(ZINC_E_INVALID, "the timeout of a comm must be above 0 ms, not %lld",
                (long long)params->timeout_ms);
    ZN_TRY(zn_comm_handle_create(ops, params->dev, params->timeout_ms, &comm));
    ZN_TRY_GOTO(ops->open(comm, params));
    ZN_TRY_GOTO(zn_comm_handle_size(comm));
    ZN_TRY_GOTO(zn_comm_barrier(comm, "open"));
    zn_debug("comm", "%s: rank %d of %d", ops->name, comm->rank, comm->n_ranks);
    *out = comm;
    return ZINC_OK;
fail:
    zn_comm_handle_destroy(comm);
    return status;
}

void zn_comm_close(zn_comm *comm)
{
    if (!comm)
        return;
    if (check_usable(comm) == ZINC_OK && zn_comm_barrier(comm, "close") != ZINC_OK)
        zn_debug("comm", "closing without the peers: %s", zinc_last_error());
    zn_comm_handle_destroy(comm);
}

/* ---- errors ---- */

void zn_comm_fail(zn_comm *comm, const zn_error *error)
{
    pthread_mutex_lock(&comm->lock);
    if (!comm->failed) {
        comm->error = *error;
        comm->failed = true;
    }
    pthread_mutex_unlock(&comm->lock);
}

void zn_comm_abort(zn_comm *comm, const char *reason)
{
    zn_error error = {.status = ZINC_E_ABORTED};
    snprintf(error.message, sizeof error.message, "rank %d aborted: %.*s", comm->rank,
             ZN_ERROR_BYTES / 2, reason ? reason : "no reason given");
    zn_comm_fail(comm, &error);
    comm->ops->abort(comm, &error);
}

/* ---- submitting ---- */

/* What the ZeRO paper counts (sec. 7): (P-1)/P of the full buffer a rank, which for n_blocks blocks
 * of P slices is (P-1) slices a block, exactly. As much arrives. */
static int64_t sent_elems(const zn_comm *comm, const zn_comm_header *header)
{
    return header->slice_elems * header->n_blocks * (comm->n_ranks - 1);
}

static int64_t sent_bytes(const zn_comm *comm, const zn_comm_header *header)
{
    return sent_elems(comm, header) * (int64_t)zn_dtype_size((zn_dtype)header->dtype);
}

/* On the stream's thread. A stand-in accelerator reaches its peers over its link. */
static zinc_status run_call(void *arg)
{
    const zn_comm_call *const call = arg;
    zn_comm *const comm = call->comm;
    zn_trace *const trace = zn_device_trace(comm->dev);
    const double start = zn_sys_now();
    zinc_status status = check_usable(comm);
    zn_device_memory_open(comm->dev);
    if (status == ZINC_OK)
        status = comm->ops->run(comm, call);
    zn_device_memory_close(comm->dev);
    if (status == ZINC_OK && call->counted && comm->n_ranks > 1)
        zn_device_link_wait(comm->dev, start, sent_bytes(comm, &call->header));
    if (trace)
        zn_trace_span(trace, zn_device_rank(comm->dev), ZN_TRACE_COMM,
                      zn_comm_kind_name(call->header.kind), call->header.tag, start, zn_sys_now());
    if (status != ZINC_OK) {
        zn_error error;
        zn_error_save(&error, status);
        zn_comm_fail(comm, &error);
        comm->ops->abort(comm, &error);
        status = zn_error_restore(&comm->error); /* whichever was first */
    }
    if (call->counted) {
        pthread_mutex_lock(&comm->lock);
        comm->stats.in_flight--;
        pthread_mutex_unlock(&comm->lock);
    }
    return status;
}

static const char *tag_text(const char *tag)
{
    return tag ? tag : "";
}

static void add_call(zn_comm_stats *stats, zn_comm_kind kind, int64_t n_elems, int64_t n_bytes)
{
    switch (kind) {
    case ZN_COMM_ALL_GATHER:
        stats->n_all_gather++;
        stats->all_gather_elems += n_elems;
        stats->all_gather_bytes += n_bytes;
        break;
    case ZN_COMM_REDUCE_SCATTER:
        stats->n_reduce_scatter++;
        stats->reduce_scatter_elems += n_elems;
        stats->reduce_scatter_bytes += n_bytes;
        break;
    default:
        stats->n_broadcast++;
        break;
    }
}

/* What a group moves, the comm that it was split from has moved too. */
static void count_call(zn_comm *comm, const zn_comm_header *header)
{
    zn_comm_stats *const stats = &comm->stats;
    const int64_t n_elems = sent_elems(comm, header), n_bytes = sent_bytes(comm, header);
    for (zn_comm *of = comm->parent; of; of = of->parent) {
        pthread_mutex_lock(&of->lock);
        add_call(&of->stats, (zn_comm_kind)header->kind, n_elems, n_bytes);
        pthread_mutex_unlock(&of->lock);
    }
    pthread_mutex_lock(&comm->lock);
    add_call(stats, (zn_comm_kind)header->kind, n_elems, n_bytes);
    stats->in_flight++;
    if (stats->in_flight > stats->in_flight_peak)
        stats->in_flight_peak = stats->in_flight;
    pthread_mutex_unlock(&comm->lock);
}

static zinc_status submit(zn_comm *comm, zn_comm_call *call, const char *tag, zn_event *event)
{
    ZN_TRY(check_usable(comm));
    call->comm = comm;
    call->header.seq = comm->next_seq;
    snprintf(call->header.tag, sizeof call->header.tag, "%.*s", ZN_COMM_TAG_BYTES - 1,
             tag_text(tag));
    if (call->counted)
        count_call(comm, &call->header);
    const zinc_status status = zn_stream_submit(comm->stream, run_call, call, sizeof *call, event);
    if (status == ZINC_OK)
        comm->next_seq++;
    return status;
}

/* Every call in front of this one ends by its own deadline, so the wait needs none. */
static zinc_status submit_and_wait(zn_comm *comm, zn_comm_call *call, const char *tag)
{
    zn_event event;
    ZN_TRY(submit(comm, call, tag, &event));
    return zn_event_wait(event, -1);
}

/* ---- slices ---- */

static bool is_sum_dtype(zn_dtype dtype)
{
    return dtype == ZN_DTYPE_F32 || dtype == ZN_DTYPE_BF16 || dtype == ZN_DTYPE_F16;
}

static zinc_status check_slices(const zn_comm *comm, const zn_slices *s, const char *tag)
{
    if ((int)s->dtype < ZN_DTYPE_F32 || (int)s->dtype > ZN_DTYPE_BOOL)
        ZN_FAIL(ZINC_E_INVALID, "\"%s\": %d is no element type", tag_text(tag), (int)s->dtype);
    if (s->slice_elems < 0 || s->n_blocks < 0 || s->shard_stride < s->slice_elems)
        ZN_FAIL(ZINC_E_INVALID,
                "\"%s\": %lld blocks of slices of %lld elements, %lld apart: no count may be "
                "negative, and the stride not below the slice",
                tag_text(tag), (long long)s->n_blocks, (long long)s->slice_elems,
                (long long)s->shard_stride);
    const int64_t block_bytes_max = INT64_MAX / comm->n_ranks / (int64_t)zn_dtype_size(s->dtype);
    if (s->n_blocks > 0 && (s->slice_elems > block_bytes_max / s->n_blocks ||
                            s->shard_stride > block_bytes_max / s->n_blocks))
        ZN_FAIL(ZINC_E_INVALID, "\"%s\": %lld blocks of slices of %lld elements are too large",
                tag_text(tag), (long long)s->n_blocks, (long long)s->slice_elems);
    return ZINC_OK;
}

/* A shard inside the full buffer must lie in its final place; anything else overlaps other slices.
 */
static zinc_status check_overlap(const zn_comm *comm, const zn_comm_call *call, const char *tag)
{
    const bool gather = call->header.kind == ZN_COMM_ALL_GATHER;
    const zn_comm_header *const h = &call->header;
    const uintptr_t full = (uintptr_t)(gather ? call->out : call->in);
    const uintptr_t shard = (uintptr_t)(gather ? call->in : call->out);
    const size_t full_bytes = zn_comm_slice_bytes(h) * (size_t)h->n_blocks * (size_t)comm->n_ranks;
    const size_t shard_bytes =
        h->n_blocks
            ? ((size_t)call->shard_stride * (size_t)(h->n_blocks - 1) + (size_t)h->slice_elems) *
                  zn_dtype_size(call->shard_dtype)
            : 0;
    if (full_bytes == 0)
        return ZINC_OK;
    if (!full || !shard)
        ZN_FAIL(ZINC_E_INVALID, "\"%s\": no %s buffer was given", tag_text(tag),
                full ? "shard" : "full");
    if (shard >= full + full_bytes || full >= shard + shard_bytes)
        return ZINC_OK;
    if (!zn_comm_in_place(comm, call))
        ZN_FAIL(ZINC_E_INVALID,
                "\"%s\": the shard overlaps the full buffer but is not in its place there (element "
                "%lld, slices %lld apart)",
                tag_text(tag), (long long)(h->slice_elems * comm->rank),
                (long long)(h->slice_elems * comm->n_ranks));
    if (!gather && (h->dtype != ZN_DTYPE_F32 || call->shard_dtype != ZN_DTYPE_F32))
        ZN_FAIL(ZINC_E_INVALID,
                "\"%s\": only a float32 shard may lie inside the float32 full buffer",
                tag_text(tag));
    return ZINC_OK;
}

static zn_comm_call slices_call(zn_comm_kind kind, const zn_slices *slices)
{
    return (zn_comm_call){
        .header = {.kind = (int32_t)kind,
                   .dtype = (int32_t)slices->dtype,
                   .slice_elems = slices->slice_elems,
                   .n_blocks = slices->n_blocks},
        .shard_stride = slices->shard_stride,
        .shard_dtype = slices->dtype,
        .counted = true,
    };
}

zinc_status zn_comm_all_gather(zn_comm *comm, void *full, const void *shard,
                               const zn_slices *slices, const char *tag, zn_event *event)
{
    ZN_TRY(check_slices(comm, slices, tag));
    zn_comm_call call = slices_call(ZN_COMM_ALL_GATHER, slices);
    call.in = shard;
    call.out = full;
    ZN_TRY(check_overlap(comm, &call, tag));
    return submit(comm, &call, tag, event);
}

zinc_status zn_comm_reduce_scatter(zn_comm *comm, const void *full, void *shard,
                                   const zn_slices *slices, zn_dtype shard_dtype, bool accumulate,
                                   const char *tag, zn_event *event)
{
    ZN_TRY(check_slices(comm, slices, tag));
    if (!is_sum_dtype(slices->dtype) || !is_sum_dtype(shard_dtype))
        ZN_FAIL(ZINC_E_INVALID,
                "\"%s\": reduce_scatter sums float32, bfloat16 and float16, not %s into %s",
                tag_text(tag), zn_dtype_name(slices->dtype),
                is_sum_dtype(shard_dtype) ? zn_dtype_name(shard_dtype) : "that type");
    zn_comm_call call = slices_call(ZN_COMM_REDUCE_SCATTER, slices);
    call.in = full;
    call.out = shard;
    call.shard_dtype = shard_dtype;
    call.accumulate = accumulate;
    ZN_TRY(check_overlap(comm, &call, tag));
    return submit(comm, &call, tag, event);
}

/* ---- bytes ---- */

static zn_comm_call bytes_call(zn_comm_kind kind, size_t n_bytes, int root)
{
    return (zn_comm_call){
        .header = {.kind = (int32_t)kind,
                   .root = root,
                   .dtype = ZN_DTYPE_U8,
                   .slice_elems = (int64_t)n_bytes,
                   .n_blocks = 1},
        .shard_dtype = ZN_DTYPE_U8,
    };
}

static zinc_status check_bytes(const zn_comm *comm, size_t n_bytes, const void *ptr,
                               const char *tag)
{
    if (n_bytes > (size_t)(INT64_MAX / comm->n_ranks))
        ZN_FAIL(ZINC_E_INVALID, "\"%s\": %zu bytes a rank are too many", tag_text(tag), n_bytes);
    if (n_bytes > 0 && !ptr)
        ZN_FAIL(ZINC_E_INVALID, "\"%s\": no buffer was given for %zu bytes", tag_text(tag),
                n_bytes);
    return ZINC_OK;
}

zinc_status zn_comm_broadcast(zn_comm *comm, void *buf, size_t n_bytes, int root, const char *tag,
                              zn_event *event)
{
    ZN_TRY(check_bytes(comm, n_bytes, buf, tag));
    if (root < 0 || root >= comm->n_ranks)
        ZN_FAIL(ZINC_E_INVALID, "\"%s\": there is no rank %d to broadcast from (%d ranks)",
                tag_text(tag), root, comm->n_ranks);
    zn_comm_call call = bytes_call(ZN_COMM_BROADCAST, n_bytes, root);
    call.in = buf;
    call.out = buf;
    call.counted = true;
    return submit(comm, &call, tag, event);
}

zinc_status zn_comm_broadcast_now(zn_comm *comm, void *buf, size_t n_bytes, int root,
                                  const char *tag)
{
    zn_comm_call call = bytes_call(ZN_COMM_BROADCAST, n_bytes, root);
    call.in = buf;
    call.out = buf;
    return submit_and_wait(comm, &call, tag);
}

zinc_status zn_comm_barrier(zn_comm *comm, const char *tag)
{
    zn_comm_call call = bytes_call(ZN_COMM_BARRIER, 0, 0);
    return submit_and_wait(comm, &call, tag);
}

zinc_status zn_comm_exchange(zn_comm *comm, const void *mine, size_t n_bytes, void *out,
                             const char *tag)
{
    ZN_TRY(check_bytes(comm, n_bytes, mine, tag));
    ZN_TRY(check_bytes(comm, n_bytes, out, tag));
    zn_comm_call call = bytes_call(ZN_COMM_EXCHANGE, n_bytes, 0);
    call.in = mine;
    call.out = out;
    return submit_and_wait(comm, &call, tag);
}

/* ---- asking ---- */

int zn_comm_rank(const zn_comm *comm)
{
    return comm->rank;
}

int zn_comm_n_ranks(const zn_comm *comm)
{
    return comm->n_ranks;
}

const char *zn_comm_backend(const zn_comm *comm)
{
    return comm->ops->name;
}

zn_stream *zn_comm_stream(zn_comm *comm)
{
    return comm->stream;
}

void zn_comm_get_stats(zn_comm *comm, zn_comm_stats *out)
{
    pthread_mutex_lock(&comm->lock);
    *out = comm->stats;
    if (comm->failed)
        out->in_flight = 0; /* what was queued behind the failure was dropped */
    pthread_mutex_unlock(&comm->lock);
}

void zn_comm_reset_stats(zn_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const int64_t in_flight = comm->stats.in_flight;
    comm->stats = (zn_comm_stats){.in_flight = in_flight, .in_flight_peak = in_flight};
    pthread_mutex_unlock(&comm->lock);
}
