/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_read.c — the parts of a checkpoint as whole parameters and states, read by range.
 *
 * Opening: the manifest; where its files are (one folder, several, or what this node has); the
 * ranges of every shard-*.json; whether every element is there once. */
#include "ckpt/checkpoint_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/checksum.h"

/* ---- opening ---- */

static bool is_part_file(const zn_ckpt *ckpt, int k, const char *extension)
{
    const char *name = ckpt->manifest.files[k].name;
    const size_t n = strlen(name), m = strlen(extension);
    return strncmp(name, "shard-", 6) == 0 && n > m && strcmp(name + n - m, extension) == 0;
}

bool zn_ckpt_is_index(const zn_ckpt *ckpt, int k)
{
    return is_part_file(ckpt, k, ".json");
}

bool zn_ckpt_is_data(const zn_ckpt *ckpt, int k)
{
    return is_part_file(ckpt, k, ".safetensors");
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
    const zn_ckpt_file *file = &ckpt->manifest.files[out->file];
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
    if (r->count > ZN_CKPT_MAX_RANGE)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: a range of %" PRId64 " elements of %.200s: one has at most %" PRId64, where,
                r->count, param, ZN_CKPT_MAX_RANGE);
    if (r->first < 0 || r->count < 1 || r->count > n_elems || r->first > n_elems - r->count)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: %.200s has %" PRId64 " elements, not [%" PRId64 ", +%" PRId64 ")", where,
                param, n_elems, r->first, r->count);
    if (r->offset < 0 || r->offset > file->n_bytes || r->count > (file->n_bytes - r->offset) / 4)
        ZN_FAIL(ZINC_E_FORMAT, "%s: %s of %.200s [%" PRId64 ", +%" PRId64 ") lies outside %s",
                where, what, param, r->first, r->count, file->name);
    return ZINC_OK;
}

/* The file of the manifest that a part says its data are in. */
static zinc_status find_data(const zn_ckpt *ckpt, const json_t *root, const char *where, int *out)
{
    const char *name;
    ZN_TRY(zn_member_text(root, "file", where, &name));
    for (int k = 0; k < ckpt->manifest.n_files; k++)
        if (zn_ckpt_is_data(ckpt, k) && strcmp(ckpt->manifest.files[k].name, name) == 0) {
            *out = k;
            return ZINC_OK;
        }
    ZN_FAIL(ZINC_E_FORMAT, "%s: \"%.200s\" is no data file of the manifest", where, name);
}

zinc_status zn_ckpt_add_ranges(zn_ckpt *ckpt, const char *text, size_t n, const char *where)
{
    zinc_status status;
    json_t *root = NULL;
    int file = 0;
    ZN_TRY_GOTO(zn_json_parse(text, n, where, &root));
    ZN_TRY_GOTO(find_data(ckpt, root, where, &file));
    const json_t *ranges = json_object_get(root, "ranges");
    const size_t n_ranges = json_array_size(ranges);
    if (!json_is_array(ranges))
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s: has no list of ranges", where);
    ZN_TRY_GOTO(zn_realloc_array(&ckpt->stored, (size_t)ckpt->n_stored + n_ranges + 1,
                                 sizeof *ckpt->stored, "checkpoint ranges"));
    for (size_t i = 0; i < n_ranges; i++) {
        zn_stored *s = &ckpt->stored[ckpt->n_stored];
        *s = (zn_stored){.file = file};
        ZN_TRY_GOTO(parse_range(ckpt, json_array_get(ranges, i), where, s));
        ckpt->n_stored++;
    }
    status = ZINC_OK;
fail:
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

/* ---- where the files are ---- */

static zinc_status open_file(zn_ckpt *ckpt, int k, int *fd)
{
    zn_found_file *f = &ckpt->found[k];
    int64_t n_bytes;
    if (!f->descriptor) {
        int file;
        ZN_TRY(zn_fs_open(f->path, &file, &n_bytes));
        f->descriptor = file + 1;
        (void)posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL); /* a wish */
    }
    *fd = f->descriptor - 1;
    return ZINC_OK;
}

static void close_file(zn_found_file *f)
{
    if (f->descriptor)
        close(f->descriptor - 1);
    f->descriptor = 0;
    zn_free(f->path);
    f->path = NULL;
}

zinc_status zn_ckpt_bytes(zn_ckpt *ckpt, int k, int64_t offset, size_t n, void *out)
{
    int fd;
    ZN_TRY(open_file(ckpt, k, &fd));
    return zn_fs_pread_all(fd, out, n, offset, ckpt->found[k].path);
}

/* The text of a shard-*.json, held against the manifest. */
static zinc_status read_index(zn_ckpt *ckpt, int k, zn_buf *out)
{
    const zn_ckpt_file *file = &ckpt->manifest.files[k];
    const size_t n = (size_t)file->n_bytes;
    if (n > ZN_CKPT_MAX_JSON_BYTES)
        ZN_FAIL(ZINC_E_FORMAT, "%s is larger than %zu bytes", ckpt->found[k].path,
                ZN_CKPT_MAX_JSON_BYTES);
    ZN_TRY(zn_realloc_array(&out->data, n + 1, 1, "ranges of a part"));
    out->n = n;
    out->data[n] = '\0';
    ZN_TRY(zn_ckpt_bytes(ckpt, k, 0, n, out->data));
    if (zn_checksum_of(out->data, n) != file->checksum)
        ZN_FAIL(ZINC_E_FORMAT, "%s: is damaged: its checksum is not the manifest's",
                ckpt->found[k].path);
    return ZINC_OK;
}

static zinc_status check_index(zn_ckpt *ckpt, int k)
{
    zn_buf text = {0};
    const zinc_status status = read_index(ckpt, k, &text);
    zn_buf_fini(&text);
    return status;
}

static zinc_status add_index(zn_ckpt *ckpt, int k)
{
    zn_buf text = {0};
    zinc_status status = read_index(ckpt, k, &text);
    if (status == ZINC_OK)
        status = zn_ckpt_add_ranges(ckpt, text.data, text.n, ckpt->found[k].path);
    zn_buf_fini(&text);
    return status;
}

/* Take file k from a folder, if it is there. Errors: E_FORMAT if it is another one. */
static zinc_status look_in(zn_ckpt *ckpt, int k, const char *dir)
{
    zinc_status status;
    struct stat st;
    const zn_ckpt_file *file = &ckpt->manifest.files[k];
    zn_found_file *f = &ckpt->found[k];
    ZN_TRY(zn_fs_join(dir, file->name, &f->path));
    if (stat(f->path, &st) != 0) {
        zn_free(f->path);
        f->path = NULL;
        return ZINC_OK;
    }
    if ((int64_t)st.st_size != file->n_bytes)
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s has %lld bytes where the manifest says %" PRId64, f->path,
                     (long long)st.st_size, file->n_bytes);
    if (zn_ckpt_is_index(ckpt, k))
        ZN_TRY_GOTO(check_index(ckpt, k));
    return ZINC_OK;
fail:
    close_file(f);
    return status;
}

static zinc_status look_in_all(zn_ckpt *ckpt, const char *const *paths, int n)
{
    for (int k = 0; k < ckpt->manifest.n_files; k++) {
        const zn_ckpt_file *file = &ckpt->manifest.files[k];
        for (int p = 0; p < n && !ckpt->found[k].path; p++)
            ZN_TRY(look_in(ckpt, k, paths[p]));
        if (ckpt->found[k].path || (ckpt->partial && file->node[0]))
            continue;
        if (file->node[0])
            ZN_FAIL(ZINC_E_IO, "%s/%s is not here: it was written on the node %s, whose folder %s",
                    paths[0], file->name, file->node,
                    n > 1 ? "is not among those given" : "is needed too");
        ZN_FAIL(ZINC_E_IO, "%s/%s is missing", paths[0], file->name);
    }
    return ZINC_OK;
}

static zinc_status begin_open(const char *path, zn_ckpt **out)
{
    zinc_status status;
    zn_ckpt *ckpt = NULL;
    ZN_TRY(zn_alloc(&ckpt, sizeof *ckpt, "a checkpoint"));
    ZN_TRY_GOTO(zn_strdup(path, &ckpt->dir));
    *out = ckpt;
    return ZINC_OK;
fail:
    zn_ckpt_close(ckpt);
    return status;
}

static zinc_status make_room(zn_ckpt *ckpt)
{
    return zn_alloc_array(&ckpt->found, (size_t)ckpt->manifest.n_files, sizeof *ckpt->found,
                          "checkpoint files");
}

zinc_status zn_ckpt_arrange(zn_ckpt *ckpt)
{
    if (ckpt->n_stored > 0)
        qsort(ckpt->stored, (size_t)ckpt->n_stored, sizeof *ckpt->stored, by_place);
    return ckpt->partial ? ZINC_OK : check_all_covered(ckpt);
}

zinc_status zn_ckpt_index(zn_ckpt *ckpt)
{
    for (int k = 0; k < ckpt->manifest.n_files; k++) {
        const zn_found_file *f = &ckpt->found[k];
        if (!zn_ckpt_is_index(ckpt, k) || (!f->path && ckpt->partial))
            continue;
        ZN_ASSERT(f->path);
        ZN_TRY(add_index(ckpt, k));
    }
    return zn_ckpt_arrange(ckpt);
}

/* All folders must have one and the same manifest. */
static zinc_status compare_manifests(const zn_ckpt *ckpt, const char *const *paths, int n)
{
    zinc_status status = ZINC_OK;
    for (int p = 1; p < n && status == ZINC_OK; p++) {
        zn_manifest other = {0};
        ZN_TRY(zn_manifest_read(paths[p], &other));
        if (strcmp(json_string_value(json_object_get(other.root, "checksum")),
                   json_string_value(json_object_get(ckpt->manifest.root, "checksum"))) != 0)
            status = zn_error_set(ZINC_E_CONFIG, __FILE__, __LINE__, __func__,
                                  "%s and %s are not folders of one checkpoint: their %s differ",
                                  paths[0], paths[p], ZN_CKPT_MANIFEST);
        zn_manifest_fini(&other);
    }
    return status;
}

static zinc_status open_folders(const char *const *paths, int n, bool partial, zn_ckpt **out)
{
    zinc_status status;
    zn_ckpt *ckpt = NULL;
    ZN_TRY(begin_open(paths[0], &ckpt));
    ckpt->partial = partial;
    ZN_TRY_GOTO(zn_manifest_read(paths[0], &ckpt->manifest));
    ZN_TRY_GOTO(compare_manifests(ckpt, paths, n));
    ZN_TRY_GOTO(make_room(ckpt));
    ZN_TRY_GOTO(look_in_all(ckpt, paths, n));
    ZN_TRY_GOTO(zn_ckpt_index(ckpt));
    *out = ckpt;
    return ZINC_OK;
fail:
    zn_ckpt_close(ckpt);
    return status;
}

zinc_status zn_ckpt_open(const char *path, zn_ckpt **out)
{
    return open_folders(&path, 1, false, out);
}

zinc_status zn_ckpt_open_folders(const char *const *paths, int n, zn_ckpt **out)
{
    return open_folders(paths, n, false, out);
}

zinc_status zn_ckpt_open_partial(const char *path, zn_ckpt **out)
{
    return open_folders(&path, 1, true, out);
}

void zn_ckpt_close(zn_ckpt *ckpt)
{
    if (!ckpt)
        return;
    for (int k = 0; ckpt->found && k < ckpt->manifest.n_files; k++)
        close_file(&ckpt->found[k]);
    zn_free(ckpt->range);
    zn_free(ckpt->found);
    zn_free(ckpt->stored);
    zn_manifest_fini(&ckpt->manifest);
    zn_free(ckpt->dir);
    zn_free(ckpt);
}

/* ---- a node's share of them ---- */

zinc_status zn_ckpt_open_here(const char *path, const char *manifest, size_t n, zn_ckpt **out)
{
    zinc_status status;
    char *name = NULL;
    zn_ckpt *ckpt = NULL;
    ZN_TRY(begin_open(path, &ckpt));
    ZN_TRY_GOTO(zn_fs_join(path, ZN_CKPT_MANIFEST, &name));
    ZN_TRY_GOTO(zn_manifest_take(manifest, n, name, &ckpt->manifest));
    ZN_TRY_GOTO(make_room(ckpt));
    for (int k = 0; k < ckpt->manifest.n_files; k++) {
        status = look_in(ckpt, k, path);
        if (status == ZINC_E_NOMEM)
            goto fail;
        if (status != ZINC_OK && ckpt->trouble.status == ZINC_OK)
            zn_error_save(&ckpt->trouble, status);
    }
    zn_free(name);
    *out = ckpt;
    return ZINC_OK;
fail:
    zn_free(name);
    zn_ckpt_close(ckpt);
    return status;
}

int zn_ckpt_n_files(const zn_ckpt *ckpt)
{
    return ckpt->manifest.n_files;
}

const zn_ckpt_file *zn_ckpt_file_at(const zn_ckpt *ckpt, int k)
{
    return &ckpt->manifest.files[k];
}

bool zn_ckpt_has(const zn_ckpt *ckpt, int k)
{
    return ckpt->found[k].path != NULL;
}

const char *zn_ckpt_trouble(const zn_ckpt *ckpt)
{
    return ckpt->trouble.message;
}

zinc_status zn_ckpt_supply(zn_ckpt *ckpt, int k, int fd)
{
    zinc_status status;
    struct stat st;
    zn_found_file *f = &ckpt->found[k];
    ZN_ASSERT(!f->path);
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the file may have no name */
    if (own < 0 || fstat(own, &st) != 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot keep what another node sent: %s", strerror(errno));
    ZN_TRY_GOTO(zn_format(&f->path, "%s/%s (sent by another node)", ckpt->dir,
                          ckpt->manifest.files[k].name));
    f->descriptor = own + 1;
    if ((int64_t)st.st_size != ckpt->manifest.files[k].n_bytes)
        ZN_FAIL(ZINC_E_FORMAT, "%s has %lld bytes where the manifest says %" PRId64, f->path,
                (long long)st.st_size, ckpt->manifest.files[k].n_bytes);
    return zn_ckpt_is_index(ckpt, k) ? check_index(ckpt, k) : ZINC_OK;
fail:
    if (own >= 0)
        close(own);
    return status;
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

/* What a message says of a stored range: "FILE: master of NAME, elements [0, +24)". */
static void tell_range(const zn_ckpt *ckpt, const zn_stored *s)
{
    zn_error_prefix(
        "%s of %.200s, elements [%" PRId64 ", +%" PRId64 "): ", zn_ckpt_what(ckpt, s->r.what),
        ckpt->manifest.params[s->r.param].name, s->r.first, s->r.count);
}

/* A whole stored range into out [s->r.count]. */
static zinc_status read_range(zn_ckpt *ckpt, const zn_stored *s, float *out)
{
    const zn_found_file *file = &ckpt->found[s->file];
    const size_t n = (size_t)s->r.count * sizeof *out;
    if (!file->path)
        ZN_FAIL(ZINC_E_IO, "%s/%s is not here: it was written on the node %s", ckpt->dir,
                ckpt->manifest.files[s->file].name, ckpt->manifest.files[s->file].node);
    const zinc_status status = zn_ckpt_bytes(ckpt, s->file, s->r.offset, n, out);
    if (status != ZINC_OK)
        tell_range(ckpt, s);
    ZN_TRY(status);
    if (zn_checksum_of(out, n) != s->r.checksum)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: %s of %.200s, elements [%" PRId64 ", +%" PRId64
                "), is damaged: bytes [%" PRId64 ", +%" PRId64
                ") are not those of their checksum; take another checkpoint",
                file->path, zn_ckpt_what(ckpt, s->r.what), ckpt->manifest.params[s->r.param].name,
                s->r.first, s->r.count, s->r.offset, 4 * s->r.count);
    return ZINC_OK;
}

/* The disk may begin with a range that will be asked for soon. */
static void read_ahead(zn_ckpt *ckpt, int at)
{
    const zn_stored *s = at < ckpt->n_stored ? &ckpt->stored[at] : NULL;
    int fd;
    if (s && ckpt->found[s->file].path && open_file(ckpt, s->file, &fd) == ZINC_OK)
        (void)posix_fadvise(fd, s->r.offset, 4 * s->r.count, POSIX_FADV_WILLNEED); /* a wish */
}

/* A stored range into ckpt->range. */
static zinc_status load_range(zn_ckpt *ckpt, int at)
{
    if (ckpt->range && ckpt->in_range == at)
        return ZINC_OK;
    if (!ckpt->range)
        ZN_TRY(zn_alloc_array(&ckpt->range, (size_t)ZN_CKPT_MAX_RANGE, sizeof *ckpt->range,
                              "a range of a checkpoint"));
    ckpt->in_range = -1;
    ZN_TRY(read_range(ckpt, &ckpt->stored[at], ckpt->range));
    ckpt->in_range = at;
    return ZINC_OK;
}

zinc_status zn_ckpt_check_range(zn_ckpt *ckpt, int at)
{
    return load_range(ckpt, at);
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

/* Whose elements [offset, offset + *n) come first in a stored range: that, how many of the range
 * are in front of them, and in *n how many it has. `at` goes on to the next. */
static zinc_status next_range(zn_ckpt *ckpt, int i, int what, int64_t offset, int at, int64_t *n,
                              int64_t *skip, zn_stored **out)
{
    zn_stored *s = at >= 0 && at < ckpt->n_stored ? &ckpt->stored[at] : NULL;
    *skip = s ? offset - s->r.first : 0;
    if (!s || s->r.param != i || s->r.what != what || *skip >= s->r.count)
        ZN_FAIL(ZINC_E_FORMAT, "%s holds no %s of %.200s at element %" PRId64, ckpt->dir,
                zn_ckpt_what(ckpt, what), ckpt->manifest.params[i].name, offset);
    *n = *n < s->r.count - *skip ? *n : s->r.count - *skip;
    *out = s;
    return ZINC_OK;
}

zinc_status zn_ckpt_read(zn_ckpt *ckpt, int i, int what, int64_t offset, int64_t n, float *out)
{
    for (int at = first_range(ckpt, i, what, offset); n > 0; at++) {
        zn_stored *s;
        int64_t m = n, skip;
        ZN_TRY(next_range(ckpt, i, what, offset, at, &m, &skip, &s));
        read_ahead(ckpt, at + 1);
        if (m == s->r.count) {
            ZN_TRY(read_range(ckpt, s, out));
        } else {
            ZN_TRY(load_range(ckpt, at));
            memcpy(out, ckpt->range + skip, (size_t)m * sizeof *out);
        }
        out += m;
        n -= m;
        offset += m;
    }
    return ZINC_OK;
}

zinc_status zn_ckpt_want(zn_ckpt *ckpt, int i, int what, int64_t offset, int64_t n)
{
    for (int at = first_range(ckpt, i, what, offset); n > 0; at++) {
        zn_stored *s;
        int64_t m = n, skip;
        ZN_TRY(next_range(ckpt, i, what, offset, at, &m, &skip, &s));
        ckpt->found[s->file].wanted = true;
        n -= m;
        offset += m;
    }
    return ZINC_OK;
}

bool zn_ckpt_wants(const zn_ckpt *ckpt, int k)
{
    return ckpt->found[k].wanted && !ckpt->found[k].path;
}
