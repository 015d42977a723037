/* SPDX-License-Identifier: Apache-2.0 */
#include "train/saving.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "ckpt/checkpoint.h"
#include "engine/engine_ckpt.h"
#include "train/run_state.h"

#define MAX_FILES 32                   /* parts' files of rank 0 and what makes a model folder */
#define PIECE_ELEMS ((int64_t)1 << 20) /* written at once by the thread */
#define MEMORY_SHARE 0.9               /* of this machine's memory that copies may fill */

struct zn_saver {
    const zn_train_setup *s;
    zn_device *dev;
    zn_engine *engine;
    zn_comm *comm;
    const zn_nodes *nodes; /* or NULL */
    int rank, n_ranks;
    bool first;        /* of the ranks that see this folder: makes and publishes it */
    zn_ckpt_meta meta; /* of the save under way; what does not change is filled once */
    zn_snapshot snapshot;
    float *copy; /* [snapshot.n_elems], or NULL: written at once */
    bool prepared, told_foreign;

    bool pending;        /* begun and not finished */
    atomic_bool written; /* this rank's part is, or has failed */
    bool threaded;       /* `thread` is to be joined */
    pthread_t thread;
    zn_error error; /* of this rank's part; read once `written` */
    char *dir;      /* checkpoint-N.tmp */
    zn_ckpt_file files[MAX_FILES];
    int n_files;       /* 2 of the part; on rank 0 more */
    zn_ckpt_file *all; /* [2 * n_ranks] exchanged */
    int64_t last;
    double waited,
        wrote; /* seconds of this rank: training stood still; from then to the last byte */
};

zinc_status zn_saver_create(const zn_train_setup *setup, zn_device *dev, zn_engine *engine,
                            const zn_nodes *nodes, zn_saver **out)
{
    zn_saver *saver = NULL;
    ZN_TRY(zn_alloc(&saver, sizeof *saver, "the saver"));
    saver->s = setup;
    saver->dev = dev;
    saver->engine = engine;
    saver->comm = zn_engine_comm(engine);
    saver->rank = zn_comm_rank(saver->comm);
    saver->n_ranks = zn_comm_n_ranks(saver->comm);
    saver->nodes = nodes;
    saver->first = nodes ? nodes->first : saver->rank == 0;
    saver->last = -1;
    *out = saver;
    return ZINC_OK;
}

static void join(zn_saver *saver)
{
    if (saver->threaded)
        pthread_join(saver->thread, NULL);
    saver->threaded = false;
}

void zn_saver_destroy(zn_saver *saver)
{
    if (!saver)
        return;
    join(saver);
    zn_device_free(saver->dev, saver->copy);
    zn_snapshot_fini(&saver->snapshot);
    zn_ckpt_meta_fini(&saver->meta);
    zn_free(saver->all);
    zn_free(saver->dir);
    zn_free(saver);
}

bool zn_saver_due(const zn_train_setup *setup, int64_t step)
{
    const int64_t every = setup->o->save_steps;
    return every > 0 &&
           (step % every == 0 || (step == setup->max_steps && setup->max_steps >= every));
}

int64_t zn_saver_last(const zn_saver *saver)
{
    return saver->last;
}

bool zn_saver_ready(const zn_saver *saver)
{
    return saver->pending && atomic_load(&saver->written);
}

/* ---- one rank's part ---- */

static zinc_status stream_values(zn_saver *saver, zn_part *part)
{
    if (!saver->copy)
        return zn_snapshot_write(&saver->snapshot, part);
    for (int64_t done = 0; done < saver->snapshot.n_elems; done += PIECE_ELEMS) {
        const int64_t left = saver->snapshot.n_elems - done;
        ZN_TRY(zn_part_write(part, saver->copy + done, left < PIECE_ELEMS ? left : PIECE_ELEMS));
    }
    return ZINC_OK;
}

static zinc_status write_part(zn_saver *saver)
{
    zinc_status status;
    zn_part *part = NULL;
    const zn_part_params params = {.dir = saver->dir,
                                   .rank = saver->rank,
                                   .n_ranks = saver->n_ranks,
                                   .list = zn_engine_param_list(saver->engine),
                                   .state_names = saver->s->optim->state_names,
                                   .ranges = saver->snapshot.ranges,
                                   .n_ranges = saver->snapshot.n_ranges};
    ZN_TRY_GOTO(zn_part_create(&params, &part));
    ZN_TRY_GOTO(stream_values(saver, part));
    ZN_TRY_GOTO(zn_part_finish(part, saver->files));
    saver->n_files = 2;
    status = ZINC_OK;
fail:
    zn_part_destroy(part);
    return status;
}

/* config.json, tokenizer and the like: whatever the copy put beside the parts. */
static zinc_status add_model_files(zn_saver *saver)
{
    ZN_TRY(zn_train_copy_model_files(saver->s, saver->dir));
    return zn_ckpt_other_files(saver->dir, saver->files, MAX_FILES, &saver->n_files);
}

static void write_all(zn_saver *saver)
{
    const double start = zn_sys_now();
    zinc_status status = write_part(saver);
    if (status == ZINC_OK && saver->rank == 0)
        status = add_model_files(saver);
    zn_error_save(&saver->error, status);
    saver->wrote = zn_sys_now() - start;
    if (status == ZINC_OK)
        zn_debug("train", "checkpoint-%lld: shard %d of %d, %.1f MB at %.0f MB/s",
                 (long long)saver->meta.step, saver->rank + 1, saver->n_ranks,
                 (double)saver->files[0].n_bytes / 1e6,
                 (double)saver->files[0].n_bytes / 1e6 / saver->wrote);
    else
        zn_warn("train", "checkpoint-%lld cannot be saved: %s", (long long)saver->meta.step,
                saver->error.message);
    atomic_store(&saver->written, true);
}

static void *write_thread(void *arg)
{
    zn_saver *saver = arg;
    if (saver->n_ranks > 1)
        zn_log_set_rank(saver->rank);
    write_all(saver);
    return NULL;
}

/* ---- beginning ---- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Without the copy the rank writes at once. Memory that is promised and not there would end the
 * process later, so it is asked for before. */
static void find_room(zn_saver *saver)
{
    const double bytes = (double)saver->snapshot.n_elems * sizeof(float);
    const bool one_process = strcmp(zn_comm_backend(saver->comm), "thread") == 0;
    const double all = bytes * (one_process ? saver->n_ranks : 1);
    const double most = MEMORY_SHARE * (double)zn_sys_memory_bytes();
    const bool fits = (double)zn_sys_rss_bytes() + all < most;
    if (fits && zn_device_alloc(saver->dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, (size_t)bytes,
                                "a checkpoint's copy", &saver->copy) == ZINC_OK)
        return;
    saver->copy = NULL;
    if (saver->rank == 0)
        zn_info(
            "train",
            "no room for a copy of %.1f MB a rank: training waits while a checkpoint is written",
            bytes / 1e6);
}

/* Once a run, before its first save. */
static zinc_status prepare(zn_saver *saver)
{
    if (saver->prepared)
        return ZINC_OK;
    ZN_TRY(zn_alloc_array(&saver->all, 2 * (size_t)saver->n_ranks, sizeof *saver->all,
                          "checkpoint files"));
    saver->snapshot = (zn_snapshot){
        .zero = zn_engine_zero(saver->engine), .engine = saver->engine, .optim = saver->s->optim};
    ZN_TRY(zn_snapshot_plan(&saver->snapshot));
    if (saver->rank == 0)
        ZN_TRY(zn_run_state_fill(saver->s, &saver->meta));
    saver->meta.run_id =
        saver->s->resume.run_id
            ? saver->s->resume.run_id
            : zn_hash_fold(zn_hash_fold(saver->s->o->seed, (uint64_t)now_ns()), (uint64_t)getpid());
    saver->prepared = true;
    if (saver->s->o->async_save)
        find_room(saver);
    return ZINC_OK;
}

static zinc_status begin(zn_saver *saver, int64_t step)
{
    zn_engine_progress progress;
    ZN_TRY(prepare(saver));
    zn_engine_get_progress(saver->engine, &progress);
    saver->meta.step = step;
    saver->meta.n_applied = progress.n_applied;
    saver->meta.n_skipped = progress.n_skipped;
    saver->meta.scaler = progress.scaler;
    saver->meta.epoch = (double)step / (double)saver->s->steps_per_epoch;
    saver->meta.n_samples = step * saver->meta.train_batch_size;
    saver->meta.created_ns = now_ns();
    zn_free(saver->dir);
    saver->dir = NULL;
    ZN_TRY(zn_ckpt_path(saver->s->o->output_dir, step, true, &saver->dir));
    return saver->first ? zn_ckpt_begin(saver->s->o->output_dir, step) : ZINC_OK;
}

static void start_writing(zn_saver *saver)
{
    const double start = zn_sys_now();
    atomic_store(&saver->written, false);
    saver->n_files = 0;
    saver->pending = true;
    if (saver->copy) {
        const zinc_status status = zn_snapshot_copy(&saver->snapshot, saver->copy);
        zn_error_save(&saver->error, status);
        if (status != ZINC_OK) {
            atomic_store(&saver->written, true);
            return;
        }
        saver->waited = zn_sys_now() - start;
        saver->threaded = pthread_create(&saver->thread, NULL, write_thread, saver) == 0;
        if (saver->threaded)
            return;
    }
    write_all(saver); /* no copy, or no thread */
    saver->waited = zn_sys_now() - start;
}

/* ---- ending ---- */

/* What a failed save means. A broken exchange is no matter of saving and ends the run. */
static zinc_status failed(zn_saver *saver, zinc_status status)
{
    if (saver->first)
        zn_ckpt_discard(saver->s->o->output_dir, saver->meta.step);
    if (saver->s->o->save_failure_stops || status == ZINC_E_COMM || status == ZINC_E_TIMEOUT ||
        status == ZINC_E_ABORTED)
        return status;
    if (saver->rank == 0)
        zn_warn("train",
                "the run goes on without checkpoint-%lld (--save_failure stop would end it): %s",
                (long long)saver->meta.step, zinc_last_error());
    return ZINC_OK;
}

static void removed(void *ctx, const char *path)
{
    (void)ctx;
    zn_debug("train", "removed %s (--save_total_limit)", path);
}

/* The new one is complete; trouble with the old ones is only told. */
static void delete_old(zn_saver *saver)
{
    zn_ckpt_entry *entries = NULL;
    int n = 0, foreign = 0;
    const char *output = saver->s->o->output_dir;
    if (saver->s->o->save_total_limit < 1)
        return;
    if (zn_ckpt_prune(output, saver->s->o->save_total_limit, saver->meta.run_id, removed, NULL) !=
        ZINC_OK)
        zn_warn("train", "--save_total_limit: %s", zinc_last_error());
    if (saver->told_foreign || zn_ckpt_list(output, &entries, &n) != ZINC_OK)
        return;
    for (int i = 0; i < n; i++)
        foreign += entries[i].meta.run_id != saver->meta.run_id;
    if (foreign > 0)
        zn_info("train",
                "%d folders checkpoint-N in %s are not of this run; --save_total_limit leaves them",
                foreign, output);
    saver->told_foreign = true;
    zn_ckpt_list_free(entries, n);
}

/* All files of the folder, or of the folders of all nodes. Free *out with zn_free. */
static zinc_status list_files(const zn_saver *saver, zn_ckpt_file **out, int *n)
{
    const int n_parts = 2 * saver->n_ranks, n_own = saver->n_files - 2;
    zn_ckpt_file *files = NULL;
    ZN_TRY(zn_alloc_array(&files, (size_t)(n_parts + n_own), sizeof *files, "checkpoint files"));
    memcpy(files, saver->all, (size_t)n_parts * sizeof *files);
    memcpy(files + n_parts, saver->files + 2, (size_t)n_own * sizeof *files);
    *n = n_parts + n_own;
    for (int i = 0; saver->nodes && saver->nodes->n_folders > 1 && i < *n; i++)
        memcpy(files[i].node, saver->nodes->names[i < n_parts ? i / 2 : 0], ZN_CKPT_NODE_BYTES);
    *out = files;
    return ZINC_OK;
}

/* The manifest, by rank 0 for all. */
static zinc_status make_manifest(zn_saver *saver, zn_publish_params *params, zn_buf *out)
{
    zinc_status status = ZINC_OK;
    zn_ckpt_file *files = NULL;
    if (saver->rank == 0) {
        status = list_files(saver, &files, &params->n_files);
        params->files = files;
        if (status == ZINC_OK)
            status = zn_manifest_build(params, out);
        zn_free(files);
    }
    ZN_TRY(zn_comm_agree(saver->comm, status));
    return saver->nodes && saver->nodes->n_folders > 1 ? zn_comm_share_text(saver->comm, 0, out)
                                                       : ZINC_OK;
}

/* Each step is done in every folder before the next one begins: see zn_ckpt_seal. */
static zinc_status publish(zn_saver *saver)
{
    zinc_status status;
    zn_buf manifest = {0};
    const bool first = saver->first;
    zn_publish_params params = {.output = saver->s->o->output_dir,
                                .meta = &saver->meta,
                                .list = zn_engine_param_list(saver->engine)};
    ZN_TRY_GOTO(make_manifest(saver, &params, &manifest));
    ZN_TRY_GOTO(zn_comm_agree(saver->comm, first ? zn_ckpt_seal(&params, &manifest) : ZINC_OK));
    ZN_TRY_GOTO(zn_comm_agree(saver->comm, first ? zn_ckpt_reveal(&params) : ZINC_OK));
    ZN_TRY_GOTO(zn_comm_agree(saver->comm, first ? zn_ckpt_set_latest(&params) : ZINC_OK));
    if (first)
        delete_old(saver);
    status = ZINC_OK;
fail:
    zn_buf_fini(&manifest);
    return status;
}

/* One line a checkpoint: what it took. */
static void tell(const zn_saver *saver)
{
    double bytes = 0;
    for (int r = 0; saver->rank == 0 && r < saver->n_ranks; r++)
        bytes += (double)saver->all[2 * r].n_bytes;
    if (saver->rank == 0)
        zn_info("train",
                "checkpoint-%lld is complete: %d shards, %.1f MB at %.0f MB/s; training waited "
                "%.2f s",
                (long long)saver->last, saver->n_ranks, bytes / 1e6, bytes / 1e6 / saver->wrote,
                saver->waited);
}

zinc_status zn_saver_finish(zn_saver *saver)
{
    if (!saver->pending)
        return ZINC_OK;
    join(saver);
    saver->pending = false;
    zinc_status status = zn_comm_agree(saver->comm, zn_error_restore(&saver->error));
    if (status != ZINC_OK)
        return failed(saver, status);
    ZN_TRY(zn_comm_exchange(saver->comm, saver->files, 2 * sizeof *saver->files, saver->all,
                            "checkpoint files"));
    status = publish(saver);
    if (status != ZINC_OK)
        return failed(saver, status);
    saver->last = saver->meta.step;
    tell(saver);
    return ZINC_OK;
}

zinc_status zn_saver_save(zn_saver *saver, int64_t step)
{
    ZN_TRY(zn_saver_finish(saver));
    if (saver->last == step)
        return ZINC_OK;
    const zinc_status status = zn_comm_agree(saver->comm, begin(saver, step));
    if (status != ZINC_OK)
        return failed(saver, status);
    start_writing(saver);
    return saver->s->o->async_save ? ZINC_OK : zn_saver_finish(saver);
}
