/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/export.h"

#include <string.h>

#include "base/fs.h"
#include "ckpt/checkpoint.h"
#include "ckpt/ds_layout.h"
#include "ckpt/safetensors_internal.h"

#define CHUNK_ELEMS ((int64_t)1 << 20)

static zinc_status add_file(zn_export_report *report, const char *name)
{
    ZN_TRY(zn_realloc_array(&report->files, (size_t)report->n_files + 1, sizeof *report->files,
                            "file names"));
    ZN_TRY(zn_strdup(name, &report->files[report->n_files]));
    report->n_files++;
    return ZINC_OK;
}

/* Weights to be read by range, whoever wrote them. One of the two is there. */
typedef struct source {
    zn_ckpt *zinc;
    zn_ds_checkpoint *deepspeed;
    char *dir; /* the checkpoint folder itself */
} source;

static int source_n(const source *from)
{
    return from->zinc ? zn_ckpt_n(from->zinc) : zn_ds_n(from->deepspeed);
}

static int64_t source_elems(const source *from, int i)
{
    return from->zinc ? zn_ckpt_n_elems(from->zinc, i) : zn_ds_n_elems(from->deepspeed, i);
}

static zinc_status source_read(const source *from, int i, int64_t offset, int64_t n, float *out)
{
    return from->zinc ? zn_ckpt_read(from->zinc, i, ZN_CKPT_MASTER, offset, n, out)
                      : zn_ds_read(from->deepspeed, i, offset, n, out);
}

static void source_close(source *from)
{
    zn_ckpt_close(from->zinc);
    zn_ds_close(from->deepspeed);
    zn_free(from->dir);
}

/* The checkpoint folder that is meant by it or by the folder of its run. Free with zn_free. */
static zinc_status find_folder(const char *path, char **out)
{
    char *latest = NULL;
    if (!zn_ckpt_is(path) && zn_ckpt_latest(path, &latest) == ZINC_OK && zn_ckpt_is(latest)) {
        *out = latest;
        return ZINC_OK;
    }
    zn_free(latest);
    return zn_strdup(path, out);
}

static zinc_status source_open_nodes(const zn_export_params *params, source *out)
{
    zinc_status status;
    char **paths = NULL;
    const int n = params->n_more + 1;
    ZN_TRY_GOTO(zn_alloc_array(&paths, (size_t)n, sizeof *paths, "folders"));
    for (int i = 0; i < n; i++)
        ZN_TRY_GOTO(find_folder(i ? params->more[i - 1] : params->checkpoint, &paths[i]));
    ZN_TRY_GOTO(zn_strdup(paths[0], &out->dir));
    status = zn_ckpt_open_folders((const char *const *)paths, n, &out->zinc);
fail:
    for (int i = 0; paths && i < n; i++)
        zn_free(paths[i]);
    zn_free(paths);
    return status;
}

/* `path` is a checkpoint folder of Zinc's, or the folder of a run whose `latest` names one, or one
 * of DeepSpeed's. */
static zinc_status source_open(const char *path, source *out)
{
    char *latest = NULL;
    if (zn_ckpt_is(path)) {
        ZN_TRY(zn_strdup(path, &out->dir));
        return zn_ckpt_open(path, &out->zinc);
    }
    if (zn_ckpt_latest(path, &latest) == ZINC_OK && zn_ckpt_is(latest)) {
        out->dir = latest;
        return zn_ckpt_open(latest, &out->zinc);
    }
    zn_free(latest);
    ZN_TRY(zn_strdup(path, &out->dir));
    return zn_ds_open(path, &out->deepspeed);
}

static zinc_status plan_weights(const source *from, zn_dtype dtype, zn_tensor_plan **out)
{
    const int n = source_n(from);
    ZN_TRY(zn_alloc_array(out, (size_t)n, sizeof **out, "tensor plan"));
    for (int i = 0; i < n; i++) {
        (*out)[i] = from->zinc ? zn_ckpt_at(from->zinc, i) : zn_ds_at(from->deepspeed, i);
        (*out)[i].dtype = dtype;
    }
    return ZINC_OK;
}

static zinc_status copy_weight(const source *from, int i, zn_weights_writer *writer, float *chunk)
{
    const int64_t n_elems = source_elems(from, i);
    for (int64_t at = 0; at < n_elems;) {
        const int64_t left = n_elems - at;
        const int64_t n = left < CHUNK_ELEMS ? left : CHUNK_ELEMS;
        ZN_TRY(source_read(from, i, at, n, chunk));
        ZN_TRY(zn_weights_writer_write(writer, i, at, n, chunk));
        at += n;
    }
    return ZINC_OK;
}

static zinc_status write_weights(const source *from, const zn_export_params *params,
                                 zn_export_report *report)
{
    zinc_status status;
    zn_tensor_plan *plan = NULL;
    zn_weights_writer *writer = NULL;
    float *chunk = NULL;
    ZN_TRY_GOTO(plan_weights(from, params->dtype, &plan));
    ZN_TRY_GOTO(zn_alloc_array(&chunk, (size_t)CHUNK_ELEMS, sizeof *chunk, "export buffer"));
    ZN_TRY_GOTO(zn_weights_writer_create(params->output, plan, source_n(from),
                                         params->max_shard_bytes, &writer));
    ZN_TRY_GOTO(zn_weights_writer_begin(writer));
    for (int i = 0; i < source_n(from); i++) {
        ZN_TRY_GOTO(copy_weight(from, i, writer, chunk));
        if (from->zinc || !zn_ds_is_alias(from->deepspeed, i))
            report->n_params += source_elems(from, i);
    }
    ZN_TRY_GOTO(zn_weights_writer_flush(writer));
    ZN_TRY_GOTO(zn_weights_writer_commit(writer));
    for (int i = 0; i < zn_weights_writer_n_files(writer); i++)
        ZN_TRY_GOTO(add_file(report, zn_weights_writer_file(writer, i)));
    if (zn_weights_writer_n_files(writer) > 1)
        ZN_TRY_GOTO(add_file(report, ZN_ST_INDEX_NAME));
    status = ZINC_OK;
fail:
    zn_weights_writer_destroy(writer);
    zn_free(plan);
    zn_free(chunk);
    return status;
}

/* Trainers keep config.json beside `latest`, which may be the parent of what was named. */
static zinc_status copy_model_files(const zn_export_params *params, const char *dir, bool *copied)
{
    zinc_status status;
    char *dirs[2] = {NULL, NULL};
    char *config = NULL;
    const char *from = params->model;
    ZN_TRY_GOTO(zn_strdup(dir, &dirs[0]));
    ZN_TRY_GOTO(zn_fs_join(dir, "..", &dirs[1]));
    for (int i = 0; i < 2 && !from; i++) {
        ZN_TRY_GOTO(zn_fs_join(dirs[i], "config.json", &config));
        if (zn_fs_exists(config))
            from = dirs[i];
        zn_free(config);
        config = NULL;
    }
    if (from)
        ZN_TRY_GOTO(zn_model_files_copy(from, params->output, params->dtype));
    *copied = from != NULL;
    status = ZINC_OK;
fail:
    zn_free(dirs[0]);
    zn_free(dirs[1]);
    return status;
}

zinc_status zn_export(const zn_export_params *params, zn_export_report *report)
{
    zinc_status status;
    source from = {0};
    zn_export_report result = {0};
    ZN_TRY_GOTO(params->n_more > 0 ? source_open_nodes(params, &from)
                                   : source_open(params->checkpoint, &from));
    ZN_TRY_GOTO(write_weights(&from, params, &result));
    ZN_TRY_GOTO(copy_model_files(params, from.dir, &result.has_config));
    if (result.has_config)
        ZN_TRY_GOTO(add_file(&result, "config.json"));
    source_close(&from);
    *report = result;
    return ZINC_OK;
fail:
    source_close(&from);
    zn_export_report_fini(&result);
    return status;
}

void zn_export_report_fini(zn_export_report *report)
{
    for (int i = 0; i < report->n_files; i++)
        zn_free(report->files[i]);
    zn_free(report->files);
    memset(report, 0, sizeof *report);
}
