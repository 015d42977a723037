/* SPDX-License-Identifier: Apache-2.0 */
/* bulk_file.h — a large new file, written front to back past the page cache.
 *
 *   zn_bulk_write -> blocks of 1 MiB, ZN_BULK_BUFFER_BYTES in all -> four writer threads
 *
 * So a block is on its way while the next ones are filled. Writes are direct (O_DIRECT) where the
 * file system takes them. They are plain pwrite calls and no ring: a few in flight reach the disk's
 * rate for a stream, and a test can let any of them fail. Layer: ckpt. */
#ifndef ZN_CKPT_BULK_FILE_H
#define ZN_CKPT_BULK_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define ZN_BULK_BUFFER_BYTES ((int64_t)4 << 20) /* all that is held of a file's data */

typedef struct zn_bulk_file zn_bulk_file;

/** Make `path` with room for all of its n_bytes: a full disk shows here. Not collective. Errors:
 *  E_IO. Destroy with zn_bulk_destroy, which removes nothing. */
ZINC_MUST_CHECK zinc_status zn_bulk_create(const char *path, int64_t n_bytes, zn_bulk_file **out);
/** The next n bytes. Errors: E_IO, also of an earlier write; then nothing more is written. */
ZINC_MUST_CHECK zinc_status zn_bulk_write(zn_bulk_file *file, const void *bytes, size_t n);
/** After the last byte: wait for the writes, flush to disk, close. Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_bulk_finish(zn_bulk_file *file);
/** Wait for writes under way and close; NULL is fine. */
void zn_bulk_destroy(zn_bulk_file *file);

#endif
