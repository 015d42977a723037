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
            assert_ok(zn_bulk_create(path, (int64_t)n, NULL, NULL, &file));
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

typedef struct heard {
    int64_t done, n_bytes;
    int n;
} heard;

static void hear(void *ctx, int64_t done, int64_t n_bytes)
{
    heard *h = ctx;
    assert_true(done > h->done); /* never on the main thread, so a failure ends the program */
    *h = (heard){done, n_bytes, h->n + 1};
}

/* Some blocks' worth of bytes through the slots, then the caller's own memory, aligned or not. */
static void the_rest_is_written_from_where_it_lies(void **state)
{
    static const size_t heads[] = {0, 4096, 1 << 20, (9 << 20) + 8192};
    static const size_t rests[] = {1, 4096, (1 << 20) - 1, (11 << 20) + 17};
    const char *path = at(state, "bulk");
    const size_t most = heads[3] + rests[3] + ZN_BULK_ALIGN;
    unsigned char *bytes = NULL, *memory = NULL;
    assert_ok(zn_alloc(&bytes, most, "bytes"));
    assert_ok(zn_alloc(&memory, rests[3] + 2 * ZN_BULK_ALIGN + 64, "bytes"));
    unsigned char *aligned = memory + ZN_BULK_ALIGN - (uintptr_t)memory % ZN_BULK_ALIGN;
    for (size_t i = 0; i < most; i++)
        bytes[i] = byte_at(i);
    for (int k = 0; k < 32; k++) {
        const size_t head = heads[k % 4], rest = rests[k / 4 % 4];
        unsigned char *from = aligned + (k < 16 ? 0 : 64);
        heard h = {0};
        zn_bulk_file *file = NULL;
        zn_buf got = {0};
        memcpy(from, bytes + head, rest);
        assert_ok(zn_bulk_create(path, (int64_t)(head + rest), hear, &h, &file));
        assert_ok(zn_bulk_write(file, bytes, head));
        assert_ok(zn_bulk_write_kept(file, from));
        assert_ok(zn_bulk_finish(file));
        zn_bulk_destroy(file);
        assert_ok(zn_fs_read(path, 0, &got));
        assert_int_equal(got.n, head + rest);
        assert_memory_equal(got.data, bytes, head + rest);
        assert_int_equal(h.done, head + rest);
        assert_int_equal(h.n_bytes, head + rest);
        assert_int_equal(h.n,
                         (head + (1 << 20) - 1) / (1 << 20) + (rest + (1 << 20) - 1) / (1 << 20));
        zn_buf_fini(&got);
    }
    zn_free(bytes);
    zn_free(memory);
}

static void an_unfinished_file_is_closed_in_order(void **state)
{
    zn_bulk_file *file = NULL;
    assert_ok(zn_bulk_create(at(state, "bulk"), 3 << 20, NULL, NULL, &file));
    assert_ok(zn_bulk_write(file, "begun", 5));
    zn_bulk_destroy(file);
    zn_bulk_destroy(NULL);
    assert_fails(zn_bulk_create(at(state, "no/folder"), 10, NULL, NULL, &file), ZINC_E_IO,
                 "cannot create");
}

/* /dev/full takes the name of a file system that has filled up meanwhile. */
static void a_write_that_fails_is_told_by_a_later_call(void **state)
{
    zn_bulk_file *file = NULL;
    static const unsigned char block[1 << 20];
    zinc_status status = ZINC_OK;
    (void)state;
    assert_ok(zn_bulk_create("/dev/full", 64 << 20, NULL, NULL, &file));
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
    TEST(the_rest_is_written_from_where_it_lies),
    TEST(an_unfinished_file_is_closed_in_order),
    TEST(a_write_that_fails_is_told_by_a_later_call),
};

ZN_TEST_MAIN(tests)
