/* SPDX-License-Identifier: Apache-2.0 */
/* resume.c — which checkpoint a run goes on from, and its state back into the engine. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "engine/engine_ckpt.h"
#include "train/run_state.h"

static bool means_latest(const char *text)
{
    return text[0] == '\0' || strcmp(text, "latest") == 0 || strcmp(text, "true") == 0;
}

/* Newest complete checkpoint of the output folder, or NULL. Free with zn_free. */
static char *newest(const char *output)
{
    zn_ckpt_entry *entries = NULL;
    char *path = NULL;
    int n = 0;
    if (zn_ckpt_list(output, &entries, &n) != ZINC_OK)
        return NULL;
    for (int i = n - 1; i >= 0 && !path; i--)
        if (!entries[i].trouble && zn_strdup(entries[i].path, &path) != ZINC_OK)
            break;
    zn_ckpt_list_free(entries, n);
    return path;
}

/* The message of why it cannot be resumed from becomes the first half of what to do instead. */
static zinc_status offer(const char *output, zinc_status status)
{
    zn_error why;
    zn_error_save(&why, status);
    char *other = newest(output);
    if (!other)
        ZN_FAIL(status,
                "%.2000s; %s holds no complete checkpoint: start anew without "
                "--resume_from_checkpoint (with --overwrite_output_dir)",
                why.message, output);
    zn_ignore(zn_error_set(status, __FILE__, __LINE__, __func__,
                           "%.2000s; the newest complete checkpoint is %s: to go on from it, "
                           "pass --resume_from_checkpoint %s",
                           why.message, other, other));
    zn_free(other);
    return status;
}

/* The folder that is meant. */
static zinc_status choose(const zn_train_options *o, zn_train_resume *out)
{
    if (means_latest(o->resume)) {
        const zinc_status status = zn_ckpt_latest(o->output_dir, &out->dir);
        return status == ZINC_OK ? status : offer(o->output_dir, status);
    }
    if (!zn_fs_is_dir(o->resume))
        return offer(o->output_dir,
                     zn_error_set(ZINC_E_IO, __FILE__, __LINE__, __func__,
                                  "--resume_from_checkpoint %s: there is no such folder",
                                  o->resume));
    if (zn_ckpt_is(o->resume))
        return zn_strdup(o->resume, &out->dir);
    if (zn_ds_is_checkpoint(o->resume)) {
        out->deepspeed = true;
        return zn_strdup(o->resume, &out->dir);
    }
    if (zn_ckpt_latest(o->resume, &out->dir) == ZINC_OK)
        return ZINC_OK;
    return offer(o->output_dir,
                 zn_error_set(ZINC_E_FORMAT, __FILE__, __LINE__, __func__,
                              "--resume_from_checkpoint %s: the folder has neither %s nor `latest`",
                              o->resume, ZN_CKPT_MANIFEST));
}

static bool newer(const char *output, const char *name, const struct stat *than)
{
    struct stat st;
    char *path = NULL;
    if (zn_fs_join(output, name, &path) != ZINC_OK)
        return false;
    const bool there = stat(path, &st) == 0;
    zn_free(path);
    return there && (st.st_mtim.tv_sec != than->st_mtim.tv_sec
                         ? st.st_mtim.tv_sec > than->st_mtim.tv_sec
                         : st.st_mtim.tv_nsec >= than->st_mtim.tv_nsec);
}

/* Whether the finished model was written after the last checkpoint. */
static bool model_is_saved(const char *output, const char *dir)
{
    struct stat st;
    char *manifest = NULL;
    if (zn_fs_join(dir, ZN_CKPT_MANIFEST, &manifest) != ZINC_OK)
        return false;
    const bool there = stat(manifest, &st) == 0;
    zn_free(manifest);
    return there && (newer(output, "model.safetensors", &st) ||
                     newer(output, "model.safetensors.index.json", &st));
}

static zinc_status check_zinc(zn_train_setup *s, bool tell)
{
    zn_ckpt_meta meta = {0};
    int64_t n_bytes;
    zn_train_resume *r = &s->resume;
    zinc_status status = zn_ckpt_read_meta(r->dir, &meta, &n_bytes);
    if (status != ZINC_OK)
        return offer(s->o->output_dir, status);
    status = zn_run_state_check(s, r->dir, &meta, tell);
    r->step = meta.step;
    r->run_id = meta.run_id;
    zn_ckpt_meta_fini(&meta);
    if (status != ZINC_OK)
        return status;
    r->nothing_left = r->step >= s->max_steps && model_is_saved(s->o->output_dir, r->dir);
    if (tell && r->nothing_left)
        zn_info("train", "%s is at step %lld of %lld and the model is saved: nothing left to do",
                r->dir, (long long)r->step, (long long)s->max_steps);
    else if (tell)
        zn_info("train", "going on after step %lld of %s", (long long)r->step, r->dir);
    return ZINC_OK;
}

/* DeepSpeed does not keep the order of the samples: it is this run's own. */
static zinc_status check_ds_counts(const zn_train_setup *s, int64_t steps, int64_t skipped,
                                   int64_t samples)
{
    const int64_t batch = s->micro_batch * s->accumulation * s->n_ranks;
    if (steps < 0 || skipped < 0 || skipped > steps)
        ZN_FAIL(ZINC_E_FORMAT, "%s does not say how many steps were done", s->resume.dir);
    if (steps > 0 && samples >= 0 && samples != steps * batch)
        ZN_FAIL(ZINC_E_CONFIG,
                "cannot resume from %s: it was made with train_batch_size %lld, and this run has "
                "%lld (micro-batch x accumulation x ranks)",
                s->resume.dir, (long long)(samples / steps), (long long)batch);
    return ZINC_OK;
}

static zinc_status check_deepspeed(zn_train_setup *s, bool tell)
{
    zn_ds_checkpoint *ckpt = NULL;
    zn_loss_scaler scaler;
    int64_t steps, skipped, samples;
    ZN_TRY(zn_ds_open(s->resume.dir, &ckpt));
    zn_ds_progress(ckpt, &steps, &skipped, &samples);
    if (tell)
        zn_info("train",
                "going on after step %lld of the DeepSpeed checkpoint %s (%d ranks, stage %d): "
                "weights, optimizer state, counts%s; the order of the samples is this run's",
                (long long)steps, s->resume.dir, zn_ds_n_ranks(ckpt) > 0 ? zn_ds_n_ranks(ckpt) : 1,
                zn_ds_stage(ckpt),
                s->values->fp16.enabled && zn_ds_scaler(ckpt, &scaler) ? " and the loss scale"
                                                                       : "");
    zn_ds_close(ckpt);
    s->resume.step = steps;
    return check_ds_counts(s, steps, skipped, samples);
}

zinc_status zn_train_resume_find(zn_train_setup *setup, bool tell)
{
    if (!setup->o->resume)
        return ZINC_OK;
    ZN_TRY(choose(setup->o, &setup->resume));
    return setup->resume.deepspeed ? check_deepspeed(setup, tell) : check_zinc(setup, tell);
}

static zinc_status restore_zinc(const zn_train_setup *s, zn_engine *engine)
{
    zn_ckpt *ckpt = NULL;
    zinc_status status =
        zn_ckpt_open_nodes(zn_engine_comm(engine), s->resume.dir, s->o->output_dir, &ckpt);
    if (status == ZINC_OK)
        status = zn_engine_fetch(engine, ckpt, s->o->output_dir);
    if (status == ZINC_OK)
        status = zn_engine_restore(engine, ckpt);
    zn_ckpt_close(ckpt);
    return status;
}

static zinc_status restore_deepspeed(const zn_train_setup *s, zn_engine *engine)
{
    zn_ds_checkpoint *ckpt = NULL;
    zinc_status status = zn_comm_agree(zn_engine_comm(engine), zn_ds_open(s->resume.dir, &ckpt));
    if (status == ZINC_OK)
        status = zn_engine_restore_ds(engine, &s->spec, s->optim, ckpt);
    zn_ds_close(ckpt);
    return status;
}

zinc_status zn_train_load_state(const zn_train_setup *setup, zn_engine *engine)
{
    if (setup->resume.dir) {
        ZN_TRY(setup->resume.deepspeed ? restore_deepspeed(setup, engine)
                                       : restore_zinc(setup, engine));
        return zn_engine_set_source(engine, setup->o->from_scratch ? NULL : setup->o->model,
                                    setup->o->seed);
    }
    return setup->o->from_scratch ? zn_engine_random(engine, setup->o->seed)
                                  : zn_engine_load(engine, setup->o->model);
}
