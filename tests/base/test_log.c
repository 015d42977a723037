/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <unistd.h>

#include "base/log.h"

typedef struct capture {
    FILE *file;
    int saved; /* the real stderr */
    char text[16384];
} capture;

static int setup(void **state)
{
    static capture c;
    c.file = tmpfile();
    c.saved = dup(STDERR_FILENO);
    *state = &c;
    return c.file && c.saved >= 0 ? 0 : -1;
}

static int teardown(void **state)
{
    capture *c = *state;
    dup2(c->saved, STDERR_FILENO);
    close(c->saved);
    fclose(c->file);
    unsetenv("ZINC_LOG");
    zn_log_set_rank(-1);
    return 0;
}

static void begin(capture *c)
{
    fflush(stderr);
    rewind(c->file);
    assert_int_equal(ftruncate(fileno(c->file), 0), 0);
    dup2(fileno(c->file), STDERR_FILENO);
}

/* What was written to stderr since begin(). */
static const char *end(capture *c)
{
    fflush(stderr);
    dup2(c->saved, STDERR_FILENO);
    rewind(c->file);
    const size_t n = fread(c->text, 1, sizeof c->text - 1, c->file);
    c->text[n] = '\0';
    return c->text;
}

static void lines_carry_level_rank_and_module(void **state)
{
    unsetenv("ZINC_LOG");
    begin(*state);
    zn_info("comm", "hello %d", 1);
    zn_warn("comm", "careful");
    zn_debug("comm", "unseen");
    zn_log_set_rank(2);
    zn_log(ZN_LOG_ERROR, "comm", "lost");
    assert_string_equal(end(*state), "zinc: hello 1\nzinc: warning: careful\n"
                                     "zinc: [rank 2] lost\n");
    setenv("ZINC_LOG", "trace", 1);
    begin(*state);
    zn_debug("zero", "unit 3");
    assert_string_equal(end(*state), "zinc: [rank 2] zero: unit 3\n");
}

static void the_environment_sets_levels_by_module(void **state)
{
    (void)state;
    static const struct {
        const char *env, *module;
        zn_log_level level;
        bool on;
    } cases[] = {
        {"", "comm", ZN_LOG_INFO, true},
        {"", "comm", ZN_LOG_DEBUG, false},
        {"error", "comm", ZN_LOG_WARN, false},
        {"error", "comm", ZN_LOG_ERROR, true},
        {"info,comm=debug", "comm", ZN_LOG_DEBUG, true},
        {"info,comm=debug", "comm", ZN_LOG_TRACE, false},
        {"info,comm=debug", "zero", ZN_LOG_DEBUG, false},
        {"info,comm=debug", "com", ZN_LOG_DEBUG, false},
        {"comm=error,zero=trace", "comm", ZN_LOG_WARN, false},
        {"comm=error,zero=trace", "zero", ZN_LOG_TRACE, true},
        {"nonsense,,comm=,=debug", "comm", ZN_LOG_INFO, true},
        {"nonsense,,comm=,=debug", "comm", ZN_LOG_DEBUG, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("ZINC_LOG", cases[i].env, 1);
        if (zn_log_on(cases[i].level, cases[i].module) != cases[i].on)
            fail_msg("ZINC_LOG=%s: %s at level %d", cases[i].env, cases[i].module,
                     (int)cases[i].level);
    }
}

static void a_long_line_is_cut_and_still_one_line(void **state)
{
    static char text[20000];
    memset(text, 'x', sizeof text - 1);
    begin(*state);
    zn_info("comm", "%s", text);
    const char *got = end(*state);
    assert_in_range(strlen(got), 4000, 8192);
    assert_ptr_equal(strchr(got, '\n'), got + strlen(got) - 1);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    TEST(lines_carry_level_rank_and_module),
    TEST(the_environment_sets_levels_by_module),
    TEST(a_long_line_is_cut_and_still_one_line),
};

ZN_TEST_MAIN(tests)
