/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT */
#endif
#include "ckpt/bulk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

#define BLOCK_BYTES ((size_t)1 << 20)
#define N_BLOCKS ((int64_t)(ZN_BULK_BUFFER_BYTES / (1 << 20)))
#define N_WRITERS 4

/* The file is n_slot_blocks blocks that are filled and written in slot b % N_BLOCKS, and from
 * kept_at on blocks of the caller's memory. */
struct zn_bulk_file {
    char *path;
    int fd;
    int64_t n_bytes, at; /* of the file; given so far */
    void *memory;
    unsigned char *slots; /* [N_BLOCKS * BLOCK_BYTES] aligned, in `memory` */
    pthread_t writers[N_WRITERS];
    int n_writers;
    bool has_lock, has_cond;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool busy[N_BLOCKS];     /* slots that are full and not written yet */
    int64_t n_full, n_begun; /* blocks */
    int64_t n_done;          /* bytes on their way to the disk or there */
    int64_t n_slot_blocks, kept_at;
    const unsigned char *kept; /* byte kept_at of the file; NULL: all goes through the slots */
    bool done;                 /* there will be no more blocks */
    bool direct;
    zn_error error; /* the first */
    zn_bulk_progress_fn progress;
    void *ctx;
};

/* ---- the writers ---- */

static void leave_direct(zn_bulk_file *file)
{
    const int flags = fcntl(file->fd, F_GETFL);
    if (flags >= 0)
        (void)fcntl(file->fd, F_SETFL, flags & ~O_DIRECT); /* else the next write fails again */
}

typedef struct block {
    const unsigned char *bytes;
    int64_t offset; /* in the file */
    size_t n;
} block;

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* Where block `number` is. It ends in a whole multiple of ZN_BULK_ALIGN; the file is cut to its
 * length at the end. */
static block find_block(const zn_bulk_file *file, int64_t number)
{
    const bool is_kept = file->kept && number >= file->n_slot_blocks;
    const int64_t begin = is_kept ? file->kept_at : 0;
    const int64_t end = file->kept && !is_kept ? file->kept_at : file->n_bytes;
    const int64_t at = (is_kept ? number - file->n_slot_blocks : number) * (int64_t)BLOCK_BYTES;
    const int64_t left = end - begin - at;
    const size_t n = left < (int64_t)BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
    return (block){.bytes = is_kept ? file->kept + at
                                    : file->slots + (size_t)(number % N_BLOCKS) * BLOCK_BYTES,
                   .offset = begin + at,
                   .n = (n + ZN_BULK_ALIGN - 1) / ZN_BULK_ALIGN * ZN_BULK_ALIGN};
}

static zinc_status write_block(zn_bulk_file *file, const block *b)
{
    bool direct = file->direct;
    for (size_t done = 0; done < b->n;) {
        const ssize_t written =
            pwrite(file->fd, b->bytes + done, b->n - done, b->offset + (off_t)done);
        if (written > 0) {
            done += (size_t)written;
        } else if (written < 0 && errno == EINVAL && direct) {
            leave_direct(file); /* the file system takes none, or none from here */
            direct = false;
        } else if (written == 0 || errno != EINTR) {
            ZN_FAIL(ZINC_E_IO, "cannot write %zu bytes at %" PRId64 " of %s: %s", b->n - done,
                    b->offset + (int64_t)done, file->path,
                    written == 0 ? "nothing was written" : strerror(errno));
        }
    }
    return ZINC_OK;
}

/* The lock is held. */
static void add_done(zn_bulk_file *file, const block *b)
{
    file->n_done += (int64_t)b->n;
    if (file->progress)
        file->progress(file->ctx, file->n_done < file->n_bytes ? file->n_done : file->n_bytes,
                       file->n_bytes);
}

static void *write_blocks(void *arg)
{
    zn_bulk_file *file = arg;
    pthread_mutex_lock(&file->lock);
    for (;;) {
        while (file->n_begun == file->n_full && !file->done)
            pthread_cond_wait(&file->changed, &file->lock);
        if (file->n_begun == file->n_full)
            break;
        const int64_t number = file->n_begun++;
        const block b = find_block(file, number);
        zinc_status status = file->error.status;
        if (status == ZINC_OK) {
            pthread_mutex_unlock(&file->lock);
            status = write_block(file, &b);
            pthread_mutex_lock(&file->lock);
            if (status == ZINC_OK)
                add_done(file, &b);
            else if (file->error.status == ZINC_OK)
                zn_error_save(&file->error, status);
        }
        file->busy[number % N_BLOCKS] = false; /* behind the slots nobody asks */
        pthread_cond_broadcast(&file->changed);
    }
    pthread_mutex_unlock(&file->lock);
    return NULL;
}

/* ---- making and destroying ---- */

static zinc_status open_file(zn_bulk_file *file)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    file->fd = open(file->path, flags | O_DIRECT, 0666);
    file->direct = file->fd >= 0;
    if (file->fd < 0 && errno == EINVAL)
        file->fd = open(file->path, flags, 0666);
    if (file->fd < 0)
        ZN_FAIL(ZINC_E_IO, "cannot create %s: %s", file->path, strerror(errno));
    const int full = file->n_bytes > 0 ? posix_fallocate(file->fd, 0, file->n_bytes) : 0;
    if (full == ENOSPC || full == EFBIG || full == EDQUOT) /* others: the file system cannot */
        ZN_FAIL(ZINC_E_IO, "no room for %" PRId64 " bytes of %s: %s", file->n_bytes, file->path,
                strerror(full));
    return ZINC_OK;
}

static zinc_status start_writers(zn_bulk_file *file)
{
    file->has_lock = pthread_mutex_init(&file->lock, NULL) == 0;
    file->has_cond = pthread_cond_init(&file->changed, NULL) == 0;
    while (file->has_lock && file->has_cond && file->n_writers < N_WRITERS &&
           pthread_create(&file->writers[file->n_writers], NULL, write_blocks, file) == 0)
        file->n_writers++;
    if (file->n_writers == 0)
        ZN_FAIL(ZINC_E_NOMEM, "cannot start a thread that writes %s", file->path);
    return ZINC_OK;
}

zinc_status zn_bulk_create(const char *path, int64_t n_bytes, zn_bulk_progress_fn progress,
                           void *ctx, zn_bulk_file **out)
{
    zinc_status status;
    zn_bulk_file *file = NULL;
    ZN_TRY(zn_alloc(&file, sizeof *file, "a file to be written"));
    file->fd = -1;
    file->n_bytes = n_bytes;
    file->progress = progress;
    file->ctx = ctx;
    ZN_TRY_GOTO(zn_strdup(path, &file->path));
    ZN_TRY_GOTO(
        zn_alloc(&file->memory, (size_t)ZN_BULK_BUFFER_BYTES + ZN_BULK_ALIGN, "a write buffer"));
    file->slots =
        (unsigned char *)file->memory + ZN_BULK_ALIGN - (uintptr_t)file->memory % ZN_BULK_ALIGN;
    ZN_TRY_GOTO(open_file(file));
    ZN_TRY_GOTO(start_writers(file));
    *out = file;
    return ZINC_OK;
fail:
    zn_bulk_destroy(file);
    return status;
}

static void stop_writers(zn_bulk_file *file)
{
    if (file->n_writers > 0) {
        pthread_mutex_lock(&file->lock);
        file->done = true;
        pthread_cond_broadcast(&file->changed);
        pthread_mutex_unlock(&file->lock);
    }
    while (file->n_writers > 0)
        pthread_join(file->writers[--file->n_writers], NULL);
}

void zn_bulk_destroy(zn_bulk_file *file)
{
    if (!file)
        return;
    stop_writers(file);
    if (file->has_cond)
        pthread_cond_destroy(&file->changed);
    if (file->has_lock)
        pthread_mutex_destroy(&file->lock);
    if (file->fd >= 0)
        close(file->fd);
    zn_free(file->memory);
    zn_free(file->path);
    zn_free(file);
}

/* ---- the stream ---- */

static void hand_over(zn_bulk_file *file, int64_t slot)
{
    pthread_mutex_lock(&file->lock);
    file->busy[slot] = true;
    file->n_full++;
    pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
}

static zinc_status wait_for_slot(zn_bulk_file *file, int64_t slot)
{
    pthread_mutex_lock(&file->lock);
    while (file->busy[slot] && file->error.status == ZINC_OK)
        pthread_cond_wait(&file->changed, &file->lock);
    const zinc_status status = file->error.status;
    pthread_mutex_unlock(&file->lock);
    return status == ZINC_OK ? status : zn_error_restore(&file->error);
}

zinc_status zn_bulk_write(zn_bulk_file *file, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    ZN_ASSERT((int64_t)n <= file->n_bytes - file->at);
    while (n > 0) {
        const int64_t slot = file->at / (int64_t)BLOCK_BYTES % N_BLOCKS;
        const size_t filled = (size_t)file->at % BLOCK_BYTES, room = BLOCK_BYTES - filled;
        const size_t m = n < room ? n : room;
        if (filled == 0)
            ZN_TRY(wait_for_slot(file, slot));
        memcpy(file->slots + (size_t)slot * BLOCK_BYTES + filled, from, m);
        file->at += (int64_t)m;
        from += m;
        n -= m;
        if (m == room || file->at == file->n_bytes)
            hand_over(file, slot);
    }
    return ZINC_OK;
}

zinc_status zn_bulk_write_kept(zn_bulk_file *file, const void *bytes)
{
    const int64_t at = file->at, left = file->n_bytes - at;
    ZN_ASSERT(at % (int64_t)ZN_BULK_ALIGN == 0 && !file->kept);
    if (left == 0)
        return ZINC_OK;
    pthread_mutex_lock(&file->lock);
    file->kept = bytes;
    file->kept_at = at;
    file->n_slot_blocks = ceil_div(at, (int64_t)BLOCK_BYTES);
    file->n_full = file->n_slot_blocks + ceil_div(left, (int64_t)BLOCK_BYTES);
    pthread_cond_broadcast(&file->changed);
    const zinc_status status = file->error.status;
    pthread_mutex_unlock(&file->lock);
    file->at = file->n_bytes;
    return status == ZINC_OK ? status : zn_error_restore(&file->error);
}

zinc_status zn_bulk_finish(zn_bulk_file *file)
{
    ZN_ASSERT(file->at == file->n_bytes);
    stop_writers(file);
    if (file->error.status != ZINC_OK)
        return zn_error_restore(&file->error);
    if (ftruncate(file->fd, file->n_bytes) != 0) /* the last write was whole blocks */
        ZN_FAIL(ZINC_E_IO, "cannot cut %s to its %" PRId64 " bytes: %s", file->path, file->n_bytes,
                strerror(errno));
    if (fsync(file->fd) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot flush %s to disk: %s", file->path, strerror(errno));
    const int closed = close(file->fd);
    file->fd = -1;
    if (closed != 0)
        ZN_FAIL(ZINC_E_IO, "cannot close %s: %s", file->path, strerror(errno));
    return ZINC_OK;
}
