/* SPDX-License-Identifier: Apache-2.0 */
/* train.h — the training run behind `zinc train`: from arguments to a finished model folder.
 *
 *   setup.c   arguments -> model spec, data, resolved configuration, output folder (once a process)
 *   run.c     one rank: device, comm, engine, the loop over optimizer steps, evaluation, saving
 *   ranks.c   the ranks of this process: threads, one MPI process, or mpirun started for the user
 *   report.c  the start-up table: what a rank holds, beside the formula
 *   stop.c    signals
 * Layer: train (may use engine and below). */
#ifndef ZN_TRAIN_TRAIN_H
#define ZN_TRAIN_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

typedef enum zn_loss_average {
    ZN_LOSS_AVERAGE_TOKENS,        /* over the unmasked targets of the whole global batch */
    ZN_LOSS_AVERAGE_MICRO_BATCHES, /* mean of each micro-batch, then over them and ranks */
} zn_loss_average;

/* What the command line said; names as in TrainingArguments. Borrowed during zn_train. */
typedef struct zn_train_options {
    const char *model;     /* folder with config.json (and weights), or a config.json */
    const char *tokenizer; /* tokenizer.json or its folder; NULL: the model's folder */
    const char *const *train_files;
    int n_train_files;
    const char *const *validation_files;
    int n_validation_files;
    const char *output_dir;
    const char *deepspeed;               /* ds_config.json; NULL: none */
    const char *accelerate_config;       /* accelerate YAML, "default"; NULL: none */
    const char *fsdp, *fsdp_config;      /* words, and JSON or its file; NULL: none */
    const zn_config_argument *arguments; /* those that may fill or contradict the file */
    int n_arguments;
    const char *resume; /* checkpoint folder; "" or "latest": of output_dir; NULL: a new run */

    int64_t max_steps; /* -1: from num_train_epochs */
    double num_train_epochs;
    const char *lr_scheduler_type;
    int64_t warmup_steps;
    double warmup_ratio;
    int64_t logging_steps, eval_steps, save_steps; /* 0: off */
    int64_t save_total_limit;                      /* checkpoints kept; 0: all */
    bool async_save;                               /* write checkpoints beside the training */
    bool save_failure_stops;                       /* a checkpoint that fails ends the run */
    int64_t eval_batch_size;                       /* 0: the training micro-batch */
    int64_t block_size;                            /* 0: min(1024, the model's maximum) */
    uint64_t seed;
    bool shuffle, from_scratch, overwrite_output_dir, save_on_signal, dry_run, json;
    bool gradient_checkpointing, share_parameters;
    bool loss_on_all;        /* of rows of "messages", not only what assistants say */
    bool packing_boundaries; /* packed texts do not see one another */
    bool show_sample;        /* print the first row and what of it is learned */
    double dropout;          /* NaN: as config.json says */
    zn_loss_average loss_average;
    const char *const *freeze; /* globs on names of parameters that are not trained */
    int n_freeze;
    const char *decay_groups; /* "all", "no_bias_norm"; NULL: by where the optimizer comes from */
    const char *save_dtype;   /* NULL: the checkpoint's */
    int64_t max_shard_bytes;  /* 0: one file */

    int ranks, threads;                      /* threads 0: cores / ranks */
    const char *comm;                        /* "thread", "mpi" */
    const char *device;                      /* "cpu" */
    int64_t device_limit;                    /* --device_memory, bytes; 0: none */
    double link_bytes_per_s, link_latency_s; /* stand-in link to the host; 0: memory speed */
    double timeout_s;                        /* deadline of a collective */
    bool profile;      /* the time of phases at the end, and OUTPUT_DIR/trace.json */
    double peak_flops; /* of one core, for "share of peak"; 0: measure */
} zn_train_options;

void zn_train_defaults(zn_train_options *out);

/** Run to the end. Returns the process's exit code (cli.h); on a failure the message has been
 *  printed. */
int zn_train(const zn_train_options *options);

/** Exit code of a failed run by its status; shared with the command line. */
int zn_train_exit_code(zinc_status status);

#endif
