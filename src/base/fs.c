/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static zinc_status check_name(const char *path)
{
    if (!*path)
        ZN_FAIL(ZINC_E_IO, "the name of a file or folder is empty");
    return ZINC_OK;
}

zinc_status zn_fs_read(const char *path, size_t max_bytes, zn_buf *out)
{
    zinc_status status;
    char chunk[65536];
    ZN_TRY(check_name(path));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        ZN_FAIL(ZINC_E_IO, "cannot open %s: %s", path, strerror(errno));
    ZN_TRY_GOTO(zn_buf_append(out, "", 0));
    for (;;) { /* to the end, for files of /proc have no size */
        const ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            ZN_FAIL_GOTO(ZINC_E_IO, "cannot read %s: %s", path, strerror(errno));
        if (n == 0)
            break;
        ZN_TRY_GOTO(zn_buf_append(out, chunk, (size_t)n));
        if (max_bytes && out->n > max_bytes)
            ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s is larger than %zu bytes", path, max_bytes);
    }
    close(fd);
    return ZINC_OK;
fail:
    close(fd);
    return status;
}

zinc_status zn_fs_pread_all(int fd, void *bytes, size_t n_bytes, int64_t offset, const char *path)
{
    char *p = bytes;
    while (n_bytes > 0) {
        const ssize_t n = pread(fd, p, n_bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            ZN_FAIL(ZINC_E_IO, "cannot read %zu bytes at offset %lld of %s: %s", n_bytes,
                    (long long)offset, path, n < 0 ? strerror(errno) : "the file ends before");
        p += n;
        n_bytes -= (size_t)n;
        offset += n;
    }
    return ZINC_OK;
}

zinc_status zn_fs_pwrite_all(int fd, const void *bytes, size_t n_bytes, int64_t offset,
                             const char *path)
{
    const char *p = bytes;
    while (n_bytes > 0) {
        const ssize_t n = pwrite(fd, p, n_bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            ZN_FAIL(ZINC_E_IO, "cannot write %zu bytes at offset %lld of %s: %s", n_bytes,
                    (long long)offset, path, strerror(errno));
        if (n == 0)
            ZN_FAIL(ZINC_E_IO, "cannot write %zu bytes at offset %lld of %s: nothing was taken",
                    n_bytes, (long long)offset, path);
        p += n;
        n_bytes -= (size_t)n;
        offset += n;
    }
    return ZINC_OK;
}

zinc_status zn_fs_write_atomic(const char *path, const void *bytes, size_t n_bytes)
{
    zinc_status status;
    char *temporary = NULL;
    int fd = -1;
    ZN_TRY(zn_format(&temporary, "%s.tmp.%ld", path, (long)getpid()));
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot create %s: %s", temporary, strerror(errno));
    ZN_TRY_GOTO(zn_fs_pwrite_all(fd, bytes, n_bytes, 0, temporary));
    if (fsync(fd) != 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot flush %s to disk: %s", temporary, strerror(errno));
    const int closed = close(fd);
    fd = -1;
    if (closed != 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot close %s: %s", temporary, strerror(errno));
    if (rename(temporary, path) != 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot rename %s to %s: %s", temporary, path, strerror(errno));
    zn_free(temporary);
    return ZINC_OK;
fail:
    if (fd >= 0)
        close(fd);
    unlink(temporary);
    zn_free(temporary);
    return status;
}

zinc_status zn_fs_open(const char *path, int *fd, int64_t *n_bytes)
{
    struct stat st;
    ZN_TRY(check_name(path));
    /* a named pipe would be waited for before it can be seen to be none of the files wanted */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        ZN_FAIL(ZINC_E_IO, "cannot open %s: %s", path, strerror(errno));
    const int error = fstat(file, &st) != 0 ? errno : 0;
    if (error || !S_ISREG(st.st_mode)) {
        close(file);
        if (error)
            ZN_FAIL(ZINC_E_IO, "cannot stat %s: %s", path, strerror(error));
        ZN_FAIL(ZINC_E_IO, "%s is not a regular file", path);
    }
    *fd = file;
    *n_bytes = (int64_t)st.st_size;
    return ZINC_OK;
}

zinc_status zn_map_open(const char *path, zn_map *out)
{
    int fd;
    int64_t n_bytes;
    ZN_TRY(zn_fs_open(path, &fd, &n_bytes));
    zn_map map = {.n_bytes = (size_t)n_bytes};
    void *data = n_bytes ? mmap(NULL, map.n_bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    const int error = data == MAP_FAILED ? errno : 0;
    close(fd);
    if (error)
        ZN_FAIL(ZINC_E_IO, "cannot map %s: %s", path, strerror(error));
    map.data = data;
    *out = map;
    return ZINC_OK;
}

void zn_map_close(zn_map *map)
{
    if (map->data) {
        void *data;
        memcpy(&data, &map->data, sizeof data); /* munmap takes no const pointer */
        munmap(data, map->n_bytes);
    }
    memset(map, 0, sizeof *map);
}

bool zn_fs_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool zn_fs_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

zinc_status zn_fs_mkdirs(const char *path)
{
    char *copy;
    ZN_TRY(check_name(path));
    ZN_TRY(zn_strdup(path, &copy));
    for (char *p = copy + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        const char saved = *p;
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            const int error = errno;
            zn_free(copy);
            ZN_FAIL(ZINC_E_IO, "cannot make the folder %s: %s", path, strerror(error));
        }
        *p = saved;
        if (saved == '\0')
            break;
    }
    zn_free(copy);
    if (!zn_fs_is_dir(path))
        ZN_FAIL(ZINC_E_IO, "cannot make the folder %s: a file is in the way", path);
    return ZINC_OK;
}

bool zn_fs_is_empty_dir(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return !zn_fs_exists(path);
    bool empty = true;
    for (const struct dirent *e; empty && (e = readdir(dir));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(dir);
    return empty;
}

zinc_status zn_fs_sync_dir(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        ZN_FAIL(ZINC_E_IO, "cannot open the folder %s: %s", path, strerror(errno));
    const int failed = fsync(fd);
    const int error = errno;
    close(fd);
    /* Some file systems cannot sync a folder and say so with EINVAL. */
    if (failed && error != EINVAL)
        ZN_FAIL(ZINC_E_IO, "cannot flush the folder %s to disk: %s", path, strerror(error));
    return ZINC_OK;
}

zinc_status zn_fs_copy(const char *from, const char *to)
{
    zn_buf buf = {0};
    zinc_status status;
    ZN_TRY_GOTO(zn_fs_read(from, 0, &buf));
    ZN_TRY_GOTO(zn_fs_write_atomic(to, buf.data, buf.n));
    zn_buf_fini(&buf);
    return ZINC_OK;
fail:
    zn_buf_fini(&buf);
    return status;
}

zinc_status zn_fs_join(const char *dir, const char *name, char **out)
{
    const size_t n = strlen(dir);
    const char *slash = n > 0 && dir[n - 1] == '/' ? "" : "/";
    return zn_format(out, "%s%s%s", dir, slash, name);
}
