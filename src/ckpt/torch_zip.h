/* SPDX-License-Identifier: Apache-2.0 */
/* torch_zip.h — the zip files that torch.save writes: entries stored, never compressed; zip64.
 *
 * Entries are NAME/data.pkl (the pickle), NAME/data/KEY (raw storages), NAME/byteorder. Every
 * offset is checked against the file before it is used. Layout: PKWARE APPNOTE 4.3. Layer: ckpt. */
#ifndef ZN_CKPT_TORCH_ZIP_H
#define ZN_CKPT_TORCH_ZIP_H

#include "base/mem.h"

typedef struct zn_zip_entry {
    const char *name; /* [n_name] after the archive's own folder; not NUL-terminated */
    size_t n_name;
    const unsigned char *data; /* [n_bytes], in the mapped file */
    size_t n_bytes;
} zn_zip_entry;

/* Zero-initialise; release with zn_zip_fini. Borrows the bytes it was read from. */
typedef struct zn_zip {
    zn_zip_entry *entries; /* [n_entries] by name */
    size_t n_entries;
} zn_zip;

/** Read the directory of the n_bytes of a whole file; `where` names it in messages.
 *  Errors: E_FORMAT (no zip, truncated, an offset outside), E_UNSUPPORTED (compressed), E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_zip_parse(const unsigned char *bytes, size_t n_bytes,
                                         const char *where, zn_zip *out);
/** The entry called `name` (n bytes, without the archive's folder), or NULL. Borrowed. */
const zn_zip_entry *zn_zip_find(const zn_zip *zip, const char *name, size_t n);
void zn_zip_fini(zn_zip *zip);

#endif
