/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

/* Everything happens in a folder of the test, whose three entries teardown knows. */
static int setup(void **state)
{
    static char path[64];
    strcpy(path, "/tmp/zinc-fs-XXXXXX");
    *state = mkdtemp(path);
    return *state ? 0 : -1;
}

static char *join(void *const *state, const char *name)
{
    char *path = NULL;
    assert_ok(zn_fs_join(*state, name, &path));
    return path;
}

static int teardown(void **state)
{
    static const char *const names[] = {"a/b/c", "a/b", "a", "file", "copy", ""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = join(state, names[i]);
        (void)remove(path);
        zn_free(path);
    }
    return 0;
}

static void a_file_is_written_read_mapped_and_copied(void **state)
{
    char *path = join(state, "file");
    char *copy = join(state, "copy");
    zn_buf buf = {0};
    zn_map map = {0};
    assert_ok(zn_fs_write_atomic(path, "old", 3));
    assert_ok(zn_fs_write_atomic(path, "a\0b", 3));
    assert_ok(zn_fs_read(path, 3, &buf));
    assert_int_equal(buf.n, 3);
    assert_memory_equal(buf.data, "a\0b", 4);
    assert_ok(zn_map_open(path, &map));
    assert_int_equal(map.n_bytes, 3);
    assert_memory_equal(map.data, "a\0b", 3);
    zn_map_close(&map);
    assert_null(map.data);
    assert_ok(zn_fs_copy(path, copy));
    zn_buf_fini(&buf);
    assert_ok(zn_fs_read(copy, 0, &buf));
    assert_memory_equal(buf.data, "a\0b", 4);
    zn_buf_fini(&buf);
    assert_fails(zn_fs_read(path, 2, &buf), ZINC_E_FORMAT, "larger than 2 bytes");
    zn_buf_fini(&buf);
    zn_free(path);
    zn_free(copy);
}

static void an_empty_file_maps_to_nothing(void **state)
{
    char *path = join(state, "file");
    zn_map map = {0};
    assert_ok(zn_fs_write_atomic(path, "", 0));
    assert_ok(zn_map_open(path, &map));
    assert_null(map.data);
    assert_int_equal(map.n_bytes, 0);
    zn_map_close(&map);
    zn_free(path);
}

static void folders_are_made_with_their_parents(void **state)
{
    char *deep = join(state, "a/b/c");
    char *file = join(state, "file");
    char *below = join(state, "file/x");
    assert_ok(zn_fs_mkdirs(deep));
    assert_ok(zn_fs_mkdirs(deep));
    assert_true(zn_fs_is_dir(deep));
    assert_true(zn_fs_is_empty_dir(deep));
    assert_false(zn_fs_is_empty_dir(*state));
    assert_ok(zn_fs_sync_dir(deep));
    assert_ok(zn_fs_write_atomic(file, "", 0));
    assert_false(zn_fs_is_empty_dir(file));
    assert_fails(zn_fs_mkdirs(file), ZINC_E_IO, "a file is in the way");
    assert_fails(zn_fs_mkdirs(below), ZINC_E_IO, "file/x");
    zn_free(deep);
    zn_free(file);
    zn_free(below);
}

static void what_is_missing_is_named(void **state)
{
    char *path = join(state, "gone");
    zn_buf buf = {0};
    zn_map map = {0};
    assert_false(zn_fs_exists(path));
    assert_true(zn_fs_is_empty_dir(path));
    assert_fails(zn_fs_read(path, 0, &buf), ZINC_E_IO, "gone");
    assert_fails(zn_map_open(path, &map), ZINC_E_IO, "gone");
    assert_fails(zn_map_open(*state, &map), ZINC_E_IO, "not a regular file");
    assert_fails(zn_fs_sync_dir(path), ZINC_E_IO, "gone");
    zn_free(path);
    path = join(state, "gone/file");
    assert_fails(zn_fs_write_atomic(path, "x", 1), ZINC_E_IO, "gone/file");
    zn_buf_fini(&buf);
    zn_free(path);
}

static void a_failed_write_leaves_the_old_file(void **state)
{
    char *path = join(state, "file");
    zn_buf buf = {0};
    assert_ok(zn_fs_write_atomic(path, "old", 3));
    zn_mem_fail_after(0);
    const zinc_status status = zn_fs_write_atomic(path, "new", 3);
    zn_mem_fail_after(-1);
    assert_int_equal(status, ZINC_E_NOMEM);
    assert_ok(zn_fs_read(path, 0, &buf));
    assert_string_equal(buf.data, "old");
    zn_buf_fini(&buf);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_fails(zn_fs_pwrite_all(fd, "x", 1, 0, path), ZINC_E_IO, "cannot write 1 bytes");
    close(fd);
    zn_free(path);
}

static void joined_paths_have_one_slash(void **state)
{
    (void)state;
    char *path = NULL;
    assert_ok(zn_fs_join("a", "b", &path));
    assert_string_equal(path, "a/b");
    zn_free(path);
    assert_ok(zn_fs_join("a/", "b", &path));
    assert_string_equal(path, "a/b");
    zn_free(path);
}

static void an_empty_name_is_said_to_be_empty(void **state)
{
    zn_buf buf = {0};
    zn_map map = {0};
    (void)state;
    assert_fails(zn_fs_read("", 0, &buf), ZINC_E_IO, "name of a file or folder is empty");
    assert_fails(zn_map_open("", &map), ZINC_E_IO, "name of a file or folder is empty");
    assert_fails(zn_fs_mkdirs(""), ZINC_E_IO, "name of a file or folder is empty");
    zn_buf_fini(&buf);
}

/* Opening a pipe waits for who writes to it: that would be the time limit of this test. */
static void a_pipe_is_not_waited_for(void **state)
{
    char *path = join(state, "file");
    zn_map map = {0};
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(zn_map_open(path, &map), ZINC_E_IO, "not a regular file");
    zn_free(path);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    TEST(a_file_is_written_read_mapped_and_copied), TEST(an_empty_file_maps_to_nothing),
    TEST(folders_are_made_with_their_parents),      TEST(what_is_missing_is_named),
    TEST(an_empty_name_is_said_to_be_empty),        TEST(a_pipe_is_not_waited_for),
    TEST(a_failed_write_leaves_the_old_file),       TEST(joined_paths_have_one_slash),
};

ZN_TEST_MAIN(tests)
