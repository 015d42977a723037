/* SPDX-License-Identifier: Apache-2.0 */
/* plan_time.c — what the parts of a step cost on a machine: seconds a unit, seconds a byte.
 *
 * The walk that counts a step's bytes (zero/zero_dry.c) puts them on the engine's streams, in the
 * engine's order and with its waits (zero/zero_clock.c): its end is the critical path. */
#include "base/mem.h"
#include "plan/plan.h"

const char *zn_plan_cause_name(zn_plan_cause cause)
{
    static const char *const names[] = {"compute", "network", "link", "optimizer", "disk"};
    return names[cause];
}

static double of_one(double rate)
{
    return rate > 0 ? 1 / rate : 0;
}

/* ---- computation ---- */

/* Seconds of one micro-batch's forward in a block, and of the head's loss and gradient. */
static void compute_seconds(const zn_plan_run *run, double *block, double *head)
{
    const zn_config_values *c = &run->config;
    const zn_model_spec *m = run->spec;
    const zn_plan_hardware *hw = &run->hw;
    const bool fp32 = !c->bf16.enabled && !c->fp16.enabled;
    const double second = of_one((fp32 ? hw->fp32_flops : hw->flops) * hw->compute_share);
    const int64_t rows = c->train_micro_batch_size_per_gpu;
    const double of_head = 6.0 * (double)(rows * run->block_size) * (double)(m->V * m->C);
    const double flops = zn_model_flops(m, rows, run->block_size);
    const zn_model_options whole = {.dropout_scale = 1};
    zn_model_memory_bytes memory;
    zn_model_memory(m, &whole, rows, run->block_size, ZN_DTYPE_F32, 1, &memory);
    *head = of_head * second;
    *block = ((flops - of_head) * second +
              (double)memory.activations * of_one(second > 0 ? hw->pass_rate : 0)) /
             3 / (double)m->L;
}

/* A measured step is shared out in the same proportions. */
static void scale_to(const zn_plan_run *run, double *units, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += units[i];
    const double micro = run->compute_s / (double)run->config.gradient_accumulation_steps;
    for (int i = 0; i < n && sum > 0; i++)
        units[i] *= micro / sum;
}

static void fill_units(const zn_plan_run *run, zn_plan_costs *costs)
{
    const int n = run->list->n_units, L = (int)run->spec->L;
    double *forward = costs->units, *backward = forward + n;
    double block = 1, head = 1;
    compute_seconds(run, &block, &head);
    if (run->compute_s > 0 && block <= 0) { /* the speed is not known: by FLOPs alone */
        zn_plan_run unit = *run;
        unit.hw = (zn_plan_hardware){.flops = 1, .fp32_flops = 1, .compute_share = 1};
        compute_seconds(&unit, &block, &head);
    }
    for (int i = 1; i <= L && i < n; i++) { /* the embedding's work is next to nothing */
        forward[i] = block;
        backward[i] = block * (run->checkpointing && i < L ? 3 : 2);
    }
    backward[n - 1] = head;
    if (run->compute_s > 0)
        scale_to(run, costs->units, 2 * n);
    costs->zero.forward = forward;
    costs->zero.backward = backward;
    costs->known = block > 0;
}

/* ---- traffic ---- */

/* Across nodes a ring enters and leaves each node once, so a node's network carries what one rank
 * sends. */
static double network_rate(const zn_plan_hardware *hw)
{
    if (hw->nodes == 1)
        return hw->peer;
    return hw->peer > 0 && hw->peer < hw->network ? hw->peer : hw->network;
}

/* Groups of n consecutive ranks stay inside a node if its number of ranks is a multiple of n. */
static double group_rate(const zn_plan_hardware *hw, int n)
{
    return n > 0 && hw->gpus % n == 0 ? hw->peer : network_rate(hw);
}

zinc_status zn_plan_costs_make(const zn_plan_run *run, zn_plan_costs *out)
{
    const zn_plan_hardware *hw = &run->hw;
    const zn_config_values *c = &run->config;
    const int ranks = hw->gpus * hw->nodes, shard = c->zero.stage > 0 ? (int)c->zero.shard_size : 0;
    zn_plan_costs costs = {
        .zero = {.group_byte = of_one(group_rate(hw, shard > 0 ? shard : ranks)),
                 .secondary_byte = of_one(group_rate(hw, (int)c->zero.hpz_partition_size)),
                 .replica_byte = of_one(network_rate(hw)),
                 .link_byte = of_one(hw->link),
                 .link_copy = hw->link_latency,
                 .device_byte = of_one(hw->device_rate),
                 .host_byte = of_one(hw->host_rate / hw->gpus),
                 .disk_byte = of_one(hw->disk_rate / hw->gpus),
                 .checkpoint_bytes = run->spec->L > 1
                                         ? zn_plan_checkpoint_bytes(run) /
                                               c->gradient_accumulation_steps / (run->spec->L - 1)
                                         : 0,
                 .step = {.clip = c->gradient_clipping,
                          .unchecked = c->bf16.enabled && !c->bf16.check_grad_overflow}}};
    ZN_TRY(zn_alloc_array(&costs.units, 2 * (size_t)run->list->n_units, sizeof(double),
                          "seconds of units"));
    fill_units(run, &costs);
    *out = costs;
    return ZINC_OK;
}

void zn_plan_costs_fini(zn_plan_costs *costs)
{
    zn_free(costs->units);
    *costs = (zn_plan_costs){0};
}

/* ---- the answer ---- */

void zn_plan_time(const zn_plan_run *run, zn_plan *plan)
{
    const double *busy = plan->zero.busy_s;
    const double up = busy[ZN_ZERO_SENDS_UP], down = busy[ZN_ZERO_SENDS_DOWN];
    double *s = plan->seconds;
    s[ZN_PLAN_COMPUTE] = busy[ZN_ZERO_COMPUTES];
    s[ZN_PLAN_NETWORK] = busy[ZN_ZERO_SENDS];
    s[ZN_PLAN_LINK] = up > down ? up : down;
    s[ZN_PLAN_OPTIMIZER] = busy[ZN_ZERO_UPDATES];
    s[ZN_PLAN_DISK] = busy[ZN_ZERO_USES_DISK];
    plan->bound = ZN_PLAN_COMPUTE;
    for (int i = 0; i < ZN_PLAN_N_CAUSES; i++)
        if (s[i] > s[plan->bound])
            plan->bound = (zn_plan_cause)i;
    plan->step_s = plan->zero.step_s;
    plan->tokens_per_s = (double)run->config.train_micro_batch_size_per_gpu *
                         (double)run->config.gradient_accumulation_steps * (double)run->block_size *
                         plan->n_ranks / plan->step_s;
}
