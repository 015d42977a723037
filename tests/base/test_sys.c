/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include "base/sys.h"

static double seconds(struct timespec t)
{
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void a_deadline_is_a_valid_moment_for_any_timeout(void **state)
{
    static const int64_t timeouts[] = {INT64_MIN, -1, 0, 1, 999, 1000, 123456, INT64_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
        const double before = zn_sys_now();
        const struct timespec t = zn_sys_deadline(timeouts[i]);
        const double after = zn_sys_now();
        const double wait = timeouts[i] < 0 ? 0 : 1e-3 * (double)timeouts[i];
        assert_in_range(t.tv_nsec, 0, 999999999);
        assert_true(seconds(t) >= before);
        if (timeouts[i] < INT64_MAX) {
            assert_true(seconds(t) >= before + wait - 1e-6);
            assert_true(seconds(t) <= after + wait + 1e-6);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_is_a_valid_moment_for_any_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
