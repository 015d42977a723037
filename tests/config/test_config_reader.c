/* SPDX-License-Identifier: Apache-2.0 */
#include "config_test.h"

static const char plain[] = "{\"train_micro_batch_size_per_gpu\": 4, "
                            "\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 1000}}";

static void same_as_plain(const char *text)
{
    zn_config *a = resolved(plain, 2), *b = resolved(text, 2);
    json_t *x = document(a), *y = document(b);
    if (!json_equal(json_object_get(x, "resolved"), json_object_get(y, "resolved")))
        fail_msg("\"%s\" resolves to something else", text);
    json_decref(x);
    json_decref(y);
    zn_config_destroy(a);
    zn_config_destroy(b);
}

static void comments_commas_a_mark_and_other_line_ends_change_nothing(void **state)
{
    (void)state;
    same_as_plain("// note\n{\"train_micro_batch_size_per_gpu\": 4, // per rank\n"
                  "# another\n\"zero_optimization\": /* in */ {\"stage\": 3,\n"
                  "\"reduce_bucket_size\": 1000,},} // end");
    same_as_plain(
        "\xEF\xBB\xBF{\"train_micro_batch_size_per_gpu\":4,\r\n"
        "\"zero_optimization\":{\"stage\":3,\"reduce_bucket_size\":1000}}\r\n# \xE2\x82\xAC");
    same_as_plain("{\"train_\\u006dicro_batch_size_per_gpu\":4,"
                  "\"zero_optimization\":{\"stage\":3.0,\"reduce_bucket_size\":1E+3}}");
}

static void whole_numbers_may_be_written_with_an_exponent_or_a_point(void **state)
{
    static const char *const forms[] = {"2e8", "200000000.0", "2E+8", "200000000", "2000000000e-1"};
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char text[120];
        snprintf(text, sizeof text,
                 "{\"train_batch_size\":2,\"zero_optimization\":{\"reduce_bucket_size\":%s}}",
                 forms[i]);
        zn_config *config = resolved(text, 2);
        assert_int_equal(zn_config_get(config)->zero.reduce_bucket_size, 200000000);
        zn_config_destroy(config);
    }
}

static void numbers_that_are_not_whole_or_not_finite_are_refused_by_key(void **state)
{
    static const char *const forms[] = {"15099494.4", "\"5e8\"",   "1e400", "NaN",
                                        "Infinity",   "-Infinity", "-1",    "99999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char text[120];
        snprintf(text, sizeof text,
                 "{\"train_batch_size\":2,\"zero_optimization\":{\"reduce_bucket_size\":%s}}",
                 forms[i]);
        refused(text, "zero_optimization.reduce_bucket_size", "expected an integer >= 1");
    }
}

static void an_infinite_number_of_steps_per_print_means_never(void **state)
{
    (void)state;
    zn_config *config = resolved("{\"train_batch_size\":2,\"steps_per_print\":Infinity}", 2);
    assert_int_equal(zn_config_get(config)->steps_per_print, 0);
    zn_config_destroy(config);
    refused("{\"train_batch_size\":2,\"steps_per_print\":1e999}", "steps_per_print", "1e999");
}

static void syntax_errors_name_line_and_column(void **state)
{
    static const struct {
        const char *text, *place, *says;
    } cases[] = {
        {"{\"stage\": 3 \"overlap_comm\": true}", "ds.json:1:13:", "\",\" or \"}\""},
        {"{\n  \"fp16\": {\n", "ds.json:3:1:", "begins at line 2 column 11"},
        {"{\"a\": [1, 2", "ds.json:1:12:", "inside the list"},
        {"{\"a\": \"b\n\"}", "ds.json:1:7:", "never closed"},
        {"{\"a\": 1} x", "ds.json:1:10:", "nothing after"},
        {"{\"a\": 01}", "ds.json:1:7:", "not a number"},
        {"{\"a\": +1}", "ds.json:1:7:", "expected a value"},
        {"{\"a\": .5}", "ds.json:1:7:", "expected a value"},
        {"{\"a\": 1.}", "ds.json:1:7:", "not a number"},
        {"{\"a\": 0x10}", "ds.json:1:7:", "not a number"},
        {"{\"a\": 1_000}", "ds.json:1:7:", "not a number"},
        {"{\"a\": True}", "ds.json:1:7:", "lower case"},
        {"{\"a\": auto}", "ds.json:1:7:", "double quotes"},
        {"{a: 1}", "ds.json:1:2:", "double quotes"},
        {"{'a': 1}", "ds.json:1:2:", "double quotes"},
        {"{\"a\" 1}", "ds.json:1:6:", "\":\" after the name"},
        {"{,}", "ds.json:1:2:", "a name"},
        {"{\"a\": \"\\x\"}", "ds.json:1:9:", "escape"},
        {"{\"a\": \"\\ud800\"}", "ds.json:1:10:", "surrogate"},
        {"{\"a\": \"\\u0000\"}", "ds.json:1:10:", "U+0000"},
        {"{\"a\": \"\t\"}", "ds.json:1:8:", "control character"},
        {"/* open", "ds.json:1:1:", "never closed"},
        {"{\"\xC3\xA9\xC3\xA9\": tru}", "ds.json:1:8:", "expected a value"},
        {"{\"a\": \"\xFF\"}", "ds.json:1:8:", "not UTF-8"},
        {"{\"a\": \"\xC0\x80\"}", "ds.json:1:8:", "not UTF-8"},
        {"\xFF\xFE{", "ds.json:1:1:", "UTF-16"},
        {"[]", "ds.json:1:1:", "one JSON object"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(cases[i].text, cases[i].place, cases[i].says);
}

static void a_key_given_twice_is_refused_with_both_lines(void **state)
{
    (void)state;
    refused("{\"train_batch_size\": 2,\n\"zero_optimization\": {\n\"stage\": 1,\n\"stage\": 3}}",
            "ds.json:4:1: zero_optimization.stage:", "on line 3 and on line 4");
    refused("{\"fp16\": {},\n\"wandb\": {\"a\": [{\"b\": 1,\n\"b\": 2}]}}", "on line 2", "line 3");
}

static void nesting_and_names_have_limits(void **state)
{
    (void)state;
    zn_buf deep = {0};
    assert_ok(zn_buf_puts(&deep, "{\"wandb\":"));
    for (int i = 0; i < 100000; i++)
        assert_ok(zn_buf_puts(&deep, "["));
    refused(deep.data, "nested too deeply", NULL);
    zn_buf_fini(&deep);

    zn_buf wide = {0};
    assert_ok(zn_buf_puts(&wide, "{"));
    for (int i = 0; i < 2000; i++)
        assert_ok(zn_buf_printf(&wide, "\"k%d\":0,", i));
    assert_ok(zn_buf_puts(&wide, "}"));
    refused(wide.data, "more than 1000 names", NULL);
    zn_buf_fini(&wide);

    zn_buf name = {0};
    assert_ok(zn_buf_puts(&name, "{\""));
    for (int i = 0; i < 300; i++)
        assert_ok(zn_buf_puts(&name, "n"));
    assert_ok(zn_buf_puts(&name, "\":1}"));
    refused(name.data, "too long", NULL);
    zn_buf_fini(&name);
}

/* Every prefix of a valid file is a configuration or a clear error: no crash, no leak. The text is
 * copied to its exact size, so that a sanitizer sees a read past its end. */
static void a_file_cut_anywhere_is_an_error_and_nothing_worse(void **state)
{
    (void)state;
    zn_config *config = NULL;
    char *cut;
    static const char text[] =
        "\xEF\xBB\xBF// \xC3\xA9\n{\"train_batch_size\": 2e1, /* c */ \"x_note\": "
        "\"\\u00e9\\n\xC3\xA9\","
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, 0.999], \"lr\": "
        "\"auto\"}}, # d\n\"fp16\": {\"enabled\": false, \"loss_scale\": 0.0},"
        "\"steps_per_print\": Infinity, \"train_micro_batch_size_per_gpu\": null,}";
    for (size_t n = 0; n < sizeof text; n++) {
        assert_ok(zn_alloc(&cut, n, "a prefix"));
        memcpy(cut, text, n);
        const zinc_status status = zn_config_parse(cut, n, "ds.json", &config);
        if (n > 0 && n < sizeof text - 1 && n > 10 && status == ZINC_OK)
            fail_msg("a file cut after %zu bytes is accepted", n);
        assert_true(status == ZINC_OK || status == ZINC_E_CONFIG);
        zn_free(cut);
        zn_config_destroy(config);
        config = NULL;
    }
}

static void any_changed_byte_is_read_or_refused(void **state)
{
    (void)state;
    static const char text[] = "{\"fp16\":{\"enabled\":true},\"a\":[1,-2.5e3],\"b\":\"\\u00e9\"}//";
    char changed[sizeof text];
    for (size_t at = 0; at + 1 < sizeof text; at++)
        for (int byte = 0; byte < 256; byte += 5) {
            zn_config *config = NULL;
            memcpy(changed, text, sizeof text);
            changed[at] = (char)byte;
            const zinc_status status =
                zn_config_parse(changed, sizeof text - 1, "ds.json", &config);
            assert_true(status == ZINC_OK || status == ZINC_E_CONFIG);
            zn_config_destroy(config);
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(comments_commas_a_mark_and_other_line_ends_change_nothing),
    cmocka_unit_test(whole_numbers_may_be_written_with_an_exponent_or_a_point),
    cmocka_unit_test(numbers_that_are_not_whole_or_not_finite_are_refused_by_key),
    cmocka_unit_test(an_infinite_number_of_steps_per_print_means_never),
    cmocka_unit_test(syntax_errors_name_line_and_column),
    cmocka_unit_test(a_key_given_twice_is_refused_with_both_lines),
    cmocka_unit_test(nesting_and_names_have_limits),
    cmocka_unit_test(a_file_cut_anywhere_is_an_error_and_nothing_worse),
    cmocka_unit_test(any_changed_byte_is_read_or_refused),
};

ZN_TEST_MAIN(tests)
