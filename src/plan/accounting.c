/* SPDX-License-Identifier: Apache-2.0 */
/* accounting.c — bytes by rule of thumb. They know parameters, ranks and stages, nothing of code;
 * docs/memory.md says where each is right. */
#include <inttypes.h>

#include "base/json.h"
#include "plan/plan.h"

void zn_accounting_make(zn_accounting_kind kind, double n_params, int n_ranks,
                        const zn_plan_variant *variant, zn_accounting *out)
{
    const int stage = variant->stage;
    zn_accounting a = {0};
    a.parameters = 2 * n_params / (stage >= 3 ? n_ranks : 1);
    a.gradients = 2 * n_params / (stage >= 2 ? n_ranks : 1);
    a.optimizer = (kind == ZN_ACCOUNTING_CLASSIC ? 8 : 12) * n_params / (stage >= 1 ? n_ranks : 1);
    if (variant->optimizer != ZN_OFFLOAD_NONE) {
        a.host_optimizer = a.optimizer;
        a.optimizer = 0;
    }
    if (variant->params != ZN_OFFLOAD_NONE)
        a.host_parameters = a.parameters;
    a.device_total = a.parameters + a.gradients + a.optimizer;
    a.host_total = a.host_parameters + a.host_optimizer;
    *out = a;
}

static zinc_status append_row(zn_accounting_kind kind, double n_params, int n_ranks,
                              const zn_plan_variant *variant, bool json, zn_buf *out)
{
    static const zn_plan_variant plain = {0, ZN_OFFLOAD_NONE, ZN_OFFLOAD_NONE};
    static const char *const devices[] = {"none", "cpu", "nvme"};
    zn_accounting a, base;
    zn_accounting_make(kind, n_params, n_ranks, variant, &a);
    zn_accounting_make(kind, n_params, n_ranks, &plain, &base);
    const double all = a.device_total * n_ranks;
    if (!json)
        return zn_buf_printf(
            out, "  %-6d %-30s %9.4g %9.4g %9.4g %9.4g %9.4g %7.4g%% %9.4g\n", variant->stage,
            zn_plan_offload_name(variant->optimizer, variant->params), a.parameters / 1e9,
            a.gradients / 1e9, a.optimizer / 1e9, a.device_total / 1e9, all / 1e9,
            100 * (1 - a.device_total / base.device_total), a.host_total / 1e9);
    return zn_buf_printf(
        out,
        "{\"stage\":%d,\"offload\":\"%s\",\"offload_optimizer\":\"%s\",\"offload_param\":\"%s\","
        "\"parameters\":%.0f,\"gradients\":%.0f,\"optimizer_state\":%.0f,\"device_total\":%.0f,"
        "\"all_devices\":%.0f,\"saved\":%.6g,\"reduction\":%.6g,\"host_optimizer_state\":%.0f,"
        "\"host_parameters\":%.0f,\"host_total\":%.0f}",
        variant->stage, zn_plan_offload_name(variant->optimizer, variant->params),
        devices[variant->optimizer], devices[variant->params], a.parameters, a.gradients,
        a.optimizer, a.device_total, all, 1 - a.device_total / base.device_total,
        base.device_total / a.device_total, a.host_optimizer, a.host_parameters, a.host_total);
}

static zinc_status append_head(zn_accounting_kind kind, double n_params, int n_ranks, zn_buf *out)
{
    return zn_buf_printf(
        out,
        "%.0f parameters on %d devices, GB (10^9 bytes); 2 bytes a weight, 2 a gradient, %s\n"
        "  %-6s %-30s %9s %9s %9s %9s %9s %8s %9s\n",
        n_params, n_ranks,
        kind == ZN_ACCOUNTING_CLASSIC ? "8 of Adam's moments, no fp32 masters"
                                      : "12 of fp32 master and Adam's moments",
        "stage", "offload", "weights", "grads", "optimizer", "a device", "all", "saved",
        "host/rank");
}

zinc_status zn_accounting_append(zn_accounting_kind kind, double n_params, int n_ranks,
                                 const zn_plan_variant *variant, bool json, zn_buf *out)
{
    const zn_plan_variant *rows = variant ? variant : zn_plan_variants;
    const int n_rows = variant ? 1 : zn_plan_n_variants;
    bool first = true;
    if (!json)
        ZN_TRY(append_head(kind, n_params, n_ranks, out));
    else if (!variant)
        ZN_TRY(zn_buf_printf(out, "{\"ranks\":%d,\"rows\":[", n_ranks));
    for (int i = 0; i < n_rows; i++) {
        if (!variant && rows[i].optimizer == ZN_OFFLOAD_NVME)
            continue; /* the same numbers as cpu, on a disk */
        if (json && !first)
            ZN_TRY(zn_buf_puts(out, ","));
        ZN_TRY(append_row(kind, n_params, n_ranks, &rows[i], json, out));
        first = false;
    }
    return zn_buf_puts(out, !json ? "" : variant ? "\n" : "]}\n");
}

/* ---- DeepSpeed's estimators ----
 * In their letters: P parameters, LL those of the largest layer, f the buffer factor, tg GPUs in
 * all, gpn GPUs of a node. Every division and factor is fp64 and cut to an integer at the end, as
 * Python's int() does. Source: estimate_zero2_model_states_mem_needs in runtime/zero/
 * stage_1_and_2.py, estimate_zero3_model_states_mem_needs in runtime/zero/stage3.py, 0.19.8. */

static double at_least(double a, double b)
{
    return a > b ? a : b;
}

static void estimate_zero2(zn_deepspeed_estimate *e)
{
    const double P = (double)e->n_params, tg = (double)e->gpus_per_node * e->nodes;
    e->gpu_bytes = 2 * e->n_params;
    if (e->offload_optimizer) {
        e->cpu_bytes = (int64_t)(P * at_least(4 * tg, 16) * e->buffer_factor);
        return;
    }
    e->gpu_bytes += (int64_t)(18 * P / tg);
    e->cpu_bytes = (int64_t)(P * 4 * e->gpus_per_node * e->buffer_factor);
}

static void estimate_zero3(zn_deepspeed_estimate *e)
{
    const double P = (double)e->n_params, tg = (double)e->gpus_per_node * e->nodes;
    const double share = 1.0 / e->nodes, loaded = 4.0 * e->gpus_per_node;
    e->gpu_bytes = 4 * e->largest_layer;
    if (!e->offload_optimizer) {
        const double held = e->zero_init ? (double)e->largest_layer : P;
        e->gpu_bytes += (int64_t)(18 * P / tg);
        e->cpu_bytes = (int64_t)(held * 4 * e->gpus_per_node * e->buffer_factor);
        return;
    }
    const double state = e->offload_param ? 18 : 16;
    if (!e->offload_param)
        e->gpu_bytes += (int64_t)(2 * P / tg);
    e->cpu_bytes = e->zero_init ? (int64_t)(P * state * share * e->buffer_factor)
                                : (int64_t)(P * at_least(loaded, state * share) * e->buffer_factor);
}

zinc_status zn_deepspeed_estimate_make(zn_deepspeed_estimate *estimate)
{
    if (estimate->stage != 2 && estimate->stage != 3)
        ZN_FAIL(ZINC_E_CONFIG,
                "--accounting deepspeed: DeepSpeed estimates stages 2 and 3, not %d; give --stage",
                estimate->stage);
    if (estimate->stage == 3 && estimate->largest_layer < 1)
        ZN_FAIL(ZINC_E_CONFIG, "--accounting deepspeed --stage 3 needs --largest_layer, the "
                               "parameters of the largest layer");
    if (estimate->offload_param && (estimate->stage != 3 || !estimate->offload_optimizer))
        ZN_FAIL(ZINC_E_CONFIG, "--accounting deepspeed: --offload_param goes with stage 3 and "
                               "--offload_optimizer cpu");
    if (estimate->stage == 2)
        estimate_zero2(estimate);
    else
        estimate_zero3(estimate);
    return ZINC_OK;
}
