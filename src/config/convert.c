/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration written as another file: a ds_config.json or an accelerate YAML. What the other
 * form has no place for is named, not dropped in silence. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "config/config_internal.h"

#define YAML_BLOCK "accelerate."

static bool starts(const char *path, const char *with)
{
    return strncmp(path, with, strlen(with)) == 0;
}

/* ---- ds_config.json ---- */

/* The value of row i that a ds_config.json says: what was given, and the stage that a strategy
 * means. NULL: none. */
static const zn_slot *written(const zn_config *config, int i, bool with_machines)
{
    const zn_key *key = &zn_keys[i];
    const zn_slot *slot = &config->slots[i];
    const bool of_yaml = starts(key->path, YAML_BLOCK);
    const bool section = of_yaml && strchr(key->path + strlen(YAML_BLOCK), '.');
    if (key->type >= ZN_KEY_BLOCK || key->status == ZN_KEY_ALIAS || section ||
        (of_yaml && (!with_machines || key->status != ZN_KEY_HONOURED)))
        return NULL;
    if (strcmp(key->path, "zero_optimization.stage") == 0)
        return &config->resolved[i];
    return slot->state == ZN_SLOT_ABSENT || key->type == ZN_KEY_ANY ? NULL : slot;
}

static bool has_member(const zn_config *config, const char *block, bool with_machines)
{
    const size_t n = strlen(block);
    for (int i = 0; i < zn_n_keys; i++)
        if (strncmp(zn_keys[i].path, block, n) == 0 && zn_keys[i].path[n] == '.' &&
            written(config, i, with_machines))
            return true;
    return false;
}

static zinc_status append_members(const zn_config *config, const char *block, bool with_machines,
                                  int depth, zn_buf *out)
{
    bool first = true;
    ZN_TRY(zn_buf_puts(out, "{"));
    for (int i = 0; i < zn_n_keys; i++) {
        const char *name;
        if (!zn_key_is_in(i, block, &name))
            continue;
        const zn_slot *slot = written(config, i, with_machines);
        const bool inner = zn_keys[i].type == ZN_KEY_BLOCK && zn_keys[i].status != ZN_KEY_ALIAS &&
                           has_member(config, zn_keys[i].path, with_machines);
        if (!slot && !inner)
            continue;
        ZN_TRY(zn_buf_printf(out, "%s\n%*s\"%s\": ", first ? "" : ",", 2 * (depth + 1), "", name));
        first = false;
        ZN_TRY(inner ? append_members(config, zn_keys[i].path, with_machines, depth + 1, out)
                     : zn_slot_append(&zn_keys[i], slot, out));
    }
    return first ? zn_buf_puts(out, "}") : zn_buf_printf(out, "\n%*s}", 2 * depth, "");
}

zinc_status zn_config_append_deepspeed(const zn_config *config, bool with_machines, zn_buf *out)
{
    if (!config->resolved)
        ZN_FAIL(ZINC_E_INVALID, "%s: the configuration is not resolved yet", config->name);
    ZN_TRY(append_members(config, "", with_machines, 0, out));
    return zn_buf_puts(out, "\n");
}
