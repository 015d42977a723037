/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

#define HEADER_BYTES 12
#define MAX_FRAME_BYTES (256u << 20)

static void put_u32(unsigned char *bytes, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(x >> (8 * i));
}

static uint32_t get_u32(const char *bytes)
{
    uint32_t x = 0;
    for (int i = 0; i < 4; i++)
        x |= (uint32_t)(unsigned char)bytes[i] << (8 * i);
    return x;
}

/* Calls on it do not wait, and programs started from here do not have it. */
static void prepare(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0)
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void zn_wire_open(zn_wire *wire, int in, int out)
{
    *wire = (zn_wire){.in = in, .out = out, .heard = zn_sys_now()};
    prepare(in);
    prepare(out);
}

void zn_wire_close(zn_wire *wire)
{
    if (wire->in >= 0)
        close(wire->in);
    if (wire->out >= 0 && wire->out != wire->in)
        close(wire->out);
    zn_buf_fini(&wire->received);
    zn_buf_fini(&wire->pending);
    *wire = (zn_wire){.in = -1, .out = -1, .closed = true};
}

zinc_status zn_wire_greet(zn_wire *wire)
{
    return zn_buf_puts(&wire->pending, ZN_WIRE_MAGIC);
}

zinc_status zn_wire_send(zn_wire *wire, int type, int stream, int rank, const void *data,
                         size_t n_bytes)
{
    unsigned char header[HEADER_BYTES] = {(unsigned char)type, (unsigned char)stream};
    if (wire->closed)
        return ZINC_OK;
    put_u32(header + 4, (uint32_t)rank);
    put_u32(header + 8, (uint32_t)n_bytes);
    ZN_TRY(zn_buf_append(&wire->pending, header, sizeof header));
    return n_bytes ? zn_buf_append(&wire->pending, data, n_bytes) : ZINC_OK;
}

zinc_status zn_wire_beat(zn_wire *wire, double now)
{
    if (now - wire->sent < ZN_HEARTBEAT_S || wire->pending.n > 0)
        return ZINC_OK;
    wire->sent = now;
    return zn_wire_send(wire, ZN_FRAME_HEARTBEAT, 0, 0, NULL, 0);
}

/* Drop the first n bytes of a buffer. */
static void drop(zn_buf *buf, size_t n)
{
    memmove(buf->data, buf->data + n, buf->n - n);
    buf->n -= n;
    buf->data[buf->n] = '\0';
}

void zn_wire_flush(zn_wire *wire)
{
    size_t done = 0;
    while (!wire->closed && done < wire->pending.n) {
        const ssize_t n = write(wire->out, wire->pending.data + done, wire->pending.n - done);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        else
            wire->closed = true;
    }
    if (wire->closed)
        wire->pending.n = 0;
    else if (done)
        drop(&wire->pending, done);
}

zinc_status zn_wire_fill(zn_wire *wire)
{
    char bytes[16384];
    if (wire->read_at > 0) {
        drop(&wire->received, wire->read_at);
        wire->read_at = 0;
    }
    for (int i = 0; i < 16; i++) {
        const ssize_t n = read(wire->in, bytes, sizeof bytes);
        if (n > 0) {
            wire->heard = zn_sys_now();
            ZN_TRY(zn_buf_append(&wire->received, bytes, (size_t)n));
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            wire->closed = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
            break;
        }
    }
    return ZINC_OK;
}

void zn_wire_unread(zn_wire *wire, const zn_frame *frame)
{
    wire->read_at -= HEADER_BYTES + frame->n_bytes;
}

/* Skip what stands before the magic. A remote shell may greet too. */
static void find_greeting(zn_wire *wire)
{
    const size_t n_magic = sizeof ZN_WIRE_MAGIC - 1;
    const zn_buf *r = &wire->received;
    for (; wire->read_at + n_magic <= r->n; wire->read_at++)
        if (memcmp(r->data + wire->read_at, ZN_WIRE_MAGIC, n_magic) == 0) {
            wire->read_at += n_magic;
            wire->greeted = true;
            return;
        }
}

zinc_status zn_wire_next(zn_wire *wire, zn_frame *frame, bool *got)
{
    *got = false;
    if (!wire->greeted)
        find_greeting(wire);
    const size_t left = wire->received.n - wire->read_at;
    if (!wire->greeted || left < HEADER_BYTES)
        return ZINC_OK;
    const char *header = wire->received.data + wire->read_at;
    const size_t n_bytes = get_u32(header + 8);
    if (n_bytes > MAX_FRAME_BYTES)
        ZN_FAIL(ZINC_E_FORMAT,
                "launcher and agent disagree: a frame of %zu bytes; is the same "
                "zinc on all hosts?",
                n_bytes);
    if (left < HEADER_BYTES + n_bytes)
        return ZINC_OK;
    *frame = (zn_frame){.type = header[0],
                        .stream = header[1],
                        .rank = (int)get_u32(header + 4),
                        .data = header + HEADER_BYTES,
                        .n_bytes = n_bytes};
    wire->read_at += HEADER_BYTES + n_bytes;
    *got = true;
    return ZINC_OK;
}
