/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/disk_error.h"
#include "config/config.h"
#include "zinc/version.h"

enum {
    EXIT_BAD_INPUT = 1,
    EXIT_USAGE = 2,
    EXIT_MEMORY = 3,
    EXIT_IO = 4,
    EXIT_HANG = 5,
    EXIT_LOST_HOST = 6,
    EXIT_SIGNAL = 128,
};

int zn_cli_exit_code(zinc_status status)
{
    switch (status) {
    case ZINC_OK:
        return 0;
    case ZINC_E_INVALID:
        return EXIT_USAGE;
    case ZINC_E_NOMEM:
        return EXIT_MEMORY;
    case ZINC_E_IO:
        return EXIT_IO;
    case ZINC_E_TIMEOUT:
        return EXIT_HANG;
    case ZINC_E_COMM:
        return EXIT_LOST_HOST;
    case ZINC_E_CONFIG:
    case ZINC_E_FORMAT:
    case ZINC_E_DEVICE:
    case ZINC_E_UNSUPPORTED:
    case ZINC_E_ABORTED:
    case ZINC_E_INTERNAL:
        break;
    }
    return EXIT_BAD_INPUT;
}

int zn_cli_fail(const char *command, zinc_status status)
{
    fflush(stdout); /* where both go to one terminal, results come before the message */
    fprintf(stderr, "zinc %s: %s\n", command, zinc_last_error());
    return zn_cli_exit_code(status);
}

/* Whether the reader of stdout has gone away, as in `zinc … | head`. */
static bool stdout_reader_gone(void)
{
    struct pollfd fd = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&fd, 1, 0) == 1 && (fd.revents & POLLERR);
}

/* Results that did not reach stdout are a failure even where all else went well. */
static int finish_stdout(int code)
{
    const bool failed_before = ferror(stdout) != 0;
    errno = 0;
    if (fflush(stdout) == 0 && !failed_before)
        return code;
    const int error = errno;
    if (error == EPIPE || stdout_reader_gone())
        return code ? code : EXIT_SIGNAL + SIGPIPE;
    fprintf(stderr, "zinc: writing to stdout failed%s%s; the results are incomplete\n",
            error ? ": " : "", error ? strerror(error) : "");
    return code ? code : EXIT_IO;
}

static int fail_no_command(const char *name)
{
    const char *names[64];
    int n = 0;
    for (; n < zn_n_commands && n < 63; n++)
        names[n] = zn_commands[n]->name;
    names[n++] = "help";
    const char *near = zn_nearest_name(name, names, n);
    fprintf(stderr, "zinc: no command \"%s\"; ", name);
    if (near)
        fprintf(stderr, "did you mean 'zinc %s'? ", near);
    fputs("'zinc help' lists all\n", stderr);
    return EXIT_USAGE;
}

/* `zinc help --man [CMD]`, `--completion bash` and `--commands`: for packages, and for those who
 * install nothing. */
static int help_generate(const char *what, int n_words, char **words)
{
    if (strcmp(what, "--commands") == 0) {
        for (int i = 0; i < zn_n_commands; i++)
            printf("%s\n", zn_commands[i]->name);
    } else if (strcmp(what, "--completion") == 0) {
        if (n_words != 1 || strcmp(words[0], "bash") != 0) {
            fputs("zinc help: --completion is for bash: zinc help --completion bash\n", stderr);
            return EXIT_USAGE;
        }
        zn_completion_bash(stdout);
    } else if (n_words == 0) {
        zn_man_program(stdout);
    } else {
        const zn_command *command = zn_cli_find_command(words[0]);
        if (!command)
            return fail_no_command(words[0]);
        zn_man_command(command, stdout);
    }
    return 0;
}

static int help_main(int n_words, char **words)
{
    static const char *const generated[] = {"--man", "--completion", "--commands"};
    for (int i = 0; n_words > 0 && i < 3; i++)
        if (strcmp(words[0], generated[i]) == 0)
            return help_generate(words[0], n_words - 1, words + 1);
    if (n_words == 0 || strcmp(words[0], "help") == 0 || words[0][0] == '-') {
        zn_help_commands(stdout);
        return 0;
    }
    const zn_command *command = zn_cli_find_command(words[0]);
    if (!command)
        return fail_no_command(words[0]);
    zn_help_command(command, stdout);
    return 0;
}

static int command_main(const zn_command *command, int n_words, const char *const *words)
{
    zn_args *args = NULL;
    const zinc_status status = zn_args_parse(command, n_words, words, &args);
    if (status != ZINC_OK)
        return zn_cli_fail(command->name, status);
    int code = 0;
    if (zn_args_want_help(args))
        zn_help_command(command, stdout);
    else
        code = command->run(args);
    zn_args_destroy(args);
    return code;
}

static int run_words(int argc, char **argv)
{
    if (argc < 2) {
        zn_help_welcome(stdout);
        return 0;
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("zinc %s\n", zinc_version());
        return 0;
    }
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return help_main(argc - 2, argv + 2);
    if (word[0] == '-') {
        fprintf(stderr, "zinc: no option %s before a command; 'zinc help' lists the commands\n",
                word);
        return EXIT_USAGE;
    }
    const zn_command *command = zn_cli_find_command(word);
    if (!command)
        return fail_no_command(word);
    return command_main(command, argc - 2, (const char *const *)(argv + 2));
}

int zn_cli_main(int argc, char **argv)
{
    /* A reader that goes away must not kill a training run in the middle of a save: the write
     * fails with EPIPE instead; so does one that reaches a limit on the size of files, with EFBIG.
     * Programs started from here need both set back to their default. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    zn_cli_catch_disk_errors();
    return finish_stdout(run_words(argc, argv));
}
