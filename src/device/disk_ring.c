/* SPDX-License-Identifier: Apache-2.0 */
/* disk_ring.c — a worker's requests through io_uring: up to queue_depth blocks in flight.
 *
 * A request that moved less than asked goes on from there. After the first failure nothing new is
 * started, but all that is in flight is waited for: the kernel still writes to that memory. */
#include "device/disk_internal.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#ifdef ZINC_HAVE_URING
#include <liburing.h>

struct zn_disk_ring {
    struct io_uring uring;
    zn_disk_run *slots; /* [queue_depth] what is left of each request in flight */
    int *free_slots;    /* [queue_depth] stack */
    int64_t n_free;
};

bool zn_disk_ring_works(const zn_disk_file *file)
{
    struct io_uring probe;
    const int rc = io_uring_queue_init(1, &probe, 0);
    if (rc == 0) {
        io_uring_queue_exit(&probe);
        return true;
    }
    if (file->rank == 0)
        zn_info("disk", "no io_uring here (%s): one request at a time", strerror(-rc));
    return false;
}

zinc_status zn_disk_ring_open(zn_disk_worker *worker)
{
    zinc_status status;
    struct zn_disk_ring *ring = NULL;
    const size_t depth = (size_t)worker->file->io.queue_depth;
    ZN_TRY(zn_alloc(&ring, sizeof *ring, "a disk queue"));
    ZN_TRY_GOTO(zn_alloc_array(&ring->slots, depth, sizeof *ring->slots, "a disk queue"));
    ZN_TRY_GOTO(zn_alloc_array(&ring->free_slots, depth, sizeof *ring->free_slots, "a disk queue"));
    const int rc = io_uring_queue_init((unsigned)depth, &ring->uring, 0);
    if (rc != 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "no io_uring of %zu requests for %s: %s; a smaller aio.queue_depth",
                     depth, worker->file->dir, strerror(-rc));
    for (size_t i = 0; i < depth; i++)
        ring->free_slots[i] = (int)i;
    ring->n_free = (int64_t)depth;
    worker->ring = ring;
    return ZINC_OK;
fail:
    zn_free(ring->slots);
    zn_free(ring->free_slots);
    zn_free(ring);
    return status;
}

void zn_disk_ring_close(zn_disk_worker *worker)
{
    struct zn_disk_ring *ring = worker->ring;
    if (!ring)
        return;
    io_uring_queue_exit(&ring->uring);
    zn_free(ring->slots);
    zn_free(ring->free_slots);
    zn_free(ring);
    worker->ring = NULL;
}

/* What one transfer has come to. */
typedef struct progress {
    zn_disk_cursor cursor;
    int64_t in_flight;
    bool more; /* blocks that have not been started */
    zinc_status status;
} progress;

/* There is always room in the ring: a slot that is free has a place in it. */
static void prepare(const zn_disk_transfer *t, int slot)
{
    struct zn_disk_ring *ring = t->worker->ring;
    const zn_disk_run *run = &ring->slots[slot];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    if (t->write)
        io_uring_prep_write(sqe, t->worker->file->fd, run->memory, (unsigned)run->n_bytes,
                            (unsigned long long)run->offset);
    else
        io_uring_prep_read(sqe, t->worker->file->fd, run->memory, (unsigned)run->n_bytes,
                           (unsigned long long)run->offset);
    io_uring_sqe_set_data64(sqe, (unsigned long long)slot);
}

static void fail(const zn_disk_transfer *t, progress *p, const zn_disk_run *left, int error)
{
    if (p->status == ZINC_OK)
        p->status = zn_disk_error(t->worker->file, t->write, left, error);
    p->more = false;
}

/* Hand what was prepared to the kernel; `wait`: and have at least one request end. */
static void submit(const zn_disk_transfer *t, progress *p, bool wait)
{
    const zn_disk_run nothing = {0};
    struct io_uring *uring = &t->worker->ring->uring;
    int rc;
    do
        rc = wait ? io_uring_submit_and_wait(uring, 1) : io_uring_submit(uring);
    while (rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
    t->worker->n_submits++;
    if (rc >= 0)
        return;
    fail(t, p, &nothing, -rc); /* the ring itself is broken: no end of a request will come */
    p->in_flight = 0;
}

static void start_blocks(const zn_disk_transfer *t, progress *p)
{
    struct zn_disk_ring *ring = t->worker->ring;
    while (p->more && ring->n_free > 0) {
        const int slot = ring->free_slots[ring->n_free - 1];
        p->more = zn_disk_next_block(&p->cursor, &ring->slots[slot]);
        if (!p->more)
            return;
        ring->n_free--;
        p->in_flight++;
        prepare(t, slot);
        if (t->worker->file->io.single_submit)
            submit(t, p, false);
    }
    if (p->in_flight > t->worker->most_in_flight)
        t->worker->most_in_flight = p->in_flight;
}

static void end_request(const zn_disk_transfer *t, progress *p, int slot, int result)
{
    struct zn_disk_ring *ring = t->worker->ring;
    zn_disk_run *left = &ring->slots[slot];
    const bool again = result == -EINTR || result == -EAGAIN;
    const int64_t done = again ? 0 : zn_disk_progress(t->worker->file, result);
    if (done <= 0 && !again)
        fail(t, p, left, result < 0 ? -result : 0);
    left->memory = (char *)left->memory + (done > 0 ? done : 0);
    left->offset += done > 0 ? done : 0;
    left->n_bytes -= done > 0 ? done : 0;
    if (left->n_bytes > 0 && p->status == ZINC_OK) {
        prepare(t, slot);
        return;
    }
    ring->free_slots[ring->n_free++] = slot;
    p->in_flight--;
    t->worker->n_requests++;
}

static void end_requests(const zn_disk_transfer *t, progress *p)
{
    struct io_uring *uring = &t->worker->ring->uring;
    struct io_uring_cqe *cqe = NULL;
    while (io_uring_peek_cqe(uring, &cqe) == 0) {
        const int slot = (int)io_uring_cqe_get_data64(cqe), result = cqe->res;
        io_uring_cqe_seen(uring, cqe);
        end_request(t, p, slot, result);
    }
}

zinc_status zn_disk_ring_transfer(const zn_disk_transfer *t)
{
    progress p = {.cursor = {.transfer = t}, .more = true, .status = ZINC_OK};
    do {
        if (t->worker->file->io.overlap_events || p.in_flight == 0)
            start_blocks(t, &p);
        if (p.in_flight > 0) {
            submit(t, &p, true);
            end_requests(t, &p);
        }
    } while (p.more || p.in_flight > 0);
    return p.status;
}

#else

bool zn_disk_ring_works(const zn_disk_file *file)
{
    (void)file;
    return false;
}

zinc_status zn_disk_ring_open(zn_disk_worker *worker)
{
    (void)worker;
    return ZINC_OK;
}

void zn_disk_ring_close(zn_disk_worker *worker)
{
    (void)worker;
}

zinc_status zn_disk_ring_transfer(const zn_disk_transfer *transfer)
{
    (void)transfer;
    ZN_FAIL(ZINC_E_UNSUPPORTED, "this build has no io_uring");
}

#endif
