/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_header.c — one file: nothing of it is believed before it has been checked. */
#include "ckpt/safetensors_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH_BYTES 8
#define MAX_JSON_DEPTH 8 /* a valid header has 3 */

static uint64_t load_le64(const unsigned char *p)
{
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

int64_t zn_st_n_elems(const int64_t *shape, int n_dims)
{
    int64_t n = 1;
    bool empty = false;
    for (int d = 0; d < n_dims; d++) {
        if (shape[d] < 0)
            return -1;
        if (shape[d] == 0)
            empty = true;
        else if (shape[d] > INT64_MAX / 8 / n)
            return -1;
        else
            n *= shape[d];
    }
    return empty ? 0 : n;
}

/* The JSON reader recurses, so its depth is bounded before it starts. */
static zinc_status check_depth(const char *text, size_t n, const char *path)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > MAX_JSON_DEPTH)
                ZN_FAIL(ZINC_E_FORMAT, "%s: the header nests deeper than %d at byte %zu", path,
                        MAX_JSON_DEPTH, i + LENGTH_BYTES);
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return ZINC_OK;
}

static zinc_status parse_dtype(const json_t *value, const char *path, const char *name,
                               zn_dtype *out)
{
    static const zn_dtype known[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16, ZN_DTYPE_F64,
                                     ZN_DTYPE_I32, ZN_DTYPE_I64,  ZN_DTYPE_U8,  ZN_DTYPE_BOOL};
    const char *text = json_string_value(value);
    if (!text)
        ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s has no \"dtype\" string", path, name);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(text, zn_dtype_safetensors_name(known[i])) == 0) {
            *out = known[i];
            return ZINC_OK;
        }
    }
    ZN_FAIL(ZINC_E_FORMAT,
            "%s: tensor %.200s has type \"%.40s\", which is not supported; F32, BF16, F16, F64, "
            "I32, I64, U8 and BOOL are",
            path, name, text);
}

static zinc_status parse_shape(const json_t *value, const char *path, zn_tensor_info *tensor)
{
    if (!json_is_array(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s has no \"shape\" list", path, tensor->name);
    const size_t n = json_array_size(value);
    if (n > ZN_MAX_DIMS)
        ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s has %zu dimensions; at most %d are supported",
                path, tensor->name, n, ZN_MAX_DIMS);
    for (size_t d = 0; d < n; d++) {
        const json_t *dim = json_array_get(value, d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s: dimension %zu is not a count", path,
                    tensor->name, d);
        tensor->shape[d] = json_integer_value(dim);
    }
    tensor->n_dims = (int)n;
    tensor->n_elems = zn_st_n_elems(tensor->shape, tensor->n_dims);
    if (tensor->n_elems < 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s: the product of its shape is too large", path,
                tensor->name);
    return ZINC_OK;
}

/* data_offsets are counted from the end of the header, byte `data`; n_data bytes lie there. */
static zinc_status parse_range(const json_t *value, const char *path, int64_t data, size_t n_data,
                               zn_tensor_info *tensor)
{
    const json_t *first = json_array_get(value, 0);
    const json_t *last = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
        ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s: \"data_offsets\" is not a pair of integers",
                path, tensor->name);
    const int64_t begin = json_integer_value(first);
    const int64_t end = json_integer_value(last);
    if (begin < 0 || end < begin)
        ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s: data_offsets [%lld, %lld] are no range", path,
                tensor->name, (long long)begin, (long long)end);
    if ((uint64_t)end > n_data)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: tensor %.200s ends at byte %lld of the data, but the file holds %zu: it is "
                "truncated or damaged",
                path, tensor->name, (long long)end, n_data);
    const int64_t size = (int64_t)zn_dtype_size(tensor->dtype);
    if (end - begin != tensor->n_elems * size)
        ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s has %lld bytes, but its shape and type need %lld",
                path, tensor->name, (long long)(end - begin), (long long)(tensor->n_elems * size));
    tensor->position = data + begin;
    return ZINC_OK;
}

static zinc_status parse_tensor(const json_t *value, const char *name, const char *path,
                                int64_t data, size_t n_data, zn_tensor_info *out)
{
    out->name = name;
    out->file = path;
    if (!json_is_object(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: the entry of tensor %.200s is not an object", path, name);
    ZN_TRY(parse_dtype(json_object_get(value, "dtype"), path, name, &out->dtype));
    ZN_TRY(parse_shape(json_object_get(value, "shape"), path, out));
    return parse_range(json_object_get(value, "data_offsets"), path, data, n_data, out);
}

static zinc_status check_metadata(json_t *value, const char *path)
{
    const char *key;
    json_t *item;
    if (!json_is_object(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"__metadata__\" is not an object", path);
    json_object_foreach(value, key, item)
    {
        if (!json_is_string(item))
            ZN_FAIL(ZINC_E_FORMAT, "%s: \"__metadata__\": %.200s is not a string", path, key);
    }
    return ZINC_OK;
}

static int by_place(const void *a, const void *b)
{
    const zn_tensor_info *const x = a;
    const zn_tensor_info *const y = b;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    return (x->n_elems > 0) - (y->n_elems > 0); /* empty tensors first */
}

/* The format wants the data covered exactly: no overlap, no hole, nothing after the last tensor. */
static zinc_status check_cover(const zn_st_file *file, int64_t data, size_t n_data)
{
    int64_t end = data;
    const char *before = "the header";
    for (int i = 0; i < file->n_tensors; i++) {
        const zn_tensor_info *t = &file->tensors[i];
        if (t->position < end)
            ZN_FAIL(ZINC_E_FORMAT, "%s: tensors %.200s and %.200s overlap", file->path, before,
                    t->name);
        if (t->position > end)
            ZN_FAIL(ZINC_E_FORMAT, "%s: a hole of %lld bytes between %.200s and %.200s", file->path,
                    (long long)(t->position - end), before, t->name);
        end = t->position + t->n_elems * (int64_t)zn_dtype_size(t->dtype);
        before = t->name;
    }
    if (end != data + (int64_t)n_data)
        ZN_FAIL(ZINC_E_FORMAT, "%s: %lld bytes after the last tensor belong to nothing", file->path,
                (long long)(data + (int64_t)n_data - end));
    return ZINC_OK;
}

/* The length of the header in front of it. */
static zinc_status parse_length(const char *path, const unsigned char *head, size_t n_bytes,
                                size_t *out)
{
    if (n_bytes < LENGTH_BYTES)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: %zu bytes are too few for a safetensors file; it is truncated or empty", path,
                n_bytes);
    const uint64_t length = load_le64(head);
    if (length > ZN_ST_MAX_HEADER_BYTES)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: a header of %llu bytes is over the limit of %zu; this is no safetensors file",
                path, (unsigned long long)length, ZN_ST_MAX_HEADER_BYTES);
    if (length > n_bytes - LENGTH_BYTES)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: the header is %llu bytes long, but the file has only %zu: it is truncated",
                path, (unsigned long long)length, n_bytes);
    *out = (size_t)length;
    return ZINC_OK;
}

zinc_status zn_st_file_parse(zn_st_file *file, const unsigned char *head, size_t n_head,
                             size_t n_bytes)
{
    size_t length;
    ZN_TRY(parse_length(file->path, head, n_bytes, &length));
    ZN_ASSERT(n_head >= LENGTH_BYTES + length);
    const char *text = (const char *)head + LENGTH_BYTES;
    const int64_t data = (int64_t)(LENGTH_BYTES + length);
    const size_t n_data = n_bytes - LENGTH_BYTES - length;
    ZN_TRY(check_depth(text, length, file->path));
    ZN_TRY(zn_json_parse(text, length, file->path, &file->header));
    if (!json_is_object(file->header))
        ZN_FAIL(ZINC_E_FORMAT, "%s: the header is not a JSON object", file->path);
    ZN_TRY(zn_alloc_array(&file->tensors, json_object_size(file->header), sizeof *file->tensors,
                          "tensor table"));
    const char *name;
    json_t *value;
    json_object_foreach(file->header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0)
            ZN_TRY(check_metadata(value, file->path));
        else
            ZN_TRY(parse_tensor(value, name, file->path, data, n_data,
                                &file->tensors[file->n_tensors++]));
    }
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, by_place);
    return check_cover(file, data, n_data);
}

/* By calls that can fail, not through a mapping. */
static zinc_status read_header(zn_st_file *file)
{
    zinc_status status;
    unsigned char first[LENGTH_BYTES] = {0};
    unsigned char *head = NULL;
    int fd = -1;
    int64_t n_bytes = 0;
    size_t length;
    ZN_TRY_GOTO(zn_fs_open(file->path, &fd, &n_bytes));
    ZN_TRY_GOTO(zn_fs_pread_all(fd, first, n_bytes < LENGTH_BYTES ? (size_t)n_bytes : LENGTH_BYTES,
                                0, file->path));
    ZN_TRY_GOTO(parse_length(file->path, first, (size_t)n_bytes, &length));
    ZN_TRY_GOTO(zn_alloc_array(&head, LENGTH_BYTES + length, 1, "a header"));
    ZN_TRY_GOTO(zn_fs_pread_all(fd, head, LENGTH_BYTES + length, 0, file->path));
    status = zn_st_file_parse(file, head, LENGTH_BYTES + length, (size_t)n_bytes);
fail:
    if (fd >= 0)
        close(fd);
    zn_free(head);
    return status;
}

/* The file may have been cut since its header was read. */
static zinc_status map_data(zn_st_file *file)
{
    ZN_TRY(zn_map_open(file->path, &file->map));
    for (int i = 0; i < file->n_tensors; i++) {
        zn_tensor_info *t = &file->tensors[i];
        const int64_t end = t->position + t->n_elems * (int64_t)zn_dtype_size(t->dtype);
        if (end > (int64_t)file->map.n_bytes)
            ZN_FAIL(ZINC_E_FORMAT, "%s: was cut to %zu bytes while it was opened", file->path,
                    file->map.n_bytes);
        t->data = file->map.data + t->position;
        t->mapped = true;
    }
    return ZINC_OK;
}

zinc_status zn_st_file_open(const char *path, bool data, zn_st_file *out)
{
    zinc_status status;
    zn_st_file file = {0};
    ZN_TRY_GOTO(zn_strdup(path, &file.path));
    ZN_TRY_GOTO(read_header(&file));
    if (data)
        ZN_TRY_GOTO(map_data(&file));
    *out = file;
    return ZINC_OK;
fail:
    zn_st_file_close(&file);
    return status;
}

void zn_st_file_close(zn_st_file *file)
{
    zn_free(file->tensors);
    json_decref(file->header);
    zn_map_close(&file->map);
    zn_free(file->path);
    memset(file, 0, sizeof *file);
}
