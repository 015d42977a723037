/* SPDX-License-Identifier: Apache-2.0 */
/* restart.c — attempts until one succeeds: --max_restarts, --min_nodes, the newest checkpoint. */
#include "launch/launcher_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"

#define MAX_PAUSE_S 60.0

/* The options of the next attempt; words and exclude are owned. */
typedef struct attempt {
    zn_launch_options options;
    zn_words words;        /* the program, once restarts change it */
    zn_words lost;         /* names of hosts that could not be used */
    bool folder_was_fresh; /* the output folder held no run before the first attempt */
} attempt;

/* zinc train names its newest complete checkpoint in the file `latest`. */
static bool has_checkpoint(const char *folder)
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/latest", folder);
    return n > 0 && (size_t)n < sizeof path && zn_fs_exists(path);
}

static zinc_status is_fresh(const zn_launch_options *o, bool *out)
{
    zinc_status status;
    char *path = NULL;
    const char *folder = zn_program_option(o->program, o->n_program, "output_dir");
    *out = false;
    if (!folder || !zn_native_program(o))
        return ZINC_OK;
    ZN_TRY_GOTO(zn_fs_join(folder, "metrics.jsonl", &path));
    *out = !zn_fs_exists(path) && !has_checkpoint(folder);
fail:
    zn_free(path);
    return status;
}

/* zinc train goes on from the newest checkpoint; where there is none, it begins again in the folder
 * that this very launch has begun to fill. */
static zinc_status change_program(const zn_launch_options *given, attempt *a)
{
    const char *const *words = given->program;
    const int n = given->n_program;
    const char *folder = zn_program_option(words, n, "output_dir");
    zn_words_fini(&a->words);
    for (int i = 0; i < n; i++)
        ZN_TRY(zn_words_add(&a->words, words[i]));
    if (zn_native_program(given) && folder && has_checkpoint(folder)) {
        if (!zn_program_option(words, n, "resume_from_checkpoint")) {
            ZN_TRY(zn_words_add(&a->words, "--resume_from_checkpoint"));
            ZN_TRY(zn_words_add(&a->words, "latest"));
        }
    } else if (a->folder_was_fresh && !zn_program_option(words, n, "overwrite_output_dir")) {
        ZN_TRY(zn_words_add(&a->words, "--overwrite_output_dir"));
    }
    a->options.program = (const char *const *)a->words.items;
    a->options.n_program = a->words.n;
    return ZINC_OK;
}

/* Take the plan's lost hosts out, if enough are left. */
static bool drop_lost(const zn_launch_options *o, zn_plan *plan, attempt *a, const bool *lost)
{
    int left = 0;
    for (int i = 0; i < plan->pool.n; i++)
        left += !lost[i];
    if (o->min_nodes < 1 || left < o->min_nodes || left == plan->pool.n)
        return false;
    for (int i = 0; i < plan->pool.n; i++)
        if (lost[i]) {
            zn_warn("launch", "going on without host %s (--min_nodes %lld)",
                    plan->pool.hosts[i].name, (long long)o->min_nodes);
            if (zn_words_add(&a->lost, plan->pool.hosts[i].name) != ZINC_OK)
                return false;
        }
    return true;
}

/* Some failures come again however often one tries; and SIGUSR1 asks zinc train to stop. */
static bool is_final(const zn_launch_options *o, int code)
{
    return code == 126 || code == 127 || code == 2 ||
           (zn_native_program(o) && (code == 1 || code == 128 + SIGUSR1));
}

/* SIGINT and SIGTERM end the pause as they end the program. */
static void pause_before(int64_t restart)
{
    double pause = 1;
    for (int64_t i = 1; i < restart && pause < MAX_PAUSE_S; i++)
        pause *= 2;
    zn_sys_sleep(pause < MAX_PAUSE_S ? pause : MAX_PAUSE_S);
}

/* One attempt; *again if another one should follow. */
static zinc_status try_once(const zn_launch_options *given, attempt *a, int64_t *restarts,
                            int *exit_code, bool *again)
{
    zinc_status status;
    zn_plan *plan = NULL;
    bool *lost = NULL;
    int signal = 0;
    *again = false;
    ZN_TRY_GOTO(zn_plan_create_without(&a->options, &a->lost, &plan));
    if (plan->n_processes == 0)
        ZN_FAIL_GOTO(ZINC_E_CONFIG, "no slot is left to run on; --include, --exclude and the "
                                    "hostfile leave none");
    ZN_TRY_GOTO(zn_alloc_array(&lost, (size_t)plan->pool.n, sizeof *lost, "hosts"));
    status = zn_launcher_run(&a->options, plan, NULL, lost, exit_code, &signal);
    if (status == ZINC_E_COMM && drop_lost(given, plan, a, lost)) {
        zn_warn("launch", "%s", zinc_last_error());
        *again = true;
        status = ZINC_OK;
        goto fail;
    }
    if (status == ZINC_E_COMM && *restarts > 0 && *restarts < given->max_restarts) {
        (*restarts)++; /* a host that went down may be on its way up */
        zn_warn("launch", "%s\nrestart %lld of %lld", zinc_last_error(), (long long)*restarts,
                (long long)given->max_restarts);
        *again = true;
        status = ZINC_OK;
        goto fail;
    }
    if (status != ZINC_OK || *exit_code == 0 || signal || *restarts >= given->max_restarts ||
        is_final(given, *exit_code))
        goto fail;
    (*restarts)++;
    *again = true;
    zn_warn("launch", "restart %lld of %lld after exit code %d", (long long)*restarts,
            (long long)given->max_restarts, *exit_code);
    ZN_TRY_GOTO(change_program(given, a));
fail:
    zn_free(lost);
    zn_plan_destroy(plan);
    return status;
}

static zinc_status save_pid(char *path, size_t n)
{
    snprintf(path, n, "/tmp/%ld.zinc", (long)getpid());
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    char text[32];
    const int n_text = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (fd < 0 || write(fd, text, (size_t)n_text) != n_text)
        ZN_FAIL(ZINC_E_IO, "--save_pid: cannot write %s: %s", path, strerror(errno));
    close(fd);
    return ZINC_OK;
}

zinc_status zn_launch_run(const zn_launch_options *options, int *exit_code)
{
    zinc_status status;
    attempt a = {.options = *options};
    int64_t restarts = 0, paused = 0;
    bool again = true;
    char pid_file[64] = "";
    ZN_TRY_GOTO(is_fresh(options, &a.folder_was_fresh));
    if (options->save_pid)
        ZN_TRY_GOTO(save_pid(pid_file, sizeof pid_file));
    while (again) {
        ZN_TRY_GOTO(try_once(options, &a, &restarts, exit_code, &again));
        if (again && restarts > paused)
            pause_before(paused = restarts);
    }
fail:
    if (pid_file[0])
        unlink(pid_file);
    zn_words_fini(&a.words);
    zn_words_fini(&a.lost);
    return status;
}
