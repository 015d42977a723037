/* SPDX-License-Identifier: Apache-2.0 */
/* One rank: every collective is a copy, or nothing. */
#include <string.h>

#include "comm/comm_internal.h"

static zinc_status self_open(zn_comm *comm, const zn_comm_params *params)
{
    (void)params;
    comm->rank = 0;
    comm->n_ranks = 1;
    return ZINC_OK;
}

static zinc_status self_split(zn_comm *comm, const int *group, zn_comm *child)
{
    (void)comm;
    (void)group;
    (void)child;
    return ZINC_OK;
}

static void self_close(zn_comm *comm)
{
    (void)comm;
}

static void copy_slices(const zn_comm_call *call)
{
    const size_t n_bytes = zn_comm_slice_bytes(&call->header);
    const size_t stride = (size_t)call->shard_stride * zn_dtype_size((zn_dtype)call->header.dtype);
    for (int64_t b = 0; b < call->header.n_blocks; b++)
        memcpy((char *)call->out + (size_t)b * n_bytes, (const char *)call->in + (size_t)b * stride,
               n_bytes);
}

static void reduce_slices(const zn_comm_call *call)
{
    const size_t n_bytes = zn_comm_slice_bytes(&call->header);
    const size_t stride = (size_t)call->shard_stride * zn_dtype_size(call->shard_dtype);
    for (int64_t b = 0; b < call->header.n_blocks; b++) {
        const void *const src = (const char *)call->in + (size_t)b * n_bytes;
        zn_reduce_sum(&(zn_reduce){
            .src = &src,
            .n_src = 1,
            .src_dtype = (zn_dtype)call->header.dtype,
            .dst_dtype = call->shard_dtype,
            .dst = (char *)call->out + (size_t)b * stride,
            .accumulate = call->accumulate,
            .n_elems = call->header.slice_elems,
        });
    }
}

static zinc_status self_run(zn_comm *comm, const zn_comm_call *call)
{
    switch ((zn_comm_kind)call->header.kind) {
    case ZN_COMM_ALL_GATHER:
        if (!zn_comm_in_place(comm, call))
            copy_slices(call);
        break;
    case ZN_COMM_REDUCE_SCATTER:
        reduce_slices(call);
        break;
    case ZN_COMM_EXCHANGE:
        if (call->header.slice_elems)
            memmove(call->out, call->in, (size_t)call->header.slice_elems);
        break;
    case ZN_COMM_BROADCAST:
    case ZN_COMM_BARRIER:
    case ZN_COMM_N_KINDS:
        break;
    }
    return ZINC_OK;
}

static void self_abort(zn_comm *comm, const zn_error *error)
{
    (void)comm;
    (void)error;
}

const zn_comm_ops zn_comm_self_ops = {
    .name = "self",
    .shares_memory = true,
    .open = self_open,
    .split = self_split,
    .close = self_close,
    .run = self_run,
    .abort = self_abort,
};
