/* SPDX-License-Identifier: Apache-2.0 */
/* A stream is a ring of works with two counters:
 *
 *     done            submitted
 *       v                 v
 *   …| | |run|wait|wait|   |…      ticket t is in slot t % N_SLOTS; an event (stream, t) has
 *                                   happened when done >= t
 *
 * Threads: `submitted`, the slots and the error are guarded by the lock; `done` is written under
 * the lock and read without it by spinning waits. The first failure is kept, what is queued behind
 * it is dropped without running, and every later submit or wait returns it. */
#include "device/device.h"

#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/sys.h"
#include "device/device_internal.h"

#define N_SLOTS 64
#define SPIN_SECONDS 20e-6
#define LATE_SECONDS 50e-6 /* how long the late compute stream dozes before it starts */

typedef struct work {
    zn_work_fn fn;
    alignas(16) unsigned char arg[ZN_WORK_ARG_BYTES];
} work;

struct zn_stream {
    zn_device *dev;
    const char *name;
    bool inline_work; /* work runs inside submit */
    bool late;
    bool is_compute;
    bool has_lock, has_work_cond, has_done_cond, has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work_cond; /* something was submitted, or stop */
    pthread_cond_t done_cond; /* `done` moved */
    bool stop;
    int64_t submitted; /* tickets given out */
    _Atomic int64_t done;
    _Atomic bool poisoned;
    zn_error error; /* valid if poisoned */
    work slots[N_SLOTS];
};

/* ---- the worker ---- */

static void poison(zn_stream *stream, zinc_status status)
{
    pthread_mutex_lock(&stream->lock);
    if (!stream->poisoned) {
        zn_error_save(&stream->error, status);
        stream->poisoned = true;
    }
    pthread_cond_broadcast(&stream->done_cond);
    pthread_mutex_unlock(&stream->lock);
}

static void *run_stream(void *arg)
{
    zn_stream *const stream = arg;
    zn_log_set_rank(zn_device_rank(stream->dev));
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        const bool idle = stream->done == stream->submitted;
        while (stream->done == stream->submitted && !stream->stop)
            pthread_cond_wait(&stream->work_cond, &stream->lock);
        if (stream->done == stream->submitted)
            break;
        work *const next = &stream->slots[(stream->done + 1) % N_SLOTS];
        const bool skip = stream->poisoned;
        pthread_mutex_unlock(&stream->lock);
        if (stream->late && idle)
            zn_sys_sleep(LATE_SECONDS);
        const zinc_status status = skip ? ZINC_OK : next->fn(next->arg);
        if (status != ZINC_OK)
            poison(stream, status);
        pthread_mutex_lock(&stream->lock);
        stream->done++;
        pthread_cond_broadcast(&stream->done_cond);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* ---- making and destroying ---- */

static zinc_status init_sync(zn_stream *stream)
{
    pthread_condattr_t attr;
    bool ok = pthread_mutex_init(&stream->lock, NULL) == 0;
    stream->has_lock = ok;
    if (!ok || pthread_condattr_init(&attr) != 0)
        ZN_FAIL(ZINC_E_DEVICE, "the system gave no mutex for stream \"%s\"", stream->name);
    ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0;
    stream->has_work_cond = ok && pthread_cond_init(&stream->work_cond, &attr) == 0;
    stream->has_done_cond = ok && pthread_cond_init(&stream->done_cond, &attr) == 0;
    pthread_condattr_destroy(&attr);
    if (!stream->has_work_cond || !stream->has_done_cond)
        ZN_FAIL(ZINC_E_DEVICE, "the system gave no condition variable for stream \"%s\"",
                stream->name);
    return ZINC_OK;
}

static zinc_status create_stream(const zn_stream *kind, zn_stream **out)
{
    zinc_status status;
    zn_stream *stream = NULL;
    ZN_TRY(zn_alloc(&stream, sizeof *stream, "stream"));
    stream->dev = kind->dev;
    stream->name = kind->name;
    stream->inline_work = kind->inline_work;
    stream->late = kind->late;
    stream->is_compute = kind->is_compute;
    ZN_TRY_GOTO(init_sync(stream));
    if (!stream->inline_work) {
        const int rc = pthread_create(&stream->thread, NULL, run_stream, stream);
        if (rc != 0)
            ZN_FAIL_GOTO(ZINC_E_DEVICE, "no thread for stream \"%s\": %s", stream->name,
                         strerror(rc));
        stream->has_thread = true;
    }
    *out = stream;
    return ZINC_OK;
fail:
    zn_stream_destroy(stream);
    return status;
}

zinc_status zn_stream_create(zn_device *dev, const char *name, zn_stream **out)
{
    const zn_stream kind = {.dev = dev, .name = name};
    return create_stream(&kind, out);
}

zinc_status zn_stream_create_inline(zn_device *dev, const char *name, zn_stream **out)
{
    const zn_stream kind = {.dev = dev, .name = name, .inline_work = true};
    return create_stream(&kind, out);
}

zinc_status zn_stream_create_compute(zn_device *dev, bool inline_work, zn_stream **out)
{
    const zn_stream kind = {.dev = dev,
                            .name = "compute",
                            .inline_work = inline_work,
                            .late = !inline_work,
                            .is_compute = true};
    return create_stream(&kind, out);
}

void zn_stream_destroy(zn_stream *stream)
{
    if (!stream)
        return;
    if (stream->has_thread) {
        pthread_mutex_lock(&stream->lock);
        stream->stop = true;
        pthread_cond_broadcast(&stream->work_cond);
        pthread_mutex_unlock(&stream->lock);
        pthread_join(stream->thread, NULL);
    }
    if (stream->has_done_cond)
        pthread_cond_destroy(&stream->done_cond);
    if (stream->has_work_cond)
        pthread_cond_destroy(&stream->work_cond);
    if (stream->has_lock)
        pthread_mutex_destroy(&stream->lock);
    zn_free(stream);
}

zn_device *zn_stream_device(const zn_stream *stream)
{
    return stream->dev;
}

int zn_stream_n_threads(const zn_stream *stream)
{
    return stream->is_compute ? stream->dev->params.n_threads : 1;
}

/* ---- submitting ---- */

/* The error does not change once the stream is poisoned, so no lock is needed to read it. */
static zinc_status first_error(const zn_stream *stream)
{
    return stream->poisoned ? zn_error_restore(&stream->error) : ZINC_OK;
}

static zinc_status submit_inline(zn_stream *stream, zn_work_fn fn, const void *arg,
                                 size_t arg_bytes, int64_t *ticket)
{
    alignas(16) unsigned char copy[ZN_WORK_ARG_BYTES];
    if (arg_bytes)
        memcpy(copy, arg, arg_bytes);
    const zinc_status status = fn(copy);
    if (status != ZINC_OK)
        poison(stream, status);
    pthread_mutex_lock(&stream->lock);
    *ticket = ++stream->submitted;
    stream->done = stream->submitted;
    pthread_cond_broadcast(&stream->done_cond);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static zinc_status submit_queued(zn_stream *stream, zn_work_fn fn, const void *arg,
                                 size_t arg_bytes, int64_t *ticket)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->submitted - stream->done >= N_SLOTS)
        pthread_cond_wait(&stream->done_cond, &stream->lock);
    *ticket = stream->submitted + 1;
    work *const slot = &stream->slots[*ticket % N_SLOTS];
    slot->fn = fn;
    if (arg_bytes)
        memcpy(slot->arg, arg, arg_bytes);
    stream->submitted = *ticket;
    pthread_cond_signal(&stream->work_cond);
    pthread_mutex_unlock(&stream->lock);
    return ZINC_OK;
}

zinc_status zn_stream_submit(zn_stream *stream, zn_work_fn fn, const void *arg, size_t arg_bytes,
                             zn_event *event)
{
    int64_t ticket = 0;
    if (arg_bytes > ZN_WORK_ARG_BYTES)
        ZN_FAIL(ZINC_E_INVALID, "a work argument of %zu bytes does not fit in %d on stream \"%s\"",
                arg_bytes, ZN_WORK_ARG_BYTES, stream->name);
    ZN_TRY(first_error(stream));
    if (stream->inline_work)
        ZN_TRY(submit_inline(stream, fn, arg, arg_bytes, &ticket));
    else
        ZN_TRY(submit_queued(stream, fn, arg, arg_bytes, &ticket));
    if (event)
        *event = (zn_event){.stream = stream, .ticket = ticket};
    return ZINC_OK;
}

static zn_event point_of(zn_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    const zn_event last = {.stream = stream, .ticket = stream->submitted};
    pthread_mutex_unlock(&stream->lock);
    return last;
}

zinc_status zn_stream_point(zn_stream *stream, zn_event *event)
{
    *event = point_of(stream);
    return first_error(stream);
}

/* ---- waiting ---- */

static void spin_for(const zn_event *event)
{
    const double end = zn_sys_now() + SPIN_SECONDS;
    while (event->stream->done < event->ticket && !event->stream->poisoned && zn_sys_now() < end)
        ;
}

/* False if the deadline passed first. */
static bool sleep_for(const zn_event *event, int64_t timeout_ms)
{
    zn_stream *const stream = event->stream;
    const struct timespec end = zn_sys_deadline(timeout_ms);
    int rc = 0;
    pthread_mutex_lock(&stream->lock);
    while (stream->done < event->ticket && !stream->poisoned && rc != ETIMEDOUT) {
        if (timeout_ms < 0)
            pthread_cond_wait(&stream->done_cond, &stream->lock);
        else
            rc = pthread_cond_timedwait(&stream->done_cond, &stream->lock, &end);
    }
    const bool happened = stream->done >= event->ticket || stream->poisoned;
    pthread_mutex_unlock(&stream->lock);
    return happened;
}

zinc_status zn_event_wait(zn_event event, int64_t timeout_ms)
{
    if (!event.stream)
        return ZINC_OK;
    if (event.stream->done < event.ticket) {
        if (event.stream->dev->spin)
            spin_for(&event);
        if (event.stream->done < event.ticket && !sleep_for(&event, timeout_ms))
            ZN_FAIL(ZINC_E_TIMEOUT,
                    "rank %d: work %lld of stream \"%s\" was not done after %lld ms (%lld are)",
                    zn_device_rank(event.stream->dev), (long long)event.ticket, event.stream->name,
                    (long long)timeout_ms, (long long)event.stream->done);
    }
    return first_error(event.stream);
}

bool zn_event_done(zn_event event)
{
    return !event.stream || event.stream->done >= event.ticket || event.stream->poisoned;
}

/* Without a deadline of its own: the works of every stream end by theirs. */
static zinc_status wait_work(void *arg)
{
    const zn_event *const event = arg;
    return zn_event_wait(*event, -1);
}

zinc_status zn_stream_wait_event(zn_stream *stream, zn_event event)
{
    if (event.stream == stream || !event.stream)
        return first_error(stream);
    return zn_stream_submit(stream, wait_work, &event, sizeof event, NULL);
}

zinc_status zn_stream_sync(zn_stream *stream, int64_t timeout_ms)
{
    return zn_event_wait(point_of(stream), timeout_ms);
}

void zn_device_link_wait(zn_device *dev, double since, int64_t n_bytes)
{
    const double bandwidth = dev->params.link_bytes_per_s;
    const double end =
        bandwidth > 0 ? since + dev->params.link_latency_s + (double)n_bytes / bandwidth : since;
    for (double left; (left = end - zn_sys_now()) > 0;)
        zn_sys_sleep(left);
}

typedef struct copy_args {
    void *dst;
    const void *src;
    size_t n_bytes;
    zn_device *dev;
    bool over_link;
} copy_args;

static zinc_status copy_work(void *arg)
{
    const copy_args *const copy = arg;
    const double start = zn_sys_now();
    zn_device_memory_open(copy->dev);
    copy->dev->ops->raw_copy(copy->dst, copy->src, copy->n_bytes);
    zn_device_memory_close(copy->dev);
    if (copy->over_link)
        zn_device_link_wait(copy->dev, start, (int64_t)copy->n_bytes);
    return ZINC_OK;
}

zinc_status zn_device_copy(zn_stream *stream, void *dst, const void *src, size_t n_bytes,
                           zn_event *event)
{
    zn_device *const dev = stream->dev;
    const copy_args copy = {.dst = dst,
                            .src = src,
                            .n_bytes = n_bytes,
                            .dev = dev,
                            .over_link = stream == dev->link[0] || stream == dev->link[1]};
    return zn_stream_submit(stream, copy_work, &copy, sizeof copy, event);
}

zinc_status zn_device_copy_now(zn_device *dev, void *dst, const void *src, size_t n_bytes)
{
    ZN_TRY(zn_device_copy(dev->compute, dst, src, n_bytes, NULL));
    return zn_stream_sync(dev->compute, -1);
}
