/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_dir.c — the folders of a run: making one appear whole, listing, deleting old ones.
 *
 * Order that makes a kill at any moment harmless: data flushed -> manifest flushed -> folder
 * flushed -> renamed -> parent flushed -> `latest` renamed -> older ones deleted. An older
 * checkpoint of the same step steps aside as checkpoint-N.old in between, and one that is deleted
 * as checkpoint-N.del; the next start finishes what was cut off. */
#include "ckpt/checkpoint_internal.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "ckpt/checksum.h"

#define PREFIX "checkpoint-"
#define LATEST "latest"
#define OLD_SUFFIX ".old"
#define TMP_SUFFIX ".tmp"
#define DELETED_SUFFIX ".del"
#define CHUNK_BYTES ((size_t)1 << 20) /* read at once */

zinc_status zn_ckpt_file_of(const char *dir, const char *name, zn_ckpt_file *out)
{
    zinc_status status;
    char *path = NULL, *chunk = NULL;
    int fd = -1;
    zn_checksum sum;
    zn_ckpt_file file = {.n_bytes = 0};
    zn_checksum_init(&sum);
    ZN_TRY_GOTO(zn_fs_join(dir, name, &path));
    ZN_TRY_GOTO(zn_fs_open(path, &fd, &file.n_bytes));
    ZN_TRY_GOTO(zn_alloc(&chunk, CHUNK_BYTES, "a piece of a file"));
    for (int64_t at = 0; at < file.n_bytes; at += (int64_t)CHUNK_BYTES) {
        const int64_t left = file.n_bytes - at;
        const size_t n = left < (int64_t)CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        ZN_TRY_GOTO(zn_fs_pread_all(fd, chunk, n, at, path));
        zn_checksum_update(&sum, chunk, n);
    }
    snprintf(file.name, sizeof file.name, "%s", name);
    file.checksum = zn_checksum_value(&sum);
    *out = file;
    status = ZINC_OK;
fail:
    if (fd >= 0)
        close(fd);
    zn_free(chunk);
    zn_free(path);
    return status;
}

zinc_status zn_ckpt_path(const char *output, int64_t step, bool temporary, char **out)
{
    char name[64];
    snprintf(name, sizeof name, PREFIX "%" PRId64 "%s", step, temporary ? TMP_SUFFIX : "");
    return zn_fs_join(output, name, out);
}

/* Step of "checkpoint-N" followed by `suffix`, or -1. */
static int64_t step_of(const char *name, const char *suffix)
{
    const size_t n = sizeof PREFIX - 1;
    if (strncmp(name, PREFIX, n) != 0 || name[n] < '0' || name[n] > '9')
        return -1;
    char *end;
    errno = 0;
    const long long step = strtoll(name + n, &end, 10);
    return errno == 0 && strcmp(end, suffix) == 0 ? (int64_t)step : -1;
}

/* Remove a folder and the plain files in it. */
static zinc_status remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        ZN_FAIL(ZINC_E_IO, "cannot open the folder %s: %s", path, strerror(errno));
    for (const struct dirent *e; (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(dirfd(dir), e->d_name, 0); /* rmdir says what is left */
    closedir(dir);
    if (rmdir(path) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot remove the folder %s: %s", path, strerror(errno));
    return ZINC_OK;
}

static bool has_parts(const char *path)
{
    bool found = false;
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && !found && (e = readdir(dir));)
        found = strncmp(e->d_name, "shard-", 6) == 0;
    if (dir)
        closedir(dir);
    return found || zn_fs_is_empty_dir(path);
}

/* An empty folder `path`. */
static zinc_status make_temporary(const char *path)
{
    if (zn_fs_is_dir(path) && !has_parts(path))
        ZN_FAIL(ZINC_E_IO, "%s is in the way and holds no part of a checkpoint: move it", path);
    if (zn_fs_is_dir(path))
        ZN_TRY(remove_folder(path));
    if (mkdir(path, 0777) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot make the folder %s: %s", path, strerror(errno));
    return ZINC_OK;
}

zinc_status zn_ckpt_begin(const char *output, int64_t step)
{
    char *path = NULL;
    ZN_TRY(zn_ckpt_path(output, step, true, &path));
    const zinc_status status = make_temporary(path);
    zn_free(path);
    return status;
}

void zn_ckpt_discard_named(const char *path)
{
    if (zn_fs_is_dir(path) && remove_folder(path) != ZINC_OK)
        zn_warn("ckpt", "%s", zinc_last_error());
}

void zn_ckpt_discard(const char *output, int64_t step)
{
    char *path = NULL;
    if (zn_ckpt_path(output, step, true, &path) == ZINC_OK)
        zn_ckpt_discard_named(path);
    zn_free(path);
}

zinc_status zn_ckpt_other_files(const char *dir, zn_ckpt_file *files, int max, int *n)
{
    zinc_status status = ZINC_OK;
    DIR *d = opendir(dir);
    if (!d)
        ZN_FAIL(ZINC_E_IO, "cannot open the folder %s: %s", dir, strerror(errno));
    for (const struct dirent *e; status == ZINC_OK && (e = readdir(d));) {
        if (e->d_name[0] == '.' || strncmp(e->d_name, "shard-", 6) == 0)
            continue;
        if (*n >= max)
            ZN_FAIL_GOTO(ZINC_E_IO, "%s: more than %d files beside the parts", dir, max);
        status = zn_ckpt_file_of(dir, e->d_name, &files[*n]);
        ++*n;
    }
fail:
    closedir(d);
    return status;
}

/* ---- deleting ---- */

static zinc_status rename_folder(const char *from, const char *to)
{
    if (rename(from, to) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot rename %s to %s: %s", from, to, strerror(errno));
    return ZINC_OK;
}

/* Remove what the manifest of `path` lists, then the manifest, then the folder: cut off anywhere it
 * can be done again. Files of somebody else stay, and so does the folder then. */
static zinc_status delete_listed(const char *path)
{
    zinc_status status;
    zn_manifest m = {0};
    ZN_TRY_GOTO(zn_manifest_read(path, &m));
    for (int i = 0; i < m.n_files; i++) {
        char *file = NULL;
        ZN_TRY_GOTO(zn_fs_join(path, m.files[i].name, &file));
        const int failed = unlink(file) != 0 && errno != ENOENT ? errno : 0;
        zn_free(file);
        if (failed) /* the manifest stays, so that the next start can go on */
            ZN_FAIL_GOTO(ZINC_E_IO, "cannot remove %s/%s: %s", path, m.files[i].name,
                         strerror(failed));
    }
    if (unlink(m.path) != 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot remove %s: %s", m.path, strerror(errno));
    if (rmdir(path) != 0)
        zn_warn("ckpt", "%s is no checkpoint any more, but its folder stays: %s", path,
                strerror(errno));
    status = ZINC_OK;
fail:
    zn_manifest_fini(&m);
    return status;
}

/* It stops being checkpoint-N at once. */
static zinc_status delete_checkpoint(const char *path)
{
    zinc_status status;
    char *aside = NULL;
    ZN_TRY(zn_format(&aside, "%s" DELETED_SUFFIX, path));
    ZN_TRY_GOTO(rename_folder(path, aside));
    ZN_TRY_GOTO(delete_listed(aside));
    status = ZINC_OK;
fail:
    zn_free(aside);
    return status;
}

/* ---- publishing ---- */

/* Put the finished folder `from` where `to` is, which may be there. */
static zinc_status replace_folder(const char *from, const char *to)
{
    zinc_status status;
    char *old = NULL;
    if (!zn_fs_exists(to))
        return rename_folder(from, to);
    if (!zn_ckpt_is(to))
        ZN_FAIL(ZINC_E_IO, "%s is in the way and is no checkpoint of Zinc: move it", to);
    ZN_TRY(zn_format(&old, "%s" OLD_SUFFIX, to));
    if (zn_fs_is_dir(old))
        ZN_TRY_GOTO(delete_listed(old));
    ZN_TRY_GOTO(rename_folder(to, old));
    status = rename_folder(from, to);
    if (status != ZINC_OK) {
        (void)rename(old, to); /* as it was; the failure is the one above */
        goto fail;
    }
    if (delete_listed(old) != ZINC_OK)
        zn_warn("ckpt", "%s", zinc_last_error());
fail:
    zn_free(old);
    return status;
}

static zinc_status set_latest(const char *output, const char *folder)
{
    zinc_status status;
    char *path = NULL, *line = NULL;
    ZN_TRY_GOTO(zn_fs_join(output, LATEST, &path));
    ZN_TRY_GOTO(zn_format(&line, "%s\n", strrchr(folder, '/') + 1));
    ZN_TRY_GOTO(zn_fs_write_atomic(path, line, strlen(line)));
    status = zn_fs_sync_dir(output);
fail:
    zn_free(path);
    zn_free(line);
    return status;
}

/* Where the finished folder goes. Its temporary one is beside it. */
static zinc_status final_path(const zn_publish_params *params, char **out)
{
    return params->name ? zn_fs_join(params->output, params->name, out)
                        : zn_ckpt_path(params->output, params->meta->step, false, out);
}

zinc_status zn_ckpt_seal(const zn_publish_params *params, const zn_buf *manifest)
{
    zinc_status status;
    zn_manifest m = {0};
    char *to = NULL, *dir = NULL, *path = NULL;
    ZN_TRY_GOTO(final_path(params, &to));
    ZN_TRY_GOTO(zn_format(&dir, "%s" TMP_SUFFIX, to));
    ZN_TRY_GOTO(zn_fs_join(dir, ZN_CKPT_MANIFEST, &path));
    ZN_TRY_GOTO(zn_fs_write_atomic(path, manifest->data, manifest->n));
    ZN_TRY_GOTO(zn_manifest_read(dir, &m));
    ZN_TRY_GOTO(zn_manifest_check_sizes(dir, &m));
    ZN_TRY_GOTO(zn_fs_sync_dir(dir));
    status = ZINC_OK;
fail:
    zn_manifest_fini(&m);
    zn_free(to);
    zn_free(dir);
    zn_free(path);
    return status;
}

zinc_status zn_ckpt_reveal(const zn_publish_params *params)
{
    zinc_status status;
    char *from = NULL, *to = NULL;
    ZN_TRY_GOTO(final_path(params, &to));
    ZN_TRY_GOTO(zn_format(&from, "%s" TMP_SUFFIX, to));
    ZN_TRY_GOTO(replace_folder(from, to));
    ZN_TRY_GOTO(zn_fs_sync_dir(params->output));
    status = ZINC_OK;
fail:
    zn_free(from);
    zn_free(to);
    return status;
}

zinc_status zn_ckpt_set_latest(const zn_publish_params *params)
{
    char *to = NULL;
    if (params->keep_latest)
        return ZINC_OK;
    ZN_TRY(final_path(params, &to));
    const zinc_status status = set_latest(params->output, to);
    zn_free(to);
    return status;
}

zinc_status zn_ckpt_publish(const zn_publish_params *params)
{
    zinc_status status;
    zn_buf manifest = {0};
    ZN_TRY_GOTO(zn_manifest_build(params, &manifest));
    ZN_TRY_GOTO(zn_ckpt_seal(params, &manifest));
    ZN_TRY_GOTO(zn_ckpt_reveal(params));
    ZN_TRY_GOTO(zn_ckpt_set_latest(params));
    status = ZINC_OK;
fail:
    zn_buf_fini(&manifest);
    return status;
}

/* ---- cleaning ---- */

/* A folder that stepped aside, for its replacement `target` or (NULL) to be deleted. */
static void clean_aside(const char *path, const char *target)
{
    if (target && !zn_fs_exists(target)) {
        if (rename(path, target) == 0)
            zn_info("ckpt", "%s is back: its replacement was cut off", target);
    } else if (zn_fs_is_empty_dir(path)) {
        (void)rmdir(path); /* in nobody's way if it stays */
    } else if (zn_ckpt_is(path) && delete_listed(path) != ZINC_OK) {
        zn_warn("ckpt", "%s", zinc_last_error());
    }
}

static void clean_numbered(const char *output, const char *name, const char *path)
{
    char *target = NULL;
    const int64_t step = step_of(name, OLD_SUFFIX);
    if (step < 0 || zn_ckpt_path(output, step, false, &target) == ZINC_OK)
        clean_aside(path, target);
    zn_free(target);
}

zinc_status zn_ckpt_begin_named(const char *output, const char *name, char **out)
{
    zinc_status status;
    char *path = NULL, *old = NULL, *temporary = NULL;
    if (!zn_ckpt_plain_name(name))
        ZN_FAIL(ZINC_E_INVALID, "\"%.200s\" cannot be the name of a checkpoint's folder", name);
    ZN_TRY_GOTO(zn_fs_join(output, name, &path));
    ZN_TRY_GOTO(zn_format(&old, "%s" OLD_SUFFIX, path));
    ZN_TRY_GOTO(zn_format(&temporary, "%s" TMP_SUFFIX, path));
    if (zn_fs_is_dir(old))
        clean_aside(old, path);
    ZN_TRY_GOTO(make_temporary(temporary));
    *out = temporary;
    temporary = NULL;
    status = ZINC_OK;
fail:
    zn_free(path);
    zn_free(old);
    zn_free(temporary);
    return status;
}

static void clean_temporary(const char *path)
{
    if (!has_parts(path))
        return;
    if (remove_folder(path) != ZINC_OK)
        zn_warn("ckpt", "%s", zinc_last_error());
    else
        zn_info("ckpt", "removed %s, which a run that was killed left unfinished", path);
}

/* Temporary name of a small file that a run writes whole (zn_fs_write_atomic). */
static bool is_half_written(const char *name)
{
    static const char *const whole[] = {LATEST,
                                        "run.json",
                                        "config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json"};
    const char *dot = strstr(name, ".tmp.");
    if (strncmp(name, ".zinc-node-", 11) == 0) /* of train/nodes.c */
        return true;
    if (!dot || dot[5] == '\0' || strspn(dot + 5, "0123456789") != strlen(dot + 5))
        return false;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (strlen(whole[i]) == (size_t)(dot - name) &&
            strncmp(name, whole[i], (size_t)(dot - name)) == 0)
            return true;
    return false;
}

void zn_ckpt_clean(const char *output)
{
    DIR *dir = opendir(output);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        char *path = NULL;
        if (is_half_written(e->d_name))
            (void)unlinkat(dirfd(dir), e->d_name, 0); /* in nobody's way if it stays */
        if (zn_fs_join(output, e->d_name, &path) != ZINC_OK)
            break;
        if (step_of(e->d_name, TMP_SUFFIX) >= 0)
            clean_temporary(path);
        else if (step_of(e->d_name, OLD_SUFFIX) >= 0 || step_of(e->d_name, DELETED_SUFFIX) >= 0)
            clean_numbered(output, e->d_name, path);
        zn_free(path);
    }
    if (dir)
        closedir(dir);
}

/* ---- listing ---- */

bool zn_ckpt_is(const char *path)
{
    zn_buf text = {0};
    char *name = NULL;
    bool is = false;
    if (zn_fs_join(path, ZN_CKPT_MANIFEST, &name) == ZINC_OK && zn_fs_exists(name) &&
        zn_fs_read(name, ZN_CKPT_MAX_JSON_BYTES, &text) == ZINC_OK)
        is = strstr(text.data, "\"" ZN_CKPT_FORMAT "\"") != NULL;
    zn_free(name);
    zn_buf_fini(&text);
    return is;
}

zinc_status zn_ckpt_read_meta(const char *path, zn_ckpt_meta *out, int64_t *n_bytes)
{
    zinc_status status;
    zn_manifest m = {0};
    zn_ckpt_file self;
    ZN_TRY_GOTO(zn_manifest_read(path, &m));
    ZN_TRY_GOTO(zn_manifest_check_sizes(path, &m));
    ZN_TRY_GOTO(zn_ckpt_file_of(path, ZN_CKPT_MANIFEST, &self));
    *n_bytes = self.n_bytes;
    for (int i = 0; i < m.n_files; i++)
        *n_bytes += m.files[i].n_bytes;
    *out = m.meta; /* moved */
    memset(&m.meta, 0, sizeof m.meta);
    status = ZINC_OK;
fail:
    zn_manifest_fini(&m);
    return status;
}

static zinc_status fill_entry(const char *output, const char *name, zn_ckpt_entry *entry)
{
    memset(entry, 0, sizeof *entry);
    entry->step = step_of(name, "");
    ZN_TRY(zn_fs_join(output, name, &entry->path));
    entry->ours = zn_ckpt_is(entry->path);
    const zinc_status status = zn_ckpt_read_meta(entry->path, &entry->meta, &entry->n_bytes);
    if (status == ZINC_E_NOMEM)
        return status;
    return status == ZINC_OK ? ZINC_OK : zn_strdup(zinc_last_error(), &entry->trouble);
}

static int by_age(const void *a, const void *b)
{
    const zn_ckpt_entry *x = a, *y = b;
    if (x->meta.created_ns != y->meta.created_ns)
        return x->meta.created_ns < y->meta.created_ns ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

zinc_status zn_ckpt_list(const char *output, zn_ckpt_entry **out, int *n)
{
    zinc_status status;
    zn_ckpt_entry *entries = NULL;
    int count = 0;
    DIR *dir = opendir(output);
    if (!dir)
        ZN_FAIL(ZINC_E_IO, "cannot open the folder %s: %s", output, strerror(errno));
    for (const struct dirent *e; (e = readdir(dir));) {
        if (step_of(e->d_name, "") < 0)
            continue;
        ZN_TRY_GOTO(zn_realloc_array(&entries, (size_t)count + 1, sizeof *entries, "checkpoints"));
        count++;
        ZN_TRY_GOTO(fill_entry(output, e->d_name, &entries[count - 1]));
    }
    closedir(dir);
    if (count > 0)
        qsort(entries, (size_t)count, sizeof *entries, by_age);
    *out = entries;
    *n = count;
    return ZINC_OK;
fail:
    closedir(dir);
    zn_ckpt_list_free(entries, count);
    return status;
}

void zn_ckpt_list_free(zn_ckpt_entry *entries, int n)
{
    for (int i = 0; i < n; i++) {
        zn_ckpt_meta_fini(&entries[i].meta);
        zn_free(entries[i].path);
        zn_free(entries[i].trouble);
    }
    zn_free(entries);
}

zinc_status zn_ckpt_latest(const char *output, char **out)
{
    zinc_status status;
    char *path = NULL;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_fs_join(output, LATEST, &path));
    ZN_TRY_GOTO(zn_fs_read(path, 4096, &text));
    text.data[strcspn(text.data, "\r\n")] = '\0';
    if (!zn_ckpt_plain_name(text.data))
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s: \"%.200s\" is not the name of a folder beside it", path,
                     text.data);
    ZN_TRY_GOTO(zn_fs_join(output, text.data, out));
    status = ZINC_OK;
fail:
    zn_free(path);
    zn_buf_fini(&text);
    return status;
}

zinc_status zn_ckpt_prune(const char *output, int64_t keep, uint64_t run_id,
                          void (*removed)(void *ctx, const char *path), void *ctx)
{
    zinc_status status = ZINC_OK;
    zn_ckpt_entry *entries = NULL;
    char *latest = NULL;
    int n = 0;
    int64_t kept = 0;
    ZN_TRY(zn_ckpt_list(output, &entries, &n));
    if (zn_ckpt_latest(output, &latest) != ZINC_OK)
        latest = NULL;
    for (int i = n - 1; i >= 0; i--) {
        const zn_ckpt_entry *e = &entries[i];
        if (e->trouble || (run_id && e->meta.run_id != run_id))
            continue;
        if (kept++ < (keep < 1 ? 1 : keep) || (latest && strcmp(e->path, latest) == 0))
            continue;
        ZN_TRY_GOTO(delete_checkpoint(e->path));
        if (removed)
            removed(ctx, e->path);
    }
fail:
    zn_free(latest);
    zn_ckpt_list_free(entries, n);
    return status;
}
