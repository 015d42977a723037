/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h — Hugging Face weights in and out, by range.
 *
 * Reading: a folder (model.safetensors, or model.safetensors.index.json and its shards) is mapped;
 * a rank reads only the ranges it keeps. Writing: offsets follow from names, shapes and types, so
 * every rank writes its own ranges straight into the final file and nothing is gathered.
 * Headers are hostile until checked: lengths, overlaps, holes, types, sizes, JSON depth.
 * Format: https://github.com/huggingface/safetensors (8-byte little-endian header length, JSON
 * header, data). Layer: ckpt (may use base, tensor). */
#ifndef ZN_CKPT_SAFETENSORS_H
#define ZN_CKPT_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "tensor/param.h"

/* One tensor of an opened folder. Borrowed from it. */
typedef struct zn_tensor_info {
    const char *name;
    zn_dtype dtype;
    int n_dims; /* 0..ZN_MAX_DIMS */
    int64_t shape[ZN_MAX_DIMS];
    int64_t n_elems;
    const char *file; /* path of the file it is in */
    int64_t position; /* of its first byte in the file */
    const unsigned char
        *data;   /* n_elems * size bytes; any alignment; NULL: only the header is read */
    bool mapped; /* data are a file mapping: pages that were read can be let go */
} zn_tensor_info;

typedef struct zn_weights zn_weights;

/** Open a model folder, or one .safetensors file. Not collective. Errors: E_IO; E_FORMAT names
 *  file, tensor and what is wrong (truncated, overlapping, unknown type, …). */
ZINC_MUST_CHECK zinc_status zn_weights_open(const char *path, zn_weights **out);
void zn_weights_close(zn_weights *weights);
int zn_weights_n(const zn_weights *weights);
const zn_tensor_info *zn_weights_at(const zn_weights *weights, int i);
/** The tensor called `name`, or NULL. */
const zn_tensor_info *zn_weights_find(const zn_weights *weights, const char *name);

/** Elements [offset, offset + n) of a tensor as fp32. F32, F16 and BF16 only (E_FORMAT else). */
ZINC_MUST_CHECK zinc_status zn_tensor_read(const zn_tensor_info *tensor, int64_t offset, int64_t n,
                                           float *out);

/* ---- writing ---- */

typedef struct zn_tensor_plan {
    const char *name;
    zn_dtype dtype; /* F32, BF16, F16, I32 … */
    int n_dims;
    int64_t shape[ZN_MAX_DIMS];
} zn_tensor_plan;

typedef struct zn_weights_writer zn_weights_writer;

/** Plan the files of a folder: model.safetensors, or model-00001-of-0000N.safetensors and the index
 *  when max_shard_bytes > 0 is exceeded. Every rank makes the same plan from the same arguments;
 *  nothing is touched yet. Names are copied. */
ZINC_MUST_CHECK zinc_status zn_weights_writer_create(const char *dir, const zn_tensor_plan *tensors,
                                                     int n_tensors, int64_t max_shard_bytes,
                                                     zn_weights_writer **out);
/** Make the temporary files (NAME.tmp), full length, headers written. One rank calls it, then all
 *  pass a barrier. Errors: E_IO (a full disk shows here). */
ZINC_MUST_CHECK zinc_status zn_weights_writer_begin(zn_weights_writer *writer);
/** Write elements [offset, offset + n) of tensor i from fp32, rounded to its type. Any rank; ranges
 *  of different ranks do not overlap. */
ZINC_MUST_CHECK zinc_status zn_weights_writer_write(zn_weights_writer *writer, int i,
                                                    int64_t offset, int64_t n, const float *values);
/** The same from raw little-endian elements of the tensor's own type: any type, no conversion. */
ZINC_MUST_CHECK zinc_status zn_weights_writer_write_raw(zn_weights_writer *writer, int i,
                                                        int64_t offset, int64_t n,
                                                        const void *elements);
/** fsync what this rank wrote. Every rank, before the barrier that precedes commit. */
ZINC_MUST_CHECK zinc_status zn_weights_writer_flush(zn_weights_writer *writer);
/** Rename the temporaries to their names, write the index, fsync the folder, re-read the headers
 *  and compare. One rank, after the barrier. */
ZINC_MUST_CHECK zinc_status zn_weights_writer_commit(zn_weights_writer *writer);
/** Number of files planned, and the name of the i-th (without the folder). Borrowed. */
int zn_weights_writer_n_files(const zn_weights_writer *writer);
const char *zn_weights_writer_file(const zn_weights_writer *writer, int i);
/** Close; removes temporaries that were begun by this rank and not committed. NULL is fine. */
void zn_weights_writer_destroy(zn_weights_writer *writer);

/** Whole files in one call, for tools and tests: values[i] is [n_elems] fp32. `path` is one file if
 *  it ends in .safetensors, else a folder (made if missing) that gets model.safetensors. */
ZINC_MUST_CHECK zinc_status zn_weights_save(const char *path, const zn_tensor_plan *tensors,
                                            int n_tensors, const float *const *values);

/** Copy config.json (with torch_dtype/dtype set to `dtype`), generation_config.json and the
 *  tokenizer files of a model folder to `to`. Missing optional files are skipped. `from` may also
 *  be a configuration file of any name: the copy is config.json, the others lie beside it. */
ZINC_MUST_CHECK zinc_status zn_model_files_copy(const char *from, const char *to, zn_dtype dtype);

#endif
