/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "zinc/version.h"

static _Thread_local char last_error[ZN_ERROR_BYTES];

const char *zinc_version(void)
{
    return ZINC_VERSION_STRING;
}

const char *zinc_status_name(zinc_status status)
{
    switch (status) {
#define CASE(name, value, text)                                                                    \
    case ZINC_##name:                                                                              \
        return #name;
        ZINC_STATUS_MAP(CASE)
#undef CASE
    }
    return "E_UNKNOWN";
}

const char *zinc_last_error(void)
{
    return last_error;
}

zinc_status zn_error_set(zinc_status status, const char *file, int line, const char *func,
                         const char *format, ...)
{
    char message[ZN_ERROR_BYTES]; /* the arguments may be the last message itself */
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    memcpy(last_error, message, strlen(message) + 1);
    zn_log(ZN_LOG_DEBUG, "error", "%s: %s (%s:%d in %s)", zinc_status_name(status), last_error,
           file, line, func);
    return status;
}

zinc_status zn_error_trace(zinc_status status, const char *file, int line, const char *func)
{
    zn_log(ZN_LOG_TRACE, "error", "  from %s:%d in %s", file, line, func);
    return status;
}

void zn_error_prefix(const char *format, ...)
{
    char joined[ZN_ERROR_BYTES];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(joined, sizeof joined, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof joined)
        snprintf(joined + n, sizeof joined - (size_t)n, "%s", last_error);
    memcpy(last_error, joined, sizeof last_error);
}

void zn_error_save(zn_error *error, zinc_status status)
{
    error->status = status;
    memcpy(error->message, last_error, sizeof error->message);
}

zinc_status zn_error_restore(const zn_error *error)
{
    memcpy(last_error, error->message, sizeof last_error);
    return error->status;
}

void zn_assert_fail(const char *expr, const char *file, int line)
{
    fprintf(stderr, "zinc: broken invariant: %s (%s:%d). This is a bug in Zinc.\n", expr, file,
            line);
    abort();
}
