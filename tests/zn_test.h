/* SPDX-License-Identifier: Apache-2.0 */
/* zn_test.h — the one header of every test.
 *
 * cmocka needs four headers before its own, and sorting includes breaks that. ZN_TEST_MAIN gives a
 * program that runs all tests, or those whose names match its first argument ('open_*').
 * Test names are sentences. Assert on the main thread only: a failed assertion longjmps. */
#ifndef ZN_TEST_H
#define ZN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

/* The call succeeds, or the test fails with the call's message. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != ZINC_OK)                                                                     \
            fail_msg("%s: %s", #call, zinc_last_error());                                          \
    } while (0)

/* The call fails with this status and the message contains `part`. */
#define assert_fails(call, wanted, part)                                                           \
    do {                                                                                           \
        const zinc_status got_ = (call);                                                           \
        if (got_ != (wanted))                                                                      \
            fail_msg("%s: got %s (%s), want %s", #call, zinc_status_name(got_), zinc_last_error(), \
                     #wanted);                                                                     \
        if (!strstr(zinc_last_error(), (part)))                                                    \
            fail_msg("%s: the message \"%s\" does not contain \"%s\"", #call, zinc_last_error(),   \
                     (part));                                                                      \
    } while (0)

#define ZN_TEST_MAIN(tests)                                                                        \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        if (argc > 1)                                                                              \
            cmocka_set_test_filter(argv[1]);                                                       \
        return cmocka_run_group_tests(tests, NULL, NULL);                                          \
    }

#endif
