/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include "kernels/peak.h"

/* How fast a machine is stands in bench/; here only that there is an answer. */
static void there_is_a_peak_for_one_thread_and_for_several(void **state)
{
    (void)state;
    assert_true(zn_peak_flops(1, 0.001) > 1e6);
    assert_true(zn_peak_flops(2, 0.001) > 1e6);
    assert_true(zn_peak_bf16_flops(2, 0.001) > 1e6);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(there_is_a_peak_for_one_thread_and_for_several),
};

ZN_TEST_MAIN(tests)
