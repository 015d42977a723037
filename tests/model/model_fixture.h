/* SPDX-License-Identifier: Apache-2.0 */
/* model_fixture.h — a fake engine behind tensor/param.h's hooks, and the reference files.
 *
 * The fake keeps every parameter in full and checks the protocol: data only while a unit is in use,
 * uses nest and end, gradients asked for once the backward pass began, each unit ready once. */
#ifndef ZN_TEST_MODEL_FIXTURE_H
#define ZN_TEST_MODEL_FIXTURE_H

#include "zn_test.h"

#include <math.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "model/model.h"

#define MAX_UNITS 64

typedef struct fake_engine {
    zn_param_list list;
    float **value, **grad; /* [n_specs] of [n_elems] */
    uint16_t **bf16;       /* the same values, used where hooks.param_dtype says so */
    int in_use[MAX_UNITS], n_ready[MAX_UNITS], n_uses[MAX_UNITS];
    int ready_order[MAX_UNITS], n_in_order;
    zn_param_hooks hooks;
} fake_engine;

static zinc_status fake_before(void *ctx, int unit, zn_pass pass)
{
    fake_engine *fake = ctx;
    (void)pass;
    fake->in_use[unit]++;
    fake->n_uses[unit]++;
    return ZINC_OK;
}

static zinc_status fake_after(void *ctx, int unit, zn_pass pass)
{
    fake_engine *fake = ctx;
    (void)pass;
    assert_true(fake->in_use[unit] > 0);
    fake->in_use[unit]--;
    return ZINC_OK;
}

static const void *fake_data(void *ctx, int param)
{
    fake_engine *fake = ctx;
    assert_true(fake->in_use[fake->list.specs[param].unit] > 0);
    return fake->hooks.param_dtype == ZN_DTYPE_F32 ? (const void *)fake->value[param]
                                                   : (const void *)fake->bf16[param];
}

static float *fake_grad(void *ctx, int param)
{
    fake_engine *fake = ctx;
    assert_int_equal(fake->n_ready[fake->list.specs[param].unit], 0);
    return fake->list.specs[param].trainable ? fake->grad[param] : NULL;
}

static zinc_status fake_ready(void *ctx, int unit)
{
    fake_engine *fake = ctx;
    assert_int_equal(fake->in_use[unit], 0);
    assert_int_equal(fake->n_ready[unit], 0);
    fake->n_ready[unit]++;
    fake->ready_order[fake->n_in_order++] = unit;
    return ZINC_OK;
}

/* Forget gradients and counts, as after a step. */
static inline void fake_reset(fake_engine *fake)
{
    for (int i = 0; i < fake->list.n_specs; i++)
        memset(fake->grad[i], 0, (size_t)fake->list.specs[i].n_elems * sizeof(float));
    memset(fake->n_ready, 0, sizeof fake->n_ready);
    memset(fake->n_uses, 0, sizeof fake->n_uses);
    fake->n_in_order = 0;
}

/* Parameters drawn at random: matrices with std 0.3 / sqrt(in), vectors around their start. */
static inline void fake_init(fake_engine *fake, const zn_model_spec *spec)
{
    memset(fake, 0, sizeof *fake);
    assert_ok(zn_model_param_list(spec, &fake->list));
    assert_true(fake->list.n_units <= MAX_UNITS);
    const size_t n = (size_t)fake->list.n_specs;
    assert_ok(zn_alloc_array(&fake->value, n, sizeof *fake->value, "test"));
    assert_ok(zn_alloc_array(&fake->grad, n, sizeof *fake->grad, "test"));
    assert_ok(zn_alloc_array(&fake->bf16, n, sizeof *fake->bf16, "test"));
    for (size_t i = 0; i < n; i++) {
        const zn_param_spec *p = &fake->list.specs[i];
        const size_t elems = (size_t)p->n_elems;
        assert_ok(zn_alloc_array(&fake->value[i], elems, sizeof(float), "test"));
        assert_ok(zn_alloc_array(&fake->grad[i], elems, sizeof(float), "test"));
        assert_ok(zn_alloc_array(&fake->bf16[i], elems, sizeof(uint16_t), "test"));
        for (size_t j = 0; j < elems; j++) {
            const double z = zn_hash_normal(zn_hash_fold(zn_hash_fold(7, i), j));
            fake->value[i][j] =
                (float)(p->n_dims == 2 ? 0.4 * z : (p->init == ZN_INIT_ONES) + 0.2 * z);
        }
    }
    fake->hooks = (zn_param_hooks){
        .ctx = fake,
        .param_dtype = ZN_DTYPE_F32,
        .before_use = fake_before,
        .after_use = fake_after,
        .data = fake_data,
        .grad = fake_grad,
        .grads_ready = fake_ready,
    };
}

static inline void fake_to_bf16(fake_engine *fake)
{
    for (int i = 0; i < fake->list.n_specs; i++)
        for (int64_t j = 0; j < fake->list.specs[i].n_elems; j++)
            fake->bf16[i][j] = zn_f32_to_bf16(fake->value[i][j]);
    fake->hooks.param_dtype = ZN_DTYPE_BF16;
}

static inline void fake_fini(fake_engine *fake)
{
    for (int i = 0; i < fake->list.n_specs; i++) {
        zn_free(fake->value[i]);
        zn_free(fake->grad[i]);
        zn_free(fake->bf16[i]);
    }
    zn_free(fake->value);
    zn_free(fake->grad);
    zn_free(fake->bf16);
    zn_param_list_fini(&fake->list);
}

/* ---- reference files: safetensors, F32 and I32 only ---- */

typedef struct ref_file {
    zn_map map;
    json_t *header;
    const unsigned char *data;
} ref_file;

static inline void ref_open(ref_file *file, const char *model, const char *name)
{
    char path[512];
    uint64_t n;
    memset(file, 0, sizeof *file);
    snprintf(path, sizeof path, "%s/model/%s/%s", ZN_TEST_DATA, model, name);
    assert_ok(zn_map_open(path, &file->map));
    memcpy(&n, file->map.data, 8);
    assert_ok(zn_json_parse((const char *)file->map.data + 8, n, path, &file->header));
    file->data = file->map.data + 8 + n;
}

/* The elements of a tensor in a new array (zn_free), or NULL if the file has none of this name. */
static inline void *ref_read(const ref_file *file, const char *name, int64_t shape[4])
{
    const json_t *entry = json_object_get(file->header, name);
    void *out = NULL;
    if (!entry)
        return NULL;
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const int64_t from = json_integer_value(json_array_get(offsets, 0));
    const int64_t to = json_integer_value(json_array_get(offsets, 1));
    for (size_t d = 0; shape && d < 4; d++)
        shape[d] = json_integer_value(json_array_get(json_object_get(entry, "shape"), d));
    assert_ok(zn_alloc(&out, (size_t)(to - from), "test"));
    memcpy(out, file->data + from, (size_t)(to - from));
    return out;
}

static inline void ref_close(ref_file *file)
{
    json_decref(file->header);
    zn_map_close(&file->map);
}

/* ---- a model with all it needs ---- */

typedef struct fixture {
    zn_device *dev;
    zn_model_spec spec;
    fake_engine fake;
    zn_model *model;
    zn_model_batch batch;
    int32_t *ids, *targets;
    uint8_t *mask;
    int64_t *sample;
    int64_t n_targets;
} fixture;

static inline void fixture_model(fixture *f, bool checkpointing, float dropout_scale)
{
    const zn_model_options opts = {.activation_checkpointing = checkpointing,
                                   .dropout_scale = dropout_scale};
    zn_model_destroy(f->model);
    f->model = NULL;
    assert_ok(zn_model_create(&f->spec, &opts, f->dev, zn_kernels_get(f->dev), &f->model));
}

static inline void fixture_arrays(fixture *f, int64_t B, int64_t T)
{
    const size_t N = (size_t)(B * T);
    assert_ok(zn_alloc_array(&f->ids, N, sizeof *f->ids, "test"));
    assert_ok(zn_alloc_array(&f->targets, N, sizeof *f->targets, "test"));
    assert_ok(zn_alloc_array(&f->mask, N, 1, "test"));
    assert_ok(zn_alloc_array(&f->sample, (size_t)B, sizeof *f->sample, "test"));
    for (int64_t b = 0; b < B; b++)
        f->sample[b] = 10 + b;
    f->batch = (zn_model_batch){
        .B = B,
        .T = T,
        .ids = f->ids,
        .targets = f->targets,
        .mask = f->mask,
        .sample = f->sample,
        .dropout_seed = 99,
    };
}

static inline void fixture_open_spec(fixture *f, const char *config)
{
    const zn_device_params params = {.n_threads = 1};
    memset(f, 0, sizeof *f);
    assert_ok(zn_device_open("cpu", &params, &f->dev));
    assert_ok(zn_model_spec_load(config, &f->spec));
    fake_init(&f->fake, &f->spec);
    fixture_model(f, false, 1);
}

/* A model folder of the test data with its weights. */
static inline void fixture_open(fixture *f, const char *name)
{
    char path[512];
    ref_file file;
    snprintf(path, sizeof path, "%s/model/%s", ZN_TEST_DATA, name);
    fixture_open_spec(f, path);
    ref_open(&file, name, "model.safetensors");
    for (int i = 0; i < f->fake.list.n_specs; i++) {
        const zn_param_spec *p = &f->fake.list.specs[i];
        float *values = ref_read(&file, p->name, NULL);
        if (!values)
            fail_msg("%s has no %s", name, p->name);
        memcpy(f->fake.value[i], values, (size_t)p->n_elems * sizeof(float));
        zn_free(values);
    }
    ref_close(&file);
}

static inline void fixture_close(fixture *f)
{
    zn_model_destroy(f->model);
    fake_fini(&f->fake);
    zn_model_spec_fini(&f->spec);
    zn_device_close(f->dev);
    zn_free(f->ids);
    zn_free(f->targets);
    zn_free(f->mask);
    zn_free(f->sample);
}

/* The padded reference batch; labels shifted by one into targets. */
static inline void fixture_reference_batch(fixture *f, const ref_file *file)
{
    int64_t shape[4];
    int32_t *ids = ref_read(file, "input_ids", shape);
    int32_t *mask = ref_read(file, "attention_mask", NULL);
    int32_t *labels = ref_read(file, "labels", NULL);
    const int64_t B = shape[0], T = shape[1];
    fixture_arrays(f, B, T);
    f->n_targets = 0;
    for (int64_t n = 0; n < B * T; n++) {
        f->ids[n] = ids[n];
        f->mask[n] = mask[n] != 0;
        f->targets[n] = n % T == T - 1 || labels[n + 1] < 0 ? -1 : labels[n + 1];
        f->n_targets += f->targets[n] >= 0;
    }
    zn_free(ids);
    zn_free(mask);
    zn_free(labels);
}

#endif
