/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h — what ran when: spans of a run, written as a Chrome trace (chrome://tracing, Perfetto).
 *
 * One trace serves all ranks of a process; a rank is a process of the picture, with a lane for each
 * thread that does its work. Spans are kept in a table of fixed size, those that come after it is
 * full are counted. A device carries the trace to whoever works on it.
 * Threads: spans from any thread. Layer: device (may use base). */
#ifndef ZN_DEVICE_TRACE_H
#define ZN_DEVICE_TRACE_H

#include <stdint.h>

#include "device/device.h"

typedef struct zn_trace zn_trace;

typedef enum zn_trace_lane {
    ZN_TRACE_PHASES, /* of a step: data, forward and backward, … */
    ZN_TRACE_UNITS,  /* parameters in use: from the gather's end to the release */
    ZN_TRACE_COMM,   /* the communication stream */
    ZN_TRACE_N_LANES,
} zn_trace_lane;

/** Make a trace with room for max_spans. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_trace_create(int64_t max_spans, zn_trace **out);
void zn_trace_destroy(zn_trace *trace);

/** Note a span, in zn_sys_now() seconds. `kind` is a literal; "kind what" is its name, of which the
 *  first 47 bytes are kept; what may be NULL. trace NULL: nothing. */
void zn_trace_span(zn_trace *trace, int rank, zn_trace_lane lane, const char *kind,
                   const char *what, double start, double end);

/** Write the spans that are complete. Errors: E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_trace_write(const zn_trace *trace, const char *path);
/** Spans that found no room. */
int64_t zn_trace_n_lost(const zn_trace *trace);

/** From now on work on this device is traced; NULL: no more. Borrowed. Before its comm is opened.
 */
void zn_device_set_trace(zn_device *dev, zn_trace *trace);
/** NULL if there is none. */
zn_trace *zn_device_trace(const zn_device *dev);

#endif
