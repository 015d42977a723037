/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP's sharding strategies in ZeRO's terms. A strategy is a stage, a shard group, and whether a
 * unit is released between its forward and its backward; so everything below the configuration
 * knows those three only. Source: torch.distributed.fsdp.ShardingStrategy (2.13). */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config/config_internal.h"

typedef struct strategy {
    const char *name;
    int stage;
    bool reshards, inside_node;
} strategy;

static const strategy strategies[] = {
    {"FULL_SHARD", 3, true, false},         {"SHARD_GRAD_OP", 3, false, false},
    {"NO_SHARD", 0, true, false},           {"HYBRID_SHARD", 3, true, true},
    {"HYBRID_SHARD_ZERO2", 3, false, true},
};

static const strategy *find(const zn_slot *slot)
{
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
        if (strcasecmp(slot->text, strategies[i].name) == 0)
            return &strategies[i];
    ZN_ASSERT(false && "the table of keys has other words");
    return NULL;
}

static void derive(zn_slot *slot, int64_t value, const char *why)
{
    slot->state = ZN_SLOT_GIVEN;
    slot->source = ZN_FROM_AUTO;
    slot->integer = value;
    slot->number = (double)value;
    slot->flag = value != 0;
    slot->why = why;
}

/* Give `path` the value that the strategy means; another one in the file contradicts it. */
static zinc_status imply(zn_config *config, const zn_slot *from, const char *path, int64_t value)
{
    zn_slot *slot = zn_slot_at(config->resolved, path);
    const int64_t given = slot->integer + (slot->flag ? 1 : 0);
    if (slot->source == ZN_FROM_DEFAULT)
        derive(slot, value, "fsdp.sharding_strategy");
    else if (given != value)
        return zn_config_add_error(config, path, slot->line, slot->column, "leave one of them out",
                                   "fsdp.sharding_strategy %s (line %d) means another value",
                                   from->text, from->line);
    return ZINC_OK;
}

/* A unit that is not released between forward and backward is one that is always near its reuse. */
static void keep_units(zn_config *config)
{
    static const char *const paths[] = {"zero_optimization.stage3_max_reuse_distance",
                                        "zero_optimization.stage3_max_live_parameters"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        zn_slot *slot = zn_slot_at(config->resolved, paths[i]);
        if (slot->source == ZN_FROM_DEFAULT)
            derive(slot, INT64_MAX, "fsdp.reshard_after_forward is false");
    }
}

/* FSDP lets every unit go after its forward; DeepSpeed's defaults keep the next 1e9 elements. */
static void release_units(zn_config *config)
{
    zn_slot *slot = zn_slot_at(config->resolved, "zero_optimization.stage3_max_reuse_distance");
    if (slot->source == ZN_FROM_DEFAULT)
        derive(slot, 0, "fsdp.reshard_after_forward is true");
}

static zinc_status apply(zn_config *config, const zn_config_facts *facts, const zn_slot *slot,
                         const strategy *s)
{
    zn_slot *size = zn_slot_at(config->resolved, "fsdp.shard_size");
    const int64_t node = facts->ranks_per_node > 0 ? facts->ranks_per_node : facts->world_size;
    ZN_TRY(imply(config, slot, "zero_optimization.stage", s->stage));
    if (s->stage == 3)
        ZN_TRY(imply(config, slot, "fsdp.reshard_after_forward", s->reshards));
    if (s->inside_node && size->integer == 0)
        derive(size, node, "the ranks of a node");
    else if (!s->inside_node && size->integer > 0)
        return zn_config_add_error(config, "fsdp.shard_size", size->line, size->column,
                                   "HYBRID_SHARD and HYBRID_SHARD_ZERO2 shard over fewer ranks",
                                   "fsdp.sharding_strategy %s (line %d) shards over all ranks",
                                   slot->text, slot->line);
    return ZINC_OK;
}

/* A group cannot have more ranks than there are, nor leave some over. */
static zinc_status check_group(zn_config *config, const char *path, int64_t n_ranks)
{
    zn_slot *size = zn_slot_at(config->resolved, path);
    const int64_t given = size->integer;
    if (given > n_ranks) {
        ZN_TRY(zn_config_add_note(config,
                                  "%s: %s is %lld, and there are %lld ranks: it is taken "
                                  "as %lld",
                                  config->name, path, (long long)given, (long long)n_ranks,
                                  (long long)n_ranks));
        derive(size, n_ranks, "there are no more ranks");
    } else if (given > 1 && n_ranks % given != 0) {
        return zn_config_add_error(
            config, path, size->line, size->column, "take a divisor of the number of ranks",
            "%lld ranks cannot be cut into groups of %lld", (long long)n_ranks, (long long)given);
    }
    return ZINC_OK;
}

static zinc_status check_groups(zn_config *config, int64_t n_ranks)
{
    const int64_t stage = zn_slot_at(config->resolved, "zero_optimization.stage")->integer;
    const zn_slot *shard = zn_slot_at(config->resolved, "fsdp.shard_size");
    zn_slot *second = zn_slot_at(config->resolved, "zero_optimization.zero_hpz_partition_size");
    ZN_TRY(check_group(config, "fsdp.shard_size", n_ranks));
    ZN_TRY(check_group(config, "zero_optimization.zero_hpz_partition_size", n_ranks));
    if (shard->integer > 0 && shard->integer < n_ranks && stage == 0)
        ZN_TRY(zn_config_add_error(config, "fsdp.shard_size", shard->line, shard->column,
                                   "leave it out, or use stage 1, 2 or 3",
                                   "stage 0 shards nothing"));
    if (second->integer > 1 && stage != 3) {
        ZN_TRY(zn_config_add_note(config,
                                  "%s:%d: zero_optimization.zero_hpz_partition_size has no effect "
                                  "in stage %d, whose parameters are whole on every rank",
                                  config->name, second->line, (int)stage));
        derive(second, 1, "no effect below stage 3");
    }
    if (second->integer > 1 && shard->integer > 0 && shard->integer < n_ranks)
        ZN_TRY(zn_config_add_error(config, "zero_optimization.zero_hpz_partition_size",
                                   second->line, second->column, "leave one of them out",
                                   "with shard groups of %lld ranks (fsdp.shard_size) parameters "
                                   "are near already",
                                   (long long)shard->integer));
    return ZINC_OK;
}

zinc_status zn_config_resolve_strategy(zn_config *config, const zn_config_facts *facts)
{
    const zn_slot *slot = zn_slot_at(config->resolved, "fsdp.sharding_strategy");
    const zn_slot *prefetch = zn_slot_at(config->resolved, "fsdp.backward_prefetch");
    zn_slot *bucket = zn_slot_at(config->resolved, "zero_optimization.stage3_prefetch_bucket_size");
    if (slot->state == ZN_SLOT_GIVEN)
        ZN_TRY(apply(config, facts, slot, find(slot)));
    ZN_TRY(check_groups(config, facts->world_size));
    const zn_slot *reshard = zn_slot_at(config->resolved, "fsdp.reshard_after_forward");
    if (!reshard->flag)
        keep_units(config);
    else if (reshard->source != ZN_FROM_DEFAULT)
        release_units(config);
    if (strcasecmp(prefetch->text, "NO_PREFETCH") == 0 && bucket->source == ZN_FROM_DEFAULT)
        derive(bucket, 0, "fsdp.backward_prefetch is NO_PREFETCH");
    return ZINC_OK;
}
