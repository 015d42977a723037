/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, their help, and what main() returns. */
#include "zn_test.h"

#include <ctype.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli_internal.h"

/* Run the program in this process with its stdout and stderr in a file; returns the exit code. */
static int run(zn_buf *text, int argc, const char *const *argv)
{
    char *words[8] = {0};
    char byte[4096];
    size_t n;
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    fflush(stderr);
    const int old_out = dup(STDOUT_FILENO), old_err = dup(STDERR_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    assert_true(argc < 8);
    for (int i = 0; i < argc; i++)
        assert_ok(zn_strdup(argv[i], &words[i]));
    const int code = zn_cli_main(argc, words);
    fflush(stderr);
    dup2(old_out, STDOUT_FILENO);
    dup2(old_err, STDERR_FILENO);
    close(old_out);
    close(old_err);
    for (int i = 0; i < argc; i++)
        zn_free(words[i]);
    rewind(file);
    while ((n = fread(byte, 1, sizeof byte, file)) > 0)
        assert_ok(zn_buf_append(text, byte, n));
    fclose(file);
    return code;
}

#define RUN(text, ...)                                                                             \
    run((text), (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)),                \
        (const char *const[]){__VA_ARGS__})

static int count_lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void the_table_is_well_formed(void **state)
{
    (void)state;
    for (int i = 0; i < zn_n_commands; i++) {
        const zn_command *command = zn_commands[i];
        assert_non_null(command->run);
        assert_true(strlen(command->summary) > 10);
        assert_non_null(command->positional);
        assert_ptr_equal(zn_cli_find_command(command->name), command);
        for (int k = 0; k < command->n_options; k++) {
            const zn_option *option = &command->options[k];
            assert_true(option->help && option->help[0]);
            assert_null(strchr(option->name, '-'));
            if (option->kind != ZN_OPTION_FLAG && !option->metavar)
                fail_msg("%s --%s has no metavar", command->name, option->name);
            for (int j = 0; j < k; j++)
                if (strcmp(option->name, command->options[j].name) == 0)
                    fail_msg("%s has --%s twice", command->name, option->name);
        }
    }
}

static void help_of_every_command_names_all_its_options_and_exits_0(void **state)
{
    (void)state;
    for (int i = 0; i < zn_n_commands; i++) {
        const zn_command *command = zn_commands[i];
        zn_buf by_word = {0}, by_option = {0};
        assert_int_equal(RUN(&by_word, "zinc", "help", command->name), 0);
        assert_int_equal(RUN(&by_option, "zinc", command->name, "--help"), 0);
        assert_string_equal(by_word.data, by_option.data);
        for (int k = 0; k < command->n_options; k++) {
            char name[128];
            snprintf(name, sizeof name, "  --%s", command->options[k].name);
            if (!strstr(by_word.data, name))
                fail_msg("help of %s does not name%s", command->name, name);
        }
        zn_buf_fini(&by_word);
        zn_buf_fini(&by_option);
    }
}

static void an_unknown_option_of_any_command_is_one_line_and_exit_2(void **state)
{
    (void)state;
    for (int i = 0; i < zn_n_commands; i++) {
        zn_buf text = {0};
        assert_int_equal(RUN(&text, "zinc", zn_commands[i]->name, "--hepl"), 2);
        assert_int_equal(count_lines(text.data), 1);
        assert_non_null(strstr(text.data, "--help"));
        zn_buf_fini(&text);
    }
}

static void zinc_alone_prints_six_lines(void **state)
{
    (void)state;
    zn_buf text = {0};
    assert_int_equal(RUN(&text, "zinc"), 0);
    assert_int_equal(count_lines(text.data), 6);
    zn_buf_fini(&text);
}

static void help_lists_every_command(void **state)
{
    (void)state;
    zn_buf text = {0};
    assert_int_equal(RUN(&text, "zinc", "help"), 0);
    for (int i = 0; i < zn_n_commands; i++)
        assert_non_null(strstr(text.data, zn_commands[i]->summary));
    assert_non_null(zn_cli_find_command("agent")); /* of zinc launch; not for people */
    assert_null(strstr(text.data, zn_cli_find_command("agent")->summary));
    zn_buf_fini(&text);
}

static void the_version_is_printed(void **state)
{
    (void)state;
    zn_buf text = {0};
    assert_int_equal(RUN(&text, "zinc", "--version"), 0);
    assert_memory_equal(text.data, "zinc ", 5);
    assert_true(isdigit((unsigned char)text.data[5]));
    zn_buf_fini(&text);
}

static void an_unknown_command_is_answered_with_the_nearest_and_exit_2(void **state)
{
    (void)state;
    zn_buf text = {0};
    assert_int_equal(RUN(&text, "zinc", "envv"), 2);
    assert_non_null(strstr(text.data, "zinc env'"));
    assert_int_equal(count_lines(text.data), 1);
    assert_int_equal(RUN(&text, "zinc", "help", "hepl"), 2);
    assert_int_equal(RUN(&text, "zinc", "--verbose"), 2);
    zn_buf_fini(&text);
}

static void each_status_has_its_exit_code(void **state)
{
    (void)state;
    assert_int_equal(zn_cli_exit_code(ZINC_OK), 0);
    assert_int_equal(zn_cli_exit_code(ZINC_E_CONFIG), 1);
    assert_int_equal(zn_cli_exit_code(ZINC_E_FORMAT), 1);
    assert_int_equal(zn_cli_exit_code(ZINC_E_UNSUPPORTED), 1);
    assert_int_equal(zn_cli_exit_code(ZINC_E_INTERNAL), 1);
    assert_int_equal(zn_cli_exit_code(ZINC_E_INVALID), 2);
    assert_int_equal(zn_cli_exit_code(ZINC_E_NOMEM), 3);
    assert_int_equal(zn_cli_exit_code(ZINC_E_IO), 4);
    assert_int_equal(zn_cli_exit_code(ZINC_E_TIMEOUT), 5);
    assert_int_equal(zn_cli_exit_code(ZINC_E_COMM), 6);
}

static void env_prints_one_json_object_a_row(void **state)
{
    (void)state;
    zn_buf text = {0};
    char *rest = NULL;
    bool saw_cores = false;
    assert_int_equal(RUN(&text, "zinc", "env", "--json"), 0);
    for (char *line = strtok_r(text.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *row = NULL;
        assert_ok(zn_json_parse(line, strlen(line), "row", &row));
        assert_true(json_is_string(json_object_get(row, "name")));
        assert_non_null(json_object_get(row, "value"));
        assert_true(json_is_string(json_object_get(row, "needed_for")));
        assert_true(json_is_string(json_object_get(row, "hint")));
        if (strcmp(json_string_value(json_object_get(row, "name")), "cores") == 0) {
            saw_cores = true;
            assert_true(json_integer_value(json_object_get(row, "value")) >= 1);
        }
        json_decref(row);
    }
    assert_true(saw_cores);
    zn_buf_fini(&text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_table_is_well_formed),
    cmocka_unit_test(help_of_every_command_names_all_its_options_and_exits_0),
    cmocka_unit_test(an_unknown_option_of_any_command_is_one_line_and_exit_2),
    cmocka_unit_test(zinc_alone_prints_six_lines),
    cmocka_unit_test(help_lists_every_command),
    cmocka_unit_test(the_version_is_printed),
    cmocka_unit_test(an_unknown_command_is_answered_with_the_nearest_and_exit_2),
    cmocka_unit_test(each_status_has_its_exit_code),
    cmocka_unit_test(env_prints_one_json_object_a_row),
};

ZN_TEST_MAIN(tests)
