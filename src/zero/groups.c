/* SPDX-License-Identifier: Apache-2.0 */
/* groups.c — which ranks hold everything once between them, and which are their replicas.
 *
 *   rank      0   1   2   3   4   5        W = 6, S = 2, R = 3
 *   group     |---0---|---1---|---2---|    shard groups: consecutive ranks, a node's if S is a node
 *   position  0   1   0   1   0   1        ranks of one position in their groups are replicas
 *
 * Sums have two levels, both in rank order: over a group's ranks, then over the groups. */
#include "zero/zero_internal.h"

zinc_status zn_zero_groups_check(const zn_zero_params *params, int n_ranks, int *shard_ranks)
{
    const int S = params->shard_ranks > 0 ? params->shard_ranks : n_ranks;
    const int second = params->secondary_ranks;
    if (n_ranks % S != 0)
        ZN_FAIL(ZINC_E_CONFIG,
                "%d ranks cannot be cut into shard groups of %d: the group's size must divide "
                "their number",
                n_ranks, S);
    if (S < n_ranks && params->stage == 0)
        ZN_FAIL(ZINC_E_CONFIG,
                "shard groups of %d ranks need stage 1, 2 or 3: stage 0 shards "
                "nothing",
                S);
    if (S < n_ranks && params->grad_accum_dtype != ZN_DTYPE_F32)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "data_types.grad_accum_dtype %s: sums over replicas are fp32; leave the key out",
                zn_dtype_name(params->grad_accum_dtype));
    if (second > 1 && (params->stage != 3 || n_ranks % second != 0 || S < n_ranks))
        ZN_FAIL(ZINC_E_CONFIG,
                "zero_hpz_partition_size %d needs stage 3 (it is %d), a number of ranks that it "
                "divides (there are %d), and no smaller shard groups (they have %d ranks)",
                second, params->stage, n_ranks, S);
    *shard_ranks = S;
    return ZINC_OK;
}

/* Each rank has found the size by itself, perhaps as that of its own node. */
static zinc_status compare_sizes(zn_comm *comm, int shard_ranks)
{
    zinc_status status;
    const int n_ranks = zn_comm_n_ranks(comm);
    const int64_t mine = shard_ranks;
    int64_t *all = NULL;
    ZN_TRY(zn_alloc_array(&all, (size_t)n_ranks, sizeof *all, "sizes of shard groups"));
    ZN_TRY_GOTO(zn_comm_exchange(comm, &mine, sizeof mine, all, "shard groups"));
    for (int r = 1; r < n_ranks; r++)
        if (all[r] != all[0])
            ZN_FAIL_GOTO(ZINC_E_CONFIG,
                         "shard groups have one size: rank 0 has %lld and rank %d has %lld. Where "
                         "nodes have different numbers of ranks, give fsdp.shard_size",
                         (long long)all[0], r, (long long)all[r]);
    status = ZINC_OK;
fail:
    zn_free(all);
    return status;
}

zinc_status zn_zero_groups_open(zn_zero *zero)
{
    zn_comm *comm = zero->p.comm;
    const int rank = zn_comm_rank(comm), W = zn_comm_n_ranks(comm);
    const int second = zero->p.secondary_ranks;
    int S = 0;
    ZN_TRY(zn_comm_agree(comm, zn_zero_groups_check(&zero->p, W, &S)));
    ZN_TRY(compare_sizes(comm, S));
    zero->group = comm;
    if (S < W) {
        zn_comm *group = NULL;
        ZN_TRY(zn_comm_split(comm, rank / S, rank, &group));
        zero->group = group;
        ZN_TRY(zn_comm_split(comm, rank % S, rank, &zero->replicas));
    }
    if (second > 1 && W > 1)
        ZN_TRY(zn_comm_split(comm, rank / second, rank, &zero->secondaries));
    zero->n_replicas = W / S;
    zero->rank = zn_comm_rank(zero->group);
    zero->n_ranks = S;
    return ZINC_OK;
}

void zn_zero_groups_close(zn_zero *zero)
{
    zn_comm_close(zero->secondaries);
    zn_comm_close(zero->replicas);
    if (zero->group != zero->p.comm)
        zn_comm_close(zero->group);
}
