/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a model's config.json. Layer: model. Needs: src/model/spec.c */
#include "fuzz.h"

#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    zn_model_spec spec = {0};
    if (fuzz_put_file(data, n, "json", path) != 0)
        return 0;
    if (zn_model_spec_load(path, &spec) == ZINC_OK) {
        zn_param_list params = {0};
        /* A list of millions of layers is valid and slow. */
        if (spec.L <= 64 && zn_model_param_list(&spec, &params) == ZINC_OK)
            zn_param_list_fini(&params);
        zn_model_spec_fini(&spec);
    }
    unlink(path);
    return 0;
}
