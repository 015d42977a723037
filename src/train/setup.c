/* SPDX-License-Identifier: Apache-2.0 */
/* setup.c — everything that is the same on every rank, done once a process before ranks start. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"
#include "ckpt/checkpoint.h"
#include "engine/freeze.h"
#include "engine/hyper.h"
#include "train/train_internal.h"

#define LOCK_SECONDS 5.0 /* a killed run's processes take a moment to go */

#define TRACE_SPANS ((int64_t)200000) /* about 20 MB; the first steps of a long run */

void zn_train_defaults(zn_train_options *out)
{
    *out = (zn_train_options){.max_steps = -1,
                              .num_train_epochs = 3,
                              .lr_scheduler_type = "linear",
                              .logging_steps = 500,
                              .save_steps = 500,
                              .async_save = true,
                              .seed = 42,
                              .shuffle = true,
                              .share_parameters = true,
                              .dropout = NAN,
                              .ranks = 1,
                              .comm = "thread",
                              .device = "cpu",
                              .timeout_s = 600};
}

static bool has_extension(const char *path, const char *extension)
{
    const size_t n = strlen(path), m = strlen(extension);
    return n >= m && strcmp(path + n - m, extension) == 0;
}

/* ---- model and data ---- */

static zinc_status load_spec(zn_train_setup *s)
{
    const zn_train_options *o = s->o;
    ZN_TRY(zn_model_spec_load(o->model, &s->spec));
    if (!isnan(o->dropout)) {
        s->spec.embed_dropout = (float)o->dropout;
        s->spec.attn_dropout = (float)o->dropout;
        s->spec.resid_dropout = (float)o->dropout;
    }
    s->save_dtype = s->spec.dtype;
    if (o->save_dtype && (zn_dtype_parse(o->save_dtype, &s->save_dtype) != 0))
        ZN_FAIL(ZINC_E_CONFIG, "--save_dtype %s: float32, bfloat16 and float16 are known",
                o->save_dtype);
    const int64_t most = s->spec.max_positions;
    s->block_size = o->block_size ? o->block_size : (most < 1024 ? most : 1024);
    if (s->spec.learned_positions && s->block_size > most)
        ZN_FAIL(ZINC_E_CONFIG, "--block_size %lld is more than the %lld positions of %s",
                (long long)s->block_size, (long long)most, o->model);
    return ZINC_OK;
}

zinc_status zn_train_param_list(const zn_train_setup *setup, zn_param_list *out)
{
    ZN_TRY(zn_model_param_list(&setup->spec, out));
    return zn_freeze_parameters(out, setup->o->freeze, setup->o->n_freeze);
}

/* A pattern that matches nothing is told before anything slow. */
static zinc_status check_freeze(const zn_train_setup *s)
{
    zn_param_list list = {0};
    const zinc_status status = zn_train_param_list(s, &list);
    zn_param_list_fini(&list);
    return status;
}

/* --tokenizer, else beside the model's config.json. */
zinc_status zn_train_tokenizer_path(const zn_train_options *o, char **out)
{
    const char *from = o->tokenizer ? o->tokenizer : o->model;
    if (zn_fs_is_dir(from))
        return zn_fs_join(from, "tokenizer.json", out);
    if (o->tokenizer)
        return zn_strdup(from, out);
    const char *slash = strrchr(from, '/');
    return zn_format(out, "%.*stokenizer.json", slash ? (int)(slash + 1 - from) : 0, from);
}

static bool needs_tokenizer(const zn_train_options *o)
{
    for (int i = 0; i < o->n_train_files; i++)
        if (has_extension(o->train_files[i], ".txt"))
            return true;
    for (int i = 0; i < o->n_validation_files; i++)
        if (has_extension(o->validation_files[i], ".txt"))
            return true;
    return false;
}

/* .txt needs a tokenizer; .jsonl may, and says so itself if there is none. */
static zinc_status load_tokenizer(zn_train_setup *s)
{
    char *path = NULL;
    zinc_status status = ZINC_OK;
    ZN_TRY(zn_train_tokenizer_path(s->o, &path));
    if (s->o->tokenizer || zn_fs_exists(path))
        status = zn_tokenizer_load(path, &s->tokenizer);
    else if (needs_tokenizer(s->o))
        status = zn_error_set(ZINC_E_CONFIG, __FILE__, __LINE__, __func__,
                              "the text files need a tokenizer, and there is no %s: give one with "
                              "--tokenizer, or make one with `zinc tokenize --train`",
                              path);
    if (status == ZINC_OK && s->tokenizer)
        status = zn_chat_open(path, &s->chat);
    zn_free(path);
    return status;
}

static zinc_status load_data(zn_train_setup *s)
{
    const zn_train_options *o = s->o;
    zn_dataset_params params = {.files = o->train_files,
                                .n_files = o->n_train_files,
                                .tokenizer = s->tokenizer,
                                .block_size = s->block_size,
                                .refuse_long = o->block_size == 0,
                                .vocab_size = (int32_t)s->spec.V,
                                .eos_id = s->spec.eos_id};
    ZN_TRY(load_tokenizer(s));
    params.tokenizer = s->tokenizer;
    params.chat = s->chat;
    params.loss_on_all = o->loss_on_all;
    params.packing_boundaries = o->packing_boundaries;
    if (s->tokenizer && params.eos_id >= zn_tokenizer_vocab_size(s->tokenizer))
        params.eos_id = -1;
    ZN_TRY(zn_dataset_open(&params, &s->train));
    if (zn_dataset_n_rows(s->train) == zn_dataset_n_empty(s->train))
        ZN_FAIL(ZINC_E_CONFIG, "none of the %lld training rows has a target: every label is masked",
                (long long)zn_dataset_n_rows(s->train));
    if (zn_dataset_n_empty(s->train) > 0)
        zn_warn("data", "%lld of %lld rows have no target and teach nothing",
                (long long)zn_dataset_n_empty(s->train), (long long)zn_dataset_n_rows(s->train));
    if (o->n_validation_files == 0)
        return ZINC_OK;
    params.files = o->validation_files;
    params.n_files = o->n_validation_files;
    return zn_dataset_open(&params, &s->validation);
}

/* ---- configuration ---- */

/* The message is the first error; the others, one a line, before it. */
static zinc_status report_config(const zn_config *config, zinc_status status)
{
    for (int i = 1; status != ZINC_OK && config && i < zn_config_n_errors(config); i++)
        zn_log(ZN_LOG_ERROR, "config", "%s", zn_config_error(config, i));
    return status;
}

static zinc_status set_lengths(zn_train_setup *s)
{
    const zn_train_options *o = s->o;
    s->micro_batch = s->values->train_micro_batch_size_per_gpu;
    s->accumulation = s->values->gradient_accumulation_steps;
    const int64_t per_micro = s->micro_batch * s->n_ranks;
    const int64_t n_rows = zn_dataset_n_rows(s->train);
    const int64_t n_micro = (n_rows + per_micro - 1) / per_micro;
    s->steps_per_epoch = (n_micro + s->accumulation - 1) / s->accumulation;
    s->max_steps = o->max_steps > 0
                       ? o->max_steps
                       : (int64_t)ceil(o->num_train_epochs * (double)s->steps_per_epoch);
    if (s->max_steps < 1)
        ZN_FAIL(ZINC_E_CONFIG, "--num_train_epochs %g gives no step", o->num_train_epochs);
    return ZINC_OK;
}

/* Optimizer and schedule: the file's where it has them, else the Trainer's. */
static zinc_status set_optimizer(zn_train_setup *s)
{
    const zn_train_options *o = s->o;
    ZN_TRY(zn_optim_hyper_from_config(s->values, &s->optim, &s->hyper));
    s->optim = zn_optim_lean(s->optim, &s->hyper, 1); /* groups differ in weight decay alone */
    s->decay_all =
        o->decay_groups ? strcmp(o->decay_groups, "all") == 0 : s->values->optimizer_type != NULL;
    if (o->deepspeed && !s->values->optimizer_type)
        zn_info("config", "%s has no optimizer block: the trainer's own AdamW is used",
                o->deepspeed);
    if (s->values->scheduler_type)
        return zn_lr_from_config(s->values, s->optim, &s->hyper, &s->schedule);
    const int64_t warmup = o->warmup_steps > 0
                               ? o->warmup_steps
                               : (int64_t)ceil(o->warmup_ratio * (double)s->max_steps);
    return zn_lr_from_trainer(o->lr_scheduler_type, warmup, s->max_steps, s->hyper.lr,
                              &s->schedule);
}

static zinc_status load_config(zn_train_setup *s)
{
    const zn_train_options *o = s->o;
    const zn_config_sources sources = {.deepspeed = o->deepspeed,
                                       .accelerate_config = o->accelerate_config,
                                       .fsdp = o->fsdp,
                                       .fsdp_config = o->fsdp_config};
    const zinc_status status = zn_config_open(&sources, &s->config);
    ZN_TRY(report_config(s->config, status));
    ZN_TRY(report_config(s->config, zn_config_override(s->config, o->arguments, o->n_arguments)));
    return ZINC_OK;
}

static zinc_status resolve_config(zn_train_setup *s)
{
    const zn_train_options *o = s->o;
    const zn_config_facts facts = {.world_size = s->n_ranks,
                                   .hidden_size = s->spec.C,
                                   .max_steps = o->max_steps > 0 ? o->max_steps : 0,
                                   .n_samples = zn_dataset_n_rows(s->train),
                                   .n_epochs = o->num_train_epochs,
                                   .default_micro_batch = 8,
                                   .ranks_per_node = zn_train_ranks_per_node(o, s->n_ranks)};
    const zinc_status status = zn_config_resolve(s->config, &facts);
    ZN_TRY(report_config(s->config, status));
    s->values = zn_config_get(s->config);
    s->checkpointing = o->gradient_checkpointing || s->values->checkpoint_units;
    ZN_TRY(set_lengths(s));
    return set_optimizer(s);
}

zinc_status zn_train_setup_open(const zn_train_options *options, int n_ranks, zn_train_setup *out)
{
    zinc_status status;
    zn_train_setup s = {.o = options, .n_ranks = n_ranks};
    const int cores = zn_sys_cores();
    s.threads = options->threads > 0 ? options->threads : cores / n_ranks;
    if (s.threads < 1)
        s.threads = 1;
    ZN_TRY_GOTO(load_config(&s)); /* first: its errors come before anything slow */
    ZN_TRY_GOTO(load_spec(&s));
    ZN_TRY_GOTO(check_freeze(&s));
    ZN_TRY_GOTO(load_data(&s));
    ZN_TRY_GOTO(resolve_config(&s));
    if (options->profile && !options->dry_run)
        ZN_TRY_GOTO(zn_trace_create(TRACE_SPANS, &s.trace));
    *out = s;
    return ZINC_OK;
fail:
    zn_train_setup_close(&s);
    return status;
}

void zn_train_setup_close(zn_train_setup *setup)
{
    zn_dataset_destroy(setup->train);
    zn_dataset_destroy(setup->validation);
    zn_chat_destroy(setup->chat);
    zn_tokenizer_destroy(setup->tokenizer);
    zn_config_destroy(setup->config);
    zn_model_spec_fini(&setup->spec);
    zn_free(setup->resume.dir);
    zn_trace_destroy(setup->trace);
    memset(setup, 0, sizeof *setup);
}

/* A new run's folder. `latest` of a run that is replaced must not be taken for its own. */
static zinc_status start_output(const zn_train_options *options)
{
    char *latest = NULL;
    ZN_TRY(zn_fs_mkdirs(options->output_dir));
    zn_ckpt_clean(options->output_dir);
    ZN_TRY(zn_fs_join(options->output_dir, "latest", &latest));
    (void)unlink(latest); /* mostly there is none */
    zn_free(latest);
    return ZINC_OK;
}

zinc_status zn_train_claim_output(const zn_train_options *options)
{
    static const char *const marks[] = {"metrics.jsonl", "model.safetensors",
                                        "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        char *path = NULL;
        ZN_TRY(zn_fs_join(options->output_dir, marks[i], &path));
        const bool there = zn_fs_exists(path);
        zn_free(path);
        if (there && !options->overwrite_output_dir && !options->resume)
            ZN_FAIL(ZINC_E_CONFIG,
                    "%s already holds a run (%s): choose another --output_dir, pass "
                    "--resume_from_checkpoint to go on with it, or --overwrite_output_dir to "
                    "replace it",
                    options->output_dir, marks[i]);
    }
    return options->resume ? zn_fs_mkdirs(options->output_dir) : start_output(options);
}

/* Two runs that write one folder mix their metrics, and delete each other's checkpoints. The lock
 * is on the folder itself, goes with its process however that ends, and a file system without locks
 * has none. */
zinc_status zn_train_lock_output(zn_train_setup *setup)
{
    const double deadline = zn_sys_now() + LOCK_SECONDS;
    if (setup->output_lock)
        return ZINC_OK;
    const int fd = open(setup->o->output_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) /* who writes there says what is wrong with it */
        return ZINC_OK;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        if (zn_sys_now() > deadline) {
            close(fd);
            ZN_FAIL(ZINC_E_CONFIG,
                    "another run is writing to %s: wait for its end, or choose another "
                    "--output_dir",
                    setup->o->output_dir);
        }
        zn_sys_sleep(0.1);
    }
    setup->output_lock = fd + 1;
    return ZINC_OK;
}

/* A tokenizer given apart from the model, and what says how conversations are written with it. */
static zinc_status copy_tokenizer(const zn_train_options *o, const char *dir)
{
    static const char *const beside[] = {"tokenizer_config.json", "chat_template.jinja"};
    zinc_status status;
    char *tokenizer = NULL, *from = NULL, *to = NULL;
    ZN_TRY_GOTO(zn_train_tokenizer_path(o, &tokenizer));
    ZN_TRY_GOTO(zn_fs_join(dir, "tokenizer.json", &to));
    ZN_TRY_GOTO(zn_fs_copy(tokenizer, to));
    const char *slash = strrchr(tokenizer, '/');
    for (int i = 0; i < 2; i++) {
        zn_free(from);
        zn_free(to);
        from = to = NULL;
        ZN_TRY_GOTO(zn_format(&from, "%.*s%s", slash ? (int)(slash + 1 - tokenizer) : 0, tokenizer,
                              beside[i]));
        ZN_TRY_GOTO(zn_fs_join(dir, beside[i], &to));
        if (zn_fs_exists(from))
            ZN_TRY_GOTO(zn_fs_copy(from, to));
    }
fail:
    zn_free(tokenizer);
    zn_free(from);
    zn_free(to);
    return status;
}

zinc_status zn_train_copy_model_files(const zn_train_setup *setup, const char *dir)
{
    ZN_TRY(zn_model_files_copy(setup->o->model, dir, setup->save_dtype));
    return setup->o->tokenizer ? copy_tokenizer(setup->o, dir) : ZINC_OK;
}

zn_engine_params zn_train_engine_params(const zn_train_setup *setup, zn_device *dev, zn_comm *comm)
{
    const zn_train_options *o = setup->o;
    return (zn_engine_params){.dev = dev,
                              .comm = comm,
                              .config = setup->values,
                              .spec = &setup->spec,
                              .optim = setup->optim,
                              .hyper = setup->hyper,
                              .schedule = setup->schedule,
                              .decay_all = setup->decay_all,
                              .activation_checkpointing = setup->checkpointing,
                              .dropout_scale = 1,
                              .share_parameters = o->share_parameters && !o->device_limit &&
                                                  !(o->link_bytes_per_s > 0),
                              .seed = o->seed,
                              .freeze = o->freeze,
                              .n_freeze = o->n_freeze};
}
