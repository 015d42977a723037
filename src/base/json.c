/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"

#define LOAD_FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY)

static zinc_status parse(const char *text, size_t n, const char *where, size_t flags, json_t **out)
{
    json_error_t error;
    json_t *value = json_loadb(text, n, flags, &error);
    if (!value)
        ZN_FAIL(ZINC_E_FORMAT, "%s: not valid JSON at line %d column %d: %s", where, error.line,
                error.column, error.text);
    *out = value;
    return ZINC_OK;
}

zinc_status zn_json_parse(const char *text, size_t n, const char *where, json_t **out)
{
    return parse(text, n, where, LOAD_FLAGS, out);
}

static zinc_status load(const char *path, size_t flags, json_t **out)
{
    zinc_status status;
    char *text = NULL;
    int fd = -1;
    int64_t n = 0;
    ZN_TRY_GOTO(zn_fs_open(path, &fd, &n));
    ZN_TRY_GOTO(zn_alloc_array(&text, (size_t)n + 1, 1, "a JSON file"));
    ZN_TRY_GOTO(zn_fs_pread_all(fd, text, (size_t)n, 0, path));
    status = parse(text, (size_t)n, path, flags, out);
fail:
    if (fd >= 0)
        close(fd);
    zn_free(text);
    return status;
}

zinc_status zn_json_load(const char *path, json_t **out)
{
    return load(path, LOAD_FLAGS, out);
}

zinc_status zn_json_load_reals(const char *path, json_t **out)
{
    return load(path, LOAD_FLAGS | JSON_DECODE_INT_AS_REAL, out);
}

static int append_chunk(const char *bytes, size_t n, void *buf)
{
    return zn_buf_append(buf, bytes, n) == ZINC_OK ? 0 : -1;
}

zinc_status zn_json_append(const json_t *value, zn_buf *buf)
{
    if (json_dump_callback(value, append_chunk, buf, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        ZN_FAIL(ZINC_E_NOMEM, "cannot write a JSON value");
    return ZINC_OK;
}

size_t zn_utf8_length(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    const size_t len = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F) ||
        (p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F))
        return 0;
    return len;
}

zinc_status zn_json_append_string(zn_buf *buf, const char *text, size_t n)
{
    ZN_TRY(zn_buf_append(buf, "\"", 1));
    for (size_t i = 0; i < n;) {
        const unsigned char *p = (const unsigned char *)text + i;
        const size_t len = zn_utf8_length(p, n - i);
        if (len == 0) {
            ZN_TRY(zn_buf_puts(buf, "\xEF\xBF\xBD"));
            i++;
        } else if (*p < 0x20 || *p == '"' || *p == '\\') {
            ZN_TRY(*p == '"' || *p == '\\' ? zn_buf_printf(buf, "\\%c", *p)
                                           : zn_buf_printf(buf, "\\u%04x", *p));
            i++;
        } else {
            ZN_TRY(zn_buf_append(buf, p, len));
            i += len;
        }
    }
    return zn_buf_append(buf, "\"", 1);
}

zinc_status zn_json_append_number(zn_buf *buf, double value)
{
    if (!isfinite(value))
        return zn_buf_puts(buf, "null");
    if (value == rint(value) && fabs(value) < 1e15)
        return zn_buf_printf(buf, "%.0f", value);
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return zn_buf_puts(buf, text);
}
