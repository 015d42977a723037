/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include "ckpt/bulk_file.h"

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 31 + i / 4096);
}

/* Lengths about the blocks and the alignment of direct writes; pieces that fit neither. */
static void what_is_given_in_any_pieces_is_the_file(void **state)
{
    static const size_t lengths[] = {0,       1,       4095,    4096,        4097,
                                     1 << 20, 1048577, 1048575, 5 * 1048576, 7 * 1048576 + 12345};
    static const size_t pieces[] = {1 << 14, 999983, 9 << 20};
    const char *path = at(state, "bulk");
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
        for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
            zn_bulk_file *file = NULL;
            unsigned char *bytes = NULL;
            zn_buf got = {0};
            const size_t n = lengths[l];
            assert_ok(zn_alloc(&bytes, n + 1, "bytes"));
            for (size_t i = 0; i < n; i++)
                bytes[i] = byte_at(i);
            assert_ok(zn_bulk_create(path, (int64_t)n, &file));
            for (size_t done = 0; done < n; done += pieces[p])
                assert_ok(
                    zn_bulk_write(file, bytes + done, n - done < pieces[p] ? n - done : pieces[p]));
            assert_ok(zn_bulk_finish(file));
            zn_bulk_destroy(file);
            assert_ok(zn_fs_read(path, 0, &got));
            assert_int_equal(got.n, n);
            if (n > 0)
                assert_memory_equal(got.data, bytes, n);
            zn_buf_fini(&got);
            zn_free(bytes);
        }
}

static void an_unfinished_file_is_closed_in_order(void **state)
{
    zn_bulk_file *file = NULL;
    assert_ok(zn_bulk_create(at(state, "bulk"), 3 << 20, &file));
    assert_ok(zn_bulk_write(file, "begun", 5));
    zn_bulk_destroy(file);
    zn_bulk_destroy(NULL);
    assert_fails(zn_bulk_create(at(state, "no/folder"), 10, &file), ZINC_E_IO, "cannot create");
}

/* /dev/full takes the name of a file system that has filled up meanwhile. */
static void a_write_that_fails_is_told_by_a_later_call(void **state)
{
    zn_bulk_file *file = NULL;
    static const unsigned char block[1 << 20];
    zinc_status status = ZINC_OK;
    (void)state;
    assert_ok(zn_bulk_create("/dev/full", 64 << 20, &file));
    for (int i = 0; i < 64 && status == ZINC_OK; i++)
        status = zn_bulk_write(file, block, sizeof block);
    if (status == ZINC_OK)
        status = zn_bulk_finish(file);
    assert_int_equal(status, ZINC_E_IO);
    assert_non_null(strstr(zinc_last_error(), "/dev/full: No space left on device"));
    zn_bulk_destroy(file);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(what_is_given_in_any_pieces_is_the_file),
    TEST(an_unfinished_file_is_closed_in_order),
    TEST(a_write_that_fails_is_told_by_a_later_call),
};

ZN_TEST_MAIN(tests)
