/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT, O_TMPFILE, fallocate */
#endif
#include "device/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/disk_internal.h"

#define MAX_WORKERS 64
#define MAX_DEPTH 1024

typedef struct lane {
    zn_stream *streams[MAX_WORKERS];
    zn_disk_worker workers[MAX_WORKERS];
} lane;

struct zn_disk {
    zn_disk_file file;
    lane lanes[2]; /* reads, writes */
};

zn_disk_io zn_disk_io_defaults(void)
{
    return (zn_disk_io){
        .block_bytes = 1 << 20, .queue_depth = 8, .n_workers = 1, .overlap_events = true};
}

static int64_t clamp(int64_t n, int64_t most)
{
    return n < 1 ? 1 : n > most ? most : n;
}

static int64_t round_up(int64_t n)
{
    return (n + ZN_DISK_ALIGN - 1) / ZN_DISK_ALIGN * ZN_DISK_ALIGN;
}

/* ---- the file ---- */

/* A file system that knows no unnamed files gives one whose name is taken away at once. */
static int open_named(const char *dir, int flags)
{
    char *path = NULL;
    if (zn_format(&path, "%s/.zinc-swap-XXXXXX", dir) != ZINC_OK) {
        errno = ENOMEM;
        return -1;
    }
    const int fd = mkostemp(path, flags);
    const int error = errno;
    if (fd >= 0)
        (void)unlink(path);
    zn_free(path);
    errno = error;
    return fd;
}

static int open_unnamed(const char *dir, int flags)
{
    const int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd;
    return zn_fs_is_dir(dir) ? open_named(dir, O_CLOEXEC | flags) : fd;
}

/* Some file systems take O_DIRECT when a file is opened and refuse the first request. */
static bool direct_works(int fd)
{
    void *block = NULL;
    if (ftruncate(fd, ZN_DISK_ALIGN) != 0 || posix_memalign(&block, ZN_DISK_ALIGN, ZN_DISK_ALIGN))
        return false;
    const bool works = pread(fd, block, ZN_DISK_ALIGN, 0) == ZN_DISK_ALIGN;
    free(block);
    return works;
}

static zinc_status open_file(zn_disk_file *file)
{
    ZN_TRY(zn_fs_mkdirs(file->dir)); /* as DeepSpeed does */
    file->fd = open_unnamed(file->dir, O_DIRECT);
    file->direct = file->fd >= 0 && direct_works(file->fd);
    if (file->fd >= 0 && !file->direct) {
        close(file->fd);
        file->fd = -1;
        errno = EINVAL;
    }
    if (file->fd < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
        if (file->rank == 0)
            zn_info("disk", "%s does not take direct access; the page cache is used", file->dir);
        file->fd = open_unnamed(file->dir, 0);
    }
    if (file->fd < 0)
        ZN_FAIL(ZINC_E_IO, "cannot make a file in nvme_path %s: %s", file->dir, strerror(errno));
    return ZINC_OK;
}

static zinc_status take_room(zn_disk_file *file)
{
    int rc;
    while ((rc = fallocate(file->fd, 0, 0, file->n_bytes)) != 0 && errno == EINTR)
        ;
    if (rc != 0 && errno == EOPNOTSUPP) /* then a full disk is found by a write */
        rc = ftruncate(file->fd, file->n_bytes);
    if (rc == 0)
        return ZINC_OK;
    const int error = errno;
    struct statvfs fs = {0};
    const bool known = fstatvfs(file->fd, &fs) == 0;
    ZN_FAIL(ZINC_E_IO,
            "nvme_path %s has no room for the %lld bytes of this rank's %s: %s (%lld bytes are "
            "free); free some, or name a folder on another disk",
            file->dir, (long long)file->n_bytes, file->what, strerror(error),
            known ? (long long)fs.f_bavail * (long long)fs.f_frsize : -1);
}

/* ---- making and destroying ---- */

static zinc_status open_lane(zn_disk *disk, zn_device *dev, const char *name, lane *l)
{
    zn_disk_file *file = &disk->file;
    for (int64_t i = 0; i < file->io.n_workers; i++) {
        l->workers[i].file = file;
        if (file->uring)
            ZN_TRY(zn_disk_ring_open(&l->workers[i]));
        ZN_TRY(zn_stream_create(dev, name, &l->streams[i]));
    }
    return ZINC_OK;
}

zinc_status zn_disk_open(zn_device *dev, const zn_disk_params *params, zn_disk **out)
{
    zinc_status status;
    zn_disk *disk = NULL;
    if (!params->dir || !*params->dir)
        ZN_FAIL(ZINC_E_CONFIG, "offload to nvme needs nvme_path");
    ZN_TRY(zn_alloc(&disk, sizeof *disk, "a swap file"));
    zn_disk_file *file = &disk->file;
    *file = (zn_disk_file){.fd = -1,
                           .rank = zn_device_rank(dev),
                           .n_bytes = round_up(params->n_bytes),
                           .what = params->what,
                           .io = params->io};
    file->io.block_bytes = round_up(clamp(params->io.block_bytes, 1 << 30));
    file->io.queue_depth = clamp(params->io.queue_depth, MAX_DEPTH);
    file->io.n_workers = clamp(params->io.n_workers, MAX_WORKERS);
    ZN_TRY_GOTO(zn_strdup(params->dir, &file->dir));
    ZN_TRY_GOTO(open_file(file));
    ZN_TRY_GOTO(take_room(file));
    file->uring = zn_disk_ring_works(file);
    ZN_TRY_GOTO(open_lane(disk, dev, "disk reads", &disk->lanes[0]));
    ZN_TRY_GOTO(open_lane(disk, dev, "disk writes", &disk->lanes[1]));
    *out = disk;
    return ZINC_OK;
fail:
    zn_disk_close(disk);
    return status;
}

void zn_disk_close(zn_disk *disk)
{
    if (!disk)
        return;
    for (int w = 0; w < 2; w++)
        for (int i = MAX_WORKERS - 1; i >= 0; i--) /* the first one waits for the others */
            zn_stream_destroy(disk->lanes[w].streams[i]);
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < MAX_WORKERS; i++)
            zn_disk_ring_close(&disk->lanes[w].workers[i]);
    if (disk->file.fd >= 0)
        close(disk->file.fd);
    zn_free(disk->file.dir);
    zn_free(disk);
}

void zn_disk_get_stats(const zn_disk *disk, zn_disk_stats *out)
{
    *out = (zn_disk_stats){.direct = disk->file.direct, .uring = disk->file.uring};
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < MAX_WORKERS; i++) {
            const zn_disk_worker *worker = &disk->lanes[w].workers[i];
            out->n_requests += worker->n_requests;
            out->n_submits += worker->n_submits;
            if (worker->most_in_flight > out->most_in_flight)
                out->most_in_flight = worker->most_in_flight;
        }
}

/* ---- transfers ---- */

zinc_status zn_disk_error(const zn_disk_file *file, bool write, const zn_disk_run *left, int error)
{
    const char *advice = error == ENOSPC || error == EDQUOT || error == EFBIG
                             ? "make room there or name another folder in nvme_path"
                         : error == EIO ? "the disk fails: see the kernel's log"
                                        : "see whether the disk of nvme_path is still there";
    ZN_FAIL(ZINC_E_IO,
            "cannot %s %lld bytes at offset %lld of the swap file in %s (%s of rank %d): %s; %s. "
            "The newest checkpoint is whole: go on with --resume_from_checkpoint",
            write ? "write" : "read", (long long)left->n_bytes, (long long)left->offset, file->dir,
            file->what, file->rank, error ? strerror(error) : "the file is shorter than it was",
            advice);
}

bool zn_disk_next_block(zn_disk_cursor *cursor, zn_disk_run *out)
{
    const zn_disk_transfer *t = cursor->transfer;
    const zn_disk_io *io = &t->worker->file->io;
    while (cursor->run < t->n_runs) {
        const zn_disk_run *run = &t->runs[cursor->run];
        /* one request at a time should be a long one */
        const int64_t block =
            t->worker->file->uring || io->n_workers > 1 ? io->block_bytes : run->n_bytes;
        const int64_t left = run->n_bytes - cursor->done;
        if (left <= 0) {
            cursor->run++;
            cursor->done = 0;
            continue;
        }
        *out = (zn_disk_run){.memory = (char *)run->memory + cursor->done,
                             .offset = run->offset + cursor->done,
                             .n_bytes = left < block ? left : block};
        cursor->done += out->n_bytes;
        if (cursor->number++ % io->n_workers == t->part)
            return true;
    }
    return false;
}

int64_t zn_disk_progress(const zn_disk_file *file, int64_t n)
{
    return file->direct ? n / ZN_DISK_ALIGN * ZN_DISK_ALIGN : n;
}

/* One block after the other with pread or pwrite. */
static zinc_status plain_transfer(const zn_disk_transfer *t)
{
    zn_disk_cursor cursor = {.transfer = t};
    zn_disk_run left;
    const zn_disk_file *file = t->worker->file;
    while (zn_disk_next_block(&cursor, &left)) {
        while (left.n_bytes > 0) {
            const size_t n = (size_t)left.n_bytes;
            const ssize_t got = t->write ? pwrite(file->fd, left.memory, n, left.offset)
                                         : pread(file->fd, left.memory, n, left.offset);
            const int64_t done = zn_disk_progress(file, got);
            t->worker->n_submits++;
            if (got < 0 && errno == EINTR)
                continue;
            if (done <= 0)
                return zn_disk_error(file, t->write, &left, got < 0 ? errno : 0);
            left.memory = (char *)left.memory + done;
            left.offset += done;
            left.n_bytes -= done;
        }
        t->worker->n_requests++;
        t->worker->most_in_flight = 1;
    }
    return ZINC_OK;
}

static zinc_status transfer_work(void *arg)
{
    const zn_disk_transfer *t = arg;
    return t->worker->file->uring ? zn_disk_ring_transfer(t) : plain_transfer(t);
}

static zinc_status check_runs(const zn_disk_file *file, const zn_disk_run *runs, int n_runs)
{
    if (n_runs < 0 || n_runs > ZN_DISK_MAX_RUNS)
        ZN_FAIL(ZINC_E_INVALID, "a disk transfer of %d runs: at most %d", n_runs, ZN_DISK_MAX_RUNS);
    for (int i = 0; i < n_runs; i++) {
        const zn_disk_run *run = &runs[i];
        if ((uintptr_t)run->memory % ZN_DISK_ALIGN || run->offset % ZN_DISK_ALIGN ||
            run->n_bytes % ZN_DISK_ALIGN || run->offset < 0 || run->n_bytes < 0 ||
            run->offset > file->n_bytes - run->n_bytes)
            ZN_FAIL(ZINC_E_INVALID,
                    "%lld bytes at offset %lld of a swap file of %lld bytes: runs are whole blocks "
                    "of %d bytes inside the file",
                    (long long)run->n_bytes, (long long)run->offset, (long long)file->n_bytes,
                    ZN_DISK_ALIGN);
    }
    return ZINC_OK;
}

zinc_status zn_disk_submit(zn_disk *disk, bool write, const zn_disk_run *runs, int n_runs,
                           zn_event after, zn_event *event)
{
    lane *l = &disk->lanes[write];
    const int64_t n_workers = disk->file.io.n_workers;
    zn_event parts[MAX_WORKERS];
    zn_disk_transfer t = {.write = write, .n_runs = n_runs};
    ZN_TRY(check_runs(&disk->file, runs, n_runs));
    memcpy(t.runs, runs, (size_t)n_runs * sizeof *runs);
    for (int64_t i = 0; i < n_workers; i++) {
        t.worker = &l->workers[i];
        t.part = i;
        ZN_TRY(zn_stream_wait_event(l->streams[i], after));
        ZN_TRY(zn_stream_submit(l->streams[i], transfer_work, &t, sizeof t, &parts[i]));
    }
    *event = parts[0];
    for (int64_t i = 1; i < n_workers; i++)
        ZN_TRY(zn_stream_wait_event(l->streams[0], parts[i]));
    return n_workers > 1 ? zn_stream_point(l->streams[0], event) : ZINC_OK;
}
