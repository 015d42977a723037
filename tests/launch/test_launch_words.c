/* SPDX-License-Identifier: Apache-2.0 */
/* Words stay what they are: lists, shell text, environment files, frames, lines of output. */
#include "zn_test.h"

#include <unistd.h>

#include "launch/agent_internal.h"
#include "launch/launcher_internal.h"

static const char *const hard[] = {
    "",           "a b",       "it's",        "\"x\"",    "$HOME `ls` \\",
    "two\nlines", "tab\there", "caf\xc3\xa9", "\xff\xfe", "-n",
    "*?[a]{b}~",  "a;b|c&d>e", "!#%^()",      "'",        "\\'"};
#define N_HARD ((int)(sizeof hard / sizeof hard[0]))

static void a_shell_reads_back_what_was_quoted(void **state)
{
    (void)state;
    zn_words words = {0}, back = {0};
    zn_buf text = {0};
    assert_ok(zn_words_add(&words, "printf"));
    assert_ok(zn_words_add(&words, "%s\\0"));
    for (int i = 0; i < N_HARD; i++)
        assert_ok(zn_words_add(&words, hard[i]));
    assert_ok(zn_shell_command(&words, &text));
    FILE *shell = popen(text.data, "r");
    assert_non_null(shell);
    char out[1024];
    const size_t n = fread(out, 1, sizeof out, shell);
    assert_int_equal(pclose(shell), 0);
    size_t at = 0;
    for (int i = 0; i < N_HARD; i++) {
        assert_true(at < n);
        assert_string_equal(out + at, hard[i]);
        at += strlen(hard[i]) + 1;
    }
    assert_int_equal(at, n);
    assert_ok(zn_shell_split(text.data, "launcher_args", &back)); /* and so does our own reader */
    assert_int_equal(back.n, words.n);
    for (int i = 0; i < words.n; i++)
        assert_string_equal(back.items[i], words.items[i]);
    zn_words_fini(&words);
    zn_words_fini(&back);
    zn_buf_fini(&text);
}

static void an_open_quote_is_an_error_that_names_the_option(void **state)
{
    (void)state;
    zn_words words = {0};
    assert_fails(zn_shell_split("-o 'x", "launcher_args", &words), ZINC_E_INVALID,
                 "--launcher_args: a quote (') is not closed");
    zn_words_fini(&words);
}

static void a_job_arrives_byte_for_byte(void **state)
{
    (void)state;
    zn_job job = {0}, back = {0};
    zn_process process = {.rank = 7, .local_rank = 3};
    zn_buf bytes = {0};
    assert_ok(zn_words_add(&job.settings, "cwd=/tmp/a b"));
    assert_ok(zn_words_add(&process.env, "X=a=b\n"));
    for (int i = 0; i < N_HARD; i++)
        assert_ok(zn_words_add(&process.argv, hard[i]));
    job.processes = &process;
    job.n_processes = 1;
    assert_ok(zn_job_encode(&job, &bytes));
    assert_ok(zn_job_decode(bytes.data, bytes.n, &back));
    assert_string_equal(zn_job_setting(&back, "cwd"), "/tmp/a b");
    assert_int_equal(back.n_processes, 1);
    assert_int_equal(back.processes[0].rank, 7);
    assert_int_equal(back.processes[0].local_rank, 3);
    assert_string_equal(back.processes[0].env.items[0], "X=a=b\n");
    for (int i = 0; i < N_HARD; i++)
        assert_string_equal(back.processes[0].argv.items[i], hard[i]);
    zn_job_fini(&back);
    for (size_t n = 0; n < bytes.n; n++) { /* a job that was cut off is no job, or a shorter one */
        const zinc_status status = zn_job_decode(bytes.data, n, &back);
        assert_true(status == ZINC_E_FORMAT || (status == ZINC_OK && back.n_processes == 0));
        if (status == ZINC_OK)
            zn_job_fini(&back);
        back = (zn_job){0};
    }
    zn_words_fini(&job.settings);
    zn_words_fini(&process.env);
    zn_words_fini(&process.argv);
    zn_buf_fini(&bytes);
}

static void frames_cross_a_pipe_in_pieces_and_after_noise(void **state)
{
    (void)state;
    int ends[2];
    zn_wire sender, receiver;
    zn_frame frame;
    bool got;
    assert_int_equal(pipe(ends), 0);
    zn_wire_open(&receiver, ends[0], ends[0]);
    zn_wire_open(&sender, ends[1], ends[1]);
    assert_int_equal(write(ends[1], "Welcome!\n", 9), 9); /* what a remote shell may say */
    assert_ok(zn_wire_greet(&sender));
    assert_ok(zn_wire_send(&sender, ZN_FRAME_OUTPUT, 2, 70000, "a\0b", 3));
    assert_ok(zn_wire_send(&sender, ZN_FRAME_DONE, 0, -1, NULL, 0));
    for (size_t i = 0; i < sender.pending.n; i++) {
        assert_int_equal(write(ends[1], sender.pending.data + i, 1), 1);
        assert_ok(zn_wire_fill(&receiver));
        assert_ok(zn_wire_next(&receiver, &frame, &got));
        if (got && frame.type == ZN_FRAME_OUTPUT) {
            assert_int_equal(frame.stream, 2);
            assert_int_equal(frame.rank, 70000);
            assert_int_equal(frame.n_bytes, 3);
            assert_memory_equal(frame.data, "a\0b", 3);
        }
        assert_int_equal(got, i == sender.pending.n - 1 || i == sender.pending.n - 13);
    }
    assert_int_equal(frame.type, ZN_FRAME_DONE);
    assert_int_equal(frame.rank, -1);
    zn_wire_close(&sender);
    assert_ok(zn_wire_fill(&receiver));
    assert_true(receiver.closed);
    zn_wire_close(&receiver);
}

static void a_frame_of_absurd_size_is_refused(void **state)
{
    (void)state;
    int ends[2];
    zn_wire receiver;
    zn_frame frame;
    bool got;
    assert_int_equal(pipe(ends), 0);
    zn_wire_open(&receiver, ends[0], ends[0]);
    receiver.greeted = true;
    assert_int_equal(write(ends[1], "o\1\0\0\0\0\0\0\xff\xff\xff\xff", 12), 12);
    assert_ok(zn_wire_fill(&receiver));
    assert_fails(zn_wire_next(&receiver, &frame, &got), ZINC_E_FORMAT, "4294967295 bytes");
    close(ends[1]);
    zn_wire_close(&receiver);
}

static void environment_files_allow_comments_and_blank_lines(void **state)
{
    (void)state;
    static const char text[] = "# c\n\nA=1\nexport B=two words # kept\r\n  C=\nA=x=y\n";
    zn_words env = {0};
    assert_ok(zn_env_parse(text, sizeof text - 1, "f", &env));
    assert_int_equal(env.n, 3);
    assert_string_equal(zn_words_value(&env, "A"), "x=y");
    assert_string_equal(zn_words_value(&env, "B"), "two words # kept");
    assert_string_equal(zn_words_value(&env, "C"), "");
    assert_fails(zn_env_parse("A=1\nno value\n", 13, "f", &env), ZINC_E_CONFIG,
                 "f:2: expected NAME=VALUE");
    assert_fails(zn_env_parse("1A=1\n", 5, "f", &env), ZINC_E_CONFIG, "f:1:");
    zn_words_fini(&env);
}

static void lines_carry_host_and_rank_and_one_progress_bar_is_left(void **state)
{
    (void)state;
    zn_sink sink = {.fd = -1};
    for (int rank = 0; rank < 2; rank++) {
        zn_rank_output output = {.host = "h", .rank = rank, .prefixed = true};
        assert_ok(zn_rank_output_take(&output, 1, "ab", 2, &sink));
        assert_ok(zn_rank_output_take(&output, 1, "c\r\nd\n10%\r", 9, &sink));
        assert_ok(zn_rank_output_take(&output, 1, "20%\rend", 7, &sink));
        assert_ok(zn_rank_output_end(&output, 1, &sink));
        zn_rank_output_fini(&output);
    }
    assert_string_equal(sink.pending.data, "[h:0] abc\r\n[h:0] d\n[h:0] 10%\r[h:0] 20%\r[h:0] end\n"
                                           "[h:1] abc\r\n[h:1] d\n[h:1] end\n");
    zn_buf_fini(&sink.pending);
}

static void the_last_lines_are_kept(void **state)
{
    (void)state;
    zn_sink sink = {.fd = -1};
    zn_buf last = {0};
    zn_rank_output output = {.host = "h", .rank = 0};
    char line[16];
    for (int i = 0; i < 30; i++) {
        const int n = snprintf(line, sizeof line, "line %d\n", i);
        assert_ok(zn_rank_output_take(&output, 2, line, (size_t)n, &sink));
    }
    assert_ok(zn_rank_output_last(&output, &last));
    assert_non_null(strstr(last.data, "line 18\n"));
    assert_non_null(strstr(last.data, "line 29"));
    assert_null(strstr(last.data, "line 17"));
    zn_buf_fini(&last);
    zn_buf_fini(&sink.pending);
    zn_rank_output_fini(&output);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_shell_reads_back_what_was_quoted),
    cmocka_unit_test(an_open_quote_is_an_error_that_names_the_option),
    cmocka_unit_test(a_job_arrives_byte_for_byte),
    cmocka_unit_test(frames_cross_a_pipe_in_pieces_and_after_noise),
    cmocka_unit_test(a_frame_of_absurd_size_is_refused),
    cmocka_unit_test(environment_files_allow_comments_and_blank_lines),
    cmocka_unit_test(lines_carry_host_and_rank_and_one_progress_bar_is_left),
    cmocka_unit_test(the_last_lines_are_kept),
};

ZN_TEST_MAIN(tests)
