/* SPDX-License-Identifier: Apache-2.0 */
/* engine_ckpt_nodes.c — a checkpoint whose files lie on several nodes, read by all ranks.
 *
 * Every rank says which files it has; whatever one lacks and needs is sent by the lowest rank that
 * has it, in pieces, into a file without a name. Where all nodes see one folder nothing is sent. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* mkostemp */
#endif
#include "engine/engine_ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"

#define CHUNK_BYTES ((int64_t)4 << 20)

/* What the ranks have or need of each file. */
typedef struct flags {
    int n_ranks, n_files;
    bool *mine, *all; /* [n_files], [n_ranks * n_files] */
} flags;

static zinc_status flags_create(const zn_comm *comm, const zn_ckpt *ckpt, flags *out)
{
    out->n_ranks = zn_comm_n_ranks(comm);
    out->n_files = zn_ckpt_n_files(ckpt);
    const size_t n = (size_t)out->n_files + 1;
    ZN_TRY(zn_alloc_array(&out->mine, n, sizeof *out->mine, "flags of files"));
    return zn_alloc_array(&out->all, n * (size_t)out->n_ranks, sizeof *out->all, "flags of files");
}

static void flags_fini(flags *f)
{
    zn_free(f->mine);
    zn_free(f->all);
}

/* The lowest rank whose flag of file k is `wanted`, or -1. */
static int first_rank(const flags *f, int k, bool wanted)
{
    for (int r = 0; r < f->n_ranks; r++)
        if (f->all[(size_t)r * (size_t)f->n_files + (size_t)k] == wanted)
            return r;
    return -1;
}

static zinc_status exchange(zn_comm *comm, const zn_ckpt *ckpt, flags *f,
                            bool (*flag)(const zn_ckpt *ckpt, int k))
{
    for (int k = 0; k < f->n_files; k++)
        f->mine[k] = flag(ckpt, k);
    return zn_comm_exchange(comm, f->mine, (size_t)f->n_files * sizeof *f->mine, f->all,
                            "files of a checkpoint");
}

static zinc_status broadcast(zn_comm *comm, void *bytes, size_t n, int root)
{
    zn_event event = {0};
    ZN_TRY(zn_comm_broadcast(comm, bytes, n, root, "files of a checkpoint", &event));
    return zn_event_wait(event, -1); /* the comm has its own deadline */
}

zinc_status zn_comm_share_text(zn_comm *comm, int root, zn_buf *text)
{
    int64_t n = (int64_t)text->n;
    zinc_status status = ZINC_OK;
    ZN_TRY(broadcast(comm, &n, sizeof n, root));
    if (zn_comm_rank(comm) != root) {
        zn_buf_fini(text);
        status = zn_realloc_array(&text->data, (size_t)n + 1, 1, "a text of another rank");
    }
    ZN_TRY(zn_comm_agree(comm, status));
    if (zn_comm_rank(comm) != root) {
        text->n = (size_t)n;
        text->capacity = (size_t)n + 1;
        text->data[n] = '\0';
    }
    for (int64_t at = 0; at < n; at += CHUNK_BYTES)
        ZN_TRY(broadcast(comm, text->data + at,
                         (size_t)(n - at < CHUNK_BYTES ? n - at : CHUNK_BYTES), root));
    return ZINC_OK;
}

/* ---- one file ---- */

static zinc_status open_unnamed(const char *scratch, int *out)
{
    char *path = NULL;
    ZN_TRY(zn_format(&path, "%s/.zinc-part-XXXXXX", scratch));
    *out = mkostemp(path, O_CLOEXEC);
    const int error = errno;
    if (*out >= 0)
        (void)unlink(path); /* if it stays, it is in nobody's way */
    zn_free(path);
    if (*out < 0)
        ZN_FAIL(ZINC_E_IO, "cannot make a file in %s for what another node sends: %s", scratch,
                strerror(error));
    return ZINC_OK;
}

/* Send file k from `root`; who takes it writes it to fd. All ranks stay for every piece, whatever
 * has gone wrong on one; *status says what. */
static zinc_status send_pieces(zn_comm *comm, zn_ckpt *ckpt, int k, int root, int fd, char *chunk,
                               zinc_status *status)
{
    const zn_ckpt_file *file = zn_ckpt_file_at(ckpt, k);
    for (int64_t at = 0; at < file->n_bytes; at += CHUNK_BYTES) {
        const int64_t left = file->n_bytes - at;
        const size_t n = (size_t)(left < CHUNK_BYTES ? left : CHUNK_BYTES);
        if (zn_comm_rank(comm) == root && *status == ZINC_OK)
            *status = zn_ckpt_bytes(ckpt, k, at, n, chunk);
        ZN_TRY(broadcast(comm, chunk, n, root));
        if (fd >= 0 && *status == ZINC_OK)
            *status = zn_fs_pwrite_all(fd, chunk, n, at, file->name);
    }
    return ZINC_OK;
}

static zinc_status send_file(zn_comm *comm, zn_ckpt *ckpt, int k, int root, bool take,
                             const char *scratch)
{
    char *chunk = NULL;
    int fd = -1;
    zinc_status status = zn_alloc(&chunk, (size_t)CHUNK_BYTES, "a piece of a file");
    if (status == ZINC_OK && take)
        status = open_unnamed(scratch, &fd);
    status = zn_comm_agree(comm, status);
    if (status == ZINC_OK) {
        zinc_status mine = ZINC_OK;
        status = send_pieces(comm, ckpt, k, root, fd, chunk, &mine);
        if (status == ZINC_OK && mine == ZINC_OK && take)
            mine = zn_ckpt_supply(ckpt, k, fd);
        if (status == ZINC_OK)
            status = zn_comm_agree(comm, mine);
    }
    if (fd >= 0)
        close(fd);
    zn_free(chunk);
    return status;
}

/* ---- all of them ---- */

/* A file that loading needs and no rank has. */
static zinc_status check_all_there(zn_comm *comm, const zn_ckpt *ckpt, const char *path,
                                   const flags *have)
{
    for (int k = 0; k < have->n_files; k++) {
        const zn_ckpt_file *file = zn_ckpt_file_at(ckpt, k);
        if ((!zn_ckpt_is_index(ckpt, k) && !zn_ckpt_is_data(ckpt, k)) ||
            first_rank(have, k, true) >= 0)
            continue;
        const bool told = zn_ckpt_trouble(ckpt)[0] != '\0'; /* damage, where it was seen */
        ZN_TRY(zn_comm_agree(comm, told ? zn_error_set(ZINC_E_FORMAT, __FILE__, __LINE__, __func__,
                                                       "%s", zn_ckpt_trouble(ckpt))
                                        : ZINC_OK));
        if (file->node[0])
            ZN_FAIL(ZINC_E_IO,
                    "%s/%s is on no node of this run: it was written on the node %s; let that node "
                    "take part, or copy the file into %s of any node",
                    path, file->name, file->node, path);
        ZN_FAIL(ZINC_E_IO, "%s/%s is missing", path, file->name);
    }
    return ZINC_OK;
}

static zinc_status open_here(zn_comm *comm, const char *path, zn_ckpt **out)
{
    zinc_status status = ZINC_OK;
    zn_buf manifest = {0};
    char *name = NULL;
    ZN_TRY_GOTO(zn_fs_join(path, ZN_CKPT_MANIFEST, &name));
    if (zn_comm_rank(comm) == 0)
        status = zn_fs_read(name, 0, &manifest);
    ZN_TRY_GOTO(zn_comm_agree(comm, status));
    ZN_TRY_GOTO(zn_comm_share_text(comm, 0, &manifest));
    status = zn_comm_agree(comm, zn_ckpt_open_here(path, manifest.data, manifest.n, out));
fail:
    zn_free(name);
    zn_buf_fini(&manifest);
    return status;
}

zinc_status zn_ckpt_open_nodes(zn_comm *comm, const char *path, const char *scratch, zn_ckpt **out)
{
    zinc_status status;
    flags have = {0};
    zn_ckpt *ckpt = NULL;
    ZN_TRY_GOTO(open_here(comm, path, &ckpt));
    ZN_TRY_GOTO(zn_comm_agree(comm, flags_create(comm, ckpt, &have)));
    ZN_TRY_GOTO(exchange(comm, ckpt, &have, zn_ckpt_has));
    ZN_TRY_GOTO(check_all_there(comm, ckpt, path, &have));
    if (zn_ckpt_trouble(ckpt)[0])
        zn_warn("ckpt", "%s; another rank has read it and sends it", zn_ckpt_trouble(ckpt));
    for (int k = 0; k < have.n_files; k++)
        if (zn_ckpt_is_index(ckpt, k) && first_rank(&have, k, false) >= 0)
            ZN_TRY_GOTO(
                send_file(comm, ckpt, k, first_rank(&have, k, true), !have.mine[k], scratch));
    ZN_TRY_GOTO(zn_comm_agree(comm, zn_ckpt_index(ckpt)));
    flags_fini(&have);
    *out = ckpt;
    return ZINC_OK;
fail:
    flags_fini(&have);
    zn_ckpt_close(ckpt);
    return status;
}

static bool lacks_data(const zn_ckpt *ckpt, int k)
{
    return zn_ckpt_is_data(ckpt, k) && !zn_ckpt_has(ckpt, k);
}

zinc_status zn_engine_fetch(zn_engine *engine, zn_ckpt *ckpt, const char *scratch)
{
    zinc_status status;
    flags have = {0}, want = {0};
    zn_comm *comm = zn_engine_comm(engine);
    bool some = false;
    int n_sent = 0;
    ZN_TRY_GOTO(zn_comm_agree(comm, flags_create(comm, ckpt, &have)));
    ZN_TRY_GOTO(zn_comm_agree(comm, flags_create(comm, ckpt, &want)));
    ZN_TRY_GOTO(exchange(comm, ckpt, &have, lacks_data));
    for (int k = 0; k < have.n_files; k++)
        some = some || first_rank(&have, k, true) >= 0;
    if (!some)
        goto done;
    ZN_TRY_GOTO(zn_engine_want(engine, ckpt));
    ZN_TRY_GOTO(exchange(comm, ckpt, &want, zn_ckpt_wants));
    ZN_TRY_GOTO(exchange(comm, ckpt, &have, zn_ckpt_has));
    for (int k = 0; k < want.n_files; k++) {
        if (first_rank(&want, k, true) < 0)
            continue;
        ZN_TRY_GOTO(send_file(comm, ckpt, k, first_rank(&have, k, true), want.mine[k], scratch));
        n_sent++;
    }
    if (zn_comm_rank(comm) == 0 && n_sent > 0)
        zn_info("ckpt", "%d files of the checkpoint were sent to nodes that did not have them",
                n_sent);
done:
    status = ZINC_OK;
fail:
    flags_fini(&have);
    flags_fini(&want);
    return status;
}
