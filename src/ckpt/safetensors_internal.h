/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_internal.h — one file of weights, as reader, writer and fuzz target share it. */
#ifndef ZN_CKPT_SAFETENSORS_INTERNAL_H
#define ZN_CKPT_SAFETENSORS_INTERNAL_H

#include <stddef.h>

#include "base/fs.h"
#include "base/json.h"
#include "ckpt/safetensors.h"

/* Longest JSON header that is read; the format's own limit. */
#define ZN_ST_MAX_HEADER_BYTES ((size_t)100 * 1000 * 1000)

#define ZN_ST_SINGLE_NAME "model.safetensors"
#define ZN_ST_INDEX_NAME "model.safetensors.index.json"

/* An opened file. Zero-initialise; release with zn_st_file_close. */
typedef struct zn_st_file {
    char *path;
    zn_map map;
    json_t *header;          /* owns the names of `tensors` */
    zn_tensor_info *tensors; /* [n_tensors], by offset */
    int n_tensors;
} zn_st_file;

/** Read and check a file's header; `data`: and map it. Errors: E_IO, E_FORMAT, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_st_file_open(const char *path, bool data, zn_st_file *out);

/** Check the header at the beginning of a file of n_bytes, of which the first n_head are given, and
 *  fill header and tensors; file->path names it in messages. On failure the file is left for
 *  zn_st_file_close. */
ZINC_MUST_CHECK zinc_status zn_st_file_parse(zn_st_file *file, const unsigned char *head,
                                             size_t n_head, size_t n_bytes);

void zn_st_file_close(zn_st_file *file);

/** Number of elements of a shape, or -1 if a dimension is negative or the product (times the
 *  largest element size) does not fit. */
int64_t zn_st_n_elems(const int64_t *shape, int n_dims);

#endif
