/* SPDX-License-Identifier: Apache-2.0 */
/* A whole model in memory: the values of the file, in each type, or a message that names what does
 * not fit. */
#include "zn_test.h"

#include "base/dtype.h"
#include "ckpt/safetensors.h"
#include "engine/resident.h"

static zn_device *open_device(void)
{
    zn_device *dev;
    const zn_device_params params = {.n_threads = 1};
    assert_ok(zn_device_open("cpu", &params, &dev));
    return dev;
}

static void parameters_are_those_of_the_file_rounded_once(void **state)
{
    (void)state;
    const char *dir = ZN_TEST_DATA "/model/gpt_neox";
    static const zn_dtype dtypes[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};
    zn_device *dev = open_device();
    zn_model_spec spec;
    zn_param_list list;
    zn_weights *weights;
    assert_ok(zn_model_spec_load(dir, &spec));
    assert_ok(zn_model_param_list(&spec, &list));
    assert_ok(zn_weights_open(dir, &weights));
    for (int d = 0; d < 3; d++) {
        zn_resident *resident;
        assert_ok(zn_resident_load(dir, &spec, dtypes[d], dev, &resident));
        const zn_param_hooks *hooks = zn_resident_hooks(resident);
        assert_int_equal(hooks->param_dtype, dtypes[d]);
        for (int p = 0; p < list.n_specs; p++) {
            const zn_tensor_info *tensor = zn_weights_find(weights, list.specs[p].name);
            const void *got = hooks->data(hooks->ctx, p);
            float want[16];
            const int64_t n = list.specs[p].n_elems < 16 ? list.specs[p].n_elems : 16;
            assert_non_null(tensor);
            assert_ok(zn_tensor_read(tensor, list.specs[p].n_elems - n, n, want));
            for (int64_t j = 0; j < n; j++) {
                const int64_t at = list.specs[p].n_elems - n + j;
                if (d == 0)
                    assert_true(((const float *)got)[at] == want[j]);
                else
                    assert_int_equal(((const uint16_t *)got)[at],
                                     d == 1 ? zn_f32_to_bf16(want[j]) : zn_f32_to_f16(want[j]));
            }
        }
        zn_resident_destroy(resident);
    }
    zn_weights_close(weights);
    zn_param_list_fini(&list);
    zn_model_spec_fini(&spec);
    zn_device_close(dev);
}

static void all_that_does_not_fit_is_named_and_nothing_is_kept(void **state)
{
    (void)state;
    const char *dir = ZN_TEST_DATA "/model/llama";
    zn_device *dev = open_device();
    zn_model_spec spec;
    zn_resident *resident = NULL;
    zn_mem_usage usage;
    assert_ok(zn_model_spec_load(dir, &spec));
    spec.F++;
    assert_fails(zn_resident_load(dir, &spec, ZN_DTYPE_F32, dev, &resident), ZINC_E_FORMAT,
                 "model.layers.0.mlp.down_proj.weight of shape [48, 116]");
    spec.F--;
    spec.mlp_bias = true;
    assert_fails(zn_resident_load(dir, &spec, ZN_DTYPE_F32, dev, &resident), ZINC_E_FORMAT,
                 "missing model.layers.0.mlp.gate_proj.bias");
    spec.mlp_bias = false;
    assert_fails(zn_resident_load(dir, &spec, ZN_DTYPE_I32, dev, &resident), ZINC_E_INVALID,
                 "int32");
    assert_null(resident);
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    assert_int_equal(usage.total_now, 0);
    zn_model_spec_fini(&spec);
    zn_device_close(dev);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(parameters_are_those_of_the_file_rounded_once),
    cmocka_unit_test(all_that_does_not_fit_is_named_and_nothing_is_kept),
};

ZN_TEST_MAIN(tests)
