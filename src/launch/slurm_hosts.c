/* SPDX-License-Identifier: Apache-2.0 */
/* slurm_hosts.c — hosts and slots of the Slurm allocation this process runs in, from the variables
 * that sbatch, salloc and srun set. Forms: "n[01-03,7],login" and "4(x2),1" (sbatch(1), srun(1)).
 */
#include "launch/launch_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

static const char *variable(const char *name, const char *older)
{
    const char *value = zn_launch_getenv(name);
    if ((!value || !*value) && older)
        value = zn_launch_getenv(older);
    return value && *value ? value : NULL;
}

bool zn_launch_in_allocation(const zn_launch_options *o)
{
    const bool local = o->launcher && strcmp(o->launcher, "local") == 0;
    return !o->hostfile && !o->no_ssh && !o->this_host && !local &&
           variable("SLURM_JOB_NODELIST", "SLURM_NODELIST") && !zn_fs_exists(ZN_DEFAULT_HOSTFILE);
}

/* ---- names ---- */

static zinc_status bad_list(const char *text)
{
    ZN_FAIL(ZINC_E_CONFIG,
            "SLURM_JOB_NODELIST is \"%s\"; expected names like n1,n[2-4,7]; give --hostfile F",
            text);
}

static zinc_status expand(const char *whole, const char *text, size_t n, const char *before,
                          zn_words *out);

/* One item of a bracket, "7" or "02-11", between `before` and what follows the bracket. The width
 * of the first number is kept. */
static zinc_status expand_range(const char *whole, const char *item, size_t n_item,
                                const char *before, const char *rest, size_t n_rest, zn_words *out)
{
    zinc_status status = ZINC_OK;
    char *end = NULL, *name = NULL;
    const size_t width = strspn(item, "0123456789");
    long first = 0, last = 0;
    bool good = width > 0 && width <= 9 && width <= n_item;
    if (good) {
        first = last = strtol(item, &end, 10);
        if (*end == '-' && end < item + n_item) {
            good = isdigit((unsigned char)end[1]);
            last = strtol(end + 1, &end, 10);
        }
        good = good && end == item + n_item && last >= first && last - first < ZN_MAX_SLOTS;
    }
    if (!good)
        return bad_list(whole);
    for (long i = first; i <= last; i++) {
        ZN_TRY_GOTO(zn_format(&name, "%s%0*ld", before, (int)width, i));
        ZN_TRY_GOTO(expand(whole, rest, n_rest, name, out));
        zn_free(name);
        name = NULL;
    }
fail:
    zn_free(name);
    return status;
}

/* The n bytes at text, one name with any number of brackets, after `before`. */
static zinc_status expand(const char *whole, const char *text, size_t n, const char *before,
                          zn_words *out)
{
    zinc_status status = ZINC_OK;
    char *prefix = NULL;
    const char *open = memchr(text, '[', n);
    const char *close = open ? memchr(open, ']', n - (size_t)(open - text)) : NULL;
    if (out->n >= ZN_MAX_SLOTS || (open && !close))
        return bad_list(whole);
    ZN_TRY_GOTO(zn_format(&prefix, "%s%.*s", before, (int)(open ? open - text : (long)n), text));
    if (!open) {
        status = *prefix ? zn_words_add(out, prefix) : bad_list(whole);
        goto fail;
    }
    for (const char *at = open + 1; at <= close;) {
        const size_t n_item = strcspn(at, ",]");
        ZN_TRY_GOTO(expand_range(whole, at, n_item, prefix, close + 1,
                                 n - (size_t)(close + 1 - text), out));
        at += n_item + 1;
    }
fail:
    zn_free(prefix);
    return status;
}

zinc_status zn_slurm_parse_hosts(const char *text, zn_words *out)
{
    for (const char *at = text;;) {
        size_t n = 0;
        for (bool inside = false; at[n] && (inside || at[n] != ','); n++)
            inside = at[n] == '[' || (inside && at[n] != ']');
        ZN_TRY(expand(text, at, n, "", out));
        at += n;
        if (!*at)
            return ZINC_OK;
        at++;
    }
}

/* ---- counts ---- */

zinc_status zn_slurm_parse_counts(const char *text, int n, int *out)
{
    int done = 0;
    for (const char *at = text; done < n; at++) {
        char *end;
        const long count = strtol(at, &end, 10);
        long times = 1;
        bool good = isdigit((unsigned char)*at) && count >= 1 && count <= ZN_MAX_SLOTS;
        if (good && strncmp(end, "(x", 2) == 0) {
            times = strtol(end + 2, &end, 10);
            good = times >= 1 && *end++ == ')';
        }
        if (!good || (*end && *end != ',') || (!*end && done + times < n))
            ZN_FAIL(ZINC_E_CONFIG,
                    "SLURM_TASKS_PER_NODE is \"%s\"; expected numbers like 4(x2),1 for %d hosts",
                    text, n);
        for (long i = 0; i < times && done < n; i++)
            out[done++] = (int)count;
        at = end;
    }
    return ZINC_OK;
}

/* Ranks on each of n hosts: as asked for, else its GPUs, else its tasks, else one. */
static zinc_status count_slots(int64_t n_ranks, int n, int *out)
{
    const char *gpus = variable("SLURM_GPUS_ON_NODE", NULL); /* of this host; taken for all */
    const char *tasks = variable("SLURM_TASKS_PER_NODE", NULL);
    const long n_gpus = gpus ? strtol(gpus, NULL, 10) : 0;
    if (n_ranks <= 0 && n_gpus < 1 && tasks)
        return zn_slurm_parse_counts(tasks, n, out);
    for (int i = 0; i < n; i++)
        out[i] = n_ranks > 0 ? (int)n_ranks : n_gpus >= 1 ? (int)n_gpus : 1;
    return ZINC_OK;
}

zinc_status zn_slurm_pool(int64_t n_ranks, zn_pool *pool)
{
    zinc_status status;
    zn_words names = {0};
    int *counts = NULL;
    const char *list = variable("SLURM_JOB_NODELIST", "SLURM_NODELIST");
    const char *step = variable("SLURM_STEP_NUM_TASKS", NULL);
    if (step && strtol(step, NULL, 10) > 1)
        ZN_FAIL(ZINC_E_CONFIG,
                "srun has started %s of this, and each would start the whole job; start one, in "
                "the batch script or with srun --ntasks 1, or give --no_ssh --node_rank "
                "$SLURM_NODEID --master_addr A",
                step);
    ZN_TRY_GOTO(zn_slurm_parse_hosts(list, &names));
    ZN_TRY_GOTO(zn_alloc_array(&counts, (size_t)names.n, sizeof *counts, "hosts"));
    ZN_TRY_GOTO(count_slots(n_ranks, names.n, counts));
    for (int i = 0; i < names.n; i++)
        ZN_TRY_GOTO(zn_pool_add(pool, names.items[i], strlen(names.items[i]), counts[i], NULL));
    pool->is_allocation = true;
fail:
    zn_free(counts);
    zn_words_fini(&names);
    return status;
}
