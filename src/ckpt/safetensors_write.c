/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c — every rank writes its own ranges into files whose layout all ranks know.
 *
 *   create   plan: files, headers, offsets (the same on every rank)
 *   begin    one rank: NAME.tmp at full length, header in place
 *   write    all ranks: pwrite of their ranges
 *   flush    all ranks: fsync
 *   commit   one rank: rename, index, fsync of the folder, read back
 */
#include "ckpt/safetensors_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH_BYTES 8
#define HEADER_ALIGN 8
#define CHUNK_ELEMS 16384 /* converted at a time */

typedef struct plan_tensor {
    char *name;
    zn_dtype dtype;
    int n_dims;
    int64_t shape[ZN_MAX_DIMS];
    int64_t n_elems;
    int64_t n_bytes;
    int file;
    int64_t begin; /* offset in the data part of its file */
} plan_tensor;

typedef struct plan_file {
    char *name;      /* without the folder */
    char *path;      /* final */
    char *temporary; /* path + ".tmp" */
    zn_buf header;   /* length, JSON, padding */
    int64_t n_data;  /* bytes after the header */
    int fd;          /* -1 until this rank touches the file */
    bool begun;      /* this rank made the temporary and has not renamed it yet */
} plan_file;

struct zn_weights_writer {
    char *dir;
    plan_tensor *tensors; /* [n_tensors] in the caller's order */
    int n_tensors;
    plan_file *files; /* [n_files] */
    int n_files;
    bool sharded;
    bool own_names; /* model.safetensors and shards, not a file named by the caller */
};

/* Inside a file: wide types first, so that all are aligned; then by name. */
static int by_size_and_name(const void *a, const void *b)
{
    const plan_tensor *const *const x = a;
    const plan_tensor *const *const y = b;
    const size_t nx = zn_dtype_size((*x)->dtype);
    const size_t ny = zn_dtype_size((*y)->dtype);
    return nx != ny ? (nx > ny ? -1 : 1) : strcmp((*x)->name, (*y)->name);
}

static int by_plan_name(const void *a, const void *b)
{
    const plan_tensor *const *const x = a;
    const plan_tensor *const *const y = b;
    return strcmp((*x)->name, (*y)->name);
}

static zinc_status copy_tensor(const zn_tensor_plan *from, plan_tensor *to)
{
    if (!from->name || strcmp(from->name, "__metadata__") == 0)
        ZN_FAIL(ZINC_E_INVALID, "cannot save a tensor without a name or called __metadata__");
    if (from->n_dims < 0 || from->n_dims > ZN_MAX_DIMS)
        ZN_FAIL(ZINC_E_INVALID, "cannot save tensor %.200s: %d dimensions, at most %d", from->name,
                from->n_dims, ZN_MAX_DIMS);
    ZN_TRY(zn_strdup(from->name, &to->name));
    to->dtype = from->dtype;
    to->n_dims = from->n_dims;
    memcpy(to->shape, from->shape, sizeof to->shape);
    to->n_elems = zn_st_n_elems(to->shape, to->n_dims);
    if (to->n_elems < 0)
        ZN_FAIL(ZINC_E_INVALID, "cannot save tensor %.200s: its shape is negative or too large",
                from->name);
    to->n_bytes = to->n_elems * (int64_t)zn_dtype_size(to->dtype);
    return ZINC_OK;
}

static zinc_status check_unique(const zn_weights_writer *writer, plan_tensor **order)
{
    for (int i = 0; i < writer->n_tensors; i++)
        order[i] = &writer->tensors[i];
    qsort(order, (size_t)writer->n_tensors, sizeof(plan_tensor *), by_plan_name);
    for (int i = 1; i < writer->n_tensors; i++)
        if (strcmp(order[i - 1]->name, order[i]->name) == 0)
            ZN_FAIL(ZINC_E_INVALID, "cannot save two tensors called %.200s", order[i]->name);
    return ZINC_OK;
}

/* Shards are filled in the caller's order; a tensor over the limit gets one of its own. */
static int assign_files(zn_weights_writer *writer, int64_t max_shard_bytes)
{
    int file = 0;
    int64_t used = 0;
    for (int i = 0; i < writer->n_tensors; i++) {
        plan_tensor *t = &writer->tensors[i];
        if (max_shard_bytes > 0 && used > 0 && t->n_bytes > max_shard_bytes - used) {
            file++;
            used = 0;
        }
        t->file = file;
        used += t->n_bytes;
    }
    return file + 1;
}

static zinc_status append_entry(zn_buf *buf, const plan_tensor *t)
{
    ZN_TRY(zn_json_append_string(buf, t->name, strlen(t->name)));
    ZN_TRY(
        zn_buf_printf(buf, ":{\"dtype\":\"%s\",\"shape\":[", zn_dtype_safetensors_name(t->dtype)));
    for (int d = 0; d < t->n_dims; d++)
        ZN_TRY(zn_buf_printf(buf, "%s%lld", d ? "," : "", (long long)t->shape[d]));
    return zn_buf_printf(buf, "],\"data_offsets\":[%lld,%lld]}", (long long)t->begin,
                         (long long)(t->begin + t->n_bytes));
}

static zinc_status build_header(zn_weights_writer *writer, int file, plan_tensor **order)
{
    plan_file *f = &writer->files[file];
    int n = 0;
    for (int i = 0; i < writer->n_tensors; i++)
        if (writer->tensors[i].file == file)
            order[n++] = &writer->tensors[i];
    qsort(order, (size_t)n, sizeof(plan_tensor *), by_size_and_name);
    ZN_TRY(zn_buf_append(&f->header, "\0\0\0\0\0\0\0", LENGTH_BYTES));
    ZN_TRY(zn_buf_puts(&f->header, "{\"__metadata__\":{\"format\":\"pt\"}"));
    for (int i = 0; i < n; i++) {
        order[i]->begin = f->n_data;
        f->n_data += order[i]->n_bytes;
        ZN_TRY(zn_buf_puts(&f->header, ","));
        ZN_TRY(append_entry(&f->header, order[i]));
    }
    ZN_TRY(zn_buf_puts(&f->header, "}"));
    while (f->header.n % HEADER_ALIGN != 0)
        ZN_TRY(zn_buf_puts(&f->header, " "));
    const uint64_t length = f->header.n - LENGTH_BYTES;
    if (length > ZN_ST_MAX_HEADER_BYTES)
        ZN_FAIL(ZINC_E_INVALID, "cannot save %d tensors in one file: the header is too long", n);
    for (int i = 0; i < LENGTH_BYTES; i++)
        f->header.data[i] = (char)(unsigned char)(length >> (8 * i));
    return ZINC_OK;
}

static zinc_status name_file(zn_weights_writer *writer, int file, const char *single_name)
{
    plan_file *f = &writer->files[file];
    if (writer->sharded)
        ZN_TRY(zn_format(&f->name, "model-%05d-of-%05d.safetensors", file + 1, writer->n_files));
    else
        ZN_TRY(zn_strdup(single_name, &f->name));
    ZN_TRY(zn_fs_join(writer->dir, f->name, &f->path));
    return zn_format(&f->temporary, "%s.tmp", f->path);
}

static zinc_status create(const char *dir, const char *single_name, const zn_tensor_plan *tensors,
                          int n_tensors, int64_t max_shard_bytes, zn_weights_writer **out)
{
    zinc_status status;
    plan_tensor **order = NULL; /* [n_tensors] scratch */
    zn_weights_writer *writer = NULL;
    ZN_TRY_GOTO(zn_alloc(&writer, sizeof *writer, "weights writer"));
    ZN_TRY_GOTO(zn_strdup(dir, &writer->dir));
    ZN_TRY_GOTO(zn_alloc_array(&writer->tensors, (size_t)n_tensors, sizeof *writer->tensors,
                               "tensor plan"));
    ZN_TRY_GOTO(zn_alloc_array(&order, (size_t)n_tensors, sizeof *order, "tensor order"));
    writer->n_tensors = n_tensors;
    for (int i = 0; i < n_tensors; i++)
        ZN_TRY_GOTO(copy_tensor(&tensors[i], &writer->tensors[i]));
    ZN_TRY_GOTO(check_unique(writer, order));
    const int n_files = assign_files(writer, max_shard_bytes);
    writer->sharded = n_files > 1;
    writer->own_names = strcmp(single_name, ZN_ST_SINGLE_NAME) == 0;
    ZN_TRY_GOTO(
        zn_alloc_array(&writer->files, (size_t)n_files, sizeof *writer->files, "file plan"));
    for (; writer->n_files < n_files; writer->n_files++)
        writer->files[writer->n_files].fd = -1;
    for (int f = 0; f < n_files; f++) {
        ZN_TRY_GOTO(name_file(writer, f, single_name));
        ZN_TRY_GOTO(build_header(writer, f, order));
    }
    zn_free(order);
    *out = writer;
    return ZINC_OK;
fail:
    zn_free(order);
    zn_weights_writer_destroy(writer);
    return status;
}

zinc_status zn_weights_writer_create(const char *dir, const zn_tensor_plan *tensors, int n_tensors,
                                     int64_t max_shard_bytes, zn_weights_writer **out)
{
    return create(dir, ZN_ST_SINGLE_NAME, tensors, n_tensors, max_shard_bytes, out);
}

/* A full disk must show here, not after an hour of writing, so the blocks are reserved. */
static zinc_status reserve(int fd, int64_t n_bytes, const char *path)
{
    int error;
    do {
        error = posix_fallocate(fd, 0, (off_t)n_bytes);
    } while (error == EINTR);
    if (error == EOPNOTSUPP || error == EINVAL || error == ENOSYS)
        error = ftruncate(fd, (off_t)n_bytes) == 0 ? 0 : errno;
    if (error != 0)
        ZN_FAIL(ZINC_E_IO, "cannot reserve %lld bytes for %s: %s", (long long)n_bytes, path,
                strerror(error));
    return ZINC_OK;
}

zinc_status zn_weights_writer_begin(zn_weights_writer *writer)
{
    ZN_TRY(zn_fs_mkdirs(writer->dir));
    for (int i = 0; i < writer->n_files; i++) {
        plan_file *f = &writer->files[i];
        if (f->fd >= 0)
            ZN_FAIL(ZINC_E_INVALID, "%s was begun already", f->temporary);
        f->fd = open(f->temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (f->fd < 0)
            ZN_FAIL(ZINC_E_IO, "cannot create %s: %s", f->temporary, strerror(errno));
        f->begun = true;
        ZN_TRY(reserve(f->fd, (int64_t)f->header.n + f->n_data, f->temporary));
        ZN_TRY(zn_fs_pwrite_all(f->fd, f->header.data, f->header.n, 0, f->temporary));
    }
    return ZINC_OK;
}

/* Check a range and give the open file and the byte offset it starts at. */
static zinc_status locate(zn_weights_writer *writer, int i, int64_t offset, int64_t n,
                          plan_file **file, int64_t *position)
{
    if (i < 0 || i >= writer->n_tensors)
        ZN_FAIL(ZINC_E_INVALID, "tensor %d of %d does not exist", i, writer->n_tensors);
    const plan_tensor *t = &writer->tensors[i];
    if (offset < 0 || n < 0 || offset > t->n_elems || n > t->n_elems - offset)
        ZN_FAIL(ZINC_E_INVALID, "tensor %.200s has %lld elements, not [%lld, +%lld)", t->name,
                (long long)t->n_elems, (long long)offset, (long long)n);
    plan_file *f = &writer->files[t->file];
    if (f->fd < 0) {
        f->fd = open(f->temporary, O_WRONLY | O_CLOEXEC);
        if (f->fd < 0)
            ZN_FAIL(ZINC_E_IO, "cannot open %s, which another rank should have begun: %s",
                    f->temporary, strerror(errno));
    }
    *position = (int64_t)f->header.n + t->begin + offset * (int64_t)zn_dtype_size(t->dtype);
    *file = f;
    return ZINC_OK;
}

zinc_status zn_weights_writer_write_raw(zn_weights_writer *writer, int i, int64_t offset, int64_t n,
                                        const void *elements)
{
    plan_file *f;
    int64_t position;
    ZN_TRY(locate(writer, i, offset, n, &f, &position));
    const size_t n_bytes = (size_t)n * zn_dtype_size(writer->tensors[i].dtype);
    return zn_fs_pwrite_all(f->fd, elements, n_bytes, position, f->temporary);
}

zinc_status zn_weights_writer_write(zn_weights_writer *writer, int i, int64_t offset, int64_t n,
                                    const float *values)
{
    uint16_t chunk[CHUNK_ELEMS];
    plan_file *f;
    int64_t position;
    ZN_TRY(locate(writer, i, offset, n, &f, &position));
    const zn_dtype dtype = writer->tensors[i].dtype;
    if (dtype == ZN_DTYPE_F32)
        return zn_fs_pwrite_all(f->fd, values, (size_t)n * sizeof *values, position, f->temporary);
    if (dtype != ZN_DTYPE_BF16 && dtype != ZN_DTYPE_F16)
        ZN_FAIL(ZINC_E_INVALID, "tensor %.200s: fp32 values cannot be written as %s",
                writer->tensors[i].name, zn_dtype_name(dtype));
    for (int64_t done = 0; done < n;) {
        const int64_t m = n - done < CHUNK_ELEMS ? n - done : CHUNK_ELEMS;
        for (int64_t k = 0; k < m; k++)
            chunk[k] = dtype == ZN_DTYPE_BF16 ? zn_f32_to_bf16(values[done + k])
                                              : zn_f32_to_f16(values[done + k]);
        ZN_TRY(zn_fs_pwrite_all(f->fd, chunk, (size_t)m * sizeof *chunk, position, f->temporary));
        done += m;
        position += m * (int64_t)sizeof *chunk;
    }
    return ZINC_OK;
}

zinc_status zn_weights_writer_flush(zn_weights_writer *writer)
{
    for (int i = 0; i < writer->n_files; i++) {
        const plan_file *f = &writer->files[i];
        if (f->fd >= 0 && fsync(f->fd) != 0)
            ZN_FAIL(ZINC_E_IO, "cannot flush %s to disk: %s", f->temporary, strerror(errno));
    }
    return ZINC_OK;
}

static zinc_status write_index(const zn_weights_writer *writer, const char *path)
{
    zinc_status status;
    zn_buf buf = {0};
    int64_t total = 0;
    for (int i = 0; i < writer->n_tensors; i++)
        total += writer->tensors[i].n_bytes;
    ZN_TRY_GOTO(zn_buf_printf(&buf, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n",
                              (long long)total));
    ZN_TRY_GOTO(zn_buf_puts(&buf, "  \"weight_map\": {"));
    for (int i = 0; i < writer->n_tensors; i++) {
        const plan_tensor *t = &writer->tensors[i];
        ZN_TRY_GOTO(zn_buf_puts(&buf, i ? ",\n    " : "\n    "));
        ZN_TRY_GOTO(zn_json_append_string(&buf, t->name, strlen(t->name)));
        ZN_TRY_GOTO(zn_buf_printf(&buf, ": \"%s\"", writer->files[t->file].name));
    }
    ZN_TRY_GOTO(zn_buf_puts(&buf, "\n  }\n}\n"));
    ZN_TRY_GOTO(zn_fs_write_atomic(path, buf.data, buf.n));
    status = ZINC_OK;
fail:
    zn_buf_fini(&buf);
    return status;
}

static bool is_planned(const zn_tensor_info *found, const plan_tensor *t)
{
    return found && found->dtype == t->dtype && found->n_dims == t->n_dims &&
           memcmp(found->shape, t->shape, (size_t)t->n_dims * sizeof *t->shape) == 0;
}

static const zn_tensor_info *find_tensor(const zn_st_file *file, const plan_tensor *t, int64_t at)
{
    for (int i = 0; i < file->n_tensors; i++)
        if (file->tensors[i].position == at && strcmp(file->tensors[i].name, t->name) == 0)
            return &file->tensors[i];
    return NULL;
}

/* A header must read back as it was planned, before the file takes the place of an older one. The
 * data are not mapped: there may be no room for them, not even of addresses. */
static zinc_status verify_file(const zn_weights_writer *writer, int file)
{
    zinc_status status = ZINC_OK;
    zn_st_file found = {0};
    const plan_file *f = &writer->files[file];
    ZN_TRY(zn_st_file_open(f->temporary, false, &found));
    for (int i = 0; i < writer->n_tensors; i++) {
        const plan_tensor *t = &writer->tensors[i];
        const int64_t at = (int64_t)f->header.n + t->begin;
        if (t->file == file && !is_planned(find_tensor(&found, t, at), t))
            ZN_FAIL_GOTO(ZINC_E_IO, "%s: tensor %.200s does not read back as it was written",
                         f->temporary, t->name);
    }
fail:
    zn_st_file_close(&found);
    return status;
}

/* And where the index says that they are. */
static zinc_status verify_index(const zn_weights_writer *writer, const char *path)
{
    zinc_status status = ZINC_OK;
    json_t *index = NULL;
    ZN_TRY(zn_json_load(path, &index));
    const json_t *map = json_object_get(index, "weight_map");
    for (int i = 0; i < writer->n_tensors; i++) {
        const plan_tensor *t = &writer->tensors[i];
        const char *name = json_string_value(json_object_get(map, t->name));
        if (!name || strcmp(name, writer->files[t->file].name) != 0)
            ZN_FAIL_GOTO(ZINC_E_IO, "%s: tensor %.200s does not read back as it was written", path,
                         t->name);
    }
fail:
    json_decref(index);
    return status;
}

/* Leave one way to read the folder: model.safetensors of an earlier save would win over the new
 * shards, and an old index would name files that may be gone. */
static zinc_status finish_folder(const zn_weights_writer *writer)
{
    zinc_status status;
    char *single = NULL;
    char *index = NULL;
    ZN_TRY_GOTO(zn_fs_join(writer->dir, ZN_ST_SINGLE_NAME, &single));
    ZN_TRY_GOTO(zn_fs_join(writer->dir, ZN_ST_INDEX_NAME, &index));
    if (writer->sharded) {
        ZN_TRY_GOTO(write_index(writer, index));
        ZN_TRY_GOTO(verify_index(writer, index));
    }
    const char *stale = writer->sharded ? single : index;
    if (writer->own_names && unlink(stale) != 0 && errno != ENOENT)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot remove %s of an earlier save: %s", stale, strerror(errno));
    ZN_TRY_GOTO(zn_fs_sync_dir(writer->dir));
    status = ZINC_OK;
fail:
    zn_free(single);
    zn_free(index);
    return status;
}

/* Several files cannot take the place of several others at once: without an index nobody takes a
 * mixture of both for a model. */
static zinc_status remove_index(const zn_weights_writer *writer)
{
    char *index = NULL;
    ZN_TRY(zn_fs_join(writer->dir, ZN_ST_INDEX_NAME, &index));
    const int failed = unlink(index) != 0 && errno != ENOENT ? errno : 0;
    zn_free(index);
    if (failed)
        ZN_FAIL(ZINC_E_IO, "cannot remove %s/%s of an earlier save: %s", writer->dir,
                ZN_ST_INDEX_NAME, strerror(failed));
    return ZINC_OK;
}

zinc_status zn_weights_writer_commit(zn_weights_writer *writer)
{
    for (int i = 0; i < writer->n_files; i++) {
        plan_file *f = &writer->files[i];
        const int closed = f->fd >= 0 ? close(f->fd) : 0;
        f->fd = -1;
        if (closed != 0)
            ZN_FAIL(ZINC_E_IO, "cannot close %s: %s", f->temporary, strerror(errno));
        ZN_TRY(verify_file(writer, i));
    }
    if (writer->sharded)
        ZN_TRY(remove_index(writer));
    for (int i = 0; i < writer->n_files; i++) {
        plan_file *f = &writer->files[i];
        if (rename(f->temporary, f->path) != 0)
            ZN_FAIL(ZINC_E_IO, "cannot rename %s to %s: %s", f->temporary, f->path,
                    strerror(errno));
        f->begun = false;
    }
    return finish_folder(writer);
}

int zn_weights_writer_n_files(const zn_weights_writer *writer)
{
    return writer->n_files;
}

const char *zn_weights_writer_file(const zn_weights_writer *writer, int i)
{
    return i >= 0 && i < writer->n_files ? writer->files[i].name : NULL;
}

void zn_weights_writer_destroy(zn_weights_writer *writer)
{
    if (!writer)
        return;
    for (int i = 0; i < writer->n_files; i++) {
        plan_file *f = &writer->files[i];
        if (f->fd >= 0)
            close(f->fd);
        if (f->begun)
            unlink(f->temporary);
        zn_free(f->name);
        zn_free(f->path);
        zn_free(f->temporary);
        zn_buf_fini(&f->header);
    }
    for (int i = 0; i < writer->n_tensors; i++)
        zn_free(writer->tensors[i].name);
    zn_free(writer->files);
    zn_free(writer->tensors);
    zn_free(writer->dir);
    zn_free(writer);
}

static bool is_weights_file(const char *path)
{
    static const char suffix[] = ".safetensors";
    const size_t n = strlen(path);
    return n >= sizeof suffix && strcmp(path + n - (sizeof suffix - 1), suffix) == 0;
}

zinc_status zn_weights_save(const char *path, const zn_tensor_plan *tensors, int n_tensors,
                            const float *const *values)
{
    zinc_status status;
    char *dir = NULL;
    const char *name = ZN_ST_SINGLE_NAME;
    zn_weights_writer *writer = NULL;
    ZN_TRY_GOTO(zn_strdup(path, &dir));
    if (is_weights_file(path)) {
        char *slash = strrchr(dir, '/');
        name = slash ? path + (slash - dir) + 1 : path;
        if (slash)
            slash[slash == dir] = '\0';
        else
            memcpy(dir, ".", 2);
    }
    ZN_TRY_GOTO(create(dir, name, tensors, n_tensors, 0, &writer));
    ZN_TRY_GOTO(zn_weights_writer_begin(writer));
    for (int i = 0; i < n_tensors; i++)
        ZN_TRY_GOTO(zn_weights_writer_write(writer, i, 0, writer->tensors[i].n_elems, values[i]));
    ZN_TRY_GOTO(zn_weights_writer_flush(writer));
    ZN_TRY_GOTO(zn_weights_writer_commit(writer));
    status = ZINC_OK;
fail:
    zn_weights_writer_destroy(writer);
    zn_free(dir);
    return status;
}
