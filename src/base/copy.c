/* SPDX-License-Identifier: Apache-2.0 */
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

/* One stream of loads waits for memory, and the hardware's prefetch stops at the end of a page: so
 * N_PAGES pages are copied side by side, each asked for one round ahead. Whatever the vectors, a
 * line of 64 bytes leaves as one write. */
#define LINE ((size_t)64)
#define PAGE ((size_t)4096)
#define N_PAGES ((size_t)4)

/* dst on a line */
static void stream_lines(char *dst, const char *src, size_t n_lines)
{
    for (size_t i = 0; i < n_lines * LINE; i += 16)
        _mm_stream_si128((__m128i *)(void *)(dst + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(src + i)));
}

static void stream_pages(char *dst, const char *src)
{
    for (size_t at = 0; at < PAGE; at += 2 * LINE)
        for (size_t p = 0; p < N_PAGES; p++) {
            const char *const from = src + p * PAGE + at;
            _mm_prefetch(from + N_PAGES * PAGE, _MM_HINT_T0);
            _mm_prefetch(from + N_PAGES * PAGE + LINE, _MM_HINT_T0);
            stream_lines(dst + p * PAGE + at, from, 2);
        }
}

static void copy_past_caches(char *dst, const char *src, size_t n)
{
    const size_t head = (LINE - (uintptr_t)dst % LINE) % LINE;
    memcpy(dst, src, head);
    size_t at = head;
    for (; n - at >= N_PAGES * PAGE; at += N_PAGES * PAGE)
        stream_pages(dst + at, src + at);
    memcpy(dst + at, src + at, n - at);
    _mm_sfence(); /* other threads see the stores in order again */
}

#else

static void copy_past_caches(char *dst, const char *src, size_t n)
{
    memcpy(dst, src, n);
}

#endif

void zn_copy(void *dst, const void *src, size_t n_bytes)
{
    if (n_bytes >= ZN_COPY_PAST_CACHES)
        copy_past_caches(dst, src, n_bytes);
    else if (n_bytes > 0)
        memcpy(dst, src, n_bytes);
}
