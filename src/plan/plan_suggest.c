/* SPDX-License-Identifier: Apache-2.0 */
/* plan_suggest.c — the user's ds_config.json with what has to change, and nothing else. */
#include <string.h>

#include "base/json.h"
#include "plan/plan.h"

static const char *const offload_names[] = {"none", "cpu", "nvme"};

/* root[block][block]…[key] = value (taken) for "block.block.key"; what stands in the way of a block
 * is replaced. */
static zinc_status set(json_t *root, const char *path, json_t *value)
{
    json_t *at = root;
    const char *dot = strchr(path, '.');
    for (; dot && at; dot = strchr(path, '.')) {
        char block[64];
        snprintf(block, sizeof block, "%.*s", (int)(dot - path), path);
        json_t *next = json_object_get(at, block);
        if (!json_is_object(next)) {
            next = json_object();
            if (json_object_set_new(at, block, next) != 0)
                next = NULL;
        }
        at = next;
        path = dot + 1;
    }
    if (!at || json_object_set_new(at, path, value) != 0)
        ZN_FAIL(ZINC_E_NOMEM, "no memory for a configuration");
    return ZINC_OK;
}

static zinc_status set_offload(json_t *root, const char *key, zn_offload_device device,
                               const char *nvme_path)
{
    char path[96];
    const json_t *block = json_object_get(json_object_get(root, "zero_optimization"), key);
    const bool has_path = json_is_string(json_object_get(block, "nvme_path"));
    if (device == ZN_OFFLOAD_NONE && !block)
        return ZINC_OK;
    snprintf(path, sizeof path, "zero_optimization.%s.device", key);
    ZN_TRY(set(root, path, json_string(offload_names[device])));
    if (device != ZN_OFFLOAD_NVME || has_path)
        return ZINC_OK;
    snprintf(path, sizeof path, "zero_optimization.%s.nvme_path", key);
    return set(root, path, json_string(nvme_path));
}

/* What options of the planner may have set, and then what was changed. */
static zinc_status change(json_t *root, const zn_plan_search *s, const char *nvme_path)
{
    const zn_config_values *c = &s->run.config;
    ZN_TRY(set(root, "train_micro_batch_size_per_gpu",
               json_integer(c->train_micro_batch_size_per_gpu)));
    ZN_TRY(set(root, "gradient_accumulation_steps", json_integer(c->gradient_accumulation_steps)));
    ZN_TRY(set(root, "zero_optimization.stage", json_integer(c->zero.stage)));
    ZN_TRY(set_offload(root, "offload_optimizer", c->zero.offload_optimizer, nvme_path));
    ZN_TRY(set_offload(root, "offload_param", c->zero.offload_param, nvme_path));
    for (int i = 0; i < s->n_fixes; i++) {
        json_int_t number = 0;
        if (sscanf(s->fixes[i].value, "%" JSON_INTEGER_FORMAT, &number) == 1)
            ZN_TRY(set(root, s->fixes[i].key, json_integer(number)));
    }
    return ZINC_OK;
}

static int append(const char *text, size_t n, void *out)
{
    return zn_buf_append(out, text, n) == ZINC_OK ? 0 : -1;
}

zinc_status zn_plan_append_changed(const zn_plan_search *search, const zn_config *config,
                                   const char *nvme_path, zn_buf *out)
{
    zn_buf text = {0};
    json_t *root = NULL;
    zinc_status status;
    ZN_TRY_GOTO(zn_config_append_plain(config, &text));
    ZN_TRY_GOTO(zn_json_parse(text.data, text.n, zn_config_name(config), &root));
    ZN_TRY_GOTO(change(root, search, nvme_path));
    if (json_dump_callback(root, append, out, JSON_INDENT(2)) != 0)
        ZN_FAIL_GOTO(ZINC_E_NOMEM, "no memory for a configuration");
    status = zn_buf_puts(out, "\n");
fail:
    json_decref(root);
    zn_buf_fini(&text);
    return status;
}
