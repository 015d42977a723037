/* SPDX-License-Identifier: Apache-2.0 */
/* comm_internal.h — what the files of comm/ share: one collective call, the ops table, the handle.
 *
 *   comm.c      checks arguments, counts, and puts a zn_comm_call on the comm's stream
 *   zn_comm_ops what a backend does with a call, on the stream's thread: self.c thread.c mpi.c
 *   reduce.c    the sum over ranks, the same bits for every backend and instruction set
 *
 * A backend is given every call in the order of submission, compares it with the peers' calls and
 * runs it. When it fails, comm.c tells the peers (ops->abort) and the stream keeps the error.
 * Layer: comm. */
#ifndef ZN_COMM_COMM_INTERNAL_H
#define ZN_COMM_COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm.h"

typedef enum zn_comm_kind {
    ZN_COMM_ALL_GATHER,
    ZN_COMM_REDUCE_SCATTER,
    ZN_COMM_BROADCAST,
    ZN_COMM_EXCHANGE,
    ZN_COMM_BARRIER,
    ZN_COMM_N_KINDS,
} zn_comm_kind;

#define ZN_COMM_TAG_BYTES 64

/* What must be the same on every rank. Plain bytes: it is also a message of the mpi backend. */
typedef struct zn_comm_header {
    int64_t seq; /* 0, 1, … in order of submission to this comm */
    int32_t kind;
    int32_t root;  /* broadcast; else 0 */
    int32_t dtype; /* all_gather, reduce_scatter: of slices; else ZN_DTYPE_U8 */
    int32_t unused;
    int64_t slice_elems; /* broadcast, exchange: bytes */
    int64_t n_blocks;    /* broadcast, exchange: 1 */
    char tag[ZN_COMM_TAG_BYTES];
} zn_comm_header;

/* One collective of one rank. Travels through the stream by value. */
typedef struct zn_comm_call {
    zn_comm *comm;
    zn_comm_header header;
    const void *in; /* shard, full, buf (root) or mine */
    void *out;      /* full, shard, buf (not root) or out */
    int64_t shard_stride;
    zn_dtype shard_dtype;
    bool accumulate;
    bool counted; /* in comm->stats.in_flight */
} zn_comm_call;

typedef struct zn_comm_ops {
    const char *name;
    bool shares_memory; /* ranks see one another's pointers */
    bool on_caller;     /* calls run inside submit, on the thread that submits them */
    /** Set comm->state, rank and n_ranks. Collective, on the caller's thread. */
    zinc_status (*open)(zn_comm *comm, const zn_comm_params *params);
    /** Give `child` (rank, n_ranks and parent set) its state. group [child->n_ranks]: the ranks of
     *  `comm` in it. Collective over `comm`, on the caller's thread, which may use `comm`. */
    zinc_status (*split)(zn_comm *comm, const int *group, zn_comm *child);
    /** Accepts a NULL state. The stream has ended. */
    void (*close)(zn_comm *comm);
    /** Run one collective; on the stream's thread. */
    zinc_status (*run)(zn_comm *comm, const zn_comm_call *call);
    /** Tell the peers that this rank cannot go on. Any thread; does not block; may be repeated. */
    void (*abort)(zn_comm *comm, const zn_error *error);
} zn_comm_ops;

struct zn_comm {
    const zn_comm_ops *ops;
    void *state; /* the backend's */
    zn_comm *parent;
    zn_device *dev;
    zn_stream *stream;
    int rank, n_ranks;
    int64_t timeout_ms;
    int64_t next_seq; /* the submitting thread's */
    int64_t *words;   /* [2 * n_ranks] the submitting thread's, for small exchanges */
    bool has_lock;
    pthread_mutex_t lock; /* guards stats and the writing of `error` */
    zn_comm_stats stats;
    _Atomic bool failed;
    zn_error error; /* valid, and no longer written, if failed */
};

extern const zn_comm_ops zn_comm_self_ops;
extern const zn_comm_ops zn_comm_thread_ops;
extern const zn_comm_ops zn_comm_host_ops;
#ifdef ZINC_HAVE_MPI
extern const zn_comm_ops zn_comm_mpi_ops;
#endif

/** Find a backend by name. Errors: E_UNSUPPORTED names those of this build. */
ZINC_MUST_CHECK zinc_status zn_comm_find_backend(const char *name, const zn_comm_ops **out);

const char *zn_comm_kind_name(int32_t kind);

/** Bytes of one slice of the call. */
size_t zn_comm_slice_bytes(const zn_comm_header *header);

/** Whether the call's shard already lies in its place inside the full buffer. */
bool zn_comm_in_place(const zn_comm *comm, const zn_comm_call *call);

#define ZN_COMM_TEXT_BYTES 192

/** `all_gather #12 "h.3" (float32, 3 blocks of 4096 elements a rank)` */
void zn_comm_describe(const zn_comm_header *header, char text[ZN_COMM_TEXT_BYTES]);

/** Compare the calls of two ranks. Errors: E_COMM names both. */
ZINC_MUST_CHECK zinc_status zn_comm_compare(int rank_a, const zn_comm_header *a, int rank_b,
                                            const zn_comm_header *b);

/** Decide E_TIMEOUT: `missing` [n_ranks] says which ranks have not arrived. */
zinc_status zn_comm_timed_out(const zn_comm *comm, const zn_comm_header *header,
                              const bool *missing);

/** Keep the first error; later calls on this comm return it. Any thread. */
void zn_comm_fail(zn_comm *comm, const zn_error *error);

/** Broadcast, not counted, and wait for it. Collective. */
ZINC_MUST_CHECK zinc_status zn_comm_broadcast_now(zn_comm *comm, void *buf, size_t n_bytes,
                                                  int root, const char *tag);

/** A handle with its stream and lock, without state, rank or n_ranks. */
ZINC_MUST_CHECK zinc_status zn_comm_handle_create(const zn_comm_ops *ops, zn_device *dev,
                                                  int64_t timeout_ms, zn_comm **out);
/** Give the handle what depends on n_ranks. */
ZINC_MUST_CHECK zinc_status zn_comm_handle_size(zn_comm *comm);
/** Drain, close the backend, free. Accepts half-built handles and NULL. */
void zn_comm_handle_destroy(zn_comm *comm);

/* ---- the sum over ranks ---- */

/* dst = round([dst +] (src[0] + src[1] + …)), in fp32, in this order. */
typedef struct zn_reduce {
    const void *const *src; /* [n_src], each [n_elems] of src_dtype */
    int n_src;              /* >= 1 */
    zn_dtype src_dtype;     /* F32, BF16, F16 */
    zn_dtype dst_dtype;     /* F32, BF16, F16 */
    void *dst;              /* [n_elems]; may be a src if both are F32 */
    bool accumulate;
    int64_t n_elems;
} zn_reduce;

void zn_reduce_sum(const zn_reduce *reduce);

/* The same by plain C and by each instruction set; the same bits. */
void zn_reduce_sum_ref(const zn_reduce *reduce);
#ifdef ZINC_COMM_SIMD
void zn_reduce_sum_avx2(const zn_reduce *reduce);
void zn_reduce_sum_avx512(const zn_reduce *reduce);
#endif

#endif
