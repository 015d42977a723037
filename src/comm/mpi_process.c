/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/mpi_internal.h"

#ifdef ZINC_HAVE_MPI

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/sys.h"

#define TAG_ABORT 1
#define SPIN_SECONDS 20e-6
#define YIELD_SECONDS 200e-6
#define SLEEP_SECONDS 50e-6
#define SLEEP_SECONDS_MAX 200e-6
#define DROP_SECONDS 1.0

/* MPI exists once in a process, can be started once and ended once: this is the one state of Zinc
 * that hangs on no handle. */
static struct {
    pthread_mutex_t lock; /* held for every MPI call */
    MPI_Comm comm;        /* private duplicate of MPI_COMM_WORLD */
    int n_users;
    int n_opened;   /* collective, so the same number on every rank */
    int next_group; /* not the same on every rank */
    bool started, ours, ended;
    bool spin; /* as many cores as ranks */
    mpi_comm *comms;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- beginning and ending ---- */

static zinc_status mpi_failed(int rc, const char *what)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int n = 0;
    MPI_Error_string(rc, text, &n);
    ZN_FAIL(ZINC_E_COMM, "MPI failed in %s: %s", what, text);
}

/* Lock held. */
static zinc_status start_mpi(void)
{
    int running = 0, level = MPI_THREAD_SINGLE, n_ranks = 0;
    if (process.ended)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "MPI can be started once in a process, and it was ended when "
                                    "the last mpi comm was closed; keep one open");
    MPI_Initialized(&running);
    if (!running) {
        const int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        if (rc != MPI_SUCCESS)
            return mpi_failed(rc, "MPI_Init_thread");
        process.ours = true;
    } else {
        MPI_Query_thread(&level);
    }
    if (level < MPI_THREAD_SERIALIZED)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "the MPI library must allow calls from several threads, one at "
                                    "a time (MPI_THREAD_SERIALIZED), and this one does not");
    int rc = MPI_Comm_dup(MPI_COMM_WORLD, &process.comm);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_set_errhandler(process.comm, MPI_ERRORS_RETURN);
    if (rc != MPI_SUCCESS)
        return mpi_failed(rc, "MPI_Comm_dup");
    MPI_Comm_size(process.comm, &n_ranks);
    process.spin = n_ranks <= zn_sys_cores();
    process.started = true;
    return ZINC_OK;
}

zinc_status zn_mpi_begin(int *rank, int *n_ranks, int *id)
{
    pthread_mutex_lock(&process.lock);
    const zinc_status status = process.started ? ZINC_OK : start_mpi();
    if (status == ZINC_OK) {
        process.n_users++;
        *id = 2 * ++process.n_opened;
        MPI_Comm_rank(process.comm, rank);
        MPI_Comm_size(process.comm, n_ranks);
    }
    pthread_mutex_unlock(&process.lock);
    return status;
}

void zn_mpi_end(bool broken)
{
    pthread_mutex_lock(&process.lock);
    if (--process.n_users == 0) {
        process.started = false;
        process.ended = true;
        if (broken) {
            zn_debug("comm", "MPI is not ended after an error: its peers may be gone");
        } else {
            MPI_Comm_free(&process.comm);
            if (process.ours)
                MPI_Finalize();
        }
    }
    pthread_mutex_unlock(&process.lock);
}

/* Ids of comms opened on all ranks are even and of groups odd: the former are counted alike
 * everywhere, the latter are agreed on by the members. */
int64_t zn_mpi_next_group(void)
{
    pthread_mutex_lock(&process.lock);
    const int64_t group = process.next_group;
    pthread_mutex_unlock(&process.lock);
    return group;
}

int zn_mpi_take_group(int64_t group)
{
    pthread_mutex_lock(&process.lock);
    process.next_group = (int)group + 1;
    pthread_mutex_unlock(&process.lock);
    return 2 * (int)group + 1;
}

zinc_status zn_mpi_register(mpi_comm *m)
{
    int *tag_max = NULL, found = 0;
    pthread_mutex_lock(&process.lock);
    MPI_Comm_get_attr(process.comm, MPI_TAG_UB, &tag_max, &found);
    const int id_max = found ? *tag_max / 2 - 1 : 32767 / 2 - 1;
    if (m->id <= id_max) {
        m->next = process.comms;
        process.comms = m;
    }
    pthread_mutex_unlock(&process.lock);
    if (m->id > id_max)
        ZN_FAIL(ZINC_E_COMM, "more comms were opened in this job than MPI has message tags (%d)",
                id_max);
    return ZINC_OK;
}

/* ---- requests ---- */

zinc_status zn_mpi_post(mpi_comm *m, mpi_batch *batch, bool receive, void *buf, size_t n_bytes,
                        int peer, int tag)
{
    MPI_Request *const request = &batch->requests[batch->n];
    ZN_ASSERT(batch->n < batch->capacity && n_bytes <= INT32_MAX);
    pthread_mutex_lock(&process.lock);
    const int rc = receive ? MPI_Irecv(buf, (int)n_bytes, MPI_BYTE, m->mpi_ranks[peer], tag,
                                       process.comm, request)
                           : MPI_Isend(buf, (int)n_bytes, MPI_BYTE, m->mpi_ranks[peer], tag,
                                       process.comm, request);
    pthread_mutex_unlock(&process.lock);
    if (rc != MPI_SUCCESS)
        return mpi_failed(rc, receive ? "MPI_Irecv" : "MPI_Isend");
    batch->peers[batch->n] = peer;
    batch->receives[batch->n] = receive;
    batch->n++;
    return ZINC_OK;
}

static bool all_null(const MPI_Request *requests, int n)
{
    for (int i = 0; i < n; i++)
        if (requests[i] != MPI_REQUEST_NULL)
            return false;
    return true;
}

/* Poll until all are complete or `seconds` have passed. Lock not held. */
static bool settle(MPI_Request *requests, int n, double seconds)
{
    const double end = zn_sys_now() + seconds;
    for (;;) {
        pthread_mutex_lock(&process.lock);
        for (int i = 0; i < n; i++) {
            int done = 0;
            if (requests[i] != MPI_REQUEST_NULL)
                MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
        }
        const bool settled = all_null(requests, n);
        pthread_mutex_unlock(&process.lock);
        if (settled || zn_sys_now() > end)
            return settled;
        zn_sys_sleep(SLEEP_SECONDS);
    }
}

/* After a failure: receives are cancelled, sends are left to MPI. What MPI may still write to is
 * not freed. */
void zn_mpi_drop(mpi_comm *m, mpi_batch *batch)
{
    pthread_mutex_lock(&process.lock);
    for (int i = 0; i < batch->n; i++) {
        if (batch->requests[i] == MPI_REQUEST_NULL)
            continue;
        if (batch->receives[i])
            MPI_Cancel(&batch->requests[i]);
        else
            MPI_Request_free(&batch->requests[i]);
    }
    pthread_mutex_unlock(&process.lock);
    if (!settle(batch->requests, batch->n, DROP_SECONDS))
        m->staging_busy = true;
    batch->n = 0;
}

/* ---- aborts ---- */

/* Lock held. One abort, if one is here. */
static bool receive_abort(void)
{
    mpi_abort_message message;
    MPI_Status from;
    int here = 0;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_ABORT, process.comm, &here, &from) != MPI_SUCCESS || !here)
        return false;
    if (MPI_Recv(&message, (int)sizeof message, MPI_BYTE, from.MPI_SOURCE, TAG_ABORT, process.comm,
                 MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return false;
    message.text[ABORT_TEXT_BYTES - 1] = '\0';
    for (mpi_comm *m = process.comms; m; m = m->next) {
        if (m->id == message.id && !m->peer_aborted) {
            m->peer_abort = message;
            m->peer_aborted = true;
        }
    }
    return true;
}

/* Lock held. Take in what peers have sent; it may be for any comm of this process. A probe looks
 * before it lets MPI read the network, so only the second miss means that nothing is here. */
static void receive_aborts(void)
{
    for (int n_missed = 0; n_missed < 2;)
        n_missed = receive_abort() ? 0 : n_missed + 1;
}

void zn_mpi_send_abort(mpi_comm *m, const zn_error *error)
{
    pthread_mutex_lock(&process.lock);
    /* A rank that was told tells nobody: its peers hear it from the same rank. */
    if (!m->abort_sent && !m->peer_aborted) {
        m->abort_sent = true;
        m->abort = (mpi_abort_message){.id = m->id, .status = error->status, .seq = m->mine.seq};
        snprintf(m->abort.text, sizeof m->abort.text, "%.*s", ABORT_TEXT_BYTES - 1, error->message);
        for (int r = 0; r < m->comm->n_ranks; r++)
            if (r != m->comm->rank)
                MPI_Isend(&m->abort, (int)sizeof m->abort, MPI_BYTE, m->mpi_ranks[r], TAG_ABORT,
                          process.comm, &m->abort_sends[r]);
    }
    pthread_mutex_unlock(&process.lock);
}

void zn_mpi_forget(mpi_comm *m)
{
    pthread_mutex_lock(&process.lock);
    mpi_comm **link = &process.comms;
    while (*link && *link != m)
        link = &(*link)->next;
    if (*link)
        *link = m->next;
    pthread_mutex_unlock(&process.lock);
    if (m->abort_sent && !settle(m->abort_sends, m->comm->n_ranks, DROP_SECONDS))
        zn_debug("comm", "a peer did not take the news of an abort");
}

/* Lock held. The abort that ends this comm: its own or, before it, that of the outermost comm it
 * was split from. */
static const mpi_abort_message *abort_of(const mpi_comm *m)
{
    const mpi_abort_message *found = NULL;
    for (const zn_comm *comm = m->comm; comm; comm = comm->parent) {
        const mpi_comm *const state = comm->state;
        if (state->peer_aborted)
            found = &state->peer_abort;
    }
    return found;
}

static zinc_status aborted(const mpi_abort_message *message)
{
    const char *const prefix = message->status == ZINC_E_ABORTED ? "" : "stopped by a peer: ";
    ZN_FAIL(ZINC_E_ABORTED, "%s%s", prefix, message->text);
}

/* ---- polling ---- */

typedef struct poll {
    double start;
    double progress; /* when something last completed */
    double sleep;
    int n_open; /* requests not complete */
    mpi_abort_message abort;
    bool has_abort;
    int rc;
} poll;

static void poll_once(mpi_comm *m, mpi_batch *batch, poll *p)
{
    int n_done = 0;
    pthread_mutex_lock(&process.lock);
    p->rc = MPI_Testsome(batch->n, batch->requests, &n_done, m->indices, m->statuses);
    receive_aborts();
    const mpi_abort_message *const message = abort_of(m);
    p->has_abort = message != NULL;
    if (message)
        p->abort = *message;
    pthread_mutex_unlock(&process.lock);
    if (p->rc == MPI_ERR_IN_STATUS && n_done != MPI_UNDEFINED)
        for (int i = 0; i < n_done; i++)
            if (m->statuses[i].MPI_ERROR != MPI_SUCCESS)
                p->rc = m->statuses[i].MPI_ERROR;
    p->n_open = 0;
    for (int i = 0; i < batch->n; i++)
        p->n_open += batch->requests[i] != MPI_REQUEST_NULL;
    if (n_done > 0) {
        p->progress = zn_sys_now();
        p->sleep = SLEEP_SECONDS;
    }
}

/* Waiting for a peer to come, sleep soon: compute threads need the cores. Waiting for bytes, give
 * way to the peer first: MPI moves them only while it is called. */
static void back_off(poll *p, bool headers)
{
    const double idle = zn_sys_now() - p->progress;
    if (process.spin && idle < SPIN_SECONDS)
        return;
    if (idle < (headers ? SPIN_SECONDS : YIELD_SECONDS)) {
        sched_yield();
        return;
    }
    zn_sys_sleep(p->sleep);
    p->sleep = p->sleep * 2 < SLEEP_SECONDS_MAX ? p->sleep * 2 : SLEEP_SECONDS_MAX;
}

static zinc_status timed_out(mpi_comm *m, const mpi_batch *batch)
{
    memset(m->missing, 0, (size_t)m->comm->n_ranks * sizeof *m->missing);
    for (int i = 0; i < batch->n; i++)
        if (batch->requests[i] != MPI_REQUEST_NULL)
            m->missing[batch->peers[i]] = true;
    return zn_comm_timed_out(m->comm, &m->mine, m->missing);
}

/* What an abort by a peer means for this rank. One that failed in the same call because it compared
 * the headers or missed a rank has seen what we are about to see, and our own message says more. */
static zinc_status judge_abort(mpi_comm *m, const mpi_batch *batch, const poll *p, bool headers)
{
    const bool same = headers && p->abort.id == m->id && p->abort.seq == m->mine.seq;
    const bool early = zn_sys_now() - p->start < (double)m->comm->timeout_ms / 2000;
    if (same && p->abort.status == ZINC_E_COMM)
        return ZINC_OK;
    if (same && p->abort.status == ZINC_E_TIMEOUT && p->n_open > 0 && !early)
        return timed_out(m, batch);
    return aborted(&p->abort);
}

/* This rank's own abort, by another thread, of this comm or of one it was split from. */
static zinc_status check_failed(const mpi_comm *m)
{
    for (const zn_comm *comm = m->comm; comm; comm = comm->parent)
        if (comm->failed)
            return zn_error_restore(&comm->error);
    return ZINC_OK;
}

zinc_status zn_mpi_finish(mpi_comm *m, mpi_batch *batch, bool headers)
{
    const double now = zn_sys_now();
    const double timeout = (double)m->comm->timeout_ms / 1000;
    poll p = {.start = now, .progress = now, .sleep = SLEEP_SECONDS};
    for (;;) {
        poll_once(m, batch, &p);
        if (p.rc != MPI_SUCCESS)
            return mpi_failed(p.rc, "MPI_Testsome");
        if (p.has_abort)
            ZN_TRY(judge_abort(m, batch, &p, headers));
        if (p.n_open == 0)
            break;
        ZN_TRY(check_failed(m));
        /* Peers must have come by the deadline; bytes may take longer as long as they flow. */
        if (zn_sys_now() - (headers ? p.start : p.progress) > timeout)
            return timed_out(m, batch);
        back_off(&p, headers);
    }
    batch->n = 0;
    return ZINC_OK;
}

#endif
