/* SPDX-License-Identifier: Apache-2.0 */
/* config_test.h — what the tests of config/ share. */
#ifndef ZN_TESTS_CONFIG_CONFIG_TEST_H
#define ZN_TESTS_CONFIG_CONFIG_TEST_H

#include "zn_test.h"

#include <jansson.h>

#include "base/json.h"
#include "config/config.h"

#define DATA ZN_TEST_DATA "/config/"

/* A text that must parse, resolved for `world` ranks. */
static inline zn_config *resolved(const char *text, int64_t world)
{
    zn_config *config = NULL;
    const zn_config_facts facts = {.world_size = world};
    assert_ok(zn_config_parse(text, strlen(text), "ds.json", &config));
    assert_ok(zn_config_resolve(config, &facts));
    return config;
}

/* The first error of a text, while parsing or resolving for `world` ranks, contains both parts
 * (NULL: any), and every error has the file's name in front. */
static inline void refused_for(int64_t world, const char *text, const char *part, const char *other)
{
    zn_config *config = NULL;
    const zn_config_facts facts = {.world_size = world};
    zinc_status status = zn_config_parse(text, strlen(text), "ds.json", &config);
    if (status == ZINC_OK)
        status = zn_config_resolve(config, &facts);
    if (status != ZINC_E_CONFIG)
        fail_msg("%s: got %s", text, zinc_status_name(status));
    assert_true(zn_config_n_errors(config) > 0);
    for (int i = 0; i < zn_config_n_errors(config); i++)
        assert_memory_equal(zn_config_error(config, i), "ds.json:", 8);
    const char *line = zn_config_error(config, 0);
    if (!strstr(line, part) || (other && !strstr(line, other)))
        fail_msg("%s: the error is \"%s\"", text, line);
    zn_config_destroy(config);
}

static inline void refused(const char *text, const char *part, const char *other)
{
    refused_for(2, text, part, other);
}

/* The JSON document of a configuration. Release with json_decref. */
static inline json_t *document(const zn_config *config)
{
    zn_buf buf = {0};
    json_t *json = NULL;
    assert_ok(zn_config_append_json(config, &buf));
    assert_ok(zn_json_parse(buf.data, buf.n, "document", &json));
    zn_buf_fini(&buf);
    return json;
}

#endif
