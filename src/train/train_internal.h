/* SPDX-License-Identifier: Apache-2.0 */
/* train_internal.h — what the files of train/ share. Layer: train. */
#ifndef ZN_TRAIN_TRAIN_INTERNAL_H
#define ZN_TRAIN_TRAIN_INTERNAL_H

#include "ckpt/checkpoint.h"
#include "data/dataset.h"
#include "device/trace.h"
#include "engine/engine.h"
#include "train/metrics.h"
#include "train/train.h"

/* Where a resumed run goes on; zeroed in a new one. */
typedef struct zn_train_resume {
    char *dir;         /* the checkpoint's folder; owned */
    bool deepspeed;    /* it is one of DeepSpeed's */
    int64_t step;      /* steps done */
    uint64_t run_id;   /* of the run it belongs to */
    bool nothing_left; /* that was the last step and the model is saved */
} zn_train_resume;

/* One process's view of the run; read-only once the ranks start. */
typedef struct zn_train_setup {
    const zn_train_options *o;
    zn_model_spec spec;
    zn_tokenizer *tokenizer; /* NULL if no file has text */
    zn_chat *chat;           /* with the tokenizer */
    zn_dataset *train, *validation;
    zn_config *config;
    const zn_config_values *values; /* of config, resolved */
    const zn_optim_ops *optim;
    zn_optim_hyper hyper;
    zn_lr_schedule schedule;
    bool decay_all;
    bool checkpointing; /* asked for by option or file */
    zn_dtype save_dtype;
    int n_ranks, threads;
    int64_t block_size;
    int64_t max_steps, steps_per_epoch;
    int64_t micro_batch, accumulation;
    zn_train_resume resume;
    zn_trace *trace; /* of this process's ranks, with --profile; else NULL */
    int output_lock; /* of the process that writes output_dir: a descriptor + 1; 0: none */
} zn_train_setup;

/* setup.c */
ZINC_MUST_CHECK zinc_status zn_train_setup_open(const zn_train_options *options, int n_ranks,
                                                zn_train_setup *out);
void zn_train_setup_close(zn_train_setup *setup);
/** The model's parameters, frozen ones marked. Release with zn_param_list_fini, also on an error.
 */
ZINC_MUST_CHECK zinc_status zn_train_param_list(const zn_train_setup *setup, zn_param_list *out);
/** Where tokenizer.json of a run would be; it need not exist. Free with zn_free. */
ZINC_MUST_CHECK zinc_status zn_train_tokenizer_path(const zn_train_options *o, char **out);
/** Make the output folder, or refuse one that holds a run. By one rank. */
ZINC_MUST_CHECK zinc_status zn_train_claim_output(const zn_train_options *options);
/** Keep other runs out of output_dir until this process ends; nothing yet if there is no such
 *  folder. A run that is just ending is waited for. By one rank. Errors: E_CONFIG. */
ZINC_MUST_CHECK zinc_status zn_train_lock_output(zn_train_setup *setup);
/** Engine parameters of one rank; dev and comm may be NULL (planning). */
zn_engine_params zn_train_engine_params(const zn_train_setup *setup, zn_device *dev, zn_comm *comm);

/** config.json (with the saved type), tokenizer and the like into a saved model's folder. */
ZINC_MUST_CHECK zinc_status zn_train_copy_model_files(const zn_train_setup *setup, const char *dir);

/* ranks.c */
/** Take the output folder: lock it, clean it, find what to go on from (setup->resume), or refuse.
 * By one process. Errors: E_CONFIG, E_IO; as zn_train_resume_find. */
ZINC_MUST_CHECK zinc_status zn_train_begin(zn_train_setup *setup);

/* resume.c */
/** Find and check the checkpoint that the options ask for, if any; setup->resume gets it. Not
 *  collective; once a process. tell: log what is going on. Errors: E_IO, E_FORMAT name the newest
 *  complete checkpoint; E_CONFIG what differs. */
ZINC_MUST_CHECK zinc_status zn_train_resume_find(zn_train_setup *setup, bool tell);
/** The engine's first state: of the checkpoint, the model's weights, or random. Collective. */
ZINC_MUST_CHECK zinc_status zn_train_load_state(const zn_train_setup *setup, zn_engine *engine);

/* ranks.c */
/** Ranks of this process's machine, of n_ranks in all. */
int zn_train_ranks_per_node(const zn_train_options *o, int n_ranks);

/* run.c */
/** One rank from device to saved model. `world` for the thread backend, else NULL: then the process
 *  has this rank alone, and learns from rank 0 what the run goes on from. */
ZINC_MUST_CHECK zinc_status zn_train_rank(zn_train_setup *setup, int rank, zn_thread_world *world);

/* sample.c */
/** With --show_sample: the first training row on stderr, token by token. By one rank. */
ZINC_MUST_CHECK zinc_status zn_train_show_sample(const zn_train_setup *setup);

/* report.c */
/** The start-up table of rank 0, on stderr. */
void zn_train_print_memory(const zn_train_setup *setup, zn_engine *engine, zn_device *dev);
/** What --dry_run prints: the resolved run and the formula of every stage. */
void zn_train_print_plan(const zn_train_setup *setup);
/** Refuse a run that this machine's memory (built in, or the cgroup's limit) cannot hold, and warn
 *  of one that only short rows would let through. Not collective. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_train_check_memory(const zn_train_setup *setup);
/** One row of --json, on stdout. */
ZINC_MUST_CHECK zinc_status zn_train_print_row(const zn_metrics_row *row);
/** Say on stderr what would fit instead. */
void zn_train_explain_nomem(const zn_train_setup *setup);

/** "512 B", "1.5 MB": powers of 1000, as the tables print them. */
void zn_train_format_bytes(char *out, size_t n, double bytes);

/* stop.c */
void zn_train_catch_signals(void);
/** The first SIGINT, SIGTERM or SIGUSR1 that has arrived, or 0. */
int zn_train_signal(void);

/** Touch the file that `zinc launch --hang_timeout` watches, if it has named one. */
void zn_train_beat(void);

#endif
