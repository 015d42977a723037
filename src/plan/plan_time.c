/* SPDX-License-Identifier: Apache-2.0 */
/* plan_time.c — seconds of an optimizer step from bytes, FLOPs and the machine's rates.
 *
 * Three stretches follow one another: forward, backward, the step. In each the longest of what runs
 * side by side counts: computation, collectives (with overlap_comm), and the link, whose directions
 * are independent. Parameters stream up in forward and in backward, gradients go down in backward.
 * The step waits for the last unit's gradients, updates (in windows, with their copies and the disk
 * beside) and publishes. An update on the host that may begin early (zero/early.c) belongs to
 * backward, but for the last unit's. */
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

/* Seconds of a step's traffic, each alone. */
typedef struct traffic {
    double gathers, reduces; /* collectives of forward and backward */
    double publish;          /* and of the step */
    double stream_up;        /* to the device: parameters and blocks' inputs, as they are used */
    double send_back;        /* … updated parameters */
    double down, away;       /* to the host: gradients; blocks' inputs */
} traffic;

static traffic traffic_of(const zn_plan_run *run, const zn_plan *plan)
{
    const zn_plan_hardware *hw = &run->hw;
    const zn_zero_plan *z = &plan->zero;
    const double rate = group_rate(hw, z->shard_ranks);
    const bool whole = run->config.zero.stage < 3;
    const bool streamed = run->config.zero.offload_param != ZN_OFFLOAD_NONE;
    const double up = at_rate((double)z->to_device_bytes, hw->link);
    traffic t = {.gathers = whole ? 0 : at_rate(z->gather_bytes, rate),
                 .reduces =
                     at_rate(z->reduce_bytes, rate) + at_rate(z->replica_bytes, network_rate(hw)),
                 .publish = whole ? at_rate(z->gather_bytes, rate) : 0,
                 .stream_up = streamed ? up : 0,
                 .send_back = streamed ? 0 : up,
                 .down = at_rate((double)z->to_host_bytes, hw->link),
                 .away = at_rate((double)zn_plan_checkpoint_bytes(run), hw->link)};
    t.gathers +=
        at_rate(z->secondary_bytes, group_rate(hw, (int)run->config.zero.hpz_partition_size));
    return t;
}

/* zn_zero_can_update_early, from a configuration. */
static bool updates_early(const zn_plan_run *run, const zn_plan *plan)
{
    const zn_config_values *c = &run->config;
    return run->optim && run->optim->n_sums == 0 && c->zero.offload_optimizer == ZN_OFFLOAD_CPU &&
           c->zero.offload_param != ZN_OFFLOAD_NVME && plan->zero.n_replicas == 1 &&
           c->bf16.enabled && !c->bf16.check_grad_overflow && !(c->gradient_clipping > 0);
}

/* Side by side, or one after the other. */
static double together(bool overlap, double a, double b)
{
    return overlap ? larger(a, b) : a + b;
}

static double step_seconds(const zn_plan_run *run, const zn_plan *plan, const traffic *t)
{
    const bool overlap = run->config.zero.overlap_comm;
    const double *s = plan->seconds;
    const double last = plan->zero.trainable_padded > 0
                            ? (double)plan->zero.largest_unit / (double)plan->zero.trainable_padded
                            : 0; /* of what a step moves: the unit that backward ends with */
    const double forward_share = run->checkpointing ? 0.25 : 1.0 / 3;
    const double forward = together(overlap, s[ZN_PLAN_COMPUTE] * forward_share,
                                    larger(larger(t->gathers / 2, t->stream_up / 2), t->away));
    const double up = t->stream_up / 2 + t->away;
    double backward = together(overlap, s[ZN_PLAN_COMPUTE] * (1 - forward_share),
                               larger(t->gathers / 2 + t->reduces, up));
    const double update = larger(larger(s[ZN_PLAN_OPTIMIZER], s[ZN_PLAN_DISK]), t->send_back);
    if (!updates_early(run, plan)) {
        const double down = t->down * (1 - last); /* gradients leave beside backward in any case */
        return forward + larger(backward, down) + t->down * last + update + t->publish;
    }
    backward = larger(backward, larger(t->down, larger(s[ZN_PLAN_OPTIMIZER], up + t->send_back)));
    return forward + backward + last * (s[ZN_PLAN_OPTIMIZER] + t->send_back) + t->publish;
}

void zn_plan_time(const zn_plan_run *run, zn_plan *plan)
{
    const traffic t = traffic_of(run, plan);
    double *s = plan->seconds;
    s[ZN_PLAN_COMPUTE] = compute_seconds(run);
    s[ZN_PLAN_NETWORK] = t.gathers + t.reduces + t.publish;
    s[ZN_PLAN_LINK] = larger(t.down + t.away, t.stream_up + t.away + t.send_back);
    s[ZN_PLAN_OPTIMIZER] = update_seconds(run, plan);
    s[ZN_PLAN_DISK] = at_rate((double)(plan->zero.disk_read_bytes + plan->zero.disk_written_bytes),
                              run->hw.disk_rate / run->hw.gpus);
    plan->bound = ZN_PLAN_COMPUTE;
    for (int i = 0; i < ZN_PLAN_N_CAUSES; i++)
        if (s[i] > s[plan->bound])
            plan->bound = (zn_plan_cause)i;
    if (s[ZN_PLAN_COMPUTE] <= 0)
        return;
    plan->step_s = step_seconds(run, plan, &t);
    plan->tokens_per_s = (double)run->config.train_micro_batch_size_per_gpu *
                         (double)run->config.gradient_accumulation_steps * (double)run->block_size *
                         plan->n_ranks / plan->step_s;
}
