/* SPDX-License-Identifier: Apache-2.0 */
/* guard.c — a CPU device whose memory faults when host code touches it.
 *
 * For tests of code that must also run beside a real accelerator: each allocation of the device has
 * pages of its own, which are PROT_NONE but while a kernel, a copy or a collective of this device
 * runs. Only builds with assertions have it, and only with ZINC_GUARD_DEVICE=1. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#endif
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sys.h"
#include "device/device_internal.h"

#ifndef NDEBUG
bool zn_guard_wanted(const zn_device_params *params)
{
    const char *wish = zn_sys_env("ZINC_GUARD_DEVICE");
    return wish && strcmp(wish, "1") == 0 &&
           (params->device_limit_bytes > 0 || params->link_bytes_per_s > 0);
}

static size_t whole_pages(size_t n_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return n_bytes == 0 ? page : (n_bytes + page - 1) / page * page;
}

void *zn_guard_alloc(size_t n_bytes)
{
    void *const ptr = mmap(NULL, whole_pages(n_bytes), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return ptr == MAP_FAILED ? NULL : ptr;
}

void zn_guard_free(void *ptr, size_t n_bytes)
{
    munmap(ptr, whole_pages(n_bytes));
}

void zn_guard_protect(const zn_device *dev, const zn_record *record)
{
    const int access = dev->n_open > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    const int rc = record->place == ZN_PLACE_DEVICE
                       ? mprotect(record->ptr, whole_pages(record->n_bytes), access)
                       : 0;
    ZN_ASSERT(rc == 0); /* the test would prove nothing */
}

static void protect_all(const zn_device *dev)
{
    for (size_t b = 0; b < ZN_N_RECORD_BUCKETS; b++)
        for (const zn_record *record = dev->records[b]; record; record = record->next)
            zn_guard_protect(dev, record);
}

void zn_device_memory_open(zn_device *dev)
{
    if (!dev->guarded)
        return;
    pthread_mutex_lock(&dev->lock);
    if (dev->n_open++ == 0)
        protect_all(dev);
    pthread_mutex_unlock(&dev->lock);
}

void zn_device_memory_close(zn_device *dev)
{
    if (!dev->guarded)
        return;
    pthread_mutex_lock(&dev->lock);
    if (--dev->n_open == 0)
        protect_all(dev);
    pthread_mutex_unlock(&dev->lock);
}

bool zn_device_is_guarded(const zn_device *dev)
{
    return dev && dev->guarded;
}
#endif
