/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_part.c — one rank's part of a checkpoint: a stream of floats into a safetensors file,
 * and the JSON that says what they are. */
#include "ckpt/checkpoint_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "ckpt/checksum.h"

/* Taken at once: two checksums and a copy find it in the cache. */
#define CACHED_ELEMS ((int64_t)1 << 14)

struct zn_part {
    zn_part_params p;
    char file_name[ZN_CKPT_NAME_BYTES], json_name[ZN_CKPT_NAME_BYTES];
    zn_bulk_file *data;
    int64_t n_bytes; /* of the file */
    zn_checksum file_sum, range_sum;
    int range;          /* that is being written */
    int64_t range_done; /* elements of it */
};

static const char *what_name(const zn_part_params *p, int what)
{
    return what == ZN_CKPT_MASTER ? "master" : p->state_names[what];
}

/* "PARAM@FIRST", "STATE/PARAM@FIRST" */
static zinc_status append_tensor(const zn_part *part, const zn_ckpt_range *r, int64_t begin,
                                 zn_buf *out)
{
    const char *param = part->p.list->specs[r->param].name;
    zn_buf name = {0};
    zinc_status status;
    if (r->what != ZN_CKPT_MASTER)
        ZN_TRY_GOTO(zn_buf_printf(&name, "%s/", part->p.state_names[r->what]));
    ZN_TRY_GOTO(zn_buf_printf(&name, "%s@%" PRId64, param, r->first));
    ZN_TRY_GOTO(zn_json_append_string(out, name.data, name.n));
    ZN_TRY_GOTO(zn_buf_printf(out,
                              ":{\"dtype\":\"F32\",\"shape\":[%" PRId64
                              "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}",
                              r->count, begin, begin + 4 * r->count));
    status = ZINC_OK;
fail:
    zn_buf_fini(&name);
    return status;
}

/* The 8-byte length, then the JSON padded with blanks so that the data begin where a direct write
 * can. */
static zinc_status build_header(zn_part *part, zn_buf *out)
{
    int64_t at = 0;
    ZN_TRY(zn_buf_append(out, "\0\0\0\0\0\0\0\0", 8));
    ZN_TRY(zn_buf_puts(out, "{"));
    for (int i = 0; i < part->p.n_ranges; i++) {
        ZN_TRY(zn_buf_puts(out, i ? "," : ""));
        ZN_TRY(append_tensor(part, &part->p.ranges[i], at, out));
        at += 4 * part->p.ranges[i].count;
    }
    ZN_TRY(zn_buf_puts(out, "}"));
    while (out->n % ZN_BULK_ALIGN != 0)
        ZN_TRY(zn_buf_puts(out, " "));
    for (int i = 0; i < 8; i++)
        out->data[i] = (char)((uint64_t)(out->n - 8) >> (8 * i));
    part->n_bytes = (int64_t)out->n + at;
    at = (int64_t)out->n;
    for (int i = 0; i < part->p.n_ranges; i++) {
        part->p.ranges[i].offset = at;
        at += 4 * part->p.ranges[i].count;
    }
    return ZINC_OK;
}

static zinc_status open_file(zn_part *part)
{
    zinc_status status;
    zn_buf header = {0};
    char *path = NULL;
    ZN_TRY_GOTO(zn_fs_join(part->p.dir, part->file_name, &path));
    ZN_TRY_GOTO(build_header(part, &header));
    ZN_TRY_GOTO(zn_bulk_create(path, part->n_bytes, part->p.progress, part->p.ctx, &part->data));
    zn_checksum_update(&part->file_sum, header.data, header.n);
    ZN_TRY_GOTO(zn_bulk_write(part->data, header.data, header.n));
    status = ZINC_OK;
fail:
    zn_buf_fini(&header);
    zn_free(path);
    return status;
}

zinc_status zn_part_create(const zn_part_params *params, zn_part **out)
{
    zinc_status status;
    zn_part *part = NULL;
    ZN_TRY(zn_alloc(&part, sizeof *part, "a checkpoint part"));
    part->p = *params;
    snprintf(part->file_name, sizeof part->file_name, "shard-%05d-of-%05d.safetensors",
             params->rank, params->n_ranks);
    snprintf(part->json_name, sizeof part->json_name, "shard-%05d-of-%05d.json", params->rank,
             params->n_ranks);
    zn_checksum_init(&part->file_sum);
    zn_checksum_init(&part->range_sum);
    ZN_TRY_GOTO(open_file(part));
    *out = part;
    return ZINC_OK;
fail:
    zn_part_destroy(part);
    return status;
}

void zn_part_destroy(zn_part *part)
{
    if (!part)
        return;
    zn_bulk_destroy(part->data);
    zn_free(part);
}

/* Both checksums of the next n elements, which are not more than the range has left. */
static void add_to_sums(zn_part *part, const float *values, int64_t n)
{
    zn_ckpt_range *r = &part->p.ranges[part->range];
    zn_checksum_update(&part->range_sum, values, (size_t)n * sizeof *values);
    zn_checksum_update(&part->file_sum, values, (size_t)n * sizeof *values);
    part->range_done += n;
    if (part->range_done < r->count)
        return;
    r->checksum = zn_checksum_value(&part->range_sum);
    zn_checksum_init(&part->range_sum);
    part->range++;
    part->range_done = 0;
}

/* How many of the next n elements to take at once. */
static int64_t next_elems(const zn_part *part, int64_t n)
{
    ZN_ASSERT(part->range < part->p.n_ranges);
    const int64_t left = part->p.ranges[part->range].count - part->range_done;
    const int64_t most = left < CACHED_ELEMS ? left : CACHED_ELEMS;
    return n < most ? n : most;
}

zinc_status zn_part_write(zn_part *part, const float *values, int64_t n)
{
    while (n > 0) {
        const int64_t m = next_elems(part, n);
        ZN_TRY(zn_bulk_write(part->data, values, (size_t)m * sizeof *values));
        add_to_sums(part, values, m);
        values += m;
        n -= m;
    }
    return ZINC_OK;
}

zinc_status zn_part_write_kept(zn_part *part, const float *values, int64_t n)
{
    ZN_ASSERT(part->range == 0 && part->range_done == 0);
    ZN_TRY(zn_bulk_write_kept(part->data, values));
    while (n > 0) {
        const int64_t m = next_elems(part, n);
        add_to_sums(part, values, m);
        values += m;
        n -= m;
    }
    return ZINC_OK;
}

static zinc_status append_ranges(const zn_part *part, zn_buf *out)
{
    for (int i = 0; i < part->p.n_ranges; i++) {
        const zn_ckpt_range *r = &part->p.ranges[i];
        const char *param = part->p.list->specs[r->param].name;
        ZN_TRY(zn_buf_puts(out, i ? ",\n{\"parameter\":" : "\n{\"parameter\":"));
        ZN_TRY(zn_json_append_string(out, param, strlen(param)));
        ZN_TRY(zn_buf_printf(out,
                             ",\"what\":\"%s\",\"first\":%" PRId64 ",\"count\":%" PRId64
                             ",\"offset\":%" PRId64 ",\"checksum\":\"%016" PRIx64 "\"}",
                             what_name(&part->p, r->what), r->first, r->count, r->offset,
                             r->checksum));
    }
    return ZINC_OK;
}

static zinc_status write_json(const zn_part *part, zn_ckpt_file *out)
{
    zinc_status status;
    zn_buf text = {0};
    char *path = NULL;
    ZN_TRY_GOTO(zn_fs_join(part->p.dir, part->json_name, &path));
    ZN_TRY_GOTO(zn_buf_printf(&text,
                              "{\"format\":\"%s\",\"version\":%d,\"rank\":%d,\"n_ranks\":%d,"
                              "\"file\":\"%s\",\"ranges\":[",
                              ZN_CKPT_PART_FORMAT, ZN_CKPT_VERSION, part->p.rank, part->p.n_ranks,
                              part->file_name));
    ZN_TRY_GOTO(append_ranges(part, &text));
    ZN_TRY_GOTO(zn_buf_puts(&text, "]}\n"));
    ZN_TRY_GOTO(zn_fs_write_atomic(path, text.data, text.n));
    snprintf(out->name, sizeof out->name, "%s", part->json_name);
    out->n_bytes = (int64_t)text.n;
    out->checksum = zn_checksum_of(text.data, text.n);
    status = ZINC_OK;
fail:
    zn_buf_fini(&text);
    zn_free(path);
    return status;
}

zinc_status zn_part_finish(zn_part *part, zn_ckpt_file files[2])
{
    ZN_ASSERT(part->range == part->p.n_ranges);
    memset(files, 0, 2 * sizeof *files);
    ZN_TRY(zn_bulk_finish(part->data));
    snprintf(files[0].name, sizeof files[0].name, "%s", part->file_name);
    files[0].n_bytes = part->n_bytes;
    files[0].checksum = zn_checksum_value(&part->file_sum);
    return write_json(part, &files[1]);
}
