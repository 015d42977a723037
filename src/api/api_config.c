/* SPDX-License-Identifier: Apache-2.0 */
/* api_config.c — configurations, and their values as JSON. */
#include <string.h>

#include "api/api_internal.h"
#include "base/json.h"
#include "base/mem.h"

/* ---- reading ---- */

/* E_CONFIG still hands the object out, for its list of errors. */
static zinc_status hand_out(zinc_status status, zinc_config *config, zinc_config **out)
{
    if (status == ZINC_OK || (status == ZINC_E_CONFIG && config->config)) {
        *out = config;
        return status;
    }
    zinc_config_destroy(config);
    return status;
}

zinc_status zinc_config_load(const char *path, zinc_config **out)
{
    zinc_config *config = NULL;
    ZN_API_NEED(out);
    ZN_TRY(zn_alloc(&config, sizeof *config, "a configuration"));
    return hand_out(zn_config_load(path, &config->config), config, out);
}

zinc_status zinc_config_parse(const char *text, size_t n, const char *name, zinc_config **out)
{
    zinc_config *config = NULL;
    ZN_API_NEED(text);
    ZN_API_NEED(out);
    ZN_TRY(zn_alloc(&config, sizeof *config, "a configuration"));
    return hand_out(zn_config_parse(text, n, name ? name : "the configuration", &config->config),
                    config, out);
}

void zinc_config_destroy(zinc_config *config)
{
    if (!config)
        return;
    zn_config_destroy(config->config);
    zn_free(config);
}

zinc_status zinc_config_override(zinc_config *config, const char *const *names,
                                 const char *const *values, int n)
{
    zn_config_argument *arguments = NULL;
    ZN_API_NEED(config);
    if (n < 0 || (n > 0 && (!names || !values)))
        ZN_FAIL(ZINC_E_INVALID, "%d arguments without names or values", n);
    ZN_TRY(zn_alloc_array(&arguments, (size_t)n, sizeof *arguments, "arguments"));
    zinc_status status = ZINC_OK;
    for (int i = 0; i < n; i++) {
        arguments[i] = (zn_config_argument){.name = names[i], .value = values[i]};
        if (status == ZINC_OK && (!names[i] || !values[i]))
            status = zn_error_set(ZINC_E_INVALID, __FILE__, __LINE__, __func__,
                                  "argument %d of %d has no name or no value", i, n);
    }
    if (status == ZINC_OK)
        status = zn_config_override(config->config, arguments, n);
    zn_free(arguments);
    return status;
}

zinc_status zinc_config_resolve(zinc_config *config, const zinc_config_facts *facts)
{
    zinc_config_facts known = ZINC_CONFIG_FACTS_INIT;
    ZN_API_NEED(config);
    ZN_TRY(zn_api_take(&known, sizeof known, facts, "zinc_config_facts"));
    config->world_size = 0;
    ZN_TRY(zn_config_resolve(config->config,
                             &(zn_config_facts){.world_size = known.world_size,
                                                .hidden_size = known.hidden_size,
                                                .max_steps = known.max_steps,
                                                .n_samples = known.n_samples,
                                                .n_epochs = known.n_epochs,
                                                .default_micro_batch = known.default_micro_batch,
                                                .ranks_per_node = known.ranks_per_node}));
    config->world_size = known.world_size;
    return ZINC_OK;
}

/* ---- values ---- */

/* The value at "a.b.c", or NULL. */
static const json_t *walk(const json_t *value, const char *key)
{
    while (value && *key) {
        char name[128];
        const size_t n = strcspn(key, ".");
        if (n >= sizeof name)
            return NULL;
        memcpy(name, key, n);
        name[n] = '\0';
        value = json_object_get(value, name);
        key += n + (key[n] == '.');
    }
    return value;
}

static zinc_status append_value(const json_t *document, const char *key, zn_buf *out)
{
    const json_t *value = walk(json_object_get(document, "resolved"), key);
    if (!value)
        ZN_FAIL(ZINC_E_INVALID, "the configuration has no value called \"%s\"", key);
    return zn_json_append(value, out);
}

zinc_status zinc_config_get(const zinc_config *config, const char *key, char **out)
{
    zinc_status status;
    zn_buf whole = {0}, text = {0};
    json_t *document = NULL;
    ZN_API_NEED(config);
    ZN_API_NEED(key);
    ZN_API_NEED(out);
    if (config->world_size == 0)
        ZN_FAIL(ZINC_E_INVALID, "\"%s\": the configuration is not resolved yet", key);
    ZN_TRY_GOTO(zn_config_append_json(config->config, &whole));
    ZN_TRY_GOTO(zn_json_parse(whole.data, whole.n, "the resolved configuration", &document));
    ZN_TRY_GOTO(append_value(document, key, &text));
    status = zn_api_give_text(&text, out);
fail:
    json_decref(document);
    zn_buf_fini(&text);
    zn_buf_fini(&whole);
    return status;
}

const char *zinc_config_origin(const zinc_config *config, const char *key)
{
    return config && key ? zn_config_origin(config->config, key) : NULL;
}

zinc_status zinc_config_table(const zinc_config *config, char **out)
{
    zinc_status status;
    zn_buf text = {0};
    ZN_API_NEED(config);
    ZN_API_NEED(out);
    ZN_TRY_GOTO(zn_config_append_table(config->config, &text));
    status = zn_api_give_text(&text, out);
fail:
    zn_buf_fini(&text);
    return status;
}

/* ---- what was said ---- */

int zinc_config_n_errors(const zinc_config *config)
{
    return config ? zn_config_n_errors(config->config) : 0;
}

const char *zinc_config_error(const zinc_config *config, int i)
{
    return i >= 0 && i < zinc_config_n_errors(config) ? zn_config_error(config->config, i) : NULL;
}

int zinc_config_n_notes(const zinc_config *config)
{
    return config ? zn_config_n_notes(config->config) : 0;
}

const char *zinc_config_note(const zinc_config *config, int i)
{
    return i >= 0 && i < zinc_config_n_notes(config) ? zn_config_note(config->config, i) : NULL;
}
