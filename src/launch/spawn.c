/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity, pipe2 */
#endif
#include "launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/sys.h"

extern char **environ;

zinc_status zn_spawn_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot make a pipe: %s", strerror(errno));
    return ZINC_OK;
}

/* A started program gets the signals as a shell would give them. */
static void reset_signals(void)
{
    sigset_t none;
    for (int i = 1; i < NSIG; i++)
        signal(i, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void place_descriptors(const zn_spawn_params *p)
{
    const int from[4] = {p->in, p->out, p->err, p->keep};
    int safe[4]; /* first above 3, so that none overwrites another */
    for (int i = 0; i < 4; i++)
        safe[i] = from[i] >= 0 ? fcntl(from[i], F_DUPFD_CLOEXEC, 10) : -1;
    for (int i = 0; i < 4; i++)
        if (safe[i] >= 0)
            dup2(safe[i], i);
}

static void run_child(const zn_spawn_params *p, pid_t parent, int report)
{
    setpgid(0, 0);
    if (p->death_signal) {
        prctl(PR_SET_PDEATHSIG, p->death_signal);
        if (getppid() != parent) /* it died before the line above */
            raise(SIGKILL);
    }
    if (p->n_cores > 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int i = 0; i < p->n_cores; i++)
            CPU_SET((size_t)p->cores[i], &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    const int high = fcntl(report, F_DUPFD_CLOEXEC, 64);
    place_descriptors(p);
    reset_signals();
    if (p->env)
        environ = p->env->items;
    execvp(p->argv->items[0], p->argv->items);
    const int error = errno;
    if (write(high, &error, sizeof error) != (ssize_t)sizeof error)
        raise(SIGKILL);
    _exit(127);
}

zinc_status zn_spawn(const zn_spawn_params *params, pid_t *pid, int *exec_errno)
{
    int report[2], error = 0;
    ZN_TRY(zn_spawn_pipe(report));
    const pid_t parent = getpid(), child = fork();
    if (child == 0)
        run_child(params, parent, report[1]);
    const int fork_errno = errno;
    close(report[1]);
    if (child < 0) {
        close(report[0]);
        ZN_FAIL(ZINC_E_IO, "cannot start a process: %s", strerror(fork_errno));
    }
    setpgid(child, child); /* whichever of the two comes first */
    ssize_t n;
    do
        n = read(report[0], &error, sizeof error);
    while (n < 0 && errno == EINTR);
    close(report[0]);
    *exec_errno = n == (ssize_t)sizeof error ? error : 0;
    if (*exec_errno)
        waitpid(child, NULL, 0);
    *pid = *exec_errno ? -1 : child;
    return ZINC_OK;
}

/* ---- what is left ---- */

void zn_spawn_adopt(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

zinc_status zn_spawn_children(zn_buf *out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/children", (long)getpid());
    if (!zn_fs_exists(path)) /* a kernel without CONFIG_PROC_CHILDREN: nothing left is found */
        return ZINC_OK;
    return zn_fs_read(path, 1 << 20, out);
}

static bool is_listed(const char *list, long pid)
{
    char *end;
    for (const char *at = list; *at; at = end) {
        const long listed = strtol(at, &end, 10);
        if (end == at || listed == pid)
            return end != at;
    }
    return false;
}

/* Returns whether there was any. */
static bool kill_children(const char *others)
{
    zn_buf list = {0};
    char *end;
    bool found = false;
    const bool good = zn_spawn_children(&list) == ZINC_OK;
    for (const char *at = good && list.n ? list.data : ""; *at; at = end) {
        const long pid = strtol(at, &end, 10);
        if (end == at)
            break;
        if (pid <= 1 || is_listed(others, pid))
            continue;
        found = true;
        kill((pid_t)pid, SIGKILL); /* our own child, not reaped: the number is still its */
        waitpid((pid_t)pid, NULL, WNOHANG);
    }
    zn_buf_fini(&list);
    return found;
}

void zn_spawn_kill_leftovers(const char *others)
{
    for (int round = 0; round < 300 && kill_children(others); round++)
        zn_sys_sleep(0.005);
}
