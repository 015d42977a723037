/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h — a swap file of one rank, read and written beside everything else.
 *
 * The file has no name: whatever happens to the process, and whoever removes the folder meanwhile,
 * nothing is left and nothing is lost. Its room is taken when it is opened, so a full disk is found
 * before the first step. Access is direct where the file system allows; requests go through
 * io_uring, several at once, where build and kernel have it, else through pread and pwrite.
 *
 *   zn_disk_submit -> read lane    one stream a worker, each with its own ring
 *                  -> write lane
 *
 * A lane works in order; between lanes, and between memory and its user, order is by events.
 * Threads: one thread submits. Layer: device. */
#ifndef ZN_DEVICE_DISK_H
#define ZN_DEVICE_DISK_H

#include "device/device.h"

#define ZN_DISK_ALIGN 4096 /* bytes: memory, offset and size of every run are multiples of it */
#define ZN_DISK_MAX_RUNS 6

typedef struct zn_disk zn_disk;

/* How requests are made: the `aio` block of ds_config.json. Zeroes are not valid; see
 * zn_disk_io_defaults. */
typedef struct zn_disk_io {
    int64_t block_bytes; /* of one request; rounded up to ZN_DISK_ALIGN */
    int64_t queue_depth; /* requests in flight of each worker, at most 1,024 */
    int64_t n_workers;   /* threads that one transfer is split over, at most 64 */
    bool single_submit;  /* one system call a request, not one for all that can start */
    bool overlap_events; /* a request starts when another ends; else when all others have */
} zn_disk_io;

/** DeepSpeed's defaults: 1 MiB, 8, 1, false, true. */
zn_disk_io zn_disk_io_defaults(void);

typedef struct zn_disk_params {
    const char *dir;  /* made if missing */
    int64_t n_bytes;  /* size of the file; rounded up to ZN_DISK_ALIGN */
    const char *what; /* what messages say lies there: "optimizer state"; a literal */
    zn_disk_io io;
} zn_disk_params;

/** Make the file and take its room. Not collective. Errors: E_IO: the folder, or no room; says how
 *  much is asked for and how much is free. Close with zn_disk_close. */
ZINC_MUST_CHECK zinc_status zn_disk_open(zn_device *dev, const zn_disk_params *params,
                                         zn_disk **out);
/** Wait for what is under way, give the room back; NULL is fine. */
void zn_disk_close(zn_disk *disk);

typedef struct zn_disk_run {
    void *memory; /* borrowed until *event */
    int64_t offset, n_bytes;
} zn_disk_run;

/** Transfer runs [n_runs <= ZN_DISK_MAX_RUNS] between memory and file once `after` has happened
 *  (zeroed: at once). *event is the end. Errors: E_INVALID a run that is not aligned or not inside
 *  the file; an earlier transfer's. A transfer that fails is told by its event, E_IO: what, where,
 *  the system's reason and what to do. */
ZINC_MUST_CHECK zinc_status zn_disk_submit(zn_disk *disk, bool write, const zn_disk_run *runs,
                                           int n_runs, zn_event after, zn_event *event);

typedef struct zn_disk_stats {
    bool direct, uring;            /* how the file is reached */
    int64_t n_requests, n_submits; /* requests that ended, and system calls that started them */
    int64_t most_in_flight;        /* of one worker */
} zn_disk_stats;

void zn_disk_get_stats(const zn_disk *disk, zn_disk_stats *out);

#endif
