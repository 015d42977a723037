/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h — safetensors files in and out, by range.
 *
 * Reading maps the files; a rank copies only the ranges it asks for. Writing lays the files out
 * first, from names, shapes and types alone, so that every rank writes its own ranges into the
 * final file and nothing is gathered:
 *
 *   create (every rank, the same tensors) -> begin (one rank) -> barrier -> write … -> flush
 *   (every rank) -> barrier -> commit (one rank)
 *
 * Nothing here is collective by itself. One object is used by one thread at a time. */
#ifndef ZINC_CHECKPOINT_H
#define ZINC_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "zinc/dtype.h"
#include "zinc/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZINC_TENSOR_MAX_DIMS 4

/* One tensor. Start from ZINC_TENSOR_INIT. */
typedef struct zinc_tensor {
    size_t struct_size;
    const char *name; /* reading: borrowed from the reader; writing: copied */
    zinc_dtype dtype;
    int n_dims; /* 0 … ZINC_TENSOR_MAX_DIMS */
    int64_t shape[ZINC_TENSOR_MAX_DIMS];
} zinc_tensor;

#define ZINC_TENSOR_INIT                                                                           \
    {                                                                                              \
        sizeof(zinc_tensor), NULL, ZINC_F32, 1,                                                    \
        {                                                                                          \
            1, 1, 1, 1                                                                             \
        }                                                                                          \
    }

typedef struct zinc_reader zinc_reader;

/** Open a model folder (model.safetensors, or an index and its shards) or one .safetensors file.
 *  *out is owned. Errors: E_IO; E_FORMAT names file, tensor and what is wrong. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_reader_open(const char *path, zinc_reader **out);
/** NULL is fine. */
ZINC_API void zinc_reader_close(zinc_reader *reader);
ZINC_API int zinc_reader_n_tensors(const zinc_reader *reader);
/** Number of the tensor called `name`, or -1. */
ZINC_API int zinc_reader_find(const zinc_reader *reader, const char *name);
/** Name, type and shape of tensor i. out->struct_size must be set. Errors: E_INVALID. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_reader_get(const zinc_reader *reader, int i,
                                                     zinc_tensor *out);
/** Elements [offset, offset + n) of tensor i as fp32 in out [n]. F32, BF16 and F16 only. Errors:
 *  E_INVALID, E_FORMAT. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_reader_read(const zinc_reader *reader, int i,
                                                      int64_t offset, int64_t n, float *out);

typedef struct zinc_writer zinc_writer;

/** Plan the files of a folder: model.safetensors, or model-0000i-of-0000n.safetensors and an index
 *  where max_shard_bytes > 0 is exceeded. Every rank makes the same plan; nothing is touched yet.
 *  tensors  [n_tensors], borrowed during the call; each with its own struct_size set
 *  *out is owned. Errors: E_INVALID. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_writer_create(const char *dir, const zinc_tensor *tensors,
                                                        int n_tensors, int64_t max_shard_bytes,
                                                        zinc_writer **out);
/** Make the temporary files, full length. One rank, before any write. Errors: E_IO (a full disk
 *  shows here). */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_writer_begin(zinc_writer *writer);
/** Write elements [offset, offset + n) of tensor i from fp32, rounded to its type. Ranges of
 *  different ranks do not overlap. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_writer_write(zinc_writer *writer, int i, int64_t offset,
                                                       int64_t n, const float *values);
/** Bring what this rank wrote to the disk. Every rank, before commit. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_writer_flush(zinc_writer *writer);
/** Give the files their names. One rank, after every rank has flushed. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_writer_commit(zinc_writer *writer);
/** Removes the temporary files that this rank began and did not commit. NULL is fine. */
ZINC_API void zinc_writer_destroy(zinc_writer *writer);

/** Write a DeepSpeed checkpoint (stages 0 to 3; the folder with `latest`, or one tag) as a Hugging
 *  Face folder, a few megabytes of memory at a time.
 *  model  folder with config.json and tokenizer; NULL: the checkpoint's own
 *  Errors: E_IO, E_FORMAT, E_UNSUPPORTED. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_export_deepspeed(const char *checkpoint,
                                                           const char *output, const char *model,
                                                           zinc_dtype dtype,
                                                           int64_t max_shard_bytes);

#ifdef __cplusplus
}
#endif

#endif
