/* SPDX-License-Identifier: Apache-2.0 */
/* plan_time.c — seconds of an optimizer step from bytes, FLOPs and the machine's rates.
 *
 * With overlap_comm the traffic of micro-batches runs beside the computation, so the longest of
 * them counts; what happens at the step itself (publishing parameters, the update, its transfers)
 * comes after. An update that is offloaded runs in windows, its copies and its disk beside it. */
#include "plan/plan.h"

/* Shares of a peak that long runs reach: 40 to 50% of matrix FLOP/s is what well-tuned training of
 * large models reports (PaLM, Llama 3: 38 to 57% model FLOPs utilisation); copies and collectives
 * come nearer to theirs. */
#define COMPUTE_SHARE 0.45
#define TRANSFER_SHARE 0.8

const char *zn_plan_cause_name(zn_plan_cause cause)
{
    static const char *const names[] = {"compute", "network", "link", "optimizer", "disk"};
    return names[cause];
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double at_rate(double bytes, double rate)
{
    return rate > 0 ? bytes / (rate * TRANSFER_SHARE) : 0;
}

/* Forward once, backward twice that; with checkpointing forward again. */
static double compute_seconds(const zn_plan_run *run)
{
    const zn_config_values *c = &run->config;
    const bool fp32 = !c->bf16.enabled && !c->fp16.enabled;
    const double peak = fp32 ? run->hw.fp32_flops : run->hw.flops;
    const double flops =
        zn_model_flops(run->spec, c->train_micro_batch_size_per_gpu, run->block_size) *
        (run->checkpointing ? 4.0 / 3 : 1) * (double)c->gradient_accumulation_steps;
    return peak > 0 ? flops / (peak * COMPUTE_SHARE) : 0;
}

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

/* Bytes an update reads and writes: gradient, master and states; master, states and parameter. */
static double update_seconds(const zn_plan_run *run, const zn_plan *plan)
{
    const int n_states = run->optim ? run->optim->n_states : 0;
    const bool fp32 = !run->config.bf16.enabled && !run->config.fp16.enabled;
    const double bytes = 4 + 8 + 8 * n_states + (fp32 ? 0 : 2);
    const double off = (double)plan->zero.offloaded_elems;
    const double here = (double)plan->zero.shard_elems - off;
    return at_rate(here * bytes, run->hw.device_rate) +
           at_rate(off * bytes, run->hw.host_rate / run->hw.gpus);
}

void zn_plan_time(const zn_plan_run *run, zn_plan *plan)
{
    const zn_plan_hardware *hw = &run->hw;
    const zn_zero_plan *z = &plan->zero;
    const bool overlap = run->config.zero.overlap_comm;
    const bool streamed = run->config.zero.offload_param != ZN_OFFLOAD_NONE;
    double *s = plan->seconds;
    const double publish =
        run->config.zero.stage < 3 ? at_rate(z->gather_bytes, group_rate(hw, z->shard_ranks)) : 0;
    const double down = at_rate((double)z->to_host_bytes, hw->link);
    const double up = at_rate((double)z->to_device_bytes, hw->link);
    s[ZN_PLAN_COMPUTE] = compute_seconds(run);
    s[ZN_PLAN_NETWORK] =
        at_rate(z->reduce_bytes + z->gather_bytes, group_rate(hw, z->shard_ranks)) +
        at_rate(z->secondary_bytes, group_rate(hw, (int)run->config.zero.hpz_partition_size)) +
        at_rate(z->replica_bytes, network_rate(hw));
    s[ZN_PLAN_LINK] = down + up;
    s[ZN_PLAN_OPTIMIZER] = update_seconds(run, plan);
    s[ZN_PLAN_DISK] =
        at_rate((double)(z->disk_read_bytes + z->disk_written_bytes), hw->disk_rate / hw->gpus);
    plan->bound = ZN_PLAN_COMPUTE;
    for (int i = 0; i < ZN_PLAN_N_CAUSES; i++)
        if (s[i] > s[plan->bound])
            plan->bound = (zn_plan_cause)i;
    if (s[ZN_PLAN_COMPUTE] <= 0)
        return;
    const double beside = larger(s[ZN_PLAN_NETWORK] - publish, down + (streamed ? up : 0));
    const double passes =
        overlap ? larger(s[ZN_PLAN_COMPUTE], beside)
                : s[ZN_PLAN_COMPUTE] + s[ZN_PLAN_NETWORK] - publish + down + (streamed ? up : 0);
    const double update = larger(larger(s[ZN_PLAN_OPTIMIZER], s[ZN_PLAN_DISK]), streamed ? 0 : up);
    plan->step_s = passes + publish + update;
    plan->tokens_per_s = (double)run->config.train_micro_batch_size_per_gpu *
                         (double)run->config.gradient_accumulation_steps * (double)run->block_size *
                         plan->n_ranks / plan->step_s;
}
