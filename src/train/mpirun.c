/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun.c — run this very command under mpirun and watch over it.
 *
 * mpirun itself answers SIGINT and SIGTERM by killing its ranks, at once or in the middle of a
 * save, and exits 1. It passes SIGUSR1 on, which ranks take as the wish to stop. So this process
 * stays its parent, in another process group: a first signal goes down as SIGUSR1, a second ends
 * everything. Ranks whose mpirun is gone end by themselves. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/sys.h"
#include "train/mpirun.h"

#define TERM_SECONDS 0.7 /* from SIGTERM to SIGKILL; a second signal ends a run within a second */
#define POLL_MS 50

/* What lets Open MPI run on one machine as root, on fewer cores than ranks, and start fast. A value
 * the user has set stays. */
static void prepare_environment(void)
{
    static const char *const settings[][2] = {
        {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_pml", "ob1"},
        {"OMPI_MCA_btl", "self,vader,tcp"},
        {"OMPI_MCA_mpi_yield_when_idle", "1"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        setenv(settings[i][0], settings[i][1], 0);
}

/* ---- the child ---- */

static void exec_mpirun(char *const argv[], pid_t parent, const sigset_t *mask, int report)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before the line above */
        _exit(1);
    const int null = open("/dev/null", O_RDONLY); /* a background group may not read the terminal */
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    prepare_environment();
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(argv[0], argv);
    const int why = errno;
    if (write(report, &why, sizeof why) < 0)
        _exit(1);
    _exit(127);
}

/* *exec_errno is 0, or why there is no mpirun. */
static zinc_status start(char *const argv[], const sigset_t *mask, pid_t *out, int *exec_errno)
{
    zinc_status status = ZINC_OK;
    int ends[2];
    const pid_t parent = getpid();
    if (pipe(ends) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot make a pipe: %s", strerror(errno));
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC); /* closed by a successful exec */
    const pid_t pid = fork();
    if (pid < 0)
        ZN_FAIL_GOTO(ZINC_E_NOMEM, "cannot start a process: %s", strerror(errno));
    if (pid == 0)
        exec_mpirun(argv, parent, mask, ends[1]);
    close(ends[1]);
    ends[1] = -1;
    ssize_t n;
    do {
        n = read(ends[0], exec_errno, sizeof *exec_errno);
    } while (n < 0 && errno == EINTR);
    if (n <= 0)
        *exec_errno = 0;
    else
        waitpid(pid, NULL, 0);
    *out = pid;
fail:
    close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
    return status;
}

/* ---- the parent ---- */

/* Whether mpirun has started ranks: a SIGUSR1 that comes before is passed on to nobody. Any of its
 * threads may have; a kernel without the lists of children counts as yes. */
static bool has_children(pid_t pid)
{
    char path[320];
    bool some = false;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *tasks = opendir(path);
    for (const struct dirent *e; tasks && !some && (e = readdir(tasks));) {
        zn_buf text = {0};
        snprintf(path, sizeof path, "/proc/%ld/task/%s/children", (long)pid, e->d_name);
        if (e->d_name[0] != '.')
            some = zn_fs_read(path, 0, &text) != ZINC_OK || text.n > 0;
        zn_buf_fini(&text);
    }
    if (tasks)
        closedir(tasks);
    return some;
}

typedef struct watch {
    pid_t pid;
    int first, last;  /* signals that came; 0: none */
    double kill_time; /* 0: not yet */
} watch;

static void take_signal(watch *w, int number)
{
    const bool gently = w->first == 0 && has_children(w->pid);
    if (w->first == 0)
        w->first = number;
    w->last = number;
    kill(w->pid, gently ? SIGUSR1 : SIGTERM);
    if (!gently && w->kill_time == 0)
        w->kill_time = zn_sys_now() + TERM_SECONDS;
}

static int exit_code(const watch *w, int how)
{
    const int code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    if (w->kill_time > 0)
        return 128 + w->last;
    return w->first && (code == 0 || code == 128 + SIGUSR1) ? 128 + w->first : code;
}

static int wait_for(pid_t pid, const sigset_t *signals)
{
    watch w = {.pid = pid};
    const struct timespec poll = {.tv_nsec = POLL_MS * 1000000L};
    int how = 0;
    for (;;) {
        const pid_t ended = waitpid(pid, &how, WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR))
            return exit_code(&w, how);
        if (w.kill_time > 0 && zn_sys_now() > w.kill_time)
            kill(pid, SIGKILL);
        const int number = sigtimedwait(signals, NULL, &poll);
        if (number > 0 && number != SIGCHLD)
            take_signal(&w, number);
    }
}

/* `first` and then the words this process was started with, without its name. `words` keeps them.
 */
static zinc_status make_argv(char *const first[4], zn_buf *words, char ***out)
{
    char **argv = NULL;
    int n = 4;
    ZN_TRY(zn_fs_read("/proc/self/cmdline", 0, words)); /* each word ends in a NUL */
    ZN_TRY(zn_alloc_array(&argv, words->n + 5, sizeof *argv, "mpirun's arguments"));
    memcpy(argv, first, 4 * sizeof *argv);
    for (size_t i = strlen(words->data) + 1; i < words->n; i += strlen(words->data + i) + 1)
        argv[n++] = words->data + i;
    *out = argv;
    return ZINC_OK;
}

/* Signals wait from before the start on, so that none is lost in between. */
static zinc_status run(char *const argv[], int *code, int *exec_errno)
{
    const int taken[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD};
    sigset_t signals, before;
    pid_t pid = -1;
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaddset(&signals, taken[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    const zinc_status status = start(argv, &before, &pid, exec_errno);
    if (status == ZINC_OK && *exec_errno == 0)
        *code = wait_for(pid, &signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

zinc_status zn_train_mpirun(int n_ranks, int *code)
{
    zinc_status status;
    char mpirun[] = "mpirun", flag[] = "-n", count[16], self[4096];
    char *const first[4] = {mpirun, flag, count, self};
    char **argv = NULL;
    zn_buf words = {0};
    int exec_errno = 0;
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        ZN_FAIL(ZINC_E_IO, "cannot find the zinc program: %s", strerror(errno));
    self[length] = '\0';
    snprintf(count, sizeof count, "%d", n_ranks);
    ZN_TRY_GOTO(make_argv(first, &words, &argv));
    ZN_TRY_GOTO(run(argv, code, &exec_errno));
    if (exec_errno != 0)
        ZN_FAIL_GOTO(ZINC_E_UNSUPPORTED,
                     "--comm mpi starts mpirun, which failed: %s. Install Open MPI (openmpi-bin), "
                     "or use --comm thread on one machine",
                     strerror(exec_errno));
fail:
    zn_free(argv);
    zn_buf_fini(&words);
    return status;
}
