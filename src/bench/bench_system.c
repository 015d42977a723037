/* SPDX-License-Identifier: Apache-2.0 */
/* Files and processes. Direct input and output pass the page cache by; where a file system refuses
 * them the rows are left out, and a log line says so. */
#define _GNU_SOURCE /* O_DIRECT, O_TMPFILE */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"
#include "bench/bench_internal.h"

#define FILE_BYTES ((size_t)128 << 20)
#define CALL_BYTES ((size_t)4 << 20)
#define DISK_RUNS 2
#define START_RUNS 7

static zinc_status open_file(const char *dir, int flags, int *fd)
{
    *fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    const bool refused = (flags & O_DIRECT) && (errno == EINVAL || errno == EOPNOTSUPP);
    if (*fd < 0 && !refused)
        ZN_FAIL(ZINC_E_IO, "cannot make a file in %s: %s; --dir names another folder", dir,
                strerror(errno));
    return ZINC_OK;
}

static zinc_status write_all(int fd, const void *buffer, const char *dir)
{
    for (size_t at = 0; at < FILE_BYTES; at += CALL_BYTES)
        ZN_TRY(zn_fs_pwrite_all(fd, buffer, CALL_BYTES, (int64_t)at, dir));
    if (fdatasync(fd) != 0)
        ZN_FAIL(ZINC_E_IO, "flushing a file in %s: %s", dir, strerror(errno));
    return ZINC_OK;
}

/* The page cache is asked to forget the file first. */
static zinc_status read_all(int fd, void *buffer, const char *dir)
{
    for (size_t at = 0; at < FILE_BYTES;) {
        const ssize_t n = pread(fd, buffer, CALL_BYTES, (off_t)at);
        if (n <= 0 && errno != EINTR)
            ZN_FAIL(ZINC_E_IO, "reading a file in %s: %s", dir,
                    n == 0 ? "it ended early" : strerror(errno));
        at += n > 0 ? (size_t)n : 0;
    }
    return ZINC_OK;
}

/* Bytes a second of writing (with the flush) and reading; 0 where direct access is refused. */
static zinc_status disk_rates(const zn_bench *b, int flags, void *buffer, double rates[2])
{
    const char *dir = b->p->dir;
    zinc_status status = ZINC_OK;
    int fd = -1;
    rates[0] = rates[1] = 0;
    ZN_TRY(open_file(dir, flags, &fd));
    if (fd < 0) {
        zn_info("bench", "%s takes no direct input and output: %s", dir, strerror(errno));
        return ZINC_OK;
    }
    for (int run = 0; run < DISK_RUNS; run++) {
        double start = zn_sys_now();
        ZN_TRY_GOTO(write_all(fd, buffer, dir));
        rates[0] = fmax(rates[0], (double)FILE_BYTES / (zn_sys_now() - start));
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        start = zn_sys_now();
        ZN_TRY_GOTO(read_all(fd, buffer, dir));
        rates[1] = fmax(rates[1], (double)FILE_BYTES / (zn_sys_now() - start));
    }
fail:
    (void)close(fd);
    return status;
}

zinc_status zn_bench_disk(zn_bench *b)
{
    static const char *const names[] = {"disk.direct_write", "disk.direct_read",
                                        "disk.buffered_write", "disk.buffered_read"};
    float *buffer = NULL;
    double rates[4];
    ZN_TRY(zn_bench_numbers(b, (int64_t)(CALL_BYTES / sizeof *buffer), 1, &buffer));
    ZN_TRY(disk_rates(b, O_DIRECT, buffer, rates));
    ZN_TRY(disk_rates(b, 0, buffer, rates + 2));
    for (int i = 0; i < 4; i++) {
        const double limit = i >= 2 && rates[i - 2] > 0 ? rates[i - 2] : (double)NAN;
        const zn_bench_row row = {.name = names[i],
                                  .unit = "GB/s",
                                  .value = rates[i] * 1e-9,
                                  .limit = limit * 1e-9,
                                  .share = rates[i] / limit};
        if (rates[i] > 0 && zn_bench_wants(b, row.name))
            ZN_TRY(zn_bench_emit(b, &row));
    }
    return zn_bench_offload(b);
}

/* ---- start-up ---- */

/* Seconds until a program that says nothing has ended; *ok: it did, with code 0. */
static double run_program(const char *path, char *const argv[], bool *ok)
{
    posix_spawn_file_actions_t files;
    pid_t child = 0;
    int code = -1;
    if (posix_spawn_file_actions_init(&files) != 0)
        return 0;
    const double start = zn_sys_now();
    *ok = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0) == 0 &&
          posix_spawn(&child, path, &files, NULL, argv, NULL) == 0;
    while (*ok && waitpid(child, &code, 0) < 0 && errno == EINTR)
        ;
    const double took = zn_sys_now() - start;
    *ok = *ok && code == 0;
    posix_spawn_file_actions_destroy(&files);
    return took;
}

static double best_start(const char *path, char *const argv[])
{
    double best = (double)NAN;
    for (int run = 0; run < START_RUNS; run++) {
        bool ok = false;
        const double took = run_program(path, argv, &ok);
        if (ok)
            best = fmin(best, took);
    }
    return best;
}

zinc_status zn_bench_startup(zn_bench *b)
{
    char program[] = "/proc/self/exe", help[] = "--help", nothing[] = "/bin/true";
    char *const argv[] = {program, help, NULL}, *const none[] = {nothing, NULL};
    const double took = best_start(program, argv), least = best_start(nothing, none);
    /* more is worse here: the share is what of the time any program takes */
    const zn_bench_row row = {.name = "startup.help",
                              .unit = "ms",
                              .value = took * 1e3,
                              .limit = least * 1e3,
                              .share = least / took};
    return zn_bench_wants(b, row.name) ? zn_bench_emit(b, &row) : ZINC_OK;
}
