/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/fs.h"
#include "data/dataset_internal.h"

static zinc_status refuse(const char *path, const char *extension)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    static const struct {
        const char *extension, *call;
    } convert[] = {
        {".parquet", "read_parquet"}, {".csv", "read_csv"},         {".json", "read_json"},
        {".arrow", "read_feather"},   {".feather", "read_feather"},
    };
    for (size_t i = 0; i < sizeof convert / sizeof convert[0]; i++)
        if (strcasecmp(extension, convert[i].extension) == 0)
            ZN_FAIL(ZINC_E_UNSUPPORTED,
                    "%s: %s files are not read; make a .jsonl of it: python3 -c 'import pandas; "
                    "pandas.%s(\"%s\").to_json(\"%.*s.jsonl\", orient=\"records\", lines=True)'",
                    path, extension, convert[i].call, path, (int)(strlen(path) - strlen(extension)),
                    path);
    if (!zn_fs_exists(path) && strchr(path, '/') == strrchr(path, '/') && path[0] != '/')
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "%s: no such file; data files end in .txt, .jsonl or .bin. If it is a data set of "
                "the Hugging Face hub, make a .jsonl of it: python3 -c 'import datasets; "
                "datasets.load_dataset(\"%s\", split=\"train\").to_json(\"%s.jsonl\")'",
                path, path, name);
    ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: a data file must end in .txt, .jsonl or .bin", path);
}

zinc_status zn_file_kind_of(const char *path, zn_file_kind *out)
{
    const char *slash = strrchr(path, '/');
    const char *extension = strrchr(slash ? slash : path, '.');
    if (!extension)
        extension = "";
    if (strcasecmp(extension, ".txt") == 0)
        *out = ZN_FILE_TEXT;
    else if (strcasecmp(extension, ".jsonl") == 0)
        *out = ZN_FILE_JSONL;
    else if (strcasecmp(extension, ".bin") == 0)
        *out = ZN_FILE_TOKENS;
    else
        return refuse(path, extension);
    return ZINC_OK;
}

static zinc_status get_string(const json_t *row, const char *where, const char *key,
                              const char **out, size_t *n)
{
    const json_t *value = json_object_get(row, key);
    if (!json_is_string(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" must be a string", where, key);
    *out = json_string_value(value);
    *n = json_string_length(value);
    return ZINC_OK;
}

static zinc_status get_array(const json_t *row, const char *where, const char *key,
                             const json_t **out)
{
    const json_t *value = json_object_get(row, key);
    *out = NULL;
    if (!value || json_is_null(value))
        return ZINC_OK;
    if (!json_is_array(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" must be an array of integers", where, key);
    *out = value;
    return ZINC_OK;
}

/* Which of the four forms a row has, and its fields. Other keys are the user's own. */
static zinc_status read_row(const json_t *row, zn_document *d)
{
    if (!json_is_object(row))
        ZN_FAIL(ZINC_E_FORMAT, "%s: each line must be a JSON object", d->where);
    ZN_TRY(get_array(row, d->where, "input_ids", &d->ids));
    if (d->ids) {
        ZN_TRY(get_array(row, d->where, "labels", &d->labels));
        return get_array(row, d->where, "attention_mask", &d->mask);
    }
    d->messages = json_object_get(row, "messages");
    if (d->messages)
        return ZINC_OK;
    if (json_object_get(row, "prompt") || json_object_get(row, "completion")) {
        ZN_TRY(get_string(row, d->where, "prompt", &d->prompt, &d->n_prompt));
        return get_string(row, d->where, "completion", &d->completion, &d->n_completion);
    }
    if (json_object_get(row, "conversations"))
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: \"conversations\" is not read; write \"messages\": [{\"role\": \"user\", "
                "\"content\": …}, …]",
                d->where);
    if (!json_object_get(row, "text"))
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: a line must have \"text\", or \"messages\", or \"prompt\" and "
                "\"completion\", or \"input_ids\"",
                d->where);
    return get_string(row, d->where, "text", &d->text, &d->n_text);
}

static zinc_status read_line(const char *where, const char *line, size_t n, zn_document_fn fn,
                             void *context)
{
    zinc_status status;
    zn_document document = {.where = where};
    json_t *row = NULL;
    ZN_TRY(zn_json_parse(line, n, where, &row));
    ZN_TRY_GOTO(read_row(row, &document));
    ZN_TRY_GOTO(fn(context, &document));
fail:
    json_decref(row);
    return status;
}

static bool is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", line[i]) || line[i] == '\0')
            return false;
    return true;
}

static zinc_status read_jsonl(const char *path, const char *text, size_t n, zn_document_fn fn,
                              void *context)
{
    char where[1024];
    int64_t n_documents = 0, number = 1;
    for (size_t i = 0; i < n; number++) {
        const char *newline = memchr(text + i, '\n', n - i);
        const size_t end = newline ? (size_t)(newline - text) : n;
        if (!is_blank(text + i, end - i)) {
            (void)snprintf(where, sizeof where, "%s:%lld", path, (long long)number);
            ZN_TRY(read_line(where, text + i, end - i, fn, context));
            n_documents++;
        }
        i = end + 1;
    }
    if (n_documents == 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: there is nothing in it", path);
    return ZINC_OK;
}

static zinc_status read_text(const char *path, const char *text, size_t n, zn_document_fn fn,
                             void *context)
{
    const zn_document document = {.where = path, .text = text, .n_text = n};
    if (n == 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: there is nothing in it", path);
    return fn(context, &document);
}

zinc_status zn_documents_read(const char *path, zn_file_kind kind, zn_document_fn fn, void *context)
{
    zn_map map = {0};
    ZN_TRY(zn_map_open(path, &map));
    const char *text = map.data ? (const char *)map.data : "";
    size_t n = map.n_bytes;
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark is no text */
        text += 3;
        n -= 3;
    }
    const zinc_status status = kind == ZN_FILE_JSONL ? read_jsonl(path, text, n, fn, context)
                                                     : read_text(path, text, n, fn, context);
    zn_map_close(&map);
    return status;
}

zinc_status zn_document_encode(const zn_tokenizer *tokenizer, const char *text, size_t n,
                               int32_t eos_id, zn_ids *out)
{
    const int64_t first = out->n;
    ZN_TRY(zn_tokenizer_encode(tokenizer, text, n, true, out));
    /* A text that begins with the token which the template puts in front gets it once. */
    if (out->n - first >= 2 && out->ids[first] == out->ids[first + 1] &&
        zn_tokenizer_is_special(tokenizer, out->ids[first])) {
        zn_ids plain = {0};
        const zinc_status status = zn_tokenizer_encode(tokenizer, text, n, false, &plain);
        const bool added = plain.n < out->n - first;
        zn_ids_fini(&plain);
        ZN_TRY(status);
        if (added) {
            memmove(out->ids + first, out->ids + first + 1,
                    (size_t)(out->n - first - 1) * sizeof *out->ids);
            out->n--;
        }
    }
    if (eos_id >= 0 && (out->n == first || out->ids[out->n - 1] != eos_id))
        ZN_TRY(zn_ids_push(out, eos_id));
    return ZINC_OK;
}
