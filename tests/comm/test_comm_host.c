/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend, with a host program that moves bytes between rank threads: started collectives
 * run when they are waited for, in order, as a real transport may. */
#include "zn_test.h"

#include <pthread.h>

#include "base/mem.h"
#include "comm_contract.h"

#define MAX_RANKS 4
#define MAX_PENDING 16

typedef struct pending_call {
    const char *send;
    char *recv;
    size_t n_bytes;
    size_t from; /* byte of the peer's send that is for this rank */
    int root;    /* broadcast; else -1 */
} pending_call;

typedef struct mover {
    zn_comm *inner; /* of the thread backend; moves pointers */
    pending_call calls[MAX_PENDING];
    int64_t n_started, n_done;
    int most_started, n_looks;
    bool aborted;
    char reason[512];
    zinc_status refuse; /* what wait returns, if not OK */
} mover;

static zinc_status start(mover *m, const pending_call *call, int64_t *token)
{
    if (m->n_started - m->n_done >= MAX_PENDING)
        ZN_FAIL(ZINC_E_INTERNAL, "more collectives started than promised");
    m->calls[m->n_started % MAX_PENDING] = *call;
    *token = m->n_started++;
    if (m->n_started - m->n_done > m->most_started)
        m->most_started = (int)(m->n_started - m->n_done);
    return ZINC_OK;
}

static zinc_status mover_all_gather(void *ctx, const void *send, void *recv, size_t n_bytes,
                                    int64_t *token)
{
    const pending_call call = {.send = send, .recv = recv, .n_bytes = n_bytes, .root = -1};
    return start(ctx, &call, token);
}

static zinc_status mover_all_to_all(void *ctx, const void *send, void *recv, size_t n_bytes,
                                    int64_t *token)
{
    mover *const m = ctx;
    const pending_call call = {.send = send,
                               .recv = recv,
                               .n_bytes = n_bytes,
                               .from = n_bytes * (size_t)zn_comm_rank(m->inner),
                               .root = -1};
    return start(m, &call, token);
}

static zinc_status mover_broadcast(void *ctx, void *buf, size_t n_bytes, int root, int64_t *token)
{
    const pending_call call = {.send = buf, .recv = buf, .n_bytes = n_bytes, .root = root};
    return start(ctx, &call, token);
}

static zinc_status move_one(mover *m, const pending_call *call)
{
    const char *peers[MAX_RANKS];
    ZN_TRY(zn_comm_exchange(m->inner, &call->send, sizeof call->send, (void *)peers, "pointers"));
    for (int r = 0; r < zn_comm_n_ranks(m->inner); r++) {
        char *const to = call->root < 0 ? call->recv + (size_t)r * call->n_bytes : call->recv;
        const char *const from = peers[r] + call->from;
        if (to != from && (call->root < 0 || r == call->root))
            memcpy(to, from, call->n_bytes);
    }
    return zn_comm_barrier(m->inner, "moved");
}

static zinc_status mover_wait(void *ctx, int64_t token, int64_t timeout_ms)
{
    mover *const m = ctx;
    if (m->refuse != ZINC_OK)
        ZN_FAIL(m->refuse, "the cable is out after %lld ms", (long long)timeout_ms);
    for (; m->n_done <= token; m->n_done++)
        ZN_TRY(move_one(m, &m->calls[m->n_done % MAX_PENDING]));
    return ZINC_OK;
}

/* Finished at the second look. */
static zinc_status mover_test(void *ctx, int64_t token, int *done)
{
    mover *const m = ctx;
    *done = m->n_looks++ % 2 == 1;
    return *done ? mover_wait(ctx, token, 0) : ZINC_OK;
}

static void mover_abort(void *ctx, const char *reason)
{
    mover *const m = ctx;
    m->aborted = true;
    snprintf(m->reason, sizeof m->reason, "%s", reason);
}

static zinc_status mover_split(void *ctx, const int *ranks, int n, zinc_comm_host *out);

static void mover_close(void *ctx)
{
    mover *const m = ctx;
    zn_comm_close(m->inner);
    zn_free(m);
}

static zinc_comm_host host_of(mover *m, int rank, int n_ranks, int variant)
{
    return (zinc_comm_host){.struct_size = sizeof(zinc_comm_host),
                            .ctx = m,
                            .rank = rank,
                            .n_ranks = n_ranks,
                            .check_calls = 1,
                            .all_gather = mover_all_gather,
                            .all_to_all = variant == 1 ? NULL : mover_all_to_all,
                            .broadcast = variant == 1 ? NULL : mover_broadcast,
                            .wait = variant == 2 ? NULL : mover_wait,
                            .test = variant == 2 ? mover_test : NULL,
                            .abort = mover_abort,
                            .split = mover_split,
                            .close = mover_close};
}

/* A group is known by its first rank. */
static zinc_status mover_split(void *ctx, const int *ranks, int n, zinc_comm_host *out)
{
    const mover *const m = ctx;
    mover *group = NULL;
    int mine = 0;
    while (mine < n && ranks[mine] != zn_comm_rank(m->inner))
        mine++;
    ZN_TRY(zn_alloc(&group, sizeof *group, "a mover"));
    const zinc_status status = zn_comm_split(m->inner, ranks[0], mine, &group->inner);
    if (status != ZINC_OK)
        zn_free(group);
    else
        *out = host_of(group, mine, n, 0);
    return status;
}

typedef zinc_status (*rank_fn)(zn_comm *comm, mover *m);

typedef struct rank_job {
    const contract_case *c; /* or */
    rank_fn fn;
    bool without_groups;
    int variant; /* 0: every function, 1: all_gather and wait alone, 2: test in place of wait */
    int rank, n_ranks;
    zn_thread_world *world;
    zn_error error;
} rank_job;

static zinc_status run_fn(const rank_job *job, mover *m, zn_comm_params *params)
{
    zinc_status status;
    zn_comm *comm = NULL;
    ZN_TRY(zn_comm_open(params, &comm));
    status = job->fn(comm, m);
    zn_comm_close(comm);
    return status;
}

static zinc_status run_over(const rank_job *job, zn_comm *inner, zn_device *dev)
{
    mover m = {.inner = inner};
    zinc_comm_host host = host_of(&m, job->rank, job->n_ranks, job->variant);
    if (job->without_groups)
        host.split = NULL;
    zn_comm_params params = {.backend = "host", .host = &host, .dev = dev, .timeout_ms = 20000};
    return job->c ? contract_run(job->c, &params) : run_fn(job, &m, &params);
}

static void *run_rank(void *arg)
{
    rank_job *const job = arg;
    const zn_device_params device = {.rank = job->rank, .n_threads = 1};
    zn_device *dev = NULL;
    zn_comm *inner = NULL;
    zinc_status status = zn_device_open("cpu", &device, &dev);
    if (status == ZINC_OK)
        status = zn_comm_open(&(zn_comm_params){.backend = "thread",
                                                .rank = job->rank,
                                                .n_ranks = job->n_ranks,
                                                .world = job->world,
                                                .dev = dev,
                                                .timeout_ms = 20000},
                              &inner);
    if (status == ZINC_OK)
        status = run_over(job, inner, dev);
    zn_error_save(&job->error, status);
    zn_comm_close(inner);
    zn_device_close(dev);
    return NULL;
}

static void run_job(const rank_job *like)
{
    static rank_job jobs[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    zn_thread_world *world = NULL;
    assert_ok(zn_thread_world_create(like->n_ranks, &world));
    for (int r = 0; r < like->n_ranks; r++) {
        jobs[r] = *like;
        jobs[r].rank = r;
        jobs[r].world = world;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &jobs[r]), 0);
    }
    for (int r = 0; r < like->n_ranks; r++)
        pthread_join(threads[r], NULL);
    zn_thread_world_destroy(world);
    for (int r = 0; r < like->n_ranks; r++)
        if (jobs[r].error.status != ZINC_OK)
            fail_msg("%s, variant %d, %d ranks, rank %d: %s", like->c ? like->c->name : "function",
                     like->variant, like->n_ranks, r, jobs[r].error.message);
}

static void the_contract_holds_whatever_functions_the_host_gives(void **state)
{
    static const char *const names[] = {
        "all_gather_puts_every_slice_in_its_place",
        "reduce_scatter_has_the_bits_of_the_scalar_sum_in_rank_order",
        "reduce_scatter_may_write_into_its_own_slices_of_the_full_buffer",
        "large_buffers_keep_the_bits",
        "broadcast_copies_from_any_root",
        "exchange_gathers_small_things_in_rank_order",
        "agree_gives_every_rank_the_lowest_failing_ranks_error",
        "statistics_count_what_the_zero_paper_counts",
        "many_calls_in_flight_run_in_order",
        "split_makes_groups_ordered_by_key",
        "groups_of_groups_work",
        "bad_arguments_are_refused_and_the_comm_stays_usable",
    };
    size_t found = 0;
    (void)state;
    for (int i = 0; i < n_contract_cases; i++)
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            if (strcmp(names[k], contract_cases[i].name) == 0) {
                found++;
                for (int v = 0; v < 3; v++)
                    for (int n = 1; n <= 3; n++)
                        run_job(&(rank_job){.c = &contract_cases[i], .variant = v, .n_ranks = n});
            }
    assert_int_equal(found, sizeof names / sizeof names[0]);
}

static zinc_status blocks_overlap(zn_comm *comm, mover *m)
{
    float full[40 * 3] = {0}, shard[40] = {0};
    const zn_slices s = {ZN_DTYPE_F32, 1, 40, 1};
    ZN_TRY(zn_comm_all_gather(comm, full, shard, &s, "a", NULL));
    CHECK(m->most_started == 8);
    m->most_started = 0;
    ZN_TRY(zn_comm_reduce_scatter(comm, full, shard, &s, ZN_DTYPE_F32, false, "b", NULL));
    CHECK(m->most_started == 2);
    return ZINC_OK;
}

static void blocks_move_while_others_are_waited_for(void **state)
{
    (void)state;
    run_job(&(rank_job){.fn = blocks_overlap, .n_ranks = 3});
}

static zinc_status differ(zn_comm *comm, mover *m)
{
    const zinc_status status = zn_comm_barrier(comm, zn_comm_rank(comm) == 1 ? "save" : "step");
    CHECK_FAILS(status, ZINC_E_COMM, "rank 0 barrier #1 \"step\"");
    CHECK_FAILS(status, ZINC_E_COMM, "rank 1 barrier #1 \"save\"");
    CHECK(m->aborted && strstr(m->reason, "same call"));
    CHECK_FAILS(zn_comm_barrier(comm, "later"), ZINC_E_COMM, "same call");
    return ZINC_OK;
}

static void different_calls_are_named_and_the_host_is_told(void **state)
{
    (void)state;
    run_job(&(rank_job){.fn = differ, .n_ranks = 2});
}

static zinc_status cannot_split(zn_comm *comm, mover *m)
{
    zn_comm *group = NULL;
    (void)m;
    CHECK_FAILS(zn_comm_split(comm, 0, 0, &group), ZINC_E_UNSUPPORTED, "zinc_comm_host.split");
    return zn_comm_barrier(comm, "still usable");
}

static void a_host_without_groups_says_so_and_goes_on(void **state)
{
    (void)state;
    run_job(&(rank_job){.fn = cannot_split, .n_ranks = 2, .without_groups = true});
}

static zinc_status refuse(zn_comm *comm, mover *m)
{
    float full[8] = {0}, shard[4] = {0};
    const zn_slices s = {ZN_DTYPE_F32, 4, 1, 4};
    m->refuse = ZINC_E_TIMEOUT;
    CHECK_FAILS(zn_comm_all_gather(comm, full, shard, &s, "h.1", NULL), ZINC_E_TIMEOUT,
                "all_gather #1 \"h.1\"");
    CHECK(strstr(zinc_last_error(), "the cable is out after 20000 ms"));
    m->refuse = ZINC_OK;
    CHECK_FAILS(zn_comm_barrier(comm, "later"), ZINC_E_TIMEOUT, "h.1");
    return ZINC_OK;
}

static void a_failure_of_the_host_is_told_with_its_own_words(void **state)
{
    (void)state;
    run_job(&(rank_job){.fn = refuse, .n_ranks = 2});
}

static void a_host_without_what_is_needed_is_refused(void **state)
{
    const zn_device_params device = {.n_threads = 1};
    zn_device *dev = NULL;
    zn_comm *comm = NULL;
    (void)state;
    assert_ok(zn_device_open("cpu", &device, &dev));
    zinc_comm_host host = {.n_ranks = 2, .rank = 2};
    zn_comm_params params = {.backend = "host", .dev = dev, .timeout_ms = 100};
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "functions");
    params.host = &host;
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "rank 2 of 2");
    host.rank = 1;
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "all_gather");
    host.all_gather = mover_all_gather;
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "neither");
    zn_device_close(dev);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_contract_holds_whatever_functions_the_host_gives),
    cmocka_unit_test(blocks_move_while_others_are_waited_for),
    cmocka_unit_test(different_calls_are_named_and_the_host_is_told),
    cmocka_unit_test(a_host_without_groups_says_so_and_goes_on),
    cmocka_unit_test(a_failure_of_the_host_is_told_with_its_own_words),
    cmocka_unit_test(a_host_without_what_is_needed_is_refused),
};

ZN_TEST_MAIN(tests)
