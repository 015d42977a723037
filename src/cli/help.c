/* SPDX-License-Identifier: Apache-2.0 */
/* help.c — everything help prints, from the tables of commands and options. */
#include "cli/cli_internal.h"

#include <string.h>

#define PAGE_COLUMNS 100
#define NAME_COLUMNS 34 /* an option's help text begins here */

const zn_exit_code_row zn_help_exit_codes[] = {
    {"0", "done"},         {"1", "bad input"}, {"2", "usage"},     {"3", "out of memory"},
    {"4", "input/output"}, {"5", "hang"},      {"6", "lost host"}, {"128+n", "ended by signal n"},
    {NULL, NULL},
};

/* Print `text` wrapped; the cursor stands at `column`, further lines begin at `indent`. */
static void print_wrapped(FILE *out, const char *text, int column, int indent)
{
    while (*text) {
        const int n = (int)strcspn(text, " \n");
        if (column > indent && column + 1 + n > PAGE_COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, text);
        column += n;
        text += n;
        while (*text == ' ' || *text == '\n')
            text++;
    }
    fputc('\n', out);
}

void zn_help_welcome(FILE *out)
{
    fputs("zinc: train large language models on any number of ranks, sharded as ZeRO does,\n"
          "driven by an unchanged ds_config.json.\n"
          "  zinc train --model DIR --train_file F --output_dir OUT --ranks 2   fine-tune a model\n"
          "  zinc config check ds_config.json          what a configuration means here\n"
          "  zinc generate --model OUT --prompt TEXT   look at what was trained\n"
          "'zinc help' lists all commands, 'zinc help train' the options of one.\n",
          out);
}

void zn_help_commands(FILE *out)
{
    fputs("usage: zinc COMMAND [options]\n\ncommands:\n", out);
    for (int i = 0; i < zn_n_commands; i++) {
        fprintf(out, "  %-12s", zn_commands[i]->name);
        print_wrapped(out, zn_commands[i]->summary, 14, 14);
    }
    fprintf(out, "  %-12s%s\n", "help", "this list; 'zinc help COMMAND': the options of one");
    fputs("\n'zinc --version' prints the version, 'zinc help --man COMMAND' a manual page, 'zinc "
          "help\n"
          "--completion bash' what bash completes. Messages go to stderr, results to stdout.\n"
          "Exit codes:",
          out);
    for (int i = 0; zn_help_exit_codes[i].code; i++)
        fprintf(out, "%s %s %s", i ? "," : "", zn_help_exit_codes[i].code,
                zn_help_exit_codes[i].meaning);
    fputs(".\n", out);
}

/* "--name METAVAR" as it stands in the left column; returns its width. */
static int print_name(FILE *out, const zn_option *option)
{
    const char *meta = option->metavar ? option->metavar : "VALUE";
    int n = fprintf(out, "  --%s", option->name);
    switch (option->kind) {
    case ZN_OPTION_FLAG:
        break;
    case ZN_OPTION_VALUE:
        n += fprintf(out, " %s", meta);
        break;
    case ZN_OPTION_LIST:
        n += fprintf(out, " %s...", meta);
        break;
    case ZN_OPTION_OPTIONAL:
        n += fprintf(out, " [%s]", meta);
        break;
    }
    return n;
}

static void print_option(FILE *out, const zn_option *option)
{
    char text[1024];
    const int n = print_name(out, option);
    if (n + 2 > NAME_COLUMNS)
        fprintf(out, "\n%*s", NAME_COLUMNS, "");
    else
        fprintf(out, "%*s", NAME_COLUMNS - n, "");
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", option->help ? option->help : "",
             option->alias ? " (also --" : "", option->alias ? option->alias : "",
             option->alias ? ")" : "", option->default_text ? " [" : "",
             option->default_text ? option->default_text : "", option->default_text ? "]" : "");
    print_wrapped(out, text, NAME_COLUMNS, NAME_COLUMNS);
}

void zn_help_command(const zn_command *command, FILE *out)
{
    static const zn_option help = {
        .name = "help", .kind = ZN_OPTION_FLAG, .help = "print this and exit"};
    const bool has_positional = command->positional && command->positional[0];
    fprintf(out, "usage: zinc %s%s%s [options]\n\n", command->name, has_positional ? " " : "",
            has_positional ? command->positional : "");
    print_wrapped(out, command->summary, 0, 0);
    fputs("\noptions (dashes and underscores are the same; [] is the default; a switch may be "
          "followed\n"
          "by true or false):\n",
          out);
    for (int i = 0; i < command->n_options; i++)
        print_option(out, &command->options[i]);
    print_option(out, &help);
    if (command->epilog)
        fprintf(out, "\n%s%s", command->epilog,
                command->epilog[0] && command->epilog[strlen(command->epilog) - 1] == '\n' ? ""
                                                                                           : "\n");
}
