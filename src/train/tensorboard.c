/* SPDX-License-Identifier: Apache-2.0 */
#include "train/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5 };
enum { EVENT_SESSION_LOG = 7, SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };

#define SESSION_LOG_START "\x08\x01" /* {1 status: START} */
#define MAX_SAME_SECOND 1000         /* files that one folder gets within a second */

struct zn_tensorboard {
    int fd;
    int64_t n_bytes;
    char *path;
    uint32_t crc_table[256];
    zn_buf value, summary, event, record; /* kept, so that writing does not allocate for long */
};

/* ---- records ---- */

/* CRC-32C (Castagnoli), reflected: polynomial 0x1EDC6F41 read backwards. */
static void make_crc_table(uint32_t *table)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        table[i] = crc;
    }
}

/* The mask keeps a CRC of bytes that hold CRCs themselves from being degenerate. */
static uint32_t masked_crc(const uint32_t *table, const char *bytes, size_t n)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++)
        crc = table[(crc ^ (unsigned char)bytes[i]) & 0xFF] ^ (crc >> 8);
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

static zinc_status put_fixed(zn_buf *out, uint64_t value, int n_bytes)
{
    unsigned char bytes[8];
    for (int i = 0; i < n_bytes; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    return zn_buf_append(out, bytes, (size_t)n_bytes);
}

static zinc_status write_record(zn_tensorboard *tb)
{
    zn_buf *record = &tb->record;
    record->n = 0;
    ZN_TRY(put_fixed(record, tb->event.n, 8));
    ZN_TRY(put_fixed(record, masked_crc(tb->crc_table, record->data, 8), 4));
    ZN_TRY(zn_buf_append(record, tb->event.data, tb->event.n));
    ZN_TRY(put_fixed(record, masked_crc(tb->crc_table, tb->event.data, tb->event.n), 4));
    ZN_TRY(zn_fs_pwrite_all(tb->fd, record->data, record->n, tb->n_bytes, tb->path));
    tb->n_bytes += (int64_t)record->n;
    return ZINC_OK;
}

/* ---- protobuf ---- */

static zinc_status put_varint(zn_buf *out, uint64_t value)
{
    unsigned char bytes[10];
    size_t n = 0;
    do {
        bytes[n] = (unsigned char)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        value >>= 7;
        n++;
    } while (value > 0);
    return zn_buf_append(out, bytes, n);
}

static zinc_status put_key(zn_buf *out, int field, int wire)
{
    return put_varint(out, (uint64_t)field << 3 | (uint64_t)wire);
}

static zinc_status put_bytes(zn_buf *out, int field, const char *bytes, size_t n)
{
    ZN_TRY(put_key(out, field, WIRE_BYTES));
    ZN_TRY(put_varint(out, n));
    return zn_buf_append(out, bytes, n);
}

static zinc_status put_double(zn_buf *out, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    ZN_TRY(put_key(out, field, WIRE_64));
    return put_fixed(out, bits, 8);
}

static zinc_status put_float(zn_buf *out, int field, double value)
{
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    ZN_TRY(put_key(out, field, WIRE_32));
    return put_fixed(out, bits, 4);
}

static double wall_time(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* One event whose content is field `what` with these bytes. */
static zinc_status write_event(zn_tensorboard *tb, int64_t step, int what, const char *bytes,
                               size_t n)
{
    tb->event.n = 0;
    ZN_TRY(put_double(&tb->event, EVENT_WALL_TIME, wall_time()));
    if (step != 0) {
        ZN_TRY(put_key(&tb->event, EVENT_STEP, WIRE_VARINT));
        ZN_TRY(put_varint(&tb->event, (uint64_t)step));
    }
    ZN_TRY(put_bytes(&tb->event, what, bytes, n));
    return write_record(tb);
}

/* ---- the file ---- */

static zinc_status open_new(const char *dir, zn_tensorboard *tb)
{
    char host[256] = "";
    const long long now = (long long)time(NULL);
    if (gethostname(host, sizeof host - 1) != 0 || !*host)
        memcpy(host, "localhost", sizeof "localhost");
    for (int i = 0; i < MAX_SAME_SECOND; i++) {
        zn_free(tb->path);
        tb->path = NULL;
        if (i == 0)
            ZN_TRY(zn_format(&tb->path, "%s/events.out.tfevents.%lld.%s", dir, now, host));
        else
            ZN_TRY(zn_format(&tb->path, "%s/events.out.tfevents.%lld.%s.%d", dir, now, host, i));
        tb->fd = open(tb->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (tb->fd >= 0)
            return ZINC_OK;
        if (errno != EEXIST)
            break;
    }
    ZN_FAIL(ZINC_E_IO, "tensorboard.output_path: cannot make %s: %s", tb->path, strerror(errno));
}

zinc_status zn_tensorboard_open(const char *dir, int64_t purge_from, zn_tensorboard **out)
{
    zinc_status status;
    zn_tensorboard *tb = NULL;
    static const char version[] = "brain.Event:2";
    ZN_TRY(zn_alloc(&tb, sizeof *tb, "the TensorBoard writer"));
    tb->fd = -1;
    make_crc_table(tb->crc_table);
    ZN_TRY_GOTO(zn_fs_mkdirs(dir));
    ZN_TRY_GOTO(open_new(dir, tb));
    ZN_TRY_GOTO(write_event(tb, 0, EVENT_FILE_VERSION, version, sizeof version - 1));
    if (purge_from > 0)
        ZN_TRY_GOTO(write_event(tb, purge_from, EVENT_SESSION_LOG, SESSION_LOG_START,
                                sizeof SESSION_LOG_START - 1));
    *out = tb;
    return ZINC_OK;
fail:
    zn_tensorboard_close(tb);
    return status;
}

zinc_status zn_tensorboard_write(zn_tensorboard *tb, int64_t step, const char *const *tags,
                                 const double *values, int n)
{
    tb->summary.n = 0;
    for (int i = 0; i < n; i++) {
        tb->value.n = 0;
        ZN_TRY(put_bytes(&tb->value, VALUE_TAG, tags[i], strlen(tags[i])));
        ZN_TRY(put_float(&tb->value, VALUE_SIMPLE, values[i]));
        ZN_TRY(put_bytes(&tb->summary, SUMMARY_VALUE, tb->value.data, tb->value.n));
    }
    return write_event(tb, step, EVENT_SUMMARY, tb->summary.data, tb->summary.n);
}

void zn_tensorboard_close(zn_tensorboard *tb)
{
    if (!tb)
        return;
    if (tb->fd >= 0 && close(tb->fd) != 0)
        zn_warn("train", "closing %s: %s", tb->path, strerror(errno));
    zn_buf_fini(&tb->value);
    zn_buf_fini(&tb->summary);
    zn_buf_fini(&tb->event);
    zn_buf_fini(&tb->record);
    zn_free(tb->path);
    zn_free(tb);
}
