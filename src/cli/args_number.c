/* SPDX-License-Identifier: Apache-2.0 */
/* args_number.c — numbers of the command line, with bounds and units. */
#include "cli/cli_internal.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

#define NUMBER_BYTES 64

/* Copy `text` without the underscores that stand between two digits; false if it does not fit. */
static bool strip_underscores(const char *text, char out[NUMBER_BYTES])
{
    size_t n = 0;
    for (size_t i = 0; text[i]; i++) {
        if (text[i] == '_' && i > 0 && isdigit((unsigned char)text[i - 1]) &&
            isdigit((unsigned char)text[i + 1]))
            continue;
        if (n + 1 >= NUMBER_BYTES)
            return false;
        out[n++] = text[i];
    }
    out[n] = '\0';
    return n > 0;
}

/* strtod reads hexadecimal, blanks and names too; options are plain decimals (and "inf", "nan",
 * which the bounds then judge). *end: the first byte that is no part of the number. */
static bool read_real(const char *text, double *out, const char **end)
{
    char *stop = NULL;
    if (isspace((unsigned char)text[0]) || strpbrk(text, "xX"))
        return false;
    *out = strtod(text, &stop);
    *end = stop;
    return stop != text;
}

static bool read_int(const char *text, int64_t *out)
{
    char digits[NUMBER_BYTES];
    char *stop = NULL;
    const char *end = NULL;
    double real = 0;
    if (!strip_underscores(text, digits) || isspace((unsigned char)digits[0]))
        return false;
    errno = 0;
    const long long whole = strtoll(digits, &stop, 10);
    if (stop != digits && *stop == '\0' && errno == 0) {
        *out = whole;
        return true;
    }
    /* 2e8: exact up to 2^53. */
    if (!read_real(digits, &real, &end) || *end != '\0' || !(fabs(real) <= 0x1p53) ||
        real != floor(real))
        return false;
    *out = (int64_t)real;
    return true;
}

zinc_status zn_args_int(const zn_args *args, const char *name, int64_t min, int64_t max,
                        int64_t *out)
{
    const char *text = zn_args_get(args, name);
    int64_t value = 0;
    if (!text)
        return ZINC_OK;
    if (!read_int(text, &value))
        ZN_FAIL(ZINC_E_INVALID, "--%s: \"%s\" is not a whole number", name, text);
    if (value < min || value > max) {
        if (max == INT64_MAX)
            ZN_FAIL(ZINC_E_INVALID, "--%s is %s; it must be at least %" PRId64, name, text, min);
        ZN_FAIL(ZINC_E_INVALID, "--%s is %s; it must be from %" PRId64 " to %" PRId64, name, text,
                min, max);
    }
    *out = value;
    return ZINC_OK;
}

zinc_status zn_args_real(const zn_args *args, const char *name, double min, double max, double *out)
{
    const char *text = zn_args_get(args, name);
    char digits[NUMBER_BYTES];
    const char *end = NULL;
    double value = 0;
    if (!text)
        return ZINC_OK;
    if (!strip_underscores(text, digits) || !read_real(digits, &value, &end) || *end != '\0')
        ZN_FAIL(ZINC_E_INVALID, "--%s: \"%s\" is not a number", name, text);
    if (!(value >= min && value <= max)) {
        if (isinf(max))
            ZN_FAIL(ZINC_E_INVALID, "--%s is %s; it must be at least %g", name, text, min);
        ZN_FAIL(ZINC_E_INVALID, "--%s is %s; it must be from %g to %g", name, text, min, max);
    }
    *out = value;
    return ZINC_OK;
}

/* Bytes of a unit; 0 if there is no such unit. A rate's "/s" is not part of it. */
static double unit_bytes(const char *unit)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {
        {"", 1},         {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
        {"TB", 1e12},    {"K", 1e3},      {"M", 1e6},      {"G", 1e9},      {"T", 1e12},
        {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcasecmp(unit, units[i].name) == 0)
            return units[i].bytes;
    return 0;
}

zinc_status zn_args_bytes(const zn_args *args, const char *name, int64_t *out)
{
    const char *text = zn_args_get(args, name);
    char digits[NUMBER_BYTES];
    const char *unit = NULL;
    double value = 0;
    if (!text)
        return ZINC_OK;
    bool ok = strip_underscores(text, digits);
    if (ok) {
        const size_t n = strlen(digits);
        if (n > 2 && strcmp(digits + n - 2, "/s") == 0)
            digits[n - 2] = '\0';
        ok = read_real(digits, &value, &unit);
    }
    if (ok) {
        while (*unit == ' ')
            unit++;
        value *= unit_bytes(unit);
        ok = unit_bytes(unit) > 0 && value >= 0 && value <= 0x1p62;
    }
    if (!ok)
        ZN_FAIL(ZINC_E_INVALID,
                "--%s: \"%s\" is not a size; write 24GB, 512MiB or a number of "
                "bytes",
                name, text);
    *out = (int64_t)value;
    return ZINC_OK;
}

zinc_status zn_args_seconds(const zn_args *args, const char *name, double *out)
{
    const char *text = zn_args_get(args, name), *unit = NULL;
    char digits[NUMBER_BYTES];
    double value = 0, scale = 0;
    if (!text)
        return ZINC_OK;
    if (strip_underscores(text, digits) && read_real(digits, &value, &unit))
        scale = strcmp(unit, "us") == 0            ? 1e-6
                : strcmp(unit, "ms") == 0          ? 1e-3
                : strcmp(unit, "s") == 0 || !*unit ? 1
                                                   : 0;
    if (scale == 0 || !(value >= 0 && value < 1e6))
        ZN_FAIL(ZINC_E_INVALID, "--%s %s: a time such as 10us, 1ms or 0.5s", name, text);
    *out = value * scale;
    return ZINC_OK;
}
