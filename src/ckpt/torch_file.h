/* SPDX-License-Identifier: Apache-2.0 */
/* torch_file.h — a .pt file: mapped, its zip directory read, its pickle turned into data.
 * Tensor data stay in the mapped file. Layer: ckpt. */
#ifndef ZN_CKPT_TORCH_FILE_H
#define ZN_CKPT_TORCH_FILE_H

#include "ckpt/unpickle.h"

typedef struct zn_torch_file zn_torch_file;

/** Open a file that torch.save wrote. Not collective. Errors: E_IO, E_FORMAT, E_UNSUPPORTED,
 *  E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_torch_open(const char *path, zn_torch_file **out);
/** The same from the n bytes of a file, borrowed until the close. */
ZINC_MUST_CHECK zinc_status zn_torch_parse(const unsigned char *bytes, size_t n, const char *name,
                                           zn_torch_file **out);
void zn_torch_close(zn_torch_file *file);
const zn_pickle_value *zn_torch_root(const zn_torch_file *file);
const char *zn_torch_path(const zn_torch_file *file);

#endif
