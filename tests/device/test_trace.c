/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <unistd.h>

#include "base/fs.h"
#include "base/sys.h"
#include "device/trace.h"

static void write_and_read(const zn_trace *trace, zn_buf *out)
{
    char path[] = "/tmp/zn_trace_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(zn_trace_write(trace, path));
    assert_ok(zn_fs_read(path, 0, out));
    unlink(path);
}

static void spans_are_written_with_rank_lane_name_and_microseconds(void **state)
{
    (void)state;
    zn_trace *trace = NULL;
    zn_buf text = {0};
    const double now = zn_sys_now();
    assert_ok(zn_trace_create(4, &trace));
    zn_trace_span(trace, 1, ZN_TRACE_COMM, "all_gather", "a \"layer\"", now, now + 0.25);
    zn_trace_span(trace, 0, ZN_TRACE_PHASES, "data", NULL, now, now + 0.5);
    write_and_read(trace, &text);
    assert_non_null(
        strstr(text.data, "\"name\":\"all_gather a \\\"layer\\\"\",\"pid\":1,\"tid\":2,"));
    assert_non_null(strstr(text.data, "\"dur\":250000.000"));
    assert_non_null(strstr(text.data, "\"name\":\"data\",\"pid\":0,\"tid\":0,"));
    assert_non_null(strstr(text.data, "\"name\":\"rank 1\""));
    assert_null(strstr(text.data, "\"name\":\"rank 2\""));
    assert_int_equal(zn_trace_n_lost(trace), 0);
    zn_buf_fini(&text);
    zn_trace_destroy(trace);
}

static void spans_without_room_are_counted(void **state)
{
    (void)state;
    zn_trace *trace = NULL;
    zn_buf text = {0};
    assert_ok(zn_trace_create(2, &trace));
    for (int i = 0; i < 5; i++)
        zn_trace_span(trace, i, ZN_TRACE_UNITS, "forward", "x", 0, 1);
    assert_int_equal(zn_trace_n_lost(trace), 3);
    write_and_read(trace, &text);
    assert_non_null(strstr(text.data, "\"name\":\"rank 1\""));
    assert_null(strstr(text.data, "\"name\":\"rank 2\""));
    assert_non_null(strstr(text.data, "{\"spans\":3}"));
    zn_buf_fini(&text);
    zn_trace_destroy(trace);
}

static void a_device_carries_its_trace(void **state)
{
    (void)state;
    const zn_device_params params = {.n_threads = 1};
    zn_device *dev = NULL;
    zn_trace *trace = NULL;
    assert_ok(zn_trace_create(1, &trace));
    assert_ok(zn_device_open("cpu", &params, &dev));
    assert_null(zn_device_trace(dev));
    zn_trace_span(zn_device_trace(dev), 0, ZN_TRACE_COMM, "nothing", NULL, 0, 1);
    zn_device_set_trace(dev, trace);
    assert_ptr_equal(zn_device_trace(dev), trace);
    zn_device_close(dev);
    zn_trace_destroy(trace);
    zn_trace_destroy(NULL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(spans_are_written_with_rank_lane_name_and_microseconds),
    cmocka_unit_test(spans_without_room_are_counted),
    cmocka_unit_test(a_device_carries_its_trace),
};

ZN_TEST_MAIN(tests)
