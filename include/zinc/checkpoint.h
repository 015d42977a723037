/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h — an engine's checkpoints, and safetensors files in and out by range.
 *
 * A checkpoint is a folder that `zinc train --resume_from_checkpoint`, `zinc export` and `zinc
 * checkpoint` read, and whose format docs/formats.md describes: every rank wrote what it keeps, and
 * any number of ranks in any stage takes it back.
 *
 * Safetensors: reading maps the files; a rank copies only the ranges it asks for. Writing lays the
 * files out first, from names, shapes and types alone, so that every rank writes its own ranges
 * into the final file and nothing is gathered:
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
#include "zinc/engine.h"
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

/* ---- checkpoints of an engine ---- */

/* What to save. Start from ZINC_SAVE_PARAMS_INIT and set dir. */
typedef struct zinc_save_params {
    size_t struct_size;
    const char *dir;   /* made if it is not there; the same on every rank */
    const char *name;  /* of the folder in it; NULL: checkpoint-STEP */
    int leave_frozen;  /* 1: parameters that are not trained are not saved */
    int keep_latest;   /* 1: DIR/latest stays what it is */
    int64_t n_samples; /* that were trained on so far; for people */
    /** Put the program's own files into `folder` (config.json, its own state), plain files that
     *  will be listed with their checksums. At most 32. Called on rank 0 alone. NULL: none. */
    zinc_status (*write_files)(void *ctx, const char *folder);
    void *ctx; /* handed to write_files */
} zinc_save_params;

#define ZINC_SAVE_PARAMS_INIT                                                                      \
    {                                                                                              \
        sizeof(zinc_save_params), NULL, NULL, 0, 0, 0, NULL, NULL                                  \
    }

/** Write the checkpoint DIR/NAME: masters, optimizer state and progress. Each rank writes what it
 *  keeps, and the folder gets its name when all of it is on the disk; one of that name that is
 *  there is replaced. Gradients of a step that is not complete are not saved. Collective. Errors:
 *  E_INVALID (a name that is no folder's), E_IO, E_NOMEM; a rank's failure is every rank's, and
 *  what was there before is then still there. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_save_checkpoint(zinc_engine *engine,
                                                                 const zinc_save_params *params);

typedef struct zinc_checkpoint zinc_checkpoint;

/** Open a checkpoint's folder, or the one that PATH/latest names. *out is owned; one thread at a
 *  time. Not collective. Errors: E_IO, E_FORMAT, E_UNSUPPORTED; each names the file. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_checkpoint_open(const char *path, zinc_checkpoint **out);
/** NULL is fine. */
ZINC_API void zinc_checkpoint_close(zinc_checkpoint *checkpoint);

/* Start from ZINC_CHECKPOINT_INFO_INIT. Texts are borrowed from the checkpoint. */
typedef struct zinc_checkpoint_info {
    size_t struct_size;
    const char *folder;    /* where it is */
    const char *optimizer; /* of the run that wrote it, as the next four */
    const char *dtype;     /* "float32", "bfloat16" or "float16" */
    int stage, n_ranks;
    int64_t train_batch_size; /* samples of a step */
    int64_t n_samples;        /* read so far */
    int n_params, n_states;
} zinc_checkpoint_info;

#define ZINC_CHECKPOINT_INFO_INIT                                                                  \
    {                                                                                              \
        sizeof(zinc_checkpoint_info), NULL, NULL, NULL, 0, 0, 0, 0, 0, 0                           \
    }

/** out->struct_size must be set. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_checkpoint_get_info(const zinc_checkpoint *checkpoint,
                                                              zinc_checkpoint_info *out);
/** Steps and loss scale, as zinc_engine_restore takes them. out->struct_size must be set. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_checkpoint_get_progress(const zinc_checkpoint *checkpoint,
                                                                  zinc_progress *out);
/** Name of optimizer state k; NULL if there is none. Borrowed. */
ZINC_API const char *zinc_checkpoint_state_name(const zinc_checkpoint *checkpoint, int state);
/** Number of the parameter called `name`, or -1. */
ZINC_API int zinc_checkpoint_find(const zinc_checkpoint *checkpoint, const char *name);

/** Name and shape of parameter i of a checkpoint; its dtype is F32. out->struct_size must be set.
 *  Errors: E_INVALID. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_checkpoint_get(const zinc_checkpoint *checkpoint, int i,
                                                         zinc_tensor *out);
/** Elements [offset, offset + n) of `what` (ZINC_MASTERS, or a state) of parameter i as fp32 in out
 *  [n], checked against the checksums. Errors: E_INVALID; E_FORMAT names file and parameter, also
 *  where a frozen one has no such state. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_checkpoint_read(zinc_checkpoint *checkpoint, int i,
                                                          int what, int64_t offset, int64_t n,
                                                          float *out);

/** Take back masters, optimizer state and progress, written by any number of ranks in any stage.
 *  Collective. Errors: E_CONFIG if the parameters or the optimizer are others; E_IO, E_FORMAT. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_engine_load_checkpoint(zinc_engine *engine,
                                                                 zinc_checkpoint *checkpoint);

/* ---- safetensors ---- */

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
