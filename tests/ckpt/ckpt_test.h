/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt_test.h — a folder a test, and files made of text. */
#ifndef ZN_TESTS_CKPT_TEST_H
#define ZN_TESTS_CKPT_TEST_H

#include "zn_test.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"

static inline int make_folder(void **state)
{
    char *path = NULL;
    const char *tmp = "/tmp/zinc-test-XXXXXX";
    if (zn_strdup(tmp, &path) != ZINC_OK || !mkdtemp(path))
        return -1;
    *state = path;
    return 0;
}

static inline void remove_tree(const char *path)
{
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        char *inner = NULL;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (zn_fs_join(path, e->d_name, &inner) != ZINC_OK)
            break;
        if (zn_fs_is_dir(inner))
            remove_tree(inner);
        else
            unlink(inner);
        zn_free(inner);
    }
    if (dir)
        closedir(dir);
    rmdir(path);
}

static inline int remove_folder(void **state)
{
    zn_mem_fail_after(-1);
    remove_tree(*state);
    zn_free(*state);
    return 0;
}

/* dir/name; up to four live at once. */
static inline const char *at(void *const *state, const char *name)
{
    static _Thread_local char paths[4][512];
    static _Thread_local unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", (const char *)*state, name);
    return path;
}

static inline void put_file(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* A safetensors file: length, header text, n_data zero bytes. */
static inline void put_weights(const char *path, const char *header, size_t n_data)
{
    zn_buf buf = {0};
    const size_t n = strlen(header);
    unsigned char length[8] = {0};
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)n >> (8 * i));
    assert_ok(zn_buf_append(&buf, length, 8));
    assert_ok(zn_buf_append(&buf, header, n));
    for (size_t i = 0; i < n_data; i++)
        assert_ok(zn_buf_append(&buf, "\0", 1));
    put_file(path, buf.data, buf.n);
    zn_buf_fini(&buf);
}

#endif
