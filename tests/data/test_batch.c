/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "base/fs.h"
#include "data/dataset.h"
#include "zn_test.h"

static void check_permutation(int64_t n, uint64_t seed, int64_t epoch)
{
    uint8_t *seen = calloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = zn_sampler_row(n, seed, true, epoch * n + i);
        assert_in_range(row, 0, n - 1);
        if (seen[row]++)
            fail_msg("n %lld: row %lld twice", (long long)n, (long long)row);
    }
    free(seen);
}

static void every_epoch_reads_every_row_once(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 130; n++)
        for (int64_t epoch = 0; epoch < 3; epoch++)
            check_permutation(n, 42, epoch);
    check_permutation(4096, 7, 0);
    check_permutation(4097, 7, 1);
    check_permutation(100003, 7, 5);
}

static void epochs_and_seeds_have_orders_of_their_own(void **state)
{
    (void)state;
    int same_epoch = 0, same_seed = 0, in_place = 0;
    for (int64_t i = 0; i < 1000; i++) {
        const int64_t row = zn_sampler_row(1000, 7, true, i);
        same_epoch += row == zn_sampler_row(1000, 7, true, 1000 + i);
        same_seed += row == zn_sampler_row(1000, 8, true, i);
        in_place += row == i;
    }
    /* a random permutation agrees with another in 1 place on average; 12 has probability 1e-9 */
    assert_true(same_epoch < 12 && same_seed < 12 && in_place < 12);
}

/* The first row of an epoch is each row about equally often: 6 rows, 6,000 epochs, 1,000 each with
 * a standard deviation of 29. */
static void no_row_is_favoured(void **state)
{
    (void)state;
    int count[6] = {0};
    for (int64_t epoch = 0; epoch < 6000; epoch++)
        count[zn_sampler_row(6, 1, true, epoch * 6)]++;
    for (int i = 0; i < 6; i++)
        assert_in_range(count[i], 850, 1150);
}

/* A run that is resumed, on any number of ranks and with any later version, must read on where it
 * stopped: the order may never change. */
static void the_order_is_pinned(void **state)
{
    (void)state;
    static const int64_t want[12] = {6, 22, 19, 30, 4, 18, 11, 30, 26, 13, 23, 12};
    for (int64_t i = 0; i < 12; i++)
        assert_int_equal(zn_sampler_row(37, 3, true, 30 + i), want[i]);
}

static void without_shuffling_rows_come_in_file_order_and_wrap(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 25; i++)
        assert_int_equal(zn_sampler_row(10, 5, false, i), i % 10);
}

/* ---- micro-batches ---- */

static int open_rows(void **state)
{
    static const char text[] =
        "{\"input_ids\":[5,6,7,8]}\n"
        "{\"input_ids\":[1,2],\"labels\":[-100,9]}\n"
        "{\"input_ids\":[3,4,5],\"labels\":[3,-100,5],\"attention_mask\":[0,1,1]}\n"
        "{\"input_ids\":[9,9,9,9]}\n";
    char path[] = "/tmp/zn_batch_XXXXXX.jsonl";
    const int fd = mkstemps(path, 6);
    if (fd < 0 || zn_fs_pwrite_all(fd, text, sizeof text - 1, 0, path) != ZINC_OK)
        return -1;
    close(fd);
    const char *files[] = {path};
    const zn_dataset_params params = {
        .files = files, .n_files = 1, .block_size = 8, .vocab_size = 10, .eos_id = -1};
    zn_dataset *dataset = NULL;
    const zinc_status status = zn_dataset_open(&params, &dataset);
    unlink(path);
    *state = dataset;
    return status == ZINC_OK ? 0 : -1;
}

static int close_rows(void **state)
{
    zn_dataset_destroy(*state);
    return 0;
}

static void targets_are_the_next_labels_and_padding_has_none(void **state)
{
    static const int32_t ids[] = {5, 6, 7, 8, 1, 2, 0, 0, 3, 4, 5, 0, 0, 0, 0, 0};
    static const int32_t targets[] = {6, 7, 8, -1, 9, -1, -1, -1, -1, 5, -1, -1, -1, -1, -1, -1};
    static const uint8_t mask[] = {1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0};
    const int64_t rows[] = {0, 1, 2, -1};
    zn_batch batch = {0};
    assert_ok(zn_batch_fill(&batch, *state, rows, 4, 100));
    assert_int_equal(batch.B, 4);
    assert_int_equal(batch.T, 4);
    assert_memory_equal(batch.ids, ids, sizeof ids);
    assert_memory_equal(batch.targets, targets, sizeof targets);
    assert_memory_equal(batch.mask, mask, sizeof mask);
    assert_int_equal(batch.n_targets, 5);
    assert_int_equal(batch.n_tokens, 8);
    assert_int_equal(batch.sample[3], 103);
    zn_batch_fini(&batch);
}

static void a_batch_is_reused_and_needs_no_mask_when_full(void **state)
{
    const int64_t all[] = {0, 1, 2, 3}, full[] = {3, 0}, none[] = {-1};
    zn_batch batch = {0};
    assert_ok(zn_batch_fill(&batch, *state, all, 4, 0));
    const int32_t *before = batch.ids;
    assert_ok(zn_batch_fill(&batch, *state, full, 2, 8));
    assert_ptr_equal(batch.ids, before);
    assert_null(batch.mask);
    assert_int_equal(batch.n_targets, 6);
    assert_int_equal(batch.ids[4], 5);
    assert_ok(zn_batch_fill(&batch, *state, none, 1, 8));
    assert_int_equal(batch.T, 1);
    assert_int_equal(batch.n_targets + batch.n_tokens, 0);
    assert_non_null(batch.mask);
    zn_batch_fini(&batch);
}

static void a_row_that_is_not_there_is_an_error(void **state)
{
    const int64_t rows[] = {4};
    zn_batch batch = {0};
    assert_fails(zn_batch_fill(&batch, *state, rows, 1, 0), ZINC_E_INVALID, "row 4");
    assert_fails(zn_batch_fill(&batch, *state, rows, 0, 0), ZINC_E_INVALID, "0 rows");
    zn_batch_fini(&batch);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_epoch_reads_every_row_once),
    cmocka_unit_test(epochs_and_seeds_have_orders_of_their_own),
    cmocka_unit_test(no_row_is_favoured),
    cmocka_unit_test(the_order_is_pinned),
    cmocka_unit_test(without_shuffling_rows_come_in_file_order_and_wrap),
    cmocka_unit_test_setup_teardown(targets_are_the_next_labels_and_padding_has_none, open_rows,
                                    close_rows),
    cmocka_unit_test_setup_teardown(a_batch_is_reused_and_needs_no_mask_when_full, open_rows,
                                    close_rows),
    cmocka_unit_test_setup_teardown(a_row_that_is_not_there_is_an_error, open_rows, close_rows),
};

ZN_TEST_MAIN(tests)
