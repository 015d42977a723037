/* SPDX-License-Identifier: Apache-2.0 */
/* api_checkpoint.c — an engine's checkpoints: saving, looking into one, taking one back. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ckpt/checkpoint.h"
#include "engine/describe.h"
#include "engine/engine_ckpt.h"
#include "zinc/checkpoint.h"

#define MAX_OWN_FILES 32 /* of the program, as the header says */

struct zinc_checkpoint {
    zn_ckpt *ckpt;
};

/* ---- what checkpoints say of the run ---- */

zinc_status zn_api_describe(zinc_engine *engine, const zn_config *config)
{
    const zn_config_values *const v = zn_config_get(config);
    engine->about.dtype = zn_describe_dtype(v);
    engine->about.train_batch_size = v->train_batch_size;
    ZN_TRY(zn_describe_config(config, &engine->about.config));
    ZN_TRY(zn_describe_schedule(&engine->schedule, v->scheduler_type ? v->scheduler_type : "fixed",
                                &engine->about.schedule));
    return zn_describe_hyper(&engine->base, engine->optim_full->name, true, &engine->about.hyper);
}

/* ---- saving ---- */

typedef struct saving {
    zinc_engine *engine;
    const zinc_save_params *p;
    zn_comm *comm;
    int rank, n_ranks;
    bool *left_out;     /* [engine->list.n_specs] */
    zn_param_list list; /* of what is saved */
    zn_snapshot snapshot;
    char *dir;           /* the .tmp folder; NULL until rank 0 has made it */
    zn_ckpt_file own[2]; /* of this rank's part */
    zn_ckpt_file *files; /* [2 * n_ranks + MAX_OWN_FILES] rank r's part at 2 r; the program's */
    int n_files;
} saving;

static zinc_status plan(saving *s)
{
    zinc_engine *const e = s->engine;
    ZN_TRY(zn_alloc_array(&s->files, 2 * (size_t)s->n_ranks + MAX_OWN_FILES, sizeof *s->files,
                          "checkpoint files"));
    ZN_TRY(zn_alloc_array(&s->left_out, (size_t)e->list.n_specs, sizeof *s->left_out,
                          "parameters to save"));
    ZN_TRY(zn_param_list_add_unit(&s->list, "saved", NULL));
    for (int i = 0; i < e->list.n_specs; i++) {
        zn_param_spec spec = e->list.specs[i];
        spec.unit = 0;
        s->left_out[i] = s->p->leave_frozen && !spec.trainable;
        if (!s->left_out[i])
            ZN_TRY(zn_param_list_add(&s->list, &spec, NULL));
    }
    if (s->list.n_specs == 0)
        ZN_FAIL(ZINC_E_INVALID,
                "every parameter is frozen, and leave_frozen leaves nothing to save");
    s->n_files = 2 * s->n_ranks;
    s->snapshot = (zn_snapshot){.zero = e->zero, .optim = e->optim, .left_out = s->left_out};
    return zn_snapshot_plan(&s->snapshot);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static const char *folder_name(const saving *s, char *buf, size_t n_bytes)
{
    if (s->p->name)
        return s->p->name;
    snprintf(buf, n_bytes, "checkpoint-%lld",
             (long long)(s->engine->n_applied + s->engine->n_skipped));
    return buf;
}

static zinc_status begin(saving *s)
{
    char buf[64];
    const char *const name = folder_name(s, buf, sizeof buf);
    ZN_TRY(plan(s));
    if (s->rank != 0)
        return ZINC_OK;
    ZN_TRY(zn_fs_mkdirs(s->p->dir));
    return zn_ckpt_begin_named(s->p->dir, name, &s->dir);
}

static zinc_status write_part(saving *s, const char *dir)
{
    zinc_status status;
    zn_part *part = NULL;
    const zn_part_params params = {.dir = dir,
                                   .rank = s->rank,
                                   .n_ranks = s->n_ranks,
                                   .list = &s->engine->list,
                                   .state_names =
                                       s->engine->optim ? s->engine->optim->state_names : NULL,
                                   .ranges = s->snapshot.ranges,
                                   .n_ranges = s->snapshot.n_ranges};
    ZN_TRY_GOTO(zn_part_create(&params, &part));
    ZN_TRY_GOTO(zn_snapshot_write(&s->snapshot, part));
    status = zn_part_finish(part, s->own);
fail:
    zn_part_destroy(part);
    return status;
}

/* This rank's part, and on rank 0 the program's files. */
static zinc_status write_files(saving *s)
{
    zinc_status status;
    char buf[64], *dir = NULL;
    ZN_TRY(zn_format(&dir, "%s/%s.tmp", s->p->dir, folder_name(s, buf, sizeof buf)));
    ZN_TRY_GOTO(write_part(s, dir));
    if (s->rank == 0 && s->p->write_files)
        ZN_TRY_GOTO(s->p->write_files(s->p->ctx, dir));
    if (s->rank == 0)
        ZN_TRY_GOTO(
            zn_ckpt_other_files(dir, s->files, 2 * s->n_ranks + MAX_OWN_FILES, &s->n_files));
    status = ZINC_OK;
fail:
    zn_free(dir);
    return status;
}

/* Texts and objects are borrowed from the engine. */
static zn_ckpt_meta describe(const saving *s)
{
    zinc_engine *const e = s->engine;
    zn_ckpt_meta m = {.step = e->n_applied + e->n_skipped,
                      .n_applied = e->n_applied,
                      .n_skipped = e->n_skipped,
                      .n_samples = s->p->n_samples,
                      .train_batch_size = e->about.train_batch_size,
                      .scaler = e->scaler,
                      .n_states = zinc_engine_n_states(e),
                      .stage = (int)e->zero_params.stage,
                      .n_ranks = s->n_ranks,
                      .created_ns = now_ns(),
                      .schedule = e->about.schedule,
                      .hyper = e->about.hyper,
                      .config = e->about.config};
    if (!e->about.run)
        e->about.run = zn_hash_fold((uint64_t)m.created_ns, (uint64_t)getpid());
    m.run_id = e->about.run;
    snprintf(m.optimizer, sizeof m.optimizer, "%s", e->optim ? e->optim->name : "none");
    snprintf(m.dtype, sizeof m.dtype, "%s", e->about.dtype);
    for (int k = 0; k < m.n_states; k++)
        snprintf(m.state_names[k], sizeof m.state_names[k], "%s", e->optim->state_names[k]);
    return m;
}

static zinc_status publish(saving *s)
{
    char buf[64];
    if (s->rank != 0)
        return ZINC_OK;
    const zn_ckpt_meta meta = describe(s);
    return zn_ckpt_publish(&(zn_publish_params){.output = s->p->dir,
                                                .name = folder_name(s, buf, sizeof buf),
                                                .keep_latest = s->p->keep_latest != 0,
                                                .meta = &meta,
                                                .list = &s->list,
                                                .files = s->files,
                                                .n_files = s->n_files});
}

zinc_status zinc_engine_save_checkpoint(zinc_engine *engine, const zinc_save_params *params)
{
    zinc_status status;
    zinc_save_params p = ZINC_SAVE_PARAMS_INIT;
    ZN_API_NEED(engine);
    ZN_TRY(zn_api_take(&p, sizeof p, params, "zinc_save_params"));
    ZN_TRY(zn_api_check_built(engine));
    if (!p.dir || !*p.dir)
        ZN_FAIL(ZINC_E_INVALID, "save_checkpoint: no folder was given");
    zn_comm *const comm = engine->rank->comm;
    saving s = {.engine = engine,
                .p = &p,
                .comm = comm,
                .rank = zn_comm_rank(comm),
                .n_ranks = zn_comm_n_ranks(comm)};
    ZN_TRY_GOTO(zn_comm_agree(comm, begin(&s)));
    ZN_TRY_GOTO(zn_comm_agree(comm, write_files(&s)));
    ZN_TRY_GOTO(zn_comm_exchange(comm, s.own, sizeof s.own, s.files, "the files of a checkpoint"));
    ZN_TRY_GOTO(zn_comm_agree(comm, publish(&s)));
    status = ZINC_OK;
fail:
    if (status != ZINC_OK && s.dir)
        zn_ckpt_discard_named(s.dir);
    zn_snapshot_fini(&s.snapshot);
    zn_param_list_fini(&s.list);
    zn_free(s.left_out);
    zn_free(s.files);
    zn_free(s.dir);
    return status;
}

/* ---- looking into one ---- */

/* The folder that is meant. A kill between two renames leaves what `latest` names as NAME.old. */
static zinc_status find_folder(const char *path, char **out)
{
    char *folder = NULL, *old = NULL;
    if (zn_ckpt_is(path))
        return zn_strdup(path, out);
    if (!zn_fs_is_dir(path))
        ZN_FAIL(ZINC_E_IO, "%s: there is no such checkpoint", path);
    if (zn_ckpt_latest(path, &folder) != ZINC_OK)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s is no checkpoint: it has neither " ZN_CKPT_MANIFEST " nor `latest`", path);
    if (!zn_fs_exists(folder) && zn_format(&old, "%s.old", folder) == ZINC_OK && zn_ckpt_is(old)) {
        zn_free(folder);
        *out = old;
        return ZINC_OK;
    }
    zn_free(old);
    *out = folder;
    return ZINC_OK;
}

zinc_status zinc_checkpoint_open(const char *path, zinc_checkpoint **out)
{
    zinc_status status;
    char *folder = NULL;
    zinc_checkpoint *checkpoint = NULL;
    ZN_API_NEED(path);
    ZN_API_NEED(out);
    ZN_TRY_GOTO(find_folder(path, &folder));
    ZN_TRY_GOTO(zn_alloc(&checkpoint, sizeof *checkpoint, "a checkpoint"));
    ZN_TRY_GOTO(zn_ckpt_open(folder, &checkpoint->ckpt));
    zn_free(folder);
    *out = checkpoint;
    return ZINC_OK;
fail:
    zn_free(folder);
    zinc_checkpoint_close(checkpoint);
    return status;
}

void zinc_checkpoint_close(zinc_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    zn_ckpt_close(checkpoint->ckpt);
    zn_free(checkpoint);
}

zinc_status zinc_checkpoint_get_info(const zinc_checkpoint *checkpoint, zinc_checkpoint_info *out)
{
    ZN_API_NEED(checkpoint);
    const zn_ckpt_meta *const m = zn_ckpt_get_meta(checkpoint->ckpt);
    const zinc_checkpoint_info known = {.folder = zn_ckpt_folder(checkpoint->ckpt),
                                        .optimizer = m->optimizer,
                                        .dtype = m->dtype,
                                        .stage = m->stage,
                                        .n_ranks = m->n_ranks,
                                        .train_batch_size = m->train_batch_size,
                                        .n_samples = m->n_samples,
                                        .n_params = zn_ckpt_n(checkpoint->ckpt),
                                        .n_states = m->n_states};
    return zn_api_give(&known, sizeof known, out, "zinc_checkpoint_info");
}

zinc_status zinc_checkpoint_get_progress(const zinc_checkpoint *checkpoint, zinc_progress *out)
{
    ZN_API_NEED(checkpoint);
    const zn_ckpt_meta *const m = zn_ckpt_get_meta(checkpoint->ckpt);
    const zinc_progress known = {.n_applied = m->n_applied,
                                 .n_skipped = m->n_skipped,
                                 .loss_scale = m->scaler.scale,
                                 .hysteresis_left = m->scaler.hysteresis_left,
                                 .scale_steps = m->scaler.iteration,
                                 .last_overflow = m->scaler.last_overflow};
    return zn_api_give(&known, sizeof known, out, "zinc_progress");
}

const char *zinc_checkpoint_state_name(const zinc_checkpoint *checkpoint, int state)
{
    const zn_ckpt_meta *const m = checkpoint ? zn_ckpt_get_meta(checkpoint->ckpt) : NULL;
    return m && state >= 0 && state < m->n_states ? m->state_names[state] : NULL;
}

int zinc_checkpoint_find(const zinc_checkpoint *checkpoint, const char *name)
{
    return checkpoint && name ? zn_ckpt_find(checkpoint->ckpt, name) : -1;
}

static zinc_status check_param(const zinc_checkpoint *checkpoint, int i)
{
    if (i < 0 || i >= zn_ckpt_n(checkpoint->ckpt))
        ZN_FAIL(ZINC_E_INVALID, "there is no parameter %d: the checkpoint has %d", i,
                zn_ckpt_n(checkpoint->ckpt));
    return ZINC_OK;
}

zinc_status zinc_checkpoint_get(const zinc_checkpoint *checkpoint, int i, zinc_tensor *out)
{
    zinc_tensor known = ZINC_TENSOR_INIT;
    ZN_API_NEED(checkpoint);
    ZN_TRY(check_param(checkpoint, i));
    const zn_tensor_plan plan = zn_ckpt_at(checkpoint->ckpt, i);
    known.name = plan.name;
    known.n_dims = plan.n_dims;
    for (int d = 0; d < plan.n_dims; d++)
        known.shape[d] = plan.shape[d];
    return zn_api_give(&known, sizeof known, out, "zinc_tensor");
}

zinc_status zinc_checkpoint_read(zinc_checkpoint *checkpoint, int i, int what, int64_t offset,
                                 int64_t n, float *out)
{
    ZN_API_NEED(checkpoint);
    ZN_TRY(check_param(checkpoint, i));
    if (what < ZINC_MASTERS || what >= zn_ckpt_get_meta(checkpoint->ckpt)->n_states)
        ZN_FAIL(ZINC_E_INVALID, "there is no optimizer state %d: the checkpoint has %d", what,
                zn_ckpt_get_meta(checkpoint->ckpt)->n_states);
    ZN_TRY(zn_api_check_range(zn_ckpt_at(checkpoint->ckpt, i).name,
                              zn_ckpt_n_elems(checkpoint->ckpt, i), offset, n, out));
    return zn_ckpt_read(checkpoint->ckpt, i, what, offset, n, out);
}

/* ---- taking one back ---- */

static zinc_status check_optimizer(const zinc_engine *engine, const zn_ckpt_meta *m)
{
    bool same = m->n_states == zinc_engine_n_states(engine);
    for (int k = 0; same && k < m->n_states; k++)
        same = strcmp(m->state_names[k], engine->optim->state_names[k]) == 0;
    if (!same)
        ZN_FAIL(ZINC_E_CONFIG,
                "the checkpoint holds the state of the optimizer %s (%d tensors a weight), and "
                "this engine has %s (%d)",
                m->optimizer, m->n_states, engine->optim ? engine->optim->name : "none",
                zinc_engine_n_states(engine));
    return ZINC_OK;
}

zinc_status zinc_engine_load_checkpoint(zinc_engine *engine, zinc_checkpoint *checkpoint)
{
    ZN_API_NEED(engine);
    ZN_API_NEED(checkpoint);
    ZN_TRY(zn_api_check_between(engine, "load_checkpoint"));
    zn_comm *const comm = engine->rank->comm;
    const zn_ckpt_meta *const m = zn_ckpt_get_meta(checkpoint->ckpt);
    ZN_TRY(zn_comm_agree(comm, check_optimizer(engine, m)));
    ZN_TRY(zn_zero_restore_ckpt(engine->zero, comm, &engine->list, checkpoint->ckpt));
    const zn_loss_scaler *const was = &m->scaler;
    const zinc_progress progress = {.n_applied = m->n_applied,
                                    .n_skipped = m->n_skipped,
                                    .loss_scale = was->dynamic ? was->scale : 0,
                                    .hysteresis_left = was->hysteresis_left,
                                    .scale_steps = was->iteration,
                                    .last_overflow = was->last_overflow};
    zn_api_set_progress(engine, &progress);
    return ZINC_OK;
}
