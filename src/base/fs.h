/* SPDX-License-Identifier: Apache-2.0 */
/* fs.h — files and folders; every message names the path. Not collective. Layer: base. */
#ifndef ZN_BASE_FS_H
#define ZN_BASE_FS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

/* A file mapped read-only. Zero-initialise; release with zn_map_close. */
typedef struct zn_map {
    const unsigned char *data; /* [n_bytes]; NULL if the file is empty */
    size_t n_bytes;
} zn_map;

/** Read a whole file into *out (zeroed before; NUL-terminated). Errors: E_IO, E_NOMEM;
 *  E_FORMAT if it is larger than max_bytes (0: no limit). */
ZINC_MUST_CHECK zinc_status zn_fs_read(const char *path, size_t max_bytes, zn_buf *out);

/** Write a whole file: temporary name in the same folder, fsync, rename. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_fs_write_atomic(const char *path, const void *bytes, size_t n_bytes);

/** Map a file read-only. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_map_open(const char *path, zn_map *out);
void zn_map_close(zn_map *map);

bool zn_fs_exists(const char *path);
bool zn_fs_is_dir(const char *path);

/** Make a folder and its missing parents; an existing folder is fine. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_fs_mkdirs(const char *path);

/** Whether `path` is a folder with nothing in it (a missing folder counts as empty). */
bool zn_fs_is_empty_dir(const char *path);

/** Copy one regular file (through zn_fs_write_atomic). Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_fs_copy(const char *from, const char *to);

/** dir + "/" + name in a new string. Free with zn_free. */
ZINC_MUST_CHECK zinc_status zn_fs_join(const char *dir, const char *name, char **out);

/** fsync a folder, so that renames in it survive a power loss. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_fs_sync_dir(const char *path);

/** write(2) until all n_bytes are at `offset` (pwrite), short writes and EINTR handled. E_IO names
 *  `path`. */
ZINC_MUST_CHECK zinc_status zn_fs_pwrite_all(int fd, const void *bytes, size_t n_bytes,
                                             int64_t offset, const char *path);

/** n_bytes from `offset` on (pread); short reads and EINTR handled. A disk that fails is an error
 *  here, where reading through a mapping would end the process. E_IO names `path`, also if the file
 *  ends before. */
ZINC_MUST_CHECK zinc_status zn_fs_pread_all(int fd, void *bytes, size_t n_bytes, int64_t offset,
                                            const char *path);

/** Open a regular file for reading: its descriptor, to be closed, and its size. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_fs_open(const char *path, int *fd, int64_t *n_bytes);

#endif
