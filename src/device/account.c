/* SPDX-License-Identifier: Apache-2.0 */
/* Every byte is charged under one lock before it is taken from the system, so that the peaks are
 * exact and a limit cannot be passed by two threads at once. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "device/device_internal.h"

const char *zn_mem_category_name(zn_mem_category category)
{
    static const char *const names[ZN_N_MEM_CATEGORIES] = {
        [ZN_MEM_PARAMETERS] = "parameters",   [ZN_MEM_GRADIENTS] = "gradients",
        [ZN_MEM_MASTERS] = "masters",         [ZN_MEM_OPTIMIZER_STATE] = "optimizer state",
        [ZN_MEM_ACTIVATIONS] = "activations", [ZN_MEM_BUFFERS] = "buffers",
    };
    return names[category];
}

const char *zn_place_name(zn_place place)
{
    return place == ZN_PLACE_DEVICE ? "device" : "host";
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* "1.50 GiB" */
static const char *readable(char text[32], int64_t n_bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (n_bytes < 1024) {
        snprintf(text, 32, "%lld B", (long long)n_bytes);
        return text;
    }
    double value = (double)n_bytes / 1024;
    size_t unit = 0;
    while (value >= 1023.995 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, "%.2f %s", value, units[unit]);
    return text;
}

/* "parameters 1.00 GiB, gradients 512.00 MiB, …" */
static void category_table(const zn_mem_usage *usage, char *text, size_t n_text)
{
    size_t n = 0;
    text[0] = '\0';
    for (int c = 0; c < ZN_N_MEM_CATEGORIES && n < n_text; c++) {
        char bytes[32];
        const int wrote =
            snprintf(text + n, n_text - n, "%s%s %s", c ? ", " : "",
                     zn_mem_category_name((zn_mem_category)c), readable(bytes, usage->now[c]));
        n += wrote > 0 ? (size_t)wrote : 0;
    }
}

static int64_t limit_of(const zn_device *dev, zn_place place)
{
    return place == ZN_PLACE_DEVICE ? dev->params.device_limit_bytes : dev->params.host_limit_bytes;
}

/* `usage` is the account as it was when the request was refused. */
static zinc_status out_of_memory(const zn_device *dev, const zn_record *request,
                                 const zn_mem_usage *usage, bool system)
{
    char table[320], asked[32], used[32], most[32], limit[64] = "no limit set";
    category_table(usage, table, sizeof table);
    if (limit_of(dev, request->place) > 0)
        snprintf(limit, sizeof limit, "limit %s", readable(most, limit_of(dev, request->place)));
    ZN_FAIL(
        ZINC_E_NOMEM,
        "rank %d is out of %s memory%s: \"%s\" (%s) asks for %s, %s are in use, %s. In use: %s. "
        "A higher ZeRO stage, offload, more ranks, a smaller micro-batch or a higher limit "
        "would help",
        dev->params.rank, zn_place_name(request->place), system ? " (the system gave none)" : "",
        request->what ? request->what : "?", zn_mem_category_name(request->category),
        readable(asked, (int64_t)request->n_bytes), readable(used, usage->total_now), limit, table);
}

/* Lock held. */
static void add_bytes(zn_mem_usage *usage, zn_mem_category category, int64_t n_bytes)
{
    usage->now[category] += n_bytes;
    usage->total_now += n_bytes;
    usage->peak[category] = max_i64(usage->peak[category], usage->now[category]);
    usage->total_peak = max_i64(usage->total_peak, usage->total_now);
}

static zinc_status charge(zn_device *dev, const zn_record *request)
{
    zn_mem_usage *usage = &dev->usage[request->place];
    const int64_t limit = limit_of(dev, request->place);
    const int64_t n_bytes = (int64_t)request->n_bytes;
    pthread_mutex_lock(&dev->lock);
    const bool fits =
        limit == 0 ? n_bytes <= INT64_MAX - usage->total_now : n_bytes <= limit - usage->total_now;
    if (fits)
        add_bytes(usage, request->category, n_bytes);
    const zn_mem_usage seen = *usage;
    pthread_mutex_unlock(&dev->lock);
    return fits ? ZINC_OK : out_of_memory(dev, request, &seen, false);
}

static void release(zn_device *dev, const zn_record *request)
{
    pthread_mutex_lock(&dev->lock);
    add_bytes(&dev->usage[request->place], request->category, -(int64_t)request->n_bytes);
    pthread_mutex_unlock(&dev->lock);
}

static zn_record **bucket_of(zn_device *dev, const void *ptr)
{
    const uintptr_t bits = (uintptr_t)ptr;
    return &dev->records[((bits >> 6) ^ (bits >> 14) ^ (bits >> 21)) % ZN_N_RECORD_BUCKETS];
}

/* The system refused: the charge is taken back, and the peaks must not remember it. */
static zinc_status refused_by_system(zn_device *dev, const zn_record *request,
                                     const zn_mem_usage *before)
{
    zn_mem_usage seen;
    release(dev, request);
    pthread_mutex_lock(&dev->lock);
    zn_mem_usage *usage = &dev->usage[request->place];
    usage->total_peak = max_i64(before->total_peak, usage->total_now);
    usage->peak[request->category] =
        max_i64(before->peak[request->category], usage->now[request->category]);
    seen = *usage;
    pthread_mutex_unlock(&dev->lock);
    return out_of_memory(dev, request, &seen, true);
}

static void *raw_alloc(const zn_device *dev, zn_place place, size_t n_bytes, bool zeroed)
{
    return dev->guarded && place == ZN_PLACE_DEVICE ? zn_guard_alloc(n_bytes)
                                                    : dev->ops->raw_alloc(place, n_bytes, zeroed);
}

static void raw_free(const zn_device *dev, const zn_record *record)
{
    if (dev->guarded && record->place == ZN_PLACE_DEVICE)
        zn_guard_free(record->ptr, record->n_bytes);
    else
        dev->ops->raw_free(record->place, record->ptr, record->n_bytes);
}

static zinc_status alloc_charged(zn_device *dev, zn_place place, zn_mem_category category,
                                 size_t n_bytes, bool zeroed, const char *what, void *out)
{
    zinc_status status;
    zn_record *record = NULL;
    zn_mem_usage before;
    if (n_bytes > (size_t)INT64_MAX / 2)
        ZN_FAIL(ZINC_E_NOMEM, "rank %d: \"%s\" asks for %zu bytes, more than any machine has",
                dev->params.rank, what ? what : "?", n_bytes);
    ZN_TRY(zn_alloc(&record, sizeof *record, "record of a device allocation"));
    *record = (zn_record){
        .n_bytes = n_bytes, .place = place, .category = category, .what = what ? what : "?"};
    zn_device_usage(dev, place, &before);
    ZN_TRY_GOTO(charge(dev, record));
    record->ptr = raw_alloc(dev, place, n_bytes, zeroed);
    if (!record->ptr) {
        status = refused_by_system(dev, record, &before);
        goto fail;
    }
    pthread_mutex_lock(&dev->lock);
    zn_record **bucket = bucket_of(dev, record->ptr);
    record->next = *bucket;
    *bucket = record;
    if (dev->guarded)
        zn_guard_protect(dev, record);
    dev->usage[place].n_allocs++;
    pthread_mutex_unlock(&dev->lock);
    memcpy(out, &record->ptr, sizeof record->ptr); /* `out` is any kind of pointer's address */
    return ZINC_OK;
fail:
    zn_free(record);
    return status;
}

zinc_status zn_device_alloc(zn_device *dev, zn_place place, zn_mem_category category,
                            size_t n_bytes, const char *what, void *out)
{
    return alloc_charged(dev, place, category, n_bytes, false, what, out);
}

zinc_status zn_device_alloc_zeroed(zn_device *dev, zn_place place, zn_mem_category category,
                                   size_t n_bytes, const char *what, void *out)
{
    return alloc_charged(dev, place, category, n_bytes, true, what, out);
}

void zn_device_free(zn_device *dev, void *ptr)
{
    if (!ptr)
        return;
    pthread_mutex_lock(&dev->lock);
    zn_record **link = bucket_of(dev, ptr);
    while (*link && (*link)->ptr != ptr)
        link = &(*link)->next;
    zn_record *record = *link;
    if (record)
        *link = record->next;
    pthread_mutex_unlock(&dev->lock);
    if (!record) {
        zn_log(ZN_LOG_ERROR, "device", "free of %p, which is no live allocation of this device",
               ptr);
        ZN_ASSERT(record);
        return;
    }
    raw_free(dev, record);
    release(dev, record);
    zn_free(record);
}

zinc_status zn_device_charge(zn_device *dev, zn_place place, zn_mem_category category,
                             int64_t n_bytes, const char *what)
{
    if (n_bytes >= 0) {
        const zn_record request = {
            .n_bytes = (size_t)n_bytes, .place = place, .category = category, .what = what};
        return charge(dev, &request);
    }
    pthread_mutex_lock(&dev->lock);
    const int64_t now = dev->usage[place].now[category];
    const bool held = now + n_bytes >= 0;
    if (held)
        add_bytes(&dev->usage[place], category, n_bytes);
    pthread_mutex_unlock(&dev->lock);
    if (!held)
        ZN_FAIL(ZINC_E_INVALID, "rank %d: \"%s\" releases %llu bytes of %s, but only %lld are held",
                dev->params.rank, what ? what : "?", 0 - (unsigned long long)n_bytes,
                zn_mem_category_name(category), (long long)now);
    return ZINC_OK;
}

void zn_device_usage(zn_device *dev, zn_place place, zn_mem_usage *out)
{
    pthread_mutex_lock(&dev->lock);
    *out = dev->usage[place];
    pthread_mutex_unlock(&dev->lock);
}

void zn_device_reset_peaks(zn_device *dev)
{
    pthread_mutex_lock(&dev->lock);
    for (int p = 0; p < ZN_N_PLACES; p++) {
        memcpy(dev->usage[p].peak, dev->usage[p].now, sizeof dev->usage[p].peak);
        dev->usage[p].total_peak = dev->usage[p].total_now;
    }
    pthread_mutex_unlock(&dev->lock);
}

void zn_account_fini(zn_device *dev)
{
    for (size_t b = 0; b < ZN_N_RECORD_BUCKETS; b++) {
        zn_record *record = dev->records[b];
        while (record) {
            zn_record *next = record->next;
            zn_debug("device", "\"%s\" was not freed: %zu bytes of %s memory (%s)", record->what,
                     record->n_bytes, zn_place_name(record->place),
                     zn_mem_category_name(record->category));
            raw_free(dev, record);
            zn_free(record);
            record = next;
        }
    }
}
