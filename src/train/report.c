/* SPDX-License-Identifier: Apache-2.0 */
/* report.c — what a rank holds, measured, beside what the formula says of device and host together.
 * People read it: stderr. */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/sys.h"
#include "plan/plan.h"
#include "train/train_internal.h"

void zn_train_format_bytes(char *out, size_t n, double bytes)
{
    zn_plan_format_bytes(out, n, bytes);
}

static void print_row(const char *name, int64_t device, int64_t host, double formula)
{
    char a[32], b[32], c[32];
    zn_train_format_bytes(a, sizeof a, (double)device);
    zn_train_format_bytes(b, sizeof b, (double)host);
    zn_train_format_bytes(c, sizeof c, formula);
    fprintf(stderr, "  %-18s %12s %12s %12s\n", name, a, host > 0 ? b : "-", formula < 0 ? "-" : c);
}

static double total(const zn_zero_formula *f)
{
    return f->parameters + f->gradients + f->masters + f->optimizer_state;
}

/* Of this run; or, whole, of the same run at stage 0 with everything on the device. */
static void formula_for(const zn_train_setup *setup, const zn_param_list *list, bool whole,
                        zn_zero_formula *out)
{
    zn_zero_params params;
    const zn_engine_params engine = zn_train_engine_params(setup, NULL, NULL);
    zn_engine_zero_params(&engine, &params);
    if (whole) {
        params.stage = 0;
        params.optimizer_tier = params.param_tier = ZN_ZERO_ON_DEVICE;
    }
    zn_zero_formula_bytes(&params, setup->n_ranks, list, out);
}

static void print_frozen(const zn_param_list *list)
{
    int n = 0;
    const int64_t all = zn_param_list_elems(list, false);
    const int64_t frozen = all - zn_param_list_elems(list, true);
    for (int i = 0; i < list->n_specs; i++)
        n += !list->specs[i].trainable;
    if (n > 0)
        fprintf(stderr,
                "  frozen: %d of %d parameters, %" PRId64 " of %" PRId64
                " elements (%.1f%%); they take no gradient, master or optimizer state\n",
                n, list->n_specs, frozen, all, 100 * (double)frozen / (double)all);
}

/* Offload is for what does not fit: say so once where everything would. */
static void advise(const zn_train_setup *setup, const zn_param_list *list)
{
    zn_zero_formula f;
    char need[32], have[32];
    const zn_train_options *o = setup->o;
    const double memory = (double)zn_sys_memory_bytes();
    const bool offloads = setup->values->zero.offload_optimizer != ZN_OFFLOAD_NONE ||
                          setup->values->zero.offload_param != ZN_OFFLOAD_NONE;
    formula_for(setup, list, true, &f);
    if (!offloads || o->device_limit > 0 || o->link_bytes_per_s > 0 ||
        total(&f) * setup->n_ranks > memory / 2)
        return;
    zn_train_format_bytes(need, sizeof need, total(&f) * setup->n_ranks);
    zn_train_format_bytes(have, sizeof have, memory);
    fprintf(stderr,
            "  stage 0 without offload would need %s for all %d ranks, and this machine has %s: "
            "offload only costs speed here\n",
            need, setup->n_ranks, have);
}

void zn_train_print_memory(const zn_train_setup *setup, zn_engine *engine, zn_device *dev)
{
    zn_zero_formula f;
    zn_zero_stats stats;
    zn_mem_usage usage, host;
    const zn_param_list *list = zn_engine_param_list(engine);
    formula_for(setup, list, false, &f);
    const double of_formula[] = {[ZN_MEM_PARAMETERS] = f.parameters,
                                 [ZN_MEM_GRADIENTS] = f.gradients,
                                 [ZN_MEM_MASTERS] = f.masters,
                                 [ZN_MEM_OPTIMIZER_STATE] = f.optimizer_state};
    zn_zero_get_stats(zn_engine_zero(engine), &stats);
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    zn_device_usage(dev, ZN_PLACE_HOST, &host);
    const double full = (double)zn_param_list_elems(list, false);
    double small = 0;
    for (int i = 0; i < list->n_specs; i++)
        if (list->specs[i].n_elems <= setup->values->zero.param_persistence_threshold)
            small += (double)list->specs[i].n_elems;
    const double sharded = setup->values->zero.stage == 3 && setup->n_ranks > 1
                               ? (setup->o->share_parameters ? 1 : 1 - small / full)
                               : 0;
    fprintf(stderr, "memory of rank 0 of %d, stage %d, %s:\n", setup->n_ranks,
            setup->values->zero.stage,
            setup->values->bf16.enabled   ? "bf16"
            : setup->values->fp16.enabled ? "fp16"
                                          : "fp32");
    fprintf(stderr, "  %-18s %12s %12s %12s\n", "", "device", "host", "formula");
    for (int c = 0; c < ZN_N_MEM_CATEGORIES; c++)
        print_row(zn_mem_category_name((zn_mem_category)c), usage.now[c], host.now[c],
                  c < ZN_MEM_ACTIVATIONS ? of_formula[c] : -1);
    print_row("sum", usage.total_now, host.total_now, total(&f));
    fprintf(stderr,
            "  %.1f%% of the parameter bytes are sharded; gathered units, unit gradients and "
            "activations come on top\n",
            100 * sharded);
    print_frozen(list);
    advise(setup, list);
}

/* A table that cannot be made is left out: it is a remark, and the run goes on. */
static void print_made(zinc_status status, zn_buf *text)
{
    if (status == ZINC_OK)
        fputs(text->data, stderr);
    zn_buf_fini(text);
}

/* Model-state bytes that a rank of its own would hold on the device at every stage. */
static void print_stages(const zn_train_setup *setup, const zn_param_list *list)
{
    zn_zero_params params;
    zn_buf text = {0};
    const zn_engine_params engine = zn_train_engine_params(setup, NULL, NULL);
    const zn_zero_plan_params plan = {
        .zero = &params, .n_ranks = setup->n_ranks, .tied = setup->spec.tied};
    zn_engine_zero_params(&engine, &params);
    fprintf(stderr, "memory of a rank by stage (%d ranks), without activations:\n", setup->n_ranks);
    print_made(zn_plan_append_stages(&plan, list, setup->values->zero.stage, &text), &text);
}

void zn_train_print_plan(const zn_train_setup *setup)
{
    zn_param_list list = {0};
    if (zn_train_param_list(setup, &list) != ZINC_OK) {
        zn_param_list_fini(&list);
        return;
    }
    fprintf(stderr,
            "%s, %" PRId64 " parameters; %" PRId64 " rows of up to %" PRId64 " tokens\n"
            "%d ranks x %d threads; micro-batch %" PRId64 ", accumulation %" PRId64
            ", global batch %" PRId64 "\n"
            "%" PRId64 " optimizer steps (%" PRId64 " an epoch); optimizer %s, lr %g\n",
            setup->spec.model_type, zn_param_list_elems(&list, false),
            zn_dataset_n_rows(setup->train), setup->block_size, setup->n_ranks, setup->threads,
            setup->micro_batch, setup->accumulation,
            setup->micro_batch * setup->accumulation * setup->n_ranks, setup->max_steps,
            setup->steps_per_epoch, setup->optim->name, setup->hyper.lr);
    print_frozen(&list);
    print_stages(setup, &list);
    zn_param_list_fini(&list);
}

/* The run as the planner sees it: this machine's memory is the host's, and without --device_memory
 * a rank's device is its share of it. */
static zn_plan_run plan_run(const zn_train_setup *setup, const zn_param_list *list)
{
    const zn_train_options *o = setup->o;
    const int here = zn_train_ranks_per_node(o, setup->n_ranks);
    const double memory = (double)zn_sys_memory_bytes();
    return (zn_plan_run){
        .spec = &setup->spec,
        .list = list,
        .config = *setup->values,
        .optim = setup->optim,
        .checkpointing = setup->checkpointing,
        .shared = zn_train_engine_params(setup, NULL, NULL).share_parameters,
        .block_size = setup->block_size,
        .n_threads = setup->threads,
        .hw = {.name = "",
               .gpus = here,
               .nodes = setup->n_ranks / here,
               .device_bytes = o->device_limit > 0 ? (double)o->device_limit : memory / here,
               .host_bytes = memory}};
}

/* Bytes that every run of this configuration takes on this machine, whatever its rows are like. */
static double certain_bytes(const zn_plan *plan)
{
    const int64_t *device = plan->bytes[ZN_ZERO_ON_DEVICE];
    return (double)(plan->total[ZN_ZERO_ON_DEVICE] + plan->total[ZN_ZERO_ON_HOST] -
                    device[ZN_PLAN_ACTIVATIONS] - device[ZN_PLAN_BUFFERS] -
                    plan->bytes[ZN_ZERO_ON_HOST][ZN_PLAN_ACTIVATIONS]);
}

static zinc_status check_memory(const zn_train_setup *setup, const zn_param_list *list)
{
    const zn_plan_run run = plan_run(setup, list);
    const double there_is = run.hw.host_bytes;
    zn_plan plan;
    char need[32], device[32], host[32], have[32];
    ZN_TRY(zn_plan_make(&run, &plan));
    const double total =
        (double)(plan.total[ZN_ZERO_ON_DEVICE] + plan.total[ZN_ZERO_ON_HOST]) * run.hw.gpus;
    zn_train_format_bytes(device, sizeof device, (double)plan.total[ZN_ZERO_ON_DEVICE]);
    zn_train_format_bytes(host, sizeof host, (double)plan.total[ZN_ZERO_ON_HOST]);
    zn_train_format_bytes(need, sizeof need, total);
    zn_train_format_bytes(have, sizeof have, there_is);
    if (certain_bytes(&plan) * run.hw.gpus > there_is)
        ZN_FAIL(ZINC_E_NOMEM,
                "this run needs %s of this machine's memory (%d ranks, each with a device of %s "
                "and %s on the host), and there are %s (the smaller of what is built in and the "
                "cgroup's limit)",
                need, run.hw.gpus, device, host, have);
    if (total > there_is)
        zn_log(ZN_LOG_WARN, "train",
               "with rows of %" PRId64 " tokens this run needs %s of this machine's memory, and "
               "there are %s: it ends out of memory unless rows are shorter",
               setup->block_size, need, have);
    return ZINC_OK;
}

zinc_status zn_train_check_memory(const zn_train_setup *setup)
{
    zn_param_list list = {0};
    zinc_status status = zn_train_param_list(setup, &list);
    if (status == ZINC_OK)
        status = check_memory(setup, &list);
    zn_param_list_fini(&list);
    return status;
}

/* The change that makes it fit, from the planner. */
static zinc_status append_advice(const zn_train_setup *setup, const zn_param_list *list,
                                 zn_buf *text)
{
    const zn_plan_run run = plan_run(setup, list);
    zn_plan_search search;
    ZN_TRY(zn_plan_find(&run, &search));
    if (!search.before.fits)
        return zn_plan_append_advice(&search, text);
    return zn_buf_puts(text, "what would help: a smaller --per_device_train_batch_size or "
                             "--block_size, --gradient_checkpointing, or a higher "
                             "\"zero_optimization\": {\"stage\"}\n");
}

void zn_train_explain_nomem(const zn_train_setup *setup)
{
    zn_param_list list = {0};
    zn_buf text = {0};
    if (zn_train_param_list(setup, &list) == ZINC_OK && setup->values && setup->optim) {
        print_made(append_advice(setup, &list, &text), &text);
        print_stages(setup, &list);
    }
    zn_param_list_fini(&list);
}

zinc_status zn_train_print_row(const zn_metrics_row *row)
{
    zinc_status status;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_metrics_append_json(row, &text));
    ZN_TRY_GOTO(zn_buf_puts(&text, "\n"));
    if (fwrite(text.data, 1, text.n, stdout) != text.n || fflush(stdout) != 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot write to standard output");
    zn_buf_fini(&text);
    return ZINC_OK;
fail:
    zn_buf_fini(&text);
    return status;
}
