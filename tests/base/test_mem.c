/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include "base/mem.h"

static void allocations_are_zeroed_and_counted(void **state)
{
    (void)state;
    const int64_t before = zn_mem_alloc_count();
    unsigned char *p = NULL;
    assert_ok(zn_alloc(&p, 1000, "bytes"));
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0);
    zn_free(p);
    assert_ok(zn_alloc(&p, 0, "nothing"));
    assert_non_null(p);
    zn_free(p);
    zn_free(NULL);
    assert_int_equal(zn_mem_alloc_count(), before + 2);
}

static void products_that_overflow_are_refused(void **state)
{
    (void)state;
    int *p = NULL;
    assert_fails(zn_alloc_array(&p, SIZE_MAX / 2, 4, "ids"), ZINC_E_NOMEM, "ids");
    assert_null(p);
    assert_ok(zn_alloc_array(&p, 3, sizeof *p, "ids"));
    int *const kept = p;
    assert_fails(zn_realloc_array(&p, SIZE_MAX / 2, 4, "more ids"), ZINC_E_NOMEM, "more ids");
    assert_ptr_equal(p, kept);
    zn_free(p);
}

static void growing_keeps_what_was_there(void **state)
{
    (void)state;
    int *p = NULL;
    assert_ok(zn_realloc_array(&p, 2, sizeof *p, "ids"));
    p[0] = 7;
    p[1] = 8;
    assert_ok(zn_realloc_array(&p, 100000, sizeof *p, "ids"));
    assert_int_equal(p[0], 7);
    assert_int_equal(p[1], 8);
    zn_free(p);
}

static void the_chosen_allocation_fails_and_all_after_it(void **state)
{
    (void)state;
    void *p = NULL;
    zn_mem_fail_after(1);
    const zinc_status first = zn_alloc(&p, 1, "one");
    zn_free(p);
    const zinc_status second = zn_alloc(&p, 1, "two");
    const zinc_status third = zn_realloc_array(&p, 1, 1, "three");
    zn_mem_fail_after(-1);
    assert_int_equal(first, ZINC_OK);
    assert_int_equal(second, ZINC_E_NOMEM);
    assert_int_equal(third, ZINC_E_NOMEM);
    assert_ok(zn_alloc(&p, 1, "four"));
    zn_free(p);
}

static void buffers_grow_and_stay_terminated(void **state)
{
    (void)state;
    zn_buf buf = {0};
    size_t n = 0;
    for (int i = 0; i < 1000; i++) {
        assert_ok(zn_buf_printf(&buf, "%d,", i));
        n += i < 10 ? 2 : i < 100 ? 3 : 4;
        assert_int_equal(buf.n, n);
        assert_int_equal(buf.data[n], '\0');
    }
    assert_memory_equal(buf.data, "0,1,2,", 6);
    assert_string_equal(buf.data + n - 4, "999,");
    assert_ok(zn_buf_append(&buf, "a\0b", 3));
    assert_int_equal(buf.n, n + 3);
    assert_ok(zn_buf_append(&buf, NULL, 0));
    zn_buf_fini(&buf);
    assert_null(buf.data);
    zn_buf_fini(&buf);
}

static void a_buffer_that_cannot_grow_keeps_its_content(void **state)
{
    (void)state;
    zn_buf buf = {0};
    char big[500];
    memset(big, 'x', sizeof big);
    assert_ok(zn_buf_puts(&buf, "kept"));
    zn_mem_fail_after(0);
    const zinc_status append = zn_buf_append(&buf, big, sizeof big);
    const zinc_status print = zn_buf_printf(&buf, "%.500s", big);
    zn_mem_fail_after(-1);
    assert_int_equal(append, ZINC_E_NOMEM);
    assert_int_equal(print, ZINC_E_NOMEM);
    assert_string_equal(buf.data, "kept");
    zn_buf_fini(&buf);
}

static void strings_are_copied_and_formatted(void **state)
{
    (void)state;
    char *text = NULL;
    assert_ok(zn_strdup("", &text));
    assert_string_equal(text, "");
    zn_free(text);
    assert_ok(zn_format(&text, "%s-%04d", "model", 7));
    assert_string_equal(text, "model-0007");
    zn_free(text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(allocations_are_zeroed_and_counted),
    cmocka_unit_test(products_that_overflow_are_refused),
    cmocka_unit_test(growing_keeps_what_was_there),
    cmocka_unit_test(the_chosen_allocation_fails_and_all_after_it),
    cmocka_unit_test(buffers_grow_and_stay_terminated),
    cmocka_unit_test(a_buffer_that_cannot_grow_keeps_its_content),
    cmocka_unit_test(strings_are_copied_and_formatted),
};

ZN_TEST_MAIN(tests)
