/* SPDX-License-Identifier: Apache-2.0 */
/* mem.h — host objects: zeroed allocations, growing buffers.
 *
 * Objects, strings and tables come from here. Anything large (parameters, gradients, states,
 * activations, staging buffers) comes from the device allocator (device/device.h), which accounts
 * for it. No bare malloc anywhere else; tools/check_source.py looks.
 * Tests fail the n-th allocation with zn_mem_fail_after(). Layer: base. */
#ifndef ZN_BASE_MEM_H
#define ZN_BASE_MEM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/** Allocate `n_bytes` zeroed bytes into *out; `what` names it in the error message.
 *  n_bytes 0 gives a valid unique pointer. Free with zn_free. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_alloc(void *out, size_t n_bytes, const char *what);

/** zn_alloc of n * size with an overflow check. */
ZINC_MUST_CHECK zinc_status zn_alloc_array(void *out, size_t n, size_t size, const char *what);

/** Grow or shrink *inout (NULL allowed) to n * size bytes; new bytes are not zeroed.
 *  On failure *inout is untouched. */
ZINC_MUST_CHECK zinc_status zn_realloc_array(void *inout, size_t n, size_t size, const char *what);

/** Free what zn_alloc* gave; NULL is fine. */
void zn_free(void *ptr);

/** Copy a string. Free with zn_free. */
ZINC_MUST_CHECK zinc_status zn_strdup(const char *text, char **out);

/** printf into a new string. Free with zn_free. */
ZINC_MUST_CHECK zinc_status zn_format(char **out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Test hook: let `n` more allocations of this thread succeed, then fail one and every further
 *  one until it is called again; a negative n (the default) never fails. */
void zn_mem_fail_after(int64_t n);

/** Number of zn_alloc* calls of the whole process so far (tests count allocations a step). */
int64_t zn_mem_alloc_count(void);

/* A growing byte buffer; `data` is always NUL-terminated after the first append. Zero-initialise.
 * Owned by whoever declares it; release with zn_buf_fini. */
typedef struct zn_buf {
    char *data;
    size_t n;        /* bytes used, without the final NUL */
    size_t capacity; /* bytes allocated */
} zn_buf;

ZINC_MUST_CHECK zinc_status zn_buf_append(zn_buf *buf, const void *bytes, size_t n);
ZINC_MUST_CHECK zinc_status zn_buf_puts(zn_buf *buf, const char *text);
ZINC_MUST_CHECK zinc_status zn_buf_printf(zn_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void zn_buf_fini(zn_buf *buf);

#endif
