/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_verify.c — every byte of a checkpoint against its checksums. */
#include "ckpt/checkpoint_internal.h"

#include <inttypes.h>
#include <string.h>

#include "ckpt/checksum.h"

typedef struct findings {
    void (*problem)(void *ctx, const char *text);
    void *ctx;
    int n;
} findings;

static void report(findings *f)
{
    f->n++;
    f->problem(f->ctx, zinc_last_error());
}

/* A whole file; for a part with wrong data the ranges have said where, so that only damage outside
 * of them is news. */
static zinc_status verify_file(const char *dir, const zn_ckpt_file *file, bool named)
{
    zn_ckpt_file found;
    ZN_TRY(zn_ckpt_file_of(dir, file->name, &found));
    if (found.n_bytes != file->n_bytes)
        ZN_FAIL(ZINC_E_FORMAT, "%s/%s has %" PRId64 " bytes where the manifest says %" PRId64, dir,
                file->name, found.n_bytes, file->n_bytes);
    if (found.checksum != file->checksum && !named)
        ZN_FAIL(ZINC_E_FORMAT, "%s/%s: is damaged: its checksum is %016" PRIx64 ", not %016" PRIx64,
                dir, file->name, found.checksum, file->checksum);
    return ZINC_OK;
}

/* Ranges of the part whose data file is `name`; whether one of them is damaged. */
static bool verify_ranges(zn_ckpt *ckpt, const char *name, findings *f)
{
    bool damaged = false;
    for (int i = 0; i < ckpt->n_stored; i++) {
        const int file = ckpt->stored[i].file;
        if (strcmp(ckpt->manifest.files[file].name, name) == 0 && ckpt->found[file].path &&
            zn_ckpt_check_range(ckpt, i) != ZINC_OK) {
            report(f);
            damaged = true;
        }
    }
    return damaged;
}

static bool on_another_node(const char *dir, const zn_ckpt_file *file)
{
    char *path = NULL;
    if (!file->node[0] || zn_fs_join(dir, file->name, &path) != ZINC_OK)
        return false;
    const bool here = zn_fs_exists(path);
    zn_free(path);
    return !here;
}

zinc_status zn_ckpt_elsewhere(const char *path, int *n)
{
    zn_manifest m = {0};
    ZN_TRY(zn_manifest_read(path, &m));
    *n = 0;
    for (int i = 0; i < m.n_files; i++)
        *n += on_another_node(path, &m.files[i]);
    zn_manifest_fini(&m);
    return ZINC_OK;
}

zinc_status zn_ckpt_verify(const char *path, void (*problem)(void *ctx, const char *text),
                           void *ctx, int *n_problems)
{
    findings f = {.problem = problem, .ctx = ctx};
    zn_manifest m = {0};
    zn_ckpt *ckpt = NULL;
    zinc_status status = zn_manifest_read(path, &m);
    if (status != ZINC_OK)
        report(&f);
    else if (zn_ckpt_open_partial(path, &ckpt) != ZINC_OK)
        ckpt = NULL; /* the files below say why; if none does, this did */
    zn_error opened;
    zn_error_save(&opened, status == ZINC_OK && !ckpt ? ZINC_E_FORMAT : ZINC_OK);
    for (int i = 0; i < m.n_files; i++) {
        if (on_another_node(path, &m.files[i]))
            continue;
        const bool named = ckpt && verify_ranges(ckpt, m.files[i].name, &f);
        if (verify_file(path, &m.files[i], named) != ZINC_OK)
            report(&f);
    }
    if (f.n == 0 && opened.status != ZINC_OK) {
        zn_ignore(zn_error_restore(&opened)); /* makes it the last error again */
        report(&f);
    }
    zn_ckpt_close(ckpt);
    zn_manifest_fini(&m);
    *n_problems = f.n;
    return status == ZINC_E_NOMEM ? status : ZINC_OK;
}
