/* SPDX-License-Identifier: Apache-2.0 */
/* device.h — memory, streams and copies of the device that one rank computes on.
 *
 *   zn_device            one per rank; no global state
 *     ├─ account         bytes now and at peak, per place and category; every large buffer is here
 *     ├─ zn_stream       a first-in-first-out queue of work
 *     │    └─ zn_event   a point in a stream that can be waited for, with a deadline
 *     └─ ops             what a backend fills in (device/cpu.c; a new device is one file + one row
 *                        in device/registry.c)
 *
 * Invariants: memory is zeroed only where a caller asks; a failed operation poisons its stream, and
 * every later wait on it returns that first error; a wait never lasts longer than its deadline.
 * On the CPU "device" memory is host memory that is counted and limited as if it were an
 * accelerator's. Reading order: device.h, account.c, stream.c, cpu.c.
 * Threads: alloc/free and waits from any thread; submits to one stream from one thread at a time.
 * Layer: device (may use base). */
#ifndef ZN_DEVICE_DEVICE_H
#define ZN_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct zn_device zn_device;
typedef struct zn_stream zn_stream;

typedef enum zn_place {
    ZN_PLACE_DEVICE,
    ZN_PLACE_HOST, /* pinned where the device has such a thing */
    ZN_N_PLACES,
} zn_place;

typedef enum zn_mem_category {
    ZN_MEM_PARAMETERS,      /* what forward and backward read, full or shard */
    ZN_MEM_GRADIENTS,       /* accumulated gradients and the transient unit gradient buffers */
    ZN_MEM_MASTERS,         /* fp32 masters where they are not the parameters themselves */
    ZN_MEM_OPTIMIZER_STATE, /* momenta and the like */
    ZN_MEM_ACTIVATIONS,     /* saved for backward, and the working set of one block */
    ZN_MEM_BUFFERS,         /* communication staging, widened weights, logits tiles */
    ZN_N_MEM_CATEGORIES,
} zn_mem_category;

/** Names as the tables print them: "parameters", "gradients", "masters", … ; "device", "host". */
const char *zn_mem_category_name(zn_mem_category category);
const char *zn_place_name(zn_place place);

typedef struct zn_device_params {
    int rank;                   /* for messages */
    int n_threads;              /* compute threads of this rank, >= 1 */
    int64_t device_limit_bytes; /* 0: no limit */
    int64_t host_limit_bytes;   /* 0: no limit */
    bool late_streams;          /* tests: the compute stream runs late, on a thread of its own */
    double link_bytes_per_s; /* the stand-in link between host and device; 0: as fast as memory */
    double link_latency_s;   /* of each copy over it */
} zn_device_params;

/* Bytes of one place. peak_total is the peak of the sum, not the sum of the peaks. */
typedef struct zn_mem_usage {
    int64_t now[ZN_N_MEM_CATEGORIES];
    int64_t peak[ZN_N_MEM_CATEGORIES];
    int64_t total_now;
    int64_t total_peak;
    int64_t n_allocs; /* successful allocations so far; a test holds it still after step 2 */
} zn_mem_usage;

/** Open the device called `name` ("cpu"). Not collective. Close with zn_device_close.
 *  Errors: E_UNSUPPORTED names the devices of this build. */
ZINC_MUST_CHECK zinc_status zn_device_open(const char *name, const zn_device_params *params,
                                           zn_device **out);
/** Close; NULL is fine. Logs what was not freed (debug). */
void zn_device_close(zn_device *dev);

const char *zn_device_name(const zn_device *dev);
int zn_device_rank(const zn_device *dev);
int zn_device_n_threads(const zn_device *dev);

/** Allocate n_bytes (64-byte aligned, from 4 KiB on page-aligned, huge pages asked for from 2 MiB
 *  on; not zeroed) and charge them. `what` must outlive the allocation (a literal); it is what
 * messages call it. Errors: E_NOMEM, whose message has the request, the category table and the
 * limit. */
ZINC_MUST_CHECK zinc_status zn_device_alloc(zn_device *dev, zn_place place,
                                            zn_mem_category category, size_t n_bytes,
                                            const char *what, void *out);
/** The same, all bytes zero. What comes fresh from the system is not written here, so its pages are
 *  first touched by their first use. */
ZINC_MUST_CHECK zinc_status zn_device_alloc_zeroed(zn_device *dev, zn_place place,
                                                   zn_mem_category category, size_t n_bytes,
                                                   const char *what, void *out);
/** Free what zn_device_alloc gave; NULL is fine. */
void zn_device_free(zn_device *dev, void *ptr);

/** Charge or (negative) release bytes that this device does not allocate itself: its slice of a
 *  shared buffer. Errors: E_NOMEM as zn_device_alloc. */
ZINC_MUST_CHECK zinc_status zn_device_charge(zn_device *dev, zn_place place,
                                             zn_mem_category category, int64_t n_bytes,
                                             const char *what);

/** A copy of the account of one place. Any thread. */
void zn_device_usage(zn_device *dev, zn_place place, zn_mem_usage *out);
/** Start the peaks again from what is allocated now. */
void zn_device_reset_peaks(zn_device *dev);

/* With ZINC_GUARD_DEVICE=1, in builds with assertions, device memory can be read only between open
 * and close: by kernels, copies and collectives. Host code that touches it ends in SIGSEGV. Calls
 * nest; any thread. */
#ifdef NDEBUG
static inline void zn_device_memory_open(zn_device *dev)
{
    (void)dev;
}
static inline void zn_device_memory_close(zn_device *dev)
{
    (void)dev;
}
#else
void zn_device_memory_open(zn_device *dev);
void zn_device_memory_close(zn_device *dev);
bool zn_device_is_guarded(const zn_device *dev);
#endif
/** Whether host code may read and write device memory in place; else it goes through
 *  zn_device_copy_now. */
bool zn_device_host_readable(const zn_device *dev);

/* ---- streams and events ---- */

/* A point in a stream. A zeroed event is "already happened". Copy freely; no release needed. It may
 * not be used after its stream is destroyed. */
typedef struct zn_event {
    zn_stream *stream;
    int64_t ticket;
} zn_event;

/* One piece of work. `arg` is the stream's own copy of what was submitted. */
typedef zinc_status (*zn_work_fn)(void *arg);

#define ZN_WORK_ARG_BYTES 256

/** Make a stream with a worker thread of its own (communication, copies). `name` is a literal.
 *  Destroying waits for the queue to drain. */
ZINC_MUST_CHECK zinc_status zn_stream_create(zn_device *dev, const char *name, zn_stream **out);
/** Make a stream without a thread: work runs inside submit, on the caller's thread. */
ZINC_MUST_CHECK zinc_status zn_stream_create_inline(zn_device *dev, const char *name,
                                                    zn_stream **out);
void zn_stream_destroy(zn_stream *stream);

/** The device's compute stream: on the CPU work runs inside submit, on the caller's thread
 *  (late_streams: later, on another). Borrowed. */
zn_stream *zn_device_compute(zn_device *dev);
zn_device *zn_stream_device(const zn_stream *stream);
/** Compute threads that a kernel on this stream may use. */
int zn_stream_n_threads(const zn_stream *stream);

/** Put work at the end of the stream; arg[0..arg_bytes) is copied (<= ZN_WORK_ARG_BYTES).
 *  *event (may be NULL) is the point after it. Blocks while the queue (64 deep) is full.
 *  Errors: the stream's first error, if it is poisoned; where work runs inside submit, also that of
 *  this very work. */
ZINC_MUST_CHECK zinc_status zn_stream_submit(zn_stream *stream, zn_work_fn fn, const void *arg,
                                             size_t arg_bytes, zn_event *event);

/** *event is the point after everything submitted so far. Errors: the stream's first error. */
ZINC_MUST_CHECK zinc_status zn_stream_point(zn_stream *stream, zn_event *event);

/** Wait until the event has happened; returns the stream's first error if it is poisoned.
 *  timeout_ms < 0 waits without a deadline. Errors: E_TIMEOUT names the stream. */
ZINC_MUST_CHECK zinc_status zn_event_wait(zn_event event, int64_t timeout_ms);
/** Whether it has happened (or never will, because the stream is poisoned). */
bool zn_event_done(zn_event event);

/** Make everything submitted to `stream` from now on wait for `event` first. */
ZINC_MUST_CHECK zinc_status zn_stream_wait_event(zn_stream *stream, zn_event event);

/** Wait for everything submitted so far. */
ZINC_MUST_CHECK zinc_status zn_stream_sync(zn_stream *stream, int64_t timeout_ms);

/** The copy engine of one direction: to_device, or back. Each is a stream of its own, so the link
 * is full duplex; with link_bytes_per_s a copy on it takes as long as the link would. Made at the
 * first call; NULL if that failed (the message is set). Borrowed. One thread calls it at a time. */
zn_stream *zn_device_link(zn_device *dev, bool to_device);

/** Sleep until the stand-in link would have moved n_bytes since zn_sys_now() was `since`; not at
 * all where there is none. For what crosses it without a copy engine: collectives. */
void zn_device_link_wait(zn_device *dev, double since, int64_t n_bytes);

/** Copy n_bytes on `stream`, between any two places of this device. */
ZINC_MUST_CHECK zinc_status zn_device_copy(zn_stream *stream, void *dst, const void *src,
                                           size_t n_bytes, zn_event *event);

/** The same behind everything on the compute stream so far, and wait for it. */
ZINC_MUST_CHECK zinc_status zn_device_copy_now(zn_device *dev, void *dst, const void *src,
                                               size_t n_bytes);

#endif
