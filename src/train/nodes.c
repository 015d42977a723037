/* SPDX-License-Identifier: Apache-2.0 */
#include "train/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/engine_ckpt.h"

/* ---- what rank 0 has found ---- */

#define MAX_PATH 4096

typedef struct found {
    char dir[MAX_PATH]; /* "": a new run */
    bool deepspeed, nothing_left;
    int64_t step;
    uint64_t run_id; /* also of a new run */
} found;

static zinc_status fill(const zn_train_resume *r, uint64_t seed, found *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t fresh =
        zn_hash_fold(zn_hash_fold(seed, (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec),
                     (uint64_t)getpid());
    *out = (found){.deepspeed = r->deepspeed,
                   .nothing_left = r->nothing_left,
                   .step = r->step,
                   .run_id = r->run_id ? r->run_id : fresh};
    if (r->dir && strlen(r->dir) >= MAX_PATH)
        ZN_FAIL(ZINC_E_INVALID, "the path of the checkpoint is too long: %.200s…", r->dir);
    snprintf(out->dir, sizeof out->dir, "%s", r->dir ? r->dir : "");
    return ZINC_OK;
}

static zinc_status share(zn_train_setup *s, zn_comm *comm)
{
    zinc_status status;
    found f;
    zn_buf bytes = {0};
    zn_train_resume *r = &s->resume;
    status = zn_comm_rank(comm) == 0 ? zn_train_begin(s) : ZINC_OK;
    if (status == ZINC_OK)
        status = fill(r, s->o->seed, &f);
    if (status == ZINC_OK)
        status = zn_buf_append(&bytes, &f, sizeof f);
    ZN_TRY_GOTO(zn_comm_agree(comm, status));
    ZN_TRY_GOTO(zn_comm_share_text(comm, 0, &bytes));
    memcpy(&f, bytes.data, sizeof f);
    *r = (zn_train_resume){.dir = r->dir,
                           .deepspeed = f.deepspeed,
                           .nothing_left = f.nothing_left,
                           .step = f.step,
                           .run_id = f.run_id};
    if (f.dir[0] && !r->dir)
        status = zn_strdup(f.dir, &r->dir);
    status = zn_comm_agree(comm, status);
fail:
    zn_buf_fini(&bytes);
    return status;
}

/* ---- who sees which folder ---- */

static zinc_status token_path(const char *output, uint64_t nonce, int rank, char **out)
{
    return zn_format(out, "%s/.zinc-node-%016llx-%d", output, (unsigned long long)nonce, rank);
}

static zinc_status put_token(const char *output, uint64_t nonce, int rank)
{
    char *path = NULL;
    ZN_TRY(zn_fs_mkdirs(output));
    ZN_TRY(token_path(output, nonce, rank, &path));
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const int error = errno;
    zn_free(path);
    if (fd < 0)
        ZN_FAIL(ZINC_E_IO, "cannot write into the folder %s: %s", output, strerror(error));
    close(fd);
    return ZINC_OK;
}

/* The lowest rank whose token is seen: its own at the latest. */
static zinc_status lowest_seen(const char *output, uint64_t nonce, int rank, int *out)
{
    for (*out = 0; *out < rank; ++*out) {
        char *path = NULL;
        ZN_TRY(token_path(output, nonce, *out, &path));
        const bool seen = zn_fs_exists(path);
        zn_free(path);
        if (seen)
            break;
    }
    return ZINC_OK;
}

static void remove_token(const char *output, uint64_t nonce, int rank)
{
    char *path = NULL;
    if (token_path(output, nonce, rank, &path) == ZINC_OK)
        (void)unlink(path); /* in nobody's way if it stays; the next start removes it */
    zn_free(path);
}

static zinc_status find_folders(const char *output, uint64_t nonce, zn_comm *comm, zn_nodes *out)
{
    zinc_status status;
    const int rank = zn_comm_rank(comm), n_ranks = zn_comm_n_ranks(comm);
    int lowest = rank, *all = NULL;
    char host[ZN_CKPT_NODE_BYTES] = "";
    (void)gethostname(host, sizeof host - 1); /* without a name: "" */
    if (!host[0])
        snprintf(host, sizeof host, "rank-%d", rank);
    ZN_TRY_GOTO(zn_comm_agree(comm, put_token(output, nonce, rank)));
    status = zn_alloc_array(&all, (size_t)n_ranks, sizeof *all, "folders");
    if (status == ZINC_OK)
        status = zn_alloc_array(&out->names, (size_t)n_ranks, sizeof *out->names, "host names");
    if (status == ZINC_OK)
        status = lowest_seen(output, nonce, rank, &lowest);
    ZN_TRY_GOTO(zn_comm_agree(comm, status));
    ZN_TRY_GOTO(zn_comm_exchange(comm, &lowest, sizeof lowest, all, "output folders"));
    ZN_TRY_GOTO(zn_comm_exchange(comm, host, sizeof host, out->names, "host names"));
    for (int r = 0; r < n_ranks; r++)
        out->n_folders += all[r] == r;
    out->first = lowest == rank;
    status = ZINC_OK;
fail:
    remove_token(output, nonce, rank);
    zn_free(all);
    return status;
}

static zinc_status take_folder(zn_train_setup *s)
{
    ZN_TRY(zn_train_lock_output(s));
    if (s->o->resume)
        zn_ckpt_clean(s->o->output_dir);
    return zn_train_claim_output(s->o);
}

zinc_status zn_train_begin_processes(zn_train_setup *setup, zn_comm *comm, zn_nodes *out)
{
    const int rank = zn_comm_rank(comm);
    ZN_TRY(share(setup, comm));
    if (setup->resume.nothing_left)
        return ZINC_OK;
    ZN_TRY(find_folders(setup->o->output_dir, setup->resume.run_id, comm, out));
    if (rank == 0 && out->n_folders > 1)
        zn_info("train",
                "%s is another folder on each of %d nodes: each keeps what its ranks save, and "
                "`zinc export` takes the folders of all",
                setup->o->output_dir, out->n_folders);
    return zn_comm_agree(comm, out->first && rank != 0 ? take_folder(setup) : ZINC_OK);
}

void zn_nodes_fini(zn_nodes *nodes)
{
    zn_free(nodes->names);
    memset(nodes, 0, sizeof *nodes);
}
