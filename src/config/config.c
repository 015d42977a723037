/* SPDX-License-Identifier: Apache-2.0 */
/* The zn_config object: loading, errors and notes, and what is asked of it. */
#include "config/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "config/config_internal.h"

#define MAX_FILE_BYTES ((size_t)1 << 20)

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

/* An empty configuration with all its slots absent. */
static zinc_status create(const char *name, zn_config **out)
{
    zn_config *config = NULL;
    zinc_status status;
    ZN_TRY(zn_alloc(&config, sizeof *config, "a configuration"));
    config->warmup_steps = config->warmup_ratio = config->n_epochs = (double)NAN;
    ZN_TRY_GOTO(zn_strdup(name, &config->name));
    ZN_TRY_GOTO(zn_alloc_array(&config->slots, (size_t)zn_n_keys, sizeof *config->slots,
                               "values of a configuration"));
    *out = config;
    return ZINC_OK;
fail:
    zn_config_destroy(config);
    return status;
}

static zinc_status read_text(zn_config *config, const char *text, size_t n)
{
    zn_syntax_error error = {0};
    const zinc_status status = zn_reader_parse(text, n, &error, &config->root);
    if (status == ZINC_E_FORMAT)
        return zn_config_add_error(config, "", error.line, error.column, error.hint, "%s",
                                   error.message);
    ZN_TRY(status);
    return zn_config_bind(config);
}

zinc_status zn_config_parse(const char *text, size_t n, const char *name, zn_config **out)
{
    zn_config *config = NULL;
    ZN_TRY(create(name, &config));
    const zinc_status status = read_text(config, text, n);
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

zinc_status zn_config_load(const char *path, zn_config **out)
{
    zn_buf text = {0};
    zinc_status status = ZINC_OK;
    if (!path)
        return zn_config_parse("", 0, "", out);
    if (zn_fs_is_dir(path))
        ZN_FAIL(ZINC_E_IO, "cannot read %s: it is a folder", path);
    status = zn_fs_read(path, MAX_FILE_BYTES, &text);
    if (status == ZINC_OK && strspn(text.data, " \t\r\n") == text.n)
        status = zn_error_set(ZINC_E_CONFIG, __FILE__, __LINE__, __func__,
                              "%s is empty; {} is the smallest ds_config.json", path);
    else if (status == ZINC_OK)
        status = zn_config_parse(text.data, text.n, path, out);
    zn_buf_fini(&text);
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
    zn_free(config->name);
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
