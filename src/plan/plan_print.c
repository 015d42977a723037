/* SPDX-License-Identifier: Apache-2.0 */
/* plan_print.c — a plan for people, and tables that the training report prints too. */
#include <inttypes.h>
#include <string.h>

#include "plan/plan.h"

void zn_plan_format_bytes(char *out, size_t n, double bytes)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 999.95 && u < 4) {
        bytes /= 1000;
        u++;
    }
    snprintf(out, n, u == 0 ? "%.0f %s" : "%.1f %s", bytes, units[u]);
}

#define CELL 24

static void cell(char *out, double bytes, bool blank)
{
    if (blank)
        snprintf(out, CELL, "-");
    else
        zn_plan_format_bytes(out, CELL, bytes);
}

/* ---- stages ---- */

static double state_bytes(const zn_zero_plan *z)
{
    return (double)(z->parameters[0] + z->gradients[0] + z->masters[0] + z->optimizer_state[0]);
}

zinc_status zn_plan_append_stages(const zn_zero_plan_params *params, const zn_param_list *list,
                                  int current, zn_buf *out)
{
    const int dev = ZN_ZERO_ON_DEVICE;
    ZN_TRY(zn_buf_printf(out, "  %-7s %12s %12s %12s %12s %12s\n", "stage", "parameters",
                         "gradients", "masters", "optimizer", "sum"));
    for (int stage = 0; stage <= 3; stage++) {
        zn_zero_params zero = *params->zero;
        zn_zero_plan_params p = *params;
        zn_zero_plan z;
        char cells[5][CELL];
        zero.stage = stage;
        if (stage < 3)
            zero.param_tier = ZN_ZERO_ON_DEVICE;
        if (stage == 0)
            zero.optimizer_tier = ZN_ZERO_ON_DEVICE;
        p.zero = &zero;
        ZN_TRY(zn_zero_plan_make(&p, list, &z));
        cell(cells[0], (double)z.parameters[dev], false);
        cell(cells[1], (double)z.gradients[dev], false);
        cell(cells[2], (double)z.masters[dev], false);
        cell(cells[3], (double)z.optimizer_state[dev], false);
        cell(cells[4], state_bytes(&z), false);
        ZN_TRY(zn_buf_printf(out, "  %d%-6s %12s %12s %12s %12s %12s\n", stage,
                             stage == current ? " <-" : "", cells[0], cells[1], cells[2], cells[3],
                             cells[4]));
    }
    return ZINC_OK;
}

/* ---- one plan ---- */

static const char *precision_of(const zn_plan_run *run)
{
    return run->config.bf16.enabled ? "bf16" : run->config.fp16.enabled ? "fp16" : "fp32";
}

static zinc_status append_head(const zn_plan_run *run, zn_buf *out)
{
    const zn_plan_hardware *hw = &run->hw;
    return zn_buf_printf(
        out,
        "%s, %" PRId64 " parameters in %s; stage %d, offload: %s\n"
        "%d node%s x %d device%s%s%s; micro-batch %" PRId64 " x %" PRId64
        " tokens, accumulation %" PRId64 "%s\n",
        run->spec->model_type, zn_param_list_elems(run->list, false), precision_of(run),
        run->config.zero.stage,
        zn_plan_offload_name(run->config.zero.offload_optimizer, run->config.zero.offload_param),
        hw->nodes, hw->nodes > 1 ? "s" : "", hw->gpus, hw->gpus > 1 ? "s" : "",
        hw->name[0] ? ", " : "", hw->name, run->config.train_micro_batch_size_per_gpu,
        run->block_size, run->config.gradient_accumulation_steps,
        run->checkpointing ? ", gradient checkpointing" : "");
}

static zinc_status append_line(const char *name, const double values[], const bool blank[],
                               zn_buf *out)
{
    char cells[ZN_ZERO_N_TIERS][CELL];
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++)
        cell(cells[tier], values[tier], blank[tier]);
    return zn_buf_printf(out, "  %-16s %12s %12s %12s\n", name, cells[0], cells[1], cells[2]);
}

static zinc_status append_bytes(const zn_plan *plan, zn_buf *out)
{
    bool blank[ZN_ZERO_N_TIERS] = {false};
    double values[ZN_ZERO_N_TIERS];
    ZN_TRY(zn_buf_printf(out, "  %-16s %12s %12s %12s\n", "bytes of a rank", "device", "host",
                         "disk"));
    for (int row = 0; row < ZN_PLAN_N_ROWS; row++) {
        char name[32];
        snprintf(name, sizeof name, "%s", zn_plan_row_name((zn_plan_row)row));
        for (char *at = strchr(name, '_'); at; at = strchr(name, '_'))
            *at = ' ';
        for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++) {
            values[tier] = (double)plan->bytes[tier][row];
            blank[tier] = tier != ZN_ZERO_ON_DEVICE && values[tier] == 0;
        }
        ZN_TRY(append_line(name, values, blank, out));
    }
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++) {
        values[tier] = (double)plan->total[tier];
        blank[tier] = false;
    }
    ZN_TRY(append_line("sum", values, blank, out));
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++)
        blank[tier] = plan->limit[tier] <= 0;
    return append_line("there is", plan->limit, blank, out);
}

/* "0 ms", "12.3 ms", "941 ms", "16.5 s", "3120 s" */
static void format_seconds(char *out, size_t n, double seconds)
{
    const bool small = seconds < 10;
    const double value = small ? seconds * 1e3 : seconds;
    snprintf(out, n, "%.*f %s", value > 0 && value < 100 ? 1 : 0, value, small ? "ms" : "s");
}

static zinc_status append_step(const zn_plan *plan, zn_buf *out)
{
    const zn_zero_plan *z = &plan->zero;
    char sent[CELL], up[CELL], down[CELL], disk[CELL];
    cell(sent, z->reduce_bytes + z->gather_bytes + z->replica_bytes + z->secondary_bytes, false);
    cell(up, (double)z->to_device_bytes, false);
    cell(down, (double)z->to_host_bytes, false);
    cell(disk, (double)(z->disk_read_bytes + z->disk_written_bytes), false);
    ZN_TRY(zn_buf_printf(out,
                         "a step sends %s a rank in %" PRId64
                         " collectives; to the device %s, to the host %s, disk %s\n",
                         sent, z->n_collectives, up, down, disk));
    cell(up, z->replica_bytes, false);
    if (z->n_replicas > 1)
        ZN_TRY(zn_buf_printf(out, "%s of it between %d replicas of %d ranks each\n", up,
                             z->n_replicas, z->shard_ranks));
    cell(up, z->secondary_bytes, false);
    if (z->secondary_bytes > 0)
        ZN_TRY(zn_buf_printf(out, "%s of it from second copies\n", up));
    if (plan->step_s <= 0)
        return zn_buf_puts(
            out, "no step time: give --preset, or --flops (or --compute_time) and the rates\n");
    format_seconds(up, sizeof up, plan->step_s);
    ZN_TRY(zn_buf_printf(out, "about %s a step, %.*f tokens/s in all; alone:", up,
                         plan->tokens_per_s < 100 ? 1 : 0, plan->tokens_per_s));
    for (int i = 0; i < ZN_PLAN_N_CAUSES; i++) {
        format_seconds(up, sizeof up, plan->seconds[i]);
        ZN_TRY(
            zn_buf_printf(out, "%s %s %s", i ? "," : "", zn_plan_cause_name((zn_plan_cause)i), up));
    }
    return zn_buf_printf(out, "; bound by %s\n", zn_plan_cause_name(plan->bound));
}

/* "the device has 24.0 GB and needs 31.2 GB, 7.2 GB too much; …" */
static zinc_status append_over(const zn_plan *plan, zn_buf *out)
{
    bool first = true;
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++) {
        char limit[CELL], needs[CELL], over[CELL];
        if (plan->over[tier] == 0)
            continue;
        cell(limit, plan->limit[tier], false);
        cell(needs, (double)plan->total[tier], false);
        cell(over, plan->over[tier], false);
        ZN_TRY(zn_buf_printf(out, "%sthe %s has %s a rank, %s are needed, %s too much",
                             first ? "" : "; ", zn_plan_tier_name(tier), limit, needs, over));
        first = false;
    }
    return zn_buf_puts(out, "\n");
}

/* "key": value, or "block": {"key": value}, without the block zero_optimization. */
static zinc_status append_line_to_paste(const zn_plan_fix *fix, const char *separator, zn_buf *out)
{
    const char *const zero = "zero_optimization.";
    const char *name = fix->key + (strncmp(fix->key, zero, strlen(zero)) == 0 ? strlen(zero) : 0);
    const char *dot = strchr(name, '.');
    if (!dot)
        return zn_buf_printf(out, "%s\"%s\": %s", separator, name, fix->value);
    ZN_TRY(zn_buf_printf(out, "%s\"%.*s\": {\"%s\": %s", separator, (int)(dot - name), name,
                         dot + 1, fix->value));
    return zn_buf_puts(out,
                       strcmp(fix->value, "\"nvme\"") == 0 ? ", \"nvme_path\": \"FOLDER\"}" : "}");
}

/* The fixes as text to paste: keys of ds_config.json, and arguments. */
static zinc_status append_paste(const zn_plan_search *s, zn_buf *out)
{
    int n_top = 0, n_zero = 0;
    for (int i = 0; i < s->n_fixes; i++) { /* those of the root come first */
        const zn_plan_fix *fix = &s->fixes[i];
        if (strncmp(fix->key, "--", 2) == 0 || strchr(fix->key, '.'))
            continue;
        ZN_TRY(append_line_to_paste(fix, n_top++ ? ", " : "to paste into ds_config.json: ", out));
    }
    for (int i = 0; i < s->n_fixes; i++) {
        const zn_plan_fix *fix = &s->fixes[i];
        if (strncmp(fix->key, "--", 2) == 0 || !strchr(fix->key, '.'))
            continue;
        if (n_zero == 0)
            ZN_TRY(zn_buf_printf(out, "%s\"zero_optimization\": {",
                                 n_top ? ", " : "to paste into ds_config.json: "));
        ZN_TRY(append_line_to_paste(fix, n_zero++ ? ", " : "", out));
    }
    ZN_TRY(zn_buf_puts(out, n_zero ? "}\n" : n_top ? "\n" : ""));
    for (int i = 0; i < s->n_fixes; i++)
        if (strncmp(s->fixes[i].key, "--", 2) == 0)
            ZN_TRY(zn_buf_printf(out, "to add to the command line: %s\n", s->fixes[i].key));
    return ZINC_OK;
}

static zinc_status append_changes(const zn_plan_search *s, zn_buf *out)
{
    for (int i = 0; i < s->n_fixes; i++)
        ZN_TRY(zn_buf_printf(out, "  %-50s %-12s %s\n", s->fixes[i].key, s->fixes[i].value,
                             s->fixes[i].what));
    return append_paste(s, out);
}

/* "(a rank: device 12.0 GB, host 414.2 GB, disk 827.7 GB; about 5 s a step, bound by disk)" */
static zinc_status append_needs(const zn_plan *plan, zn_buf *out)
{
    char cells[ZN_ZERO_N_TIERS][CELL];
    for (int tier = 0; tier < ZN_ZERO_N_TIERS; tier++)
        cell(cells[tier], (double)plan->total[tier], false);
    ZN_TRY(
        zn_buf_printf(out, " (a rank: device %s, host %s, disk %s", cells[0], cells[1], cells[2]));
    format_seconds(cells[0], sizeof cells[0], plan->step_s);
    if (plan->step_s > 0)
        ZN_TRY(zn_buf_printf(out, "; about %s a step, bound by %s", cells[0],
                             zn_plan_cause_name(plan->bound)));
    return zn_buf_puts(out, "):\n");
}

zinc_status zn_plan_append_advice(const zn_plan_search *s, zn_buf *out)
{
    if (s->needs_disk) {
        ZN_TRY(zn_buf_puts(out, "CPU offload does not fit: "));
        ZN_TRY(append_over(&s->cpu_only, out));
    }
    if (s->found) {
        ZN_TRY(zn_buf_puts(out, "What fits"));
        ZN_TRY(append_needs(&s->after, out));
        return append_changes(s, out);
    }
    ZN_TRY(zn_buf_puts(out, "With everything that this program can move and shrink: "));
    ZN_TRY(append_over(&s->after, out));
    if (s->nodes > 0)
        ZN_TRY(zn_buf_printf(out, "%d nodes of this kind would do. ", s->nodes));
    ZN_TRY(zn_buf_puts(out, "With more memory there, the configuration is"));
    ZN_TRY(append_needs(&s->after, out));
    return append_changes(s, out);
}

zinc_status zn_plan_append_text(const zn_plan_search *search, zn_buf *out)
{
    ZN_TRY(append_head(search->given, out));
    ZN_TRY(append_bytes(&search->before, out));
    ZN_TRY(append_step(&search->before, out));
    if (search->before.fits)
        return zn_buf_puts(out, search->before.limit[0] > 0
                                    ? "It fits.\n"
                                    : "Whether it fits is not known: give --preset or "
                                      "--gpu_memory.\n");
    ZN_TRY(zn_buf_puts(out, "It does not fit: "));
    ZN_TRY(append_over(&search->before, out));
    return zn_plan_append_advice(search, out);
}

/* ---- all ---- */

static zinc_status append_variant(const zn_plan_variant *v, const zn_plan *plan, zn_buf *out)
{
    char cells[3][CELL], step[CELL] = "-";
    for (int tier = 0; tier < 3; tier++)
        cell(cells[tier], (double)plan->total[tier], plan->total[tier] == 0);
    if (plan->step_s > 0)
        format_seconds(step, sizeof step, plan->step_s);
    return zn_buf_printf(out, "  %-6d %-32s %12s %12s %12s %12s  %-10s %s\n", v->stage,
                         zn_plan_offload_name(v->optimizer, v->params), cells[0], cells[1],
                         cells[2], step, plan->step_s > 0 ? zn_plan_cause_name(plan->bound) : "-",
                         plan->limit[0] <= 0 ? "-"
                         : plan->fits        ? "yes"
                                             : "no");
}

static zinc_status append_variant_json(const zn_plan_variant *v, const zn_plan *plan, bool first,
                                       zn_buf *out)
{
    static const char *const devices[] = {"none", "cpu", "nvme"};
    ZN_TRY(zn_buf_printf(
        out,
        "%s{\"stage\":%d,\"offload\":\"%s\",\"offload_optimizer\":\"%s\",\"offload_param\":\"%s\","
        "\"device_total\":%" PRId64 ",\"host_total\":%" PRId64 ",\"disk_total\":%" PRId64
        ",\"fits\":%s,",
        first ? "" : ",", v->stage, zn_plan_offload_name(v->optimizer, v->params),
        devices[v->optimizer], devices[v->params], plan->total[0], plan->total[1], plan->total[2],
        plan->fits ? "true" : "false"));
    if (plan->step_s <= 0)
        return zn_buf_puts(out, "\"step_ms\":null,\"tokens_per_s\":null,\"bound_by\":null}");
    return zn_buf_printf(out, "\"step_ms\":%.6g,\"tokens_per_s\":%.6g,\"bound_by\":\"%s\"}",
                         plan->step_s * 1e3, plan->tokens_per_s, zn_plan_cause_name(plan->bound));
}

zinc_status zn_plan_append_all(const zn_plan_run *run, bool json, zn_buf *out)
{
    if (json)
        ZN_TRY(zn_buf_printf(out, "{\"ranks\":%d,\"rows\":[", run->hw.gpus * run->hw.nodes));
    else
        ZN_TRY(zn_buf_printf(out,
                             "%s, %" PRId64 " parameters in %s, %d ranks, micro-batch %" PRId64
                             " x %" PRId64 " tokens; a rank:\n"
                             "  %-6s %-32s %12s %12s %12s %12s  %-10s %s\n",
                             run->spec->model_type, zn_param_list_elems(run->list, false),
                             precision_of(run), run->hw.gpus * run->hw.nodes,
                             run->config.train_micro_batch_size_per_gpu, run->block_size, "stage",
                             "offload", "device", "host", "disk", "a step", "bound by", "fits"));
    for (int i = 0; i < zn_plan_n_variants; i++) {
        zn_plan plan;
        zn_plan_run variant = *run;
        zn_plan_apply_variant(&zn_plan_variants[i], &variant);
        ZN_TRY(zn_plan_make(&variant, &plan));
        if (json)
            ZN_TRY(append_variant_json(&zn_plan_variants[i], &plan, i == 0, out));
        else
            ZN_TRY(append_variant(&zn_plan_variants[i], &plan, out));
    }
    return zn_buf_puts(out, json ? "]}\n" : "");
}
