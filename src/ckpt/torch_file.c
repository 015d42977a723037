/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/torch_file.h"

#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "ckpt/torch_zip.h"

struct zn_torch_file {
    char *path;
    zn_map map;
    zn_zip zip;
    zn_pickle *pickle;
};

static zinc_status find_storage(void *ctx, const char *key, size_t n_key,
                                const unsigned char **data, size_t *n_bytes)
{
    const zn_torch_file *file = ctx;
    char name[64];
    const int n = snprintf(name, sizeof name, "data/%.*s", (int)(n_key < 40 ? n_key : 40), key);
    const zn_zip_entry *entry = n_key <= 40 ? zn_zip_find(&file->zip, name, (size_t)n) : NULL;
    if (!entry)
        ZN_FAIL(ZINC_E_FORMAT, "%s: the storage %s is missing from the file", file->path, name);
    *data = entry->data;
    *n_bytes = entry->n_bytes;
    return ZINC_OK;
}

static zinc_status parse(zn_torch_file *file, const unsigned char *bytes, size_t n)
{
    static const char little[] = "little";
    ZN_TRY(zn_zip_parse(bytes, n, file->path, &file->zip));
    const zn_zip_entry *order = zn_zip_find(&file->zip, "byteorder", strlen("byteorder"));
    if (order &&
        (order->n_bytes != strlen(little) || memcmp(order->data, little, order->n_bytes) != 0))
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: was written on a big-endian machine", file->path);
    const zn_zip_entry *entry = zn_zip_find(&file->zip, "data.pkl", strlen("data.pkl"));
    if (!entry)
        ZN_FAIL(ZINC_E_FORMAT, "%s: holds no data.pkl, so torch.save did not write it", file->path);
    return zn_pickle_parse(entry->data, entry->n_bytes, file->path, find_storage, file,
                           &file->pickle);
}

zinc_status zn_torch_parse(const unsigned char *bytes, size_t n, const char *name,
                           zn_torch_file **out)
{
    zinc_status status;
    zn_torch_file *file = NULL;
    ZN_TRY(zn_alloc(&file, sizeof *file, "torch file"));
    ZN_TRY_GOTO(zn_strdup(name, &file->path));
    ZN_TRY_GOTO(parse(file, bytes, n));
    *out = file;
    return ZINC_OK;
fail:
    zn_torch_close(file);
    return status;
}

zinc_status zn_torch_open(const char *path, zn_torch_file **out)
{
    zn_map map = {0};
    zn_torch_file *file = NULL;
    ZN_TRY(zn_map_open(path, &map));
    const zinc_status status = zn_torch_parse(map.data, map.n_bytes, path, &file);
    if (status != ZINC_OK) {
        zn_map_close(&map);
        return status;
    }
    file->map = map;
    *out = file;
    return ZINC_OK;
}

void zn_torch_close(zn_torch_file *file)
{
    if (!file)
        return;
    zn_pickle_destroy(file->pickle);
    zn_zip_fini(&file->zip);
    zn_map_close(&file->map);
    zn_free(file->path);
    zn_free(file);
}

const zn_pickle_value *zn_torch_root(const zn_torch_file *file)
{
    return zn_pickle_root(file->pickle);
}

const char *zn_torch_path(const zn_torch_file *file)
{
    return file->path;
}
