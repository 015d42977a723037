/* SPDX-License-Identifier: Apache-2.0 */
/* hostfile.c — "NAME slots=N" lines, read as DeepSpeed's fetch_hostfile reads them
 * (deepspeed/launcher/runner.py, 0.19.8): what follows the digits is ignored, a host with no slots
 * is allowed and gets no rank. A byte order mark at the start is skipped. */
#include "launch/launch_internal.h"

#include <ctype.h>
#include <string.h>

#include "base/log.h"

void zn_pool_fini(zn_pool *pool)
{
    for (int i = 0; i < pool->n; i++) {
        zn_free(pool->hosts[i].name);
        zn_free(pool->hosts[i].slots);
    }
    zn_free(pool->hosts);
    *pool = (zn_pool){0};
}

zinc_status zn_pool_add(zn_pool *pool, const char *name, size_t name_bytes, int n_slots,
                        const int *slots)
{
    ZN_TRY(zn_realloc_array(&pool->hosts, (size_t)pool->n + 1, sizeof *pool->hosts, "hosts"));
    zn_host *host = &pool->hosts[pool->n];
    *host = (zn_host){.n_slots = n_slots};
    pool->n++; /* zn_pool_fini frees what is half-built */
    ZN_TRY(zn_format(&host->name, "%.*s", (int)name_bytes, name));
    ZN_TRY(zn_alloc_array(&host->slots, (size_t)n_slots + 1, sizeof *host->slots, "slots"));
    for (int i = 0; i < n_slots; i++)
        host->slots[i] = slots ? slots[i] : i;
    return ZINC_OK;
}

int zn_pool_n_slots(const zn_pool *pool)
{
    int n = 0;
    for (int i = 0; i < pool->n; i++)
        n += pool->hosts[i].n_slots;
    return n;
}

/* One line without its blanks at either end, and where it stands. */
typedef struct line_at {
    const char *text, *path;
    int n, number, column;
} line_at;

static zinc_status fail_line(const line_at *line, int offset, const char *what)
{
    ZN_FAIL(ZINC_E_CONFIG,
            "%s:%d:%d: %s in \"%.*s\"; a line is NAME slots=N, for example: worker-0 slots=4",
            line->path, line->number, line->column + offset, what, line->n, line->text);
}

static zinc_status parse_line(const line_at *line, zn_pool *pool)
{
    static const char key[] = "slots=";
    const int n_key = (int)sizeof key - 1;
    int name = 0, at, n_slots = 0;
    while (name < line->n && !isspace((unsigned char)line->text[name]))
        name++;
    if (line->text[0] == '-') /* ssh and its like would take it for an option */
        return fail_line(line, 0, "a host's name does not begin with '-'");
    for (at = name; at < line->n && isspace((unsigned char)line->text[at]); at++) {
    }
    if (at == line->n)
        return fail_line(line, name, "slots= is missing");
    if (line->n - at < n_key || strncmp(line->text + at, key, (size_t)n_key) != 0)
        return fail_line(line, at, "expected slots=");
    at += n_key;
    const int digits = at;
    for (; at < line->n && line->text[at] >= '0' && line->text[at] <= '9'; at++)
        if ((n_slots = n_slots * 10 + line->text[at] - '0') > ZN_MAX_SLOTS)
            return fail_line(line, digits, "more than 65536 slots");
    if (at == digits)
        return fail_line(line, at, "expected the number of slots");
    for (int i = 0; i < pool->n; i++)
        if (strlen(pool->hosts[i].name) == (size_t)name &&
            strncmp(pool->hosts[i].name, line->text, (size_t)name) == 0)
            return fail_line(line, 0, "this host has a line already");
    if (at < line->n && !isspace((unsigned char)line->text[at]))
        zn_warn("launch", "%s:%d: \"%.*s\" after slots=%d is ignored", line->path, line->number,
                line->n - at, line->text + at, n_slots);
    if (n_slots == 0)
        zn_warn("launch", "%s:%d: %.*s has no slots and gets no rank", line->path, line->number,
                name, line->text);
    return zn_pool_add(pool, line->text, (size_t)name, n_slots, NULL);
}

zinc_status zn_hostfile_parse(const char *text, size_t n_bytes, const char *path, zn_pool *out)
{
    zinc_status status;
    zn_pool pool = {.is_hostfile = true};
    line_at line = {.path = path};
    const size_t bom = n_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (size_t begin = bom, end; begin < n_bytes; begin = end + 1) {
        for (end = begin; end < n_bytes && text[end] != '\n' && text[end] != '\r'; end++) {
        }
        /* "\r\n" is one line end, a lone "\r" is one too */
        line.number +=
            !(begin > 0 && text[begin - 1] == '\r' && begin < n_bytes && text[begin] == '\n');
        size_t first = begin, last = end;
        while (first < last && isspace((unsigned char)text[first]))
            first++;
        while (last > first && isspace((unsigned char)text[last - 1]))
            last--;
        line.text = text + first;
        line.n = (int)(last - first);
        line.column = (int)(first - begin) + 1;
        if (memchr(line.text, '\0', (size_t)line.n))
            ZN_FAIL_GOTO(ZINC_E_CONFIG, "%s:%d: a NUL byte; is this a text file?", path,
                         line.number);
        if (line.n > 0 && line.text[0] != '#')
            ZN_TRY_GOTO(parse_line(&line, &pool));
        if (zn_pool_n_slots(&pool) > ZN_MAX_SLOTS)
            ZN_FAIL_GOTO(ZINC_E_CONFIG, "%s:%d: more than %d slots in all", path, line.number,
                         ZN_MAX_SLOTS);
    }
    if (pool.n == 0)
        ZN_FAIL_GOTO(ZINC_E_CONFIG,
                     "%s: no host in it; write one line a host, NAME slots=N, for example: "
                     "worker-0 slots=4",
                     path);
    *out = pool;
    return ZINC_OK;
fail:
    zn_pool_fini(&pool);
    return status;
}
