/* SPDX-License-Identifier: Apache-2.0 */
/* ds_files.c — which files a DeepSpeed checkpoint has, by their names. */
#include "ckpt/ds_internal.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "base/fs.h"
#include "ckpt/ds_layout.h"

#define MAX_RANKS 65536
#define MAX_TAG_BYTES 4096

/* What a folder's names say. Ranks are highest number + 1; 0: no such file. */
typedef struct census {
    bool has_shared_model;    /* mp_rank_00_model_states.pt */
    int model_ranks;          /* zero_pp_rank_R_mp_rank_00_model_states.pt */
    int optim_ranks;          /* [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt */
    const char *optim_prefix; /* "" or "bf16_" */
    char foreign[256];        /* a file of tensor, pipeline or expert parallelism */
} census;

/* Parse "PREFIX<number>SUFFIX". */
static bool numbered(const char *name, const char *prefix, const char *suffix, int *out)
{
    const size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0)
        return false;
    int64_t x = 0;
    const char *p = name + n;
    for (; *p >= '0' && *p <= '9' && x < MAX_RANKS; p++)
        x = 10 * x + (*p - '0');
    if (p == name + n || x >= MAX_RANKS || strcmp(p, suffix) != 0)
        return false;
    *out = (int)x;
    return true;
}

static bool ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name);
    const size_t m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static void count_name(census *c, const char *name)
{
    static const char model[] = "_mp_rank_00_model_states.pt";
    static const char optim[] = "_mp_rank_00_optim_states.pt";
    int rank;
    if (strcmp(name, "mp_rank_00_model_states.pt") == 0) {
        c->has_shared_model = true;
    } else if (numbered(name, "zero_pp_rank_", model, &rank)) {
        c->model_ranks = rank + 1 > c->model_ranks ? rank + 1 : c->model_ranks;
    } else if (numbered(name, "zero_pp_rank_", optim, &rank)) {
        c->optim_ranks = rank + 1 > c->optim_ranks ? rank + 1 : c->optim_ranks;
        c->optim_prefix = "";
    } else if (numbered(name, "bf16_zero_pp_rank_", optim, &rank)) {
        c->optim_ranks = rank + 1 > c->optim_ranks ? rank + 1 : c->optim_ranks;
        c->optim_prefix = "bf16_";
    } else if (ends_with(name, "_states.pt") && !c->foreign[0]) {
        strncpy(c->foreign, name, sizeof c->foreign - 1);
    }
}

static zinc_status count_files(const char *dir, census *out)
{
    DIR *d = opendir(dir);
    if (!d)
        ZN_FAIL(ZINC_E_IO, "cannot open the folder %s: %s", dir, strerror(errno));
    memset(out, 0, sizeof *out);
    out->optim_prefix = "";
    for (const struct dirent *e; (e = readdir(d));)
        count_name(out, e->d_name);
    closedir(d);
    return ZINC_OK;
}

/* The folder of the tag that `latest` names, or the path itself. */
static zinc_status tag_folder(const char *path, char **out)
{
    zinc_status status;
    char *latest = NULL;
    zn_buf tag = {0};
    ZN_TRY_GOTO(zn_fs_join(path, "latest", &latest));
    if (!zn_fs_exists(latest)) {
        ZN_TRY_GOTO(zn_strdup(path, out));
    } else {
        ZN_TRY_GOTO(zn_fs_read(latest, MAX_TAG_BYTES, &tag));
        tag.data[strcspn(tag.data, "\r\n")] = '\0';
        if (tag.data[0] == '\0' || strchr(tag.data, '/') || strcmp(tag.data, "..") == 0)
            ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s: \"%.200s\" is not the name of a folder beside it",
                         latest, tag.data);
        ZN_TRY_GOTO(zn_fs_join(path, tag.data, out));
    }
    status = ZINC_OK;
fail:
    zn_free(latest);
    zn_buf_fini(&tag);
    return status;
}

bool zn_ds_is_checkpoint(const char *path)
{
    char *dir = NULL;
    census c;
    bool found = false;
    if (tag_folder(path, &dir) == ZINC_OK && count_files(dir, &c) == ZINC_OK)
        found = c.has_shared_model || c.model_ranks > 0 || c.optim_ranks > 0 || c.foreign[0];
    zn_free(dir);
    return found;
}

static zinc_status open_ranks(const char *dir, const char *prefix, const char *suffix, int n,
                              zn_torch_file ***files, int *n_files)
{
    ZN_TRY(zn_alloc_array(files, (size_t)n, sizeof **files, "checkpoint files"));
    *n_files = n;
    for (int r = 0; r < n; r++) {
        char *path = NULL;
        ZN_TRY(zn_format(&path, "%s/%szero_pp_rank_%d_mp_rank_00_%s_states.pt", dir, prefix, r,
                         suffix));
        const zinc_status status = zn_torch_open(path, &(*files)[r]);
        zn_free(path);
        if (status == ZINC_E_IO)
            zn_error_prefix("the checkpoint %s lacks the file of rank %d: ", dir, r);
        ZN_TRY(status);
    }
    return ZINC_OK;
}

static zinc_status open_all(zn_ds_files *files)
{
    census c;
    ZN_TRY(count_files(files->dir, &c));
    if (c.foreign[0])
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "%s holds %s: checkpoints of tensor, pipeline or expert parallel runs cannot be "
                "read",
                files->dir, c.foreign);
    if (c.has_shared_model) {
        char *path = NULL;
        ZN_TRY(zn_alloc_array(&files->models, 1, sizeof *files->models, "checkpoint files"));
        files->n_models = 1;
        ZN_TRY(zn_fs_join(files->dir, "mp_rank_00_model_states.pt", &path));
        const zinc_status status = zn_torch_open(path, &files->models[0]);
        zn_free(path);
        ZN_TRY(status);
    } else if (c.model_ranks > 0) {
        ZN_TRY(
            open_ranks(files->dir, "", "model", c.model_ranks, &files->models, &files->n_models));
    } else {
        ZN_FAIL(ZINC_E_IO, "%s holds no *_model_states.pt: it is no DeepSpeed checkpoint",
                files->dir);
    }
    if (c.optim_ranks > 0)
        ZN_TRY(open_ranks(files->dir, c.optim_prefix, "optim", c.optim_ranks, &files->optims,
                          &files->n_ranks));
    return ZINC_OK;
}

zinc_status zn_ds_files_open(const char *path, zn_ds_files *out)
{
    zinc_status status;
    zn_ds_files files = {0};
    ZN_TRY_GOTO(tag_folder(path, &files.dir));
    ZN_TRY_GOTO(open_all(&files));
    *out = files;
    return ZINC_OK;
fail:
    zn_ds_files_close(&files);
    return status;
}

void zn_ds_files_close(zn_ds_files *files)
{
    for (int i = 0; i < files->n_models; i++)
        zn_torch_close(files->models[i]);
    for (int i = 0; i < files->n_ranks; i++)
        zn_torch_close(files->optims[i]);
    zn_free(files->models);
    zn_free(files->optims);
    zn_free(files->dir);
    memset(files, 0, sizeof *files);
}
