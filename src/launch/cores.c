/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c — which cores the ranks of a host are bound to: the plan shows what the agent does. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "launch/launch_internal.h"

#include <ctype.h>
#include <sched.h>
#include <stdlib.h>

static int compare_ints(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

zinc_status zn_parse_core_list(const char *text, int **out, int *n)
{
    zinc_status status;
    int *list = NULL, count = 0, kept = 0;
    for (const char *c = text;; c++) {
        char *end;
        const long first = strtol(c, &end, 10);
        long last = first;
        bool good = isdigit((unsigned char)*c);
        if (good && *end == '-') {
            c = end + 1;
            last = strtol(c, &end, 10);
            good = isdigit((unsigned char)*c) && last >= first;
        }
        if (!good || last > ZN_MAX_SLOTS || (*end && *end != ','))
            ZN_FAIL_GOTO(ZINC_E_INVALID, "\"%s\" is no list of numbers like 0,2-4,6", text);
        ZN_TRY_GOTO(zn_realloc_array(&list, (size_t)(count + last - first + 1), sizeof *list,
                                     "a list of numbers"));
        for (long i = first; i <= last; i++)
            list[count++] = (int)i;
        if (!*end)
            break;
        c = end;
    }
    qsort(list, (size_t)count, sizeof *list, compare_ints);
    for (int i = 0; i < count; i++)
        if (i == 0 || list[i] != list[i - 1])
            list[kept++] = list[i];
    *out = list;
    *n = kept;
    return ZINC_OK;
fail:
    zn_free(list);
    return status;
}

zinc_status zn_cores_usable(const char *list, int **out, int *n)
{
    cpu_set_t set;
    int kept = 0;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    if (list && *list) {
        ZN_TRY(zn_parse_core_list(list, out, n));
    } else {
        ZN_TRY(zn_alloc_array(out, CPU_SETSIZE, sizeof **out, "cores"));
        for (*n = 0; *n < CPU_SETSIZE; (*n)++)
            (*out)[*n] = *n;
    }
    for (int i = 0; i < *n; i++)
        if ((*out)[i] < CPU_SETSIZE && CPU_ISSET((size_t)(*out)[i], &set))
            (*out)[kept++] = (*out)[i];
    *n = kept;
    return ZINC_OK;
}

void zn_cores_of_rank(int n_cores, int n_ranks, int i, int *first, int *n)
{
    *first = i * n_cores / n_ranks;
    *n = (i + 1) * n_cores / n_ranks - *first;
}
