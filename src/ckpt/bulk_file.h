/* SPDX-License-Identifier: Apache-2.0 */
/* bulk_file.h — a large new file, written front to back past the page cache.
 *
 *   zn_bulk_write      -> blocks of 1 MiB, ZN_BULK_BUFFER_BYTES in all -> four writer threads
 *   zn_bulk_write_kept -> the caller's memory, in place, in blocks     ->
 *
 * So a block is on its way while the next ones are filled. Writes are direct (O_DIRECT) where the
 * file system takes them. They are plain pwrite calls and no ring: four in flight were measured to
 * be as fast for a stream, and a test can let any of them fail. Layer: ckpt. */
#ifndef ZN_CKPT_BULK_FILE_H
#define ZN_CKPT_BULK_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define ZN_BULK_BUFFER_BYTES ((int64_t)8 << 20) /* all that is held of a file's data */
#define ZN_BULK_ALIGN ((size_t)4096)            /* of memory, offset and length of a direct write */

typedef struct zn_bulk_file zn_bulk_file;

/* Hears how much of a file is written: after each block, by one thread at a time, any of its own.
 */
typedef void (*zn_bulk_progress_fn)(void *ctx, int64_t done, int64_t n_bytes);

/** Make `path` with room for all of its n_bytes: a full disk shows here. Not collective. Errors:
 *  E_IO. Destroy with zn_bulk_destroy, which removes nothing. progress: or NULL. */
ZINC_MUST_CHECK zinc_status zn_bulk_create(const char *path, int64_t n_bytes,
                                           zn_bulk_progress_fn progress, void *ctx,
                                           zn_bulk_file **out);
/** The next n bytes. Errors: E_IO, also of an earlier write; then nothing more is written. */
ZINC_MUST_CHECK zinc_status zn_bulk_write(zn_bulk_file *file, const void *bytes, size_t n);
/** All bytes that are left, from memory that stays as it is until zn_bulk_finish or _destroy:
 * nothing is copied, and the call does not wait for the writes. The file is at a multiple of
 * ZN_BULK_ALIGN, and so many bytes can be read there, rounded up; memory that is not so aligned is
 * written through the page cache. Errors: E_IO of an earlier write. */
ZINC_MUST_CHECK zinc_status zn_bulk_write_kept(zn_bulk_file *file, const void *bytes);
/** After the last byte: wait for the writes, flush to disk, close. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_bulk_finish(zn_bulk_file *file);
/** Wait for writes under way and close; NULL is fine. */
void zn_bulk_destroy(zn_bulk_file *file);

#endif
