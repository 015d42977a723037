/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "cli/disk_error.h"

static _Noreturn void touch_cut_file(const char *path, int error_output)
{
    zn_map map = {0};
    dup2(error_output, STDERR_FILENO);
    zn_cli_catch_disk_errors();
    if (zn_map_open(path, &map) != ZINC_OK || truncate(path, 0) != 0)
        _exit(99);
    _exit(*(volatile const unsigned char *)(map.data + 5000));
}

static void a_mapped_file_that_is_cut_is_named(void **state)
{
    static const char block[8192];
    char path[] = "/tmp/zinc-test-XXXXXX", said[600] = "";
    int code, ends[2];
    const int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0 && pipe(ends) == 0);
    assert_ok(zn_fs_pwrite_all(fd, block, sizeof block, 0, path));
    close(fd);
    const pid_t child = fork();
    if (child == 0)
        touch_cut_file(path, ends[1]);
    close(ends[1]);
    for (size_t n = 0; n < sizeof said - 1;) {
        const ssize_t got = read(ends[0], said + n, sizeof said - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(ends[0]);
    assert_int_equal(waitpid(child, &code, 0), child);
    unlink(path);
    assert_true(WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), 4);
    assert_non_null(strstr(said, path));
    assert_non_null(strstr(said, "its disk fails, or the file was cut while it was in use"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_mapped_file_that_is_cut_is_named),
};

ZN_TEST_MAIN(tests)
