/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <stdatomic.h>

#include "base/sys.h"
#include "device/device.h"

/* What works write into: the order in which they ran. */
typedef struct trace {
    _Atomic int n;
    _Atomic bool hold; /* a work that waits for this to be false */
    int order[1024];
} trace;

typedef struct step {
    trace *to;
    int value;
} step;

static zinc_status append(void *arg)
{
    const step *const s = arg;
    s->to->order[s->to->n] = s->value;
    s->to->n++;
    return ZINC_OK;
}

static zinc_status hold(void *arg)
{
    const step *const s = arg;
    while (s->to->hold)
        zn_sys_sleep(100e-6);
    return ZINC_OK;
}

static zinc_status break_down(void *arg)
{
    const step *const s = arg;
    ZN_FAIL(ZINC_E_DEVICE, "work %d broke", s->value);
}

static zn_device *open_device(bool late)
{
    const zn_device_params params = {.n_threads = 2, .late_streams = late};
    zn_device *dev = NULL;
    assert_ok(zn_device_open("cpu", &params, &dev));
    return dev;
}

static void works_run_in_order_of_submission_even_past_the_depth_of_the_queue(void **state)
{
    zn_device *dev = open_device(false);
    zn_stream *stream = NULL;
    zn_event event = {0};
    trace t = {0};
    (void)state;
    assert_ok(zn_stream_create(dev, "copies", &stream));
    for (int i = 0; i < 1000; i++)
        assert_ok(zn_stream_submit(stream, append, &(step){&t, i}, sizeof(step), &event));
    assert_ok(zn_event_wait(event, 10000));
    assert_true(zn_event_done(event));
    assert_int_equal(t.n, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(t.order[i], i);
    zn_stream_destroy(stream);
    zn_device_close(dev);
}

static void a_zeroed_event_has_already_happened(void **state)
{
    (void)state;
    assert_true(zn_event_done((zn_event){0}));
    assert_ok(zn_event_wait((zn_event){0}, 0));
}

static void a_wait_ends_at_its_deadline_and_names_the_stream(void **state)
{
    zn_device *dev = open_device(false);
    zn_stream *stream = NULL;
    zn_event event;
    trace t = {.hold = true};
    (void)state;
    assert_ok(zn_stream_create(dev, "copies", &stream));
    assert_ok(zn_stream_submit(stream, hold, &(step){&t, 0}, sizeof(step), &event));
    assert_false(zn_event_done(event));
    const double start = zn_sys_now();
    assert_fails(zn_event_wait(event, 30), ZINC_E_TIMEOUT, "\"copies\"");
    assert_true(zn_sys_now() - start >= 0.030);
    assert_fails(zn_stream_sync(stream, 0), ZINC_E_TIMEOUT, "0 ms");
    t.hold = false;
    assert_ok(zn_event_wait(event, -1));
    zn_stream_destroy(stream);
    zn_device_close(dev);
}

static void the_first_error_poisons_the_stream_and_drops_what_is_queued(void **state)
{
    zn_device *dev = open_device(false);
    zn_stream *stream = NULL;
    zn_event before, broken, after;
    trace t = {.hold = true};
    (void)state;
    assert_ok(zn_stream_create(dev, "copies", &stream));
    assert_ok(zn_stream_submit(stream, hold, &(step){&t, 0}, sizeof(step), &before));
    assert_ok(zn_stream_submit(stream, break_down, &(step){&t, 1}, sizeof(step), &broken));
    assert_ok(zn_stream_submit(stream, break_down, &(step){&t, 2}, sizeof(step), NULL));
    assert_ok(zn_stream_submit(stream, append, &(step){&t, 3}, sizeof(step), &after));
    t.hold = false;
    assert_fails(zn_event_wait(broken, 10000), ZINC_E_DEVICE, "work 1 broke");
    assert_fails(zn_event_wait(after, 10000), ZINC_E_DEVICE, "work 1 broke");
    assert_true(zn_event_done(after));
    assert_fails(zn_event_wait(before, 10000), ZINC_E_DEVICE, "work 1 broke");
    assert_fails(zn_stream_submit(stream, append, &(step){&t, 4}, sizeof(step), NULL),
                 ZINC_E_DEVICE, "work 1 broke");
    zn_stream_destroy(stream);
    assert_int_equal(t.n, 0);
    zn_device_close(dev);
}

static void destroying_a_stream_drains_it(void **state)
{
    zn_device *dev = open_device(false);
    zn_stream *stream = NULL;
    trace t = {0};
    (void)state;
    assert_ok(zn_stream_create(dev, "copies", &stream));
    for (int i = 0; i < 50; i++)
        assert_ok(zn_stream_submit(stream, append, &(step){&t, i}, sizeof(step), NULL));
    zn_stream_destroy(stream);
    assert_int_equal(t.n, 50);
    zn_stream_destroy(NULL);
    zn_device_close(dev);
}

static void the_compute_stream_runs_inside_submit_on_the_cpu(void **state)
{
    zn_device *dev = open_device(false);
    zn_stream *compute = zn_device_compute(dev);
    zn_event event;
    trace t = {0};
    (void)state;
    assert_ptr_equal(zn_stream_device(compute), dev);
    assert_int_equal(zn_stream_n_threads(compute), 2);
    assert_ok(zn_stream_submit(compute, append, &(step){&t, 7}, sizeof(step), &event));
    assert_int_equal(t.n, 1);
    assert_true(zn_event_done(event));
    assert_fails(zn_stream_submit(compute, break_down, &(step){&t, 8}, sizeof(step), NULL),
                 ZINC_E_DEVICE, "work 8 broke");
    assert_fails(zn_event_wait(event, 0), ZINC_E_DEVICE, "work 8 broke");
    assert_fails(zn_stream_submit(compute, append, &(step){&t, 9}, sizeof(step), NULL),
                 ZINC_E_DEVICE, "work 8 broke");
    assert_int_equal(t.n, 1);
    zn_device_close(dev);
}

static void a_late_compute_stream_runs_after_submit(void **state)
{
    zn_device *dev = open_device(true);
    zn_stream *compute = zn_device_compute(dev);
    zn_event event;
    trace t = {.hold = true};
    (void)state;
    assert_int_equal(zn_stream_n_threads(compute), 2);
    assert_ok(zn_stream_submit(compute, hold, &(step){&t, 0}, sizeof(step), NULL));
    assert_ok(zn_stream_submit(compute, append, &(step){&t, 0}, sizeof(step), &event));
    assert_int_equal(t.n, 0);
    t.hold = false;
    assert_ok(zn_event_wait(event, 10000));
    assert_int_equal(t.n, 1);
    zn_device_close(dev);
}

static void a_stream_can_wait_for_a_point_in_another(void **state)
{
    zn_device *dev = open_device(false);
    zn_stream *first = NULL, *second = NULL;
    zn_event event;
    trace t = {.hold = true};
    (void)state;
    assert_ok(zn_stream_create(dev, "first", &first));
    assert_ok(zn_stream_create(dev, "second", &second));
    assert_ok(zn_stream_submit(first, hold, &(step){&t, 0}, sizeof(step), NULL));
    assert_ok(zn_stream_submit(first, append, &(step){&t, 1}, sizeof(step), &event));
    assert_ok(zn_stream_wait_event(second, event));
    assert_ok(zn_stream_wait_event(second, (zn_event){0}));
    assert_ok(zn_stream_submit(second, append, &(step){&t, 2}, sizeof(step), NULL));
    assert_fails(zn_stream_sync(second, 5), ZINC_E_TIMEOUT, "\"second\"");
    t.hold = false;
    assert_ok(zn_stream_sync(second, 10000));
    assert_int_equal(t.order[0], 1);
    assert_int_equal(t.order[1], 2);
    zn_stream_destroy(second);
    zn_stream_destroy(first);
    zn_device_close(dev);
}

static void an_error_travels_to_the_stream_that_waits_for_it(void **state)
{
    zn_device *dev = open_device(false);
    zn_stream *stream = NULL;
    zn_event event;
    trace t = {0};
    (void)state;
    assert_ok(zn_stream_create(dev, "copies", &stream));
    assert_ok(zn_stream_submit(stream, break_down, &(step){&t, 5}, sizeof(step), &event));
    assert_fails(zn_stream_wait_event(zn_device_compute(dev), event), ZINC_E_DEVICE,
                 "work 5 broke");
    assert_fails(zn_stream_sync(zn_device_compute(dev), 0), ZINC_E_DEVICE, "work 5 broke");
    zn_stream_destroy(stream);
    zn_device_close(dev);
}

static void copies_run_on_the_stream(void **state)
{
    zn_device *dev = open_device(true);
    zn_event event;
    char from[5000], to[5000] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (char)(i * 7);
    assert_ok(zn_device_copy(zn_device_compute(dev), to, from, sizeof from, &event));
    assert_ok(zn_event_wait(event, 10000));
    assert_memory_equal(to, from, sizeof from);
    assert_ok(zn_device_copy(zn_device_compute(dev), to, to, sizeof to, NULL));
    assert_ok(zn_device_copy(zn_device_compute(dev), NULL, NULL, 0, NULL));
    assert_ok(zn_stream_sync(zn_device_compute(dev), 10000));
    zn_device_close(dev);
}

static void too_large_an_argument_is_refused(void **state)
{
    static const char big[ZN_WORK_ARG_BYTES + 1];
    zn_device *dev = open_device(false);
    (void)state;
    assert_fails(zn_stream_submit(zn_device_compute(dev), append, big, sizeof big, NULL),
                 ZINC_E_INVALID, "257 bytes");
    zn_device_close(dev);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(works_run_in_order_of_submission_even_past_the_depth_of_the_queue),
    cmocka_unit_test(a_zeroed_event_has_already_happened),
    cmocka_unit_test(a_wait_ends_at_its_deadline_and_names_the_stream),
    cmocka_unit_test(the_first_error_poisons_the_stream_and_drops_what_is_queued),
    cmocka_unit_test(destroying_a_stream_drains_it),
    cmocka_unit_test(the_compute_stream_runs_inside_submit_on_the_cpu),
    cmocka_unit_test(a_late_compute_stream_runs_after_submit),
    cmocka_unit_test(a_stream_can_wait_for_a_point_in_another),
    cmocka_unit_test(an_error_travels_to_the_stream_that_waits_for_it),
    cmocka_unit_test(copies_run_on_the_stream),
    cmocka_unit_test(too_large_an_argument_is_refused),
};

ZN_TEST_MAIN(tests)
