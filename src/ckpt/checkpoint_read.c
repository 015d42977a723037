/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_read.c — the parts of a checkpoint as whole parameters and states, read by range. */
#include "ckpt/checkpoint_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/checksum.h"

/* ---- opening ---- */

static bool is_part_json(const char *name)
{
    const size_t n = strlen(name);
    return strncmp(name, "shard-", 6) == 0 && n > 5 && strcmp(name + n - 5, ".json") == 0;
}

static int by_place(const void *a, const void *b)
{
    const zn_ckpt_range *x = &((const zn_stored *)a)->r, *y = &((const zn_stored *)b)->r;
    if (x->param != y->param)
        return x->param < y->param ? -1 : 1;
    if (x->what != y->what)
        return x->what < y->what ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

const char *zn_ckpt_what(const zn_ckpt *ckpt, int what)
{
    return what == ZN_CKPT_MASTER ? "master" : ckpt->manifest.meta.state_names[what];
}

static int find_what(const zn_ckpt *ckpt, const char *name)
{
    for (int k = 0; k < ckpt->manifest.meta.n_states; k++)
        if (strcmp(name, ckpt->manifest.meta.state_names[k]) == 0)
            return k;
    return strcmp(name, "master") == 0 ? ZN_CKPT_MASTER : -2;
}

static zinc_status parse_range(const zn_ckpt *ckpt, const json_t *item, const char *where,
                               zn_stored *out)
{
    const char *param, *what;
    zn_ckpt_range *r = &out->r;
    const zn_part_file *file = &ckpt->parts[out->file];
    ZN_TRY(zn_member_text(item, "parameter", where, &param));
    ZN_TRY(zn_member_text(item, "what", where, &what));
    ZN_TRY(zn_member_int(item, "first", where, &r->first));
    ZN_TRY(zn_member_int(item, "count", where, &r->count));
    ZN_TRY(zn_member_int(item, "offset", where, &r->offset));
    ZN_TRY(zn_member_hex(item, "checksum", where, &r->checksum));
    r->param = zn_ckpt_find(ckpt, param);
    r->what = find_what(ckpt, what);
    if (r->param < 0 || r->what < ZN_CKPT_MASTER)
        ZN_FAIL(ZINC_E_FORMAT, "%s: %s of %.200s is not in the manifest", where, what, param);
    const int64_t n_elems = zn_ckpt_n_elems(ckpt, r->param);
    if (r->first < 0 || r->count < 1 || r->count > n_elems || r->first > n_elems - r->count)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: %.200s has %" PRId64 " elements, not [%" PRId64 ", +%" PRId64 ")", where,
                param, n_elems, r->first, r->count);
    if (r->offset < 0 || (size_t)r->offset > file->map.n_bytes ||
        (size_t)r->count > (file->map.n_bytes - (size_t)r->offset) / 4)
        ZN_FAIL(ZINC_E_FORMAT, "%s: %s of %.200s [%" PRId64 ", +%" PRId64 ") lies outside %s",
                where, what, param, r->first, r->count, file->path);
    return ZINC_OK;
}

static zinc_status add_ranges(zn_ckpt *ckpt, const json_t *root, const char *where)
{
    const json_t *ranges = json_object_get(root, "ranges");
    const size_t n = json_array_size(ranges);
    if (!json_is_array(ranges))
        ZN_FAIL(ZINC_E_FORMAT, "%s: has no list of ranges", where);
    ZN_TRY(zn_realloc_array(&ckpt->stored, (size_t)ckpt->n_stored + n + 1, sizeof *ckpt->stored,
                            "checkpoint ranges"));
    for (size_t i = 0; i < n; i++) {
        zn_stored *s = &ckpt->stored[ckpt->n_stored];
        *s = (zn_stored){.file = ckpt->n_parts - 1};
        ZN_TRY(parse_range(ckpt, json_array_get(ranges, i), where, s));
        ckpt->n_stored++;
    }
    return ZINC_OK;
}

static zinc_status map_data(zn_ckpt *ckpt, const json_t *root, const char *where)
{
    const char *name;
    ZN_TRY(zn_member_text(root, "file", where, &name));
    if (!zn_ckpt_plain_name(name))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%.200s\" is no plain file name", where, name);
    zn_part_file *part = &ckpt->parts[ckpt->n_parts];
    ZN_TRY(zn_fs_join(ckpt->dir, name, &part->path));
    ckpt->n_parts++;
    return zn_map_open(part->path, &part->map);
}

static zinc_status open_part(zn_ckpt *ckpt, const zn_ckpt_file *file)
{
    zinc_status status;
    char *path = NULL;
    zn_buf text = {0};
    json_t *root = NULL;
    ZN_TRY_GOTO(zn_fs_join(ckpt->dir, file->name, &path));
    ZN_TRY_GOTO(zn_fs_read(path, ZN_CKPT_MAX_JSON_BYTES, &text));
    if (zn_checksum_of(text.data, text.n) != file->checksum)
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s: is damaged: its checksum is not the manifest's", path);
    ZN_TRY_GOTO(zn_json_parse(text.data, text.n, path, &root));
    ZN_TRY_GOTO(map_data(ckpt, root, path));
    ZN_TRY_GOTO(add_ranges(ckpt, root, path));
    status = ZINC_OK;
fail:
    zn_free(path);
    zn_buf_fini(&text);
    json_decref(root);
    return status;
}

/* Sorted ranges of one quantity must follow one another from 0 to its end; a state may be absent
 * (a frozen parameter). */
static zinc_status check_cover(const zn_ckpt *ckpt, int param, int what, int *at)
{
    const int64_t n_elems = zn_ckpt_n_elems(ckpt, param);
    int64_t next = 0;
    for (; *at < ckpt->n_stored && ckpt->stored[*at].r.param == param &&
           ckpt->stored[*at].r.what == what && ckpt->stored[*at].r.first == next;
         (*at)++)
        next += ckpt->stored[*at].r.count;
    if (next == n_elems || (next == 0 && what != ZN_CKPT_MASTER))
        return ZINC_OK;
    ZN_FAIL(ZINC_E_FORMAT,
            "%s: %s of %.200s is not there from element %" PRId64 " on: a part is missing or "
            "damaged",
            ckpt->dir, zn_ckpt_what(ckpt, what), ckpt->manifest.params[param].name, next);
}

static zinc_status check_all_covered(const zn_ckpt *ckpt)
{
    int at = 0;
    for (int i = 0; i < ckpt->manifest.n_params; i++)
        for (int what = ZN_CKPT_MASTER; what < ckpt->manifest.meta.n_states; what++)
            ZN_TRY(check_cover(ckpt, i, what, &at));
    if (at != ckpt->n_stored)
        ZN_FAIL(ZINC_E_FORMAT, "%s: some ranges of %.200s overlap", ckpt->dir,
                ckpt->manifest.params[ckpt->stored[at].r.param].name);
    return ZINC_OK;
}

static zinc_status open_parts(zn_ckpt *ckpt)
{
    const zn_manifest *m = &ckpt->manifest;
    ZN_TRY(zn_alloc_array(&ckpt->parts, (size_t)m->n_files, sizeof *ckpt->parts, "parts"));
    for (int i = 0; i < m->n_files; i++)
        if (is_part_json(m->files[i].name))
            ZN_TRY(open_part(ckpt, &m->files[i]));
    if (ckpt->n_stored > 0)
        qsort(ckpt->stored, (size_t)ckpt->n_stored, sizeof *ckpt->stored, by_place);
    return check_all_covered(ckpt);
}

zinc_status zn_ckpt_open(const char *path, zn_ckpt **out)
{
    zinc_status status;
    zn_ckpt *ckpt = NULL;
    ZN_TRY(zn_alloc(&ckpt, sizeof *ckpt, "a checkpoint"));
    ZN_TRY_GOTO(zn_strdup(path, &ckpt->dir));
    ZN_TRY_GOTO(zn_manifest_read(path, &ckpt->manifest));
    ZN_TRY_GOTO(zn_manifest_check_sizes(path, &ckpt->manifest));
    ZN_TRY_GOTO(open_parts(ckpt));
    *out = ckpt;
    return ZINC_OK;
fail:
    zn_ckpt_close(ckpt);
    return status;
}

void zn_ckpt_close(zn_ckpt *ckpt)
{
    if (!ckpt)
        return;
    for (int i = 0; i < ckpt->n_parts; i++) {
        zn_map_close(&ckpt->parts[i].map);
        zn_free(ckpt->parts[i].path);
    }
    zn_free(ckpt->parts);
    zn_free(ckpt->stored);
    zn_manifest_fini(&ckpt->manifest);
    zn_free(ckpt->dir);
    zn_free(ckpt);
}

const zn_ckpt_meta *zn_ckpt_get_meta(const zn_ckpt *ckpt)
{
    return &ckpt->manifest.meta;
}

const char *zn_ckpt_folder(const zn_ckpt *ckpt)
{
    return ckpt->dir;
}

int zn_ckpt_n(const zn_ckpt *ckpt)
{
    return ckpt->manifest.n_params;
}

zn_tensor_plan zn_ckpt_at(const zn_ckpt *ckpt, int i)
{
    return ckpt->manifest.params[i];
}

int64_t zn_ckpt_n_elems(const zn_ckpt *ckpt, int i)
{
    int64_t n = 1;
    for (int d = 0; d < ckpt->manifest.params[i].n_dims; d++)
        n *= ckpt->manifest.params[i].shape[d];
    return n;
}

int zn_ckpt_find(const zn_ckpt *ckpt, const char *name)
{
    for (int i = 0; i < ckpt->manifest.n_params; i++)
        if (strcmp(ckpt->manifest.params[i].name, name) == 0)
            return i;
    return -1;
}

/* ---- reading ---- */

zinc_status zn_ckpt_check_range(zn_ckpt *ckpt, zn_stored *s)
{
    const zn_part_file *file = &ckpt->parts[s->file];
    if (s->checked)
        return ZINC_OK;
    if (zn_checksum_of(file->map.data + s->r.offset, (size_t)s->r.count * 4) != s->r.checksum)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: %s of %.200s, elements [%" PRId64 ", +%" PRId64
                "), is damaged: bytes [%" PRId64 ", +%" PRId64
                ") are not those of their checksum; take another checkpoint",
                file->path, zn_ckpt_what(ckpt, s->r.what), ckpt->manifest.params[s->r.param].name,
                s->r.first, s->r.count, s->r.offset, 4 * s->r.count);
    s->checked = true;
    return ZINC_OK;
}

/* The first stored range that ends behind element `offset`: by halves, as there are many. */
static int first_range(const zn_ckpt *ckpt, int param, int what, int64_t offset)
{
    const zn_stored key = {.r = {.param = param, .what = what, .first = offset}};
    int low = 0, high = ckpt->n_stored; /* the last one that is <= key is below high */
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (by_place(&ckpt->stored[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

zinc_status zn_ckpt_read(zn_ckpt *ckpt, int i, int what, int64_t offset, int64_t n, float *out)
{
    for (int at = first_range(ckpt, i, what, offset); n > 0; at++) {
        zn_stored *s = at >= 0 && at < ckpt->n_stored ? &ckpt->stored[at] : NULL;
        const int64_t skip = s ? offset - s->r.first : 0;
        if (!s || s->r.param != i || s->r.what != what || skip >= s->r.count)
            ZN_FAIL(ZINC_E_FORMAT, "%s holds no %s of %.200s at element %" PRId64, ckpt->dir,
                    zn_ckpt_what(ckpt, what), ckpt->manifest.params[i].name, offset);
        const int64_t m = n < s->r.count - skip ? n : s->r.count - skip;
        const zn_tensor_info info = {.name = ckpt->manifest.params[i].name,
                                     .dtype = ZN_DTYPE_F32,
                                     .n_elems = s->r.count,
                                     .file = ckpt->parts[s->file].path,
                                     .data = ckpt->parts[s->file].map.data + s->r.offset,
                                     .mapped = true};
        ZN_TRY(zn_ckpt_check_range(ckpt, s));
        ZN_TRY(zn_tensor_read(&info, skip, m, out));
        out += m;
        n -= m;
        offset += m;
    }
    return ZINC_OK;
}
