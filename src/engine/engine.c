/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/model_batch.h"
#include "engine/freeze.h"
#include "engine/hyper.h"
#include "engine/weights.h"
#include "optim/loss_scale.h"

enum { GROUP_DECAY, GROUP_NO_DECAY, N_GROUPS };

struct zn_engine {
    zn_engine_params p;
    zn_param_list list;
    zn_model *model;
    zn_zero *zero;
    zn_loss_scaler scaler;
    zn_optim_hyper groups[N_GROUPS];
    int64_t n_applied, n_skipped;
    bool has_source;
    char *source; /* folder the weights came from; NULL: random_seed */
    uint64_t random_seed;
    double *loss_sum; /* device scalar of one micro-batch */
};

static zn_dtype training_dtype(const zn_config_values *config)
{
    return config->bf16.enabled   ? ZN_DTYPE_BF16
           : config->fp16.enabled ? ZN_DTYPE_F16
                                  : ZN_DTYPE_F32;
}

static zn_zero_tier tier_of(zn_offload_device device)
{
    return device == ZN_OFFLOAD_CPU    ? ZN_ZERO_ON_HOST
           : device == ZN_OFFLOAD_NVME ? ZN_ZERO_ON_DISK
                                       : ZN_ZERO_ON_DEVICE;
}

/* Groups of ranks, what is kept and what is gathered together; nothing that the stage has no use
 * for, so that a plan may change the stage alone. */
static void set_sharding(const zn_config_values *c, zn_zero_params *out)
{
    out->shard_ranks = c->zero.stage > 0 ? (int)c->zero.shard_size : 0;
    out->secondary_ranks = c->zero.stage == 3 ? (int)c->zero.hpz_partition_size : 0;
    out->keep_for_backward = c->zero.stage == 3 && !c->zero.reshard_after_forward;
    out->min_unit_elems = c->zero.wrap_policy == ZN_WRAP_NONE   ? INT64_MAX
                          : c->zero.wrap_policy == ZN_WRAP_SIZE ? c->zero.wrap_min_num_params
                                                                : 0;
}

/* Launchers say it; without one all ranks are taken to be here. */
static int64_t ranks_of_this_host(const zn_comm *comm)
{
    const char *said = zn_sys_env("LOCAL_WORLD_SIZE");
    const int64_t n = said ? strtoll(said, NULL, 10) : 0, all = zn_comm_n_ranks(comm);
    return n >= 1 && n < all ? n : all;
}

void zn_engine_zero_params(const zn_engine_params *params, zn_zero_params *out)
{
    const zn_config_values *c = params->config;
    const zn_dtype dtype = training_dtype(c);
    zn_zero_params_defaults(out);
    out->dev = params->dev;
    out->comm = params->comm;
    out->kernels = params->dev ? zn_kernels_get(params->dev) : NULL;
    out->optim = params->optim;
    out->stage = c->zero.stage;
    out->param_dtype = dtype;
    out->wire_dtype = c->has_communication_data_type ? c->communication_data_type : dtype;
    out->grad_accum_dtype = c->has_grad_accum_dtype ? c->grad_accum_dtype : ZN_DTYPE_F32;
    out->gradient_accumulation_steps = c->gradient_accumulation_steps;
    out->reduce_bucket = c->zero.reduce_bucket_size;
    out->allgather_bucket = c->zero.allgather_bucket_size;
    out->prefetch_bucket = c->zero.prefetch_bucket_size;
    out->persistence_threshold = c->zero.param_persistence_threshold;
    out->model_persistence_threshold = c->zero.model_persistence_threshold;
    out->max_live = c->zero.max_live_parameters;
    out->max_reuse_distance = c->zero.max_reuse_distance;
    out->sub_group = c->zero.sub_group_size;
    out->overlap_comm = c->zero.overlap_comm;
    out->share_parameters = params->share_parameters;
    out->split_masters = c->bf16.split_masters;
    set_sharding(c, out);
    out->optimizer_tier = tier_of(c->zero.offload_optimizer);
    out->param_tier = tier_of(c->zero.offload_param);
    out->disk_path = c->zero.offload_optimizer_nvme_path;
    out->param_disk_path = c->zero.offload_param_nvme_path;
    out->max_param_on_host = c->zero.offload_param_max_in_cpu;
    out->param_buffer_elems = c->zero.offload_param_buffer_size;
    out->n_param_buffers =
        (int)(c->zero.offload_param_buffer_count < INT_MAX ? c->zero.offload_param_buffer_count
                                                           : INT_MAX);
    if (params->comm)
        out->host_bytes = zn_sys_memory_bytes() / ranks_of_this_host(params->comm);
    out->disk_io = (zn_disk_io){.block_bytes = c->aio.block_size,
                                .queue_depth = c->aio.queue_depth,
                                .n_workers = c->aio.intra_op_parallelism,
                                .single_submit = c->aio.single_submit,
                                .overlap_events = c->aio.overlap_events};
    out->offload_ratio = c->zero.offload_optimizer_ratio;
}

static zinc_status create_zero(zn_engine *engine)
{
    zn_zero_params params;
    int *groups = NULL;
    zn_engine_zero_params(&engine->p, &params);
    ZN_TRY(zn_alloc_array(&groups, (size_t)engine->list.n_specs, sizeof *groups, "groups"));
    for (int i = 0; i < engine->list.n_specs; i++)
        groups[i] =
            engine->list.specs[i].no_decay && !engine->p.decay_all ? GROUP_NO_DECAY : GROUP_DECAY;
    const zinc_status status = zn_zero_create(&params, &engine->list, groups, &engine->zero);
    zn_free(groups);
    return status;
}

zinc_status zn_engine_create(const zn_engine_params *params, zn_engine **out)
{
    zinc_status status;
    zn_engine *engine = NULL;
    ZN_TRY(zn_alloc(&engine, sizeof *engine, "the engine"));
    engine->p = *params;
    engine->scaler = zn_loss_scaler_from_config(params->config);
    for (int g = 0; g < N_GROUPS; g++)
        engine->groups[g] = params->hyper;
    engine->groups[GROUP_NO_DECAY].weight_decay = 0;
    const zn_model_options options = {.activation_checkpointing = params->activation_checkpointing,
                                      .checkpoints_on_host =
                                          zn_config_checkpoints_on_host(params->config),
                                      .dropout_scale = params->dropout_scale};
    ZN_TRY_GOTO(zn_model_param_list(params->spec, &engine->list));
    ZN_TRY_GOTO(zn_freeze_parameters(&engine->list, params->freeze, params->n_freeze));
    ZN_TRY_GOTO(create_zero(engine));
    ZN_TRY_GOTO(zn_model_create(params->spec, &options, params->dev, zn_kernels_get(params->dev),
                                &engine->model));
    ZN_TRY_GOTO(zn_device_alloc(params->dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, sizeof(double),
                                "the loss", &engine->loss_sum));
    *out = engine;
    return ZINC_OK;
fail:
    zn_engine_destroy(engine);
    return status;
}

void zn_engine_destroy(zn_engine *engine)
{
    if (!engine)
        return;
    zn_device_free(engine->p.dev, engine->loss_sum);
    zn_model_destroy(engine->model);
    zn_zero_destroy(engine->zero);
    zn_param_list_fini(&engine->list);
    zn_free(engine->source);
    zn_free(engine);
}

zn_zero *zn_engine_zero(zn_engine *engine)
{
    return engine->zero;
}

zn_comm *zn_engine_comm(zn_engine *engine)
{
    return engine->p.comm;
}

void zn_engine_get_progress(const zn_engine *engine, zn_engine_progress *out)
{
    *out = (zn_engine_progress){
        .n_applied = engine->n_applied, .n_skipped = engine->n_skipped, .scaler = engine->scaler};
}

void zn_engine_set_progress(zn_engine *engine, const zn_engine_progress *progress)
{
    zn_loss_scaler *scaler = &engine->scaler;
    engine->n_applied = progress->n_applied;
    engine->n_skipped = progress->n_skipped;
    if (!scaler->dynamic || !progress->scaler.dynamic)
        return;
    scaler->scale = progress->scaler.scale;
    scaler->hysteresis_left = progress->scaler.hysteresis_left;
    scaler->iteration = progress->scaler.iteration;
    scaler->last_overflow = progress->scaler.last_overflow;
}

const zn_param_list *zn_engine_param_list(const zn_engine *engine)
{
    return &engine->list;
}

zinc_status zn_engine_set_source(zn_engine *engine, const char *model_dir, uint64_t seed)
{
    char *copy = NULL;
    if (model_dir)
        ZN_TRY(zn_strdup(model_dir, &copy));
    zn_free(engine->source);
    engine->source = copy;
    engine->random_seed = seed;
    engine->has_source = true;
    return ZINC_OK;
}

zinc_status zn_engine_load(zn_engine *engine, const char *model_dir)
{
    zn_weight_map *map = NULL;
    ZN_TRY(zn_engine_set_source(engine, model_dir, 0));
    ZN_TRY(zn_comm_agree(engine->p.comm,
                         zn_weight_map_open(model_dir, engine->p.spec, &engine->list, &map)));
    const zinc_status status = zn_zero_fill(engine->zero, zn_weight_map_read, map);
    zn_weight_map_destroy(map);
    return status;
}

zinc_status zn_engine_random(zn_engine *engine, uint64_t seed)
{
    zn_random_weights random = {.list = &engine->list, .seed = seed};
    ZN_TRY(zn_engine_set_source(engine, NULL, seed));
    return zn_zero_fill(engine->zero, zn_random_weights_read, &random);
}

static uint64_t dropout_seed(const zn_engine *engine, int64_t step)
{
    return zn_hash_fold(engine->p.seed, (uint64_t)step);
}

/* The loss scalar is read once its kernels have run. */
static zinc_status add_loss(zn_engine *engine, double *loss_sum)
{
    double loss = 0;
    ZN_TRY(zn_device_copy_now(engine->p.dev, &loss, engine->loss_sum, sizeof loss));
    *loss_sum += loss;
    return ZINC_OK;
}

static zinc_status zero_loss(zn_engine *engine)
{
    return zn_kernels_get(engine->p.dev)
        ->zero(zn_device_compute(engine->p.dev), engine->loss_sum, sizeof *engine->loss_sum);
}

/* Rates and momenta of the step that would be applied next. */
static void set_hyper(zn_engine *engine)
{
    const int64_t t = engine->n_applied + 1;
    double beta1, beta2;
    const bool betas = zn_lr_betas_at(&engine->p.schedule, t, &beta1, &beta2);
    for (int g = 0; g < N_GROUPS; g++) {
        engine->groups[g].lr = zn_lr_at(&engine->p.schedule, t);
        if (betas) {
            engine->groups[g].beta1 = beta1;
            engine->groups[g].beta2 = beta2;
        }
    }
}

static zn_zero_step_args next_step(zn_engine *engine)
{
    set_hyper(engine);
    return (zn_zero_step_args){.groups = engine->groups,
                               .t = engine->n_applied + 1,
                               .loss_scale = engine->scaler.scale,
                               .clip = engine->p.config->gradient_clipping,
                               .unchecked = engine->p.config->bf16.enabled &&
                                            !engine->p.config->bf16.check_grad_overflow};
}

zinc_status zn_engine_micro_batch(zn_engine *engine, const zn_batch *batch, double grad_weight,
                                  bool boundary, double *loss_sum)
{
    zn_model_batch mb = zn_model_batch_of(batch);
    mb.dropout_seed = dropout_seed(engine, engine->n_applied + engine->n_skipped);
    ZN_TRY(zero_loss(engine));
    ZN_TRY(zn_zero_begin(engine->zero, boundary));
    if (boundary) {
        const zn_zero_step_args args = next_step(engine);
        ZN_TRY(zn_zero_announce_step(engine->zero, &args));
    }
    ZN_TRY(zn_model_train(engine->model, &mb, zn_zero_hooks(engine->zero),
                          (float)(grad_weight * engine->scaler.scale), engine->loss_sum));
    ZN_TRY(zn_zero_backward_end(engine->zero));
    return add_loss(engine, loss_sum);
}

zinc_status zn_engine_eval(zn_engine *engine, const zn_batch *batch, double *loss_sum)
{
    const zn_model_batch mb = zn_model_batch_of(batch);
    ZN_TRY(zero_loss(engine));
    ZN_TRY(zn_model_eval(engine->model, &mb, zn_zero_hooks(engine->zero), engine->loss_sum, NULL));
    return add_loss(engine, loss_sum);
}

zinc_status zn_engine_step(zn_engine *engine, zn_engine_step_result *out)
{
    zn_zero_step_result step;
    const zn_zero_step_args args = next_step(engine);
    ZN_TRY(zn_zero_step(engine->zero, &args, &step));
    if (step.overflow)
        engine->n_skipped++;
    else
        engine->n_applied++;
    const zn_engine_step_result result = {
        .lr = engine->groups[0].lr,
        .loss_scale = args.loss_scale,
        .grad_norm = step.grad_norm,
        .clip_coef = step.clip_coef,
        .overflow = step.overflow,
        .bad_param = step.bad_param >= 0 ? engine->list.specs[step.bad_param].name : NULL,
        .bad_rank = step.bad_rank,
        .n_applied = engine->n_applied,
        .n_skipped = engine->n_skipped};
    *out = result;
    return zn_loss_scaler_update(&engine->scaler, step.overflow);
}

zinc_status zn_engine_find_bad(zn_engine *engine, const zn_batch *batches, const double *weights,
                               int64_t n, double loss_scale, zn_bad_value *out)
{
    zn_zero_params zero;
    zn_engine_zero_params(&engine->p, &zero);
    const zn_diagnosis diagnosis = {
        .dev = engine->p.dev,
        .comm = engine->p.comm,
        .zero = engine->zero,
        .model = engine->model,
        .list = &engine->list,
        .param_dtype = zero.param_dtype,
        .wire_dtype = zero.wire_dtype,
        .batches = batches,
        .weights = weights,
        .n = n,
        .loss_scale = loss_scale,
        .dropout_seed = dropout_seed(engine, engine->n_applied + engine->n_skipped - 1)};
    return zn_diagnose(&diagnosis, out);
}

zinc_status zn_engine_skip(zn_engine *engine, zn_engine_step_result *out)
{
    ZN_TRY(zn_zero_skip(engine->zero));
    set_hyper(engine);
    engine->n_skipped++;
    *out = (zn_engine_step_result){.lr = engine->groups[0].lr,
                                   .loss_scale = engine->scaler.scale,
                                   .clip_coef = 1,
                                   .bad_rank = -1,
                                   .n_applied = engine->n_applied,
                                   .n_skipped = engine->n_skipped};
    return ZINC_OK;
}

/* ---- saving ---- */

/* Open where frozen parameters came from. A folder that cannot be read any more is no error: what
 * training holds is saved then. */
static zinc_status open_source(zn_engine *engine, zn_random_weights *random, zn_weight_map **map,
                               zn_frozen_reader *reader)
{
    ZN_TRY(zn_alloc_array(&reader->values, (size_t)ZN_FROZEN_IO_ELEMS, sizeof *reader->values,
                          "a parameter range"));
    *random = (zn_random_weights){.list = &engine->list, .seed = engine->random_seed};
    reader->dtype = training_dtype(engine->p.config);
    if (!engine->source) {
        reader->read = zn_random_weights_read;
        reader->read_ctx = random;
    } else if (zn_weight_map_open(engine->source, engine->p.spec, &engine->list, map) == ZINC_OK) {
        reader->read = zn_weight_map_read;
        reader->read_ctx = *map;
    } else {
        zn_warn("train", "frozen parameters are saved as rounded for training: %s",
                zinc_last_error());
    }
    return ZINC_OK;
}

zinc_status zn_engine_visit(zn_engine *engine, int what, zn_zero_visit_fn visit, void *ctx)
{
    zinc_status status;
    zn_weight_map *map = NULL;
    zn_random_weights random;
    zn_frozen_reader reader = {.list = &engine->list, .visit = visit, .visit_ctx = ctx};
    const bool frozen =
        zn_param_list_elems(&engine->list, true) < zn_param_list_elems(&engine->list, false);
    if (what != ZN_ZERO_MASTERS || !frozen || !engine->has_source ||
        training_dtype(engine->p.config) == ZN_DTYPE_F32)
        return zn_zero_visit(engine->zero, what, visit, ctx);
    ZN_TRY_GOTO(open_source(engine, &random, &map, &reader));
    ZN_TRY_GOTO(zn_zero_visit(engine->zero, what, zn_frozen_visit, &reader));
    if (reader.n_kept > 0)
        zn_warn("train",
                "%lld elements of frozen parameters are saved as rounded for training: %s has "
                "changed since",
                (long long)reader.n_kept, engine->source ? engine->source : "the initialisation");
    status = ZINC_OK;
fail:
    zn_weight_map_destroy(map);
    zn_free(reader.values);
    return status;
}

static zinc_status save_range(void *ctx, int param, int64_t offset, int64_t n, const float *values)
{
    return zn_weights_writer_write(ctx, param, offset, n, values);
}

/* wide[i]: parameter i is fp32 among 16-bit ones in the folder that the weights came from. Rank 0's
 * copy of the folder decides for all; if it is gone, none is. Behind wide is room for all ranks'.
 */
static zinc_status find_wide(const zn_engine *engine, unsigned char *wide)
{
    zn_comm *comm = engine->p.comm;
    const size_t n = (size_t)engine->list.n_specs;
    zn_weight_map *map = NULL;
    bool mixed = false;
    if (zn_comm_rank(comm) == 0 && engine->source &&
        zn_weight_map_open(engine->source, engine->p.spec, &engine->list, &map) == ZINC_OK)
        for (int i = 0; i < engine->list.n_specs; i++) {
            wide[i] = zn_weight_map_dtype(map, i) == ZN_DTYPE_F32;
            mixed = mixed || !wide[i];
        }
    if (!mixed)
        memset(wide, 0, n);
    zn_weight_map_destroy(map);
    ZN_TRY(zn_comm_exchange(comm, wide, n, wide + n, "types to be saved"));
    memcpy(wide, wide + n, n);
    return ZINC_OK;
}

static zinc_status plan_files(const zn_engine *engine, const char *dir, zn_dtype dtype,
                              const unsigned char *wide, int64_t max_shard_bytes,
                              zn_weights_writer **out)
{
    zn_tensor_plan *plan = NULL;
    ZN_TRY(zn_alloc_array(&plan, (size_t)engine->list.n_specs, sizeof *plan, "a save plan"));
    for (int i = 0; i < engine->list.n_specs; i++) {
        const zn_param_spec *spec = &engine->list.specs[i];
        plan[i] = (zn_tensor_plan){
            .name = spec->name, .dtype = wide[i] ? ZN_DTYPE_F32 : dtype, .n_dims = spec->n_dims};
        for (int d = 0; d < spec->n_dims; d++)
            plan[i].shape[d] = spec->shape[d];
    }
    const zinc_status status =
        zn_weights_writer_create(dir, plan, engine->list.n_specs, max_shard_bytes, out);
    zn_free(plan);
    return status;
}

static zinc_status write_part(zn_engine *engine, zn_weights_writer *writer)
{
    ZN_TRY(zn_engine_visit(engine, ZN_ZERO_MASTERS, save_range, writer));
    return zn_weights_writer_flush(writer);
}

zinc_status zn_engine_save(zn_engine *engine, const char *dir, zn_dtype dtype, bool as_loaded,
                           int64_t max_shard_bytes)
{
    zinc_status status;
    unsigned char *wide = NULL;
    zn_comm *comm = engine->p.comm;
    const bool leader = zn_comm_rank(comm) == 0;
    zn_weights_writer *writer = NULL;
    ZN_TRY_GOTO(zn_comm_agree(
        comm,
        zn_alloc_array(&wide, (size_t)engine->list.n_specs * (size_t)(zn_comm_n_ranks(comm) + 1), 1,
                       "types to be saved")));
    if (as_loaded && dtype != ZN_DTYPE_F32)
        ZN_TRY_GOTO(find_wide(engine, wide));
    ZN_TRY_GOTO(
        zn_comm_agree(comm, plan_files(engine, dir, dtype, wide, max_shard_bytes, &writer)));
    ZN_TRY_GOTO(zn_comm_agree(comm, leader ? zn_weights_writer_begin(writer) : ZINC_OK));
    ZN_TRY_GOTO(zn_comm_agree(comm, write_part(engine, writer)));
    ZN_TRY_GOTO(zn_comm_agree(comm, leader ? zn_weights_writer_commit(writer) : ZINC_OK));
    status = ZINC_OK;
fail:
    zn_weights_writer_destroy(writer);
    zn_free(wide);
    return status;
}
