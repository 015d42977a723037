/* SPDX-License-Identifier: Apache-2.0 */
/* What others read of a configuration: the JSON of `zinc config check`, a table for people, the
 * file as plain JSON, and the documentation of the keys. */
#include <string.h>

#include "base/json.h"
#include "config/config_internal.h"

#define YAML_BLOCK "accelerate."

/* Rows of Zinc's own blocks, which a ds_config.json mostly does not have, are shown where a value
 * differs from its default or there is a YAML. */
static bool says_anything(const zn_config *config, const zn_key *key)
{
    if (strncmp(key->path, YAML_BLOCK, strlen(YAML_BLOCK)) == 0)
        return config->values.accelerate.given;
    if (strncmp(key->path, "fsdp.", 5) != 0)
        return true;
    const zn_slot *slot = &config->resolved[key - zn_keys];
    return slot->state == ZN_SLOT_GIVEN && slot->source != ZN_FROM_DEFAULT;
}

/* Whether row i is printed: every honoured key that has a value, and keys without effect where the
 * file gives them. A parameter's default is printed only if the optimizer has the parameter. */
static bool is_printed(const zn_config *config, int i)
{
    const zn_key *key = &zn_keys[i];
    const zn_slot *slot = &config->resolved[i];
    if (key->type >= ZN_KEY_ANY || !says_anything(config, key))
        return false;
    if (key->status == ZN_KEY_ACCEPTED)
        return slot->source == ZN_FROM_FILE && slot->state == ZN_SLOT_GIVEN;
    if (key->status != ZN_KEY_HONOURED)
        return false;
    if (slot->state != ZN_SLOT_GIVEN)
        return key->default_text || slot->source == ZN_FROM_AUTO;
    if (key->only && slot->source == ZN_FROM_DEFAULT)
        return config->slots[zn_key_find("optimizer.type")].state == ZN_SLOT_GIVEN &&
               zn_config_applies(config, key);
    return true;
}

static zinc_status append_text(zn_buf *out, const char *text)
{
    return zn_json_append_string(out, text, strlen(text));
}

/* ,"name": */
static zinc_status append_name(zn_buf *out, const char *name, bool *first)
{
    ZN_TRY(zn_buf_puts(out, *first ? "" : ","));
    *first = false;
    ZN_TRY(append_text(out, name));
    return zn_buf_puts(out, ":");
}

static bool block_is_printed(const zn_config *config, const char *block)
{
    const size_t n = strlen(block);
    for (int i = 0; i < zn_n_keys; i++)
        if (strncmp(zn_keys[i].path, block, n) == 0 && zn_keys[i].path[n] == '.' &&
            is_printed(config, i))
            return true;
    return false;
}

static zinc_status append_block(const zn_config *config, const char *block, zn_buf *out)
{
    bool first = true;
    ZN_TRY(zn_buf_puts(out, "{"));
    for (int i = 0; i < zn_n_keys; i++) {
        const zn_key *key = &zn_keys[i];
        const char *name;
        if (!zn_key_is_in(i, block, &name))
            continue;
        if (key->type == ZN_KEY_BLOCK && key->status != ZN_KEY_ALIAS &&
            block_is_printed(config, key->path)) {
            ZN_TRY(append_name(out, name, &first));
            ZN_TRY(append_block(config, key->path, out));
        } else if (is_printed(config, i)) {
            ZN_TRY(append_name(out, name, &first));
            ZN_TRY(zn_slot_append(key, &config->resolved[i], out));
        }
    }
    return zn_buf_puts(out, "}");
}

static zinc_status append_errors(const zn_config *config, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "{\"ok\":false,\"errors\":["));
    for (int i = 0; i < config->n_errors; i++) {
        const zn_issue *issue = &config->errors[i];
        ZN_TRY(zn_buf_puts(out, i ? ",{\"path\":" : "{\"path\":"));
        ZN_TRY(append_text(out, issue->path));
        if (issue->line > 0)
            ZN_TRY(zn_buf_printf(out, ",\"line\":%d,\"column\":%d,\"message\":", issue->line,
                                 issue->column));
        else
            ZN_TRY(zn_buf_puts(out, ",\"line\":null,\"column\":null,\"message\":"));
        ZN_TRY(append_text(out, issue->message));
        ZN_TRY(zn_buf_puts(out, ",\"hint\":"));
        ZN_TRY(issue->hint ? append_text(out, issue->hint) : zn_buf_puts(out, "null"));
        ZN_TRY(zn_buf_puts(out, "}"));
    }
    return zn_buf_puts(out, "]}");
}

zinc_status zn_config_append_json(const zn_config *config, zn_buf *out)
{
    if (config->n_errors > 0)
        return append_errors(config, out);
    if (!config->resolved)
        ZN_FAIL(ZINC_E_INVALID, "%s: the configuration is not resolved yet", config->name);
    ZN_TRY(zn_buf_puts(out, "{\"ok\":true,\"resolved\":"));
    ZN_TRY(append_block(config, "", out));
    ZN_TRY(zn_buf_puts(out, ",\"origin\":{"));
    bool first = true;
    for (int i = 0; i < zn_n_keys; i++)
        if (is_printed(config, i)) {
            ZN_TRY(append_name(out, zn_keys[i].path, &first));
            ZN_TRY(append_text(out, config->resolved[i].origin));
        }
    ZN_TRY(zn_buf_puts(out, "},\"notes\":["));
    for (int i = 0; i < config->n_notes; i++) {
        ZN_TRY(zn_buf_puts(out, i ? "," : ""));
        ZN_TRY(append_text(out, config->notes[i]));
    }
    return zn_buf_puts(out, "]}");
}

zinc_status zn_config_append_table(const zn_config *config, zn_buf *out)
{
    if (!config->resolved)
        ZN_FAIL(ZINC_E_INVALID, "%s: the configuration is not resolved yet", config->name);
    for (int i = 0; i < zn_n_keys; i++) {
        if (!is_printed(config, i))
            continue;
        zn_buf value = {0};
        zinc_status status = zn_slot_append(&zn_keys[i], &config->resolved[i], &value);
        if (status == ZINC_OK)
            status = zn_buf_printf(out, "%-58s %-20s %s\n", zn_keys[i].path, value.data,
                                   config->resolved[i].origin);
        zn_buf_fini(&value);
        ZN_TRY(status);
    }
    return ZINC_OK;
}

zinc_status zn_config_append_plain(const zn_config *config, zn_buf *out)
{
    if (!config->root)
        ZN_FAIL(ZINC_E_INVALID, "%s: there is nothing to write", config->name);
    ZN_TRY(zn_node_append(config->root, 0, out));
    return zn_buf_puts(out, "\n");
}

/* What the last column of the documentation says beside the doc line. */
static zinc_status append_remarks(const zn_key *key, zn_buf *out)
{
    if (key->only)
        ZN_TRY(zn_buf_printf(out, " (%s)", key->only));
    if (key->flags & ZN_KEY_AUTO)
        ZN_TRY(zn_buf_puts(out, "; may be `\"auto\"`"));
    if (key->status == ZN_KEY_ALIAS)
        return zn_buf_printf(out, "; see `%s`", key->reason);
    if (!key->reason)
        return ZINC_OK;
    if (key->status == ZN_KEY_ACCEPTED)
        return zn_buf_printf(out, ". No effect: %s", key->reason);
    if (key->type != ZN_KEY_NAMES)
        return zn_buf_printf(out, ". Only the default is possible: %s", key->reason);
    if (!key->default_text)
        return zn_buf_printf(out, ". Only an empty block is possible: %s", key->reason);
    return zn_buf_printf(out, ". Only with `%s` off: %s", key->default_text, key->reason);
}

static zinc_status append_type(const zn_key *key, zn_buf *out)
{
    char type[400];
    zn_key_type_text(key->status == ZN_KEY_ALIAS && !(key->flags & ZN_KEY_BOOL_TO_CPU)
                         ? &zn_keys[zn_key_find(key->reason)]
                         : key,
                     type, sizeof type);
    ZN_TRY(zn_buf_puts(out, key->type >= ZN_KEY_BLOCK ? "block" : type));
    return key->flags & ZN_KEY_NULL ? zn_buf_puts(out, ", or null") : ZINC_OK;
}

/* One row of the table for people. */
static zinc_status append_row(int i, const char *path, zn_buf *out)
{
    zn_config_key_info info;
    zn_config_key(i, &info);
    ZN_TRY(zn_buf_printf(out, "| `%s` | ", path));
    ZN_TRY(append_type(&zn_keys[i], out));
    const bool quoted = zn_keys[i].type == ZN_KEY_TEXT || zn_keys[i].type == ZN_KEY_CHOICE;
    const char *text = info.default_text;
    const char *mark = text && quoted && strcmp(text, "null") != 0 ? "\"" : "";
    ZN_TRY(text ? zn_buf_printf(out, " | `%s%s%s` | ", mark, text, mark)
                : zn_buf_puts(out, " | | "));
    ZN_TRY(zn_buf_printf(out, "%s | %s", info.status, info.doc));
    ZN_TRY(append_remarks(&zn_keys[i], out));
    return zn_buf_puts(out, " |\n");
}

/* The rows of an accelerate YAML, whose top is the block "accelerate", or all others. */
static zinc_status append_rows(bool of_yaml, zn_buf *out)
{
    const size_t n = strlen(YAML_BLOCK);
    for (int i = 0; i < zn_n_keys; i++) {
        const bool is_of_yaml = strncmp(zn_keys[i].path, YAML_BLOCK, n) == 0;
        if (is_of_yaml == of_yaml)
            ZN_TRY(append_row(i, zn_keys[i].path + (of_yaml ? n : 0), out));
    }
    return ZINC_OK;
}

zinc_status zn_config_append_doc(zn_buf *out)
{
    ZN_TRY(zn_buf_puts(
        out,
        "# Keys of ds_config.json\n\n"
        "Written by `tools/gen_config_doc.sh` from the table in `src/config/keys.c`; a test "
        "compares the two.\n\n"
        "- *honoured*: Zinc does what it says.\n"
        "- *accepted*: checked, but without effect here; where it is not at its default, a "
        "note says so once.\n"
        "- *refused*: anything but the default is an error that says why.\n"
        "- *removed*: DeepSpeed 0.19.8 no longer has it; a block that is switched off is "
        "ignored.\n"
        "- *alias*: another spelling of a key.\n\n"
        "Any other key is an error that names the nearest one; a string at the top whose name "
        "begins with `_` or ends in\n`note`, `comment` or `description` is taken as a remark. "
        "The file may have `//`, `#` and `/* */` comments, trailing\ncommas, a byte order mark, "
        "and whole numbers written as `2e8`.\n\n"
        "| key | type | default | status | meaning |\n|---|---|---|---|---|\n"));
    ZN_TRY(append_rows(false, out));
    ZN_TRY(zn_buf_puts(
        out, "\n## Keys of an accelerate YAML\n\n"
             "What `--accelerate_config` reads; [accelerate.md](accelerate.md) says how. In a "
             "ds_config.json that `zinc config convert` has\nwritten they stand in a block "
             "`accelerate`, and `fsdp_config` also takes its keys without `fsdp_`.\n\n"
             "| key | type | default | status | meaning |\n|---|---|---|---|---|\n"));
    return append_rows(true, out);
}
