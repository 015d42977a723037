/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a ds_config.json; what is accepted is resolved and printed. Layer: config.
 * Needs: src/config/config.c */
#include "fuzz.h"

#include <math.h>

#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const zn_config_facts facts = {
        .world_size = 2, .hidden_size = 64, .max_steps = 100, .n_samples = 1000, .n_epochs = 1};
    zn_config *config = NULL;
    zn_buf out = {0};
    if (zn_config_parse((const char *)data, n, "input", &config) == ZINC_OK &&
        zn_config_resolve(config, &facts) == ZINC_OK) {
        if (zn_config_append_json(config, &out) != ZINC_OK)
            __builtin_trap();
    }
    for (int i = 0; config && i < zn_config_n_errors(config); i++)
        if (!zn_config_error(config, i))
            __builtin_trap();
    zn_buf_fini(&out);
    zn_config_destroy(config);
    return 0;
}
