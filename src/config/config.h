/* SPDX-License-Identifier: Apache-2.0 */
/* config.h — a ds_config.json, and the arguments beside it, as one typed struct.
 *
 * Life of a configuration:
 *   zn_config_load      text -> tree with positions -> zn_config, every key checked against the one
 *                       table in keys.c (type, bounds, default, status, doc)
 *   zn_config_override  command-line arguments fill absent and "auto" values; one that contradicts
 *                       an explicit value of the file is an error that names both
 *   zn_config_resolve   world size, model and run length known: batch triad, every "auto"
 *   zn_config_print     the resolved values and where each came from
 * All errors of a file are collected (zn_config_errors), each with JSON path, line, column, message
 * and hint, before the load fails.
 * A key's value is "file:LINE", "default", "argument --x" or "auto: why" in origin.
 * Reading order: config.h, config_internal.h, keys.c, reader.c, bind.c, override.c, resolve.c,
 * strategy.c, batch.c, rules.c, print.c; for accelerate's files yaml.c, accelerate.c, fsdp.c.
 * Layer: config (may use base). */
#ifndef ZN_CONFIG_CONFIG_H
#define ZN_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/mem.h"

typedef enum zn_offload_device {
    ZN_OFFLOAD_NONE,
    ZN_OFFLOAD_CPU,
    ZN_OFFLOAD_NVME,
} zn_offload_device;

/* What is gathered at once; fsdp.auto_wrap_policy. */
typedef enum zn_wrap_policy {
    ZN_WRAP_TRANSFORMER, /* the embedding, each block, the head */
    ZN_WRAP_SIZE,        /* neighbours together up to wrap_min_num_params */
    ZN_WRAP_NONE,        /* the whole model */
} zn_wrap_policy;

/* When the next unit's gather begins in backward; fsdp.backward_prefetch. */
typedef enum zn_backward_prefetch {
    ZN_BACKWARD_PRE,  /* before the current unit is computed */
    ZN_BACKWARD_POST, /* after it */
    ZN_BACKWARD_NO_PREFETCH,
} zn_backward_prefetch;

/* distributed_type of an accelerate YAML. */
typedef enum zn_distributed_type {
    ZN_DISTRIBUTED_NO,
    ZN_DISTRIBUTED_DEEPSPEED,
    ZN_DISTRIBUTED_FSDP,
    ZN_DISTRIBUTED_MULTI_CPU,
    ZN_DISTRIBUTED_MULTI_GPU,
} zn_distributed_type;

/* mixed_precision of an accelerate YAML; fp8 is refused. */
typedef enum zn_mixed_precision {
    ZN_PRECISION_NO,
    ZN_PRECISION_FP16,
    ZN_PRECISION_BF16,
} zn_mixed_precision;

/* Values after zn_config_resolve. Sizes are elements unless a name says otherwise. A field that the
 * table marks "accepted" is parsed, printed and has no effect here. */
typedef struct zn_config_values {
    /* batch */
    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
    double gradient_clipping; /* 0: off */
    int64_t steps_per_print;  /* 0: never */
    bool prescale_gradients;
    double gradient_predivide_factor;
    bool has_communication_data_type;
    zn_dtype communication_data_type;
    bool has_grad_accum_dtype;
    zn_dtype grad_accum_dtype;
    bool wall_clock_breakdown, memory_breakdown, dump_state;

    struct {
        bool enabled;
        double loss_scale; /* 0: dynamic */
        int64_t initial_scale_power, loss_scale_window, hysteresis;
        bool consecutive_hysteresis;
        double min_loss_scale;
    } fp16;
    struct {
        bool enabled;
        bool check_grad_overflow, split_masters;
    } bf16;

    struct {
        int stage; /* 0..3 */
        bool contiguous_gradients, reduce_scatter, allgather_partitions, overlap_comm;
        bool round_robin_gradients;
        int64_t reduce_bucket_size, allgather_bucket_size;
        int64_t sub_group_size;
        int64_t prefetch_bucket_size;        /* stage3_prefetch_bucket_size */
        int64_t param_persistence_threshold; /* stage3_param_persistence_threshold */
        int64_t model_persistence_threshold;
        int64_t max_live_parameters, max_reuse_distance;
        bool gather_16bit_weights_on_model_save;
        zn_offload_device offload_optimizer, offload_param;
        double offload_optimizer_ratio;
        char *offload_optimizer_nvme_path, *offload_param_nvme_path; /* owned; NULL */
        bool offload_optimizer_pin_memory, offload_param_pin_memory;
        int64_t offload_param_buffer_count, offload_param_buffer_size, offload_param_max_in_cpu;
        int64_t offload_optimizer_buffer_count;
        bool offload_optimizer_pipeline_read, offload_optimizer_pipeline_write;
        bool offload_optimizer_fast_init;
        /* Stage 3: false keeps a unit whole from its forward to its backward. */
        bool reshard_after_forward;
        /* Ranks that share one copy of everything that is sharded; the others replicate it. 0: all.
         * HYBRID_SHARD sets it to the ranks of a node. */
        int64_t shard_size;
        int64_t hpz_partition_size; /* ranks that share a secondary copy; 1: there is none */
        zn_wrap_policy wrap_policy;
        int64_t wrap_min_num_params;
        zn_backward_prefetch backward_prefetch;
        bool forward_prefetch;
    } zero;
    struct {
        int64_t block_size, queue_depth, intra_op_parallelism;
        bool single_submit, overlap_events;
    } aio;

    /* optimizer: type as written (NULL: no block), params that were given. */
    char *optimizer_type;
    bool adam_w_mode, torch_adam;
    /* Each is NaN where neither file nor argument gave it: the optimizer's default holds. */
    double lr, weight_decay, beta1, beta2, eps, momentum, dampening, lamb_min_coeff, lamb_max_coeff;
    bool nesterov, bias_correction, eps_inside_sqrt;

    /* scheduler: type as written (NULL: no block). NaN / -1: not given, the schedule's default. */
    char *scheduler_type;
    double warmup_min_lr, warmup_max_lr, warmup_min_ratio, cos_min_ratio;
    int64_t warmup_num_steps, total_num_steps;
    char *warmup_type;
    double cycle_min_lr, cycle_max_lr, decay_lr_rate, cycle_min_mom, cycle_max_mom, decay_mom_rate;
    int64_t cycle_first_step_size, cycle_second_step_size, decay_step_size;
    int64_t cycle_first_stair_count, cycle_second_stair_count;
    int cycle_momentum; /* -1: not given */
    double lr_range_test_min_lr, lr_range_test_step_rate;
    int64_t lr_range_test_step_size;
    int lr_range_test_staircase; /* -1: not given */

    struct {
        bool enabled;
        char *output_path, *job_name;
    } tensorboard, csv_monitor;
    struct {
        bool enabled;
        int64_t profile_step;
        char *output_file; /* NULL: stderr */
    } flops_profiler;
    /* Of an accelerate YAML, or of the block that carries one. */
    struct {
        bool given;
        zn_distributed_type distributed_type;
        int64_t num_machines, num_processes, machine_rank; /* num_processes -1: not given */
        char *main_process_ip;
        int64_t main_process_port; /* 0: none given, or a free one */
        zn_mixed_precision mixed_precision;
        bool enable_cpu_affinity, zero3_init_flag, fsdp_offload_params;
        char *deepspeed_config_file, *moe_layer_cls_names;
        char *multinode_launcher, *hostfile, *inclusion_filter, *exclusion_filter;
        int64_t fsdp_version;
        int64_t dp_replicate_size, dp_shard_size;
    } accelerate;

    bool checkpoint_units;         /* fsdp.activation_checkpointing: as --gradient_checkpointing */
    bool checkpoint_units_on_host; /* and _offload: as cpu_checkpointing */
    struct {
        bool partition_activations, cpu_checkpointing, contiguous_memory_optimization;
        int64_t number_checkpoints;
    } activation_checkpointing;
} zn_config_values;

/** Where activation checkpointing is on: whether blocks' inputs wait on the host. */
static inline bool zn_config_checkpoints_on_host(const zn_config_values *values)
{
    return values->activation_checkpointing.cpu_checkpointing || values->checkpoint_units_on_host;
}

typedef struct zn_config zn_config;

/* What the arguments of the command line said; only given ones are applied. Names are those of
 * TrainingArguments. */
typedef struct zn_config_argument {
    const char *name;  /* "learning_rate", "per_device_train_batch_size", "bf16", … */
    const char *value; /* as typed; "true"/"false" for flags */
} zn_config_argument;

/* What "auto" and the batch triad are resolved from. 0 / NaN: not known. */
typedef struct zn_config_facts {
    int64_t world_size;  /* required, >= 1 */
    int64_t hidden_size; /* for the three stage-3 autos */
    int64_t max_steps;   /* total optimizer steps, for total_num_steps "auto" */
    int64_t n_samples;   /* training samples, from which max_steps follows with n_epochs */
    double n_epochs;
    int64_t default_micro_batch; /* where nothing else gives one; 0: that is an error */
    int64_t ranks_per_node;      /* for HYBRID_SHARD; 0: all are on one */
} zn_config_facts;

/** Read a ds_config.json. path NULL: an empty configuration, all defaults. Not collective.
 *  *out is set even on E_CONFIG, so that zn_config_errors can be listed; the message is the first
 *  error, with file, line, column and JSON path. Release with zn_config_destroy. */
ZINC_MUST_CHECK zinc_status zn_config_load(const char *path, zn_config **out);
/** The same from n bytes; `name` stands for the file in messages. */
ZINC_MUST_CHECK zinc_status zn_config_parse(const char *text, size_t n, const char *name,
                                            zn_config **out);
/** Read an accelerate YAML. "default" is the user's own (zn_accelerate_default_path). The
 *  ds_config.json that it names is read too: from the working folder, as accelerate does, else from
 *  beside it; or `deepspeed` in its place (NULL: none). What both say is an error. Values of the
 *  YAML have their origin there. Errors: as zn_config_load. */
ZINC_MUST_CHECK zinc_status zn_config_load_accelerate(const char *path, const char *deepspeed,
                                                      zn_config **out);
/** The same from n bytes; `name` stands for the file. */
ZINC_MUST_CHECK zinc_status zn_config_parse_accelerate(const char *text, size_t n, const char *name,
                                                       const char *deepspeed, zn_config **out);
/** Read what --fsdp and --fsdp_config say, as TrainingArguments has them: `words` such as
 *  "full_shard offload auto_wrap" (NULL or "": as fsdp_config says), and a JSON file, or JSON
 *  itself, with the keys of fsdp_config with or without fsdp_ (NULL: none). Errors: as
 *  zn_config_load. */
ZINC_MUST_CHECK zinc_status zn_config_load_fsdp(const char *words, const char *fsdp_config,
                                                zn_config **out);

/* Where a run's configuration comes from; NULL: not given. */
typedef struct zn_config_sources {
    const char *deepspeed, *accelerate_config;
    const char *fsdp, *fsdp_config; /* fsdp "false": off */
} zn_config_sources;

/** Load what is given; nothing: all defaults. Errors: as zn_config_load; E_INVALID two options that
 *  both say how to share the model. */
ZINC_MUST_CHECK zinc_status zn_config_open(const zn_config_sources *sources, zn_config **out);
/** Where accelerate keeps the user's default file: HF_HOME, else XDG_CACHE_HOME/huggingface, else
 *  ~/.cache/huggingface. Free with zn_free. */
ZINC_MUST_CHECK zinc_status zn_accelerate_default_path(char **out);
void zn_config_destroy(zn_config *config);

/** Names of the arguments that zn_config_override knows, for tables of options. */
int zn_config_n_arguments(void);
const char *zn_config_argument_name(int i);

/** Apply Trainer arguments. Names that are not configuration are ignored. All conflicts are
 *  collected. Errors: E_CONFIG. */
ZINC_MUST_CHECK zinc_status zn_config_override(zn_config *config,
                                               const zn_config_argument *arguments, int n);

/** Fill the facts that are not known (0) from an accelerate YAML: ranks, and ranks of a machine;
 *  one rank where it does not say. */
void zn_config_facts_from_accelerate(const zn_config *config, zn_config_facts *facts);

/** Fill every "auto" and the batch triad; check rules that span keys. May be called again with
 *  better facts; texts of zn_config_get are then other copies. An "auto" that cannot be known yet
 *  takes the Trainer's or DeepSpeed's default, and its origin says so; total_num_steps stays -1.
 *  Errors: E_CONFIG; E_INVALID for impossible facts. */
ZINC_MUST_CHECK zinc_status zn_config_resolve(zn_config *config, const zn_config_facts *facts);

/** Name of the ds_config.json, or of the file that there is. Borrowed. */
const char *zn_config_name(const zn_config *config);
/** Take over where ranks run, which another configuration's block "accelerate" says; the type
 *  becomes DEEPSPEED. */
ZINC_MUST_CHECK zinc_status zn_config_take_machines(zn_config *config, const zn_config *from);
/** The typed values; complete after zn_config_resolve. Borrowed. */
const zn_config_values *zn_config_get(const zn_config *config);

/** Where the value of a key came from: "ds.json:12" (the file's name as it was given), "default",
 *  "argument --x", "auto: …". Borrowed; NULL for an unknown path and before zn_config_resolve. */
const char *zn_config_origin(const zn_config *config, const char *key_path);

/** Whether the file itself gives this key (not "auto"). */
bool zn_config_is_explicit(const zn_config *config, const char *key_path);

/** Append the JSON document of `zinc config check --json`: {"ok", "resolved", "origin", "notes"},
 * or
 *  {"ok", "errors"} if errors were collected. */
ZINC_MUST_CHECK zinc_status zn_config_append_json(const zn_config *config, zn_buf *out);

/** Append a table for people: key, value, origin. */
ZINC_MUST_CHECK zinc_status zn_config_append_table(const zn_config *config, zn_buf *out);

/** Append the file as plain JSON, which strict readers take: no comments, no trailing commas, whole
 *  numbers as integers; "auto" stays. */
ZINC_MUST_CHECK zinc_status zn_config_append_plain(const zn_config *config, zn_buf *out);

/** Append the configuration as a ds_config.json: what was given, whatever it was given by, "auto"
 *  kept, and the stage. with_machines: a block "accelerate" says where ranks run (DeepSpeed ignores
 *  it). After zn_config_resolve. */
ZINC_MUST_CHECK zinc_status zn_config_append_deepspeed(const zn_config *config, bool with_machines,
                                                       zn_buf *out);

/** Append it as the YAML that `accelerate config` writes, for n_ranks ranks: FSDP if it has a
 *  strategy, else DEEPSPEED or what the YAML was. What that has no place for is named in *lost, a
 *  line each. After zn_config_resolve. */
ZINC_MUST_CHECK zinc_status zn_config_append_accelerate(const zn_config *config, int64_t n_ranks,
                                                        zn_buf *lost, zn_buf *out);

/** Append docs/config.md: the key table as Markdown. */
ZINC_MUST_CHECK zinc_status zn_config_append_doc(zn_buf *out);

/** Number of collected errors and notes, and their one-line text
 *  ("ds.json:7:14: zero_optimization.stage: … (hint)"). Borrowed. */
int zn_config_n_errors(const zn_config *config);
const char *zn_config_error(const zn_config *config, int i);
int zn_config_n_notes(const zn_config *config);
const char *zn_config_note(const zn_config *config, int i);

/* One row of the key table, for docs/config.md and `zinc config`. */
typedef struct zn_config_key_info {
    const char *path, *type, *default_text, *status, *doc;
} zn_config_key_info;
int zn_config_n_keys(void);
void zn_config_key(int i, zn_config_key_info *out);

/** Nearest of n names to `name` by edit distance, or NULL if none is near. For "did you mean". */
const char *zn_nearest_name(const char *name, const char *const *names, int n);

#endif
