/* SPDX-License-Identifier: Apache-2.0 */
/* api_comm.c — a public comm is a rank: a device with its account, and the comm on it. */
#include <string.h>

#include "api/api_internal.h"
#include "base/mem.h"
#include "base/sys.h"

#define MAX_SUMS 64

/* ---- opening and closing ---- */

/* `open` names the backend and what it needs; `n_here`: ranks that share this machine's cores, as
 * far as is known. */
static zinc_status create_comm(const zinc_comm_params *given, zn_comm_params *open, int rank,
                               int n_here, zinc_comm **out)
{
    zinc_status status;
    zinc_comm *c = NULL;
    zinc_comm_params params = ZINC_COMM_PARAMS_INIT;
    if (given)
        ZN_TRY(zn_api_take(&params, sizeof params, given, "zinc_comm_params"));
    if (params.n_threads < 0 || params.device_limit_bytes < 0 || params.host_limit_bytes < 0)
        ZN_FAIL(ZINC_E_INVALID,
                "n_threads %d and limits of %lld and %lld bytes: none may be negative",
                params.n_threads, (long long)params.device_limit_bytes,
                (long long)params.host_limit_bytes);
    const int share = zn_sys_cores() / n_here;
    const zn_device_params device = {.rank = rank,
                                     .n_threads = params.n_threads > 0 ? params.n_threads
                                                  : share > 0          ? share
                                                                       : 1,
                                     .device_limit_bytes = params.device_limit_bytes,
                                     .host_limit_bytes = params.host_limit_bytes};
    ZN_TRY(zn_alloc(&c, sizeof *c, "a comm"));
    ZN_TRY_GOTO(zn_device_open("cpu", &device, &c->dev));
    open->dev = c->dev;
    open->timeout_ms = params.timeout_ms;
    ZN_TRY_GOTO(zn_comm_open(open, &c->comm));
    *out = c;
    return ZINC_OK;
fail:
    zinc_comm_destroy(c);
    return status;
}

zinc_status zinc_comm_create_self(const zinc_comm_params *params, zinc_comm **out)
{
    zn_comm_params open = {.backend = "self"};
    ZN_API_NEED(out);
    return create_comm(params, &open, 0, 1, out);
}

zinc_status zinc_thread_world_create(int n_ranks, zinc_thread_world **out)
{
    zinc_status status;
    zinc_thread_world *w = NULL;
    ZN_API_NEED(out);
    if (n_ranks < 1)
        ZN_FAIL(ZINC_E_INVALID, "a world needs at least 1 rank, not %d", n_ranks);
    ZN_TRY(zn_alloc(&w, sizeof *w, "a thread world"));
    w->n_ranks = n_ranks;
    ZN_TRY_GOTO(zn_thread_world_create(n_ranks, &w->world));
    *out = w;
    return ZINC_OK;
fail:
    zinc_thread_world_destroy(w);
    return status;
}

void zinc_thread_world_destroy(zinc_thread_world *world)
{
    if (!world)
        return;
    zn_thread_world_destroy(world->world);
    zn_free(world);
}

zinc_status zinc_comm_create_thread(zinc_thread_world *world, int rank,
                                    const zinc_comm_params *params, zinc_comm **out)
{
    ZN_API_NEED(world);
    ZN_API_NEED(out);
    zn_comm_params open = {
        .backend = "thread", .rank = rank, .n_ranks = world->n_ranks, .world = world->world};
    return create_comm(params, &open, rank, world->n_ranks, out);
}

zinc_status zinc_comm_create_mpi(const zinc_comm_params *params, zinc_comm **out)
{
    zn_comm_params open = {.backend = "mpi"};
    ZN_API_NEED(out);
    return create_comm(params, &open, 0, 1, out);
}

zinc_status zinc_comm_create_host(const zinc_comm_host *host, const zinc_comm_params *params,
                                  zinc_comm **out)
{
    zinc_comm_host known = ZINC_COMM_HOST_INIT;
    zn_comm_params open = {.backend = "host", .host = &known};
    ZN_API_NEED(out);
    ZN_TRY(zn_api_take(&known, sizeof known, host, "zinc_comm_host"));
    return create_comm(params, &open, known.rank, known.n_ranks > 0 ? known.n_ranks : 1, out);
}

void zinc_comm_destroy(zinc_comm *comm)
{
    if (!comm)
        return;
    zn_comm_close(comm->comm);
    zn_device_close(comm->dev);
    zn_free(comm);
}

/* ---- asking ---- */

int zinc_comm_rank(const zinc_comm *comm)
{
    return comm ? zn_comm_rank(comm->comm) : 0;
}

int zinc_comm_n_ranks(const zinc_comm *comm)
{
    return comm ? zn_comm_n_ranks(comm->comm) : 0;
}

const char *zinc_comm_kind(const zinc_comm *comm)
{
    return comm ? zn_comm_backend(comm->comm) : "";
}

zinc_status zinc_comm_get_stats(zinc_comm *comm, zinc_comm_stats *out)
{
    zn_comm_stats s;
    ZN_API_NEED(comm);
    zn_comm_get_stats(comm->comm, &s);
    const zinc_comm_stats known = {.n_all_gather = s.n_all_gather,
                                   .n_reduce_scatter = s.n_reduce_scatter,
                                   .n_broadcast = s.n_broadcast,
                                   .all_gather_bytes = s.all_gather_bytes,
                                   .reduce_scatter_bytes = s.reduce_scatter_bytes};
    return zn_api_give(&known, sizeof known, out, "zinc_comm_stats");
}

void zinc_comm_reset_stats(zinc_comm *comm)
{
    if (comm)
        zn_comm_reset_stats(comm->comm);
}

/* ---- small collectives ---- */

zinc_status zinc_comm_barrier(zinc_comm *comm, const char *tag)
{
    ZN_API_NEED(comm);
    return zn_comm_barrier(comm->comm, tag);
}

zinc_status zinc_comm_exchange(zinc_comm *comm, const void *mine, size_t n_bytes, void *out,
                               const char *tag)
{
    ZN_API_NEED(comm);
    return zn_comm_exchange(comm->comm, mine, n_bytes, out, tag);
}

zinc_status zinc_comm_broadcast(zinc_comm *comm, void *buf, size_t n_bytes, int root,
                                const char *tag)
{
    zn_event event = {0};
    ZN_API_NEED(comm);
    ZN_TRY(zn_comm_broadcast(comm->comm, buf, n_bytes, root, tag, &event));
    return zn_event_wait(event, -1); /* the call ends by the comm's own deadline */
}

zinc_status zinc_comm_sum(zinc_comm *comm, double *values, int n, const char *tag)
{
    double *all = NULL;
    ZN_API_NEED(comm);
    if (n < 0 || n > MAX_SUMS || (n > 0 && !values))
        ZN_FAIL(ZINC_E_INVALID, "%d values to sum: 0 to %d are possible", n, MAX_SUMS);
    const size_t n_ranks = (size_t)zn_comm_n_ranks(comm->comm);
    ZN_TRY(zn_alloc_array(&all, n_ranks * (size_t)n, sizeof *all, "values of all ranks"));
    const zinc_status status =
        zn_comm_exchange(comm->comm, values, (size_t)n * sizeof *values, all, tag);
    for (int i = 0; status == ZINC_OK && i < n; i++) {
        values[i] = all[i];
        for (size_t r = 1; r < n_ranks; r++)
            values[i] += all[r * (size_t)n + (size_t)i];
    }
    zn_free(all);
    return status;
}

zinc_status zinc_comm_agree(zinc_comm *comm, zinc_status status)
{
    ZN_API_NEED(comm);
    return zn_comm_agree(comm->comm, status);
}

void zinc_comm_abort(zinc_comm *comm, const char *reason)
{
    if (comm)
        zn_comm_abort(comm->comm, reason);
}
