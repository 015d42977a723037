/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int log_rank = -1;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

static int parse_level(const char *text, size_t n)
{
    for (int i = 0; i <= ZN_LOG_TRACE; i++)
        if (strlen(level_names[i]) == n && memcmp(level_names[i], text, n) == 0)
            return i;
    return -1;
}

/* Level for a module: the last matching item of ZINC_LOG wins; a bare level is for all modules. */
static int level_for(const char *module)
{
    int level = ZN_LOG_INFO;
    const char *p = getenv("ZINC_LOG"); /* the one place that reads it; see zn_env in cli */
    while (p && *p) {
        const size_t n = strcspn(p, ",");
        const char *eq = memchr(p, '=', n);
        if (!eq) {
            const int parsed = parse_level(p, n);
            if (parsed >= 0)
                level = parsed;
        } else if ((size_t)(eq - p) == strlen(module) && memcmp(p, module, (size_t)(eq - p)) == 0) {
            const int parsed = parse_level(eq + 1, n - (size_t)(eq + 1 - p));
            if (parsed >= 0)
                level = parsed;
        }
        p += n;
        if (*p == ',')
            p++;
    }
    return level;
}

bool zn_log_on(zn_log_level level, const char *module)
{
    return (int)level <= level_for(module);
}

void zn_log_set_rank(int rank)
{
    log_rank = rank;
}

void zn_log(zn_log_level level, const char *module, const char *format, ...)
{
    if (!zn_log_on(level, module))
        return;
    char line[8192];
    int n = 0;
    if (log_rank >= 0)
        n = snprintf(line, sizeof line, "zinc: [rank %d] ", log_rank);
    else
        n = snprintf(line, sizeof line, "zinc: ");
    if (level == ZN_LOG_WARN)
        n += snprintf(line + n, sizeof line - (size_t)n, "warning: ");
    else if (level >= ZN_LOG_DEBUG)
        n += snprintf(line + n, sizeof line - (size_t)n, "%s: ", module);
    va_list args;
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    if ((size_t)n > sizeof line - 2)
        n = (int)sizeof line - 2;
    line[n] = '\n';
    fwrite(line, 1, (size_t)n + 1, stderr);
}
