/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_ckpt.h"

#include <string.h>

/* ---- out ---- */

/* One walk over what a rank saves: counts, copies or writes. */
typedef struct walk {
    zn_snapshot *snapshot; /* ranges are added */
    const bool *left_out;
    zn_zero_visit_fn each;
    int what;
    float *out; /* copied to, and moved on */
    zn_part *part;
} walk;

static zinc_status add_range(zn_snapshot *s, int what, int param, int64_t first, int64_t n)
{
    zn_ckpt_range *last = s->n_ranges > 0 ? &s->ranges[s->n_ranges - 1] : NULL;
    s->n_elems += n;
    if (last && last->param == param && last->what == what && last->first + last->count == first &&
        last->count + n <= ZN_CKPT_MAX_RANGE) {
        last->count += n;
        return ZINC_OK;
    }
    ZN_TRY(zn_realloc_array(&s->ranges, (size_t)s->n_ranges + 1, sizeof *s->ranges,
                            "checkpoint ranges"));
    s->ranges[s->n_ranges++] =
        (zn_ckpt_range){.param = param, .what = what, .first = first, .count = n};
    return ZINC_OK;
}

static zinc_status count_values(void *ctx, int param, int64_t offset, int64_t n,
                                const float *values)
{
    const walk *w = ctx;
    (void)values;
    for (int64_t done = 0; done < n; done += ZN_CKPT_MAX_RANGE)
        ZN_TRY(add_range(w->snapshot, w->what, param, offset + done,
                         n - done < ZN_CKPT_MAX_RANGE ? n - done : ZN_CKPT_MAX_RANGE));
    return ZINC_OK;
}

static zinc_status copy_values(void *ctx, int param, int64_t offset, int64_t n, const float *values)
{
    walk *w = ctx;
    (void)param;
    (void)offset;
    memcpy(w->out, values, (size_t)n * sizeof *values);
    w->out += n;
    return ZINC_OK;
}

static zinc_status write_values(void *ctx, int param, int64_t offset, int64_t n,
                                const float *values)
{
    const walk *w = ctx;
    (void)param;
    (void)offset;
    return zn_part_write(w->part, values, n);
}

static zinc_status visit_saved(void *ctx, int param, int64_t offset, int64_t n, const float *values)
{
    const walk *w = ctx;
    return w->left_out && w->left_out[param] ? ZINC_OK : w->each(ctx, param, offset, n, values);
}

static zinc_status walk_all(const zn_snapshot *snapshot, zn_zero_visit_fn each, walk *w)
{
    const int n_states = snapshot->optim ? snapshot->optim->n_states : 0;
    w->left_out = snapshot->left_out;
    w->each = each;
    for (w->what = ZN_ZERO_MASTERS; w->what < n_states; w->what++)
        ZN_TRY(each == count_values || !snapshot->engine
                   ? zn_zero_visit(snapshot->zero, w->what, visit_saved, w)
                   : zn_engine_visit(snapshot->engine, w->what, visit_saved, w));
    return ZINC_OK;
}

zinc_status zn_snapshot_plan(zn_snapshot *snapshot)
{
    walk w = {.snapshot = snapshot};
    const zinc_status status = walk_all(snapshot, count_values, &w);
    if (status != ZINC_OK)
        zn_snapshot_fini(snapshot);
    return status;
}

void zn_snapshot_fini(zn_snapshot *snapshot)
{
    zn_free(snapshot->ranges);
    memset(snapshot, 0, sizeof *snapshot);
}

zinc_status zn_snapshot_copy(const zn_snapshot *snapshot, float *out)
{
    walk w = {.out = out};
    return walk_all(snapshot, copy_values, &w);
}

zinc_status zn_snapshot_write(const zn_snapshot *snapshot, zn_part *part)
{
    walk w = {.part = part};
    return walk_all(snapshot, write_values, &w);
}

/* ---- in ---- */

typedef struct source {
    zn_ckpt *ckpt;
    int *param_of; /* [n_specs] index in the checkpoint */
} source;

static bool same_shape(const zn_param_spec *spec, const zn_tensor_plan *plan)
{
    if (spec->n_dims != plan->n_dims)
        return false;
    for (int d = 0; d < spec->n_dims; d++)
        if (spec->shape[d] != plan->shape[d])
            return false;
    return true;
}

static zinc_status append_shape(zn_buf *out, const int64_t *shape, int n_dims)
{
    ZN_TRY(zn_buf_puts(out, "["));
    for (int d = 0; d < n_dims; d++)
        ZN_TRY(zn_buf_printf(out, d ? ", %lld" : "%lld", (long long)shape[d]));
    return zn_buf_puts(out, "]");
}

static zinc_status refuse_shape(const zn_ckpt *ckpt, const zn_param_spec *spec,
                                const zn_tensor_plan *plan)
{
    zinc_status status;
    zn_buf text = {0};
    ZN_TRY_GOTO(append_shape(&text, plan->shape, plan->n_dims));
    ZN_TRY_GOTO(zn_buf_puts(&text, " in the checkpoint and "));
    ZN_TRY_GOTO(append_shape(&text, spec->shape, spec->n_dims));
    ZN_FAIL_GOTO(ZINC_E_CONFIG, "%s is of another model: %.200s is %s in the model of this run",
                 zn_ckpt_folder(ckpt), spec->name, text.data);
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status match(const zn_param_list *list, source *from)
{
    ZN_TRY(zn_alloc_array(&from->param_of, (size_t)list->n_specs, sizeof *from->param_of,
                          "parameters"));
    for (int i = 0; i < list->n_specs; i++) {
        const zn_param_spec *spec = &list->specs[i];
        const int at = zn_ckpt_find(from->ckpt, spec->name);
        if (at < 0)
            ZN_FAIL(ZINC_E_CONFIG, "%s is of another model: it has no %.200s",
                    zn_ckpt_folder(from->ckpt), spec->name);
        const zn_tensor_plan plan = zn_ckpt_at(from->ckpt, at);
        if (!same_shape(spec, &plan))
            return refuse_shape(from->ckpt, spec, &plan);
        from->param_of[i] = at;
    }
    for (int i = 0; i < zn_ckpt_n(from->ckpt); i++)
        if (zn_param_list_find(list, zn_ckpt_at(from->ckpt, i).name) < 0)
            ZN_FAIL(ZINC_E_CONFIG,
                    "%s is of another model: it has %.200s, which the model of this run has not",
                    zn_ckpt_folder(from->ckpt), zn_ckpt_at(from->ckpt, i).name);
    return ZINC_OK;
}

static zinc_status want_range(void *ctx, int what, int param, int64_t offset, int64_t n, float *out)
{
    const source *from = ctx;
    memset(out, 0, (size_t)n * sizeof *out); /* what is read later takes its place */
    return zn_ckpt_want(from->ckpt, from->param_of[param],
                        what == ZN_ZERO_MASTERS ? ZN_CKPT_MASTER : what, offset, n);
}

zinc_status zn_engine_want(zn_engine *engine, zn_ckpt *ckpt)
{
    zinc_status status;
    source from = {.ckpt = ckpt};
    ZN_TRY_GOTO(zn_comm_agree(zn_engine_comm(engine), match(zn_engine_param_list(engine), &from)));
    status = zn_zero_restore(zn_engine_zero(engine), want_range, &from);
fail:
    zn_free(from.param_of);
    return status;
}

static zinc_status read_range(void *ctx, int what, int param, int64_t offset, int64_t n, float *out)
{
    const source *from = ctx;
    return zn_ckpt_read(from->ckpt, from->param_of[param],
                        what == ZN_ZERO_MASTERS ? ZN_CKPT_MASTER : what, offset, n, out);
}

zinc_status zn_zero_restore_ckpt(zn_zero *zero, zn_comm *comm, const zn_param_list *list,
                                 zn_ckpt *ckpt)
{
    zinc_status status;
    source from = {.ckpt = ckpt};
    ZN_TRY_GOTO(zn_comm_agree(comm, match(list, &from)));
    status = zn_zero_restore(zero, read_range, &from);
fail:
    zn_free(from.param_of);
    return status;
}

zinc_status zn_engine_restore(zn_engine *engine, zn_ckpt *ckpt)
{
    const zn_ckpt_meta *meta = zn_ckpt_get_meta(ckpt);
    ZN_TRY(zn_zero_restore_ckpt(zn_engine_zero(engine), zn_engine_comm(engine),
                                zn_engine_param_list(engine), ckpt));
    zn_engine_set_progress(engine, &(zn_engine_progress){.n_applied = meta->n_applied,
                                                         .n_skipped = meta->n_skipped,
                                                         .scaler = meta->scaler});
    return ZINC_OK;
}
