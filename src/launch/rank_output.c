/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launcher_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void zn_sink_flush(zn_sink *sink, short revents)
{
    if (revents & (POLLERR | POLLNVAL)) { /* the reader is gone; the ranks go on */
        sink->pending.n = 0;
        return;
    }
    if (!(revents & POLLOUT) || sink->pending.n == 0)
        return;
    /* what poll() promises to take without blocking is PIPE_BUF bytes */
    const size_t n = sink->pending.n < 4096 ? sink->pending.n : 4096;
    const ssize_t done = write(sink->fd, sink->pending.data, n);
    if (done < 0 && errno != EINTR && errno != EAGAIN) {
        sink->pending.n = 0;
    } else if (done > 0) {
        sink->pending.n -= (size_t)done;
        memmove(sink->pending.data, sink->pending.data + done, sink->pending.n + 1);
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
