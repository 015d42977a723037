/* SPDX-License-Identifier: Apache-2.0 */
/* host_filter.c — which slots of which hosts take part: --include, --exclude, --num_nodes,
 * --num_ranks, CUDA_VISIBLE_DEVICES. */
#include "launch/launch_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"

/* A filter being applied; keep[i][k]: slot k of host i stays. */
typedef struct filter {
    zn_pool *pool;
    bool **keep;
    bool value; /* what a mention sets: true for include, false for exclude */
    const char *option;
} filter;

/* Names of all hosts, or slots of one host, for a message. */
static const char *list_hosts(const zn_pool *pool, char *text, size_t n)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < pool->n && at + 8 < n; i++)
        at += (size_t)snprintf(text + at, n - at, "%s%s", i ? ", " : "", pool->hosts[i].name);
    return text;
}

static const char *list_slots(const zn_host *host, char *text, size_t n)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < host->n_slots && at + 16 < n; i++)
        at += (size_t)snprintf(text + at, n - at, "%s%d", i ? "," : "", host->slots[i]);
    return text;
}

/* The host whose name stands at `text`, the longest one: names may hold '@' and ':' themselves. */
static int find_host(const zn_pool *pool, const char *text, size_t *n_name)
{
    int found = -1;
    *n_name = 0;
    for (int i = 0; i < pool->n; i++) {
        const size_t n = strlen(pool->hosts[i].name);
        if (n > *n_name && strncmp(text, pool->hosts[i].name, n) == 0 &&
            (text[n] == '\0' || text[n] == '@' || text[n] == ':')) {
            found = i;
            *n_name = n;
        }
    }
    return found;
}

static zinc_status mark_slot(const filter *f, int host, long slot)
{
    const zn_host *h = &f->pool->hosts[host];
    char have[256];
    for (int k = 0; k < h->n_slots; k++)
        if (h->slots[k] == slot) {
            f->keep[host][k] = f->value;
            return ZINC_OK;
        }
    ZN_FAIL(ZINC_E_INVALID, "--%s: no slot %ld on host %s; it has %s", f->option, slot, h->name,
            h->n_slots ? list_slots(h, have, sizeof have) : "none");
}

/* "3" or "0-2" in the n bytes at text; blanks around are allowed, as Python's int() does. */
static zinc_status mark_item(const filter *f, int host, const char *text, size_t n)
{
    char item[64], *end;
    while (n > 0 && isspace((unsigned char)text[0])) {
        text++;
        n--;
    }
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        n--;
    snprintf(item, sizeof item, "%.*s", (int)n, text);
    const long first = strtol(item, &end, 10);
    long last = first;
    bool good = n > 0 && n < sizeof item && end != item;
    if (good && *end == '-' && first >= 0) {
        const char *second = end + 1;
        last = strtol(second, &end, 10);
        good = end != second && last >= first && last <= ZN_MAX_SLOTS;
    }
    if (!good || *end)
        ZN_FAIL(ZINC_E_INVALID,
                "--%s: \"%.*s\" is no slot of host %s; write %s:0,2 or %s:0-2, or the host's name "
                "alone for all its slots",
                f->option, (int)n, text, f->pool->hosts[host].name, f->pool->hosts[host].name,
                f->pool->hosts[host].name);
    for (long slot = first; slot <= last; slot++)
        ZN_TRY(mark_slot(f, host, slot));
    return ZINC_OK;
}

static zinc_status mark_all(const filter *f, const char *text)
{
    char have[1024];
    for (;;) {
        size_t n;
        const int host = find_host(f->pool, text, &n);
        if (host < 0)
            ZN_FAIL(ZINC_E_INVALID, "--%s: no host \"%.*s\"; there are %s", f->option,
                    (int)strcspn(text, "@:"), text, list_hosts(f->pool, have, sizeof have));
        text += n;
        if (*text != ':')
            for (int k = 0; k < f->pool->hosts[host].n_slots; k++)
                f->keep[host][k] = f->value;
        while (*text == ':' || *text == ',') {
            n = strcspn(++text, ",@");
            ZN_TRY(mark_item(f, host, text, n));
            text += n;
        }
        if (!*text)
            return ZINC_OK;
        text++; /* '@' */
    }
}

/* Drop the slots that are not kept (keep NULL: none), then the hosts without slots. */
static void drop_others(zn_pool *pool, bool *const *keep)
{
    int n_hosts = 0;
    for (int i = 0; i < pool->n; i++) {
        zn_host *host = &pool->hosts[i];
        int n = 0;
        for (int k = 0; k < host->n_slots; k++)
            if (!keep || keep[i][k])
                host->slots[n++] = host->slots[k];
        host->n_slots = n;
        if (n > 0) {
            pool->hosts[n_hosts++] = *host;
        } else {
            zn_free(host->name);
            zn_free(host->slots);
        }
    }
    pool->n = n_hosts;
}

zinc_status zn_pool_filter(zn_pool *pool, const char *include, const char *exclude)
{
    zinc_status status = ZINC_OK;
    const bool has_include = include && *include, has_exclude = exclude && *exclude;
    const int n_hosts = pool->n;
    filter f = {.pool = pool, .value = has_include, .option = has_include ? "include" : "exclude"};
    if (has_include && has_exclude)
        ZN_FAIL(ZINC_E_INVALID, "--include and --exclude exclude each other; give one of them");
    if (!has_include && !has_exclude) {
        drop_others(pool, NULL);
        return ZINC_OK;
    }
    ZN_TRY(zn_alloc_array(&f.keep, (size_t)n_hosts, sizeof *f.keep, "the filter"));
    for (int i = 0; i < n_hosts; i++) {
        const int n = pool->hosts[i].n_slots;
        ZN_TRY_GOTO(zn_alloc(&f.keep[i], (size_t)n + 1, "the filter"));
        memset(f.keep[i], has_exclude, (size_t)n);
    }
    ZN_TRY_GOTO(mark_all(&f, has_include ? include : exclude));
    drop_others(pool, f.keep);
fail:
    for (int i = 0; i < n_hosts; i++)
        zn_free(f.keep[i]);
    zn_free(f.keep);
    return status;
}

zinc_status zn_pool_trim(zn_pool *pool, int64_t n_nodes, int64_t n_ranks)
{
    drop_others(pool, NULL);
    if (n_nodes > pool->n)
        zn_warn("launch", "--num_nodes %lld, but there are only %d hosts: using these",
                (long long)n_nodes, pool->n);
    for (int i = 0; i < pool->n && n_ranks > 0; i++) {
        zn_host *host = &pool->hosts[i];
        if (n_ranks > host->n_slots && (n_nodes <= 0 || i < n_nodes))
            ZN_FAIL(ZINC_E_CONFIG,
                    "--num_ranks %lld, but host %s has %d slots; raise slots= in the hostfile or "
                    "ask for fewer",
                    (long long)n_ranks, host->name, host->n_slots);
        host->n_slots = n_ranks < host->n_slots ? (int)n_ranks : host->n_slots;
    }
    for (int i = pool->n - 1; n_nodes > 0 && i >= n_nodes; i--)
        pool->hosts[i].n_slots = 0;
    drop_others(pool, NULL);
    return ZINC_OK;
}

static int count_gpus(void)
{
    char path[64];
    int n = 0;
    for (; n < 64; n++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", n);
        if (!zn_fs_exists(path))
            break;
    }
    return n;
}

zinc_status zn_pool_add_this_host(zn_pool *pool, const char *name, int64_t n_ranks)
{
    zinc_status status = ZINC_OK;
    const char *mask = zn_launch_getenv("CUDA_VISIBLE_DEVICES");
    int *slots = NULL, n = 0;
    if (mask && isdigit((unsigned char)mask[0])) {
        status = zn_parse_core_list(mask, &slots, &n);
        if (status != ZINC_OK) {
            zn_error_prefix("CUDA_VISIBLE_DEVICES: ");
            return status;
        }
    }
    if (n_ranks > 0 && !slots) {
        n = (int)n_ranks;
        if (n > zn_sys_cores() && count_gpus() == 0)
            zn_warn("launch", "%d ranks share %d cores", n, zn_sys_cores());
    } else if (n_ranks > n) {
        ZN_FAIL_GOTO(ZINC_E_CONFIG,
                     "--num_ranks %lld, but CUDA_VISIBLE_DEVICES lists %d devices (%s)",
                     (long long)n_ranks, n, mask);
    } else if (n_ranks > 0) {
        n = (int)n_ranks;
    } else if (!slots) {
        n = count_gpus() ? count_gpus() : zn_sys_cores();
    }
    ZN_TRY_GOTO(zn_pool_add(pool, name, strlen(name), n, slots));
fail:
    zn_free(slots);
    return status;
}
