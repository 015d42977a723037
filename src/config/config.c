/* SPDX-License-Identifier: Apache-2.0 */
/* The zn_config object: loading, errors and notes, and what is asked of it. */
#include "config/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/sys.h"
#include "config/config_internal.h"

#define MAX_FILE_BYTES ((size_t)1 << 20)
#define BLOCK_OF_YAML "accelerate."

static void issue_fini(zn_issue *issue)
{
    zn_free(issue->path);
    zn_free(issue->message);
    zn_free(issue->hint);
    zn_free(issue->line_text);
}

/* "ds.json:7:14: key: message (hint)"; without a file all errors are of arguments, which are named.
 */
static zinc_status write_line(const zn_config *config, const zn_issue *issue, zn_buf *out)
{
    if (*config->name)
        ZN_TRY(zn_buf_printf(out, "%s:", config->name));
    if (*config->name && issue->line > 0)
        ZN_TRY(zn_buf_printf(out, "%d:%d:", issue->line, issue->column));
    ZN_TRY(zn_buf_printf(out, "%s%s%s%s", *config->name ? " " : "", issue->path,
                         *issue->path ? ": " : "", issue->message));
    return issue->hint ? zn_buf_printf(out, " (%s)", issue->hint) : ZINC_OK;
}

static zinc_status format_issue(zn_issue *issue, const char *format, va_list list)
{
    char message[2000];
    vsnprintf(message, sizeof message, format, list);
    return zn_strdup(message, &issue->message);
}

zinc_status zn_config_add_error(zn_config *config, const char *path, int line, int column,
                                const char *hint, const char *format, ...)
{
    zinc_status status;
    zn_buf text = {0};
    zn_issue issue = {.line = line, .column = column};
    va_list list;
    va_start(list, format);
    status = format_issue(&issue, format, list);
    va_end(list);
    if (status != ZINC_OK)
        goto fail;
    if (config->is_yaml && strncmp(path, BLOCK_OF_YAML, strlen(BLOCK_OF_YAML)) == 0)
        path += strlen(BLOCK_OF_YAML); /* in the YAML itself the block is the top */
    ZN_TRY_GOTO(zn_strdup(path, &issue.path));
    if (hint)
        ZN_TRY_GOTO(zn_strdup(hint, &issue.hint));
    ZN_TRY_GOTO(write_line(config, &issue, &text));
    ZN_TRY_GOTO(zn_realloc_array(&config->errors, (size_t)config->n_errors + 1,
                                 sizeof *config->errors, "errors of a configuration"));
    issue.line_text = text.data;
    config->errors[config->n_errors++] = issue;
    return ZINC_OK;
fail:
    zn_buf_fini(&text);
    issue_fini(&issue);
    return status;
}

zinc_status zn_config_add_note(zn_config *config, const char *format, ...)
{
    char text[1200], *copy = NULL;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (int i = 0; i < config->n_notes; i++)
        if (strcmp(config->notes[i], text) == 0)
            return ZINC_OK;
    ZN_TRY(zn_realloc_array(&config->notes, (size_t)config->n_notes + 1, sizeof *config->notes,
                            "notes of a configuration"));
    ZN_TRY(zn_strdup(text, &copy));
    config->notes[config->n_notes++] = copy;
    return ZINC_OK;
}

zinc_status zn_config_conclude(const zn_config *config)
{
    const int n = config->n_errors;
    if (n == 0)
        return ZINC_OK;
    if (n == 1)
        ZN_FAIL(ZINC_E_CONFIG, "%s", config->errors[0].line_text);
    ZN_FAIL(ZINC_E_CONFIG, "%s (and %d more error%s)", config->errors[0].line_text, n - 1,
            n == 2 ? "" : "s");
}

zinc_status zn_config_create(const char *name, zn_config **out)
{
    zn_config *config = NULL;
    zinc_status status;
    ZN_TRY(zn_alloc(&config, sizeof *config, "a configuration"));
    config->warmup_steps = config->warmup_ratio = config->n_epochs = (double)NAN;
    ZN_TRY_GOTO(zn_strdup(name, &config->names[0]));
    config->name = config->names[0];
    ZN_TRY_GOTO(zn_alloc_array(&config->slots, (size_t)zn_n_keys, sizeof *config->slots,
                               "values of a configuration"));
    *out = config;
    return ZINC_OK;
fail:
    zn_config_destroy(config);
    return status;
}

/* The document of `zinc config check --json` is read by what it has resolved. */
static void take_resolved(zn_config *config)
{
    zn_node **at = &config->root->first;
    while (*at && strcmp((*at)->key, "resolved") != 0)
        at = &(*at)->next;
    if (!*at || (*at)->kind != ZN_NODE_OBJECT || !zn_node_get(config->root, "origin"))
        return;
    zn_node *inner = *at;
    *at = inner->next;
    inner->next = NULL;
    zn_node_destroy(config->root);
    config->root = inner;
    config->is_resolved = true;
}

static zinc_status read_text(zn_config *config, const char *text, size_t n)
{
    zn_syntax_error error = {0};
    const zinc_status status = zn_reader_parse(text, n, &error, &config->root);
    if (status == ZINC_E_FORMAT)
        return zn_config_add_error(config, "", error.line, error.column, error.hint, "%s",
                                   error.message);
    ZN_TRY(status);
    take_resolved(config);
    return zn_config_bind(config);
}

zinc_status zn_config_finish(zn_config *config, zinc_status status, zn_config **out)
{
    if (status != ZINC_OK) {
        zn_config_destroy(config);
        return status;
    }
    config->n_read_errors = config->n_errors;
    config->n_read_notes = config->n_notes;
    zn_config_store(config->slots, &config->values);
    *out = config;
    return zn_config_conclude(config);
}

zinc_status zn_config_parse(const char *text, size_t n, const char *name, zn_config **out)
{
    zn_config *config = NULL;
    ZN_TRY(zn_config_create(name, &config));
    return zn_config_finish(config, read_text(config, text, n), out);
}

zinc_status zn_config_read_file(const char *path, const char *smallest, zn_buf *out)
{
    if (zn_fs_is_dir(path))
        ZN_FAIL(ZINC_E_IO, "cannot read %s: it is a folder", path);
    ZN_TRY(zn_fs_read(path, MAX_FILE_BYTES, out));
    if (strspn(out->data, " \t\r\n") == out->n)
        ZN_FAIL(ZINC_E_CONFIG, "%s is empty; %s", path, smallest);
    return ZINC_OK;
}

zinc_status zn_config_load(const char *path, zn_config **out)
{
    zn_buf text = {0};
    if (!path)
        return zn_config_parse("", 0, "", out);
    zinc_status status = zn_config_read_file(path, "{} is the smallest ds_config.json", &text);
    if (status == ZINC_OK)
        status = zn_config_parse(text.data, text.n, path, out);
    zn_buf_fini(&text);
    return status;
}

/* ---- accelerate YAML ---- */

zinc_status zn_accelerate_default_path(char **out)
{
    const char *hf = zn_sys_env("HF_HOME"), *cache = zn_sys_env("XDG_CACHE_HOME");
    const char *home = zn_sys_env("HOME");
    static const char file[] = "accelerate/default_config.yaml";
    if (hf && *hf)
        return zn_format(out, "%s/%s", hf, file);
    if (cache && *cache)
        return zn_format(out, "%s/huggingface/%s", cache, file);
    return zn_format(out, "%s/.cache/huggingface/%s", home ? home : "", file);
}

/* The ds_config.json that the YAML names: where it says, else beside the YAML. */
static zinc_status find_named(const char *named, const char *yaml, char **out)
{
    const char *slash = strrchr(yaml, '/');
    if (named[0] == '/' || zn_fs_exists(named) || !slash)
        return zn_strdup(named, out);
    return zn_format(out, "%.*s%s", (int)(slash + 1 - yaml), yaml, named);
}

/* Read the ds_config.json that goes with a YAML, if any. */
static zinc_status read_deepspeed(zn_config *config, const zn_node *yaml, const char *given,
                                  bool *has_file)
{
    const zn_node *section = zn_node_get(yaml, "deepspeed_config");
    const zn_node *named = section ? zn_node_get(section, "deepspeed_config_file") : NULL;
    const bool names = named && named->kind == ZN_NODE_STRING && strcmp(named->text, "none") != 0;
    zn_buf text = {0};
    char *path = NULL;
    if (!given && !names)
        return ZINC_OK;
    zinc_status status;
    ZN_TRY_GOTO(given ? zn_strdup(given, &path) : find_named(named->text, config->names[0], &path));
    ZN_TRY_GOTO(zn_config_read_file(path, "{} is the smallest ds_config.json", &text));
    config->name = config->names[1] = path;
    path = NULL;
    *has_file = true;
    ZN_TRY_GOTO(read_text(config, text.data, text.n));
fail:
    zn_free(path);
    zn_buf_fini(&text);
    return status;
}

/* Bind the YAML on top of its ds_config.json; messages name the YAML meanwhile. */
static zinc_status bind_yaml(zn_config *config, const zn_node *yaml, bool has_file)
{
    const char *name = config->name;
    config->name = config->names[0];
    zinc_status status = zn_config_bind_accelerate(config, yaml);
    if (status == ZINC_OK && config->n_errors == 0)
        status = zn_accelerate_translate(config, has_file);
    config->name = name;
    return status;
}

static zinc_status read_yaml(zn_config *config, const char *text, size_t n, const char *deepspeed)
{
    zn_syntax_error error = {0};
    zn_node *yaml = NULL;
    bool has_file = false;
    zinc_status status = zn_yaml_parse(text, n, &error, &yaml);
    if (status == ZINC_E_FORMAT)
        return zn_config_add_error(config, "", error.line, error.column, error.hint, "%s",
                                   error.message);
    ZN_TRY_GOTO(status);
    ZN_TRY_GOTO(zn_accelerate_soften(yaml, "accelerate"));
    ZN_TRY_GOTO(read_deepspeed(config, yaml, deepspeed, &has_file));
    ZN_TRY_GOTO(bind_yaml(config, yaml, has_file));
fail:
    zn_node_destroy(yaml);
    return status;
}

zinc_status zn_config_parse_accelerate(const char *text, size_t n, const char *name,
                                       const char *deepspeed, zn_config **out)
{
    zn_config *config = NULL;
    ZN_TRY(zn_config_create(name, &config));
    config->is_yaml = true;
    return zn_config_finish(config, read_yaml(config, text, n, deepspeed), out);
}

zinc_status zn_config_load_accelerate(const char *path, const char *deepspeed, zn_config **out)
{
    zinc_status status;
    zn_buf text = {0};
    char *own = NULL;
    if (strcmp(path, "default") == 0) {
        ZN_TRY(zn_accelerate_default_path(&own));
        path = own;
    }
    ZN_TRY_GOTO(zn_config_read_file(path, "`zinc config new` writes one", &text));
    ZN_TRY_GOTO(zn_config_parse_accelerate(text.data, text.n, path, deepspeed, out));
fail:
    zn_buf_fini(&text);
    zn_free(own);
    return status;
}

static void destroy_slots(zn_slot *slots)
{
    for (int i = 0; slots && i < zn_n_keys; i++)
        zn_slot_fini(&slots[i]);
    zn_free(slots);
}

void zn_config_destroy(zn_config *config)
{
    if (!config)
        return;
    for (int i = 0; i < config->n_errors; i++)
        issue_fini(&config->errors[i]);
    for (int i = 0; i < config->n_notes; i++)
        zn_free(config->notes[i]);
    zn_free(config->errors);
    zn_free(config->notes);
    destroy_slots(config->slots);
    destroy_slots(config->resolved);
    zn_node_destroy(config->root);
    zn_free(config->names[0]);
    zn_free(config->names[1]);
    zn_free(config);
}

void zn_config_forget_resolved(zn_config *config)
{
    for (int i = config->n_read_errors; i < config->n_errors; i++)
        issue_fini(&config->errors[i]);
    for (int i = config->n_read_notes; i < config->n_notes; i++)
        zn_free(config->notes[i]);
    config->n_errors = config->n_read_errors;
    config->n_notes = config->n_read_notes;
    destroy_slots(config->resolved);
    config->resolved = NULL;
    zn_config_store(config->slots, &config->values);
}

const char *zn_config_name(const zn_config *config)
{
    return config->name;
}

const zn_config_values *zn_config_get(const zn_config *config)
{
    return &config->values;
}

const char *zn_config_origin(const zn_config *config, const char *key_path)
{
    const int i = zn_key_find(key_path);
    return i < 0 || !config->resolved ? NULL : config->resolved[i].origin;
}

bool zn_config_is_explicit(const zn_config *config, const char *key_path)
{
    const int i = zn_key_find(key_path);
    return i >= 0 && config->slots[i].state == ZN_SLOT_GIVEN &&
           config->slots[i].source == ZN_FROM_FILE;
}

int zn_config_n_errors(const zn_config *config)
{
    return config->n_errors;
}

const char *zn_config_error(const zn_config *config, int i)
{
    return config->errors[i].line_text;
}

int zn_config_n_notes(const zn_config *config)
{
    return config->n_notes;
}

const char *zn_config_note(const zn_config *config, int i)
{
    return config->notes[i];
}
