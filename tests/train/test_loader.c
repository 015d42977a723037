/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "train/loader.h"

#define N_ROWS 12
#define MB 2
#define ACCUMULATION 3
#define N_STEPS 5

typedef struct fixture {
    zn_dataset *dataset;
    zn_device *dev;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    char path[] = "/tmp/zn_loader_XXXXXX.jsonl";
    zn_buf text = {0};
    const int fd = mkstemps(path, 6);
    for (int i = 0; i < N_ROWS; i++)
        assert_ok(
            zn_buf_printf(&text, "{\"input_ids\":[%d,%d%s]}\n", i, i + 1, i % 3 ? ",7,8" : ""));
    assert_true(fd >= 0);
    assert_ok(zn_fs_pwrite_all(fd, text.data, text.n, 0, path));
    close(fd);
    zn_buf_fini(&text);
    const char *files[] = {path};
    const zn_dataset_params params = {
        .files = files, .n_files = 1, .block_size = 8, .vocab_size = 20, .eos_id = -1};
    f = (fixture){0};
    assert_ok(zn_dataset_open(&params, &f.dataset));
    unlink(path);
    assert_ok(zn_device_open("cpu", &(zn_device_params){.n_threads = 1}, &f.dev));
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    zn_dataset_destroy(f->dataset);
    zn_device_close(f->dev);
    return 0;
}

static zn_loader_params params_of(const fixture *f)
{
    return (zn_loader_params){.dataset = f->dataset,
                              .dev = f->dev,
                              .seed = 5,
                              .shuffle = true,
                              .rank = 1,
                              .n_ranks = 2,
                              .micro_batch = MB,
                              .accumulation = ACCUMULATION,
                              .end = N_STEPS};
}

/* The rows of a step as the sampler and zn_batch_fill give them. */
static void assert_step(const fixture *f, int64_t step, const zn_batch *got)
{
    zn_batch want = {0};
    for (int64_t m = 0; m < ACCUMULATION; m++) {
        int64_t rows[MB];
        const int64_t in_batch = (m * 2 + 1) * MB;
        for (int64_t i = 0; i < MB; i++)
            rows[i] = zn_sampler_row(N_ROWS, 5, true, step * ACCUMULATION * 2 * MB + in_batch + i);
        assert_ok(zn_batch_fill(&want, f->dataset, rows, MB, in_batch));
        assert_int_equal(got[m].B, want.B);
        assert_int_equal(got[m].T, want.T);
        assert_int_equal(got[m].n_targets, want.n_targets);
        const size_t n = (size_t)(want.B * want.T) * sizeof(int32_t);
        assert_memory_equal(got[m].ids, want.ids, n);
        assert_memory_equal(got[m].targets, want.targets, n);
        assert_memory_equal(got[m].sample, want.sample, MB * sizeof(int64_t));
    }
    zn_batch_fini(&want);
}

static void after_the_first_step_no_batch_is_assembled_on_the_steps_thread(void **state)
{
    const fixture *f = *state;
    zn_loader *loader = NULL;
    zn_batch *batches = NULL;
    const zn_loader_params params = params_of(f);
    assert_ok(zn_loader_create(&params, &loader));
    for (int64_t step = 0; step < N_STEPS; step++) {
        assert_ok(zn_loader_step(loader, step, &batches));
        assert_step(f, step, batches);
        assert_int_equal(zn_loader_n_on_the_spot(loader), ACCUMULATION);
    }
    zn_loader_destroy(loader);
}

static void a_run_begins_and_goes_on_at_any_step(void **state)
{
    const fixture *f = *state;
    zn_loader *loader = NULL;
    zn_batch *batches = NULL;
    const zn_loader_params params = params_of(f);
    static const int64_t steps[] = {2, 3, 1, 2, 4};
    assert_ok(zn_loader_create(&params, &loader));
    for (int i = 0; i < 5; i++) {
        assert_ok(zn_loader_step(loader, steps[i], &batches));
        assert_step(f, steps[i], batches);
    }
    assert_int_equal(zn_loader_n_on_the_spot(loader), 3 * ACCUMULATION); /* 2, 1, 4 */
    zn_loader_destroy(loader);
}

/* Batches have their memory when two steps have been assembled. */
static void nothing_is_allocated_after_the_second_step(void **state)
{
    const fixture *f = *state;
    zn_loader *loader = NULL;
    zn_batch *batches = NULL;
    zn_loader_params params = params_of(f);
    int64_t allocs = 0;
    params.micro_batch = N_ROWS; /* every batch has every length */
    params.end = 6;
    assert_ok(zn_loader_create(&params, &loader));
    for (int64_t step = 0; step < 6; step++) {
        assert_ok(zn_loader_step(loader, step, &batches));
        if (step == 2)
            allocs = zn_mem_alloc_count();
    }
    assert_int_equal(zn_mem_alloc_count(), allocs);
    zn_loader_destroy(loader);
}

static void a_failed_allocation_leaves_nothing_behind(void **state)
{
    const fixture *f = *state;
    zn_loader *loader = NULL;
    const zn_loader_params params = params_of(f);
    for (int n = 0; n < 100 && !loader; n++) {
        zn_mem_fail_after(n);
        const zinc_status status = zn_loader_create(&params, &loader);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    }
    assert_non_null(loader);
    zn_loader_destroy(loader);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(after_the_first_step_no_batch_is_assembled_on_the_steps_thread,
                                    set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_run_begins_and_goes_on_at_any_step, set_up, tear_down),
    cmocka_unit_test_setup_teardown(nothing_is_allocated_after_the_second_step, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_failed_allocation_leaves_nothing_behind, set_up, tear_down),
};

ZN_TEST_MAIN(tests)
