/* SPDX-License-Identifier: Apache-2.0 */
/* engine_ckpt_ds.c — an engine goes on from a DeepSpeed checkpoint. */
#include "engine/engine_ckpt.h"

#include "base/log.h"

typedef struct source {
    const zn_ds_checkpoint *ckpt;
    const zn_optim_ops *optim;
    int *weight_of; /* [n_specs] index in the checkpoint */
} source;

static zinc_status match_shape(const zn_param_spec *spec, const zn_tensor_plan *plan)
{
    bool same = spec->n_dims == plan->n_dims;
    for (int d = 0; same && d < spec->n_dims; d++)
        same = spec->shape[d] == plan->shape[d];
    if (!same)
        ZN_FAIL(ZINC_E_CONFIG,
                "the DeepSpeed checkpoint is of another model: %.200s does not have the shape that "
                "config.json gives it",
                plan->name);
    return ZINC_OK;
}

/* Every parameter is assigned exactly once; buffers and tied copies are left. */
static zinc_status match(const zn_param_list *list, const zn_model_spec *spec, source *from)
{
    char text[512];
    ZN_TRY(zn_alloc_array(&from->weight_of, (size_t)list->n_specs, sizeof *from->weight_of,
                          "parameters"));
    for (int i = 0; i < list->n_specs; i++)
        from->weight_of[i] = -1;
    for (int i = 0; i < zn_ds_n(from->ckpt); i++) {
        bool known = false;
        const zn_tensor_plan plan = zn_ds_at(from->ckpt, i);
        const char *name = zn_model_tensor_name(spec, plan.name, text, sizeof text, &known);
        const int id = name ? zn_param_list_find(list, name) : -1;
        if (!known || (name && id < 0))
            ZN_FAIL(ZINC_E_CONFIG,
                    "the DeepSpeed checkpoint is of another model: it has %.200s, which the model "
                    "of this run has not",
                    plan.name);
        if (id < 0 || zn_ds_is_alias(from->ckpt, i))
            continue;
        if (from->weight_of[id] >= 0)
            ZN_FAIL(ZINC_E_FORMAT, "the DeepSpeed checkpoint has %.200s twice", plan.name);
        ZN_TRY(match_shape(&list->specs[id], &plan));
        from->weight_of[id] = i;
    }
    for (int i = 0; i < list->n_specs; i++)
        if (from->weight_of[i] < 0)
            ZN_FAIL(ZINC_E_CONFIG, "the DeepSpeed checkpoint is of another model: it has no %.200s",
                    list->specs[i].name);
    return ZINC_OK;
}

static zinc_status read_range(void *ctx, int what, int param, int64_t offset, int64_t n, float *out)
{
    const source *from = ctx;
    const int i = from->weight_of[param];
    return what == ZN_ZERO_MASTERS
               ? zn_ds_read(from->ckpt, i, offset, n, out)
               : zn_ds_read_state(from->ckpt, i, from->optim->state_names[what], offset, n, out);
}

zinc_status zn_engine_restore_ds(zn_engine *engine, const zn_model_spec *spec,
                                 const zn_optim_ops *optim, const zn_ds_checkpoint *ckpt)
{
    zinc_status status;
    int64_t steps, skipped, samples;
    source from = {.ckpt = ckpt, .optim = optim};
    zn_comm *comm = zn_engine_comm(engine);
    const zn_param_list *list = zn_engine_param_list(engine);
    ZN_TRY_GOTO(zn_comm_agree(comm, match(list, spec, &from)));
    ZN_TRY_GOTO(zn_zero_restore(zn_engine_zero(engine), read_range, &from));
    zn_ds_progress(ckpt, &steps, &skipped, &samples);
    zn_loss_scaler scaler = zn_loss_scaler_none();
    (void)zn_ds_scaler(ckpt, &scaler);
    zn_engine_set_progress(engine, &(zn_engine_progress){.n_applied = steps - skipped,
                                                         .n_skipped = skipped,
                                                         .scaler = scaler});
    if (zn_comm_rank(comm) == 0)
        zn_info("ckpt", "assigned %d of %d parameters, and %d states of each that is trained",
                list->n_specs, list->n_specs, optim->n_states);
    status = ZINC_OK;
fail:
    zn_free(from.weight_of);
    return status;
}
