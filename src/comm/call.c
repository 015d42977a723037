/* SPDX-License-Identifier: Apache-2.0 */
/* One collective call: what it is called in messages, and whether two ranks mean the same one. */
#include <stdio.h>
#include <string.h>

#include "comm/comm_internal.h"

const char *zn_comm_kind_name(int32_t kind)
{
    static const char *const names[ZN_COMM_N_KINDS] = {
        [ZN_COMM_ALL_GATHER] = "all_gather", [ZN_COMM_REDUCE_SCATTER] = "reduce_scatter",
        [ZN_COMM_BROADCAST] = "broadcast",   [ZN_COMM_EXCHANGE] = "exchange",
        [ZN_COMM_BARRIER] = "barrier",
    };
    return kind >= 0 && kind < ZN_COMM_N_KINDS ? names[kind] : "unknown call";
}

size_t zn_comm_slice_bytes(const zn_comm_header *header)
{
    return (size_t)header->slice_elems * zn_dtype_size((zn_dtype)header->dtype);
}

bool zn_comm_in_place(const zn_comm *comm, const zn_comm_call *call)
{
    const bool gather = call->header.kind == ZN_COMM_ALL_GATHER;
    const char *const full = gather ? call->out : call->in;
    const char *const shard = gather ? call->in : call->out;
    const zn_comm_header *const h = &call->header;
    return shard == full + (size_t)comm->rank * zn_comm_slice_bytes(h) &&
           (h->n_blocks <= 1 || call->shard_stride == h->slice_elems * comm->n_ranks);
}

void zn_comm_describe(const zn_comm_header *header, char text[ZN_COMM_TEXT_BYTES])
{
    char size[80] = "";
    switch (header->kind) {
    case ZN_COMM_ALL_GATHER:
    case ZN_COMM_REDUCE_SCATTER:
        snprintf(size, sizeof size, " (%s, %lld blocks of %lld elements a rank)",
                 header->dtype >= ZN_DTYPE_F32 && header->dtype <= ZN_DTYPE_BOOL
                     ? zn_dtype_name((zn_dtype)header->dtype)
                     : "?",
                 (long long)header->n_blocks, (long long)header->slice_elems);
        break;
    case ZN_COMM_BROADCAST:
        snprintf(size, sizeof size, " (%lld bytes from rank %d)", (long long)header->slice_elems,
                 (int)header->root);
        break;
    case ZN_COMM_EXCHANGE:
        snprintf(size, sizeof size, " (%lld bytes a rank)", (long long)header->slice_elems);
        break;
    default:
        break;
    }
    snprintf(text, ZN_COMM_TEXT_BYTES, "%s #%lld \"%.*s\"%s", zn_comm_kind_name(header->kind),
             (long long)header->seq, ZN_COMM_TAG_BYTES, header->tag, size);
}

zinc_status zn_comm_compare(int rank_a, const zn_comm_header *a, int rank_b,
                            const zn_comm_header *b)
{
    char text_a[ZN_COMM_TEXT_BYTES], text_b[ZN_COMM_TEXT_BYTES];
    if (a->seq == b->seq && a->kind == b->kind && a->root == b->root && a->dtype == b->dtype &&
        a->slice_elems == b->slice_elems && a->n_blocks == b->n_blocks &&
        strncmp(a->tag, b->tag, ZN_COMM_TAG_BYTES) == 0)
        return ZINC_OK;
    zn_comm_describe(a, text_a);
    zn_comm_describe(b, text_b);
    ZN_FAIL(ZINC_E_COMM,
            "the ranks do not make the same call: rank %d %s, rank %d %s. Every rank must make the "
            "same collective calls in the same order",
            rank_a, text_a, rank_b, text_b);
}

zinc_status zn_comm_timed_out(const zn_comm *comm, const zn_comm_header *header,
                              const bool *missing)
{
    char what[ZN_COMM_TEXT_BYTES], ranks[256] = "";
    size_t n = 0;
    int count = 0;
    for (int r = 0; r < comm->n_ranks; r++) {
        if (!missing[r])
            continue;
        if (n < sizeof ranks - 16)
            n += (size_t)snprintf(ranks + n, sizeof ranks - n, "%s%d", count ? ", " : "", r);
        count++;
    }
    zn_comm_describe(header, what);
    ZN_FAIL(
        ZINC_E_TIMEOUT,
        "rank %d waited %lld ms in %s; of %d ranks %d %s not arrived: %s %s%s. Look at the log of "
        "what is missing, or raise the timeout",
        comm->rank, (long long)comm->timeout_ms, what, comm->n_ranks, count,
        count == 1 ? "has" : "have", count == 1 ? "rank" : "ranks", ranks,
        n >= sizeof ranks - 16 ? ", …" : "");
}
