/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "device/disk.h"

#define N_BYTES ((int64_t)3 << 20)

typedef struct fixture {
    zn_device *dev;
    char dir[64];
    zn_disk *disk;
    unsigned char *a, *b; /* [N_BYTES] page-aligned */
} fixture;

static void open_disk(fixture *f, zn_disk_io io)
{
    const zn_disk_params p = {.dir = f->dir, .n_bytes = N_BYTES, .what = "test state", .io = io};
    assert_ok(zn_disk_open(f->dev, &p, &f->disk));
}

static fixture start(zn_disk_io io)
{
    fixture f = {.dir = "/tmp/zinc_disk_XXXXXX"};
    const zn_device_params p = {.n_threads = 1};
    assert_non_null(mkdtemp(f.dir));
    assert_ok(zn_device_open("cpu", &p, &f.dev));
    assert_ok(zn_device_alloc(f.dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, N_BYTES, "a", &f.a));
    assert_ok(zn_device_alloc(f.dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, N_BYTES, "b", &f.b));
    for (int64_t i = 0; i < N_BYTES; i++)
        f.a[i] = (unsigned char)zn_hash_fold(7, (uint64_t)i);
    memset(f.b, 0, N_BYTES);
    open_disk(&f, io);
    return f;
}

static void stop(fixture *f)
{
    zn_disk_close(f->disk);
    zn_device_free(f->dev, f->a);
    zn_device_free(f->dev, f->b);
    zn_device_close(f->dev);
    assert_int_equal(rmdir(f->dir), 0); /* nothing was left in it */
}

static zinc_status move(fixture *f, bool write, void *memory, int64_t offset, int64_t n_bytes)
{
    zn_event done = {0};
    const zn_disk_run run = {memory, offset, n_bytes};
    ZN_TRY(zn_disk_submit(f->disk, write, &run, 1, (zn_event){0}, &done));
    return zn_event_wait(done, -1);
}

static zn_disk_stats stats_of(const fixture *f)
{
    zn_disk_stats stats;
    zn_disk_get_stats(f->disk, &stats);
    return stats;
}

/* Blocks that do not divide the runs, any depth, any number of workers, both ways of submitting. */
static void what_was_written_is_read_whatever_the_knobs(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i++) {
        const zn_disk_io io = {.block_bytes = i % 2 ? 4096 : 300000,
                               .queue_depth = 1 + i % 3 * 7,
                               .n_workers = 1 + i % 4,
                               .single_submit = i / 4 % 2,
                               .overlap_events = i / 8 % 2};
        fixture f = start(io);
        zn_event written = {0}, read = {0};
        const int64_t third = N_BYTES / 3;
        const zn_disk_run out[] = {
            {f.a, third, third}, {f.a + third, 0, third}, {f.a + 2 * third, 2 * third, third}};
        const zn_disk_run in[] = {
            {f.b, third, third}, {f.b + third, 0, third}, {f.b + 2 * third, 2 * third, third}};
        assert_ok(zn_disk_submit(f.disk, true, out, 3, (zn_event){0}, &written));
        assert_ok(zn_disk_submit(f.disk, false, in, 3, written, &read));
        assert_ok(zn_event_wait(read, -1));
        assert_memory_equal(f.a, f.b, N_BYTES);
        stop(&f);
    }
}

static void queue_depth_and_block_size_are_what_was_asked(void **state)
{
    (void)state;
    zn_disk_io io = {
        .block_bytes = 64 << 10, .queue_depth = 5, .n_workers = 1, .overlap_events = true};
    fixture f = start(io);
    assert_ok(move(&f, true, f.a, 0, N_BYTES));
    zn_disk_stats stats = stats_of(&f);
    const bool uring = stats.uring;
    assert_int_equal(stats.n_requests, uring ? N_BYTES / io.block_bytes : 1);
    assert_int_equal(stats.most_in_flight, uring ? 5 : 1);
    zn_disk_close(f.disk);
    io.single_submit = true;
    open_disk(&f, io);
    assert_ok(move(&f, true, f.a, 0, N_BYTES));
    stats = stats_of(&f);
    assert_true(stats.n_submits >= stats.n_requests);
    zn_disk_close(f.disk);
    io.single_submit = io.overlap_events = false; /* whole batches of 5: 48 blocks are 10 of them */
    open_disk(&f, io);
    assert_ok(move(&f, true, f.a, 0, N_BYTES));
    assert_true(!uring || stats_of(&f).n_submits >= 10);
    stop(&f);
}

/* The file of this process that the swap file is. */
static int file_of(const fixture *f)
{
    for (int fd = 3; fd < 100; fd++) {
        char link[64], path[256];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = '\0';
        if (strstr(path, f->dir))
            return fd;
    }
    fail_msg("no swap file is open");
    return -1;
}

static void a_file_that_became_shorter_is_an_error_with_advice(void **state)
{
    (void)state;
    fixture f = start(zn_disk_io_defaults());
    assert_int_equal(ftruncate(file_of(&f), N_BYTES - 4096), 0);
    assert_ok(move(&f, false, f.b, 0, N_BYTES - 4096));
    assert_fails(move(&f, false, f.b, 0, N_BYTES), ZINC_E_IO, "(test state of rank 0)");
    assert_non_null(strstr(zinc_last_error(), "shorter than it was"));
    assert_non_null(strstr(zinc_last_error(), f.dir));
    /* the lane stays failed: nothing is read behind an error */
    assert_fails(move(&f, false, f.b, 0, 4096), ZINC_E_IO, "shorter than it was");
    stop(&f);
}

/* A limit inside a block cuts that write short: the kernel takes a part, then refuses the rest. */
static void a_short_write_goes_on_and_tells_the_real_reason(void **state)
{
    (void)state;
    fixture f = start(zn_disk_io_defaults());
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = (1 << 20) + 8192, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const zinc_status status = move(&f, true, f.a, 0, N_BYTES);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, ZINC_E_IO);
    assert_non_null(strstr(zinc_last_error(), "File too large"));
    assert_non_null(strstr(zinc_last_error(), "another folder in nvme_path"));
    assert_ok(move(&f, false, f.b, 0, (1 << 20) + 8192)); /* what was taken is there */
    assert_memory_equal(f.a, f.b, (1 << 20) + 8192);
    stop(&f);
}

static void a_disk_without_room_is_refused_at_once(void **state)
{
    (void)state;
    fixture f = start(zn_disk_io_defaults());
    zn_disk *disk = NULL;
    const zn_disk_params p = {.dir = f.dir,
                              .n_bytes = (int64_t)1 << 60,
                              .what = "test state",
                              .io = zn_disk_io_defaults()};
    assert_fails(zn_disk_open(f.dev, &p, &disk), ZINC_E_IO, "this rank's test state");
    assert_null(disk);
    stop(&f);
}

static void the_folder_may_go_while_the_file_is_used(void **state)
{
    (void)state;
    fixture f = start(zn_disk_io_defaults());
    assert_int_equal(rmdir(f.dir), 0);
    assert_ok(move(&f, true, f.a, 0, N_BYTES));
    assert_ok(move(&f, false, f.b, 0, N_BYTES));
    assert_memory_equal(f.a, f.b, N_BYTES);
    assert_int_equal(mkdir(f.dir, 0700), 0);
    stop(&f);
}

static void a_file_in_the_way_and_odd_runs_are_named(void **state)
{
    (void)state;
    fixture f = start(zn_disk_io_defaults());
    zn_disk *disk = NULL;
    zn_disk_params p = {
        .dir = "/dev/null/x", .n_bytes = 1, .what = "", .io = zn_disk_io_defaults()};
    assert_fails(zn_disk_open(f.dev, &p, &disk), ZINC_E_IO, "/dev/null/x");
    p.dir = "";
    assert_fails(zn_disk_open(f.dev, &p, &disk), ZINC_E_CONFIG, "nvme_path");
    assert_fails(move(&f, true, f.a + 1, 0, 4096), ZINC_E_INVALID, "whole blocks of 4096");
    assert_fails(move(&f, true, f.a, 1, 4096), ZINC_E_INVALID, "whole blocks");
    assert_fails(move(&f, true, f.a, 0, 4095), ZINC_E_INVALID, "whole blocks");
    assert_fails(move(&f, true, f.a, N_BYTES, 4096), ZINC_E_INVALID, "inside the file");
    stop(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_was_written_is_read_whatever_the_knobs),
    cmocka_unit_test(queue_depth_and_block_size_are_what_was_asked),
    cmocka_unit_test(a_file_that_became_shorter_is_an_error_with_advice),
    cmocka_unit_test(a_short_write_goes_on_and_tells_the_real_reason),
    cmocka_unit_test(a_disk_without_room_is_refused_at_once),
    cmocka_unit_test(the_folder_may_go_while_the_file_is_used),
    cmocka_unit_test(a_file_in_the_way_and_odd_runs_are_named),
};

ZN_TEST_MAIN(tests)
