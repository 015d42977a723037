/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of every backend that needs no launcher: self, and thread with 1 to 4 ranks. */
#include "zn_test.h"

#include <pthread.h>

#include "comm_contract.h"

#define MAX_RANKS 4

typedef struct rank_thread {
    const contract_case *c;
    zn_comm_params params;
    zn_error error;
} rank_thread;

static void *run_rank(void *arg)
{
    rank_thread *rank = arg;
    zn_error_save(&rank->error, contract_run(rank->c, &rank->params));
    return NULL;
}

static void run_ranks(const contract_case *c, const char *backend, int n_ranks)
{
    static rank_thread ranks[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    zn_thread_world *world = NULL;
    if (n_ranks < c->min_ranks)
        return;
    assert_ok(zn_thread_world_create(n_ranks, &world));
    for (int r = 0; r < n_ranks; r++) {
        ranks[r] = (rank_thread){
            .c = c, .params = {.backend = backend, .rank = r, .n_ranks = n_ranks, .world = world}};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < n_ranks; r++)
        pthread_join(threads[r], NULL);
    zn_thread_world_destroy(world);
    for (int r = 0; r < n_ranks; r++)
        if (ranks[r].error.status != ZINC_OK)
            fail_msg("%s, %s, %d ranks, rank %d: %s: %s", c->name, backend, n_ranks, r,
                     zinc_status_name(ranks[r].error.status), ranks[r].error.message);
}

static void every_case_holds_on_self_and_on_1_to_4_threads(void **state)
{
    const contract_case *const c = *state;
    run_ranks(c, "self", 1);
    for (int n = 1; n <= MAX_RANKS; n++)
        run_ranks(c, "thread", n);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[64];
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (int i = 0; i < n_contract_cases; i++) {
        const contract_case *const c = &contract_cases[i];
        tests[i] = (struct CMUnitTest){.name = c->name,
                                       .test_func = every_case_holds_on_self_and_on_1_to_4_threads,
                                       .initial_state = (void *)(uintptr_t)c};
    }
    return _cmocka_run_group_tests("contract", tests, (size_t)n_contract_cases, NULL, NULL);
}
