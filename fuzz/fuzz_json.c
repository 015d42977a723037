/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as plain JSON; what is read is written and read again. Layer: base. */
#include "fuzz.h"

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *value = NULL;
    json_t *again = NULL;
    zn_buf buf = {0};
    if (zn_json_parse((const char *)data, n, "input", &value) == ZINC_OK) {
        if (zn_json_append(value, &buf) != ZINC_OK ||
            zn_json_parse(buf.data, buf.n, "written", &again) != ZINC_OK)
            __builtin_trap();
    }
    zn_buf_fini(&buf);
    /* Any bytes are a string, too. */
    if (zn_json_append_string(&buf, (const char *)data, n) != ZINC_OK)
        __builtin_trap();
    json_decref(again);
    if (zn_json_parse(buf.data, buf.n, "string", &again) != ZINC_OK)
        __builtin_trap();
    json_decref(again);
    json_decref(value);
    zn_buf_fini(&buf);
    return 0;
}
