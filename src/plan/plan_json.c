/* SPDX-License-Identifier: Apache-2.0 */
/* plan_json.c — a plan for programs, and the configuration it ends in. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "plan/plan.h"

static const char *const offload_names[] = {"none", "cpu", "nvme"};

static zinc_status append_tier(const zn_plan *plan, int tier, zn_buf *out)
{
    ZN_TRY(zn_buf_printf(out, ",\"%s\":{", zn_plan_tier_name(tier)));
    for (int row = 0; row < ZN_PLAN_N_ROWS; row++)
        if (tier == ZN_ZERO_ON_DEVICE || row <= ZN_PLAN_OPTIMIZER_STATE || row == ZN_PLAN_BUFFERS ||
            (tier == ZN_ZERO_ON_HOST && row == ZN_PLAN_ACTIVATIONS))
            ZN_TRY(zn_buf_printf(out, "\"%s\":%" PRId64 ",", zn_plan_row_name((zn_plan_row)row),
                                 plan->bytes[tier][row]));
    ZN_TRY(zn_buf_printf(out, "\"total\":%" PRId64 ",\"limit\":", plan->total[tier]));
    if (plan->limit[tier] > 0)
        return zn_buf_printf(out, "%.0f,\"over\":%.0f}", plan->limit[tier], plan->over[tier]);
    return zn_buf_puts(out, "null,\"over\":0}");
}

static zinc_status append_traffic(const zn_zero_plan *z, zn_buf *out)
{
    return zn_buf_printf(
        out,
        ",\"traffic\":{\"reduce_elements\":%" PRId64 ",\"gather_elements\":%" PRId64
        ",\"shard_ranks\":%d,\"replicas\":%d,\"sent_bytes\":%.0f,\"replica_bytes\":%.0f"
        ",\"secondary_bytes\":%.0f,\"collectives\":%" PRId64 ",\"to_device_bytes\":%" PRId64
        ",\"to_host_bytes\":%" PRId64 ",\"disk_read_bytes\":%" PRId64
        ",\"disk_written_bytes\":%" PRId64 "}",
        z->reduce_elems, z->gather_elems, z->shard_ranks, z->n_replicas,
        z->reduce_bytes + z->gather_bytes + z->replica_bytes + z->secondary_bytes, z->replica_bytes,
        z->secondary_bytes, z->n_collectives, z->to_device_bytes, z->to_host_bytes,
        z->disk_read_bytes, z->disk_written_bytes);
}

static zinc_status append_times(const zn_plan *plan, zn_buf *out)
{
    if (plan->step_s <= 0)
        return zn_buf_puts(out, ",\"step_ms\":null,\"tokens_per_s\":null,\"bound_by\":null");
    ZN_TRY(zn_buf_printf(out,
                         ",\"step_ms\":%.6g,\"tokens_per_s\":%.6g,\"bound_by\":\"%s\","
                         "\"times_ms\":{",
                         plan->step_s * 1e3, plan->tokens_per_s, zn_plan_cause_name(plan->bound)));
    for (int i = 0; i < ZN_PLAN_N_CAUSES; i++)
        ZN_TRY(zn_buf_printf(out, "%s\"%s\":%.6g", i ? "," : "",
                             zn_plan_cause_name((zn_plan_cause)i), plan->seconds[i] * 1e3));
    return zn_buf_puts(out, "}");
}

static zinc_status append_settings(const zn_plan_run *run, zn_buf *out)
{
    const zn_config_values *c = &run->config;
    return zn_buf_printf(
        out,
        ",\"model\":{\"type\":\"%s\",\"parameters\":%" PRId64 ",\"layers\":%" PRId64
        ",\"hidden\":%" PRId64 "},\"settings\":{\"precision\":\"%s\",\"stage\":%d,"
        "\"offload_optimizer\":\"%s\",\"offload_param\":\"%s\",\"micro_batch\":%" PRId64
        ",\"gradient_accumulation_steps\":%" PRId64 ",\"block_size\":%" PRId64
        ",\"gradient_checkpointing\":%s}",
        run->spec->model_type, zn_param_list_elems(run->list, false), run->spec->L, run->spec->C,
        c->bf16.enabled   ? "bf16"
        : c->fp16.enabled ? "fp16"
                          : "fp32",
        c->zero.stage, offload_names[c->zero.offload_optimizer],
        offload_names[c->zero.offload_param], c->train_micro_batch_size_per_gpu,
        c->gradient_accumulation_steps, run->block_size, run->checkpointing ? "true" : "false");
}

static zinc_status append_plan(const zn_plan_run *run, const zn_plan *plan, zn_buf *out)
{
    ZN_TRY(zn_buf_printf(out, "{\"ranks\":%d", plan->n_ranks));
    ZN_TRY(append_settings(run, out));
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++)
        ZN_TRY(append_tier(plan, tier, out));
    ZN_TRY(append_traffic(&plan->zero, out));
    ZN_TRY(append_times(plan, out));
    return zn_buf_printf(out, ",\"fits\":%s", plan->fits ? "true" : "false");
}

static zinc_status append_changes(const zn_plan_search *search, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "["));
    for (int i = 0; i < search->n_fixes; i++)
        ZN_TRY(zn_buf_printf(out, "%s{\"set\":\"%s\",\"value\":%s,\"why\":\"%s\"}", i ? "," : "",
                             search->fixes[i].key, search->fixes[i].value, search->fixes[i].what));
    return zn_buf_puts(out, "]");
}

/* "fix" is what makes it fit. Where nothing does, it is empty, and "smallest" has the changes of
 * the configuration that comes nearest. */
zinc_status zn_plan_append_json(const zn_plan_search *search, zn_buf *out)
{
    ZN_TRY(append_plan(search->given, &search->before, out));
    ZN_TRY(zn_buf_puts(out, ",\"fix\":"));
    ZN_TRY(search->found ? append_changes(search, out) : zn_buf_puts(out, "[]"));
    if (search->before.fits)
        return zn_buf_puts(out, "}\n");
    if (search->needs_disk) {
        ZN_TRY(zn_buf_puts(out, ",\"cpu_offload\":{\"fits\":false"));
        for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++)
            ZN_TRY(append_tier(&search->cpu_only, tier, out));
        ZN_TRY(zn_buf_puts(out, "}"));
    }
    ZN_TRY(zn_buf_printf(out, ",\"%s\":", search->found ? "fixed" : "smallest"));
    ZN_TRY(append_plan(&search->run, &search->after, out));
    if (!search->found) {
        ZN_TRY(zn_buf_puts(out, ",\"changes\":"));
        ZN_TRY(append_changes(search, out));
        if (search->nodes > 0)
            ZN_TRY(zn_buf_printf(out, ",\"fits_on_nodes\":%d", search->nodes));
    }
    return zn_buf_puts(out, "}}\n");
}

/* ---- a ds_config.json ---- */

static zinc_status append_offload(const char *key, zn_offload_device device, const char *nvme_path,
                                  zn_buf *out)
{
    if (device == ZN_OFFLOAD_NONE)
        return ZINC_OK;
    ZN_TRY(zn_buf_printf(out, ",\n    \"%s\": {\"device\": \"%s\"", key, offload_names[device]));
    if (device == ZN_OFFLOAD_NVME) {
        ZN_TRY(zn_buf_puts(out, ", \"nvme_path\": "));
        ZN_TRY(zn_json_append_string(out, nvme_path, strlen(nvme_path)));
    }
    return zn_buf_puts(out, ", \"pin_memory\": true}");
}

static zinc_status append_optimizer(const zn_plan_run *run, zn_buf *out)
{
    const char *type = run->config.optimizer_type;
    if (!type)
        return ZINC_OK;
    return zn_buf_printf(
        out, "  \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": \"auto\"}},\n", type);
}

zinc_status zn_plan_append_config(const zn_plan_run *run, const char *nvme_path, zn_buf *out)
{
    const zn_config_values *c = &run->config;
    ZN_TRY(zn_buf_printf(out,
                         "{\n  \"train_micro_batch_size_per_gpu\": %" PRId64
                         ",\n  \"gradient_accumulation_steps\": %" PRId64 ",\n",
                         c->train_micro_batch_size_per_gpu, c->gradient_accumulation_steps));
    if (c->bf16.enabled || c->fp16.enabled)
        ZN_TRY(zn_buf_printf(out, "  \"%s\": {\"enabled\": true},\n",
                             c->bf16.enabled ? "bf16" : "fp16"));
    ZN_TRY(append_optimizer(run, out));
    ZN_TRY(zn_buf_printf(out,
                         "  \"zero_optimization\": {\n    \"stage\": %d,\n    \"overlap_comm\": %s"
                         ",\n    \"reduce_bucket_size\": %" PRId64,
                         c->zero.stage, c->zero.overlap_comm ? "true" : "false",
                         c->zero.reduce_bucket_size));
    if (c->zero.stage == 3)
        ZN_TRY(zn_buf_printf(out,
                             ",\n    \"stage3_prefetch_bucket_size\": %" PRId64
                             ",\n    \"stage3_max_live_parameters\": %" PRId64
                             ",\n    \"stage3_param_persistence_threshold\": %" PRId64,
                             c->zero.prefetch_bucket_size, c->zero.max_live_parameters,
                             c->zero.param_persistence_threshold));
    ZN_TRY(append_offload("offload_optimizer", c->zero.offload_optimizer, nvme_path, out));
    ZN_TRY(append_offload("offload_param", c->zero.offload_param, nvme_path, out));
    return zn_buf_puts(out, "\n  }\n}\n");
}
