/* SPDX-License-Identifier: Apache-2.0 */
/* launch_plan_print.c — the plan as JSON and as a table. */
#include "launch/launch_internal.h"

#include <string.h>

#include "base/json.h"

static zinc_status json_text(zn_buf *out, const char *text)
{
    return zn_json_append_string(out, text, strlen(text));
}

static zinc_status json_hosts(const zn_plan *plan, zn_buf *out)
{
    for (int h = 0; h < plan->pool.n; h++) {
        const zn_host *host = &plan->pool.hosts[h];
        ZN_TRY(zn_buf_puts(out, h ? ",{\"name\":" : "{\"name\":"));
        ZN_TRY(json_text(out, host->name));
        ZN_TRY(zn_buf_puts(out, ",\"slots\":["));
        for (int k = 0; k < host->n_slots; k++)
            ZN_TRY(zn_buf_printf(out, "%s%d", k ? "," : "", host->slots[k]));
        ZN_TRY(zn_buf_puts(out, "]}"));
    }
    return ZINC_OK;
}

static zinc_status put_cores(const zn_process *p, zn_buf *out)
{
    for (int i = 0; i < p->n_cores; i++)
        ZN_TRY(zn_buf_printf(out, "%s%d", i ? "," : "", p->cores[i]));
    return ZINC_OK;
}

/* null: it is not bound, or only its host knows. */
static zinc_status json_cores(const zn_process *p, zn_buf *out)
{
    if (!p->cores)
        return zn_buf_puts(out, "null");
    ZN_TRY(zn_buf_puts(out, "["));
    ZN_TRY(put_cores(p, out));
    return zn_buf_puts(out, "]");
}

static zinc_status json_env(const zn_words *env, zn_buf *out)
{
    for (int i = 0; i < env->n; i++) {
        const size_t n = strcspn(env->items[i], "=");
        ZN_TRY(zn_buf_puts(out, i ? "," : ""));
        ZN_TRY(zn_json_append_string(out, env->items[i], n));
        ZN_TRY(zn_buf_puts(out, ":"));
        ZN_TRY(json_text(out, env->items[i] + n + 1));
    }
    return ZINC_OK;
}

zinc_status zn_plan_json(const zn_plan *plan, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "{\"hosts\":["));
    ZN_TRY(json_hosts(plan, out));
    ZN_TRY(zn_buf_puts(out, "],\"master_addr\":"));
    ZN_TRY(json_text(out, plan->master_addr));
    ZN_TRY(zn_buf_printf(out, ",\"master_port\":%d,\"world_size\":%d,\"ranks\":[",
                         plan->master_port, plan->world));
    for (int i = 0; i < plan->n_processes; i++) {
        const zn_process *p = &plan->processes[i];
        ZN_TRY(zn_buf_printf(out, "%s{\"rank\":%d,\"host\":", i ? "," : "", p->rank));
        ZN_TRY(json_text(out, plan->pool.hosts[p->host].name));
        ZN_TRY(zn_buf_printf(out, ",\"local_rank\":%d,\"cores\":", p->local_rank));
        ZN_TRY(json_cores(p, out));
        ZN_TRY(zn_buf_puts(out, ",\"env\":{"));
        ZN_TRY(json_env(&p->env, out));
        ZN_TRY(zn_buf_puts(out, "},\"argv\":["));
        for (int k = 0; k < p->argv.n; k++) {
            ZN_TRY(zn_buf_puts(out, k ? "," : ""));
            ZN_TRY(json_text(out, p->argv.items[k]));
        }
        ZN_TRY(zn_buf_puts(out, "]}"));
    }
    return zn_buf_puts(out, "]}\n");
}

zinc_status zn_plan_text(const zn_plan *plan, zn_buf *out)
{
    ZN_TRY(zn_buf_printf(out, "%d rank%s on %d host%s; rank 0 listens on %s:%d\n", plan->world,
                         plan->world == 1 ? "" : "s", plan->pool.n, plan->pool.n == 1 ? "" : "s",
                         plan->master_addr, plan->master_port));
    if (plan->native && plan->n_processes) {
        if (plan->by_hand_rank > 0)
            return zn_buf_printf(out, "machine %d waits for what machine 0 starts\n",
                                 plan->by_hand_rank);
        ZN_TRY(zn_buf_puts(out, plan->by_hand_rank == 0
                                    ? "one command makes the ranks, when all machines are here:\n  "
                                    : "one command makes the ranks:\n  "));
        ZN_TRY(zn_shell_command(&plan->processes[0].argv, out));
        return zn_buf_puts(out, "\n");
    }
    ZN_TRY(zn_buf_printf(out, "%-24s %10s %10s %10s  %s\n", "host", "local rank", "slot", "rank",
                         "cores"));
    for (int i = 0; i < plan->n_processes; i++) {
        const zn_process *p = &plan->processes[i];
        const zn_host *host = &plan->pool.hosts[p->host];
        ZN_TRY(zn_buf_printf(out, "%-24s %10d %10d %10d  ", host->name, p->local_rank,
                             host->slots[p->local_rank], p->rank));
        if (p->cores && p->n_cores == 0)
            ZN_TRY(zn_buf_puts(out, "none"));
        else if (p->cores)
            ZN_TRY(put_cores(p, out));
        else if (plan->bound)
            ZN_TRY(zn_buf_printf(out, "1/%d of the host's", host->n_slots));
        else
            ZN_TRY(zn_buf_puts(out, "all"));
        ZN_TRY(zn_buf_puts(out, "\n"));
    }
    if (plan->n_processes) {
        ZN_TRY(zn_buf_puts(out, "each rank runs\n  "));
        ZN_TRY(zn_shell_command(&plan->processes[0].argv, out));
        ZN_TRY(zn_buf_puts(out, "\n"));
    }
    return ZINC_OK;
}
