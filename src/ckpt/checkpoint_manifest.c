/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_manifest.c — manifest.json: what the run was at, and which files there must be.
 *
 * Its last member is its own checksum: that of all bytes before the comma in front of it. */
#include "ckpt/checkpoint_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/checksum.h"

#define SELF_MARK ",\n\"checksum\":\""

void zn_ckpt_meta_fini(zn_ckpt_meta *meta)
{
    json_decref(meta->schedule);
    json_decref(meta->hyper);
    json_decref(meta->config);
    memset(meta, 0, sizeof *meta);
}

bool zn_ckpt_plain_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') &&
           strlen(name) < ZN_CKPT_NAME_BYTES;
}

/* ---- writing ---- */

static zinc_status append_json_member(zn_buf *out, const char *key, const json_t *value)
{
    ZN_TRY(zn_buf_printf(out, ",\n\"%s\":", key));
    return value ? zn_json_append(value, out) : zn_buf_puts(out, "{}");
}

static zinc_status append_real(zn_buf *out, const char *key, double value)
{
    ZN_TRY(zn_buf_printf(out, ",\"%s\":", key));
    return zn_json_append_number(out, value);
}

static zinc_status append_scaler(zn_buf *out, const zn_loss_scaler *s)
{
    ZN_TRY(zn_buf_printf(out, ",\n\"loss_scaler\":{\"dynamic\":%s", s->dynamic ? "true" : "false"));
    ZN_TRY(append_real(out, "scale", s->scale));
    ZN_TRY(append_real(out, "min_scale", s->min_scale));
    return zn_buf_printf(
        out,
        ",\"window\":%" PRId64 ",\"hysteresis\":%d,\"hysteresis_left\":%d,"
        "\"consecutive_hysteresis\":%s,\"iteration\":%" PRId64 ",\"last_overflow\":%" PRId64 "}",
        s->window, s->hysteresis, s->hysteresis_left, s->consecutive_hysteresis ? "true" : "false",
        s->iteration, s->last_overflow);
}

static zinc_status append_progress(zn_buf *out, const zn_ckpt_meta *m)
{
    ZN_TRY(zn_buf_printf(out,
                         "{\"format\":\"%s\",\n\"version\":%d,\n\"step\":%" PRId64
                         ",\"applied\":%" PRId64 ",\"skipped\":%" PRId64,
                         ZN_CKPT_FORMAT, ZN_CKPT_VERSION, m->step, m->n_applied, m->n_skipped));
    ZN_TRY(append_real(out, "epoch", m->epoch));
    ZN_TRY(zn_buf_printf(out,
                         ",\"samples\":%" PRId64 ",\n\"seed\":%" PRIu64 ",\"shuffle\":%s,"
                         "\"rows\":%" PRId64 ",\"tokens\":%" PRId64 ",\"train_batch_size\":%" PRId64
                         ",\n\"stage\":%d,\"n_ranks\":%d,\"dtype\":\"%s\",\n\"run\":\"%016" PRIx64
                         "\",\"created_ns\":%" PRId64 ",\n\"model_hash\":\"%016" PRIx64
                         "\",\"tokenizer_hash\":\"%016" PRIx64 "\"",
                         m->n_samples, m->seed, m->shuffle ? "true" : "false", m->n_rows,
                         m->n_tokens, m->train_batch_size, m->stage, m->n_ranks, m->dtype,
                         m->run_id, m->created_ns, m->model_hash, m->tokenizer_hash));
    return append_scaler(out, &m->scaler);
}

static zinc_status append_optimizer(zn_buf *out, const zn_ckpt_meta *m)
{
    ZN_TRY(zn_buf_printf(out, ",\n\"optimizer\":\"%s\",\"states\":[", m->optimizer));
    for (int k = 0; k < m->n_states; k++)
        ZN_TRY(zn_buf_printf(out, k ? ",\"%s\"" : "\"%s\"", m->state_names[k]));
    ZN_TRY(zn_buf_puts(out, "]"));
    ZN_TRY(append_json_member(out, "hyper_parameters", m->hyper));
    ZN_TRY(append_json_member(out, "schedule", m->schedule));
    return append_json_member(out, "config", m->config);
}

static zinc_status append_params(zn_buf *out, const zn_param_list *list)
{
    ZN_TRY(zn_buf_puts(out, ",\n\"parameters\":["));
    for (int i = 0; i < list->n_specs; i++) {
        const zn_param_spec *spec = &list->specs[i];
        ZN_TRY(zn_buf_puts(out, i ? ",\n{\"name\":" : "\n{\"name\":"));
        ZN_TRY(zn_json_append_string(out, spec->name, strlen(spec->name)));
        ZN_TRY(zn_buf_puts(out, ",\"shape\":["));
        for (int d = 0; d < spec->n_dims; d++)
            ZN_TRY(zn_buf_printf(out, d ? ",%" PRId64 : "%" PRId64, spec->shape[d]));
        ZN_TRY(zn_buf_puts(out, "]}"));
    }
    return zn_buf_puts(out, "]");
}

static zinc_status append_files(zn_buf *out, const zn_ckpt_file *files, int n)
{
    ZN_TRY(zn_buf_puts(out, ",\n\"files\":["));
    for (int i = 0; i < n; i++) {
        ZN_TRY(zn_buf_printf(
            out, "%s\n{\"name\":\"%s\",\"bytes\":%" PRId64 ",\"checksum\":\"%016" PRIx64 "\"",
            i ? "," : "", files[i].name, files[i].n_bytes, files[i].checksum));
        if (files[i].node[0]) {
            ZN_TRY(zn_buf_puts(out, ",\"node\":"));
            ZN_TRY(zn_json_append_string(out, files[i].node, strlen(files[i].node)));
        }
        ZN_TRY(zn_buf_puts(out, "}"));
    }
    return zn_buf_puts(out, "]");
}

zinc_status zn_manifest_build(const zn_publish_params *params, zn_buf *out)
{
    zn_buf *text = out;
    ZN_TRY(append_progress(text, params->meta));
    ZN_TRY(append_optimizer(text, params->meta));
    ZN_TRY(append_params(text, params->list));
    ZN_TRY(append_files(text, params->files, params->n_files));
    const uint64_t sum = zn_checksum_of(text->data, text->n);
    return zn_buf_printf(text, SELF_MARK "%016" PRIx64 "\"}\n", sum);
}

/* ---- reading ---- */

zinc_status zn_member_int(const json_t *object, const char *key, const char *where, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" is missing or no integer", where, key);
    *out = json_integer_value(value);
    return ZINC_OK;
}

zinc_status zn_member_text(const json_t *object, const char *key, const char *where,
                           const char **out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" is missing or no string", where, key);
    *out = json_string_value(value);
    return ZINC_OK;
}

static bool parse_hex(const char *text, uint64_t *out)
{
    uint64_t x = 0;
    for (int i = 0; i < 16; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit)
            return false;
        x = 16 * x + (uint64_t)(digit - digits);
    }
    *out = x;
    return text[16] == '\0';
}

zinc_status zn_member_hex(const json_t *object, const char *key, const char *where, uint64_t *out)
{
    const char *text;
    ZN_TRY(zn_member_text(object, key, where, &text));
    if (!parse_hex(text, out))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" is not 16 hexadecimal digits", where, key);
    return ZINC_OK;
}

static zinc_status read_number(const json_t *object, const char *key, const char *where,
                               double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" is missing or no number", where, key);
    *out = json_number_value(value);
    return ZINC_OK;
}

static zinc_status read_small(const json_t *object, const char *key, const char *where, int *out)
{
    int64_t x;
    ZN_TRY(zn_member_int(object, key, where, &x));
    if (x < 0 || x > 1 << 30)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" is %" PRId64, where, key, x);
    *out = (int)x;
    return ZINC_OK;
}

static zinc_status read_scaler(const json_t *root, const char *where, zn_loss_scaler *out)
{
    const json_t *o = json_object_get(root, "loss_scaler");
    ZN_TRY(read_number(o, "scale", where, &out->scale));
    ZN_TRY(read_number(o, "min_scale", where, &out->min_scale));
    ZN_TRY(zn_member_int(o, "window", where, &out->window));
    ZN_TRY(read_small(o, "hysteresis", where, &out->hysteresis));
    ZN_TRY(read_small(o, "hysteresis_left", where, &out->hysteresis_left));
    ZN_TRY(zn_member_int(o, "iteration", where, &out->iteration));
    ZN_TRY(zn_member_int(o, "last_overflow", where, &out->last_overflow));
    out->dynamic = json_is_true(json_object_get(o, "dynamic"));
    out->consecutive_hysteresis = json_is_true(json_object_get(o, "consecutive_hysteresis"));
    return ZINC_OK;
}

static zinc_status read_progress(const json_t *root, const char *where, zn_ckpt_meta *m)
{
    const char *dtype;
    int64_t seed;
    ZN_TRY(zn_member_int(root, "step", where, &m->step));
    ZN_TRY(zn_member_int(root, "applied", where, &m->n_applied));
    ZN_TRY(zn_member_int(root, "skipped", where, &m->n_skipped));
    ZN_TRY(read_number(root, "epoch", where, &m->epoch));
    ZN_TRY(zn_member_int(root, "samples", where, &m->n_samples));
    ZN_TRY(zn_member_int(root, "seed", where, &seed));
    ZN_TRY(zn_member_int(root, "rows", where, &m->n_rows));
    ZN_TRY(zn_member_int(root, "tokens", where, &m->n_tokens));
    ZN_TRY(zn_member_int(root, "train_batch_size", where, &m->train_batch_size));
    ZN_TRY(read_small(root, "stage", where, &m->stage));
    ZN_TRY(read_small(root, "n_ranks", where, &m->n_ranks));
    ZN_TRY(zn_member_int(root, "created_ns", where, &m->created_ns));
    ZN_TRY(zn_member_hex(root, "run", where, &m->run_id));
    ZN_TRY(zn_member_hex(root, "model_hash", where, &m->model_hash));
    ZN_TRY(zn_member_hex(root, "tokenizer_hash", where, &m->tokenizer_hash));
    ZN_TRY(zn_member_text(root, "dtype", where, &dtype));
    if (m->step < 0 || m->n_applied < 0 || m->n_skipped < 0 ||
        m->step != m->n_applied + m->n_skipped)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: step %" PRId64 " is not %" PRId64 " applied and %" PRId64 " skipped", where,
                m->step, m->n_applied, m->n_skipped);
    m->seed = (uint64_t)seed;
    m->shuffle = json_is_true(json_object_get(root, "shuffle"));
    snprintf(m->dtype, sizeof m->dtype, "%s", dtype);
    return read_scaler(root, where, &m->scaler);
}

static zinc_status read_optimizer(const json_t *root, const char *where, zn_ckpt_meta *m)
{
    const json_t *states = json_object_get(root, "states");
    const char *name;
    ZN_TRY(zn_member_text(root, "optimizer", where, &name));
    snprintf(m->optimizer, sizeof m->optimizer, "%s", name);
    if (!json_is_array(states) || json_array_size(states) > ZN_OPTIM_MAX_STATES)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"states\" is no list of at most %d names", where,
                ZN_OPTIM_MAX_STATES);
    m->n_states = (int)json_array_size(states);
    for (int k = 0; k < m->n_states; k++) {
        const char *state = json_string_value(json_array_get(states, (size_t)k));
        snprintf(m->state_names[k], sizeof m->state_names[k], "%s", state ? state : "?");
    }
    m->hyper = json_incref(json_object_get(root, "hyper_parameters"));
    m->schedule = json_incref(json_object_get(root, "schedule"));
    m->config = json_incref(json_object_get(root, "config"));
    return ZINC_OK;
}

static zinc_status read_param(const json_t *item, const char *where, zn_tensor_plan *out)
{
    const json_t *shape = json_object_get(item, "shape");
    ZN_TRY(zn_member_text(item, "name", where, &out->name));
    out->dtype = ZN_DTYPE_F32;
    out->n_dims = (int)json_array_size(shape);
    if (!json_is_array(shape) || json_array_size(shape) > ZN_MAX_DIMS)
        ZN_FAIL(ZINC_E_FORMAT, "%s: %.200s has no shape of at most %d dimensions", where, out->name,
                ZN_MAX_DIMS);
    int64_t n = 1;
    for (int d = 0; d < out->n_dims; d++) {
        out->shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
        if (out->shape[d] < 1 || out->shape[d] > INT64_MAX / 8 / n)
            ZN_FAIL(ZINC_E_FORMAT, "%s: the shape of %.200s is not positive or too large", where,
                    out->name);
        n *= out->shape[d];
    }
    return ZINC_OK;
}

static zinc_status read_lists(zn_manifest *m)
{
    const json_t *params = json_object_get(m->root, "parameters");
    const json_t *files = json_object_get(m->root, "files");
    if (!json_is_array(params) || !json_is_array(files))
        ZN_FAIL(ZINC_E_FORMAT, "%s: the list of parameters or files is missing", m->path);
    const size_t n_params = json_array_size(params), n_files = json_array_size(files);
    ZN_TRY(zn_alloc_array(&m->params, n_params, sizeof *m->params, "parameters"));
    ZN_TRY(zn_alloc_array(&m->files, n_files, sizeof *m->files, "files"));
    for (size_t i = 0; i < n_params; i++)
        ZN_TRY(read_param(json_array_get(params, i), m->path, &m->params[i]));
    for (size_t i = 0; i < n_files; i++) {
        const json_t *item = json_array_get(files, i);
        const char *name;
        ZN_TRY(zn_member_text(item, "name", m->path, &name));
        if (!zn_ckpt_plain_name(name))
            ZN_FAIL(ZINC_E_FORMAT, "%s: \"%.200s\" is no plain file name", m->path, name);
        snprintf(m->files[i].name, sizeof m->files[i].name, "%s", name);
        ZN_TRY(zn_member_int(item, "bytes", m->path, &m->files[i].n_bytes));
        ZN_TRY(zn_member_hex(item, "checksum", m->path, &m->files[i].checksum));
        const char *node = json_string_value(json_object_get(item, "node"));
        snprintf(m->files[i].node, sizeof m->files[i].node, "%s", node ? node : "");
        if (m->files[i].n_bytes < 0)
            ZN_FAIL(ZINC_E_FORMAT, "%s: %s has less than no bytes", m->path, name);
    }
    m->n_params = (int)n_params;
    m->n_files = (int)n_files;
    return ZINC_OK;
}

static zinc_status check_version(const zn_manifest *m)
{
    const char *format = json_string_value(json_object_get(m->root, "format"));
    const json_t *version = json_object_get(m->root, "version");
    if (!format || strcmp(format, ZN_CKPT_FORMAT) != 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: is no manifest of a Zinc checkpoint", m->path);
    if (json_integer_value(version) != ZN_CKPT_VERSION)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "%s: format version %lld; this program reads version %d: use the zinc that "
                "wrote it",
                m->path, (long long)json_integer_value(version), ZN_CKPT_VERSION);
    return ZINC_OK;
}

static zinc_status check_self(const zn_manifest *m, const char *text, size_t n)
{
    const size_t n_mark = sizeof SELF_MARK - 1;
    uint64_t want;
    ZN_TRY(zn_member_hex(m->root, "checksum", m->path, &want));
    for (size_t at = n >= n_mark ? n - n_mark + 1 : 0; at-- > 0;)
        if (memcmp(text + at, SELF_MARK, n_mark) == 0) {
            if (zn_checksum_of(text, at) == want)
                return ZINC_OK;
            break;
        }
    ZN_FAIL(ZINC_E_FORMAT, "%s: is damaged: its bytes are not those of its checksum", m->path);
}

/* Damage is told before whatever else it has made wrong, but a newer version is no damage. */
static zinc_status parse(const char *text, size_t n, const char *path, bool self, zn_manifest *out)
{
    zinc_status status;
    zn_manifest m = {0};
    ZN_TRY_GOTO(zn_strdup(path, &m.path));
    ZN_TRY_GOTO(zn_json_parse(text, n, m.path, &m.root));
    ZN_TRY_GOTO(check_version(&m));
    if (self)
        ZN_TRY_GOTO(check_self(&m, text, n));
    ZN_TRY_GOTO(read_progress(m.root, m.path, &m.meta));
    ZN_TRY_GOTO(read_optimizer(m.root, m.path, &m.meta));
    ZN_TRY_GOTO(read_lists(&m));
    *out = m;
    return ZINC_OK;
fail:
    zn_manifest_fini(&m);
    return status;
}

zinc_status zn_manifest_parse(const char *text, size_t n, const char *path, zn_manifest *out)
{
    return parse(text, n, path, false, out);
}

zinc_status zn_manifest_take(const char *text, size_t n, const char *path, zn_manifest *out)
{
    return parse(text, n, path, true, out);
}

zinc_status zn_manifest_read(const char *dir, zn_manifest *out)
{
    zinc_status status;
    char *path = NULL;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_fs_join(dir, ZN_CKPT_MANIFEST, &path));
    ZN_TRY_GOTO(zn_fs_read(path, ZN_CKPT_MAX_JSON_BYTES, &text));
    ZN_TRY_GOTO(zn_manifest_take(text.data, text.n, path, out));
    status = ZINC_OK;
fail:
    zn_buf_fini(&text);
    zn_free(path);
    return status;
}

void zn_manifest_fini(zn_manifest *manifest)
{
    zn_ckpt_meta_fini(&manifest->meta);
    zn_free(manifest->params);
    zn_free(manifest->files);
    zn_free(manifest->path);
    json_decref(manifest->root);
    memset(manifest, 0, sizeof *manifest);
}

static zinc_status check_size(const char *dir, const zn_ckpt_file *file)
{
    struct stat st;
    char *path = NULL;
    ZN_TRY(zn_fs_join(dir, file->name, &path));
    const int failed = stat(path, &st) != 0 ? errno : 0;
    zn_free(path);
    if (failed == ENOENT && file->node[0]) /* another node's */
        return ZINC_OK;
    if (failed)
        ZN_FAIL(ZINC_E_IO, "%s/%s is missing: %s", dir, file->name, strerror(failed));
    if ((int64_t)st.st_size != file->n_bytes)
        ZN_FAIL(ZINC_E_FORMAT, "%s/%s has %lld bytes where the manifest says %" PRId64, dir,
                file->name, (long long)st.st_size, file->n_bytes);
    return ZINC_OK;
}

zinc_status zn_manifest_check_sizes(const char *dir, const zn_manifest *manifest)
{
    for (int i = 0; i < manifest->n_files; i++)
        ZN_TRY(check_size(dir, &manifest->files[i]));
    return ZINC_OK;
}
