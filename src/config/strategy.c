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
    ZN_ASSERT(!"the table of keys has other words");
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

static zinc_status apply(zn_config *config, const zn_slot *slot, const strategy *s)
{
    ZN_TRY(imply(config, slot, "zero_optimization.stage", s->stage));
    if (s->stage == 3)
        ZN_TRY(imply(config, slot, "fsdp.reshard_after_forward", s->reshards));
    if (s->inside_node)
        return zn_config_add_error(config, "fsdp.sharding_strategy", slot->line, slot->column,
                                   "FULL_SHARD and SHARD_GRAD_OP shard over all ranks",
                                   "not supported: everything is sharded over all ranks");
    return ZINC_OK;
}

zinc_status zn_config_resolve_strategy(zn_config *config, const zn_config_facts *facts)
{
    const zn_slot *slot = zn_slot_at(config->resolved, "fsdp.sharding_strategy");
    const zn_slot *prefetch = zn_slot_at(config->resolved, "fsdp.backward_prefetch");
    zn_slot *bucket = zn_slot_at(config->resolved, "zero_optimization.stage3_prefetch_bucket_size");
    (void)facts;
    if (slot->state == ZN_SLOT_GIVEN)
        ZN_TRY(apply(config, slot, find(slot)));
    if (!zn_slot_at(config->resolved, "fsdp.reshard_after_forward")->flag)
        keep_units(config);
    if (strcasecmp(prefetch->text, "NO_PREFETCH") == 0 && bucket->source == ZN_FROM_DEFAULT)
        derive(bucket, 0, "fsdp.backward_prefetch is NO_PREFETCH");
    return ZINC_OK;
}
