/* SPDX-License-Identifier: Apache-2.0 */
/* fault_io.c — preloaded into the program by resume.py: the n-th call of one kind on a file of a
 * checkpoint fails.   ZINC_TEST_FAULT=KIND:ERRNO:N, KIND pread, pwrite, short, fsync, rename,
 * unlink or fallocate; or slow, a write that takes ERRNO milliseconds more. When it strikes it
 * makes the file ZINC_TEST_FAULT_MARK, with the process's number in it. ERRNO -1: the call never
 * returns, so that the process can be killed inside of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int n_calls;

static int is_ours(const char *path)
{
    return strstr(path, "checkpoint-") != NULL || strstr(path, "/latest") != NULL;
}

static int fd_is_ours(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return is_ours(path);
}

/* Whether this call of `kind` is the one; errno is set. */
static int strikes(const char *kind)
{
    const char *fault = getenv("ZINC_TEST_FAULT"), *mark = getenv("ZINC_TEST_FAULT_MARK");
    const size_t n = strlen(kind);
    int number = 0, nth = 0;
    if (!fault || strncmp(fault, kind, n) != 0 || fault[n] != ':' ||
        sscanf(fault + n, ":%d:%d", &number, &nth) != 2 || atomic_fetch_add(&n_calls, 1) + 1 != nth)
        return 0;
    if (mark) {
        const int fd = open(mark, O_WRONLY | O_CREAT | O_APPEND, 0666);
        if (fd >= 0) {
            dprintf(fd, "%d\n", (int)getpid());
            close(fd);
        }
    }
    while (number < 0)
        pause();
    errno = number;
    return 1;
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off_t);
    *(void **)&real = next("pwrite");
    if (fd_is_ours(fd)) {
        if (strikes("pwrite"))
            return -1;
        if (n > 1 && strikes("short"))
            n /= 2;
        if (strikes("slow"))
            usleep(1000 * (useconds_t)errno);
    }
    return real(fd, bytes, n, offset);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    ssize_t (*real)(int, void *, size_t, off_t);
    *(void **)&real = next("pread");
    return fd_is_ours(fd) && strikes("pread") ? -1 : real(fd, bytes, n, offset);
}

int fsync(int fd)
{
    int (*real)(int);
    *(void **)&real = next("fsync");
    return fd_is_ours(fd) && strikes("fsync") ? -1 : real(fd);
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *);
    *(void **)&real = next("rename");
    return is_ours(to) && strikes("rename") ? -1 : real(from, to);
}

int unlink(const char *path)
{
    int (*real)(const char *);
    *(void **)&real = next("unlink");
    return is_ours(path) && strikes("unlink") ? -1 : real(path);
}

int posix_fallocate(int fd, off_t offset, off_t n)
{
    int (*real)(int, off_t, off_t);
    *(void **)&real = next("posix_fallocate");
    return fd_is_ours(fd) && strikes("fallocate") ? errno : real(fd, offset, n);
}
