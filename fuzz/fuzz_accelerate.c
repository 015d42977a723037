/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an accelerate YAML; what is accepted is resolved and printed. Layer: config.
 * Needs: src/config/accelerate.c */
#include "fuzz.h"

#include <string.h>

#include "config/config.h"

/* A ds_config.json that the input names would be read from this machine. */
static bool names_a_file(const uint8_t *data, size_t n)
{
    static const char key[] = "config_file";
    for (size_t i = 0; i + sizeof key <= n + 1; i++)
        if (memcmp(data + i, key, sizeof key - 1) == 0)
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zn_config *config = NULL;
    zn_config_facts facts = {.hidden_size = 64};
    zn_buf out = {0};
    if (names_a_file(data, n))
        return 0;
    if (zn_config_parse_accelerate((const char *)data, n, "input", NULL, &config) == ZINC_OK) {
        zn_config_facts_from_accelerate(config, &facts);
        if (zn_config_resolve(config, &facts) == ZINC_OK &&
            zn_config_append_json(config, &out) != ZINC_OK)
            __builtin_trap();
    }
    for (int i = 0; config && i < zn_config_n_errors(config); i++)
        if (!zn_config_error(config, i))
            __builtin_trap();
    zn_buf_fini(&out);
    zn_config_destroy(config);
    return 0;
}
