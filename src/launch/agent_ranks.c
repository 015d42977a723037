/* SPDX-License-Identifier: Apache-2.0 */
/* agent_ranks.c — the ranks of one host: start, output, beats, exits. */
#include "launch/agent_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/sys.h"
#include "launch/spawn.h"

/* ---- checks ---- */

/* Whether argv[0] can be run, with the PATH a rank will have. */
static bool program_is_there(const char *program, const char *path)
{
    char file[4096];
    if (strchr(program, '/'))
        return access(program, X_OK) == 0;
    while (path && *path) {
        const size_t n = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", n ? (int)n : 1, n ? path : ".", program);
        if (access(file, X_OK) == 0)
            return true;
        path += path[n] == ':' ? n + 1 : n;
    }
    return false;
}

static zinc_status check_cores(const zn_job *job, zn_buf *problems)
{
    int *cores = NULL, n = 0;
    if (!zn_job_flag(job, "bind"))
        return ZINC_OK;
    ZN_TRY(zn_cores_usable(zn_job_setting(job, "core_list"), &cores, &n));
    zn_free(cores);
    return n >= job->n_processes
               ? ZINC_OK
               : zn_buf_printf(problems, "%d cores to use, %d ranks to bind; each needs one\n", n,
                               job->n_processes);
}

zinc_status zn_agent_check(zn_agent *agent, zn_buf *problems, int *code)
{
    const zn_job *job = &agent->job;
    const char *cwd = zn_job_setting(job, "cwd"), *file = zn_job_setting(job, "file");
    const char *path = zn_words_value(&job->env, "PATH");
    const char *program = job->n_processes > 0 ? job->processes[0].argv.items[0] : "true";
    if (chdir(cwd) != 0)
        ZN_TRY(zn_buf_printf(problems, "folder %s: %s; the same folder is needed on every host\n",
                             cwd, strerror(errno)));
    else if (*file && access(file, R_OK) != 0)
        ZN_TRY(zn_buf_printf(problems, "%s: %s; the program is needed on every host\n", file,
                             strerror(errno)));
    ZN_TRY(check_cores(job, problems));
    const bool elsewhere = problems->n > 0;
    if (!program_is_there(program, path ? path : zn_launch_getenv("PATH")))
        ZN_TRY(zn_buf_printf(problems, "program %s is not there or cannot be run\n", program));
    *code = elsewhere ? 1 : 127;
    return ZINC_OK;
}

/* ---- start ---- */

extern char **environ;

/* What mpirun or srun says of the agent that it has started is not true of a rank: one that made
 * itself a process of that MPI job would meet its host's other ranks there. */
static bool is_of_runner(const char *assignment)
{
    static const char *const prefixes[] = {"OMPI_",      "PMIX_",         "PMI_",
                                           "MPI_LOCAL",  "SLURM_PROCID",  "SLURM_LOCALID",
                                           "SLURM_STEP", "SLURM_TASK_PID"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(assignment, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* The whole environment of a rank: this process's, the job's, the rank's own. */
static zinc_status rank_env(const zn_agent *agent, const zn_agent_rank *r, int n_cores,
                            zn_words *env)
{
    for (char **e = environ; e && *e; e++)
        if (!agent->by_runner || !is_of_runner(*e))
            ZN_TRY(zn_words_add(env, *e));
    for (int i = 0; i < agent->job.env.n; i++)
        ZN_TRY(zn_words_set(env, agent->job.env.items[i]));
    if (n_cores > 0) {
        char threads[48];
        snprintf(threads, sizeof threads, "OMP_NUM_THREADS=%d", n_cores);
        ZN_TRY(zn_words_set(env, threads));
    }
    for (int i = 0; i < r->process->env.n; i++)
        ZN_TRY(zn_words_set(env, r->process->env.items[i]));
    if (r->beat)
        ZN_TRY(zn_words_addf(env, "ZINC_HEARTBEAT_FILE=%s", r->beat));
    return ZINC_OK;
}

static zinc_status open_log(const zn_agent *agent, zn_agent_rank *r)
{
    zinc_status status;
    char *path = NULL;
    const char *dir = zn_job_setting(&agent->job, "log_dir");
    if (!*dir)
        return ZINC_OK;
    ZN_TRY(zn_fs_mkdirs(dir));
    ZN_TRY(zn_format(&path, "%s/%s_rank%d.log", dir, zn_job_setting(&agent->job, "log_stamp"),
                     r->process->rank));
    r->log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (r->log < 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "--enable_each_rank_log: cannot write %s: %s", path,
                     strerror(errno));
    status = ZINC_OK;
fail:
    zn_free(path);
    return status;
}

/* A file of the rank's own that it touches as it makes progress. */
static zinc_status make_beat_file(const zn_agent *agent, zn_agent_rank *r)
{
    if (!zn_job_flag(&agent->job, "beat"))
        return ZINC_OK;
    ZN_TRY(zn_strdup("/tmp/zinc-beat-XXXXXX", &r->beat));
    const int fd = mkstemp(r->beat);
    if (fd < 0)
        ZN_FAIL(ZINC_E_IO, "cannot make a heartbeat file in /tmp: %s", strerror(errno));
    struct stat st;
    if (fstat(fd, &st) == 0)
        r->beat_at = st.st_mtim;
    close(fd);
    return ZINC_OK;
}

/* The rank cannot run: say why where its output would be, and count it as ended. */
static zinc_status report_not_run(zn_agent *agent, const zn_agent_rank *r, int error)
{
    char text[512];
    const int code = error == ENOENT ? 127 : 126;
    snprintf(text, sizeof text, "cannot run %s: %s\n", r->process->argv.items[0], strerror(error));
    ZN_TRY(zn_wire_send(&agent->wire, ZN_FRAME_OUTPUT, 2, r->process->rank, text, strlen(text)));
    snprintf(text, sizeof text, "%d", code << 8); /* as waitpid() gives an exit code */
    return zn_wire_send(&agent->wire, ZN_FRAME_EXIT, 0, r->process->rank, text, strlen(text));
}

static zinc_status spawn_rank(zn_agent *agent, zn_agent_rank *r, zn_spawn_params *params)
{
    zinc_status status;
    int out[2] = {-1, -1}, err[2] = {-1, -1}, exec_errno = 0;
    pid_t pid = -1;
    char text[32];
    params->argv = &r->process->argv;
    if (!zn_job_flag(&agent->job, "inherit")) {
        ZN_TRY_GOTO(zn_spawn_pipe(out));
        ZN_TRY_GOTO(zn_spawn_pipe(err));
        params->out = out[1];
        params->err = err[1];
    }
    ZN_TRY_GOTO(zn_spawn(params, &pid, &exec_errno));
    if (exec_errno) {
        status = report_not_run(agent, r, exec_errno);
    } else {
        r->pid = pid;
        r->pipe[0] = out[0];
        r->pipe[1] = err[0];
        out[0] = err[0] = -1;
        for (int s = 0; s < 2; s++)
            if (r->pipe[s] >= 0)
                fcntl(r->pipe[s], F_SETFL, O_NONBLOCK);
        agent->n_running++;
        snprintf(text, sizeof text, "%ld", (long)pid);
        status =
            zn_wire_send(&agent->wire, ZN_FRAME_STARTED, 0, r->process->rank, text, strlen(text));
    }
fail:
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0)
            close(out[i]);
        if (err[i] >= 0)
            close(err[i]);
    }
    return status;
}

static zinc_status start_rank(zn_agent *agent, int i, int null_fd, const int *cores, int n_cores)
{
    zinc_status status;
    zn_words env = {0};
    zn_agent_rank *r = &agent->ranks[i];
    int first, n;
    zn_cores_of_rank(n_cores, agent->job.n_processes, i, &first, &n);
    ZN_TRY(open_log(agent, r));
    ZN_TRY(make_beat_file(agent, r));
    ZN_TRY_GOTO(rank_env(agent, r, n, &env));
    zn_spawn_params params = {.env = &env,
                              .in = null_fd,
                              .out = -1,
                              .err = -1,
                              .keep = -1,
                              .cores = cores ? cores + first : NULL,
                              .n_cores = n,
                              .death_signal = SIGKILL};
    ZN_TRY_GOTO(spawn_rank(agent, r, &params));
fail:
    zn_words_fini(&env);
    return status;
}

zinc_status zn_agent_start(zn_agent *agent)
{
    zinc_status status = ZINC_OK;
    const int n = agent->job.n_processes;
    int *cores = NULL, n_cores = 0;
    const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    agent->started = true;
    if (zn_job_flag(&agent->job, "bind"))
        ZN_TRY_GOTO(zn_cores_usable(zn_job_setting(&agent->job, "core_list"), &cores, &n_cores));
    ZN_TRY_GOTO(zn_alloc_array(&agent->ranks, (size_t)n + 1, sizeof *agent->ranks, "ranks"));
    for (int i = 0; i < n; i++)
        agent->ranks[i] = (zn_agent_rank){
            .process = &agent->job.processes[i], .pipe = {-1, -1}, .log = -1, .stack_fd = -1};
    for (int i = 0; i < n; i++)
        ZN_TRY_GOTO(start_rank(agent, i, null_fd, cores, n_cores));
fail:
    if (null_fd >= 0)
        close(null_fd);
    zn_free(cores);
    return status;
}

/* ---- output, exits, beats ---- */

zinc_status zn_agent_drain(zn_agent *agent, int i, int s, bool all)
{
    char bytes[16384];
    zn_agent_rank *r = &agent->ranks[i];
    while (r->pipe[s] >= 0) {
        const ssize_t n = read(r->pipe[s], bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0) {
            close(r->pipe[s]);
            r->pipe[s] = -1;
            break;
        }
        if (r->log >= 0 && write(r->log, bytes, (size_t)n) < 0) {
            close(r->log); /* a full disk must not end the rank */
            r->log = -1;
        }
        ZN_TRY(
            zn_wire_send(&agent->wire, ZN_FRAME_OUTPUT, s + 1, r->process->rank, bytes, (size_t)n));
        if (!all && agent->wire.pending.n > ZN_WIRE_BACKLOG)
            break;
    }
    return ZINC_OK;
}

static zinc_status report_exit(zn_agent *agent, int i, int wait_status)
{
    char text[32];
    zn_agent_rank *r = &agent->ranks[i];
    r->pid = 0;
    agent->n_running--;
    for (int s = 0; s < 2; s++) /* its last words come before its end */
        ZN_TRY(zn_agent_drain(agent, i, s, true));
    snprintf(text, sizeof text, "%d", wait_status);
    return zn_wire_send(&agent->wire, ZN_FRAME_EXIT, 0, r->process->rank, text, strlen(text));
}

zinc_status zn_agent_reap(zn_agent *agent)
{
    int wait_status;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;)
        for (int i = 0; agent->ranks && i < agent->job.n_processes; i++)
            if (agent->ranks[i].pid == pid)
                ZN_TRY(report_exit(agent, i, wait_status));
            else if (agent->ranks[i].stack_pid == pid)
                ZN_TRY(zn_agent_stack_end(agent, &agent->ranks[i]));
    return ZINC_OK;
}

/* The letter after the name in /proc/PID/stat: 'T' is stopped by a signal. */
bool zn_process_is_stopped(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *after = strrchr(text, ')');
    return after && after[1] == ' ' && (after[2] == 'T' || after[2] == 't');
}

zinc_status zn_agent_tick(zn_agent *agent)
{
    for (int i = 0; agent->ranks && i < agent->job.n_processes; i++) {
        zn_agent_rank *r = &agent->ranks[i];
        struct stat st;
        if (r->pid <= 0)
            continue;
        if (r->beat && stat(r->beat, &st) == 0 &&
            (st.st_mtim.tv_sec != r->beat_at.tv_sec || st.st_mtim.tv_nsec != r->beat_at.tv_nsec)) {
            r->beat_at = st.st_mtim;
            ZN_TRY(zn_wire_send(&agent->wire, ZN_FRAME_BEAT, 0, r->process->rank, NULL, 0));
        }
        const bool stopped = zn_process_is_stopped(r->pid);
        if (stopped != r->stopped) {
            r->stopped = stopped;
            ZN_TRY(zn_wire_send(&agent->wire, ZN_FRAME_STATE, stopped, r->process->rank, NULL, 0));
        }
    }
    return ZINC_OK;
}

/* ---- the end ---- */

void zn_agent_signal_ranks(zn_agent *agent, int sig)
{
    for (int i = 0; agent->ranks && i < agent->job.n_processes; i++) {
        const pid_t pid = agent->ranks[i].pid;
        if (pid <= 0) /* reaped: the number may belong to another by now */
            continue;
        kill(-pid, sig);
        if (sig != SIGKILL)
            kill(-pid, SIGCONT); /* a stopped process takes no other signal */
    }
}

void zn_agent_close_ranks(zn_agent *agent)
{
    for (int i = 0; agent->ranks && i < agent->job.n_processes; i++) {
        zn_agent_rank *r = &agent->ranks[i];
        for (int s = 0; s < 2; s++)
            if (r->pipe[s] >= 0)
                close(r->pipe[s]);
        if (r->log >= 0)
            close(r->log);
        if (r->stack_fd >= 0)
            close(r->stack_fd);
        if (r->beat)
            unlink(r->beat);
        zn_free(r->beat);
    }
    zn_free(agent->ranks);
    agent->ranks = NULL;
}
