/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of command lines, on a command made for it. */
#include "zn_test.h"

#include <math.h>

#include "base/mem.h"
#include "cli/cli_internal.h"

static int run_nothing(const zn_args *args)
{
    (void)args;
    return 0;
}

static const zn_option options[] = {
    {.name = "learning_rate", .alias = "lr", .kind = ZN_OPTION_VALUE, .metavar = "X", .help = "h"},
    {.name = "train_file", .kind = ZN_OPTION_LIST, .metavar = "F", .help = "h"},
    {.name = "shuffle", .kind = ZN_OPTION_FLAG, .default_text = "true", .help = "h"},
    {.name = "resume", .kind = ZN_OPTION_OPTIONAL, .metavar = "DIR", .help = "h"},
    {.name = "max_steps", .kind = ZN_OPTION_VALUE, .metavar = "N", .help = "h"},
    {.name = "device_memory", .kind = ZN_OPTION_VALUE, .metavar = "SIZE", .help = "h"},
};

static const zn_command command = {
    .name = "probe",
    .summary = "a command for tests",
    .positional = "IN OUT",
    .min_positional = 0,
    .max_positional = 2,
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = run_nothing,
};

/* Parse up to seven words, NULL after the last. */
static zinc_status parse(zn_args **out, const char *const *words)
{
    int n = 0;
    while (words[n])
        n++;
    return zn_args_parse(&command, n, words, out);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void a_value_follows_or_is_joined_by_an_equals_sign(void **state)
{
    (void)state;
    zn_args *args = NULL;
    assert_ok(parse(&args, WORDS("--learning_rate", "1e-3", "--max-steps=-1")));
    assert_string_equal(zn_args_get(args, "learning_rate"), "1e-3");
    assert_string_equal(zn_args_get(args, "max_steps"), "-1");
    assert_null(zn_args_get(args, "device_memory"));
    zn_args_destroy(args);
}

static void dashes_underscores_and_aliases_are_the_same_option(void **state)
{
    (void)state;
    zn_args *args = NULL;
    assert_ok(parse(&args, WORDS("--learning-rate", "1", "--lr", "2")));
    assert_string_equal(zn_args_get(args, "learning_rate"), "2");
    assert_string_equal(zn_args_get(args, "lr"), "2");
    assert_int_equal(zn_args_count(args, "learning_rate"), 2);
    zn_args_destroy(args);
}

static void a_flag_takes_true_or_false_but_no_other_word(void **state)
{
    (void)state;
    zn_args *args = NULL;
    assert_ok(parse(&args, WORDS("--shuffle", "in")));
    assert_true(zn_args_flag(args, "shuffle", false));
    assert_int_equal(zn_args_n_positional(args), 1);
    zn_args_destroy(args);
    assert_ok(parse(&args, WORDS("--shuffle", "False")));
    assert_false(zn_args_flag(args, "shuffle", true));
    assert_int_equal(zn_args_n_positional(args), 0);
    zn_args_destroy(args);
    assert_ok(parse(&args, WORDS("--shuffle=false")));
    assert_string_equal(zn_args_get(args, "shuffle"), "false");
    zn_args_destroy(args);
    assert_ok(parse(&args, WORDS("in")));
    assert_true(zn_args_flag(args, "shuffle", true));
    assert_false(zn_args_flag(args, "shuffle", false));
    zn_args_destroy(args);
    assert_fails(parse(&args, WORDS("--shuffle=perhaps")), ZINC_E_INVALID, "perhaps");
}

static void a_list_takes_all_words_up_to_the_next_option_and_repeats(void **state)
{
    (void)state;
    zn_args *args = NULL;
    assert_ok(parse(&args, WORDS("--train_file", "a", "b", "--lr", "1", "--train_file=c", "in")));
    assert_int_equal(zn_args_count(args, "train_file"), 3);
    assert_string_equal(zn_args_at(args, "train_file", 0), "a");
    assert_string_equal(zn_args_at(args, "train_file", 1), "b");
    assert_string_equal(zn_args_at(args, "train_file", 2), "c");
    assert_null(zn_args_at(args, "train_file", 3));
    assert_string_equal(zn_args_positional(args, 0), "in");
    zn_args_destroy(args);
}

static void an_optional_value_may_be_left_out(void **state)
{
    (void)state;
    zn_args *args = NULL;
    assert_ok(parse(&args, WORDS("--resume", "--lr", "1")));
    assert_string_equal(zn_args_get(args, "resume"), "");
    zn_args_destroy(args);
    assert_ok(parse(&args, WORDS("--resume", "dir")));
    assert_string_equal(zn_args_get(args, "resume"), "dir");
    zn_args_destroy(args);
}

static void two_dashes_end_the_options(void **state)
{
    (void)state;
    zn_args *args = NULL;
    assert_ok(parse(&args, WORDS("--lr", "1", "--", "--shuffle", "--")));
    assert_int_equal(zn_args_n_positional(args), 2);
    assert_string_equal(zn_args_positional(args, 0), "--shuffle");
    assert_string_equal(zn_args_positional(args, 1), "--");
    assert_null(zn_args_positional(args, 2));
    assert_false(zn_args_given(args, "shuffle"));
    zn_args_destroy(args);
}

static void the_options_of_a_started_program_are_its_own(void **state)
{
    (void)state;
    zn_args *args = NULL;
    zn_command launch = command;
    launch.rest_is_program = true;
    launch.max_positional = -1;
    const char *const words[] = {"--shuffle", "prog", "--lr", "x", "--help"};
    assert_ok(zn_args_parse(&launch, 5, words, &args));
    assert_int_equal(zn_args_n_positional(args), 4);
    assert_false(zn_args_want_help(args));
    assert_false(zn_args_given(args, "lr"));
    zn_args_destroy(args);
}

static void help_is_answered_even_where_an_argument_is_missing(void **state)
{
    (void)state;
    zn_args *args = NULL;
    zn_command strict = command;
    strict.min_positional = 1;
    assert_ok(zn_args_parse(&strict, 2, WORDS("--shuffle", "--help"), &args));
    assert_true(zn_args_want_help(args));
    zn_args_destroy(args);
}

static void an_unknown_option_is_answered_with_the_nearest(void **state)
{
    (void)state;
    zn_args *args = NULL;
    assert_fails(parse(&args, WORDS("--lerning-rate", "1")), ZINC_E_INVALID, "--learning_rate");
    assert_fails(parse(&args, WORDS("--lerning-rate", "1")), ZINC_E_INVALID, "--lerning-rate");
    assert_fails(parse(&args, WORDS("--qqqqqqqqqq=1")), ZINC_E_INVALID, "zinc help probe");
    assert_fails(parse(&args, WORDS("-v")), ZINC_E_INVALID, "two dashes");
    assert_null(args);
}

static void a_missing_value_and_a_word_too_many_are_usage_errors(void **state)
{
    (void)state;
    zn_args *args = NULL;
    assert_fails(parse(&args, WORDS("--lr")), ZINC_E_INVALID, "--learning_rate needs a value");
    assert_fails(parse(&args, WORDS("--lr", "--shuffle")), ZINC_E_INVALID, "needs a value");
    assert_fails(parse(&args, WORDS("--train_file", "--")), ZINC_E_INVALID, "needs a value");
    assert_fails(parse(&args, WORDS("a", "b", "c")), ZINC_E_INVALID, "\"c\"");
    zn_command strict = command;
    strict.min_positional = 1;
    assert_fails(zn_args_parse(&strict, 0, NULL, &args), ZINC_E_INVALID, "IN OUT");
    assert_null(args);
}

static void whole_numbers_take_exponents_and_underscores_and_keep_bounds(void **state)
{
    (void)state;
    zn_args *args = NULL;
    int64_t n = 7;
    assert_ok(parse(&args, WORDS("in")));
    assert_ok(zn_args_int(args, "max_steps", 0, 10, &n));
    assert_int_equal(n, 7);
    zn_args_destroy(args);
    const struct {
        const char *text;
        int64_t value;
    } good[] = {{"2e8", 200000000},
                {"1_000", 1000},
                {"-3", -3},
                {"4.0", 4},
                {"9223372036854775807", INT64_MAX}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_ok(parse(&args, WORDS("--max_steps", good[i].text)));
        assert_ok(zn_args_int(args, "max_steps", -10, INT64_MAX, &n));
        assert_int_equal(n, good[i].value);
        zn_args_destroy(args);
    }
    const char *const bad[] = {
        "", "x", "1.5", "1e-1", "0x10", " 1", "1 ", "nan", "1__", "1e30", "9223372036854775808"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_ok(parse(&args, WORDS("--max_steps", bad[i])));
        assert_fails(zn_args_int(args, "max_steps", -10, INT64_MAX, &n), ZINC_E_INVALID,
                     "--max_steps");
        zn_args_destroy(args);
    }
    assert_ok(parse(&args, WORDS("--max_steps", "11")));
    n = 7;
    assert_fails(zn_args_int(args, "max_steps", 0, 10, &n), ZINC_E_INVALID, "from 0 to 10");
    assert_int_equal(n, 7);
    zn_args_destroy(args);
}

static void real_numbers_are_finite_and_within_bounds(void **state)
{
    (void)state;
    zn_args *args = NULL;
    double x = 0;
    assert_ok(parse(&args, WORDS("--lr", "5e-5")));
    assert_ok(zn_args_real(args, "learning_rate", 0, INFINITY, &x));
    assert_true(x == 5e-5);
    zn_args_destroy(args);
    const char *const bad[] = {"nan", "-1", "1e-3x", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_ok(parse(&args, WORDS("--lr", bad[i])));
        assert_fails(zn_args_real(args, "learning_rate", 0, INFINITY, &x), ZINC_E_INVALID,
                     "--learning_rate");
        zn_args_destroy(args);
    }
}

static void sizes_carry_decimal_and_binary_units(void **state)
{
    (void)state;
    zn_args *args = NULL;
    const struct {
        const char *text;
        int64_t bytes;
    } good[] = {
        {"2GB", 2000000000}, {"512MiB", 512 << 20},   {"1e9", 1000000000},  {"0", 0},
        {"1.5 KiB", 1536},   {"12GB/s", 12000000000}, {"24g", 24000000000}, {"1_024B", 1024}};
    int64_t n = 0;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_ok(parse(&args, WORDS("--device_memory", good[i].text)));
        assert_ok(zn_args_bytes(args, "device_memory", &n));
        assert_int_equal(n, good[i].bytes);
        zn_args_destroy(args);
    }
    const char *const bad[] = {"", "GB", "-1GB", "1XB", "1e300", "nan", "inf"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_ok(parse(&args, WORDS("--device_memory", bad[i])));
        assert_fails(zn_args_bytes(args, "device_memory", &n), ZINC_E_INVALID, "24GB");
        zn_args_destroy(args);
    }
}

static void every_failed_allocation_is_an_error_without_a_leak(void **state)
{
    (void)state;
    zn_args *args = NULL;
    zinc_status status = ZINC_E_NOMEM;
    for (int n = 0; status != ZINC_OK; n++) {
        assert_true(n < 10);
        zn_mem_fail_after(n);
        status = parse(&args, WORDS("--lr", "1"));
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    }
    zn_mem_fail_after(-1);
    zn_args_destroy(args);
    zn_args_destroy(NULL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_value_follows_or_is_joined_by_an_equals_sign),
    cmocka_unit_test(dashes_underscores_and_aliases_are_the_same_option),
    cmocka_unit_test(a_flag_takes_true_or_false_but_no_other_word),
    cmocka_unit_test(a_list_takes_all_words_up_to_the_next_option_and_repeats),
    cmocka_unit_test(an_optional_value_may_be_left_out),
    cmocka_unit_test(two_dashes_end_the_options),
    cmocka_unit_test(the_options_of_a_started_program_are_its_own),
    cmocka_unit_test(help_is_answered_even_where_an_argument_is_missing),
    cmocka_unit_test(an_unknown_option_is_answered_with_the_nearest),
    cmocka_unit_test(a_missing_value_and_a_word_too_many_are_usage_errors),
    cmocka_unit_test(whole_numbers_take_exponents_and_underscores_and_keep_bounds),
    cmocka_unit_test(real_numbers_are_finite_and_within_bounds),
    cmocka_unit_test(sizes_carry_decimal_and_binary_units),
    cmocka_unit_test(every_failed_allocation_is_an_error_without_a_leak),
};

ZN_TEST_MAIN(tests)
