/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"

static void errors_name_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "line 1"},
        {"{\"a\": 1,\n \"b\" 2}", "line 2"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"[1] x", "line 1 column 5"},
        {"[1,]", "line 1"},
        {"// no\n{}", "line 1"},
        {"[99999999999999999999]", "line 1"},
        {"[\"\xff\"]", "line 1"},
        {"NaN", "line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *value = NULL;
        assert_fails(zn_json_parse(cases[i].text, strlen(cases[i].text), "x.json", &value),
                     ZINC_E_FORMAT, cases[i].message);
        assert_non_null(strstr(zinc_last_error(), "x.json"));
        assert_null(value);
    }
}

static void a_large_integer_can_be_loaded_as_a_real(void **state)
{
    (void)state;
    char path[] = "/tmp/zn_json_XXXXXX";
    const char text[] = "{\"a\": 1000000000000000019884624838656, \"b\": 2}";
    json_t *value = NULL;
    close(mkstemp(path));
    assert_ok(zn_fs_write_atomic(path, text, strlen(text)));
    assert_fails(zn_json_load(path, &value), ZINC_E_FORMAT, "too big integer");
    assert_ok(zn_json_load_reals(path, &value));
    assert_true(json_real_value(json_object_get(value, "a")) == 1e30);
    assert_true(json_real_value(json_object_get(value, "b")) == 2);
    json_decref(value);
    unlink(path);
}

static void strings_may_hold_a_zero(void **state)
{
    (void)state;
    json_t *value = NULL;
    assert_ok(zn_json_parse("\"a\\u0000b\"", 10, "x", &value));
    assert_int_equal(json_string_length(value), 3);
    json_decref(value);
}

static void strings_are_escaped_and_made_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        const char *want;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\"\\\n\x01", 5, "\"a\\\"\\\\\\u000a\\u0001\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\""},
        {"\xff", 1, "\"\xef\xbf\xbd\""},                                 /* never valid */
        {"\xc3", 1, "\"\xef\xbf\xbd\""},                                 /* cut short */
        {"\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* a surrogate */
        {"\xf4\x90\x80\x80", 4, NULL},                                   /* above U+10FFFF */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_buf buf = {0};
        json_t *value = NULL;
        assert_ok(zn_json_append_string(&buf, cases[i].text, cases[i].n));
        if (cases[i].want)
            assert_string_equal(buf.data, cases[i].want);
        assert_ok(zn_json_parse(buf.data, buf.n, "written", &value));
        json_decref(value);
        zn_buf_fini(&buf);
    }
}

static void numbers_read_back_equal_and_short(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *want;
    } cases[] = {
        {0, "0"},
        {-3, "-3"},
        {0.1, "0.1"},
        {1e-05, "1e-05"},
        {2e8, "200000000"},
        {1e300, "1e+300"},
        {0.30000000000000004, "0.30000000000000004"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_buf buf = {0};
        assert_ok(zn_json_append_number(&buf, cases[i].value));
        assert_string_equal(buf.data, cases[i].want);
        zn_buf_fini(&buf);
    }
}

static void values_are_written_compact(void **state)
{
    (void)state;
    static const char text[] = "{\"b\":[1,true,null,\"x\"],\"a\":{}}";
    json_t *value = NULL;
    zn_buf buf = {0};
    assert_ok(zn_json_parse(text, sizeof text - 1, "x", &value));
    assert_ok(zn_json_append(value, &buf));
    assert_string_equal(buf.data, text);
    zn_buf_fini(&buf);
    json_decref(value);
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    json_t *value = NULL;
    assert_fails(zn_json_load("/nowhere/x.json", &value), ZINC_E_IO, "/nowhere/x.json");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(errors_name_the_place),
    cmocka_unit_test(a_large_integer_can_be_loaded_as_a_real),
    cmocka_unit_test(strings_may_hold_a_zero),
    cmocka_unit_test(strings_are_escaped_and_made_utf8),
    cmocka_unit_test(numbers_read_back_equal_and_short),
    cmocka_unit_test(values_are_written_compact),
    cmocka_unit_test(a_missing_file_is_named),
};

ZN_TEST_MAIN(tests)
