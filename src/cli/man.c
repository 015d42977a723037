/* SPDX-License-Identifier: Apache-2.0 */
/* man.c — manual pages from the tables of commands and options: zinc(1), and zinc-CMD(1) of each.
 * Format: man(7) macros, UTF-8. */
#include "cli/cli_internal.h"

#include <string.h>

#include "zinc/version.h"

/* `text` as roff shows it literally: '-' would become a hyphen and '\' an escape, and a line that
 * begins with '.' or a quote a macro. */
static void put_literal(FILE *out, const char *text)
{
    bool line_begins = true;
    for (; *text; text++) {
        if (line_begins && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        line_begins = *text == '\n';
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
    }
}

static void put_block(FILE *out, const char *text)
{
    fputs(".nf\n", out);
    put_literal(out, text);
    if (text[0] && text[strlen(text) - 1] != '\n')
        fputc('\n', out);
    fputs(".fi\n", out);
}

/* .TH, NAME and the beginning of SYNOPSIS; `command` NULL: of zinc itself. */
static void put_head(FILE *out, const zn_command *command)
{
    const char *dash = command ? "\\-" : "";
    const char *name = command ? command->name : "";
    fprintf(out, "'\\\" -*- coding: UTF-8 -*-\n");
    fprintf(out, ".TH zinc%s%s 1 \"\" \"zinc %s\" \"Zinc\"\n", dash, name, zinc_version());
    fprintf(out, ".SH NAME\nzinc%s%s \\- ", dash, name);
    put_literal(out,
                command ? command->summary : "train large language models, sharded as ZeRO does");
    fputs("\n.SH SYNOPSIS\n", out);
}

void zn_man_program(FILE *out)
{
    put_head(out, NULL);
    fputs(".B zinc\n.I COMMAND\n[options]\n.SH DESCRIPTION\n"
          "One program with subcommands. Options take\n.B \\-\\-name value\nand\n"
          ".BR \\-\\-name=value ;\ndashes and underscores in a name are the same. Messages go to "
          "stderr, results to stdout.\n.SH COMMANDS\n",
          out);
    for (int i = 0; i < zn_n_commands; i++) {
        fprintf(out, ".TP\n.BR zinc\\-%s (1)\n", zn_commands[i]->name);
        put_literal(out, zn_commands[i]->summary);
        fputc('\n', out);
    }
    fputs(".SH OPTIONS\n.TP\n.B \\-\\-version\nprint the version\n.TP\n.B \\-\\-help\n"
          "list the commands\n.SH EXIT STATUS\n",
          out);
    for (int i = 0; zn_help_exit_codes[i].code; i++) {
        fprintf(out, ".TP\n.B %s\n", zn_help_exit_codes[i].code);
        put_literal(out, zn_help_exit_codes[i].meaning);
        fputc('\n', out);
    }
    fputs(".SH ENVIRONMENT\n.B zinc env\nlists the variables that are read, and their values.\n",
          out);
}

static void put_option(FILE *out, const zn_option *option)
{
    const char *meta = option->metavar ? option->metavar : "VALUE";
    fputs(".TP\n.B \\-\\-", out);
    put_literal(out, option->name);
    if (option->kind != ZN_OPTION_FLAG) {
        fputs(option->kind == ZN_OPTION_OPTIONAL ? " \\fR[\\fI" : " \\fI", out);
        put_literal(out, meta);
        fputs(option->kind == ZN_OPTION_OPTIONAL ? "\\fR]"
              : option->kind == ZN_OPTION_LIST   ? "\\fR..."
                                                 : "\\fR",
              out);
    }
    fputc('\n', out);
    put_literal(out, option->help ? option->help : "");
    if (option->alias) {
        fputs(" (also \\fB\\-\\-", out);
        put_literal(out, option->alias);
        fputs("\\fR)", out);
    }
    if (option->default_text) {
        fputs(" [", out);
        put_literal(out, option->default_text);
        fputc(']', out);
    }
    fputc('\n', out);
}

void zn_man_command(const zn_command *command, FILE *out)
{
    put_head(out, command);
    fprintf(out, ".B zinc %s\n", command->name);
    if (command->positional && command->positional[0]) {
        fputs(".I ", out);
        put_literal(out, command->positional);
        fputc('\n', out);
    }
    fputs("[options]\n.SH OPTIONS\n"
          "Dashes and underscores in a name are the same; [] is the default. A switch may be "
          "followed by true or false.\n",
          out);
    for (int i = 0; i < command->n_options; i++)
        put_option(out, &command->options[i]);
    fputs(".TP\n.B \\-\\-help\nprint the options and exit\n", out);
    if (command->epilog) {
        fputs(".SH EXAMPLES AND NOTES\n", out);
        put_block(out, command->epilog);
    }
    fputs(".SH SEE ALSO\n.BR zinc (1)\n", out);
}
