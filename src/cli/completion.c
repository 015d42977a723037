/* SPDX-License-Identifier: Apache-2.0 */
/* completion.c — what bash completes, from the tables of commands and options. The script is whole:
 * it does not call zinc, so that a key press costs nothing. */
#include "cli/cli_internal.h"

#include <string.h>

static const char script_head[] =
    "# bash completion of zinc; written by 'zinc help --completion bash'\n"
    "_zinc()\n"
    "{\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
    "command=${COMP_WORDS[1]}\n"
    "    local options='' values='' name\n"
    "    COMPREPLY=()\n"
    "    # '=' is a word of its own there: --name = value\n"
    "    if [[ $cur == = ]]; then\n"
    "        cur=\n"
    "    elif [[ $prev == = ]]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    fi\n";

static const char script_tail[] =
    "    name=${prev#--}\n"
    "    [[ $prev == --?* ]] && values=$(_zinc_values \"$command --${name//-/_}\")\n"
    "    case $values in\n"
    "    none) return ;;\n"
    "    file) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); compopt -o filenames 2>/dev/null; "
    "return ;;\n"
    "    dir) mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"); compopt -o filenames 2>/dev/null; "
    "return ;;\n"
    "    ?*) mapfile -t COMPREPLY < <(compgen -W \"$values\" -- \"$cur\"); return ;;\n"
    "    esac\n"
    "    if [[ $cur == -* ]]; then\n"
    "        name=${cur#--}\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"--${name//-/_}\")\n"
    "    else\n"
    "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
    "        compopt -o filenames 2>/dev/null\n"
    "    fi\n"
    "}\n"
    "complete -F _zinc zinc\n";

/* What follows an option, for _zinc_values: file, dir, none (anything: nothing to offer), or the
 * words of "a|b|c". NULL: nothing follows it. */
static const char *kind_of_value(const zn_option *option)
{
    const char *meta = option->metavar;
    if (option->kind == ZN_OPTION_FLAG || !meta)
        return NULL;
    if (strchr(meta, '|'))
        return meta;
    if (strcmp(meta, "DIR") == 0)
        return "dir";
    if (strcmp(meta, "F") == 0 || strncmp(meta, "FILE", 4) == 0 || strstr(meta, "OUT"))
        return "file";
    return option->kind == ZN_OPTION_OPTIONAL ? NULL : "none";
}

/* One branch of the case in _zinc_values. */
static void put_values(FILE *out, const char *command, const char *name, const char *values)
{
    fprintf(out, "    \"%s --%s\") echo \"", command, name);
    for (; *values; values++)
        fputc(*values == '|' ? ' ' : *values, out);
    fputs("\" ;;\n", out);
}

static void put_options(FILE *out, const zn_command *command)
{
    fprintf(out, "    %s) options=\"", command->name);
    for (int i = 0; i < command->n_options; i++) {
        fprintf(out, "--%s ", command->options[i].name);
        if (command->options[i].alias)
            fprintf(out, "--%s ", command->options[i].alias);
    }
    fputs("--help\" ;;\n", out);
}

void zn_completion_bash(FILE *out)
{
    fputs("# shellcheck shell=bash\n_zinc_values()\n{\n    case $1 in\n", out);
    for (int i = 0; i < zn_n_commands; i++)
        for (int k = 0; k < zn_commands[i]->n_options; k++) {
            const zn_option *option = &zn_commands[i]->options[k];
            const char *values = kind_of_value(option);
            if (values)
                put_values(out, zn_commands[i]->name, option->name, values);
            if (values && option->alias)
                put_values(out, zn_commands[i]->name, option->alias, values);
        }
    fputs("    esac\n}\n", out);
    fputs(script_head, out);
    fputs("    local commands=\"", out);
    for (int i = 0; i < zn_n_commands; i++)
        fprintf(out, "%s ", zn_commands[i]->name);
    fputs("help\"\n"
          "    if [[ $COMP_CWORD == 1 ]] || [[ $COMP_CWORD == 2 && $command == help ]]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$commands --help --version\" -- "
          "\"$cur\")\n"
          "        return\n"
          "    fi\n"
          "    case $command in\n",
          out);
    for (int i = 0; i < zn_n_commands; i++)
        put_options(out, zn_commands[i]);
    fputs("    esac\n", out);
    fputs(script_tail, out);
}
