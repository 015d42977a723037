/* SPDX-License-Identifier: Apache-2.0 */
#include "comm_contract.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/sys.h"
#include "comm/comm_internal.h" /* timeout_ms, to shorten one deadline */

/* ---- helpers ---- */

/* A value that only this (seed, rank, element) has; magnitudes differ, so the order of a sum shows.
 */
static float value_of(int seed, int rank, int64_t i)
{
    uint32_t x = (uint32_t)(seed * 7919 + rank * 104729) + (uint32_t)i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    const float unit = (float)(x & 0xFFFFu) / 65536.0f - 0.5f;
    static const float scales[] = {1.0f, 1024.0f, 1.0f / 4096.0f, 37.0f};
    return unit * scales[(x >> 16) & 3u];
}

static void store(void *buf, zn_dtype dtype, int64_t i, float x)
{
    if (dtype == ZN_DTYPE_F32)
        ((float *)buf)[i] = x;
    else if (dtype == ZN_DTYPE_BF16)
        ((uint16_t *)buf)[i] = zn_f32_to_bf16(x);
    else
        ((uint16_t *)buf)[i] = zn_f32_to_f16(x);
}

static float load(const void *buf, zn_dtype dtype, int64_t i)
{
    if (dtype == ZN_DTYPE_F32)
        return ((const float *)buf)[i];
    if (dtype == ZN_DTYPE_BF16)
        return zn_bf16_to_f32(((const uint16_t *)buf)[i]);
    return zn_f16_to_f32(((const uint16_t *)buf)[i]);
}

/* `x` after a trip through `dtype`. */
static float rounded(zn_dtype dtype, float x)
{
    uint32_t word = 0;
    store(&word, dtype, 0, x);
    return load(&word, dtype, 0);
}

static zinc_status wait_for(zn_event event)
{
    return zn_event_wait(event, CONTRACT_TIMEOUT_MS);
}

/* ---- all_gather ---- */

static unsigned char byte_of(int rank, int64_t block, size_t i)
{
    return (unsigned char)(rank * 61 + (int)block * 17 + (int)i * 3 + 1);
}

static void fill_shard(unsigned char *shard, int rank, const zn_slices *s)
{
    const size_t size = zn_dtype_size(s->dtype), n = (size_t)s->slice_elems * size;
    for (int64_t b = 0; b < s->n_blocks; b++)
        for (size_t i = 0; i < n; i++)
            shard[(size_t)(b * s->shard_stride) * size + i] = byte_of(rank, b, i);
}

static zinc_status check_full(const zn_comm *comm, const unsigned char *full, const zn_slices *s)
{
    const size_t n = (size_t)s->slice_elems * zn_dtype_size(s->dtype);
    for (int64_t b = 0; b < s->n_blocks; b++)
        for (int r = 0; r < zn_comm_n_ranks(comm); r++)
            for (size_t i = 0; i < n; i++)
                CHECK(full[((size_t)b * (size_t)zn_comm_n_ranks(comm) + (size_t)r) * n + i] ==
                      byte_of(r, b, i));
    return ZINC_OK;
}

static zinc_status gather_once(zn_comm *comm, const zn_slices *s, bool in_place)
{
    zinc_status status;
    unsigned char *full = NULL, *shard = NULL;
    zn_event event;
    const size_t size = zn_dtype_size(s->dtype);
    const size_t n_full =
        (size_t)(s->slice_elems * s->n_blocks) * (size_t)zn_comm_n_ranks(comm) * size;
    const size_t n_shard = (size_t)(s->shard_stride * s->n_blocks) * size;
    ZN_TRY_GOTO(zn_alloc(&full, n_full, "full"));
    ZN_TRY_GOTO(zn_alloc(&shard, n_shard, "shard"));
    unsigned char *const mine =
        in_place ? full + (size_t)s->slice_elems * size * (size_t)zn_comm_rank(comm) : shard;
    fill_shard(mine, zn_comm_rank(comm), s);
    ZN_TRY_GOTO(zn_comm_all_gather(comm, full, mine, s, "gather", &event));
    ZN_TRY_GOTO(wait_for(event));
    status = check_full(comm, full, s);
fail:
    zn_free(full);
    zn_free(shard);
    return status;
}

static zinc_status all_gather_puts_every_slice_in_its_place(zn_comm *comm)
{
    static const zn_dtype dtypes[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_U8};
    static const int64_t sizes[][2] = {{1, 1}, {1, 1000}, {3, 7}, {5, 64}, {0, 8}, {2, 0}};
    for (size_t d = 0; d < 3; d++) {
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            zn_slices s = {dtypes[d], sizes[k][1], sizes[k][0], sizes[k][1]};
            ZN_TRY(gather_once(comm, &s, false));
            s.shard_stride = sizes[k][1] + 3 + zn_comm_rank(comm); /* strides may differ */
            ZN_TRY(gather_once(comm, &s, false));
            s.shard_stride = sizes[k][1] * zn_comm_n_ranks(comm);
            ZN_TRY(gather_once(comm, &s, true));
        }
    }
    return ZINC_OK;
}

/* ---- reduce_scatter ---- */

typedef struct reduce_case {
    zn_slices slices;
    zn_dtype shard_dtype;
    bool accumulate, in_place;
    int seed;
} reduce_case;

/* What element `e` of the shard was before: something only where it is added to. */
static float old_of(const reduce_case *c, int64_t e)
{
    return rounded(c->shard_dtype, value_of(c->seed + 1, 77, e));
}

/* The scalar reference: ranks added 0, 1, …, in fp32, rounded once. */
static float reference(const zn_comm *comm, const reduce_case *c, int64_t full_index, float old)
{
    float sum = rounded(c->slices.dtype, value_of(c->seed, 0, full_index));
    for (int r = 1; r < zn_comm_n_ranks(comm); r++)
        sum = sum + rounded(c->slices.dtype, value_of(c->seed, r, full_index));
    if (c->accumulate)
        sum = old + sum;
    return rounded(c->shard_dtype, sum);
}

static zinc_status check_shard(const zn_comm *comm, const reduce_case *c, const void *shard)
{
    const zn_slices *const s = &c->slices;
    for (int64_t b = 0; b < s->n_blocks; b++) {
        for (int64_t i = 0; i < s->slice_elems; i++) {
            const int64_t e = b * s->shard_stride + i;
            const int64_t f = (b * zn_comm_n_ranks(comm) + zn_comm_rank(comm)) * s->slice_elems + i;
            CHECK(zn_f32_bits(load(shard, c->shard_dtype, e)) ==
                  zn_f32_bits(reference(comm, c, f, old_of(c, e))));
        }
    }
    return ZINC_OK;
}

static zinc_status reduce_once(zn_comm *comm, const reduce_case *c)
{
    zinc_status status;
    void *full = NULL, *shard = NULL;
    zn_event event;
    const zn_slices *const s = &c->slices;
    const int64_t n_full = s->slice_elems * s->n_blocks * zn_comm_n_ranks(comm);
    const int64_t n_shard = s->shard_stride * s->n_blocks;
    ZN_TRY_GOTO(zn_alloc_array(&full, (size_t)n_full, zn_dtype_size(s->dtype), "full"));
    ZN_TRY_GOTO(zn_alloc_array(&shard, (size_t)n_shard, zn_dtype_size(c->shard_dtype), "shard"));
    for (int64_t i = 0; i < n_full; i++)
        store(full, s->dtype, i, value_of(c->seed, zn_comm_rank(comm), i));
    for (int64_t e = 0; e < n_shard; e++)
        store(shard, c->shard_dtype, e, old_of(c, e));
    void *const mine = c->in_place ? (float *)full + s->slice_elems * zn_comm_rank(comm) : shard;
    ZN_TRY_GOTO(
        zn_comm_reduce_scatter(comm, full, mine, s, c->shard_dtype, c->accumulate, "sum", &event));
    ZN_TRY_GOTO(wait_for(event));
    status = check_shard(comm, c, mine);
fail:
    zn_free(full);
    zn_free(shard);
    return status;
}

static zinc_status reduce_scatter_has_the_bits_of_the_scalar_sum_in_rank_order(zn_comm *comm)
{
    static const zn_dtype dtypes[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};
    static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {2, 600}, {0, 4}};
    int seed = 1;
    for (int k = 0; k < 4 * 3 * 3 * 2 * 2; k++) {
        const int64_t n_blocks = sizes[k & 3][0], slice = sizes[k & 3][1];
        const bool padded = (k / 4 / 3 / 3 / 2) % 2 == 1;
        const reduce_case c = {
            .slices = {.dtype = dtypes[(k / 4) % 3],
                       .slice_elems = slice,
                       .n_blocks = n_blocks,
                       .shard_stride = padded ? slice + 5 + zn_comm_rank(comm) : slice},
            .shard_dtype = dtypes[(k / 4 / 3) % 3],
            .accumulate = (k / 4 / 3 / 3) % 2 == 1,
            .seed = seed++,
        };
        ZN_TRY(reduce_once(comm, &c));
    }
    return ZINC_OK;
}

static zinc_status reduce_scatter_may_write_into_its_own_slices_of_the_full_buffer(zn_comm *comm)
{
    const reduce_case c = {
        .slices = {ZN_DTYPE_F32, 1025, 3, 1025 * (int64_t)zn_comm_n_ranks(comm)},
        .shard_dtype = ZN_DTYPE_F32,
        .in_place = true,
        .seed = 99,
    };
    return reduce_once(comm, &c);
}

static zinc_status large_buffers_keep_the_bits(zn_comm *comm)
{
    reduce_case c = {
        .slices = {ZN_DTYPE_F32, 300001, 2, 300001}, .shard_dtype = ZN_DTYPE_BF16, .seed = 5};
    ZN_TRY(reduce_once(comm, &c));
    c.slices.dtype = ZN_DTYPE_BF16;
    c.shard_dtype = ZN_DTYPE_F32;
    c.accumulate = true;
    ZN_TRY(reduce_once(comm, &c));
    return gather_once(comm, &(zn_slices){ZN_DTYPE_F32, 300001, 2, 300001}, false);
}

/* ---- small collectives ---- */

static zinc_status broadcast_copies_from_any_root(zn_comm *comm)
{
    static const size_t sizes[] = {0, 1, 4097};
    unsigned char buf[4097];
    for (int root = 0; root < zn_comm_n_ranks(comm); root++) {
        for (size_t k = 0; k < 3; k++) {
            zn_event event;
            for (size_t i = 0; i < sizes[k]; i++)
                buf[i] = zn_comm_rank(comm) == root ? byte_of(root, 1, i) : 0;
            ZN_TRY(zn_comm_broadcast(comm, buf, sizes[k], root, "weights", &event));
            ZN_TRY(wait_for(event));
            for (size_t i = 0; i < sizes[k]; i++)
                CHECK(buf[i] == byte_of(root, 1, i));
        }
    }
    return ZINC_OK;
}

static zinc_status exchange_gathers_small_things_in_rank_order(zn_comm *comm)
{
    int64_t all[16];
    const int64_t mine = 1000 + zn_comm_rank(comm);
    for (int k = 0; k < 20; k++) {
        memset(all, 0, sizeof all);
        ZN_TRY(zn_comm_exchange(comm, &mine, sizeof mine, all, "sizes"));
        for (int r = 0; r < zn_comm_n_ranks(comm); r++)
            CHECK(all[r] == 1000 + r);
    }
    ZN_TRY(zn_comm_exchange(comm, NULL, 0, NULL, "nothing"));
    return zn_comm_barrier(comm, "here");
}

static zinc_status fail_here(int rank)
{
    ZN_FAIL(ZINC_E_CONFIG, "no key %d", rank);
}

static zinc_status agree_gives_every_rank_the_lowest_failing_ranks_error(zn_comm *comm)
{
    const int rank = zn_comm_rank(comm), n = zn_comm_n_ranks(comm);
    char text[64];
    ZN_TRY(zn_comm_agree(comm, ZINC_OK));
    CHECK_FAILS(zn_comm_agree(comm, fail_here(rank)), ZINC_E_CONFIG,
                rank == 0 ? "no key 0" : "rank 0: no key 0");
    const bool prefixed = rank == 0 && strstr(zinc_last_error(), "rank 0: ");
    CHECK(!prefixed);
    const zinc_status mine = rank == n - 1 ? fail_here(rank) : ZINC_OK;
    snprintf(text, sizeof text, rank == n - 1 ? "no key %d" : "rank %d: no key", n - 1);
    CHECK_FAILS(zn_comm_agree(comm, mine), ZINC_E_CONFIG, text);
    return zn_comm_agree(comm, ZINC_OK); /* the comm is still usable */
}

static zinc_status statistics_count_what_the_zero_paper_counts(zn_comm *comm)
{
    const int64_t n = zn_comm_n_ranks(comm);
    float full[4 * 3 * 10] = {0}, shard[3 * 10] = {0};
    const zn_slices s = {ZN_DTYPE_F32, 10, 3, 10};
    const zn_slices half = {ZN_DTYPE_BF16, 10, 3, 10};
    zn_comm_stats stats;
    zn_event event;
    ZN_TRY(zn_comm_all_gather(comm, full, shard, &s, "a", &event));
    ZN_TRY(wait_for(event));
    ZN_TRY(zn_comm_reduce_scatter(comm, full, shard, &half, ZN_DTYPE_F32, false, "b", &event));
    ZN_TRY(wait_for(event));
    ZN_TRY(zn_comm_broadcast(comm, full, 8, 0, "c", &event));
    ZN_TRY(wait_for(event));
    ZN_TRY(zn_comm_agree(comm, ZINC_OK));
    zn_comm_get_stats(comm, &stats);
    CHECK(stats.n_all_gather == 1 && stats.n_reduce_scatter == 1 && stats.n_broadcast == 1);
    CHECK(stats.all_gather_elems == (n - 1) * 30 && stats.all_gather_bytes == (n - 1) * 120);
    CHECK(stats.reduce_scatter_elems == (n - 1) * 30 && stats.reduce_scatter_bytes == (n - 1) * 60);
    CHECK(stats.in_flight == 0 && stats.in_flight_peak == 1);
    zn_comm_reset_stats(comm);
    zn_comm_get_stats(comm, &stats);
    CHECK(stats.n_all_gather == 0 && stats.all_gather_bytes == 0 && stats.in_flight_peak == 0);
    return ZINC_OK;
}

/* ---- many at once ---- */

static zinc_status many_calls_in_flight_run_in_order(zn_comm *comm)
{
    enum { N = 100 };
    const int n = zn_comm_n_ranks(comm);
    float full[N][8], shard[N + 1][2] = {{0}};
    const zn_slices s = {ZN_DTYPE_F32, 2, 1, 2};
    zn_comm_stats stats;
    zn_event event = {0};
    shard[0][0] = (float)zn_comm_rank(comm) + 1;
    /* Each sum is gathered into the next: sum_k = sum_{k-1} * n, and only in this order. */
    for (int k = 0; k < 12; k++) {
        ZN_TRY(zn_comm_all_gather(comm, full[k], shard[k], &s, "chain", NULL));
        ZN_TRY(zn_comm_reduce_scatter(comm, full[k], shard[k + 1], &s, ZN_DTYPE_F32, false, "chain",
                                      &event));
    }
    ZN_TRY(wait_for(event));
    float want = (float)zn_comm_rank(comm) + 1;
    for (int k = 0; k < 12; k++)
        want *= (float)n;
    CHECK(shard[12][0] == want);
    for (int k = 0; k < N; k++)
        ZN_TRY(zn_comm_all_gather(comm, full[k], shard[k], &s, "many", &event));
    ZN_TRY(wait_for(event));
    zn_comm_get_stats(comm, &stats);
    CHECK(stats.in_flight == 0 && stats.in_flight_peak >= 1 && stats.n_all_gather == N + 12);
    return ZINC_OK;
}

static zinc_status the_peak_of_calls_in_flight_is_counted(zn_comm *comm)
{
    float full[8], shard[2] = {0};
    const zn_slices s = {ZN_DTYPE_F32, 2, 1, 2};
    const int last = zn_comm_n_ranks(comm) - 1;
    zn_comm_stats stats;
    zn_event event;
    ZN_TRY(zn_comm_barrier(comm, "start"));
    if (zn_comm_rank(comm) == last)
        zn_sys_sleep(0.05); /* the others' calls pile up */
    for (int k = 0; k < 10; k++)
        ZN_TRY(zn_comm_all_gather(comm, full, shard, &s, "pile", &event));
    if (zn_comm_rank(comm) == 0) {
        zn_comm_get_stats(comm, &stats);
        CHECK(stats.in_flight_peak >= (last > 0 ? 2 : 1) && stats.in_flight_peak <= 10);
    }
    return wait_for(event);
}

/* ---- groups ---- */

static zinc_status split_makes_groups_ordered_by_key(zn_comm *comm)
{
    zinc_status status;
    zn_comm *group = NULL;
    const int rank = zn_comm_rank(comm), n = zn_comm_n_ranks(comm);
    int all[16];
    ZN_TRY(zn_comm_split(comm, rank % 2, -rank, &group));
    const int n_group = (n + 1 - rank % 2) / 2;
    const int highest = rank + 2 * ((n - 1 - rank) / 2);
    ZN_TRY_GOTO(zn_comm_exchange(group, &rank, sizeof rank, all, "ranks"));
    status = ZINC_OK;
    if (zn_comm_n_ranks(group) != n_group || zn_comm_rank(group) != (highest - rank) / 2)
        ZN_FAIL_GOTO(ZINC_E_INTERNAL, "rank %d is %d of %d in its group", rank, zn_comm_rank(group),
                     zn_comm_n_ranks(group));
    for (int i = 0; i < n_group; i++)
        if (all[i] != highest - 2 * i)
            ZN_FAIL_GOTO(ZINC_E_INTERNAL, "place %d of the group has rank %d", i, all[i]);
    ZN_TRY_GOTO(gather_once(group, &(zn_slices){ZN_DTYPE_F32, 9, 2, 9}, false));
    ZN_TRY_GOTO(zn_comm_barrier(comm, "both"));
fail:
    zn_comm_close(group);
    return status;
}

static zinc_status groups_of_groups_work(zn_comm *comm)
{
    zinc_status status;
    zn_comm *same = NULL, *alone = NULL;
    ZN_TRY(zn_comm_split(comm, 7, zn_comm_rank(comm), &same));
    ZN_TRY_GOTO(zn_comm_split(same, zn_comm_rank(same), 0, &alone));
    ZN_TRY_GOTO(gather_once(alone, &(zn_slices){ZN_DTYPE_U8, 5, 2, 5}, false));
    ZN_TRY_GOTO(gather_once(same, &(zn_slices){ZN_DTYPE_U8, 5, 2, 5}, false));
fail:
    zn_comm_close(alone);
    zn_comm_close(same);
    return status;
}

static zinc_status shared_memory_is_the_same_on_every_rank_or_refused(zn_comm *comm)
{
    int64_t *shared = NULL;
    if (strcmp(zn_comm_backend(comm), "mpi") == 0) {
        CHECK_FAILS(zn_comm_alloc_shared(comm, 8, &shared), ZINC_E_UNSUPPORTED, "mpi");
        return ZINC_OK;
    }
    ZN_TRY(zn_comm_alloc_shared(comm, (size_t)5 << 20, &shared));
    CHECK((uintptr_t)shared % 64 == 0);
    shared[zn_comm_rank(comm)] = 40 + zn_comm_rank(comm);
    shared[((size_t)5 << 17) - 1 - (size_t)zn_comm_rank(comm)] = 7;
    ZN_TRY(zn_comm_barrier(comm, "written"));
    for (int r = 0; r < zn_comm_n_ranks(comm); r++)
        CHECK(shared[r] == 40 + r);
    zn_comm_free_shared(comm, shared);
    return ZINC_OK;
}

/* ---- failures ---- */

static zinc_status bad_arguments_are_refused_and_the_comm_stays_usable(zn_comm *comm)
{
    float full[64], shard[64];
    const int n = zn_comm_n_ranks(comm);
    zn_slices s = {ZN_DTYPE_F32, 4, 2, 3};
    zn_event event;
    CHECK_FAILS(zn_comm_all_gather(comm, full, shard, &s, "h.1", &event), ZINC_E_INVALID, "stride");
    s = (zn_slices){ZN_DTYPE_F32, -4, 2, 4};
    CHECK_FAILS(zn_comm_all_gather(comm, full, shard, &s, "h.1", &event), ZINC_E_INVALID, "h.1");
    s = (zn_slices){ZN_DTYPE_F32, INT64_MAX / 8, 100, INT64_MAX / 8};
    CHECK_FAILS(zn_comm_all_gather(comm, full, shard, &s, "h.1", &event), ZINC_E_INVALID, "large");
    s = (zn_slices){ZN_DTYPE_F32, 4, 2, 4};
    CHECK_FAILS(zn_comm_all_gather(comm, NULL, shard, &s, "h.1", &event), ZINC_E_INVALID, "full");
    CHECK_FAILS(zn_comm_all_gather(comm, full, full + 1, &s, "h.1", &event), ZINC_E_INVALID,
                "overlaps");
    CHECK_FAILS(zn_comm_reduce_scatter(comm, full, NULL, &s, ZN_DTYPE_F32, false, "h.1", &event),
                ZINC_E_INVALID, "shard");
    CHECK_FAILS(zn_comm_reduce_scatter(comm, full, shard, &s, ZN_DTYPE_I32, false, "h.1", &event),
                ZINC_E_INVALID, "sums float32");
    s.shard_stride = 4 * n;
    CHECK_FAILS(zn_comm_reduce_scatter(comm, full, full + 4 * zn_comm_rank(comm), &s, ZN_DTYPE_BF16,
                                       false, "h.1", &event),
                ZINC_E_INVALID, "float32 shard");
    CHECK_FAILS(zn_comm_all_gather(comm, NULL, NULL, &s, NULL, NULL), ZINC_E_INVALID, "no full");
    CHECK_FAILS(zn_comm_broadcast(comm, full, 4, n, "h.1", &event), ZINC_E_INVALID, "no rank");
    CHECK_FAILS(zn_comm_broadcast(comm, NULL, 4, 0, "h.1", &event), ZINC_E_INVALID, "no buffer");
    return zn_comm_barrier(comm, "still usable");
}

static zinc_status a_deadline_names_the_call_and_the_missing_rank(zn_comm *comm)
{
    const int last = zn_comm_n_ranks(comm) - 1;
    char missing[64];
    snprintf(missing, sizeof missing, "has not arrived: rank %d.", last);
    ZN_TRY(zn_comm_barrier(comm, "start"));
    comm->timeout_ms = 250;
    if (zn_comm_rank(comm) == last) {
        zn_sys_sleep(0.6);
        comm->timeout_ms = 3000;
        CHECK_FAILS(zn_comm_barrier(comm, "epoch end"), ZINC_E_ABORTED, "epoch end");
        return ZINC_OK;
    }
    const double start = zn_sys_now();
    CHECK_FAILS(zn_comm_barrier(comm, "epoch end"), ZINC_E_TIMEOUT, missing);
    CHECK(strstr(zinc_last_error(), "barrier #") && strstr(zinc_last_error(), "\"epoch end\""));
    CHECK(zn_sys_now() - start < 2);
    CHECK_FAILS(zn_comm_barrier(comm, "later"), ZINC_E_TIMEOUT, "epoch end");
    return ZINC_OK;
}

static zinc_status different_calls_are_named_side_by_side(zn_comm *comm)
{
    float full[16] = {0}, shard[4] = {0};
    const zn_slices s = {ZN_DTYPE_F32, 4, 1, 4};
    zn_event event;
    if (zn_comm_rank(comm) == 1)
        ZN_TRY(zn_comm_reduce_scatter(comm, full, shard, &s, ZN_DTYPE_F32, false, "h.2", &event));
    else
        ZN_TRY(zn_comm_all_gather(comm, full, shard, &s, "h.1", &event));
    CHECK_FAILS(wait_for(event), ZINC_E_COMM, "rank 0 all_gather #1 \"h.1\"");
    CHECK_FAILS(wait_for(event), ZINC_E_COMM, "rank 1 reduce_scatter #1 \"h.2\"");
    CHECK_FAILS(zn_comm_barrier(comm, "later"), ZINC_E_COMM, "same call");
    return ZINC_OK;
}

static zinc_status different_sizes_and_tags_are_mismatches(zn_comm *comm)
{
    zn_comm *other = NULL;
    char buf[64] = {0};
    zn_error error;
    const bool second = zn_comm_rank(comm) == 1;
    ZN_TRY(zn_comm_split(comm, 0, zn_comm_rank(comm), &other));
    zn_error_save(&error, zn_comm_barrier(other, second ? "epoch" : "step"));
    zn_comm_close(other);
    CHECK_FAILS(zn_error_restore(&error), ZINC_E_COMM, "\"step\"");
    CHECK_FAILS(zn_error_restore(&error), ZINC_E_COMM, "\"epoch\"");
    CHECK_FAILS(zn_comm_exchange(comm, buf, second ? 8 : 4, buf + 8, "sizes"), ZINC_E_COMM,
                "8 bytes");
    return ZINC_OK;
}

static zinc_status an_abort_wakes_the_ranks_that_wait(zn_comm *comm)
{
    const int last = zn_comm_n_ranks(comm) - 1;
    zn_comm_stats stats;
    if (zn_comm_rank(comm) == last) {
        zn_sys_sleep(0.03);
        zn_comm_abort(comm, "the disk is full");
        zn_comm_abort(comm, "again");
    }
    const double start = zn_sys_now();
    CHECK_FAILS(zn_comm_barrier(comm, "step"), ZINC_E_ABORTED, "the disk is full");
    CHECK(zn_sys_now() - start < 5);
    CHECK_FAILS(zn_comm_agree(comm, ZINC_OK), ZINC_E_ABORTED, "aborted: the disk");
    CHECK_FAILS(zn_comm_agree(comm, fail_here(3)), ZINC_E_CONFIG, "no key 3");
    zn_comm_get_stats(comm, &stats);
    CHECK(stats.in_flight == 0);
    return ZINC_OK;
}

static zinc_status an_abort_reaches_groups_too(zn_comm *comm)
{
    zn_comm *group = NULL;
    ZN_TRY(zn_comm_split(comm, 0, zn_comm_rank(comm), &group));
    if (zn_comm_rank(comm) == 0) {
        zn_sys_sleep(0.03);
        zn_comm_abort(comm, "out of memory");
        zn_comm_close(group);
        return ZINC_OK;
    }
    zn_error error;
    zn_error_save(&error, zn_comm_barrier(group, "wait"));
    zn_comm_close(group);
    CHECK_FAILS(zn_error_restore(&error), ZINC_E_ABORTED, "out of memory");
    return ZINC_OK;
}

/* ---- the table ---- */

#define CASE(fn, min)                                                                              \
    {                                                                                              \
        .name = #fn, .run = fn, .min_ranks = (min)                                                 \
    }

const contract_case contract_cases[] = {
    CASE(all_gather_puts_every_slice_in_its_place, 1),
    CASE(reduce_scatter_has_the_bits_of_the_scalar_sum_in_rank_order, 1),
    CASE(reduce_scatter_may_write_into_its_own_slices_of_the_full_buffer, 1),
    CASE(large_buffers_keep_the_bits, 1),
    CASE(broadcast_copies_from_any_root, 1),
    CASE(exchange_gathers_small_things_in_rank_order, 1),
    CASE(agree_gives_every_rank_the_lowest_failing_ranks_error, 1),
    CASE(statistics_count_what_the_zero_paper_counts, 1),
    CASE(many_calls_in_flight_run_in_order, 1),
    CASE(the_peak_of_calls_in_flight_is_counted, 1),
    CASE(split_makes_groups_ordered_by_key, 1),
    CASE(groups_of_groups_work, 1),
    CASE(shared_memory_is_the_same_on_every_rank_or_refused, 1),
    CASE(bad_arguments_are_refused_and_the_comm_stays_usable, 1),
    CASE(a_deadline_names_the_call_and_the_missing_rank, 2),
    CASE(different_calls_are_named_side_by_side, 2),
    CASE(different_sizes_and_tags_are_mismatches, 2),
    CASE(an_abort_wakes_the_ranks_that_wait, 1),
    CASE(an_abort_reaches_groups_too, 2),
};

const int n_contract_cases = (int)(sizeof contract_cases / sizeof contract_cases[0]);

zinc_status contract_run(const contract_case *c, const zn_comm_params *params)
{
    const zn_device_params device = {.rank = params->rank, .n_threads = 1};
    zinc_status status;
    zn_comm_params p = *params;
    zn_comm *comm = NULL;
    zn_device *dev = NULL;
    zn_error error;
    ZN_TRY(zn_device_open("cpu", &device, &dev));
    p.dev = dev;
    p.timeout_ms = CONTRACT_TIMEOUT_MS;
    ZN_TRY_GOTO(zn_comm_open(&p, &comm));
    ZN_TRY_GOTO(c->run(comm));
fail:
    zn_error_save(&error, status); /* closing a broken comm has its own message */
    zn_comm_close(comm);
    zn_device_close(dev);
    return zn_error_restore(&error);
}
