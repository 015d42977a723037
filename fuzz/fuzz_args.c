/* SPDX-License-Identifier: Apache-2.0 */
/* Any lines as the words of a command line, the first names the command; every option of its table
 * is then read as all kinds of value. Nothing is run. Layer: cli. */
#include "fuzz.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli_internal.h"

#define MAX_WORDS 256

static void read_option(const zn_args *args, const char *name)
{
    int64_t whole = 0, bytes = 0;
    double real = 0;
    const int n = zn_args_count(args, name);
    if (zn_args_given(args, name) != (n > 0) || (n > 0 && !zn_args_at(args, name, n - 1)) ||
        zn_args_at(args, name, n))
        __builtin_trap();
    zn_ignore(zn_args_flag(args, name, false) ? ZINC_OK : ZINC_E_INVALID);
    if (zn_args_int(args, name, -5, 1000, &whole) == ZINC_OK && (whole < -5 || whole > 1000))
        __builtin_trap();
    if (zn_args_real(args, name, -2, 2, &real) == ZINC_OK && !(fabs(real) <= 2))
        __builtin_trap();
    if (zn_args_bytes(args, name, &bytes) == ZINC_OK && bytes < 0)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *words[MAX_WORDS];
    int n_words = 0;
    zn_buf text = {0};
    zn_args *args = NULL;
    if (zn_buf_append(&text, data, n) != ZINC_OK || zn_buf_append(&text, "", 1) != ZINC_OK)
        __builtin_trap();
    for (char *at = text.data; at && n_words < MAX_WORDS;) {
        char *end = strchr(at, '\n');
        words[n_words++] = at;
        if (end)
            *end++ = '\0';
        at = end;
    }
    const zn_command *command = zn_cli_find_command(words[0]);
    if (!command)
        command = zn_commands[n % (size_t)zn_n_commands];
    if (zn_args_parse(command, n_words - 1, words + 1, &args) == ZINC_OK) {
        for (int i = 0; i < command->n_options; i++)
            read_option(args, command->options[i].name);
        zn_ignore(zn_args_want_help(args) ? ZINC_OK : ZINC_E_INVALID);
        if (zn_args_positional(args, zn_args_n_positional(args)))
            __builtin_trap();
    }
    zn_args_destroy(args);
    zn_buf_fini(&text);
    return 0;
}
