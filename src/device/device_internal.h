/* SPDX-License-Identifier: Apache-2.0 */
/* device_internal.h — what the files of device/ share: the ops table and the device itself.
 *
 * A backend only fills in raw memory and raw copies; accounting, limits, streams and events are the
 * same code for every device that works in host order. Layer: device. */
#ifndef ZN_DEVICE_DEVICE_INTERNAL_H
#define ZN_DEVICE_DEVICE_INTERNAL_H

#include <pthread.h>

#include "device/device.h"

/* What a backend fills in. Every slot is required. */
typedef struct zn_device_ops {
    const char *name;
    /** n_bytes of raw memory, 64-byte aligned; NULL when the system has none left. Any thread. */
    void *(*raw_alloc)(zn_place place, size_t n_bytes, bool zeroed);
    void (*raw_free)(zn_place place, void *ptr, size_t n_bytes);
    /** Runs on the stream: copy between any two places. */
    void (*raw_copy)(void *dst, const void *src, size_t n_bytes);
} zn_device_ops;

/* One live allocation. Kept beside the memory, not in front of it: large buffers keep their page
 * alignment and a device without host-visible memory fits too. */
typedef struct zn_record {
    struct zn_record *next;
    void *ptr;
    size_t n_bytes;
    zn_place place;
    zn_mem_category category;
    const char *what;
} zn_record;

#define ZN_N_RECORD_BUCKETS 256

struct zn_device {
    const zn_device_ops *ops;
    zn_device_params params;
    bool guarded; /* device memory is closed to host code (guard.c) */
    int n_open;   /* operations that hold it open; lock held */
    bool spin;    /* a wait may spin for a moment: there are cores to spare */
    zn_stream *compute;
    zn_stream *link[2];     /* to the device, back; NULL until asked for */
    struct zn_trace *trace; /* borrowed; NULL: none */
    bool has_lock;
    pthread_mutex_t lock; /* guards usage and records */
    zn_mem_usage usage[ZN_N_PLACES];
    zn_record *records[ZN_N_RECORD_BUCKETS];
};

extern const zn_device_ops zn_device_cpu_ops;

/** The compute stream: `inline_work` runs work inside submit, else on a thread that is slow to
 *  wake. */
ZINC_MUST_CHECK zinc_status zn_stream_create_compute(zn_device *dev, bool inline_work,
                                                     zn_stream **out);

/** Log and free what was never freed. No other thread may use the device any more. */
void zn_account_fini(zn_device *dev);

/* guard.c: memory of the device that faults when host code touches it. */
#ifdef NDEBUG
static inline bool zn_guard_wanted(const zn_device_params *params)
{
    (void)params;
    return false;
}
static inline void *zn_guard_alloc(size_t n_bytes)
{
    (void)n_bytes;
    return NULL;
}
static inline void zn_guard_free(void *ptr, size_t n_bytes)
{
    (void)ptr;
    (void)n_bytes;
}
static inline void zn_guard_protect(const zn_device *dev, const zn_record *record)
{
    (void)dev;
    (void)record;
}
#else
bool zn_guard_wanted(const zn_device_params *params);
void *zn_guard_alloc(size_t n_bytes);
void zn_guard_free(void *ptr, size_t n_bytes);
/** Give one allocation the access of the moment. Lock held. */
void zn_guard_protect(const zn_device *dev, const zn_record *record);
#endif

#endif
