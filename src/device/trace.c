/* SPDX-License-Identifier: Apache-2.0 */
#include "device/trace.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/sys.h"
#include "device/device_internal.h"

typedef struct span {
    double start, end;
    int rank;
    zn_trace_lane lane;
    char name[48];
    _Atomic bool whole; /* the rest is written */
} span;

struct zn_trace {
    double zero; /* zn_sys_now() when it was made */
    int64_t max_spans;
    _Atomic int64_t n_spans; /* asked for; the table has the first max_spans */
    span *spans;
};

zinc_status zn_trace_create(int64_t max_spans, zn_trace **out)
{
    zinc_status status;
    zn_trace *trace = NULL;
    ZN_TRY(zn_alloc(&trace, sizeof *trace, "trace"));
    ZN_TRY_GOTO(zn_alloc_array(&trace->spans, (size_t)max_spans, sizeof(span), "spans of a trace"));
    trace->max_spans = max_spans;
    trace->zero = zn_sys_now();
    *out = trace;
    return ZINC_OK;
fail:
    zn_trace_destroy(trace);
    return status;
}

void zn_trace_destroy(zn_trace *trace)
{
    if (!trace)
        return;
    zn_free(trace->spans);
    zn_free(trace);
}

void zn_trace_span(zn_trace *trace, int rank, zn_trace_lane lane, const char *kind,
                   const char *what, double start, double end)
{
    if (!trace)
        return;
    const int64_t i = atomic_fetch_add(&trace->n_spans, 1);
    if (i >= trace->max_spans)
        return;
    span *s = &trace->spans[i];
    s->start = start - trace->zero;
    s->end = end - trace->zero;
    s->rank = rank;
    s->lane = lane;
    snprintf(s->name, sizeof s->name, "%s%s%s", kind, what && *what ? " " : "", what ? what : "");
    s->whole = true;
}

int64_t zn_trace_n_lost(const zn_trace *trace)
{
    const int64_t n = trace->n_spans;
    return n > trace->max_spans ? n - trace->max_spans : 0;
}

static zinc_status append_names(const zn_trace *trace, int64_t n, zn_buf *out)
{
    static const char *const lanes[ZN_TRACE_N_LANES] = {"phases", "units in use", "communication"};
    int n_ranks = 0;
    for (int64_t i = 0; i < n; i++)
        if (trace->spans[i].whole && trace->spans[i].rank >= n_ranks)
            n_ranks = trace->spans[i].rank + 1;
    for (int r = 0; r < n_ranks; r++) {
        ZN_TRY(zn_buf_printf(out,
                             "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":"
                             "{\"name\":\"rank %d\"}},\n",
                             r, r));
        for (int lane = 0; lane < ZN_TRACE_N_LANES; lane++)
            ZN_TRY(zn_buf_printf(out,
                                 "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
                                 "\"args\":{\"name\":\"%s\"}},\n",
                                 r, lane, lanes[lane]));
    }
    return ZINC_OK;
}

static zinc_status append_span(const span *s, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "{\"ph\":\"X\",\"name\":"));
    ZN_TRY(zn_json_append_string(out, s->name, strlen(s->name)));
    return zn_buf_printf(out, ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f},\n", s->rank,
                         (int)s->lane, s->start * 1e6, (s->end - s->start) * 1e6);
}

zinc_status zn_trace_write(const zn_trace *trace, const char *path)
{
    zinc_status status;
    zn_buf text = {0};
    const int64_t n = trace->n_spans < trace->max_spans ? trace->n_spans : trace->max_spans;
    ZN_TRY_GOTO(zn_buf_puts(&text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"));
    ZN_TRY_GOTO(append_names(trace, n, &text));
    for (int64_t i = 0; i < n; i++)
        if (trace->spans[i].whole)
            ZN_TRY_GOTO(append_span(&trace->spans[i], &text));
    /* a last event without a comma behind it */
    ZN_TRY_GOTO(zn_buf_printf(&text,
                              "{\"ph\":\"M\",\"name\":\"lost_spans\",\"pid\":0,\"args\":"
                              "{\"spans\":%lld}}\n]}\n",
                              (long long)zn_trace_n_lost(trace)));
    ZN_TRY_GOTO(zn_fs_write_atomic(path, text.data, text.n));
fail:
    zn_buf_fini(&text);
    return status;
}

void zn_device_set_trace(zn_device *dev, zn_trace *trace)
{
    dev->trace = trace;
}

zn_trace *zn_device_trace(const zn_device *dev)
{
    return dev->trace;
}
