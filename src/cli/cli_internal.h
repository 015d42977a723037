/* SPDX-License-Identifier: Apache-2.0 */
/* cli_internal.h — what the files of the command line framework share: the parser (args.c), the
 * printers (help.c, man.c, completion.c) and main (cli.c). Subcommands need cli.h only. Layer: cli.
 */
#ifndef ZN_CLI_CLI_INTERNAL_H
#define ZN_CLI_CLI_INTERNAL_H

#include <stdio.h>

#include "cli/cli.h"

/** Parse the words after the command's name. The words and `command` are borrowed for as long as
 *  *out lives. E_INVALID: the message is the usage error, in one line. Release with
 *  zn_args_destroy. */
ZINC_MUST_CHECK zinc_status zn_args_parse(const zn_command *command, int n_words,
                                          const char *const *words, zn_args **out);
void zn_args_destroy(zn_args *args);

/** Whether --help or -h was among the options; what follows it was then not parsed, and required
 *  arguments may be missing. */
bool zn_args_want_help(const zn_args *args);

/** Whether two names are the same, with '-' and '_' alike; `n` bytes of `typed`. */
bool zn_cli_same_name(const char *typed, size_t n, const char *name);

/** NULL if there is no such command. */
const zn_command *zn_cli_find_command(const char *name);

/** What `zinc` alone, `zinc help` and `zinc help CMD` print. */
void zn_help_welcome(FILE *out);
void zn_help_commands(FILE *out);
void zn_help_command(const zn_command *command, FILE *out);

/** The exit codes that all commands share, ended by a row of NULLs. */
typedef struct zn_exit_code_row {
    const char *code, *meaning;
} zn_exit_code_row;
extern const zn_exit_code_row zn_help_exit_codes[];

/** The manual pages zinc(1) and zinc-COMMAND(1), as roff. */
void zn_man_program(FILE *out);
void zn_man_command(const zn_command *command, FILE *out);

/** A bash script that completes commands, options, their choices, and files. */
void zn_completion_bash(FILE *out);

#endif
