/* SPDX-License-Identifier: Apache-2.0 */
/* zero_internal.h — what the files of zero/ share.
 *
 *   region (full):   | chunk 0: r0 | r1 | … | chunk 1: r0 | r1 | … |      chunk_elems each
 *   shard (packed):  | chunk 0: r  | chunk 1: r  | …                      slice_elems each
 *
 * A view says where slice (chunk c, rank r) of some quantity lies: base + c * chunk_stride +
 * r * rank_stride. In a full buffer the strides are {chunk, slice}; in a packed shard {slice, 0}.
 * So masters that are the parameters, gradients reduced in place and shared buffers are only views.
 * Layer: zero. */
#ifndef ZN_ZERO_ZERO_INTERNAL_H
#define ZN_ZERO_ZERO_INTERNAL_H

#include "base/mem.h"
#include "zero/zero.h"

typedef struct zn_zero_view {
    void *base; /* NULL: does not exist on this rank */
    zn_dtype dtype;
    int64_t chunk_stride, rank_stride; /* elements */
} zn_zero_view;

static inline void *zn_zero_at(const zn_zero_view *view, int64_t chunk, int64_t rank)
{
    const int64_t elem = chunk * view->chunk_stride + rank * view->rank_stride;
    return (char *)view->base + elem * (int64_t)zn_dtype_size(view->dtype);
}

typedef struct zn_zero_region {
    int unit;
    bool trainable, persistent;
    bool tied;                 /* has a parameter whose gradient grows through the whole backward */
    int first_piece, n_params; /* into zn_zero.placed: the parameters of this region */
    int64_t n_elems;           /* end of the last parameter */
    int64_t n_chunks, chunk_elems, slice_elems, padded_elems;
    int64_t first_chunk; /* number of this region's chunk 0 among all trainable chunks */

    bool offloaded;      /* masters, state and reduced gradients are not on the device */
    bool param_on_host;  /* the parameter shard is on the host, */
    bool param_on_disk;  /* or on disk: then param has no memory */
    int64_t slab_first;  /* position of its first element (tiers.c) */
    int64_t slab_stride; /* positions from slice to slice, >= slice_elems */
    zn_zero_view param;  /* this rank's slices; full layout where a full copy is kept */
    bool full;           /* param.base is a complete copy: nothing to gather */
    zn_zero_view master; /* fp32; the param view itself in fp32 training; split: low halves */
    bool master_is_param;
    bool split;           /* the master's high half is the bf16 parameter */
    int64_t master_first; /* in its slab on the host, of whole or of split masters */
    zn_zero_view state[ZN_OPTIM_MAX_STATES];
    zn_zero_view grad; /* reduced gradients at rest */

    zn_zero_view secondary; /* this rank's slices of the secondary group's copy; base NULL: none */
    int64_t secondary_chunks; /* of it: chunks that hold the present values */

    void *gathered;         /* stage 3: full copy while live */
    int64_t chunks_issued;  /* of `gathered`: chunks whose gather has been submitted */
    int64_t prefetched;     /* elements issued ahead and not yet used */
    zn_event gather_event;  /* of the last one submitted */
    float *unit_grad;       /* full fp32 gradient of this micro-batch, or of the window so far */
    float *own_grad;        /* its buffer, where that is not of the pool */
    bool grad_stays;        /* `grad` lies in own_grad */
    void *parted_grad;      /* where it went if it could not stay */
    bool unit_grad_touched; /* the model asked for it in this window */
    bool updated;           /* its update has been submitted before the step */
} zn_zero_region;

/* Where a parameter's gradient of this micro-batch (or of the window so far) is. */
typedef enum zn_zero_grad_in {
    ZN_ZERO_GRAD_NONE, /* there is none yet, which counts as zero */
    ZN_ZERO_GRAD_UNIT, /* in unit_grad of its region */
    ZN_ZERO_GRAD_WIRE, /* in the staging buffer that its region holds, rounded */
} zn_zero_grad_in;

/* Where a parameter lies. */
typedef struct zn_zero_place {
    int param, region;
    int64_t offset; /* first element inside the region */
    int64_t n_elems;
    zn_zero_grad_in grad_in;
} zn_zero_place;

/* One contiguous run of one parameter inside one slice: the unit of update, save and load. */
typedef struct zn_zero_piece {
    int param, region, rank;
    int64_t chunk, in_slice; /* element inside the slice where it starts */
    int64_t n, param_offset; /* first element inside the parameter */
} zn_zero_piece;

typedef struct zn_zero_unit {
    int regions[4], n_regions;
    int n_members; /* units of the model joined in it */
    int users;     /* before_use minus after_use */
    int n_ready;   /* members whose gradients are ready in this micro-batch */
    double began;  /* zn_sys_now() when its use began, if the device is traced */
} zn_zero_unit;

/* A unit of the model, as hooks speak of it. */
typedef struct zn_zero_member {
    int unit;         /* the joined unit it belongs to */
    bool first, last; /* of that unit's members */
    bool ready;       /* its gradients, in this micro-batch */
} zn_zero_member;

/* Where a gather reads: the ranks of `comm` hold slices of slice_elems side by side in each chunk.
 */
typedef struct zn_zero_source {
    zn_comm *comm;
    int64_t slice_elems;
    zn_zero_view slices; /* this rank's; or a full buffer with its slices in place */
} zn_zero_source;

/* Buffers that come and go during a step: kept and handed out again, so that nothing allocates once
 * every size has been seen. */
typedef struct zn_zero_pool {
    zn_mem_category category;
    const char *what;
    struct zn_zero_pool_item {
        void *ptr;
        size_t n_bytes;
        bool used;
    } * items;
    int n_items;
} zn_zero_pool;

/* A reduction that may still be reading `buffer`. */
typedef struct zn_zero_pending {
    zn_event event;
    float *buffer; /* goes back to the gradient pool afterwards; NULL: nothing to return */
} zn_zero_pending;

/* What is on disk: each quantity is a run of one file, in order of position. */
typedef enum zn_zero_file {
    ZN_ZERO_STATE_FILE, /* masters, states, gradients */
    ZN_ZERO_PARAM_FILE,
    ZN_ZERO_N_FILES,
} zn_zero_file;

enum {
    ZN_ZERO_RUN_MASTERS, /* the states follow */
    ZN_ZERO_RUN_GRADS = 1 + ZN_OPTIM_MAX_STATES,
    ZN_ZERO_RUN_PARAMS,
    ZN_ZERO_N_RUNS,
};
#define ZN_ZERO_STATE_RUNS ((1u << ZN_ZERO_RUN_GRADS) - 1) /* masks for walks */
#define ZN_ZERO_GRAD_RUNS (1u << ZN_ZERO_RUN_GRADS)
#define ZN_ZERO_PARAM_RUNS (1u << ZN_ZERO_RUN_PARAMS)

typedef struct zn_zero_run {
    zn_zero_file file;
    int64_t elem_bytes;         /* 0: not on disk */
    int64_t in_file, in_window; /* bytes from the beginning */
} zn_zero_run;

/* A buffer of window_elems positions of every run (windows.c). */
typedef struct zn_zero_window {
    char *buffer;
    zn_event ready[ZN_ZERO_N_FILES], written[ZN_ZERO_N_FILES];
} zn_zero_window;

#define ZN_ZERO_N_WINDOWS 3           /* one is read, one updated, one written */
#define ZN_ZERO_BLOCK ((int64_t)2048) /* elements; whole blocks of the disk in every type */
#define ZN_ZERO_MAX_PARAM_BUFFERS 64

static inline int64_t zn_zero_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

#define ZN_ZERO_MAX_PENDING 2 /* unit gradients in flight; as DeepSpeed's stage 3 */

struct zn_zero {
    zn_zero_params p;
    zn_comm *group;          /* the shard group; p.comm where there is one group */
    int rank, n_ranks;       /* in it: S */
    zn_comm *replicas;       /* this rank's peers in all groups; NULL: one group */
    int n_replicas;          /* R */
    zn_comm *secondaries;    /* the ranks that share a secondary copy; NULL: none */
    zn_param_list list;      /* own copy; its units are joined ones */
    zn_zero_member *members; /* [n_members] by unit of the model */
    int n_members;
    int *group_of_param;
    zn_param_hooks hooks;

    zn_zero_region *regions;
    int n_regions;
    zn_zero_place *places; /* [n_specs] by parameter id */
    int *placed;           /* [n_specs] parameter ids in layout order */
    zn_zero_unit *units;   /* [list.n_units] */
    zn_zero_piece *pieces; /* all ranks' pieces, in (unit, region, chunk, rank, offset) order */
    int64_t n_pieces;
    int64_t n_chunks; /* of all trainable regions */

    size_t kept_bytes; /* of param_slab, if the embedding program owns it */
    /* one allocation a quantity */
    void *param_slab, *shared_slab, *master_slab, *low_slab, *grad_slab;
    void *accumulator_slab; /* full unit gradients of offloaded regions that add in place */
    void *state_slab[ZN_OPTIM_MAX_STATES];
    void *secondary_slab;
    int64_t shared_charge; /* bytes charged for this rank's slices of shared_slab */

    /* tiers.c: where things are; everything zero unless something is offloaded */
    int64_t offloaded_elems;                  /* positions that this rank updates */
    int64_t trainable_params_end, params_end; /* positions of the run of parameters on disk */
    int64_t window_elems, window_bytes, file_bytes[ZN_ZERO_N_FILES];
    zn_zero_run runs[ZN_ZERO_N_RUNS];
    bool grads_on_disk, sends_back;       /* some updated parameters go to the device */
    int64_t host_masters, host_low_elems; /* positions of whole and of split masters there */
    int64_t landing_elems, param_buffer_elems;
    int n_param_buffers;

    /* offload.c */
    void *host_param_slab, *host_master_slab, *host_low_slab, *host_grad_slab;
    void *host_state_slab[ZN_OPTIM_MAX_STATES];
    void *landing[2]; /* device: reduced slices of one bucket on their way to the host */
    zn_event landing_event[2];
    void *bounce;      /* host: what is added to gradients that are there already, or the reverse */
    void *grad_out[2]; /* host: gradients on their way to the disk */
    zn_event bounce_event, grad_out_event[2];
    int landing_next;
    void *out[2]; /* host: updated parameters on their way to the device, window_elems each */
    zn_event out_event[2];
    int out_next;
    int64_t out_window;                             /* of out[out_next]; -1: none */
    void *param_buffers[ZN_ZERO_MAX_PARAM_BUFFERS]; /* host: parameters from the disk */
    zn_event param_buffer_event[ZN_ZERO_MAX_PARAM_BUFFERS];
    int param_buffer_next;

    /* early.c */
    bool early;         /* the step of this window has been announced, and may begin */
    zn_stream *updates; /* NULL until the first one */
    int64_t early_t;
    zn_optim_hyper *early_groups; /* as many as group_of_param speaks of */
    zn_zero_stats early_stats;    /* written on that stream */

    /* windows.c */
    zn_disk *disks[ZN_ZERO_N_FILES];
    zn_event last_write[ZN_ZERO_N_FILES];
    zn_zero_window windows[ZN_ZERO_N_WINDOWS];
    zn_zero_window *window; /* the open one; NULL: none, or everything is in memory */
    int64_t window_index;

    zn_zero_pool gather_pool, grad_pool;
    void *staging[2]; /* 16-bit wire: what a reduce bucket is rounded into */
    zn_event staging_event[2];
    int64_t staging_elems;
    int staging_next;
    zn_zero_region *staging_holder; /* gradients are stored into staging[staging_held] itself */
    int staging_held;
    zn_zero_pending pending[ZN_ZERO_MAX_PENDING];
    int n_pending;
    zn_event last_reduce;

    bool training, boundary;
    bool filling;            /* publish everything, frozen and stage 0 too */
    int micro_batches;       /* of this accumulation window */
    zinc_status grad_status; /* zn_zero_grad cannot return one: told at the next grads_ready */
    zn_error grad_error;

    int *trace; /* units in order of acquire of one training micro-batch */
    int64_t n_trace, trace_capacity, cursor;
    bool trace_known;  /* complete and equal on all ranks */
    bool trace_broken; /* this micro-batch left the known order: record again */
    int64_t live, prefetched;

    float *grad_scale;                /* device scalar */
    double *partials;                 /* [n_chunks * n_ranks] sums of squares by slice */
    double *exchange, *exchange_mine; /* scratch of the exchanges */
    double *sums, *all_sums; /* [n_pieces * n_sums] of an optimizer with per-parameter sums */
    double *totals;          /* [n_specs * n_sums] */
    float *fill_buffer;      /* [ZN_ZERO_IO_ELEMS] while filling or visiting */
    zn_zero_stats stats;
    double forward_began;      /* zn_sys_now(); 0: not in a forward pass */
    double forward_began_wait; /* stats.gather_wait_s then */
};

#define ZN_ZERO_IO_ELEMS ((int64_t)1 << 18)

/* Whether this rank keeps master and optimizer state of the piece. */
static inline bool zn_zero_updates_here(const zn_zero *zero, const zn_zero_piece *piece)
{
    return zero->regions[piece->region].trainable &&
           (zero->p.stage == 0 || piece->rank == zero->rank);
}

/* First element of a piece (plus `offset`) in a view. */
static inline void *zn_zero_piece_at(const zn_zero_view *view, const zn_zero_piece *piece,
                                     int64_t offset)
{
    return (char *)zn_zero_at(view, piece->chunk, piece->rank) +
           (piece->in_slice + offset) * (int64_t)zn_dtype_size(view->dtype);
}

static inline bool zn_zero_param_is_off(const zn_zero_region *region)
{
    return region->param_on_host || region->param_on_disk;
}

/* A reduction of this many elements takes far longer than starting one; larger buckets would only
 * take memory. */
#define ZN_ZERO_BUCKET_MOST ((int64_t)1 << 23)

/* Chunks of a region that one reduction moves: as many as the bucket holds, at least one. */
static inline int64_t zn_zero_bucket_chunks(const zn_zero_region *region, int64_t bucket)
{
    const int64_t most = bucket < ZN_ZERO_BUCKET_MOST ? bucket : ZN_ZERO_BUCKET_MOST;
    const int64_t chunks = most / region->chunk_elems;
    return chunks < 1 ? 1 : chunks > region->n_chunks ? region->n_chunks : chunks;
}

/* units.c */
/** Fill zero->members and zero->list from the model's list. */
ZINC_MUST_CHECK zinc_status zn_zero_join_units(zn_zero *zero, const zn_param_list *list);
/** The first unit of the model that has something to train; n_units: none has. */
int zn_zero_first_trainable(const zn_param_list *list);
/* groups.c */
/** Split the ranks into shard, replica and secondary groups. Collective. Errors: E_CONFIG for sizes
 *  that do not divide the ranks, E_UNSUPPORTED where the backend has no groups. */
ZINC_MUST_CHECK zinc_status zn_zero_groups_open(zn_zero *zero);
void zn_zero_groups_close(zn_zero *zero);
/** S of these settings on n_ranks, checked: the part of zn_zero_groups_open that needs no ranks. */
ZINC_MUST_CHECK zinc_status zn_zero_groups_check(const zn_zero_params *params, int n_ranks,
                                                 int *shard_ranks);
/* layout.c */
ZINC_MUST_CHECK zinc_status zn_zero_layout(zn_zero *zero);
/* store.c */
ZINC_MUST_CHECK zinc_status zn_zero_store_alloc(zn_zero *zero);
void zn_zero_store_free(zn_zero *zero);
ZINC_MUST_CHECK zinc_status zn_zero_pool_get(zn_zero *zero, zn_zero_pool *pool, size_t n_bytes,
                                             void *out);
void zn_zero_pool_put(zn_zero_pool *pool, void *ptr);
/** A block of the embedding program's memory, charged to `category`. Errors: E_NOMEM, E_INVALID. */
ZINC_MUST_CHECK zinc_status zn_zero_block_get(zn_zero *zero, int block, zn_mem_category category,
                                              size_t n_bytes, void **out);
void zn_zero_block_put(zn_zero *zero, int block, zn_mem_category category, size_t n_bytes,
                       void *ptr);
/** Whether unit gradients live in a full accumulator over the whole window (stage 0; stage 1 with
 *  accumulation) instead of a transient buffer. */
bool zn_zero_keeps_full_grads(const zn_zero *zero);
/** Whether that accumulator is fp32, so that the model adds into it. A 16-bit one is widened into a
 *  transient buffer at a unit's first gradient and rounded back once when the unit is ready. */
bool zn_zero_adds_in_place(const zn_zero *zero);
/** Whether a region's reduced gradients may stay in its full buffer, which is needed from the head
 *  to the end of backward anyway and serves one micro-batch a step. */
bool zn_zero_grad_stays(const zn_zero *zero, const zn_zero_region *region);
/** Give the reduced gradients of such a region memory of their own: another micro-batch comes. */
ZINC_MUST_CHECK zinc_status zn_zero_part_grad(zn_zero *zero, zn_zero_region *region);
/* gather.c */
/** Wait for an event and add the time to *seconds, one of the stats. */
ZINC_MUST_CHECK zinc_status zn_zero_wait(zn_event event, double *seconds);
ZINC_MUST_CHECK zinc_status zn_zero_before_use(void *ctx, int member, zn_pass pass);
ZINC_MUST_CHECK zinc_status zn_zero_after_use(void *ctx, int member, zn_pass pass);
const void *zn_zero_data(void *ctx, int param);
/** Whether the member's unit stays gathered after a use that was its last for now. */
bool zn_zero_keeps(const zn_zero *zero, int member, zn_pass pass);
/** Let go of every gathered copy. */
zinc_status zn_zero_release_all(zn_zero *zero);
/** Gather chunks [first, first + n) of a region from all ranks' slices into `full`; in steps of at
 *  most `bucket` elements (at least a chunk). */
ZINC_MUST_CHECK zinc_status zn_zero_gather_chunks(zn_zero *zero, const zn_zero_region *region,
                                                  const zn_zero_source *source, void *full,
                                                  int64_t first, int64_t n, int64_t bucket,
                                                  zn_event *event);
/** The shard group's slices of a region as a source: of parameters, or of gradients. */
zn_zero_source zn_zero_primary(const zn_zero *zero, const zn_zero_region *region,
                               const zn_zero_view *slices);
/** Every rank's parameters are about to be others: secondary copies are void. all: frozen ones
 *  too. */
void zn_zero_forget_secondary(zn_zero *zero, bool all);
/* schedule.c */
ZINC_MUST_CHECK zinc_status zn_zero_trace_acquire(zn_zero *zero, int unit);
ZINC_MUST_CHECK zinc_status zn_zero_trace_end(zn_zero *zero);
/** Elements used between now and the unit's next use in this micro-batch; INT64_MAX: not used
 *  again, or unknown. */
int64_t zn_zero_next_use(const zn_zero *zero, int unit);
/** Index into the trace, past the last use that may be gathered ahead now. */
int64_t zn_zero_prefetch_end(const zn_zero *zero);
int64_t zn_zero_unit_elems(const zn_zero *zero, int unit);
/* offload.c */
/** Lay offloaded regions out on the host and make the buffers of their transfers. */
ZINC_MUST_CHECK zinc_status zn_zero_offload_alloc(zn_zero *zero);
void zn_zero_offload_free(zn_zero *zero);
/** Where the reduction of `region`'s chunks [chunk, chunk + n) should put this rank's slices, and
 *  then (land) their way from there to the gradients at rest. */
ZINC_MUST_CHECK zinc_status zn_zero_landing_get(zn_zero *zero, int *slot, void **out);
ZINC_MUST_CHECK zinc_status zn_zero_land(zn_zero *zero, const zn_zero_region *region, int64_t chunk,
                                         int64_t n, int slot, bool accumulate);
/** Copy this rank's slices of chunks [first, first + n) from the host into `full`. */
ZINC_MUST_CHECK zinc_status zn_zero_param_to_device(zn_zero *zero, const zn_zero_region *region,
                                                    void *full, int64_t first, int64_t n);
/** Zeroed memory of the host. */
ZINC_MUST_CHECK zinc_status zn_zero_host_alloc(zn_zero *zero, zn_mem_category category,
                                               int64_t n_bytes, const char *what, void *out);
/* tiers.c */
/** Decide what leaves the device and lay it out. */
void zn_zero_place_tiers(zn_zero *zero);
/** Elements of each window over so many positions. */
int64_t zn_zero_window_elems(int64_t n_elems);
/** Low halves of a piece of a split region. */
static inline uint16_t *zn_zero_low_at(const zn_zero *zero, const zn_zero_piece *piece,
                                       int64_t offset)
{
    return zn_zero_piece_at(&zero->regions[piece->region].master, piece, offset);
}
/* windows.c */
ZINC_MUST_CHECK zinc_status zn_zero_windows_alloc(zn_zero *zero);
void zn_zero_windows_free(zn_zero *zero);
/** A master (that is not split) or state element of a piece, its reduced gradient, its parameter:
 * in memory, or in the open window. */
float *zn_zero_state_at(const zn_zero *zero, int what, const zn_zero_piece *piece, int64_t offset);
void *zn_zero_grad_at(const zn_zero *zero, const zn_zero_piece *piece, int64_t offset);
void *zn_zero_param_at(const zn_zero *zero, const zn_zero_piece *piece, int64_t offset);

/* A walk over the pieces that this rank updates, in layout order, cut where a window ends. Usage:
 *   zn_zero_walk walk = {.read = ZN_ZERO_STATE_RUNS, .write = ZN_ZERO_STATE_RUNS};
 *   while (zn_zero_walk_next(zero, &walk)) { … walk.piece, walk.offset, walk.n … }
 *   then check walk.status. One at a time; one that does not write may be left before its end. */
typedef struct zn_zero_walk {
    unsigned read, write;       /* which runs on disk are read before and written after */
    bool frozen;                /* over this rank's frozen parameters on disk instead */
    const zn_zero_region *only; /* over this region alone; NULL: all */
    int64_t most;               /* cut also after so many elements; 0: no */
    const zn_zero_piece *piece;
    int64_t offset, n;
    int64_t index; /* of piece; internal */
    int64_t next_read;
    zinc_status status;
} zn_zero_walk;
bool zn_zero_walk_next(zn_zero *zero, zn_zero_walk *walk);

/** Position (tiers.c) of element `offset` of a piece. */
static inline int64_t zn_zero_position(const zn_zero *zero, const zn_zero_piece *piece,
                                       int64_t offset)
{
    const zn_zero_region *region = &zero->regions[piece->region];
    return region->slab_first + piece->chunk * region->slab_stride + piece->in_slice + offset;
}

/** Where an update writes the training-type parameters of a walk's part, or NULL where the masters
 *  are the parameters; and then (after all parts that share it) their way to the device. */
ZINC_MUST_CHECK zinc_status zn_zero_out_get(zn_zero *zero, const zn_zero_walk *walk, void **out);
ZINC_MUST_CHECK zinc_status zn_zero_out_send(zn_zero *zero, const zn_zero_walk *walk, void *out,
                                             zn_zero_stats *stats);
ZINC_MUST_CHECK zinc_status zn_zero_out_wait(zn_zero *zero);

/* step.c */
/** Update what the walk comes to and has not been updated yet, by sub-groups; *stats get the calls
 *  and what goes to the device. */
ZINC_MUST_CHECK zinc_status zn_zero_update(zn_zero *zero, const zn_optim_step *step,
                                           zn_zero_walk *walk, zn_zero_stats *stats);
/* early.c */
bool zn_zero_can_update_early(const zn_zero *zero, const zn_zero_step_args *args);
/** The region's gradients are on their way to the host: update it behind them, if that may be. */
ZINC_MUST_CHECK zinc_status zn_zero_update_early(zn_zero *zero, zn_zero_region *region);
ZINC_MUST_CHECK zinc_status zn_zero_early_wait(zn_zero *zero);
/** The window is over, with a step or without. */
void zn_zero_early_end(zn_zero *zero);

/* fill.c */
/** Make updated slices visible to all ranks: gathers full copies, or a barrier where shared. */
ZINC_MUST_CHECK zinc_status zn_zero_publish(zn_zero *zero);
/* grads.c */
float *zn_zero_grad(void *ctx, int param);
void *zn_zero_grad_whole(void *ctx, int param, bool last, zn_dtype *dtype, bool *add);
ZINC_MUST_CHECK zinc_status zn_zero_grads_ready(void *ctx, int member);
ZINC_MUST_CHECK zinc_status zn_zero_reduce_wait(zn_zero *zero);
void zn_zero_forget_grads(zn_zero *zero);

/** Work submitted to the comm stream from now on starts after the compute submitted so far. */
ZINC_MUST_CHECK zinc_status zn_zero_order_after_compute(zn_zero *zero);

#endif
