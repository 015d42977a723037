/* SPDX-License-Identifier: Apache-2.0 */
/* collect.c — run one command on every host and keep what each prints. Hosts that cannot be used
 * are left out and the others asked again: the plan is made without them. */
#include "launch/launcher_internal.h"

#include <string.h>

#include "base/log.h"

void zn_host_texts_destroy(zn_host_text *hosts, int n)
{
    for (int i = 0; hosts && i < n; i++) {
        zn_free(hosts[i].host);
        zn_buf_fini(&hosts[i].text);
    }
    zn_free(hosts);
}

static zinc_status take_texts(const zn_plan *plan, zn_buf *captured, zn_host_text **out, int *n)
{
    zinc_status status;
    zn_host_text *hosts = NULL;
    ZN_TRY(zn_alloc_array(&hosts, (size_t)plan->n_processes, sizeof *hosts, "hosts"));
    for (int i = 0; i < plan->n_processes; i++) {
        ZN_TRY_GOTO(zn_strdup(plan->pool.hosts[plan->processes[i].host].name, &hosts[i].host));
        hosts[i].text = captured[i];
        captured[i] = (zn_buf){0};
    }
    *out = hosts;
    *n = plan->n_processes;
    return ZINC_OK;
fail:
    zn_host_texts_destroy(hosts, plan->n_processes);
    return status;
}

/* One attempt; *again if hosts were left out and others are there. */
static zinc_status ask_once(const zn_launch_options *options, zn_words *left_out,
                            zn_host_text **out, int *n, int *exit_code, bool *again)
{
    zinc_status status;
    zn_plan *plan = NULL;
    bool *lost = NULL;
    zn_buf *captured = NULL;
    int signal = 0, n_left = 0, n_captured = 0;
    *again = false;
    ZN_TRY_GOTO(zn_plan_create_without(options, left_out, &plan));
    n_captured = plan->n_processes;
    ZN_TRY_GOTO(zn_alloc_array(&lost, (size_t)plan->pool.n, sizeof *lost, "hosts"));
    ZN_TRY_GOTO(zn_alloc_array(&captured, (size_t)n_captured, sizeof *captured, "output"));
    status = zn_launcher_run(options, plan, captured, lost, exit_code, &signal);
    if (status == ZINC_E_COMM) {
        for (int i = 0; i < plan->pool.n; i++)
            n_left += !lost[i];
        *again = n_left > 0 && n_left < plan->pool.n;
    }
    if (*again) {
        zn_log(ZN_LOG_ERROR, "launch", "%s", zinc_last_error());
        for (int i = 0; i < plan->pool.n; i++)
            if (lost[i])
                ZN_TRY_GOTO(zn_words_add(left_out, plan->pool.hosts[i].name));
        status = ZINC_OK;
    } else if (status == ZINC_OK) {
        status = take_texts(plan, captured, out, n);
    }
fail:
    for (int i = 0; captured && i < n_captured; i++)
        zn_buf_fini(&captured[i]);
    zn_free(captured);
    zn_free(lost);
    zn_plan_destroy(plan);
    return status;
}

zinc_status zn_launch_collect(const zn_launch_options *options, zn_host_text **out, int *n,
                              int *exit_code)
{
    zinc_status status;
    zn_words left_out = {0};
    bool again = true;
    while (again)
        ZN_TRY_GOTO(ask_once(options, &left_out, out, n, exit_code, &again));
    if (*exit_code == 0 && left_out.n > 0)
        *exit_code = ZN_EXIT_LOST_HOST;
fail:
    zn_words_fini(&left_out);
    return status;
}
