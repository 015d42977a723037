/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <pthread.h>
#include <stdbool.h>

static zinc_status decide(int n)
{
    if (n < 0)
        ZN_FAIL(ZINC_E_CONFIG, "n is %d, which is below 0", n);
    return ZINC_OK;
}

static zinc_status pass_on(int n, bool *reached)
{
    ZN_TRY(decide(n));
    *reached = true;
    return ZINC_OK;
}

static zinc_status clean_up(int n, int *cleaned)
{
    zinc_status status;
    ZN_TRY_GOTO(decide(n));
    if (n > 10)
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "n is %d, which is above 10", n);
    status = ZINC_OK;
fail:
    (*cleaned)++;
    return status;
}

static void the_decider_writes_the_message_and_others_keep_it(void **state)
{
    (void)state;
    bool reached = false;
    int cleaned = 0;
    assert_fails(pass_on(-1, &reached), ZINC_E_CONFIG, "n is -1, which is below 0");
    assert_false(reached);
    assert_ok(pass_on(1, &reached));
    assert_true(reached);
    assert_fails(clean_up(-2, &cleaned), ZINC_E_CONFIG, "n is -2");
    assert_fails(clean_up(11, &cleaned), ZINC_E_FORMAT, "above 10");
    assert_ok(clean_up(3, &cleaned));
    assert_int_equal(cleaned, 3);
}

static zinc_status repeat_last(void)
{
    ZN_FAIL(ZINC_E_IO, "%s, again", zinc_last_error());
}

static void a_message_may_quote_the_one_before(void **state)
{
    (void)state;
    assert_int_equal(decide(-1), ZINC_E_CONFIG);
    assert_int_equal(repeat_last(), ZINC_E_IO);
    assert_string_equal(zinc_last_error(), "n is -1, which is below 0, again");
    zn_error_prefix("rank %d: ", 3);
    assert_string_equal(zinc_last_error(), "rank 3: n is -1, which is below 0, again");
}

static zinc_status fail_long(const char *text)
{
    ZN_FAIL(ZINC_E_IO, "%s", text);
}

static void long_messages_are_cut(void **state)
{
    (void)state;
    static char text[3 * ZN_ERROR_BYTES];
    memset(text, 'x', sizeof text - 1);
    assert_int_equal(fail_long(text), ZINC_E_IO);
    assert_int_equal(strlen(zinc_last_error()), ZN_ERROR_BYTES - 1);
    zn_error_prefix("%s", "where: ");
    assert_int_equal(strlen(zinc_last_error()), ZN_ERROR_BYTES - 1);
    assert_memory_equal(zinc_last_error(), "where: xxx", 10);
}

static void *fail_elsewhere(void *error)
{
    zn_error_save(error, decide(-7));
    return NULL;
}

static void errors_belong_to_a_thread_and_can_be_carried(void **state)
{
    (void)state;
    pthread_t thread;
    zn_error error;
    assert_int_equal(decide(-1), ZINC_E_CONFIG);
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &error), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(zinc_last_error(), "n is -1, which is below 0");
    assert_int_equal(zn_error_restore(&error), ZINC_E_CONFIG);
    assert_string_equal(zinc_last_error(), "n is -7, which is below 0");
}

static void every_status_has_its_name(void **state)
{
    (void)state;
    assert_string_equal(zinc_status_name(ZINC_OK), "OK");
    assert_string_equal(zinc_status_name(ZINC_E_UNSUPPORTED), "E_UNSUPPORTED");
    assert_string_equal(zinc_status_name((zinc_status)-99), "E_UNKNOWN");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_decider_writes_the_message_and_others_keep_it),
    cmocka_unit_test(a_message_may_quote_the_one_before),
    cmocka_unit_test(long_messages_are_cut),
    cmocka_unit_test(errors_belong_to_a_thread_and_can_be_carried),
    cmocka_unit_test(every_status_has_its_name),
};

ZN_TEST_MAIN(tests)
