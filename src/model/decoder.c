/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.c — the model as a whole: its memory, and the order in which units are used.
 *
 * Training: embed, layer 0 … L-1 forward; the head forward and backward in one use; layer L-1 … 0
 * backward; embed backward. A unit's gradients are ready right after its own backward; a tied
 * embedding's (to which the head has already added) at the very end. */
#include <math.h>
#include <string.h>

#include "model/model_internal.h"

/* ---- create, destroy ---- */

/* Ids by slot, walked in the order of registration (params.c). */
static void number_slots(zn_model *m)
{
    int64_t shape[2];
    int next = 0;
    for (int s = ZN_SLOT_WTE; s <= ZN_SLOT_WPE; s++)
        m->ids[s] = zn_slot_shape(&m->spec, (zn_slot)s, shape) ? next++ : -1;
    for (int64_t i = 0; i < m->spec.L; i++)
        for (int s = 0; s < ZN_N_LAYER_SLOTS; s++)
            m->layer_ids[i * ZN_N_LAYER_SLOTS + s] =
                zn_slot_shape(&m->spec, (zn_slot)s, shape) ? next++ : -1;
    for (int s = ZN_SLOT_FINAL_W; s < ZN_N_SLOTS; s++)
        m->ids[s] = zn_slot_shape(&m->spec, (zn_slot)s, shape) ? next++ : -1;
}

zinc_status zn_model_create(const zn_model_spec *spec, const zn_model_options *opts, zn_device *dev,
                            const zn_kernels *kernels, zn_model **out)
{
    zinc_status status = ZINC_OK;
    zn_model *m = NULL;
    const size_t L = (size_t)spec->L;
    if (!(opts->dropout_scale >= 0 && opts->dropout_scale <= 1))
        ZN_FAIL(ZINC_E_INVALID, "dropout_scale %g is not in [0, 1]", (double)opts->dropout_scale);
    ZN_TRY(zn_alloc(&m, sizeof *m, "model"));
    m->spec = *spec;
    m->spec.layer_windowed = NULL;
    m->opts = *opts;
    m->opts.checkpoints_on_host &= opts->activation_checkpointing;
    m->dev = dev;
    m->kernels = kernels;
    ZN_TRY_GOTO(zn_alloc(&m->spec.layer_windowed, L, "layer windows"));
    memcpy(m->spec.layer_windowed, spec->layer_windowed, L);
    ZN_TRY_GOTO(
        zn_alloc_array(&m->layer_ids, L * ZN_N_LAYER_SLOTS, sizeof *m->layer_ids, "parameter ids"));
    ZN_TRY_GOTO(zn_alloc_array(&m->acts.x, L + 1, sizeof *m->acts.x, "activation table"));
    ZN_TRY_GOTO(zn_alloc_array(&m->acts.layer, L, sizeof *m->acts.layer, "activation table"));
    number_slots(m);
    *out = m;
    return ZINC_OK;
fail:
    zn_model_destroy(m);
    return status;
}

void zn_model_destroy(zn_model *m)
{
    if (!m)
        return;
    for (int i = 0; i < 2; i++) /* after an error copies may still be under way */
        zn_ignore(zn_event_wait(m->saved[i], -1));
    zn_ignore(zn_event_wait(m->fetched, -1));
    zn_device_free(m->dev, m->host_x);
    zn_device_free(m->dev, m->acts_slab);
    zn_device_free(m->dev, m->buffers_slab);
    zn_device_free(m->dev, m->rope_cos);
    zn_device_free(m->dev, m->rope_sin);
    zn_device_free(m->dev, m->positions);
    zn_free(m->acts.x);
    zn_free(m->acts.layer);
    zn_free(m->layer_ids);
    zn_model_spec_fini(&m->spec);
    zn_free(m);
}

/* ---- memory ---- */

static zinc_status grow(zn_model *m, zn_mem_category category, size_t n_bytes, const char *what,
                        char **slab, size_t *have)
{
    if (n_bytes <= *have)
        return ZINC_OK;
    ZN_TRY(zn_stream_sync(zn_device_compute(m->dev), -1));
    zn_device_free(m->dev, *slab);
    *slab = NULL;
    *have = 0;
    ZN_TRY(zn_device_alloc(m->dev, ZN_PLACE_DEVICE, category, n_bytes, what, slab));
    *have = n_bytes;
    return ZINC_OK;
}

/* Copy a table from the host into *out, which is replaced. */
static zinc_status upload(zn_model *m, const void *src, size_t n_bytes, const char *what, void *out)
{
    zn_stream *s = zn_device_compute(m->dev);
    void *dst = NULL;
    ZN_TRY(zn_device_alloc(m->dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, n_bytes, what, &dst));
    memcpy(out, &dst, sizeof dst);
    ZN_TRY(zn_device_copy(s, dst, src, n_bytes, NULL));
    return zn_stream_sync(s, -1);
}

static zinc_status make_rope(zn_model *m, int64_t T)
{
    zinc_status status = ZINC_OK;
    const size_t n = (size_t)(T * (m->spec.rotary / 2));
    float *host = NULL;
    ZN_TRY(zn_alloc_array(&host, 2 * n, sizeof *host, "rope angles"));
    zn_rope_table(&m->spec, T, host, host + n);
    ZN_TRY_GOTO(upload(m, host, n * sizeof *host, "rope angles", &m->rope_cos));
    ZN_TRY_GOTO(upload(m, host + n, n * sizeof *host, "rope angles", &m->rope_sin));
fail:
    zn_free(host);
    return status;
}

static zinc_status make_positions(zn_model *m, int64_t T)
{
    zinc_status status = ZINC_OK;
    int32_t *host = NULL;
    ZN_TRY(zn_alloc_array(&host, (size_t)T, sizeof *host, "positions"));
    for (int64_t t = 0; t < T; t++)
        host[t] = (int32_t)t;
    ZN_TRY_GOTO(upload(m, host, (size_t)T * sizeof *host, "positions", &m->positions));
fail:
    zn_free(host);
    return status;
}

/* Tables by position: the first T rows of a longer one serve a shorter batch. */
static zinc_status grow_tables(zn_model *m, int64_t T)
{
    if (T <= m->tables_T)
        return ZINC_OK;
    ZN_TRY(zn_stream_sync(zn_device_compute(m->dev), -1));
    zn_device_free(m->dev, m->rope_cos);
    zn_device_free(m->dev, m->rope_sin);
    zn_device_free(m->dev, m->positions);
    m->rope_cos = m->rope_sin = NULL;
    m->positions = NULL;
    m->tables_T = 0;
    if (m->spec.rope != ZN_ROPE_NONE)
        ZN_TRY(make_rope(m, T));
    if (m->spec.learned_positions)
        ZN_TRY(make_positions(m, T));
    m->tables_T = T;
    return ZINC_OK;
}

static zn_run start(zn_model *m, const zn_model_batch *batch, const zn_param_hooks *hooks)
{
    return (zn_run){
        .m = m,
        .spec = &m->spec,
        .k = m->kernels,
        .s = zn_device_compute(m->dev),
        .batch = batch,
        .hooks = hooks,
        .acts = &m->acts,
        .N = batch->B * batch->T,
        .bf16_gemm = hooks->param_dtype == ZN_DTYPE_BF16 && zn_kernels_bf16_pays(m->kernels),
    };
}

/* Check the batch and have memory for it. */
static zinc_status prepare(const zn_run *run, zn_mode mode)
{
    zn_model *m = run->m;
    const zn_model_batch *batch = run->batch;
    if (batch->B < 1 || batch->T < 1 || batch->B > INT32_MAX / batch->T)
        ZN_FAIL(ZINC_E_INVALID, "a batch of %lld rows of %lld tokens cannot be computed",
                (long long)batch->B, (long long)batch->T);
    if (m->spec.learned_positions && run->past + batch->T > m->spec.max_positions)
        ZN_FAIL(ZINC_E_INVALID,
                "rows of %lld tokens are longer than the %lld positions this model has; use a "
                "smaller block_size",
                (long long)(run->past + batch->T), (long long)m->spec.max_positions);
    const zn_shape shape = {
        .B = batch->B,
        .T = batch->T,
        .mode = mode,
        .param_dtype = run->hooks->param_dtype,
        .bf16_gemm = run->bf16_gemm,
        .n_threads = zn_device_n_threads(m->dev),
    };
    size_t activations, buffers;
    zn_acts counted = {0};
    zn_acts_place(&m->spec, &shape, NULL, NULL, &counted, &activations, &buffers);
    ZN_TRY(grow(m, ZN_MEM_ACTIVATIONS, activations, "activations", &m->acts_slab, &m->acts_bytes));
    ZN_TRY(grow(m, ZN_MEM_BUFFERS, buffers, "model buffers", &m->buffers_slab, &m->buffers_bytes));
    if (mode == ZN_MODE_TRAIN_HOST)
        ZN_TRY(zn_checkpoints_reserve(m, run->N));
    ZN_TRY(grow_tables(m, run->past + batch->T));
    zn_acts_place(&m->spec, &shape, m->acts_slab, m->buffers_slab, &m->acts, &activations,
                  &buffers);
    return ZINC_OK;
}

/* ---- passes ---- */

static zinc_status use(const zn_run *run, int unit, zn_pass pass)
{
    return run->hooks->before_use(run->hooks->ctx, unit, pass);
}

static zinc_status done(const zn_run *run, int unit, zn_pass pass)
{
    return run->hooks->after_use(run->hooks->ctx, unit, pass);
}

static zinc_status ready(const zn_run *run, int unit)
{
    return run->hooks->grads_ready(run->hooks->ctx, unit);
}

/* Learned positions of row b, [T]. */
static const int32_t *positions_of(const zn_run *run, int64_t b)
{
    return run->batch->position ? run->batch->position + b * run->batch->T
                                : run->m->positions + run->past;
}

static zinc_status embed(const zn_run *run, zn_pass pass)
{
    const zn_model *m = run->m;
    const zn_param_hooks *hooks = run->hooks;
    const int64_t C = m->spec.C, T = run->batch->T;
    float *x = run->acts->x[0];
    ZN_TRY(use(run, 0, pass));
    ZN_TRY(run->k->embed(run->s, x, hooks->data(hooks->ctx, m->ids[ZN_SLOT_WTE]),
                         hooks->param_dtype, run->batch->ids, run->N, C, m->spec.embed_scale,
                         false));
    for (int64_t b = 0; m->spec.learned_positions && b < run->batch->B; b++)
        ZN_TRY(run->k->embed(run->s, x + b * T * C, hooks->data(hooks->ctx, m->ids[ZN_SLOT_WPE]),
                             hooks->param_dtype, positions_of(run, b), T, C, 1, true));
    if (zn_dropout_p(run, m->spec.embed_dropout) > 0)
        ZN_TRY(zn_drop(run, x, x, m->spec.embed_dropout, 0, 0));
    return done(run, 0, pass);
}

/* The tables themselves are not read, so nobody need gather them. */
static zinc_status embed_backward(const zn_run *run)
{
    const zn_model *m = run->m;
    const zn_param_hooks *hooks = run->hooks;
    const int64_t C = m->spec.C, T = run->batch->T;
    float *dx = run->acts->dx;
    float *dwte = hooks->grad(hooks->ctx, m->ids[ZN_SLOT_WTE]);
    float *dwpe = m->spec.learned_positions ? hooks->grad(hooks->ctx, m->ids[ZN_SLOT_WPE]) : NULL;
    if (zn_dropout_p(run, m->spec.embed_dropout) > 0)
        ZN_TRY(zn_drop(run, dx, dx, m->spec.embed_dropout, 0, 0));
    if (dwte)
        ZN_TRY(run->k->embed_backward(run->s, dwte, dx, run->batch->ids, run->N, C, m->spec.V,
                                      m->spec.embed_scale));
    for (int64_t b = 0; dwpe && b < run->batch->B; b++)
        ZN_TRY(run->k->embed_backward(run->s, dwpe, dx + b * T * C, positions_of(run, b), T, C,
                                      m->spec.max_positions, 1));
    return ready(run, 0);
}

static zinc_status layers(const zn_run *run, zn_pass pass)
{
    for (int64_t i = 0; i < run->spec->L; i++) {
        const int unit = (int)(1 + i);
        ZN_TRY(zn_checkpoint_save(run, i));
        ZN_TRY(use(run, unit, pass));
        ZN_TRY(zn_block_forward(run, i, false));
        ZN_TRY(done(run, unit, pass));
    }
    return ZINC_OK;
}

/* Below the first unit that is trained nobody needs a gradient. */
static bool backward_reaches(const zn_run *run, int unit)
{
    return unit >= run->hooks->first_trainable_unit;
}

/* Under checkpointing the last layer's set is still there from forward. */
static zinc_status layers_backward(const zn_run *run)
{
    const int64_t L = run->spec->L;
    for (int64_t i = L - 1; i >= 0 && backward_reaches(run, (int)(1 + i)); i--) {
        const int unit = (int)(1 + i);
        ZN_TRY(use(run, unit, ZN_PASS_BACKWARD));
        ZN_TRY(zn_checkpoint_wait(run, i));
        if (backward_reaches(run, (int)i))
            ZN_TRY(zn_checkpoint_fetch(run, i - 1));
        if (run->m->opts.activation_checkpointing && i < L - 1)
            ZN_TRY(zn_block_forward(run, i, true));
        ZN_TRY(zn_block_backward(run, i));
        ZN_TRY(done(run, unit, ZN_PASS_BACKWARD));
        ZN_TRY(ready(run, unit));
    }
    return ZINC_OK;
}

static zinc_status begin_head(const zn_run *run, zn_pass pass)
{
    ZN_TRY(use(run, (int)(1 + run->spec->L), pass));
    return run->spec->tied ? use(run, 0, pass) : ZINC_OK;
}

static zinc_status end_head(const zn_run *run, zn_pass pass)
{
    if (run->spec->tied)
        ZN_TRY(done(run, 0, pass));
    return done(run, (int)(1 + run->spec->L), pass);
}

zinc_status zn_model_train(zn_model *model, const zn_model_batch *batch,
                           const zn_param_hooks *hooks, float grad_scale, double *loss_sum)
{
    zn_run run = start(model, batch, hooks);
    const zn_mode mode = zn_train_mode(&model->opts);
    if (!batch->targets)
        ZN_FAIL(ZINC_E_INVALID, "a training batch needs targets");
    run.grad_scale = grad_scale;
    run.dropout = true;
    ZN_TRY(prepare(&run, mode));
    ZN_TRY(embed(&run, ZN_PASS_FORWARD));
    ZN_TRY(layers(&run, ZN_PASS_FORWARD));
    ZN_TRY(begin_head(&run, ZN_PASS_BACKWARD));
    ZN_TRY(zn_head(&run, true, loss_sum, NULL));
    ZN_TRY(end_head(&run, ZN_PASS_BACKWARD));
    ZN_TRY(ready(&run, (int)(1 + run.spec->L)));
    ZN_TRY(layers_backward(&run));
    return backward_reaches(&run, 0) ? embed_backward(&run) : ZINC_OK;
}

#define PART 4096 /* floats that are looked at at once */

static zinc_status all_finite(zn_device *dev, const float *x, int64_t n, bool *out)
{
    float part[PART];
    *out = true;
    for (int64_t at = 0; at < n && *out; at += PART) {
        const int64_t m = n - at < PART ? n - at : PART;
        ZN_TRY(zn_device_copy_now(dev, part, x + at, (size_t)m * sizeof *part));
        for (int64_t i = 0; i < m; i++)
            *out = *out && isfinite(part[i]);
    }
    return ZINC_OK;
}

/* x[i] is what unit i made: the embedding, then the layers. Backward has used up the last two
 * buffers of those that wait on the host; their copies are whole. */
zinc_status zn_model_first_bad_unit(const zn_model *model, const zn_model_batch *batch, int *out)
{
    const int64_t L = model->spec.L, n = batch->B * batch->T * model->spec.C;
    const bool away = zn_train_mode(&model->opts) == ZN_MODE_TRAIN_HOST;
    *out = -1;
    for (int64_t i = 0; i <= L && *out < 0; i++) {
        const float *x = away && i < L - 1 ? model->host_x + i * n : model->acts.x[i];
        bool finite = true;
        if (!away || i < L - 1)
            ZN_TRY(all_finite(model->dev, x, n, &finite));
        if (!finite)
            *out = (int)i;
    }
    return ZINC_OK;
}

zinc_status zn_model_eval(zn_model *model, const zn_model_batch *batch, const zn_param_hooks *hooks,
                          double *loss_sum, float *logits)
{
    const zn_run run = start(model, batch, hooks);
    ZN_TRY(prepare(&run, ZN_MODE_EVAL));
    ZN_TRY(embed(&run, ZN_PASS_EVAL));
    ZN_TRY(layers(&run, ZN_PASS_EVAL));
    ZN_TRY(begin_head(&run, ZN_PASS_EVAL));
    ZN_TRY(zn_head(&run, false, loss_sum, logits));
    return end_head(&run, ZN_PASS_EVAL);
}

zinc_status zn_model_last_logits(zn_model *model, const zn_model_batch *batch,
                                 const zn_param_hooks *hooks, float *logits)
{
    const zn_run run = start(model, batch, hooks);
    ZN_TRY(prepare(&run, ZN_MODE_EVAL));
    ZN_TRY(embed(&run, ZN_PASS_EVAL));
    ZN_TRY(layers(&run, ZN_PASS_EVAL));
    ZN_TRY(begin_head(&run, ZN_PASS_EVAL));
    ZN_TRY(zn_head_last(&run, logits));
    return end_head(&run, ZN_PASS_EVAL);
}

zinc_status zn_model_decode(zn_decode *decode, const int32_t *ids, int64_t n,
                            const zn_param_hooks *hooks, float *logits)
{
    const zn_model_batch batch = {.B = 1, .T = n, .ids = ids};
    zn_run run = start(decode->model, &batch, hooks);
    run.decode = decode;
    run.past = decode->n;
    ZN_TRY(prepare(&run, ZN_MODE_EVAL));
    ZN_TRY(zn_decode_reserve(decode, n));
    ZN_TRY(embed(&run, ZN_PASS_EVAL));
    ZN_TRY(layers(&run, ZN_PASS_EVAL));
    ZN_TRY(begin_head(&run, ZN_PASS_EVAL));
    ZN_TRY(zn_head_last(&run, logits));
    ZN_TRY(end_head(&run, ZN_PASS_EVAL));
    decode->n += n;
    return ZINC_OK;
}
