/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a device: "device" memory is host memory that is counted as an accelerator's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MADV_HUGEPAGE */
#endif
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/device_internal.h"

#define ALIGNMENT 64
#define PAGE_BYTES ((size_t)4096)
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* AddressSanitizer sees overruns of heap blocks, not of mappings. */
#if defined(__SANITIZE_ADDRESS__)
#define MAP_FROM_BYTES SIZE_MAX
#else
#define MAP_FROM_BYTES HUGE_PAGE_BYTES
#endif

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Anonymous memory that begins on a huge page: map one huge page more, then cut both ends off. */
static void *map_aligned(size_t n_bytes)
{
    const size_t n = round_up(n_bytes, PAGE_BYTES);
    const size_t n_mapped = n + HUGE_PAGE_BYTES;
    char *const map =
        mmap(NULL, n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    const size_t n_head = (HUGE_PAGE_BYTES - (uintptr_t)map % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (n_head)
        munmap(map, n_head);
    munmap(map + n_head + n, n_mapped - n_head - n);
    (void)madvise(map + n_head, n, MADV_HUGEPAGE); /* a wish; small pages work too */
    return map + n_head;
}

static void *cpu_alloc(zn_place place, size_t n_bytes, bool zeroed)
{
    void *ptr = NULL;
    (void)place;
    if (n_bytes >= MAP_FROM_BYTES)
        return map_aligned(n_bytes); /* the system's pages are zeros */
    const size_t alignment = n_bytes >= PAGE_BYTES ? PAGE_BYTES : ALIGNMENT;
    if (posix_memalign(&ptr, alignment, n_bytes ? n_bytes : 1) != 0)
        return NULL;
    return zeroed ? memset(ptr, 0, n_bytes) : ptr;
}

static void cpu_free(zn_place place, void *ptr, size_t n_bytes)
{
    (void)place;
    if (n_bytes >= MAP_FROM_BYTES)
        munmap(ptr, round_up(n_bytes, PAGE_BYTES));
    else
        free(ptr);
}

static void cpu_copy(void *dst, const void *src, size_t n_bytes)
{
    if (dst != src && n_bytes)
        memcpy(dst, src, n_bytes);
}

const zn_device_ops zn_device_cpu_ops = {
    .name = "cpu",
    .raw_alloc = cpu_alloc,
    .raw_free = cpu_free,
    .raw_copy = cpu_copy,
};
