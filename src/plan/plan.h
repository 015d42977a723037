/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h — memory, traffic and step time of a model on a machine under a configuration, before
 * anything runs.
 *
 *   model     a config.json, a known name, or a number of parameters       (shapes.c)
 *   machine   a preset of public figures, or options                       (hardware.c)
 *   config    ds_config.json values, as training resolves them
 *        -> zn_plan_make    bytes by category and place, from the code that allocates; seconds by
 *                           cause, from rates of the machine               (plan.c, plan_time.c)
 *        -> zn_plan_search  the cheapest change that makes it fit          (plan_search.c)
 *        -> text, JSON, a ds_config.json                                   (plan_print.c,
 * plan_json.c) accounting.c: the three textbook countings, which know no code.
 *
 * Bytes are exact (tests hold them against runs); seconds are an estimate. GB are 10^9.
 * Layer: plan (may use engine and below). */
#ifndef ZN_PLAN_PLAN_H
#define ZN_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "config/config.h"
#include "model/model.h"
#include "zero/zero_plan.h"

/* Of a device's matrix peak: 40 to 50% is what well-tuned training of large models reports (PaLM,
 * Llama 3: 38 to 57% model FLOPs utilisation). */
#define ZN_PLAN_COMPUTE_SHARE 0.45

/* A machine of equal nodes. 0: not known; then nothing is limited by it and it takes no time. */
typedef struct zn_plan_hardware {
    const char *name;         /* of the preset; "" */
    int gpus, nodes;          /* devices of a node; nodes. Ranks are their product */
    double device_bytes;      /* of a device */
    double host_bytes;        /* of a node */
    double disk_bytes;        /* of a node */
    double flops, fp32_flops; /* matrix FLOP/s of a device, at peak: 16-bit, fp32 */
    double compute_share;     /* of that peak, what training reaches */
    double pass_rate;         /* bytes/s of activations through all that is no matrix product; 0: in
                                 compute_share */
    /* rates as they are reached */
    double device_rate;  /* bytes/s of a device's memory */
    double link;         /* bytes/s between host and one device, each way */
    double link_latency; /* seconds of each copy besides */
    double peer;         /* bytes/s that a device sends to others of its node */
    double network;      /* bytes/s that a node sends */
    double host_rate;    /* bytes/s of a node's memory */
    double disk_rate;    /* bytes/s of a node's disk */
} zn_plan_hardware;

/** Public figures of a device by name, or those of this machine, measured with n_threads threads a
 *  rank; counts of devices are left alone. Errors: E_CONFIG lists the names. */
ZINC_MUST_CHECK zinc_status zn_plan_preset(const char *name, int n_threads, zn_plan_hardware *out);
/** this_machine.c: fill *hw (zeroed but for gpus and nodes, and what cannot be measured here). */
ZINC_MUST_CHECK zinc_status zn_plan_this_machine(int n_threads, zn_plan_hardware *hw);
/** Names of the presets: "rtx3090, …". */
const char *zn_plan_preset_names(void);

/** A folder with config.json, the file itself, or a known name. Release with zn_model_spec_fini.
 *  *known: it was a name. Errors: zn_model_spec_load's; E_CONFIG lists the names. */
ZINC_MUST_CHECK zinc_status zn_plan_model(const char *model, zn_model_spec *out, bool *known);

typedef struct zn_plan_shape {
    int64_t n_params;                     /* >= 1 */
    int64_t layers, hidden, heads, vocab; /* 0: as models of this size usually have them */
} zn_plan_shape;

/** A llama-shaped model with n_params parameters (within half a percent): what is not given follows
 *  from the usual proportions, the MLP's size makes up the rest. Errors: E_CONFIG where the sizes
 *  that are given hold more than n_params, or less than half a percent would miss. */
ZINC_MUST_CHECK zinc_status zn_plan_model_of_size(const zn_plan_shape *shape, zn_model_spec *out);

/* What is planned. Everything is borrowed. */
typedef struct zn_plan_run {
    const zn_model_spec *spec;
    const zn_param_list *list;
    zn_config_values config; /* resolved; a copy, so that variants are cheap. Texts are borrowed */
    const zn_optim_ops *optim;
    bool checkpointing;
    bool shared; /* ranks of a node share memory, and parameters in it */
    int64_t block_size;
    int n_threads;    /* compute threads of a rank */
    double compute_s; /* measured: forward and backward of a step; 0: estimated */
    zn_plan_hardware hw;
} zn_plan_run;

typedef enum zn_plan_row {
    ZN_PLAN_PARAMETERS,
    ZN_PLAN_GRADIENTS,      /* reduced, at rest */
    ZN_PLAN_UNIT_GRADIENTS, /* of the units that backward is in */
    ZN_PLAN_MASTERS,
    ZN_PLAN_OPTIMIZER_STATE,
    ZN_PLAN_ACTIVATIONS,
    ZN_PLAN_BUCKETS,    /* what collectives and copies pass through */
    ZN_PLAN_LIVE_UNITS, /* gathered parameters */
    ZN_PLAN_BUFFERS,    /* widened weights, logits tiles, scratch */
    ZN_PLAN_N_ROWS,
} zn_plan_row;

/** "parameters", "unit_gradients", … as in JSON. */
const char *zn_plan_row_name(zn_plan_row row);
/** "device", "host", "disk". */
const char *zn_plan_tier_name(int tier);

typedef enum zn_plan_cause {
    ZN_PLAN_COMPUTE,
    ZN_PLAN_NETWORK,
    ZN_PLAN_LINK,
    ZN_PLAN_OPTIMIZER,
    ZN_PLAN_DISK,
    ZN_PLAN_N_CAUSES,
} zn_plan_cause;
const char *zn_plan_cause_name(zn_plan_cause cause);

typedef struct zn_plan {
    zn_zero_plan zero;
    int n_ranks;
    int64_t bytes[ZN_ZERO_N_TIERS][ZN_PLAN_N_ROWS]; /* of one rank */
    int64_t total[ZN_ZERO_N_TIERS];
    double limit[ZN_ZERO_N_TIERS]; /* share of one rank; 0: none known */
    double over[ZN_ZERO_N_TIERS];  /* bytes too many of one rank; 0 where it fits */
    bool fits;
    double seconds[ZN_PLAN_N_CAUSES]; /* of a step, each alone */
    double step_s;                    /* overlaps taken into account; 0: not known */
    double tokens_per_s;              /* of all ranks */
    zn_plan_cause bound;              /* the cause that takes longest */
} zn_plan;

/** Work out one configuration. Errors: E_INVALID for settings that exclude each other, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_plan_make(const zn_plan_run *run, zn_plan *out);
/** Bytes of blocks' inputs that a step copies to the host, and as many back. */
int64_t zn_plan_checkpoint_bytes(const zn_plan_run *run);
/** plan_time.c: what parts of a step cost, for the walk of zn_zero_plan_make. *known: the machine's
 *  speed is. Release with zn_plan_costs_fini. */
typedef struct zn_plan_costs {
    zn_zero_costs zero;
    double *units; /* owned: forward, then backward */
    bool known;
} zn_plan_costs;
ZINC_MUST_CHECK zinc_status zn_plan_costs_make(const zn_plan_run *run, zn_plan_costs *out);
void zn_plan_costs_fini(zn_plan_costs *costs);
/** Fill the seconds of a plan that was walked with costs. */
void zn_plan_time(const zn_plan_run *run, zn_plan *plan);
/** The engine's parameters of a variant, as zn_engine_create would make them. */
void zn_plan_zero_params(const zn_plan_run *run, zn_zero_params *out);

/* ---- search ---- */

#define ZN_PLAN_MAX_FIXES 16

typedef struct zn_plan_fix {
    const char *key;  /* JSON path in ds_config.json, or a command-line argument ("--…") */
    char value[32];   /* as JSON */
    const char *what; /* "smaller micro-batches" */
} zn_plan_fix;

typedef struct zn_plan_search {
    const zn_plan_run *given; /* borrowed */
    zn_plan before;           /* of it */
    bool found;
    zn_plan_fix fixes[ZN_PLAN_MAX_FIXES];
    int n_fixes;     /* 0 where it fits as it is */
    zn_plan_run run; /* with the fixes */
    zn_plan after;
    zn_plan cpu_only; /* the smallest without disk; tells why it was needed. */
    bool needs_disk;  /* cpu_only does not fit */
    int nodes;        /* not found: nodes of this kind on which `run` would fit; 0: none known */
} zn_plan_search;

/** The cheapest change that makes the run fit, in the order micro-batch, checkpointing, buckets,
 *  stage, optimizer to the host, parameters to the host, optimizer to disk; no more of them than
 *  are needed. Errors: zn_plan_make's. */
ZINC_MUST_CHECK zinc_status zn_plan_find(const zn_plan_run *run, zn_plan_search *out);

/** One row of --all. */
typedef struct zn_plan_variant {
    int stage;
    zn_offload_device optimizer, params;
} zn_plan_variant;
extern const zn_plan_variant zn_plan_variants[];
extern const int zn_plan_n_variants;

/** "none", "optimizer cpu", "optimizer nvme, parameters cpu". */
const char *zn_plan_offload_name(zn_offload_device optimizer, zn_offload_device params);
void zn_plan_apply_variant(const zn_plan_variant *variant, zn_plan_run *run);

/* ---- output; all append ---- */

ZINC_MUST_CHECK zinc_status zn_plan_append_text(const zn_plan_search *search, zn_buf *out);
/** The part of the text that says what would fit, for a search whose run does not. */
ZINC_MUST_CHECK zinc_status zn_plan_append_advice(const zn_plan_search *search, zn_buf *out);
ZINC_MUST_CHECK zinc_status zn_plan_append_json(const zn_plan_search *search, zn_buf *out);
/** Every stage and offload, as text or as {"rows":[…]}. */
ZINC_MUST_CHECK zinc_status zn_plan_append_all(const zn_plan_run *run, bool json, zn_buf *out);
/** A ds_config.json for this run. nvme_path is used where something goes to disk. */
ZINC_MUST_CHECK zinc_status zn_plan_append_config(const zn_plan_run *run, const char *nvme_path,
                                                  zn_buf *out);

/** The file that `config` was read from with the settings of search->run: every other key stays,
 *  comments do not. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_plan_append_changed(const zn_plan_search *search,
                                                   const zn_config *config, const char *nvme_path,
                                                   zn_buf *out);

/* ---- shared with the training report ---- */

/** "512 B", "1.5 MB": powers of 1000. */
void zn_plan_format_bytes(char *out, size_t n, double bytes);
/** Model-state bytes of a rank on the device at stages 0 to 3, a table of five lines; `current`
 *  is marked. zero: any stage; tiers of stages that cannot have them are left out. */
ZINC_MUST_CHECK zinc_status zn_plan_append_stages(const zn_zero_plan_params *params,
                                                  const zn_param_list *list, int current,
                                                  zn_buf *out);

/* ---- textbook countings ---- */

typedef enum zn_accounting_kind {
    ZN_ACCOUNTING_ZINC,      /* what this program allocates: zn_plan_make */
    ZN_ACCOUNTING_CLASSIC,   /* 2 + 2 + 8 bytes a parameter: tutorials */
    ZN_ACCOUNTING_MIXED16,   /* 2 + 2 + 12: the ZeRO paper */
    ZN_ACCOUNTING_DEEPSPEED, /* DeepSpeed's estimators */
} zn_accounting_kind;

typedef struct zn_accounting {
    double parameters, gradients, optimizer; /* bytes on a device */
    double device_total;
    double host_parameters, host_optimizer, host_total; /* of one rank */
} zn_accounting;

/** CLASSIC and MIXED16: n_params over n_ranks. Parameters that are offloaded count on both sides:
 *  the shard at rest on the host, and as much on the device while it is worked on. */
void zn_accounting_make(zn_accounting_kind kind, double n_params, int n_ranks,
                        const zn_plan_variant *variant, zn_accounting *out);
/** All stages with none or CPU offload, as text or as {"rows":[…]}; variant NULL. Otherwise one. */
ZINC_MUST_CHECK zinc_status zn_accounting_append(zn_accounting_kind kind, double n_params,
                                                 int n_ranks, const zn_plan_variant *variant,
                                                 bool json, zn_buf *out);

typedef struct zn_deepspeed_estimate {
    int stage; /* 2 or 3 */
    int64_t n_params, largest_layer;
    int gpus_per_node, nodes;
    bool offload_optimizer, offload_param, zero_init;
    double buffer_factor;
    int64_t gpu_bytes, cpu_bytes; /* results: a GPU, a node */
} zn_deepspeed_estimate;

/** What DeepSpeed 0.19.8's estimate_zero2/3_model_states_mem_needs return, bit for bit.
 *  Errors: E_CONFIG for what they do not cover. */
ZINC_MUST_CHECK zinc_status zn_deepspeed_estimate_make(zn_deepspeed_estimate *estimate);

#endif
