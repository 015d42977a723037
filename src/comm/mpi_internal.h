/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_internal.h — what mpi_process.c (one MPI in this process: begin, end, poll, abort) and mpi.c
 * (the collectives) share.
 *
 * Zinc uses MPI only to move bytes: non-blocking sends and receives on one private communicator.
 * A comm is an id that goes into the message tag, and a list of the MPI ranks in it, so that
 * opening groups needs no collective call of MPI, which would have no deadline.
 *
 *   tag 1             "this comm cannot go on" (abort_message)
 *   tag 2 * id        headers: which call a rank makes; every call starts with one to every peer
 *   tag 2 * id + 1    data
 *
 * MPI delivers messages of one sender and one tag in order, so calls need no numbers in their tags.
 * Threads: MPI_THREAD_SERIALIZED; every MPI call is made with the process lock held, briefly.
 * Layer: comm. */
#ifndef ZN_COMM_MPI_INTERNAL_H
#define ZN_COMM_MPI_INTERNAL_H

#include "comm/comm_internal.h"

#ifdef ZINC_HAVE_MPI

#include <mpi.h>

/* Requests that are waited for together. */
typedef struct mpi_batch {
    MPI_Request *requests; /* [capacity]; MPI_REQUEST_NULL when complete */
    int *peers;            /* [capacity] rank in the comm */
    bool *receives;        /* [capacity] */
    int capacity, n;
} mpi_batch;

#define ABORT_TEXT_BYTES 1024

typedef struct mpi_abort_message {
    int32_t id;
    int32_t status;
    int64_t seq; /* of the call that failed */
    char text[ABORT_TEXT_BYTES];
} mpi_abort_message;

typedef struct mpi_comm {
    zn_comm *comm;
    int id;
    int *mpi_ranks;          /* [n_ranks] */
    zn_comm_header mine;     /* being sent */
    zn_comm_header *headers; /* [n_ranks] received; own one included */
    mpi_batch batches[2];    /* two, so that the next pieces move while one is summed */
    const void **sources;    /* [n_ranks] scratch of reduce_scatter */
    bool *missing;           /* [n_ranks] scratch of messages */
    char *staging;           /* [2][n_ranks - 1] pieces received for summing */
    size_t staging_bytes;
    bool staging_busy;    /* MPI may still write there: never freed */
    int *indices;         /* [capacity] scratch of MPI_Testsome */
    MPI_Status *statuses; /* [capacity] */
    /* Guarded by the process lock. */
    struct mpi_comm *next; /* all comms of the process */
    bool peer_aborted;
    mpi_abort_message peer_abort;
    bool abort_sent;
    mpi_abort_message abort;  /* being sent */
    MPI_Request *abort_sends; /* [n_ranks] */
} mpi_comm;

/** Start MPI if needed, count one more user, and give this process's rank and size. */
ZINC_MUST_CHECK zinc_status zn_mpi_begin(int *rank, int *n_ranks, int *id);
/** One user less; the last one ends MPI, unless `broken`: then peers may be gone, and ending MPI
 *  would wait for them. */
void zn_mpi_end(bool broken);

/** The next free id of a group, as this process knows it; the largest of all members is taken. */
int64_t zn_mpi_next_group(void);
int zn_mpi_take_group(int64_t group);

/** Make the comm known to incoming aborts, and forget it. */
ZINC_MUST_CHECK zinc_status zn_mpi_register(mpi_comm *m);
void zn_mpi_forget(mpi_comm *m);

/** Post one message of a batch. n_bytes <= INT_MAX. */
ZINC_MUST_CHECK zinc_status zn_mpi_post(mpi_comm *m, mpi_batch *batch, bool receive, void *buf,
                                        size_t n_bytes, int peer, int tag);
/** Poll until the batch is complete; `headers`: it is the first phase of a call.
 *  Errors: E_TIMEOUT, E_ABORTED, E_COMM; its requests are still there then. */
ZINC_MUST_CHECK zinc_status zn_mpi_finish(mpi_comm *m, mpi_batch *batch, bool headers);
/** Give up the requests of a batch after a failure. */
void zn_mpi_drop(mpi_comm *m, mpi_batch *batch);

void zn_mpi_send_abort(mpi_comm *m, const zn_error *error);

#endif
#endif
