/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/diagnose.h"

#include <math.h>

#include "base/mem.h"
#include "engine/model_batch.h"

/* Hooks around the ZeRO engine's: parameters from there, gradients into buffers of our own. */
typedef struct probe {
    const zn_diagnosis *d;
    const zn_param_hooks *inner;
    float **grads;   /* [n_specs]; NULL: none yet, or no memory for it */
    int bad;         /* first parameter whose gradient does not fit the wire, else -1 */
    int64_t *reduce; /* scratch of the exchange, [2 * n_ranks] */
} probe;

static bool fits(float x, zn_dtype dtype)
{
    if (dtype == ZN_DTYPE_F16)
        return (zn_f32_to_f16(x) & 0x7c00u) != 0x7c00u;
    if (dtype == ZN_DTYPE_BF16)
        return isfinite(zn_bf16_to_f32(zn_f32_to_bf16(x)));
    return isfinite(x);
}

static bool all_fit(const float *values, int64_t n, zn_dtype dtype)
{
    for (int64_t i = 0; i < n; i++)
        if (!fits(values[i], dtype))
            return false;
    return true;
}

#define PART 4096 /* floats that are looked at at once */

/* The same of values on the device. */
static zinc_status all_fit_there(zn_device *dev, const float *values, int64_t n, zn_dtype dtype,
                                 bool *out)
{
    float part[PART];
    *out = true;
    for (int64_t at = 0; at < n && *out; at += PART) {
        const int64_t m = n - at < PART ? n - at : PART;
        ZN_TRY(zn_device_copy_now(dev, part, values + at, (size_t)m * sizeof *part));
        *out = all_fit(part, m, dtype);
    }
    return ZINC_OK;
}

/* ---- weights ---- */

typedef struct weight_check {
    zn_dtype dtype;
    int64_t bad; /* lowest parameter so far, else INT64_MAX */
} weight_check;

static zinc_status check_weight(void *ctx, int param, int64_t offset, int64_t n,
                                const float *values)
{
    weight_check *check = ctx;
    (void)offset;
    if (param < check->bad && !all_fit(values, n, check->dtype))
        check->bad = param;
    return ZINC_OK;
}

/* The lowest first number of all ranks' pairs, and its rank; INT64_MAX if nobody has one. */
static zinc_status lowest(const probe *p, const int64_t mine[2], int64_t out[2], int *rank)
{
    ZN_TRY(zn_comm_exchange(p->d->comm, mine, 2 * sizeof *mine, p->reduce, "diagnosis"));
    out[0] = INT64_MAX;
    for (int r = 0; r < zn_comm_n_ranks(p->d->comm); r++)
        if (p->reduce[2 * r] < out[0]) {
            out[0] = p->reduce[2 * r];
            out[1] = p->reduce[2 * r + 1];
            *rank = r;
        }
    return ZINC_OK;
}

static zinc_status find_weight(const probe *p, zn_bad_value *out)
{
    int64_t found[2];
    int rank = 0;
    weight_check check = {.dtype = p->d->param_dtype, .bad = INT64_MAX};
    ZN_TRY(zn_zero_visit(p->d->zero, ZN_ZERO_MASTERS, check_weight, &check));
    ZN_TRY(lowest(p, (int64_t[2]){check.bad, 0}, found, &rank));
    if (found[0] != INT64_MAX)
        *out = (zn_bad_value){.kind = ZN_BAD_WEIGHT,
                              .name = p->d->list->specs[found[0]].name,
                              .rank = rank,
                              .micro = -1};
    return ZINC_OK;
}

/* ---- one micro-batch ---- */

static zinc_status probe_before_use(void *ctx, int unit, zn_pass pass)
{
    const probe *p = ctx;
    (void)pass; /* to the engine this is evaluation: no gradients will follow */
    return p->inner->before_use(p->inner->ctx, unit, ZN_PASS_EVAL);
}

static zinc_status probe_after_use(void *ctx, int unit, zn_pass pass)
{
    const probe *p = ctx;
    (void)pass;
    return p->inner->after_use(p->inner->ctx, unit, ZN_PASS_EVAL);
}

static const void *probe_data(void *ctx, int param)
{
    const probe *p = ctx;
    return p->inner->data(p->inner->ctx, param);
}

static float *probe_grad(void *ctx, int param)
{
    probe *p = ctx;
    const zn_param_spec *spec = &p->d->list->specs[param];
    if (!spec->trainable || p->grads[param])
        return p->grads[param];
    /* without memory for it the parameter is passed over: the diagnosis is a help and not a need */
    const size_t n_bytes = (size_t)spec->n_elems * sizeof(float);
    if (zn_device_alloc(p->d->dev, ZN_PLACE_DEVICE, ZN_MEM_GRADIENTS, n_bytes,
                        "gradients of the diagnosis", &p->grads[param]) != ZINC_OK)
        return NULL;
    if (zn_kernels_get(p->d->dev)->zero(zn_device_compute(p->d->dev), p->grads[param],
                                        (int64_t)n_bytes) != ZINC_OK) {
        zn_device_free(p->d->dev, p->grads[param]);
        p->grads[param] = NULL;
    }
    return p->grads[param];
}

/* Backward has passed the unit: look at its gradients, the last parameter first, and drop them. */
static zinc_status probe_grads_ready(void *ctx, int unit)
{
    probe *p = ctx;
    ZN_TRY(zn_stream_sync(zn_device_compute(p->d->dev), -1));
    for (int i = p->d->list->n_specs - 1; i >= 0; i--) {
        const zn_param_spec *spec = &p->d->list->specs[i];
        if (spec->unit != unit || !p->grads[i])
            continue;
        bool fit = true;
        if (p->bad < 0)
            ZN_TRY(all_fit_there(p->d->dev, p->grads[i], spec->n_elems, p->d->wire_dtype, &fit));
        if (!fit)
            p->bad = i;
        zn_device_free(p->d->dev, p->grads[i]);
        p->grads[i] = NULL;
    }
    return ZINC_OK;
}

static const char *name_of(const zn_param_list *list, zn_bad_kind kind, int64_t index)
{
    return kind == ZN_BAD_GRADIENT     ? list->specs[index].name
           : kind == ZN_BAD_ACTIVATION ? list->unit_names[index]
                                       : NULL;
}

static zinc_status find_in_micro_batch(probe *p, int64_t m, double *loss, zn_bad_value *out)
{
    const zn_diagnosis *d = p->d;
    const zn_batch *batch = &d->batches[m];
    const zn_param_hooks hooks = {.ctx = p,
                                  .param_dtype = p->inner->param_dtype,
                                  .first_trainable_unit = p->inner->first_trainable_unit,
                                  .before_use = probe_before_use,
                                  .after_use = probe_after_use,
                                  .data = probe_data,
                                  .grad = probe_grad,
                                  .grads_ready = probe_grads_ready};
    zn_model_batch mb = zn_model_batch_of(batch);
    int64_t found[2];
    int rank = 0;
    mb.dropout_seed = d->dropout_seed;
    double value = 0;
    int unit = -1;
    p->bad = -1;
    ZN_TRY(zn_kernels_get(d->dev)->zero(zn_device_compute(d->dev), loss, sizeof *loss));
    ZN_TRY(zn_model_train(d->model, &mb, &hooks, (float)(d->weights[m] * d->loss_scale), loss));
    ZN_TRY(zn_device_copy_now(d->dev, &value, loss, sizeof value));
    ZN_TRY(zn_model_first_bad_unit(d->model, &mb, &unit));
    const zn_bad_kind kind = unit >= 0          ? ZN_BAD_ACTIVATION
                             : !isfinite(value) ? ZN_BAD_LOSS
                             : p->bad >= 0      ? ZN_BAD_GRADIENT
                                                : ZN_BAD_NONE;
    const int64_t mine[2] = {kind == ZN_BAD_NONE ? INT64_MAX : (int64_t)kind,
                             unit >= 0 ? unit : p->bad};
    ZN_TRY(lowest(p, mine, found, &rank));
    if (found[0] == INT64_MAX)
        return ZINC_OK;
    const zn_bad_kind worst = (zn_bad_kind)found[0];
    *out = (zn_bad_value){
        .kind = worst, .name = name_of(d->list, worst, found[1]), .rank = rank, .micro = m};
    return ZINC_OK;
}

zinc_status zn_diagnose(const zn_diagnosis *d, zn_bad_value *out)
{
    zinc_status status;
    double *loss = NULL;
    probe p = {.d = d, .inner = zn_zero_hooks(d->zero)};
    zn_bad_value found = {.kind = ZN_BAD_NONE, .rank = -1, .micro = -1};
    ZN_TRY_GOTO(zn_alloc_array(&p.grads, (size_t)d->list->n_specs, sizeof *p.grads, "gradients"));
    ZN_TRY_GOTO(zn_alloc_array(&p.reduce, 2 * (size_t)zn_comm_n_ranks(d->comm), sizeof *p.reduce,
                               "exchanged numbers"));
    ZN_TRY_GOTO(zn_device_alloc(d->dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, sizeof *loss,
                                "the loss of the diagnosis", &loss));
    ZN_TRY_GOTO(find_weight(&p, &found));
    for (int64_t m = 0; m < d->n && found.kind == ZN_BAD_NONE; m++)
        ZN_TRY_GOTO(find_in_micro_batch(&p, m, loss, &found));
    *out = found;
    status = ZINC_OK;
fail:
    for (int i = 0; p.grads && i < d->list->n_specs; i++)
        zn_device_free(d->dev, p.grads[i]);
    zn_device_free(d->dev, loss);
    zn_free(p.grads);
    zn_free(p.reduce);
    return status;
}
