/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent_internal.h"

#include <stdlib.h>
#include <string.h>

static zinc_status encode_process(const zn_process *p, zn_buf *out)
{
    zinc_status status;
    zn_words numbers = {0};
    ZN_TRY_GOTO(zn_words_addf(&numbers, "%d", p->rank));
    ZN_TRY_GOTO(zn_words_addf(&numbers, "%d", p->local_rank));
    ZN_TRY_GOTO(zn_words_encode(&numbers, out));
    ZN_TRY_GOTO(zn_words_encode(&p->env, out));
    ZN_TRY_GOTO(zn_words_encode(&p->argv, out));
fail:
    zn_words_fini(&numbers);
    return status;
}

zinc_status zn_job_encode(const zn_job *job, zn_buf *out)
{
    ZN_TRY(zn_words_encode(&job->settings, out));
    ZN_TRY(zn_words_encode(&job->env, out));
    for (int i = 0; i < job->n_processes; i++)
        ZN_TRY(encode_process(&job->processes[i], out));
    return ZINC_OK;
}

static zinc_status decode_process(const char *bytes, size_t n_bytes, size_t *at, zn_process *p)
{
    zinc_status status;
    zn_words numbers = {0};
    ZN_TRY_GOTO(zn_words_decode(bytes, n_bytes, at, &numbers));
    ZN_TRY_GOTO(zn_words_decode(bytes, n_bytes, at, &p->env));
    ZN_TRY_GOTO(zn_words_decode(bytes, n_bytes, at, &p->argv));
    if (numbers.n != 2 || p->argv.n < 1)
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "launcher and agent disagree: a rank without a program");
    p->rank = (int)strtol(numbers.items[0], NULL, 10);
    p->local_rank = (int)strtol(numbers.items[1], NULL, 10);
fail:
    zn_words_fini(&numbers);
    return status;
}

zinc_status zn_job_decode(const char *bytes, size_t n_bytes, zn_job *out)
{
    zinc_status status;
    zn_job job = {0};
    size_t at = 0;
    ZN_TRY_GOTO(zn_words_decode(bytes, n_bytes, &at, &job.settings));
    ZN_TRY_GOTO(zn_words_decode(bytes, n_bytes, &at, &job.env));
    while (at < n_bytes) {
        ZN_TRY_GOTO(zn_realloc_array(&job.processes, (size_t)job.n_processes + 1,
                                     sizeof *job.processes, "the job"));
        job.processes[job.n_processes] = (zn_process){0};
        ZN_TRY_GOTO(decode_process(bytes, n_bytes, &at, &job.processes[job.n_processes++]));
    }
    *out = job;
    return ZINC_OK;
fail:
    zn_job_fini(&job);
    return status;
}

const char *zn_job_setting(const zn_job *job, const char *name)
{
    const char *value = zn_words_value(&job->settings, name);
    return value ? value : "";
}

bool zn_job_flag(const zn_job *job, const char *name)
{
    return strcmp(zn_job_setting(job, name), "1") == 0;
}

void zn_job_fini(zn_job *job)
{
    for (int i = 0; i < job->n_processes; i++) {
        zn_words_fini(&job->processes[i].env);
        zn_words_fini(&job->processes[i].argv);
        zn_free(job->processes[i].cores);
    }
    zn_free(job->processes);
    zn_words_fini(&job->settings);
    zn_words_fini(&job->env);
    *job = (zn_job){0};
}
