/* SPDX-License-Identifier: Apache-2.0 */
/* bench_checkpoint.c — how fast a rank's part of a checkpoint is written beside what the disk
 * gives, in turn.
 *
 *   bench_checkpoint FOLDER [MiB] [rounds]
 *
 * part: zn_part with its two checksums and the flush, from a copy in memory, as a save in the
 * background writes it. stream: the same in pieces through the write buffer, as one without a copy
 * does. ring: the same bytes by io_uring past the page cache, 32 requests of 1 MiB in flight; its
 * time has no checksum and no flush in it. buffered: pwrite and fsync. copy: the pause of a save that is written in the background, with
 * memory that was touched before. One JSON line a round. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/sys.h"
#include "ckpt/checkpoint.h"
#include "device/disk.h"

#define BLOCK ((size_t)1 << 20)

static void check(zinc_status status)
{
    if (status == ZINC_OK)
        return;
    fprintf(stderr, "%s\n", zinc_last_error());
    exit(1);
}

static double write_part(const char *dir, const float *values, int64_t n, bool kept)
{
    zn_param_spec spec = {.name = "w", .n_dims = 1, .shape = {n}};
    const zn_param_list list = {.specs = &spec, .n_specs = 1};
    const int64_t per = 1 << 20, n_ranges = n / per;
    zn_ckpt_range *ranges = NULL;
    zn_ckpt_file files[2];
    zn_part *part = NULL;
    check(zn_alloc_array(&ranges, (size_t)n_ranges, sizeof *ranges, "ranges"));
    for (int64_t i = 0; i < n_ranges; i++)
        ranges[i] = (zn_ckpt_range){.what = ZN_CKPT_MASTER, .first = i * per, .count = per};
    const zn_part_params params = {
        .dir = dir, .n_ranks = 1, .list = &list, .ranges = ranges, .n_ranges = (int)n_ranges};
    const double start = zn_sys_now();
    check(zn_part_create(&params, &part));
    if (kept)
        check(zn_part_write_kept(part, values, n));
    for (int64_t i = 0; !kept && i < n_ranges; i++)
        check(zn_part_write(part, values + i * per, per));
    check(zn_part_finish(part, files));
    const double seconds = zn_sys_now() - start;
    zn_part_destroy(part);
    zn_free(ranges);
    return seconds;
}

static double write_ring(zn_device *dev, const char *dir, float *values, int64_t n, bool *uring)
{
    zn_disk *disk = NULL;
    zn_event event;
    zn_disk_stats stats;
    zn_disk_io io = zn_disk_io_defaults();
    io.queue_depth = 32;
    const zn_disk_params params = {.dir = dir, .n_bytes = 4 * n, .what = "a benchmark", .io = io};
    const zn_disk_run run = {.memory = values, .n_bytes = 4 * n};
    const double start = zn_sys_now();
    check(zn_disk_open(dev, &params, &disk));
    check(zn_disk_submit(disk, true, &run, 1, (zn_event){0}, &event));
    check(zn_event_wait(event, 600000));
    const double seconds = zn_sys_now() - start;
    zn_disk_get_stats(disk, &stats);
    *uring = stats.direct && stats.uring;
    zn_disk_close(disk);
    return seconds;
}

static double write_buffered(const char *path, const float *values, int64_t n)
{
    const double start = zn_sys_now();
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        exit(1);
    for (size_t at = 0; at < 4 * (size_t)n; at += BLOCK)
        check(zn_fs_pwrite_all(fd, (const char *)values + at, BLOCK, (int64_t)at, path));
    if (fsync(fd) != 0)
        exit(1);
    close(fd);
    return zn_sys_now() - start;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : ".";
    const int64_t n = (argc > 2 ? strtoll(argv[2], NULL, 10) : 512) << 18;
    const int rounds = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 5;
    const double gb = 4e-9 * (double)n;
    const zn_device_params device = {.n_threads = 1};
    zn_device *dev = NULL;
    float *values = NULL, *copy = NULL;
    char path[4096];
    check(zn_device_open("cpu", &device, &dev));
    check(zn_device_alloc(dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, 4 * (size_t)n + 4096, "values",
                          &values));
    check(zn_device_alloc(dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, 4 * (size_t)n, "a copy", &copy));
    float *aligned = (float *)(((uintptr_t)values + 4095) / 4096 * 4096);
    for (int64_t i = 0; i < n; i++)
        aligned[i] = (float)i;
    memcpy(copy, aligned, 4 * (size_t)n);
    for (int round = 0; round < rounds; round++) {
        bool uring = false;
        snprintf(path, sizeof path, "%s/shard-00000-of-00001.safetensors", dir);
        const double part = write_part(dir, aligned, n, true);
        unlink(path);
        const double ring = write_ring(dev, dir, aligned, n, &uring);
        const double stream = write_part(dir, aligned, n, false);
        unlink(path);
        const double buffered = write_buffered(path, aligned, n);
        unlink(path);
        const double start = zn_sys_now();
        memcpy(copy, aligned, 4 * (size_t)n);
        const double copied = zn_sys_now() - start;
        printf("{\"GB\": %.2f, \"part_GB_s\": %.2f, \"stream_GB_s\": %.2f, \"ring_GB_s\": %.2f, \"uring\": %s, "
               "\"buffered_GB_s\": %.2f, \"copy_GB_s\": %.1f, \"part_of_ring\": %.2f}\n",
               gb, gb / part, gb / stream, gb / ring, uring ? "true" : "false", gb / buffered, gb / copied,
               ring / part);
        fflush(stdout);
    }
    zn_device_free(dev, values);
    zn_device_free(dev, copy);
    zn_device_close(dev);
    return 0;
}
