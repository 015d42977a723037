/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c — the ranks of this process, and the process's exit code. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/mem.h"
#include "ckpt/checkpoint.h"
#include "train/mpirun.h"
#include "train/train_internal.h"

typedef struct rank_thread {
    pthread_t thread;
    zn_train_setup *setup;
    zn_thread_world *world;
    int rank;
    bool started;
    zn_error error;
} rank_thread;

static void *run_rank(void *arg)
{
    rank_thread *t = arg;
    if (t->setup->n_ranks > 1)
        zn_log_set_rank(t->rank);
    zn_error_save(&t->error, zn_train_rank(t->setup, t->rank, t->world));
    return NULL;
}

/* The first cause: a rank that only heard of another's failure says E_ABORTED. */
static zinc_status first_cause(const rank_thread *threads, int n)
{
    const rank_thread *cause = NULL;
    for (int i = 0; i < n; i++)
        if (threads[i].error.status != ZINC_OK &&
            (!cause ||
             (cause->error.status == ZINC_E_ABORTED && threads[i].error.status != ZINC_E_ABORTED)))
            cause = &threads[i];
    return cause ? zn_error_restore(&cause->error) : ZINC_OK;
}

static zinc_status run_threads(zn_train_setup *setup)
{
    zinc_status status;
    zn_thread_world *world = NULL;
    rank_thread *threads = NULL;
    const int n = setup->n_ranks;
    ZN_TRY_GOTO(zn_alloc_array(&threads, (size_t)n, sizeof *threads, "rank threads"));
    ZN_TRY_GOTO(zn_thread_world_create(n, &world));
    for (int i = 0; i < n; i++) {
        threads[i] = (rank_thread){.setup = setup, .world = world, .rank = i};
        threads[i].started = pthread_create(&threads[i].thread, NULL, run_rank, &threads[i]) == 0;
        if (!threads[i].started) /* its partners meet their deadline and name it */
            zn_error_save(&threads[i].error,
                          zn_error_set(ZINC_E_NOMEM, __FILE__, __LINE__, __func__,
                                       "cannot start the thread of rank %d", i));
    }
    for (int i = 0; i < n; i++)
        if (threads[i].started)
            pthread_join(threads[i].thread, NULL);
    status = first_cause(threads, n);
fail:
    zn_thread_world_destroy(world);
    zn_free(threads);
    return status;
}

void zn_train_beat(void)
{
    const char *path = getenv("ZINC_HEARTBEAT_FILE");
    if (path && utimensat(AT_FDCWD, path, NULL, 0) != 0) /* the launcher then sees no progress */
        zn_debug("train", "cannot touch %s: %s", path, strerror(errno));
}

/* ---- MPI: join a job, or start one ---- */

static int mpi_env(const char *const names[], int n)
{
    for (int i = 0; i < n; i++) {
        const char *text = getenv(names[i]);
        if (text)
            return (int)strtol(text, NULL, 10);
    }
    return -1;
}

/* SLURM_NTASKS alone says nothing: a batch script has it too, and is no MPI process. srun
 * --mpi=pmix sets PMIX_RANK. */
int zn_train_mpi_world(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    return mpi_env(names, getenv("PMIX_RANK") ? 3 : 2);
}

static int mpi_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    return mpi_env(names, 3);
}

int zn_train_ranks_per_node(const zn_train_options *o, int n_ranks)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "SLURM_STEP_TASKS_PER_NODE"};
    const int n = strcmp(o->comm, "mpi") == 0 ? mpi_env(names, 3) : n_ranks;
    return n > 0 ? n : n_ranks;
}

/* Without PMI every process would be an MPI job of its own. */
static zinc_status check_srun(void)
{
    static const char *const names[] = {"SLURM_STEP_NUM_TASKS"};
    const int n = mpi_env(names, 1);
    if (zn_train_mpi_world() < 1 && n > 1)
        ZN_FAIL(ZINC_E_CONFIG,
                "srun has started %d processes that do not know each other; give it --mpi=pmix, or "
                "start the run once with 'zinc launch zinc train ...' in the allocation",
                n);
    return ZINC_OK;
}

/* ---- the process ---- */

#define CAUSE_FIRST_SECONDS 0.3 /* by which the rank whose error it is ends before the others */

int zn_train_exit_code(zinc_status status)
{
    switch (status) {
    case ZINC_OK:
        return 0;
    case ZINC_E_NOMEM:
        return 3;
    case ZINC_E_IO:
        return 4;
    case ZINC_E_TIMEOUT:
        return 5;
    case ZINC_E_COMM:
        return 6;
    default:
        return 1;
    }
}

static zinc_status check_options(const zn_train_options *o)
{
    if (strcmp(o->device, "cpu") != 0)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "--device %s is not in this build; it runs on: cpu", o->device);
    if (strcmp(o->comm, "thread") != 0 && strcmp(o->comm, "mpi") != 0)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "--comm %s is not in this build; thread (ranks in one process) and mpi (one "
                "process a rank) are",
                o->comm);
    return ZINC_OK;
}

zinc_status zn_train_begin(zn_train_setup *setup)
{
    const zn_train_options *o = setup->o;
    ZN_TRY(zn_train_lock_output(setup));
    if (o->resume)
        zn_ckpt_clean(o->output_dir);
    ZN_TRY(zn_train_resume_find(setup, true));
    if (setup->resume.nothing_left)
        return ZINC_OK;
    ZN_TRY(zn_train_check_memory(setup));
    ZN_TRY(zn_train_claim_output(o));
    return zn_train_lock_output(setup);
}

/* *code is what the process exits with if it was the parent of the ranks. */
static zinc_status run(const zn_train_options *o, zn_train_setup *setup, int *code)
{
    const bool mpi = strcmp(o->comm, "mpi") == 0;
    const int world = mpi ? zn_train_mpi_world() : o->ranks;
    const int rank = mpi ? mpi_rank() : 0;
    ZN_TRY(check_options(o));
    if (mpi)
        ZN_TRY(check_srun());
    if (mpi && world < 1)
        return zn_train_mpirun(o->ranks, code);
    if (mpi && o->ranks > 1 && o->ranks != world)
        ZN_FAIL(ZINC_E_CONFIG, "--ranks %d, but the MPI job has %d processes", o->ranks, world);
    ZN_TRY(zn_train_setup_open(o, world, setup));
    for (int i = 0; rank == 0 && i < zn_config_n_notes(setup->config); i++)
        zn_info("config", "note: %s", zn_config_note(setup->config, i));
    if (o->dry_run) {
        if (rank == 0)
            zn_train_print_plan(setup);
        return ZINC_OK;
    }
    if (mpi) {
        zn_train_catch_signals();
        zn_log_set_rank(rank);
        return zn_train_rank(setup, rank, NULL);
    }
    ZN_TRY(zn_train_begin(setup));
    if (setup->resume.nothing_left)
        return ZINC_OK;
    zn_train_catch_signals();
    return run_threads(setup);
}

int zn_train(const zn_train_options *options)
{
    zn_train_setup setup = {0};
    int code = 0;
    const zinc_status status = run(options, &setup, &code);
    if (status != ZINC_OK && status != ZINC_E_ABORTED) {
        zn_log(ZN_LOG_ERROR, "train", "%s", zinc_last_error());
        if (status == ZINC_E_NOMEM)
            zn_train_explain_nomem(&setup);
    } else if (status == ZINC_E_ABORTED && zn_train_signal() == 0) {
        zn_log(ZN_LOG_ERROR, "train", "%s", zinc_last_error());
    }
    zn_train_setup_close(&setup);
    if (status == ZINC_E_ABORTED) /* mpirun's exit code is that of the first process to end */
        zn_sys_sleep(CAUSE_FIRST_SECONDS);
    if (status == ZINC_OK && zn_train_signal() != 0)
        return 128 + zn_train_signal();
    return status == ZINC_OK ? code : zn_train_exit_code(status);
}
