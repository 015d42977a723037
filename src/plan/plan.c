/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c — bytes: the layout's plan, the model's own count, and the limits of the machine. */
#include "plan/plan.h"

#include <string.h>

#include "engine/engine.h"

const char *zn_plan_row_name(zn_plan_row row)
{
    static const char *const names[] = {
        [ZN_PLAN_PARAMETERS] = "parameters",
        [ZN_PLAN_GRADIENTS] = "gradients",
        [ZN_PLAN_UNIT_GRADIENTS] = "unit_gradients",
        [ZN_PLAN_MASTERS] = "masters",
        [ZN_PLAN_OPTIMIZER_STATE] = "optimizer_state",
        [ZN_PLAN_ACTIVATIONS] = "activations",
        [ZN_PLAN_BUCKETS] = "buckets",
        [ZN_PLAN_LIVE_UNITS] = "live_units",
        [ZN_PLAN_BUFFERS] = "buffers",
    };
    return names[row];
}

const char *zn_plan_tier_name(int tier)
{
    static const char *const names[] = {"device", "host", "disk"};
    return names[tier];
}

static zn_zero_tier tier_of(zn_offload_device device)
{
    return device == ZN_OFFLOAD_CPU    ? ZN_ZERO_ON_HOST
           : device == ZN_OFFLOAD_NVME ? ZN_ZERO_ON_DISK
                                       : ZN_ZERO_ON_DEVICE;
}

void zn_plan_zero_params(const zn_plan_run *run, zn_zero_params *out)
{
    const zn_engine_params engine = {.config = &run->config,
                                     .spec = run->spec,
                                     .optim = run->optim,
                                     .share_parameters = run->shared};
    zn_engine_zero_params(&engine, out);
    out->optimizer_tier = tier_of(run->config.zero.offload_optimizer);
    out->param_tier = tier_of(run->config.zero.offload_param);
    out->offload_ratio = run->config.zero.offload_optimizer_ratio;
    out->host_bytes = (int64_t)run->hw.host_bytes / run->hw.gpus;
}

static zn_model_options model_options(const zn_plan_run *run)
{
    return (zn_model_options){.activation_checkpointing = run->checkpointing,
                              .dropout_scale = 1,
                              .checkpoints_on_host = zn_config_checkpoints_on_host(&run->config)};
}

int64_t zn_plan_checkpoint_bytes(const zn_plan_run *run)
{
    const zn_model_options options = model_options(run);
    return run->config.gradient_accumulation_steps *
           zn_model_checkpoint_bytes(run->spec, &options,
                                     run->config.train_micro_batch_size_per_gpu, run->block_size);
}

static void fill_rows(const zn_plan_run *run, const zn_zero_params *zero, zn_plan *plan)
{
    const zn_zero_plan *z = &plan->zero;
    const zn_model_options options = model_options(run);
    zn_model_memory_bytes model;
    zn_model_memory(run->spec, &options, run->config.train_micro_batch_size_per_gpu,
                    run->block_size, zero->param_dtype, run->n_threads, &model);
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++) {
        plan->bytes[tier][ZN_PLAN_PARAMETERS] = z->parameters[tier];
        plan->bytes[tier][ZN_PLAN_GRADIENTS] = z->gradients[tier];
        plan->bytes[tier][ZN_PLAN_MASTERS] = z->masters[tier];
        plan->bytes[tier][ZN_PLAN_OPTIMIZER_STATE] = z->optimizer_state[tier];
    }
    plan->bytes[ZN_ZERO_ON_DEVICE][ZN_PLAN_UNIT_GRADIENTS] = z->unit_gradients;
    plan->bytes[ZN_ZERO_ON_DEVICE][ZN_PLAN_ACTIVATIONS] = model.activations;
    plan->bytes[ZN_ZERO_ON_HOST][ZN_PLAN_ACTIVATIONS] = model.host_activations;
    plan->bytes[ZN_ZERO_ON_DEVICE][ZN_PLAN_BUCKETS] = z->buckets;
    plan->bytes[ZN_ZERO_ON_DEVICE][ZN_PLAN_LIVE_UNITS] = z->live_units;
    plan->bytes[ZN_ZERO_ON_DEVICE][ZN_PLAN_BUFFERS] = model.buffers;
    plan->bytes[ZN_ZERO_ON_HOST][ZN_PLAN_BUFFERS] = z->staging;
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++)
        for (int row = 0; row < ZN_PLAN_N_ROWS; row++)
            plan->total[tier] += plan->bytes[tier][row];
}

static void fill_limits(const zn_plan_run *run, zn_plan *plan)
{
    const zn_plan_hardware *hw = &run->hw;
    plan->limit[ZN_ZERO_ON_DEVICE] = hw->device_bytes;
    plan->limit[ZN_ZERO_ON_HOST] = hw->host_bytes / hw->gpus;
    plan->limit[ZN_ZERO_ON_DISK] = hw->disk_bytes / hw->gpus;
    plan->fits = true;
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++) {
        const double over = (double)plan->total[tier] - plan->limit[tier];
        plan->over[tier] = plan->limit[tier] > 0 && over > 0 ? over : 0;
        plan->fits = plan->fits && plan->over[tier] == 0;
    }
}

/* Counts of bytes are 64-bit: whatever a model of this shape keeps of a token, times the tokens. */
static zinc_status check_sizes(const zn_plan_run *run)
{
    const zn_model_spec *m = run->spec;
    const double tokens =
        (double)run->config.train_micro_batch_size_per_gpu * (double)run->block_size;
    const double of_layer = 8.0 * (double)(m->C + m->F + (m->H + 2 * m->K) * m->D);
    if (tokens * of_layer * (double)(m->L + 2) * sizeof(float) > 0x1p60)
        ZN_FAIL(ZINC_E_INVALID,
                "a micro-batch of %g tokens through %lld layers of %lld is more than can be "
                "counted: give a smaller micro-batch or --block_size",
                tokens, (long long)m->L, (long long)m->C);
    return ZINC_OK;
}

zinc_status zn_plan_make(const zn_plan_run *run, zn_plan *out)
{
    zn_plan plan = {.n_ranks = run->hw.gpus * run->hw.nodes};
    zn_plan_costs costs;
    zn_zero_params zero;
    ZN_TRY(check_sizes(run));
    zn_plan_zero_params(run, &zero);
    ZN_TRY(zn_plan_costs_make(run, &costs));
    const zn_zero_plan_params params = {.zero = &zero,
                                        .n_ranks = plan.n_ranks,
                                        .shared = run->shared && run->hw.nodes == 1,
                                        .tied = run->spec->tied,
                                        .costs = costs.known ? &costs.zero : NULL};
    const zinc_status status = zn_zero_plan_make(&params, run->list, &plan.zero);
    if (status == ZINC_OK) {
        fill_rows(run, &zero, &plan);
        fill_limits(run, &plan);
        if (costs.known)
            zn_plan_time(run, &plan);
        *out = plan;
    }
    zn_plan_costs_fini(&costs);
    return status;
}

/* ---- every stage and offload ---- */

const zn_plan_variant zn_plan_variants[] = {
    {0, ZN_OFFLOAD_NONE, ZN_OFFLOAD_NONE}, {1, ZN_OFFLOAD_NONE, ZN_OFFLOAD_NONE},
    {1, ZN_OFFLOAD_CPU, ZN_OFFLOAD_NONE},  {1, ZN_OFFLOAD_NVME, ZN_OFFLOAD_NONE},
    {2, ZN_OFFLOAD_NONE, ZN_OFFLOAD_NONE}, {2, ZN_OFFLOAD_CPU, ZN_OFFLOAD_NONE},
    {2, ZN_OFFLOAD_NVME, ZN_OFFLOAD_NONE}, {3, ZN_OFFLOAD_NONE, ZN_OFFLOAD_NONE},
    {3, ZN_OFFLOAD_CPU, ZN_OFFLOAD_NONE},  {3, ZN_OFFLOAD_NVME, ZN_OFFLOAD_NONE},
    {3, ZN_OFFLOAD_CPU, ZN_OFFLOAD_CPU},   {3, ZN_OFFLOAD_NVME, ZN_OFFLOAD_CPU},
};
const int zn_plan_n_variants = (int)(sizeof zn_plan_variants / sizeof zn_plan_variants[0]);

const char *zn_plan_offload_name(zn_offload_device optimizer, zn_offload_device params)
{
    static const char *const names[3][3] = {
        {"none", "parameters cpu", "parameters nvme"},
        {"optimizer cpu", "optimizer cpu, parameters cpu", "optimizer cpu, parameters nvme"},
        {"optimizer nvme", "optimizer nvme, parameters cpu", "optimizer nvme, parameters nvme"},
    };
    return names[optimizer][params];
}

void zn_plan_apply_variant(const zn_plan_variant *variant, zn_plan_run *run)
{
    /* overlap_comm follows the stage as a file's default does (config/resolve.c) */
    if (variant->stage != run->config.zero.stage)
        run->config.zero.overlap_comm = variant->stage == 3;
    run->config.zero.stage = variant->stage;
    run->config.zero.offload_optimizer = variant->optimizer;
    run->config.zero.offload_param = variant->params;
}
