/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <pthread.h>

#include "base/mem.h"
#include "device/device.h"

#define KIB ((size_t)1024)

static zn_device *open_device(int64_t device_limit, int64_t host_limit)
{
    const zn_device_params params = {.rank = 3,
                                     .n_threads = 1,
                                     .device_limit_bytes = device_limit,
                                     .host_limit_bytes = host_limit};
    zn_device *dev = NULL;
    assert_ok(zn_device_open("cpu", &params, &dev));
    return dev;
}

static void an_unknown_device_is_named_with_those_of_the_build(void **state)
{
    const zn_device_params params = {.n_threads = 1};
    zn_device *dev = NULL;
    (void)state;
    assert_fails(zn_device_open("tpu", &params, &dev), ZINC_E_UNSUPPORTED, "\"tpu\"");
    assert_fails(zn_device_open("tpu", &params, &dev), ZINC_E_UNSUPPORTED, "cpu");
    assert_fails(zn_device_open(NULL, &params, &dev), ZINC_E_UNSUPPORTED, "cpu");
    assert_null(dev);
}

static void bad_parameters_are_refused(void **state)
{
    zn_device *dev = NULL;
    (void)state;
    assert_fails(zn_device_open("cpu", &(zn_device_params){.n_threads = 0}, &dev), ZINC_E_INVALID,
                 "at least 1");
    assert_fails(
        zn_device_open("cpu", &(zn_device_params){.n_threads = 1, .device_limit_bytes = -1}, &dev),
        ZINC_E_INVALID, "negative");
}

static void memory_is_aligned_writable_and_counted_by_place_and_category(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 4097, 2 * 1024 * KIB - 1, 2 * 1024 * KIB, 5000001};
    zn_device *dev = open_device(0, 0);
    zn_mem_usage usage;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *p = NULL, *q = NULL;
        assert_ok(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_MASTERS, sizes[i], "p", &p));
        assert_ok(zn_device_alloc(dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, sizes[i] + 1, "q", &q));
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_int_equal((uintptr_t)q % 64, 0);
        memset(p, 0x5A, sizes[i]);
        memset(q, 0xA5, sizes[i] + 1);
        zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
        assert_int_equal(usage.now[ZN_MEM_MASTERS], sizes[i]);
        assert_int_equal(usage.total_now, sizes[i]);
        zn_device_usage(dev, ZN_PLACE_HOST, &usage);
        assert_int_equal(usage.now[ZN_MEM_BUFFERS], sizes[i] + 1);
        zn_device_free(dev, p);
        zn_device_free(dev, q);
    }
    zn_device_free(dev, NULL);
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    assert_int_equal(usage.total_now, 0);
    assert_int_equal(usage.total_peak, 5000001);
    assert_int_equal(usage.n_allocs, sizeof sizes / sizeof sizes[0]);
    zn_device_close(dev);
}

static void zeroed_memory_is_zero_where_other_memory_was(void **state)
{
    static const size_t sizes[] = {0, 1, 100, 4097, 100000, 2 * 1024 * KIB, 5000001};
    zn_device *dev = open_device(0, 0);
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *dirty = NULL, *p = NULL;
        size_t n_set = 0;
        assert_ok(zn_device_alloc(dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, sizes[i], "dirty", &dirty));
        memset(dirty, 0xA5, sizes[i]);
        zn_device_free(dev, dirty);
        assert_ok(zn_device_alloc_zeroed(dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, sizes[i], "p", &p));
        for (size_t b = 0; b < sizes[i]; b++)
            n_set += p[b] != 0;
        assert_int_equal(n_set, 0);
        zn_device_free(dev, p);
    }
    zn_device_close(dev);
}

static void the_peak_of_the_sum_is_not_the_sum_of_the_peaks(void **state)
{
    zn_device *dev = open_device(0, 0);
    zn_mem_usage usage;
    void *p = NULL;
    (void)state;
    assert_ok(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS, 100, "a", &p));
    zn_device_free(dev, p);
    assert_ok(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_GRADIENTS, 70, "b", &p));
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    assert_int_equal(usage.peak[ZN_MEM_PARAMETERS], 100);
    assert_int_equal(usage.peak[ZN_MEM_GRADIENTS], 70);
    assert_int_equal(usage.total_peak, 100);
    zn_device_reset_peaks(dev);
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    assert_int_equal(usage.peak[ZN_MEM_PARAMETERS], 0);
    assert_int_equal(usage.peak[ZN_MEM_GRADIENTS], 70);
    assert_int_equal(usage.total_peak, 70);
    zn_device_free(dev, p);
    zn_device_close(dev);
}

static void over_the_limit_the_message_has_request_table_and_limit(void **state)
{
    static const char *const parts[] = {
        "rank 3",         "device memory",       "\"unit h.3\"",
        "(gradients)",    "600.00 KiB",          "parameters 512.00 KiB",
        "limit 1.00 MiB", "optimizer state 0 B", "512.00 KiB are in use"};
    zn_device *dev = open_device(1024 * (int64_t)KIB, 0);
    zn_mem_usage usage;
    void *p = NULL, *q = NULL;
    (void)state;
    assert_ok(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS, 512 * KIB, "all", &p));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        assert_fails(
            zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_GRADIENTS, 600 * KIB, "unit h.3", &q),
            ZINC_E_NOMEM, parts[i]);
    assert_null(q);
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    assert_int_equal(usage.total_now, 512 * KIB);
    assert_int_equal(usage.total_peak, 512 * KIB);
    assert_int_equal(usage.n_allocs, 1);
    assert_ok(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_GRADIENTS, 512 * KIB, "fits", &q));
    zn_device_free(dev, p);
    zn_device_free(dev, q);
    zn_device_close(dev);
}

static void each_place_has_its_own_limit(void **state)
{
    zn_device *dev = open_device(10, 1000);
    void *p = NULL;
    (void)state;
    assert_ok(zn_device_alloc(dev, ZN_PLACE_HOST, ZN_MEM_OPTIMIZER_STATE, 1000, "host", &p));
    assert_fails(zn_device_charge(dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, 1, "one more"), ZINC_E_NOMEM,
                 "host memory");
    zn_device_free(dev, p);
    zn_device_close(dev);
}

static void charges_count_and_cannot_release_more_than_is_held(void **state)
{
    zn_device *dev = open_device(100, 0);
    zn_mem_usage usage;
    (void)state;
    assert_ok(zn_device_charge(dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS, 80, "slice"));
    assert_fails(zn_device_charge(dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS, 21, "slice"),
                 ZINC_E_NOMEM, "slice");
    assert_fails(zn_device_charge(dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS, -81, "slice"),
                 ZINC_E_INVALID, "releases 81 bytes");
    assert_fails(zn_device_charge(dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS, INT64_MIN, "slice"),
                 ZINC_E_INVALID, "only 80");
    assert_ok(zn_device_charge(dev, ZN_PLACE_DEVICE, ZN_MEM_PARAMETERS, -80, "slice"));
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    assert_int_equal(usage.total_now, 0);
    assert_int_equal(usage.total_peak, 80);
    assert_int_equal(usage.n_allocs, 0);
    zn_device_close(dev);
}

static void absurd_sizes_are_out_of_memory_not_a_crash(void **state)
{
    zn_device *dev = open_device(0, 0);
    zn_mem_usage usage;
    void *p = NULL;
    (void)state;
    assert_fails(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, SIZE_MAX, "x", &p),
                 ZINC_E_NOMEM, "more than any machine");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_fails(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, (size_t)1 << 60, "x", &p),
                 ZINC_E_NOMEM, "the system gave none");
#endif
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    assert_int_equal(usage.total_now, 0);
    assert_int_equal(usage.total_peak, 0);
    assert_null(p);
    zn_device_close(dev);
}

static void opening_and_allocating_survive_every_failed_allocation(void **state)
{
    const zn_device_params params = {.n_threads = 1, .late_streams = true};
    int n_failed = 0;
    (void)state;
    for (int64_t n = 0;; n++) {
        zn_device *dev = NULL;
        void *p = NULL;
        zn_mem_fail_after(n);
        zinc_status status = zn_device_open("cpu", &params, &dev);
        if (status == ZINC_OK)
            status = zn_device_alloc(dev, ZN_PLACE_HOST, ZN_MEM_BUFFERS, 10, "p", &p);
        zn_mem_fail_after(-1);
        if (p)
            zn_device_free(dev, p);
        zn_device_close(dev);
        if (status == ZINC_OK)
            break;
        assert_int_equal(status, ZINC_E_NOMEM);
        n_failed++;
    }
    assert_int_equal(n_failed, 3); /* the device, its stream, the record */
}

static void what_was_not_freed_is_freed_at_close(void **state)
{
    zn_device *dev = open_device(0, 0);
    void *p = NULL;
    (void)state;
    assert_ok(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, 10, "left", &p));
    assert_ok(zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_BUFFERS, 3000000, "left too", &p));
    zn_device_close(dev); /* the leak checker of the sanitizer builds would see them */
    zn_device_close(NULL);
}

/* Allocates and frees `n` blocks; returns NULL if all went well. */
static void *churn(void *arg)
{
    zn_device *dev = arg;
    for (int i = 0; i < 500; i++) {
        void *p = NULL;
        if (zn_device_alloc(dev, ZN_PLACE_DEVICE, ZN_MEM_ACTIVATIONS, 1000, "block", &p) != ZINC_OK)
            return dev;
        zn_device_free(dev, p);
    }
    return NULL;
}

static void threads_share_one_account(void **state)
{
    zn_device *dev = open_device(4000, 0);
    zn_mem_usage usage;
    pthread_t threads[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, dev), 0);
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    zn_device_usage(dev, ZN_PLACE_DEVICE, &usage);
    assert_int_equal(usage.total_now, 0);
    assert_int_equal(usage.n_allocs, 2000);
    assert_in_range(usage.total_peak, 1000, 4000);
    zn_device_close(dev);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_unknown_device_is_named_with_those_of_the_build),
    cmocka_unit_test(bad_parameters_are_refused),
    cmocka_unit_test(memory_is_aligned_writable_and_counted_by_place_and_category),
    cmocka_unit_test(zeroed_memory_is_zero_where_other_memory_was),
    cmocka_unit_test(the_peak_of_the_sum_is_not_the_sum_of_the_peaks),
    cmocka_unit_test(over_the_limit_the_message_has_request_table_and_limit),
    cmocka_unit_test(each_place_has_its_own_limit),
    cmocka_unit_test(charges_count_and_cannot_release_more_than_is_held),
    cmocka_unit_test(absurd_sizes_are_out_of_memory_not_a_crash),
    cmocka_unit_test(opening_and_allocating_survive_every_failed_allocation),
    cmocka_unit_test(what_was_not_freed_is_freed_at_close),
    cmocka_unit_test(threads_share_one_account),
};

ZN_TEST_MAIN(tests)
