/* SPDX-License-Identifier: Apache-2.0 */
/* disk_internal.h — between disk.c, which owns the file and its lanes, and disk_ring.c, which talks
 * to io_uring. Layer: device. */
#ifndef ZN_DEVICE_DISK_INTERNAL_H
#define ZN_DEVICE_DISK_INTERNAL_H

#include "device/disk.h"

typedef struct zn_disk_file {
    int fd, rank;
    bool direct, uring;
    int64_t n_bytes;
    char *dir;
    const char *what;
    zn_disk_io io; /* inside their limits */
} zn_disk_file;

/* A thread of a lane. Counts are written by it alone, and read when its work has been waited for.
 */
typedef struct zn_disk_worker {
    const zn_disk_file *file;
    struct zn_disk_ring *ring; /* NULL: none */
    int64_t n_requests, n_submits, most_in_flight;
} zn_disk_worker;

/* A worker's part of one transfer: every n_workers-th block of the runs. */
typedef struct zn_disk_transfer {
    zn_disk_worker *worker;
    int64_t part;
    bool write;
    int n_runs;
    zn_disk_run runs[ZN_DISK_MAX_RUNS];
} zn_disk_transfer;

typedef struct zn_disk_cursor {
    const zn_disk_transfer *transfer;
    int run;
    int64_t done, number; /* bytes of the run; blocks so far */
} zn_disk_cursor;

/** The next block of this part; false: there is none. */
bool zn_disk_next_block(zn_disk_cursor *cursor, zn_disk_run *out);
/** How far a request that moved n bytes (negative: none) has come: direct access goes on only from
 *  whole blocks. */
int64_t zn_disk_progress(const zn_disk_file *file, int64_t n);
/** The E_IO of a request of which `left` was not done; error 0: nothing was moved. */
ZINC_MUST_CHECK zinc_status zn_disk_error(const zn_disk_file *file, bool write,
                                          const zn_disk_run *left, int error);

/* disk_ring.c; in a build without io_uring no ring works */
/** Whether a ring can be made; says once why not. */
bool zn_disk_ring_works(const zn_disk_file *file);
ZINC_MUST_CHECK zinc_status zn_disk_ring_open(zn_disk_worker *worker);
void zn_disk_ring_close(zn_disk_worker *worker);
ZINC_MUST_CHECK zinc_status zn_disk_ring_transfer(const zn_disk_transfer *transfer);

#endif
