/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launcher_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

size_t zn_sink_left(const zn_sink *sink)
{
    return sink->pending.n - sink->at;
}

void zn_sink_flush(zn_sink *sink, short revents)
{
    const size_t left = zn_sink_left(sink);
    if (left > 0 && (revents & POLLOUT)) {
        /* what poll() promises to take without blocking is PIPE_BUF bytes */
        const ssize_t done =
            write(sink->fd, sink->pending.data + sink->at, left < 4096 ? left : 4096);
        if (done < 0 && errno != EINTR && errno != EAGAIN)
            sink->at = sink->pending.n;
        else if (done > 0)
            sink->at += (size_t)done;
    } else if (revents & (POLLERR | POLLNVAL)) { /* the reader is gone; the ranks go on */
        sink->at = sink->pending.n;
    }
    if (sink->at > 65536 || sink->at == sink->pending.n) { /* seldom: it moves what is left */
        sink->pending.n -= sink->at;
        if (sink->pending.n > 0)
            memmove(sink->pending.data, sink->pending.data + sink->at, sink->pending.n);
        sink->at = 0;
    }
}

static zinc_status remember(zn_rank_output *o, const char *line, size_t n)
{
    char *copy;
    const size_t kept = n < 2000 ? n : 2000;
    ZN_TRY(zn_alloc(&copy, kept + 1, "a line of output"));
    memcpy(copy, line, kept);
    const int slot = o->n_lines++ % ZN_LAST_LINES;
    zn_free(o->last[slot]);
    o->last[slot] = copy;
    return ZINC_OK;
}

static zinc_status pass_line(zn_rank_output *o, zn_buf *line, char end, zn_sink *sink)
{
    if (end == '\r' && o->rank != 0) {
        line->n = 0;
        return ZINC_OK;
    }
    if (o->prefixed)
        ZN_TRY(zn_buf_printf(&sink->pending, "[%s:%d] ", o->host, o->rank));
    ZN_TRY(zn_buf_append(&sink->pending, line->n ? line->data : "", line->n));
    ZN_TRY(zn_buf_append(&sink->pending, &end, 1));
    if (end == '\n')
        ZN_TRY(remember(o, line->n ? line->data : "", line->n));
    line->n = 0;
    return ZINC_OK;
}

/* One rank: bytes pass as they are; lines are kept for the end only. */
static zinc_status take_plain(zn_rank_output *o, zn_buf *line, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] == '\n' || bytes[i] == '\r') {
            if (bytes[i] == '\n')
                ZN_TRY(remember(o, line->n ? line->data : "", line->n));
            line->n = 0;
        } else if (line->n < 2000) {
            ZN_TRY(zn_buf_append(line, &bytes[i], 1));
        }
    return ZINC_OK;
}

zinc_status zn_rank_output_take(zn_rank_output *o, int stream, const char *bytes, size_t n,
                                zn_sink *sink)
{
    zn_buf *line = &o->line[stream - 1];
    if (!o->prefixed) {
        ZN_TRY(zn_buf_append(&sink->pending, bytes, n));
        return take_plain(o, line, bytes, n);
    }
    while (n > 0) {
        if (line->n > 0 && line->data[line->n - 1] == '\r' && bytes[0] != '\n') {
            line->n--; /* a carriage return that no line feed followed ends a progress line */
            ZN_TRY(pass_line(o, line, '\r', sink));
        }
        size_t k = 0;
        while (k < n && bytes[k] != '\n' && bytes[k] != '\r')
            k++;
        const bool ended = k < n;
        ZN_TRY(zn_buf_append(line, bytes, k + (ended && bytes[k] == '\r')));
        if (ended && bytes[k] == '\n')
            ZN_TRY(pass_line(o, line, '\n', sink));
        k += ended;
        bytes += k;
        n -= k;
    }
    return ZINC_OK;
}

zinc_status zn_rank_output_end(zn_rank_output *o, int stream, zn_sink *sink)
{
    zn_buf *line = &o->line[stream - 1];
    if (line->n == 0)
        return ZINC_OK;
    if (o->prefixed)
        return pass_line(o, line, '\n', sink);
    const zinc_status status = remember(o, line->data, line->n);
    line->n = 0;
    return status;
}

zinc_status zn_rank_output_last(const zn_rank_output *o, zn_buf *out)
{
    const int first = o->n_lines > ZN_LAST_LINES ? o->n_lines - ZN_LAST_LINES : 0;
    for (int i = first; i < o->n_lines; i++)
        ZN_TRY(zn_buf_printf(out, "\n    %s", o->last[i % ZN_LAST_LINES]));
    return ZINC_OK;
}

void zn_rank_output_fini(zn_rank_output *o)
{
    for (int i = 0; i < ZN_LAST_LINES; i++)
        zn_free(o->last[i]);
    zn_buf_fini(&o->line[0]);
    zn_buf_fini(&o->line[1]);
    *o = (zn_rank_output){0};
}
