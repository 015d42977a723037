/* SPDX-License-Identifier: Apache-2.0 */
/* model_files.c — what makes weights a model folder: configuration and tokenizer. */
#include "ckpt/safetensors.h"

#include <string.h>

#include "base/fs.h"
#include "base/json.h"

static zinc_status append_pretty(zn_buf *buf, const json_t *value, int depth);

static zinc_status append_break(zn_buf *buf, int depth)
{
    return zn_buf_printf(buf, "\n%*s", 2 * depth, "");
}

static zinc_status append_object(zn_buf *buf, json_t *object, int depth)
{
    const char *key;
    json_t *item;
    const char *comma = "";
    ZN_TRY(zn_buf_puts(buf, "{"));
    json_object_foreach(object, key, item)
    {
        ZN_TRY(zn_buf_puts(buf, comma));
        ZN_TRY(append_break(buf, depth + 1));
        ZN_TRY(zn_json_append_string(buf, key, strlen(key)));
        ZN_TRY(zn_buf_puts(buf, ": "));
        ZN_TRY(append_pretty(buf, item, depth + 1));
        comma = ",";
    }
    if (json_object_size(object) > 0)
        ZN_TRY(append_break(buf, depth));
    return zn_buf_puts(buf, "}");
}

/* Two spaces a level and reals that stay reals, as Hugging Face writes its files. */
static zinc_status append_pretty(zn_buf *buf, const json_t *value, int depth)
{
    if (json_is_object(value)) {
        json_t *object;
        memcpy(&object, &value, sizeof object); /* iteration takes no const object */
        return append_object(buf, object, depth);
    }
    if (json_is_array(value)) {
        const size_t n = json_array_size(value);
        ZN_TRY(zn_buf_puts(buf, "["));
        for (size_t i = 0; i < n; i++) {
            ZN_TRY(zn_buf_puts(buf, i ? "," : ""));
            ZN_TRY(append_break(buf, depth + 1));
            ZN_TRY(append_pretty(buf, json_array_get(value, i), depth + 1));
        }
        if (n > 0)
            ZN_TRY(append_break(buf, depth));
        return zn_buf_puts(buf, "]");
    }
    if (json_is_real(value)) {
        const size_t before = buf->n;
        ZN_TRY(zn_json_append_number(buf, json_real_value(value)));
        return strpbrk(buf->data + before, ".en") ? ZINC_OK : zn_buf_puts(buf, ".0");
    }
    return zn_json_append(value, buf);
}

/* torch_dtype is the older spelling, dtype the newer; a file keeps the one it has. */
static zinc_status set_dtype(json_t *config, zn_dtype dtype)
{
    const bool newer = json_object_get(config, "dtype") != NULL;
    const bool older = json_object_get(config, "torch_dtype") != NULL;
    const char *name = zn_dtype_name(dtype);
    if ((newer && json_object_set_new(config, "dtype", json_string(name)) != 0) ||
        ((older || !newer) && json_object_set_new(config, "torch_dtype", json_string(name)) != 0))
        ZN_FAIL(ZINC_E_NOMEM, "out of host memory for config.json");
    return ZINC_OK;
}

static zinc_status copy_config(const char *from, const char *to, zn_dtype dtype)
{
    zinc_status status;
    json_t *config = NULL;
    zn_buf buf = {0};
    ZN_TRY_GOTO(zn_json_load(from, &config));
    if (!json_is_object(config))
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s: is not a JSON object", from);
    ZN_TRY_GOTO(set_dtype(config, dtype));
    ZN_TRY_GOTO(append_pretty(&buf, config, 0));
    ZN_TRY_GOTO(zn_buf_puts(&buf, "\n"));
    ZN_TRY_GOTO(zn_fs_write_atomic(to, buf.data, buf.n));
    status = ZINC_OK;
fail:
    json_decref(config);
    zn_buf_fini(&buf);
    return status;
}

static zinc_status copy_one(const char *from_dir, const char *to_dir, const char *name)
{
    zinc_status status = ZINC_OK;
    char *from = NULL;
    char *to = NULL;
    ZN_TRY_GOTO(zn_fs_join(from_dir, name, &from));
    ZN_TRY_GOTO(zn_fs_join(to_dir, name, &to));
    if (zn_fs_exists(from))
        ZN_TRY_GOTO(zn_fs_copy(from, to));
fail:
    zn_free(from);
    zn_free(to);
    return status;
}

/* Where a model's configuration is, and the folder of what lies beside it. */
static zinc_status locate(const char *model, char **config, char **folder)
{
    const char *slash = strrchr(model, '/');
    if (zn_fs_is_dir(model)) {
        ZN_TRY(zn_strdup(model, folder));
        return zn_fs_join(model, "config.json", config);
    }
    ZN_TRY(zn_strdup(model, config));
    return slash ? zn_format(folder, "%.*s", (int)(slash - model), model) : zn_strdup(".", folder);
}

zinc_status zn_model_files_copy(const char *from, const char *to, zn_dtype dtype)
{
    static const char *const optional[] = {
        "generation_config.json",  "tokenizer.json",  "tokenizer_config.json",
        "special_tokens_map.json", "vocab.json",      "merges.txt",
        "added_tokens.json",       "tokenizer.model", "chat_template.jinja",
    };
    zinc_status status;
    char *config = NULL, *folder = NULL, *out = NULL;
    ZN_TRY_GOTO(locate(from, &config, &folder));
    ZN_TRY_GOTO(zn_fs_mkdirs(to));
    ZN_TRY_GOTO(zn_fs_join(to, "config.json", &out));
    ZN_TRY_GOTO(copy_config(config, out, dtype));
    for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++)
        ZN_TRY_GOTO(copy_one(folder, to, optional[i]));
fail:
    zn_free(config);
    zn_free(folder);
    zn_free(out);
    return status;
}
