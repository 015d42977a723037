/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_read.c — a model folder as one table of tensors, whatever its files. */
#include "ckpt/safetensors_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"

#define LET_GO_BYTES ((size_t)64 << 10) /* below, the call costs more than the memory */

struct zn_weights {
    zn_st_file *files; /* [n_files] */
    int n_files;
    zn_tensor_info *tensors; /* [n_tensors] by name */
    int n_tensors;
    json_t *index; /* NULL without an index */
};

static int by_name(const void *a, const void *b)
{
    const zn_tensor_info *const x = a;
    const zn_tensor_info *const y = b;
    return strcmp(x->name, y->name);
}

static zinc_status add_file(zn_weights *weights, const char *path)
{
    ZN_TRY(zn_realloc_array(&weights->files, (size_t)weights->n_files + 1, sizeof *weights->files,
                            "weight files"));
    ZN_TRY(zn_st_file_open(path, true, &weights->files[weights->n_files]));
    weights->n_files++;
    return ZINC_OK;
}

/* A shard's name comes from a file that anybody may have written: it must stay in the folder. */
static bool is_plain_name(const json_t *value)
{
    static const char suffix[] = ".safetensors";
    const size_t n_suffix = sizeof suffix - 1;
    const char *name = json_string_value(value);
    if (!name)
        return false;
    const size_t n = json_string_length(value);
    return n == strlen(name) && n > n_suffix && n < 256 && !strchr(name, '/') &&
           !strchr(name, '\\') && name[0] != '.' && strcmp(name + n - n_suffix, suffix) == 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool has_file(const zn_weights *weights, const char *name)
{
    for (int i = weights->n_files - 1; i >= 0; i--)
        if (strcmp(base_name(weights->files[i].path), name) == 0)
            return true;
    return false;
}

static zinc_status open_shards(zn_weights *weights, const char *dir, const char *index_path,
                               json_t *map)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        if (!is_plain_name(value))
            ZN_FAIL(ZINC_E_FORMAT,
                    "%s: weight_map: the file of %.200s must be a plain name in the same folder "
                    "that ends in .safetensors, not %s%.200s%s",
                    index_path, tensor, json_is_string(value) ? "\"" : "",
                    json_is_string(value) ? json_string_value(value) : "another JSON type",
                    json_is_string(value) ? "\"" : "");
        const char *name = json_string_value(value);
        if (has_file(weights, name))
            continue;
        char *path = NULL;
        ZN_TRY(zn_fs_join(dir, name, &path));
        const zinc_status status = add_file(weights, path);
        zn_free(path);
        if (status == ZINC_E_IO)
            zn_error_prefix("%s names a shard that is missing: ", index_path);
        ZN_TRY(status);
    }
    return ZINC_OK;
}

/* Tensors that the index does not place in the file they are found in are left out. */
static bool is_wanted(const json_t *map, const zn_tensor_info *tensor)
{
    if (!map)
        return true;
    const char *place = json_string_value(json_object_get(map, tensor->name));
    if (place && strcmp(place, base_name(tensor->file)) == 0)
        return true;
    zn_warn("ckpt", "%s: tensor %.200s is not in the index at this place and is ignored",
            tensor->file, tensor->name);
    return false;
}

static zinc_status build_table(zn_weights *weights, const char *index_path, json_t *map)
{
    size_t n = 0;
    for (int f = 0; f < weights->n_files; f++)
        n += (size_t)weights->files[f].n_tensors;
    ZN_TRY(zn_alloc_array(&weights->tensors, n, sizeof *weights->tensors, "tensor table"));
    for (int f = 0; f < weights->n_files; f++)
        for (int i = 0; i < weights->files[f].n_tensors; i++)
            if (is_wanted(map, &weights->files[f].tensors[i]))
                weights->tensors[weights->n_tensors++] = weights->files[f].tensors[i];
    qsort(weights->tensors, (size_t)weights->n_tensors, sizeof *weights->tensors, by_name);
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        if (!zn_weights_find(weights, name))
            ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s should be in %s, which does not hold it",
                    index_path, name, json_string_value(value));
    }
    return ZINC_OK;
}

static zinc_status open_index(zn_weights *weights, const char *dir, const char *index_path)
{
    ZN_TRY(zn_json_load(index_path, &weights->index));
    json_t *map = json_object_get(weights->index, "weight_map");
    if (!json_is_object(map))
        ZN_FAIL(ZINC_E_FORMAT, "%s: has no \"weight_map\" object", index_path);
    ZN_TRY(open_shards(weights, dir, index_path, map));
    return build_table(weights, index_path, map);
}

static zinc_status open_folder(zn_weights *weights, const char *dir)
{
    zinc_status status;
    char *single = NULL;
    char *index = NULL;
    ZN_TRY_GOTO(zn_fs_join(dir, ZN_ST_SINGLE_NAME, &single));
    ZN_TRY_GOTO(zn_fs_join(dir, ZN_ST_INDEX_NAME, &index));
    if (zn_fs_exists(single)) {
        ZN_TRY_GOTO(add_file(weights, single));
        ZN_TRY_GOTO(build_table(weights, NULL, NULL));
    } else if (zn_fs_exists(index)) {
        ZN_TRY_GOTO(open_index(weights, dir, index));
    } else {
        ZN_FAIL_GOTO(ZINC_E_IO,
                     "%s holds neither %s nor %s; weights in other formats must be converted first",
                     dir, ZN_ST_SINGLE_NAME, ZN_ST_INDEX_NAME);
    }
    status = ZINC_OK;
fail:
    zn_free(single);
    zn_free(index);
    return status;
}

zinc_status zn_weights_open(const char *path, zn_weights **out)
{
    zinc_status status;
    zn_weights *weights = NULL;
    ZN_TRY(zn_alloc(&weights, sizeof *weights, "weights"));
    if (zn_fs_is_dir(path)) {
        ZN_TRY_GOTO(open_folder(weights, path));
    } else {
        ZN_TRY_GOTO(add_file(weights, path));
        ZN_TRY_GOTO(build_table(weights, NULL, NULL));
    }
    *out = weights;
    return ZINC_OK;
fail:
    zn_weights_close(weights);
    return status;
}

void zn_weights_close(zn_weights *weights)
{
    if (!weights)
        return;
    for (int i = 0; i < weights->n_files; i++)
        zn_st_file_close(&weights->files[i]);
    zn_free(weights->files);
    zn_free(weights->tensors);
    json_decref(weights->index);
    zn_free(weights);
}

int zn_weights_n(const zn_weights *weights)
{
    return weights->n_tensors;
}

const zn_tensor_info *zn_weights_at(const zn_weights *weights, int i)
{
    return i >= 0 && i < weights->n_tensors ? &weights->tensors[i] : NULL;
}

const zn_tensor_info *zn_weights_find(const zn_weights *weights, const char *name)
{
    const zn_tensor_info key = {.name = name};
    if (weights->n_tensors == 0)
        return NULL;
    return bsearch(&key, weights->tensors, (size_t)weights->n_tensors, sizeof key, by_name);
}

static uint16_t load_u16(const unsigned char *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Pages of a mapped file count as memory of this process once they are read; a model would be in
 * memory twice. The page in which the range ends stays, because the next range starts there. */
static void let_go(const unsigned char *data, size_t n_bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)data / page * page;
    const uintptr_t end = ((uintptr_t)data + n_bytes) / page * page;
    if (end - begin >= LET_GO_BYTES)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static zinc_status widen(const zn_tensor_info *tensor, const unsigned char *p, int64_t n,
                         float *out)
{
    switch (tensor->dtype) {
    case ZN_DTYPE_F32:
        if (n > 0)
            memcpy(out, p, (size_t)n * sizeof *out);
        return ZINC_OK;
    case ZN_DTYPE_BF16:
        for (int64_t i = 0; i < n; i++)
            out[i] = zn_bf16_to_f32(load_u16(p + 2 * i));
        return ZINC_OK;
    case ZN_DTYPE_F16:
        for (int64_t i = 0; i < n; i++)
            out[i] = zn_f16_to_f32(load_u16(p + 2 * i));
        return ZINC_OK;
    default:
        ZN_FAIL(ZINC_E_FORMAT, "%s: tensor %.200s has type %s, not float32, bfloat16 or float16",
                tensor->file, tensor->name, zn_dtype_name(tensor->dtype));
    }
}

zinc_status zn_tensor_read(const zn_tensor_info *tensor, int64_t offset, int64_t n, float *out)
{
    if (offset < 0 || n < 0 || offset > tensor->n_elems || n > tensor->n_elems - offset)
        ZN_FAIL(ZINC_E_INVALID, "%s: tensor %.200s has %lld elements, not [%lld, +%lld)",
                tensor->file, tensor->name, (long long)tensor->n_elems, (long long)offset,
                (long long)n);
    ZN_ASSERT(tensor->data || n == 0);
    const size_t size = zn_dtype_size(tensor->dtype);
    const unsigned char *p = tensor->data + (size_t)offset * size;
    ZN_TRY(widen(tensor, p, n, out));
    if (tensor->mapped)
        let_go(p, (size_t)n * size);
    return ZINC_OK;
}
