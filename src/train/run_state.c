/* SPDX-License-Identifier: Apache-2.0 */
#include "train/run_state.h"

#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/describe.h"

/* ---- what the run is ---- */

/* Of config.json without what saving a model changes in it. */
static zinc_status hash_config(const char *path, uint64_t *out)
{
    zinc_status status;
    json_t *config = NULL;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_json_load(path, &config));
    (void)json_object_del(config, "dtype"); /* fails if there is none */
    (void)json_object_del(config, "torch_dtype");
    ZN_TRY_GOTO(zn_json_append(config, &text));
    *out = zn_hash_bytes(0xcbf29ce484222325u, text.data, text.n);
    status = ZINC_OK;
fail:
    json_decref(config);
    zn_buf_fini(&text);
    return status;
}

static zinc_status hash_files(const zn_train_setup *s, zn_ckpt_meta *out)
{
    zinc_status status;
    char *path = NULL;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_fs_is_dir(s->o->model) ? zn_fs_join(s->o->model, "config.json", &path)
                                          : zn_strdup(s->o->model, &path));
    ZN_TRY_GOTO(hash_config(path, &out->model_hash));
    zn_free(path);
    path = NULL;
    ZN_TRY_GOTO(zn_train_tokenizer_path(s->o, &path));
    if (zn_fs_exists(path)) {
        ZN_TRY_GOTO(zn_fs_read(path, 0, &text));
        out->tokenizer_hash = zn_hash_bytes(0xcbf29ce484222325u, text.data, text.n);
    }
    status = ZINC_OK;
fail:
    zn_free(path);
    zn_buf_fini(&text);
    return status;
}

static const char *schedule_type(const zn_train_setup *s)
{
    return s->values->scheduler_type         ? s->values->scheduler_type
           : s->schedule.kind == ZN_LR_FIXED ? "fixed"
                                             : s->o->lr_scheduler_type;
}

zinc_status zn_run_state_fill(const zn_train_setup *setup, zn_ckpt_meta *out)
{
    zinc_status status;
    zn_ckpt_meta m = {.seed = setup->o->seed,
                      .shuffle = setup->o->shuffle,
                      .n_rows = zn_dataset_n_rows(setup->train),
                      .n_tokens = zn_dataset_n_tokens(setup->train),
                      .train_batch_size = setup->micro_batch * setup->accumulation * setup->n_ranks,
                      .n_states = setup->optim->n_states,
                      .stage = setup->values->zero.stage,
                      .n_ranks = setup->n_ranks};
    snprintf(m.optimizer, sizeof m.optimizer, "%s", setup->optim->name);
    snprintf(m.dtype, sizeof m.dtype, "%s", zn_describe_dtype(setup->values));
    for (int k = 0; k < m.n_states; k++)
        snprintf(m.state_names[k], sizeof m.state_names[k], "%s", setup->optim->state_names[k]);
    ZN_TRY_GOTO(hash_files(setup, &m));
    ZN_TRY_GOTO(zn_describe_schedule(&setup->schedule, schedule_type(setup), &m.schedule));
    ZN_TRY_GOTO(zn_describe_hyper(&setup->hyper, setup->optim->name, setup->decay_all, &m.hyper));
    ZN_TRY_GOTO(zn_describe_config(setup->config, &m.config));
    *out = m;
    return ZINC_OK;
fail:
    zn_ckpt_meta_fini(&m);
    return status;
}

/* ---- whether another may go on from it ---- */

static zinc_status refuse(const char *path, const char *what, int64_t saved, int64_t now,
                          const char *advice)
{
    ZN_FAIL(ZINC_E_CONFIG,
            "cannot resume from %s: it was made with %s %lld, and this run has %lld%s", path, what,
            (long long)saved, (long long)now, advice);
}

/* A program that gives its own batches (libzinc, Python) knows no training set. */
static bool has_no_rows(const zn_ckpt_meta *saved)
{
    return saved->n_rows == 0;
}

static zinc_status check_order(const zn_ckpt_meta *saved, const zn_ckpt_meta *now, const char *path)
{
    if (has_no_rows(saved))
        return ZINC_OK;
    if (saved->seed != now->seed)
        return refuse(path, "--seed", (int64_t)saved->seed, (int64_t)now->seed,
                      "; the order of the samples depends on it");
    if (saved->shuffle != now->shuffle)
        ZN_FAIL(ZINC_E_CONFIG,
                "cannot resume from %s: it was made with --shuffle %s, and this run has %s", path,
                saved->shuffle ? "true" : "false", now->shuffle ? "true" : "false");
    if (saved->n_rows != now->n_rows)
        return refuse(path, "a training set of rows:", saved->n_rows, now->n_rows,
                      "; give the same --train_file and --block_size");
    if (saved->n_tokens != now->n_tokens)
        return refuse(path, "a training set of tokens:", saved->n_tokens, now->n_tokens,
                      "; give the same --train_file and --block_size");
    return ZINC_OK;
}

static zinc_status check_batch(const zn_ckpt_meta *saved, const zn_ckpt_meta *now, const char *path)
{
    if (saved->train_batch_size != now->train_batch_size)
        return refuse(path, "train_batch_size", saved->train_batch_size, now->train_batch_size,
                      " (micro-batch x accumulation x ranks); change "
                      "--gradient_accumulation_steps or the micro-batch so that it is the same");
    return ZINC_OK;
}

static zinc_status check_optimizer(const zn_ckpt_meta *saved, const zn_ckpt_meta *now,
                                   const char *path)
{
    bool same = strcmp(saved->optimizer, now->optimizer) == 0 && saved->n_states == now->n_states;
    for (int k = 0; same && k < now->n_states; k++)
        same = strcmp(saved->state_names[k], now->state_names[k]) == 0;
    if (!same)
        ZN_FAIL(ZINC_E_CONFIG,
                "cannot resume from %s: it holds the state of the optimizer %s (%d tensors a "
                "weight), and this run has %s (%d)",
                path, saved->optimizer, saved->n_states, now->optimizer, now->n_states);
    return ZINC_OK;
}

static void tell_changes(const zn_ckpt_meta *saved, const zn_ckpt_meta *now)
{
    if (has_no_rows(saved))
        zn_info("train", "the checkpoint is of a program with batches of its own: the order of the "
                         "samples is this run's");
    if (saved->n_ranks != now->n_ranks || saved->stage != now->stage)
        zn_info("train", "the checkpoint is of %d ranks at stage %d; going on with %d at stage %d",
                saved->n_ranks, saved->stage, now->n_ranks, now->stage);
    if (strcmp(saved->dtype, now->dtype) != 0)
        zn_info("train", "the checkpoint is of a %s run; going on in %s from its fp32 masters",
                saved->dtype, now->dtype);
    if (!json_equal(saved->schedule, now->schedule))
        zn_info("train", "the learning rate schedule is not the checkpoint's: this run's is used");
    if (!json_equal(saved->hyper, now->hyper))
        zn_info("train", "the optimizer's numbers are not the checkpoint's: this run's are used");
    if (saved->model_hash && saved->model_hash != now->model_hash)
        zn_warn("train", "config.json is not the one that the checkpoint was made with");
    if (saved->tokenizer_hash && saved->tokenizer_hash != now->tokenizer_hash)
        zn_warn("train", "tokenizer.json is not the one that the checkpoint was made with");
}

zinc_status zn_run_state_check(const zn_train_setup *setup, const char *path,
                               const zn_ckpt_meta *saved, bool tell)
{
    zn_ckpt_meta now = {0};
    ZN_TRY(zn_run_state_fill(setup, &now));
    zinc_status status = check_order(saved, &now, path);
    if (status == ZINC_OK)
        status = check_batch(saved, &now, path);
    if (status == ZINC_OK)
        status = check_optimizer(saved, &now, path);
    if (status == ZINC_OK && tell)
        tell_changes(saved, &now);
    zn_ckpt_meta_fini(&now);
    return status;
}
