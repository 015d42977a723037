/* SPDX-License-Identifier: Apache-2.0 */
/* standalone.c — run a fuzz target once on every file named, or in a folder named: the corpus as a
 * test, with no fuzzer. A crash names the file before it happens, because its name is printed
 * first. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>

#include "base/fs.h"
#include "base/mem.h"

static int run_file(const char *path)
{
    zn_buf buf = {0};
    printf("%s\n", path);
    fflush(stdout);
    if (zn_fs_read(path, 0, &buf) != ZINC_OK) {
        fprintf(stderr, "%s\n", zinc_last_error());
        return -1;
    }
    (void)LLVMFuzzerTestOneInput((const uint8_t *)buf.data, buf.n);
    zn_buf_fini(&buf);
    return 0;
}

/* Number of files run, or -1. */
static int run_folder(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    if (!d)
        return -1;
    for (const struct dirent *e; n >= 0 && (e = readdir(d));) {
        char *path = NULL;
        if (e->d_name[0] == '.')
            continue;
        n = zn_fs_join(dir, e->d_name, &path) == ZINC_OK && run_file(path) == 0 ? n + 1 : -1;
        zn_free(path);
    }
    closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        const int n = zn_fs_is_dir(argv[i]) ? run_folder(argv[i]) : run_file(argv[i]) + 1;
        if (n <= 0) {
            fprintf(stderr, "%s: no file could be read\n", argv[i]);
            return 1;
        }
        total += n;
    }
    fprintf(stderr, "%d inputs\n", total);
    return total > 0 ? 0 : 1;
}
