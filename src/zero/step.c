/* SPDX-License-Identifier: Apache-2.0 */
/* step.c — the life of a micro-batch around the model, and the optimizer step. */
#include "zero/zero_internal.h"

#include <math.h>
#include <string.h>

#include "base/sys.h"

/* ---- create and destroy ---- */

static zinc_status copy_list(zn_zero *zero, const zn_param_list *list, const int *groups)
{
    ZN_TRY(zn_zero_join_units(zero, list));
    ZN_TRY(zn_alloc_array(&zero->group_of_param, (size_t)list->n_specs, sizeof(int),
                          "parameter groups"));
    for (int i = 0; groups && i < list->n_specs; i++)
        zero->group_of_param[i] = groups[i];
    return ZINC_OK;
}

static zinc_status check_params(const zn_zero_params *p)
{
    if (p->stage < 0 || p->stage > 3)
        ZN_FAIL(ZINC_E_INVALID, "zero_optimization.stage is %d; 0, 1, 2 and 3 exist", p->stage);
    if (p->reduce_bucket < 1 || p->allgather_bucket < 1 || p->sub_group < 1)
        ZN_FAIL(ZINC_E_INVALID,
                "reduce_bucket_size %lld, allgather_bucket_size %lld and "
                "sub_group_size %lld must be at least 1",
                (long long)p->reduce_bucket, (long long)p->allgather_bucket,
                (long long)p->sub_group);
    return ZINC_OK;
}

zinc_status zn_zero_create(const zn_zero_params *params, const zn_param_list *list,
                           const int *group_of_param, zn_zero **out)
{
    zinc_status status;
    zn_zero *zero = NULL;
    ZN_TRY(check_params(params));
    ZN_TRY(zn_alloc(&zero, sizeof *zero, "the ZeRO engine"));
    zero->p = *params;
    zero->group = params->comm;
    zero->out_window = -1;
    if (params->keep_for_backward) /* nothing makes room before backward has used it */
        zero->p.max_live = zero->p.max_reuse_distance = INT64_MAX;
    zero->hooks = (zn_param_hooks){.ctx = zero,
                                   .param_dtype = params->param_dtype,
                                   .before_use = zn_zero_before_use,
                                   .after_use = zn_zero_after_use,
                                   .data = zn_zero_data,
                                   .grad = zn_zero_grad,
                                   .grad_whole = zn_zero_grad_whole,
                                   .grads_ready = zn_zero_grads_ready};
    ZN_TRY_GOTO(zn_zero_groups_open(zero));
    ZN_TRY_GOTO(copy_list(zero, list, group_of_param));
    zero->hooks.first_trainable_unit = zn_zero_first_trainable(list);
    ZN_TRY_GOTO(zn_zero_layout(zero));
    ZN_TRY_GOTO(zn_comm_agree(params->comm, zn_zero_store_alloc(zero)));
    *out = zero;
    return ZINC_OK;
fail:
    zn_zero_destroy(zero);
    return status;
}

void zn_zero_destroy(zn_zero *zero)
{
    if (!zero)
        return;
    zn_comm *const comms[] = {zero->group, zero->replicas, zero->secondaries};
    for (int i = 0; i < 3; i++)
        if (comms[i])
            zn_ignore(zn_stream_sync(zn_comm_stream(comms[i]), -1)); /* an error was told before */
    zn_zero_store_free(zero);
    zn_zero_groups_close(zero);
    zn_param_list_fini(&zero->list);
    zn_free(zero->group_of_param);
    zn_free(zero->regions);
    zn_free(zero->places);
    zn_free(zero->placed);
    zn_free(zero->units);
    zn_free(zero->members);
    zn_free(zero->pieces);
    zn_free(zero->trace);
    zn_free(zero->sums);
    zn_free(zero->all_sums);
    zn_free(zero->totals);
    zn_free(zero->early_groups);
    zn_free(zero);
}

const zn_param_hooks *zn_zero_hooks(zn_zero *zero)
{
    return &zero->hooks;
}

static int64_t sent(zn_comm *comm)
{
    zn_comm_stats stats;
    if (!comm)
        return 0;
    zn_comm_get_stats(comm, &stats);
    return stats.all_gather_bytes + stats.reduce_scatter_bytes;
}

void zn_zero_get_stats(const zn_zero *zero, zn_zero_stats *out)
{
    *out = zero->stats;
    out->replica_bytes = sent(zero->replicas);
    out->secondary_bytes = sent(zero->secondaries);
}

void zn_zero_reset_stats(zn_zero *zero)
{
    const zn_zero_stats old = zero->stats;
    zero->stats = (zn_zero_stats){.padded_elems = old.padded_elems,
                                  .trainable_padded = old.trainable_padded,
                                  .persistent_elems = old.persistent_elems,
                                  .largest_unit = old.largest_unit};
    zn_comm *const comms[] = {zero->group != zero->p.comm ? zero->group : NULL, zero->replicas,
                              zero->secondaries};
    for (int i = 0; i < 3; i++)
        if (comms[i])
            zn_comm_reset_stats(comms[i]);
}

/* ---- micro-batches ---- */

zinc_status zn_zero_begin(zn_zero *zero, bool boundary)
{
    if (zero->training)
        ZN_FAIL(ZINC_E_INVALID, "a micro-batch began before backward_end of the one before");
    zero->training = true;
    zero->boundary = boundary;
    zero->cursor = 0;
    zero->forward_began = zn_sys_now();
    zero->forward_began_wait = zero->stats.gather_wait_s;
    zero->grad_status = ZINC_OK;
    for (int u = 0; u < zero->list.n_units; u++)
        zero->units[u].n_ready = 0;
    for (int m = 0; m < zero->n_members; m++)
        zero->members[m].ready = false;
    return ZINC_OK;
}

void zn_zero_set_boundary(zn_zero *zero, bool boundary)
{
    zero->boundary = boundary;
}

zinc_status zn_zero_abandon(zn_zero *zero)
{
    ZN_TRY(zn_zero_release_all(zero));
    zero->cursor = 0;
    zero->trace_broken = false;
    if (!zero->trace_known)
        zero->n_trace = 0;
    zero->training = false;
    return ZINC_OK;
}

zinc_status zn_zero_backward_end(zn_zero *zero)
{
    for (int m = zero->n_members - 1; m >= 0; m--)
        if (!zero->members[m].ready)
            ZN_TRY(zn_zero_grads_ready(zero, m));
    ZN_TRY(zn_zero_release_all(zero));
    ZN_TRY(zn_zero_trace_end(zero));
    zero->micro_batches++;
    zero->training = false;
    return ZINC_OK;
}

/* ---- the norm ---- */

/* Sum of squares of every slice, of all ranks, into partials[chunk * W + rank]. */
static zinc_status slice_partials(zn_zero *zero)
{
    zn_stream *compute = zn_device_compute(zero->p.dev);
    const int64_t W = zero->n_ranks;
    const bool all = zero->p.stage == 0;
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        if (!region->trainable || !region->grad.base) /* on disk: summed before they left */
            continue;
        for (int64_t c = 0; c < region->n_chunks; c++) {
            double *sums = zero->partials + (region->first_chunk + c) * W;
            for (int64_t rank = all ? 0 : zero->rank; rank < (all ? W : zero->rank + 1); rank++)
                ZN_TRY(zero->p.kernels->sum_squares(compute, zn_zero_at(&region->grad, c, rank),
                                                    region->grad.dtype, region->slice_elems,
                                                    &sums[rank]));
        }
    }
    ZN_TRY(zn_stream_sync(compute, -1));
    if (W == 1)
        return ZINC_OK;
    for (int64_t c = 0; c < zero->n_chunks; c++)
        zero->exchange_mine[c] = zero->partials[c * W + zero->rank];
    /* under stage 0 the values are known; the exchange still keeps ranks in step */
    ZN_TRY(zn_comm_exchange(zero->group, zero->exchange_mine,
                            (size_t)zero->n_chunks * sizeof(double), zero->exchange,
                            "gradient norm"));
    for (int64_t c = 0; !all && c < zero->n_chunks; c++)
        for (int64_t rank = 0; rank < W; rank++)
            zero->partials[c * W + rank] = zero->exchange[rank * zero->n_chunks + c];
    return ZINC_OK;
}

/* Whether a gradient of the walk's part is not finite; read by way of the host's memory. */
static zinc_status has_non_finite(zn_zero *zero, const zn_zero_walk *walk, bool *out)
{
    zn_stream *compute = zn_device_compute(zero->p.dev);
    const zn_dtype dtype = zero->regions[walk->piece->region].grad.dtype;
    const char *grad = zn_zero_grad_at(zero, walk->piece, walk->offset);
    *out = false;
    for (int64_t done = 0; done < walk->n && !*out; done += ZN_ZERO_IO_ELEMS) {
        const int64_t left = walk->n - done;
        const int64_t m = left < ZN_ZERO_IO_ELEMS ? left : ZN_ZERO_IO_ELEMS;
        ZN_TRY(zero->p.kernels->convert(compute, zero->fill_buffer, ZN_DTYPE_F32,
                                        grad + (size_t)done * zn_dtype_size(dtype), dtype, 1.0f,
                                        m));
        ZN_TRY(zn_stream_sync(compute, -1));
        for (int64_t i = 0; i < m && !*out; i++)
            *out = !isfinite(zero->fill_buffer[i]);
    }
    return ZINC_OK;
}

/* Name the first parameter, in layout order, with a non-finite gradient. */
static zinc_status find_bad(zn_zero *zero, zn_zero_step_result *result)
{
    int64_t first = INT64_MAX; /* index of my first bad piece */
    zn_zero_walk walk = {.read = ZN_ZERO_GRAD_RUNS};
    while (first == INT64_MAX && zn_zero_walk_next(zero, &walk)) {
        bool bad = false;
        ZN_TRY(has_non_finite(zero, &walk, &bad));
        if (bad)
            first = walk.index;
    }
    ZN_TRY(walk.status);
    ZN_TRY(zn_comm_exchange(zero->group, &first, sizeof first, zero->exchange, "overflow"));
    const int64_t *all = (const int64_t *)(const void *)zero->exchange;
    for (int r = 0; r < zero->n_ranks; r++)
        if (all[r] < first)
            first = all[r];
    if (first != INT64_MAX) {
        result->bad_param = zero->pieces[first].param;
        result->bad_rank = zero->pieces[first].rank;
    }
    return ZINC_OK;
}

/* ---- the update ---- */

static zn_optim_segment segment_of(const zn_zero *zero, const zn_zero_walk *walk, void *out)
{
    const zn_zero_piece *piece = walk->piece;
    const zn_zero_region *region = &zero->regions[piece->region];
    zn_optim_segment s = {.n = walk->n,
                          .grad = zn_zero_grad_at(zero, piece, walk->offset),
                          .grad_dtype = region->grad.dtype,
                          .out16 = out,
                          .out_dtype = region->param.dtype,
                          .param = piece->param,
                          .group = zero->group_of_param[piece->param]};
    if (region->split) {
        s.low = zn_zero_low_at(zero, piece, walk->offset);
        s.out16 = zn_zero_param_at(zero, piece, walk->offset);
    } else {
        s.master = zn_zero_state_at(zero, ZN_ZERO_MASTERS, piece, walk->offset);
    }
    for (int k = 0; k < zero->p.optim->n_states; k++)
        s.state[k] = zn_zero_state_at(zero, k, piece, walk->offset);
    return s;
}

/* Pass 1 of an optimizer with per-parameter sums: every rank's partial sums by piece, added in
 * piece order, so that a parameter's total is the same in every stage. */
static zinc_status param_sums(zn_zero *zero, const zn_optim_step *step)
{
    const int n_sums = zero->p.optim->n_sums;
    const size_t n = (size_t)zero->n_pieces * (size_t)n_sums;
    if (!zero->sums) {
        ZN_TRY(zn_alloc_array(&zero->sums, n, sizeof(double), "optimizer sums"));
        ZN_TRY(zn_alloc_array(&zero->all_sums, n * (size_t)zero->n_ranks, sizeof(double),
                              "optimizer sums"));
        ZN_TRY(zn_alloc_array(&zero->totals, (size_t)(zero->list.n_specs * n_sums), sizeof(double),
                              "optimizer sums"));
    }
    memset(zero->sums, 0, n * sizeof(double));
    zn_zero_walk walk = {.read = ZN_ZERO_STATE_RUNS | ZN_ZERO_GRAD_RUNS,
                         .write = ZN_ZERO_STATE_RUNS};
    while (zn_zero_walk_next(zero, &walk)) {
        const zn_optim_segment s = segment_of(zero, &walk, NULL);
        ZN_TRY(zero->p.optim->sums(step, &s, zero->sums + walk.index * n_sums));
    }
    ZN_TRY(walk.status);
    ZN_TRY(zn_comm_exchange(zero->group, zero->sums, n * sizeof(double), zero->all_sums,
                            "optimizer sums"));
    memset(zero->totals, 0, (size_t)zero->list.n_specs * (size_t)n_sums * sizeof(double));
    for (int64_t i = 0; i < zero->n_pieces; i++)
        for (int k = 0; k < n_sums; k++)
            zero->totals[zero->pieces[i].param * n_sums + k] +=
                zero->all_sums[(size_t)zero->pieces[i].rank * n + (size_t)(i * n_sums + k)];
    return ZINC_OK;
}

zinc_status zn_zero_update(zn_zero *zero, const zn_optim_step *step, zn_zero_walk *walk,
                           zn_zero_stats *stats)
{
    const int n_sums = zero->p.optim->n_sums;
    int64_t room = 0; /* elements left in the sub-group */
    walk->most = zero->p.sub_group;
    while (zn_zero_walk_next(zero, walk)) {
        void *out = NULL;
        if (!walk->only && zero->regions[walk->piece->region].updated)
            continue;
        if (room == 0) {
            room = zero->p.sub_group;
            stats->n_optimizer_calls++;
        }
        ZN_TRY(zn_zero_out_get(zero, walk, &out));
        const zn_optim_segment s = segment_of(zero, walk, out);
        ZN_TRY(zero->p.optim->update(
            step, &s, n_sums > 0 ? zero->totals + walk->piece->param * n_sums : NULL));
        ZN_TRY(zn_zero_out_send(zero, walk, out, stats));
        room -= walk->n;
        walk->most = room > 0 ? room : zero->p.sub_group;
    }
    return walk->status;
}

static zinc_status update_all(zn_zero *zero, const zn_optim_step *step)
{
    zn_zero_walk walk = {.read = ZN_ZERO_STATE_RUNS | ZN_ZERO_GRAD_RUNS,
                         .write = ZN_ZERO_STATE_RUNS | ZN_ZERO_PARAM_RUNS};
    if (zero->p.optim->n_sums > 0)
        ZN_TRY(param_sums(zero, step));
    ZN_TRY(zn_zero_update(zero, step, &walk, &zero->stats));
    return zn_zero_out_wait(zero);
}

/* DeepSpeed's coefficient: 1 / max(1, (norm + 1e-6) / clip). */
static double clip_coefficient(double norm, double clip)
{
    const double excess = clip > 0 && isfinite(norm) ? (norm + 1e-6) / clip : 0;
    return excess > 1 ? 1 / excess : 1;
}

static zinc_status apply(zn_zero *zero, const zn_zero_step_args *args,
                         const zn_zero_step_result *result)
{
    zn_stream *compute = zn_device_compute(zero->p.dev);
    ZN_TRY(zn_zero_early_wait(zero));
    ZN_TRY(zero->p.kernels->fill(compute, zero->grad_scale,
                                 (float)(result->clip_coef / args->loss_scale), 1));
    const zn_optim_step step = {.stream = compute,
                                .kernels = zero->p.kernels,
                                .groups = args->groups,
                                .t = args->t,
                                .grad_scale = zero->grad_scale};
    ZN_TRY(update_all(zero, &step));
    return zn_zero_publish(zero);
}

zinc_status zn_zero_step(zn_zero *zero, const zn_zero_step_args *args, zn_zero_step_result *out)
{
    if (zero->training || zero->micro_batches == 0)
        ZN_FAIL(ZINC_E_INVALID, "a step needs a finished micro-batch before it");
    if (zero->early && !zn_zero_can_update_early(zero, args))
        ZN_FAIL(ZINC_E_INVALID, "this step is not the one that was announced before backward");
    ZN_TRY(zn_zero_reduce_wait(zero));
    ZN_TRY(slice_partials(zero));
    double total = 0;
    for (int64_t i = 0; i < zero->n_chunks * zero->n_ranks; i++)
        total += zero->partials[i];
    zn_zero_step_result result = {.grad_norm = sqrt(total) / args->loss_scale,
                                  .overflow = !isfinite(total) && !args->unchecked,
                                  .bad_param = -1,
                                  .bad_rank = -1};
    const double shrink = args->shrink > 0 ? args->shrink : 1;
    result.clip_coef =
        result.overflow ? 0 : clip_coefficient(result.grad_norm / shrink, args->clip) / shrink;
    if (result.overflow)
        ZN_TRY(find_bad(zero, &result));
    else if (zero->p.optim)
        ZN_TRY(apply(zero, args, &result));
    zn_zero_forget_grads(zero);
    *out = result;
    return ZINC_OK;
}

zinc_status zn_zero_skip(zn_zero *zero)
{
    if (zero->early && zero->micro_batches > 0)
        ZN_FAIL(ZINC_E_INVALID, "a step that was announced before backward cannot be skipped");
    ZN_TRY(zn_zero_reduce_wait(zero));
    zn_zero_forget_grads(zero);
    return ZINC_OK;
}

void zn_zero_formula_bytes(const zn_zero_params *params, int n_ranks, const zn_param_list *list,
                           zn_zero_formula *out)
{
    const double S = params->shard_ranks > 0 ? params->shard_ranks : n_ranks;
    const double second =
        params->stage == 3 && params->secondary_ranks > 1 ? params->secondary_ranks : 0;
    const double psi = (double)zn_param_list_elems(list, false);
    const double trainable = (double)zn_param_list_elems(list, true);
    const double p = (double)zn_dtype_size(params->param_dtype);
    const double g = (double)zn_dtype_size(params->grad_accum_dtype);
    double persistent = 0;
    for (int i = 0; i < list->n_specs; i++)
        if (list->specs[i].n_elems <= params->persistence_threshold)
            persistent += (double)list->specs[i].n_elems;
    const bool shared = params->share_parameters && params->stage > 0 && S > 1 &&
                        params->param_tier == ZN_ZERO_ON_DEVICE;
    const bool full_grads =
        params->stage == 0 || (params->stage == 1 && params->gradient_accumulation_steps > 1);
    const double shard = params->stage == 0 ? 1 : 1 / S;
    const int n_states = params->optim ? params->optim->n_states : 0;
    out->parameters = shared              ? psi * p / S
                      : params->stage < 3 ? psi * p
                                          : (persistent + (psi - persistent) / S) * p;
    if (second > 0 && !shared)
        out->parameters += (psi - persistent) * p / second;
    out->gradients = trainable * g * (full_grads ? 1 : 1 / S);
    const bool beside = params->split_masters && params->param_dtype == ZN_DTYPE_BF16 &&
                        params->optimizer_tier == params->param_tier &&
                        params->param_tier != ZN_ZERO_ON_DISK;
    out->masters = params->param_dtype == ZN_DTYPE_F32 ? 0 : trainable * (beside ? 2 : 4) * shard;
    out->optimizer_state = trainable * 4 * n_states * shard;
}
