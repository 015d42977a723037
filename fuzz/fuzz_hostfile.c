/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a hostfile; its hosts are then filtered by its last line, and an environment file is
 * read from the same bytes. Layer: launch. */
#include "fuzz.h"

#include "launch/agent_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    zn_pool pool = {0};
    zn_words words = {0};
    zn_job job = {0};
    if (zn_hostfile_parse(text, n, "hosts", &pool) == ZINC_OK) {
        size_t begin = n;
        char filter[256];
        while (begin > 0 && text[begin - 1] != '\n')
            begin--;
        snprintf(filter, sizeof filter, "%.*s", (int)(n - begin), text + begin);
        zn_ignore(zn_pool_filter(&pool, filter, NULL));
        if (zn_pool_n_slots(&pool) > ZN_MAX_SLOTS)
            __builtin_trap();
    }
    zn_ignore(zn_env_parse(text, n, "env", &words));
    if (zn_job_decode(text, n, &job) == ZINC_OK)
        zn_job_fini(&job);
    zn_pool_fini(&pool);
    zn_words_fini(&words);
    return 0;
}
