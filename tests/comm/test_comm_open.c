/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include "base/mem.h"
#include "comm/comm.h"

static zn_device *open_device(void)
{
    zn_device *dev = NULL;
    assert_ok(zn_device_open("cpu", &(zn_device_params){.n_threads = 1}, &dev));
    return dev;
}

static void an_unknown_backend_is_named_with_those_of_the_build(void **state)
{
    zn_device *dev = open_device();
    zn_comm_params params = {.backend = "nccl", .dev = dev, .timeout_ms = 100};
    zn_comm *comm = NULL;
    (void)state;
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_UNSUPPORTED, "\"nccl\"");
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_UNSUPPORTED, "self, thread");
    params.backend = NULL;
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_UNSUPPORTED, "(none)");
    assert_null(comm);
    zn_comm_close(NULL);
    zn_device_close(dev);
}

static void bad_parameters_are_refused(void **state)
{
    zn_device *dev = open_device();
    zn_thread_world *world = NULL;
    zn_comm *comm = NULL;
    zn_comm_params params = {.backend = "self", .timeout_ms = 100};
    (void)state;
    assert_fails(zn_thread_world_create(0, &world), ZINC_E_INVALID, "at least 1 rank");
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "device");
    params.dev = dev;
    params.timeout_ms = 0;
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "timeout");
    params.timeout_ms = 100;
    params.backend = "thread";
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "world");
    assert_ok(zn_thread_world_create(2, &world));
    params.world = world;
    params.n_ranks = 3;
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "world of 2 ranks");
    params.n_ranks = 2;
    params.rank = 2;
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_INVALID, "rank 2 of 2");
    zn_thread_world_destroy(world);
    zn_thread_world_destroy(NULL);
    zn_device_close(dev);
}

static void opening_names_the_rank_that_never_came(void **state)
{
    zn_device *dev = open_device();
    zn_thread_world *world = NULL;
    zn_comm *comm = NULL;
    (void)state;
    assert_ok(zn_thread_world_create(2, &world));
    const zn_comm_params params = {
        .backend = "thread", .n_ranks = 2, .world = world, .dev = dev, .timeout_ms = 20};
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_TIMEOUT, "not arrived: rank 1");
    assert_fails(zn_comm_open(&params, &comm), ZINC_E_ABORTED, "not arrived: rank 1");
    zn_thread_world_destroy(world);
    zn_device_close(dev);
}

static void a_rank_cannot_be_opened_twice(void **state)
{
    zn_device *dev = open_device();
    zn_thread_world *world = NULL;
    zn_comm *first = NULL, *second = NULL;
    (void)state;
    assert_ok(zn_thread_world_create(1, &world));
    const zn_comm_params params = {
        .backend = "thread", .n_ranks = 1, .world = world, .dev = dev, .timeout_ms = 1000};
    assert_ok(zn_comm_open(&params, &first));
    assert_fails(zn_comm_open(&params, &second), ZINC_E_INVALID, "open already");
    zn_comm_close(first);
    assert_ok(zn_comm_open(&params, &second)); /* the world can be used again */
    zn_comm_close(second);
    zn_thread_world_destroy(world);
    zn_device_close(dev);
}

static zinc_status open_and_split(const zn_comm_params *params)
{
    zn_comm *comm = NULL, *group = NULL;
    zinc_status status = zn_comm_open(params, &comm);
    if (status == ZINC_OK)
        status = zn_comm_split(comm, 0, 0, &group);
    zn_comm_close(group);
    zn_comm_close(comm);
    return status;
}

static void opening_and_splitting_survive_every_failed_allocation(void **state)
{
    static const char *const backends[] = {"self", "thread"};
    zn_device *dev = open_device();
    (void)state;
    for (int b = 0; b < 2; b++) {
        zinc_status status = ZINC_E_NOMEM;
        int n_failed = -1;
        for (int64_t n = 0; status == ZINC_E_NOMEM; n++, n_failed++) {
            zn_thread_world *world = NULL;
            assert_ok(zn_thread_world_create(1, &world));
            const zn_comm_params params = {.backend = backends[b],
                                           .n_ranks = 1,
                                           .world = world,
                                           .dev = dev,
                                           .timeout_ms = 1000};
            zn_mem_fail_after(n);
            status = open_and_split(&params);
            zn_mem_fail_after(-1);
            zn_thread_world_destroy(world);
        }
        assert_int_equal(status, ZINC_OK);
        assert_true(n_failed >= 7); /* handle, stream, words; group, handle, stream, words */
    }
    zn_device_close(dev);
}

static void nothing_is_allocated_by_a_collective(void **state)
{
    zn_device *dev = open_device();
    zn_comm *comm = NULL;
    zn_mem_usage before, after;
    float full[8] = {1, 2, 3, 4, 5, 6, 7, 8}, shard[8];
    const zn_slices slices = {ZN_DTYPE_F32, 8, 1, 8};
    zn_event event;
    (void)state;
    assert_ok(
        zn_comm_open(&(zn_comm_params){.backend = "self", .dev = dev, .timeout_ms = 1000}, &comm));
    const int64_t n = zn_mem_alloc_count();
    zn_device_usage(dev, ZN_PLACE_DEVICE, &before);
    for (int i = 0; i < 10; i++) {
        assert_ok(
            zn_comm_reduce_scatter(comm, full, shard, &slices, ZN_DTYPE_F32, false, "sum", &event));
        assert_ok(zn_event_wait(event, 1000));
        assert_ok(zn_comm_agree(comm, ZINC_OK));
    }
    zn_device_usage(dev, ZN_PLACE_DEVICE, &after);
    assert_memory_equal(shard, full, sizeof full);
    assert_int_equal(zn_mem_alloc_count(), n);
    assert_int_equal(after.n_allocs, before.n_allocs);
    zn_comm_close(comm);
    zn_device_close(dev);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_unknown_backend_is_named_with_those_of_the_build),
    cmocka_unit_test(bad_parameters_are_refused),
    cmocka_unit_test(opening_names_the_rank_that_never_came),
    cmocka_unit_test(a_rank_cannot_be_opened_twice),
    cmocka_unit_test(opening_and_splitting_survive_every_failed_allocation),
    cmocka_unit_test(nothing_is_allocated_by_a_collective),
};

ZN_TEST_MAIN(tests)
