/* SPDX-License-Identifier: Apache-2.0 */
/* test_faults.c — the first, second, third, … call of each kind fails, until there is none left:
 * while a checkpoint is saved, loaded, exported, verified and deleted. Every time the failure is
 * told with the file's name, or it did no harm; what was good before is good, and the next save or
 * load works. The calls are this program's own definitions, which come before the C library's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include "made_checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>

#include "ckpt/export.h"

typedef enum kind {
    ANY_OPEN,
    ANY_STAT,
    ANY_OPENDIR,
    ANY_READ,
    ANY_WRITE,
    ANY_FSYNC,
    ANY_CLOSE,
    ANY_FALLOCATE,
    ANY_TRUNCATE,
    ANY_RENAME,
    ANY_UNLINK,
    ANY_MKDIR,
    ANY_RMDIR,
} kind;

/* How it fails, besides by an error: a short transfer, a bit that is another one, and a file that
 * is at its end. */
enum { SHORT = -1, FLIP = -2, ENDS = -3 };

typedef struct fault {
    kind kind;
    int how; /* errno, or one of the above */
    const char *name;
} fault;

static const fault faults[] = {
    {ANY_OPEN, EIO, "open EIO"},
    {ANY_OPEN, EMFILE, "open EMFILE"},
    {ANY_STAT, EIO, "stat EIO"},
    {ANY_OPENDIR, EIO, "opendir EIO"},
    {ANY_READ, EIO, "read EIO"},
    {ANY_READ, SHORT, "short read"},
    {ANY_READ, FLIP, "bit flipped in a read"},
    {ANY_READ, ENDS, "truncated file"},
    {ANY_WRITE, ENOSPC, "write ENOSPC"},
    {ANY_WRITE, EIO, "write EIO"},
    {ANY_WRITE, SHORT, "short write"},
    {ANY_WRITE, FLIP, "bit flipped in a write"},
    {ANY_FSYNC, EIO, "fsync EIO"},
    {ANY_CLOSE, EIO, "close EIO"},
    {ANY_FALLOCATE, ENOSPC, "fallocate ENOSPC"},
    {ANY_TRUNCATE, EIO, "ftruncate EIO"},
    {ANY_RENAME, EIO, "rename EIO"},
    {ANY_UNLINK, EIO, "unlink EIO"},
    {ANY_MKDIR, ENOSPC, "mkdir ENOSPC"},
    {ANY_RMDIR, EIO, "rmdir EIO"},
};
#define N_FAULTS ((int)(sizeof faults / sizeof faults[0]))

/* ---- the calls ---- */

static const char *under;    /* calls on files below this folder count; NULL: none */
static const fault *planned; /* while `under` is set */
static int planned_nth;
static atomic_int n_seen;
static atomic_bool struck, harmless;

static int strikes(kind k, const char *path)
{
    if (!under || planned->kind != k || strncmp(path, under, strlen(under)) != 0 ||
        atomic_fetch_add(&n_seen, 1) + 1 != planned_nth)
        return 0;
    atomic_store(&struck, true);
    errno = planned->how > 0 ? planned->how : 0;
    return planned->how;
}

static int strikes_fd(kind k, int fd)
{
    char link[64], path[PATH_MAX];
    if (!under || planned->kind != k)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return strikes(k, path);
}

static ssize_t read_some(int fd, void *bytes, size_t n, off_t offset, bool at_offset)
{
    const int how = strikes_fd(ANY_READ, fd);
    unsigned char *p = bytes;
    if (how > 0)
        return -1;
    if (how == SHORT && n > 1)
        n /= 2;
    const ssize_t done =
        at_offset ? syscall(SYS_pread64, fd, p, n, offset) : syscall(SYS_read, fd, p, n);
    if (how && done <= 0) /* the end, where there is nothing to be wrong */
        atomic_store(&harmless, true);
    if (how == FLIP && done > 0)
        p[done / 2] ^= 4;
    return how == ENDS ? 0 : done;
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    return read_some(fd, bytes, n, offset, true);
}

ssize_t read(int fd, void *bytes, size_t n)
{
    return read_some(fd, bytes, n, 0, false);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    const int how = strikes_fd(ANY_WRITE, fd);
    if (how > 0)
        return -1;
    if (how == SHORT && n > 1)
        n /= 2;
    const ssize_t done = syscall(SYS_pwrite64, fd, bytes, n, offset);
    const unsigned char wrong = ((const unsigned char *)bytes)[n / 2] ^ 4;
    return how == FLIP ? done - 1 + syscall(SYS_pwrite64, fd, &wrong, 1, offset + (off_t)n / 2)
                       : done;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    flags &= ~O_DIRECT; /* would wait for the disk */
    return strikes(ANY_OPEN, path) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* Nothing is flushed: that would take the test's time and show nothing. */
int fsync(int fd)
{
    return strikes_fd(ANY_FSYNC, fd) ? -1 : 0;
}

int close(int fd)
{
    const int how = strikes_fd(ANY_CLOSE, fd), error = errno;
    const int rc = (int)syscall(SYS_close, fd);
    errno = how ? error : errno;
    return how ? -1 : rc;
}

int posix_fallocate(int fd, off_t offset, off_t n)
{
    const int how = strikes_fd(ANY_FALLOCATE, fd);
    return how ? how : syscall(SYS_fallocate, fd, 0, offset, n) == 0 ? 0 : errno;
}

int ftruncate(int fd, off_t n)
{
    return strikes_fd(ANY_TRUNCATE, fd) ? -1 : (int)syscall(SYS_ftruncate, fd, n);
}

int rename(const char *from, const char *to)
{
    return strikes(ANY_RENAME, to) ? -1 : (int)syscall(SYS_rename, from, to);
}

int unlink(const char *path)
{
    return strikes(ANY_UNLINK, path) ? -1 : (int)syscall(SYS_unlink, path);
}

int mkdir(const char *path, mode_t mode)
{
    return strikes(ANY_MKDIR, path) ? -1 : (int)syscall(SYS_mkdir, path, mode);
}

int rmdir(const char *path)
{
    return strikes(ANY_RMDIR, path) ? -1 : (int)syscall(SYS_rmdir, path);
}

int stat(const char *path, struct stat *out)
{
    return strikes(ANY_STAT, path) ? -1 : fstatat(AT_FDCWD, path, out, 0);
}

DIR *opendir(const char *path)
{
    if (strikes(ANY_OPENDIR, path))
        return NULL;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? NULL : fdopendir(fd);
}

/* ---- what holds every time ---- */

typedef struct situation {
    char dir[300]; /* of the test; OUT is its "out", the export "hf" */
    const fault *fault;
    int nth;
    zinc_status status;
    char message[2048];
} situation;

static const char *in(const situation *s, const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", s->dir, name);
    return path;
}

#define assert_that(s, ok)                                                                         \
    do {                                                                                           \
        if (!(ok))                                                                                 \
            fail_msg("%s no. %d (%s: %s): not %s", (s)->fault->name, (s)->nth,                     \
                     zinc_status_name((s)->status), (s)->message, #ok);                            \
    } while (0)

/* Every element of `path`; *salt is what all of them have in common, or -1. */
static zinc_status read_checkpoint(const char *path, int *salt)
{
    zinc_status status = ZINC_OK;
    zn_ckpt *ckpt = NULL;
    float got[10];
    *salt = -1;
    ZN_TRY(zn_ckpt_open(path, &ckpt));
    for (int i = 0; i < 2 && status == ZINC_OK; i++)
        for (int what = ZN_CKPT_MASTER; what < (i ? 0 : 2) && status == ZINC_OK; what++) {
            const int64_t n = zn_ckpt_n_elems(ckpt, i);
            status =
                zn_ckpt_read(ckpt, i, what, 0, 1, got); /* a range's beginning, then its rest */
            if (status == ZINC_OK)
                status = zn_ckpt_read(ckpt, i, what, 1, n - 1, got + 1);
            if (status == ZINC_OK && *salt < 0)
                *salt = (int)(got[0] / 10000);
            for (int64_t k = 0; status == ZINC_OK && k < n; k++)
                if (got[k] != made_value(i, what, k, *salt))
                    *salt = -2; /* and no value fits any more */
        }
    zn_ckpt_close(ckpt);
    return status;
}

static zinc_status read_latest(const char *out, int *salt)
{
    char *path = NULL;
    ZN_TRY(zn_ckpt_latest(out, &path));
    const zinc_status status = read_checkpoint(path, salt);
    zn_free(path);
    return status;
}

static void note_problem(void *ctx, const char *text)
{
    situation *s = ctx;
    snprintf(s->message, sizeof s->message, "%s", text);
}

static int n_problems(situation *s, const char *path)
{
    int n = 0;
    assert_ok(zn_ckpt_verify(path, note_problem, s, &n));
    return n;
}

/* The folder `out` after a clean-up, a save and a deletion without faults. */
static void next_start_works(situation *s)
{
    int salt;
    zn_ckpt_clean(in(s, "out"));
    assert_ok(try_make_checkpoint(in(s, "out"), 9, 7, 9));
    assert_ok(zn_ckpt_prune(in(s, "out"), 1, 0, NULL, NULL));
    assert_ok(read_latest(in(s, "out"), &salt));
    assert_that(s, salt == 9);
    int n = 0;
    DIR *dir = opendir(in(s, "out"));
    for (const struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    assert_that(s, n == 2); /* latest, checkpoint-9 */
}

/* act() under every fault in turn, from what prepare() has made; check() sees what is left. */
static void try_all(void **state, void (*prepare)(situation *s), zinc_status (*act)(situation *s),
                    void (*check)(situation *s))
{
    int n_struck = 0;
    situation s = {.status = ZINC_OK};
    snprintf(s.dir, sizeof s.dir, "%s", (const char *)*state);
    for (int f = 0; f < N_FAULTS; f++)
        for (s.nth = 1;; s.nth++) {
            s.fault = &faults[f];
            prepare(&s);
            planned = s.fault;
            planned_nth = s.nth;
            atomic_store(&n_seen, 0);
            atomic_store(&struck, false);
            atomic_store(&harmless, false);
            under = s.dir;
            s.status = act(&s);
            under = NULL;
            snprintf(s.message, sizeof s.message, "%s", s.status ? zinc_last_error() : "");
            if (!atomic_load(&struck))
                break;
            n_struck++;
            assert_that(&s,
                        s.status == ZINC_OK || s.status == ZINC_E_IO || s.status == ZINC_E_FORMAT);
            assert_that(&s, s.status == ZINC_OK || strstr(s.message, s.dir));
            check(&s);
        }
    print_message("%d calls failed\n", n_struck);
    assert_true(n_struck > 40);
}

/* ---- saving ---- */

static void one_good(situation *s)
{
    remove_tree(in(s, "out"));
    assert_ok(try_make_checkpoint(in(s, "out"), 1, 7, 1));
}

/* As train/saving.c does it, with --save_total_limit 1. */
static zinc_status save_and_delete(situation *s)
{
    zinc_status status = try_make_checkpoint(in(s, "out"), 2, 7, 2);
    zn_error error;
    zn_error_save(&error, status);
    if (status != ZINC_OK)
        zn_ckpt_discard(in(s, "out"), 2);
    else if (s->fault->how != FLIP)
        return zn_ckpt_prune(in(s, "out"), 1, 7, NULL, NULL);
    return zn_error_restore(&error);
}

static void latest_is_whole(situation *s)
{
    int salt = 0;
    if (s->status == ZINC_OK && s->fault->how == FLIP) {
        const int n = n_problems(s, in(s, "out/checkpoint-2"));
        const zinc_status status = read_latest(in(s, "out"), &salt);
        assert_that(s, (n == 0 && status == ZINC_OK && salt == 2) || n > 0 || status != ZINC_OK);
        assert_that(s, n == 0 || strstr(s->message, "checkpoint-2/"));
        assert_that(s, status != ZINC_OK || salt == 2);
        assert_int_equal(n_problems(s, in(s, "out/checkpoint-1")), 0);
        remove_tree(in(s, "out/checkpoint-2"));
    } else {
        assert_ok(read_latest(in(s, "out"), &salt));
        assert_that(s, salt == 1 || salt == 2);
        assert_that(s, s->status != ZINC_OK || salt == 2);
        assert_int_equal(
            n_problems(s, salt == 1 ? in(s, "out/checkpoint-1") : in(s, "out/checkpoint-2")), 0);
    }
    next_start_works(s);
}

static void a_save_that_fails_anywhere_leaves_a_good_one(void **state)
{
    try_all(state, one_good, save_and_delete, latest_is_whole);
}

/* The same step once more: the older one steps aside. */
static zinc_status save_again(situation *s)
{
    zinc_status status = try_make_checkpoint(in(s, "out"), 1, 7, 2);
    zn_error error;
    zn_error_save(&error, status);
    if (status != ZINC_OK)
        zn_ckpt_discard(in(s, "out"), 1);
    return zn_error_restore(&error);
}

static void one_of_both_is_there(situation *s)
{
    int salt = 0;
    if (s->status == ZINC_OK && s->fault->how == FLIP)
        return; /* as above */
    zn_ckpt_clean(in(s, "out"));
    assert_ok(read_latest(in(s, "out"), &salt));
    assert_that(s, salt == 1 || salt == 2);
    assert_that(s, s->status != ZINC_OK || salt == 2);
    next_start_works(s);
}

static void a_save_over_the_same_step_leaves_one_of_both(void **state)
{
    try_all(state, one_good, save_again, one_of_both_is_there);
}

/* ---- loading, verifying, deleting ---- */

static void three_good(situation *s)
{
    remove_tree(in(s, "out"));
    for (int step = 1; step <= 3; step++)
        assert_ok(try_make_checkpoint(in(s, "out"), step, 7, step));
}

/* Nothing that is tried changes them. */
static void three_good_once(situation *s)
{
    if (!zn_fs_exists(in(s, "out")))
        three_good(s);
}

static int loaded;

static zinc_status load(situation *s)
{
    return read_latest(in(s, "out"), &loaded);
}

static void values_are_right_or_refused(situation *s)
{
    int salt;
    assert_that(s, s->status != ZINC_OK || loaded == 3);
    if (strstr(s->message, ".safetensors") && s->fault->kind == ANY_READ) /* whose, and where */
        assert_that(s, (strstr(s->message, " of block.a, elements [") ||
                        strstr(s->message, " of b, elements [")) &&
                           strstr(s->message, "/shard-0000"));
    assert_ok(read_latest(in(s, "out"), &salt));
    assert_that(s, salt == 3);
}

static void a_load_that_fails_anywhere_says_where_and_gives_no_wrong_value(void **state)
{
    try_all(state, three_good_once, load, values_are_right_or_refused);
}

static int found;

static zinc_status verify(situation *s)
{
    char text[2048] = "";
    found = 0;
    s->message[0] = '\0';
    ZN_TRY(zn_ckpt_verify(in(s, "out/checkpoint-3"), note_problem, s, &found));
    snprintf(text, sizeof text, "%s", s->message);
    if (found > 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s", text);
    return ZINC_OK;
}

static void damage_is_found(situation *s)
{
    if (s->fault->kind == ANY_READ && s->fault->how != SHORT)
        assert_that(s, found > 0 || atomic_load(&harmless));
    assert_int_equal(n_problems(s, in(s, "out/checkpoint-3")), 0);
}

static void a_verification_finds_what_is_wrong_anywhere(void **state)
{
    try_all(state, three_good_once, verify, damage_is_found);
}

static zinc_status keep_one(situation *s)
{
    return zn_ckpt_prune(in(s, "out"), 1, 7, NULL, NULL);
}

static void the_newest_is_left(situation *s)
{
    assert_int_equal(n_problems(s, in(s, "out/checkpoint-3")), 0);
    next_start_works(s);
}

static void a_deletion_that_fails_anywhere_leaves_the_newest(void **state)
{
    try_all(state, three_good, keep_one, the_newest_is_left);
}

/* ---- exporting ---- */

static int64_t shard_bytes;

static zinc_status export(const situation *s, const char *name)
{
    zn_export_report report = {0};
    const zn_export_params params = {.checkpoint = in(s, name),
                                     .output = in(s, "hf"),
                                     .dtype = ZN_DTYPE_F32,
                                     .max_shard_bytes = shard_bytes};
    const zinc_status status = zn_export(&params, &report);
    zn_export_report_fini(&report);
    return status;
}

static void one_exported(situation *s)
{
    three_good_once(s);
    remove_tree(in(s, "hf"));
    assert_ok(export(s, "out/checkpoint-1"));
}

static zinc_status export_latest(situation *s)
{
    return export(s, "out");
}

/* The step whose weights the exported folder holds; -1: it does not open; -2: a mixture. */
static int exported(const situation *s)
{
    zn_weights *weights = NULL;
    float got[10];
    int salt = -1;
    if (zn_weights_open(in(s, "hf"), &weights) != ZINC_OK)
        return -1;
    for (int i = 0; i < 2; i++) {
        const zn_tensor_info *t = zn_weights_find(weights, i ? "b" : "block.a");
        assert_non_null(t);
        assert_ok(zn_tensor_read(t, 0, t->n_elems, got));
        if (i == 0)
            salt = (int)(got[0] / 10000);
        for (int64_t k = 0; k < t->n_elems; k++)
            salt = got[k] == made_value(i, ZN_CKPT_MASTER, k, salt) ? salt : -2;
    }
    zn_weights_close(weights);
    return salt;
}

static void an_export_is_one_model(situation *s)
{
    const int salt = exported(s);
    if (s->status == ZINC_OK && s->fault->how == FLIP && s->fault->kind == ANY_WRITE)
        return; /* the format has no checksums */
    assert_that(s, salt == 1 || salt == 3 || (salt == -1 && shard_bytes > 0));
    assert_that(s, s->status != ZINC_OK || salt == 3);
    assert_ok(export_latest(s));
    assert_that(s, exported(s) == 3);
}

static void an_export_that_fails_anywhere_leaves_no_mixture(void **state)
{
    shard_bytes = 0;
    try_all(state, one_exported, export_latest, an_export_is_one_model);
    shard_bytes = 30;
    try_all(state, one_exported, export_latest, an_export_is_one_model);
}

/* In memory if there is such a file system: thousands of small files otherwise wait for the disk.
 */
static int make_memory_folder(void **state)
{
    char *path = NULL;
    if (zn_strdup("/dev/shm/zinc-test-XXXXXX", &path) == ZINC_OK && mkdtemp(path)) {
        *state = path;
        return 0;
    }
    zn_free(path);
    return make_folder(state);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_memory_folder, remove_folder)
    TEST(a_save_that_fails_anywhere_leaves_a_good_one),
    TEST(a_save_over_the_same_step_leaves_one_of_both),
    TEST(a_load_that_fails_anywhere_says_where_and_gives_no_wrong_value),
    TEST(a_verification_finds_what_is_wrong_anywhere),
    TEST(a_deletion_that_fails_anywhere_leaves_the_newest),
    TEST(an_export_that_fails_anywhere_leaves_no_mixture),
};

ZN_TEST_MAIN(tests)
