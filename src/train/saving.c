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

#define MAX_FILES 32     /* parts' files of rank 0 and what makes a model folder */
#define MEMORY_SHARE 0.9 /* of this machine's memory that copies may fill */
#define PAGE_BYTES ((size_t)4096)
#define SLOW_SECONDS 1.0 /* a shard that takes longer tells how far it is */

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
    float *copy; /* [snapshot.n_elems], then up to a whole page; or NULL: written at once */
    bool prepared, told_foreign;

    enum { IDLE, WRITING, PUBLISHING } phase;
    atomic_bool through; /* this rank's work of the phase is, or has failed */
    bool threaded;       /* `thread`, which does that work or touches the copy, is to be joined */
    pthread_t thread;
    zn_error error; /* of that work; read once `through` */
    char *dir;      /* checkpoint-N.tmp */
    zn_ckpt_file files[MAX_FILES];
    int n_files;       /* 2 of the part; on rank 0 more */
    zn_ckpt_file *all; /* [2 * n_ranks] exchanged */
    zn_buf manifest;   /* that the first rank of a folder writes */
    int64_t last;
    double waited;     /* seconds that training of this rank stood still: copy and agreeing; */
    double late;       /* for work of the thread, because the next save or the end was there */
    double wrote;      /* from then to the last byte */
    double write_from; /* zn_sys_now() when the writing began; and the next line about it: */
    double tell_at;
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
    zn_buf_fini(&saver->manifest);
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
    return saver->phase != IDLE && atomic_load(&saver->through);
}

/* ---- one rank's part ---- */

static zinc_status stream_values(zn_saver *saver, zn_part *part)
{
    if (!saver->copy)
        return zn_snapshot_write(&saver->snapshot, part);
    return zn_part_write_kept(part, saver->copy, saver->snapshot.n_elems);
}

/* Hears of every block. What takes long is told after one second, two, four, … */
static void tell_progress(void *ctx, int64_t done, int64_t n_bytes)
{
    zn_saver *saver = ctx;
    const double now = zn_sys_now(), seconds = now - saver->write_from;
    if (now < saver->tell_at || done == n_bytes)
        return;
    saver->tell_at = now + seconds;
    zn_info("train", "checkpoint-%lld: shard %d of %d, %.0f of %.0f MB at %.0f MB/s",
            (long long)saver->meta.step, saver->rank + 1, saver->n_ranks, (double)done / 1e6,
            (double)n_bytes / 1e6, (double)done / 1e6 / seconds);
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
                                   .n_ranges = saver->snapshot.n_ranges,
                                   .progress = tell_progress,
                                   .ctx = saver};
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
    saver->write_from = zn_sys_now();
    saver->tell_at = saver->write_from + SLOW_SECONDS;
    zinc_status status = write_part(saver);
    if (status == ZINC_OK && saver->rank == 0)
        status = add_model_files(saver);
    zn_error_save(&saver->error, status);
    saver->wrote = zn_sys_now() - saver->write_from;
    if (status == ZINC_OK)
        zn_log(saver->wrote > SLOW_SECONDS ? ZN_LOG_INFO : ZN_LOG_DEBUG, "train",
               "checkpoint-%lld: shard %d of %d, %.1f MB at %.0f MB/s", (long long)saver->meta.step,
               saver->rank + 1, saver->n_ranks, (double)saver->files[0].n_bytes / 1e6,
               (double)saver->files[0].n_bytes / 1e6 / saver->wrote);
    else
        zn_warn("train", "checkpoint-%lld cannot be saved: %s", (long long)saver->meta.step,
                saver->error.message);
    atomic_store(&saver->through, true);
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

/* Whole pages, as direct writes read them. */
static size_t copy_bytes(const zn_saver *saver)
{
    const size_t n = (size_t)saver->snapshot.n_elems * sizeof(float);
    return (n + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* Without the copy the rank writes at once. Memory that is promised and not there would end the
 * process later, so it is asked for before. */
static void find_room(zn_saver *saver)
{
    const double bytes = (double)copy_bytes(saver);
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
    if (!saver->all)
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

static void *touch_copy(void *arg)
{
    const zn_saver *saver = arg;
    volatile unsigned char *bytes = (unsigned char *)saver->copy;
    for (size_t i = 0; i < copy_bytes(saver); i += PAGE_BYTES)
        bytes[i] = 0;
    return NULL;
}

void zn_saver_expect(zn_saver *saver)
{
    if (saver->prepared || prepare(saver) != ZINC_OK) /* the save will say it */
        return;
    if (saver->copy)
        saver->threaded = pthread_create(&saver->thread, NULL, touch_copy, saver) == 0;
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
    atomic_store(&saver->through, false);
    saver->n_files = 0;
    saver->phase = WRITING;
    if (saver->copy) {
        join(saver); /* see zn_saver_expect */
        const zinc_status status = zn_snapshot_copy(&saver->snapshot, saver->copy);
        zn_error_save(&saver->error, status);
        if (status != ZINC_OK) {
            atomic_store(&saver->through, true);
            return;
        }
        saver->threaded = pthread_create(&saver->thread, NULL, write_thread, saver) == 0;
        if (saver->threaded)
            return;
    }
    write_all(saver); /* no copy, or no thread */
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

static bool has_many_folders(const zn_saver *saver)
{
    return saver->nodes && saver->nodes->n_folders > 1;
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
    for (int i = 0; has_many_folders(saver) && i < *n; i++)
        memcpy(files[i].node, saver->nodes->names[i < n_parts ? i / 2 : 0], ZN_CKPT_NODE_BYTES);
    *out = files;
    return ZINC_OK;
}

/* The manifest, by rank 0 for all; the caller has no files in `params` yet. */
static zinc_status make_manifest(zn_saver *saver, zn_publish_params *params)
{
    zinc_status status = ZINC_OK;
    zn_ckpt_file *files = NULL;
    zn_buf_fini(&saver->manifest);
    if (saver->rank == 0) {
        status = list_files(saver, &files, &params->n_files);
        params->files = files;
        if (status == ZINC_OK)
            status = zn_manifest_build(params, &saver->manifest);
        zn_free(files);
        params->files = NULL;
    }
    ZN_TRY(zn_comm_agree(saver->comm, status));
    return has_many_folders(saver) ? zn_comm_share_text(saver->comm, 0, &saver->manifest) : ZINC_OK;
}

static zn_publish_params publish_params(const zn_saver *saver)
{
    return (zn_publish_params){.output = saver->s->o->output_dir,
                               .meta = &saver->meta,
                               .list = zn_engine_param_list(saver->engine)};
}

/* Each step is done in every folder before the next one begins: see zn_ckpt_seal. */
static zinc_status publish_everywhere(zn_saver *saver)
{
    const bool first = saver->first;
    const zn_publish_params params = publish_params(saver);
    ZN_TRY(zn_comm_agree(saver->comm, first ? zn_ckpt_seal(&params, &saver->manifest) : ZINC_OK));
    ZN_TRY(zn_comm_agree(saver->comm, first ? zn_ckpt_reveal(&params) : ZINC_OK));
    return zn_comm_agree(saver->comm, first ? zn_ckpt_set_latest(&params) : ZINC_OK);
}

static zinc_status publish_here(const zn_saver *saver)
{
    const zn_publish_params params = publish_params(saver);
    ZN_TRY(zn_ckpt_seal(&params, &saver->manifest));
    ZN_TRY(zn_ckpt_reveal(&params));
    return zn_ckpt_set_latest(&params);
}

/* What the disk takes its time for: flushes, and the deletion of old files. */
static void *publish_thread(void *arg)
{
    zn_saver *saver = arg;
    if (saver->n_ranks > 1)
        zn_log_set_rank(saver->rank);
    const zinc_status status = has_many_folders(saver) ? ZINC_OK : publish_here(saver);
    zn_error_save(&saver->error, status);
    if (status == ZINC_OK)
        delete_old(saver);
    atomic_store(&saver->through, true);
    return NULL;
}

/* All parts are written: make the folder appear. */
static zinc_status begin_publishing(zn_saver *saver)
{
    zn_publish_params params = publish_params(saver);
    ZN_TRY(make_manifest(saver, &params));
    if (has_many_folders(saver))
        ZN_TRY(publish_everywhere(saver));
    saver->phase = PUBLISHING;
    zn_error_save(&saver->error, ZINC_OK);
    atomic_store(&saver->through, !saver->first);
    if (!saver->first)
        return ZINC_OK;
    saver->threaded = pthread_create(&saver->thread, NULL, publish_thread, saver) == 0;
    if (!saver->threaded)
        (void)publish_thread(saver);
    return ZINC_OK;
}

/* One line a checkpoint: what it took. */
static void tell(const zn_saver *saver)
{
    double bytes = 0;
    char late[96] = "";
    for (int r = 0; saver->rank == 0 && r < saver->n_ranks; r++)
        bytes += (double)saver->all[2 * r].n_bytes;
    if (saver->late >= 0.01)
        snprintf(late, sizeof late, " and %.2f s more for the disk", saver->late);
    if (saver->rank == 0)
        zn_info("train",
                "checkpoint-%lld is complete: %d shards, %.1f MB at %.0f MB/s; training waited "
                "%.2f s%s",
                (long long)saver->last, saver->n_ranks, bytes / 1e6, bytes / 1e6 / saver->wrote,
                saver->waited, late);
}

/* The parts are written, by all ranks or not. */
static zinc_status end_writing(zn_saver *saver)
{
    ZN_TRY(zn_comm_agree(saver->comm, zn_error_restore(&saver->error)));
    ZN_TRY(zn_comm_exchange(saver->comm, saver->files, 2 * sizeof *saver->files, saver->all,
                            "checkpoint files"));
    return begin_publishing(saver);
}

static zinc_status end_publishing(zn_saver *saver)
{
    ZN_TRY(zn_comm_agree(saver->comm, zn_error_restore(&saver->error)));
    saver->phase = IDLE;
    saver->last = saver->meta.step;
    tell(saver);
    return ZINC_OK;
}

zinc_status zn_saver_advance(zn_saver *saver)
{
    const double start = zn_sys_now();
    join(saver);
    const double joined = zn_sys_now();
    saver->late += joined - start;
    const zinc_status status = saver->phase == WRITING ? end_writing(saver) : end_publishing(saver);
    saver->waited += zn_sys_now() - joined;
    if (status == ZINC_OK)
        return status;
    saver->phase = IDLE;
    return failed(saver, status);
}

zinc_status zn_saver_finish(zn_saver *saver)
{
    while (saver->phase != IDLE)
        ZN_TRY(zn_saver_advance(saver));
    return ZINC_OK;
}

zinc_status zn_saver_save(zn_saver *saver, int64_t step)
{
    ZN_TRY(zn_saver_finish(saver));
    if (saver->last == step)
        return ZINC_OK;
    const double start = zn_sys_now();
    const zinc_status status = zn_comm_agree(saver->comm, begin(saver, step));
    if (status != ZINC_OK)
        return failed(saver, status);
    start_writing(saver);
    saver->waited = zn_sys_now() - start;
    saver->late = 0;
    return saver->s->o->async_save ? ZINC_OK : zn_saver_finish(saver);
}
