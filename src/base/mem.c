/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int64_t fail_after = -1;
static atomic_int_fast64_t alloc_count;

static bool must_fail(void)
{
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    if (fail_after < 0)
        return false;
    if (fail_after == 0)
        return true;
    fail_after--;
    return false;
}

void zn_mem_fail_after(int64_t n)
{
    fail_after = n;
}

int64_t zn_mem_alloc_count(void)
{
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

zinc_status zn_alloc(void *out, size_t n_bytes, const char *what)
{
    void *ptr = must_fail() ? NULL : calloc(1, n_bytes ? n_bytes : 1);
    if (!ptr)
        ZN_FAIL(ZINC_E_NOMEM, "out of host memory: %zu bytes for %s", n_bytes, what);
    memcpy(out, &ptr, sizeof ptr);
    return ZINC_OK;
}

zinc_status zn_alloc_array(void *out, size_t n, size_t size, const char *what)
{
    if (size != 0 && n > SIZE_MAX / size)
        ZN_FAIL(ZINC_E_NOMEM, "out of host memory: %zu times %zu bytes for %s", n, size, what);
    return zn_alloc(out, n * size, what);
}

zinc_status zn_realloc_array(void *inout, size_t n, size_t size, const char *what)
{
    if (size != 0 && n > SIZE_MAX / size)
        ZN_FAIL(ZINC_E_NOMEM, "out of host memory: %zu times %zu bytes for %s", n, size, what);
    void *old;
    memcpy(&old, inout, sizeof old);
    const size_t n_bytes = n * size;
    void *ptr = must_fail() ? NULL : realloc(old, n_bytes ? n_bytes : 1);
    if (!ptr)
        ZN_FAIL(ZINC_E_NOMEM, "out of host memory: %zu bytes for %s", n_bytes, what);
    memcpy(inout, &ptr, sizeof ptr);
    return ZINC_OK;
}

void zn_free(void *ptr)
{
    free(ptr);
}

zinc_status zn_strdup(const char *text, char **out)
{
    const size_t n = strlen(text) + 1;
    char *copy;
    ZN_TRY(zn_alloc(&copy, n, "a string"));
    memcpy(copy, text, n);
    *out = copy;
    return ZINC_OK;
}

static zinc_status buf_vprintf(zn_buf *buf, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n < 0)
        ZN_FAIL(ZINC_E_INTERNAL, "cannot format \"%s\"", format);
    const size_t need = buf->n + (size_t)n + 1;
    if (need > buf->capacity) {
        const size_t capacity = need < 64 ? 64 : need + need / 2;
        ZN_TRY(zn_realloc_array(&buf->data, capacity, 1, "a text buffer"));
        buf->capacity = capacity;
    }
    vsnprintf(buf->data + buf->n, (size_t)n + 1, format, args);
    buf->n += (size_t)n;
    return ZINC_OK;
}

zinc_status zn_format(char **out, const char *format, ...)
{
    zn_buf buf = {0};
    va_list args;
    va_start(args, format);
    const zinc_status status = buf_vprintf(&buf, format, args);
    va_end(args);
    if (status != ZINC_OK) {
        zn_buf_fini(&buf);
        return status;
    }
    *out = buf.data;
    return ZINC_OK;
}

zinc_status zn_buf_append(zn_buf *buf, const void *bytes, size_t n)
{
    const size_t need = buf->n + n + 1;
    if (need > buf->capacity) {
        const size_t capacity = need < 64 ? 64 : need + need / 2;
        ZN_TRY(zn_realloc_array(&buf->data, capacity, 1, "a text buffer"));
        buf->capacity = capacity;
    }
    if (n > 0)
        memcpy(buf->data + buf->n, bytes, n);
    buf->n += n;
    buf->data[buf->n] = '\0';
    return ZINC_OK;
}

zinc_status zn_buf_puts(zn_buf *buf, const char *text)
{
    return zn_buf_append(buf, text, strlen(text));
}

zinc_status zn_buf_printf(zn_buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const zinc_status status = buf_vprintf(buf, format, args);
    va_end(args);
    return status;
}

void zn_buf_fini(zn_buf *buf)
{
    zn_free(buf->data);
    memset(buf, 0, sizeof *buf);
}
