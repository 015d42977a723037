/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli_internal.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "config/config.h"

typedef struct given {
    int option;       /* index in the command's table */
    const char *text; /* borrowed from the words; "" for an OPTIONAL without a value */
} given;

struct zn_args {
    const zn_command *command;
    given *values; /* in the order they were typed */
    int n_values;
    const char **positional;
    int n_positional;
    bool want_help;
};

/* The words still to be read. */
typedef struct cursor {
    const char *const *words;
    int n, i;
} cursor;

bool zn_cli_same_name(const char *typed, size_t n, const char *name)
{
    size_t i = 0;
    for (; i < n && name[i]; i++) {
        const char a = typed[i] == '-' ? '_' : typed[i];
        const char b = name[i] == '-' ? '_' : name[i];
        if (a != b)
            return false;
    }
    return i == n && !name[i];
}

static int find_option(const zn_command *command, const char *typed, size_t n)
{
    for (int i = 0; i < command->n_options; i++) {
        const zn_option *option = &command->options[i];
        if (zn_cli_same_name(typed, n, option->name) ||
            (option->alias && zn_cli_same_name(typed, n, option->alias)))
            return i;
    }
    return -1;
}

/* "--x" begins an option; "--" alone ends them; "-1" and "-" are values. */
static bool looks_like_option(const char *word)
{
    return word[0] == '-' && word[1] == '-' && word[2] != '\0';
}

static bool is_end_mark(const char *word)
{
    return strcmp(word, "--") == 0;
}

static bool is_true(const char *text)
{
    return strcasecmp(text, "true") == 0 || strcasecmp(text, "yes") == 0 || strcmp(text, "1") == 0;
}

static bool is_false(const char *text)
{
    return strcasecmp(text, "false") == 0 || strcasecmp(text, "no") == 0 || strcmp(text, "0") == 0;
}

/* n bytes of `typed`, without its dashes, are no option of this command. */
static zinc_status fail_unknown(const zn_command *command, const char *typed, size_t n)
{
    zinc_status status;
    const char **names = NULL;
    char *name = NULL;
    int n_names = 0;
    ZN_TRY_GOTO(zn_alloc_array(&names, (size_t)(2 * command->n_options + 1), sizeof *names,
                               "option names"));
    for (int i = 0; i < command->n_options; i++) {
        names[n_names++] = command->options[i].name;
        if (command->options[i].alias)
            names[n_names++] = command->options[i].alias;
    }
    names[n_names++] = "help";
    ZN_TRY_GOTO(zn_format(&name, "%.*s", (int)n, typed));
    for (char *c = name; *c; c++)
        *c = *c == '-' ? '_' : *c;
    const char *near = zn_nearest_name(name, names, n_names);
    if (near)
        status = zn_error_set(ZINC_E_INVALID, __FILE__, __LINE__, __func__,
                              "no option --%.*s; did you mean --%s? ('zinc help %s' lists all)",
                              (int)n, typed, near, command->name);
    else
        status = zn_error_set(ZINC_E_INVALID, __FILE__, __LINE__, __func__,
                              "no option --%.*s; 'zinc help %s' lists all", (int)n, typed,
                              command->name);
fail:
    zn_free(name);
    zn_free(names);
    return status;
}

static void add_value(zn_args *args, int option, const char *text)
{
    args->values[args->n_values].option = option;
    args->values[args->n_values].text = text;
    args->n_values++;
}

/* The value of a flag as it is stored: "true" or "false". */
static zinc_status normal_flag(const char *name, const char *text, const char **out)
{
    if (!is_true(text) && !is_false(text))
        ZN_FAIL(ZINC_E_INVALID, "--%s is a switch: \"%s\" is neither true nor false", name, text);
    *out = is_true(text) ? "true" : "false";
    return ZINC_OK;
}

/* An option that stands alone takes its value(s) from the following words. */
static zinc_status take_following(zn_args *args, int index, cursor *at)
{
    const zn_option *option = &args->command->options[index];
    const char *next = at->i < at->n ? at->words[at->i] : NULL;
    const bool has_next = next && !looks_like_option(next) && !is_end_mark(next);
    if (option->kind == ZN_OPTION_FLAG) {
        const char *text = "true";
        if (has_next && (strcasecmp(next, "true") == 0 || strcasecmp(next, "false") == 0)) {
            text = is_true(next) ? "true" : "false";
            at->i++;
        }
        add_value(args, index, text);
        return ZINC_OK;
    }
    if (option->kind == ZN_OPTION_OPTIONAL) {
        add_value(args, index, has_next ? next : "");
        at->i += has_next ? 1 : 0;
        return ZINC_OK;
    }
    if (!has_next)
        ZN_FAIL(ZINC_E_INVALID, "--%s needs a value: --%s %s%s", option->name, option->name,
                option->metavar ? option->metavar : "VALUE",
                next && looks_like_option(next) ? " (write --name=VALUE if it begins with --)"
                                                : "");
    do {
        add_value(args, index, at->words[at->i++]);
    } while (option->kind == ZN_OPTION_LIST && at->i < at->n &&
             !looks_like_option(at->words[at->i]) && !is_end_mark(at->words[at->i]));
    return ZINC_OK;
}

static zinc_status parse_option(zn_args *args, const char *word, cursor *at)
{
    const char *typed = word + 2;
    const char *equals = strchr(typed, '=');
    const size_t n = equals ? (size_t)(equals - typed) : strlen(typed);
    const int index = find_option(args->command, typed, n);
    if (index < 0)
        return fail_unknown(args->command, typed, n);
    if (!equals)
        return take_following(args, index, at);
    const char *text = equals + 1;
    if (args->command->options[index].kind == ZN_OPTION_FLAG)
        ZN_TRY(normal_flag(args->command->options[index].name, text, &text));
    add_value(args, index, text);
    return ZINC_OK;
}

static zinc_status check_positional(const zn_args *args)
{
    const zn_command *command = args->command;
    if (args->n_positional < command->min_positional)
        ZN_FAIL(ZINC_E_INVALID, "missing %s: zinc %s %s", command->positional, command->name,
                command->positional);
    if (command->max_positional >= 0 && args->n_positional > command->max_positional)
        ZN_FAIL(ZINC_E_INVALID, "what is \"%s\"? options begin with --; 'zinc help %s' lists them",
                args->positional[command->max_positional], command->name);
    return ZINC_OK;
}

zinc_status zn_args_parse(const zn_command *command, int n_words, const char *const *words,
                          zn_args **out)
{
    zinc_status status;
    zn_args *args = NULL;
    cursor at = {.words = words, .n = n_words};
    bool options_ended = false;
    ZN_TRY(zn_alloc(&args, sizeof *args, "arguments"));
    args->command = command;
    /* One word gives at most one value. */
    ZN_TRY_GOTO(
        zn_alloc_array(&args->values, (size_t)n_words + 1, sizeof *args->values, "options"));
    ZN_TRY_GOTO(zn_alloc_array(&args->positional, (size_t)n_words + 1, sizeof *args->positional,
                               "arguments"));
    while (at.i < at.n) {
        const char *word = words[at.i++];
        if (!options_ended && is_end_mark(word)) {
            options_ended = true;
        } else if (!options_ended && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            args->want_help = true;
            *out = args;
            return ZINC_OK;
        } else if (!options_ended && looks_like_option(word)) {
            ZN_TRY_GOTO(parse_option(args, word, &at));
        } else if (!options_ended && word[0] == '-' && word[1] && !strchr(".0123456789", word[1])) {
            ZN_FAIL_GOTO(ZINC_E_INVALID, "no option %s; options begin with two dashes", word);
        } else {
            args->positional[args->n_positional++] = word;
            options_ended = options_ended || command->rest_is_program;
        }
    }
    ZN_TRY_GOTO(check_positional(args));
    *out = args;
    return ZINC_OK;
fail:
    zn_args_destroy(args);
    return status;
}

void zn_args_destroy(zn_args *args)
{
    if (!args)
        return;
    zn_free(args->values);
    zn_free(args->positional);
    zn_free(args);
}

bool zn_args_want_help(const zn_args *args)
{
    return args->want_help;
}

static int option_index(const zn_args *args, const char *name)
{
    const int index = find_option(args->command, name, strlen(name));
    ZN_ASSERT(index >= 0 && "the command's table has this option");
    return index;
}

const char *zn_args_get(const zn_args *args, const char *name)
{
    const int index = option_index(args, name);
    for (int i = args->n_values - 1; i >= 0; i--)
        if (args->values[i].option == index)
            return args->values[i].text;
    return NULL;
}

bool zn_args_given(const zn_args *args, const char *name)
{
    return zn_args_get(args, name) != NULL;
}

bool zn_args_flag(const zn_args *args, const char *name, bool fallback)
{
    const char *text = zn_args_get(args, name);
    return text ? is_true(text) : fallback;
}

int zn_args_count(const zn_args *args, const char *name)
{
    const int index = option_index(args, name);
    int n = 0;
    for (int i = 0; i < args->n_values; i++)
        n += args->values[i].option == index;
    return n;
}

const char *zn_args_at(const zn_args *args, const char *name, int i)
{
    const int index = option_index(args, name);
    for (int k = 0; k < args->n_values; k++)
        if (args->values[k].option == index && i-- == 0)
            return args->values[k].text;
    return NULL;
}

int zn_args_n_positional(const zn_args *args)
{
    return args->n_positional;
}

const char *zn_args_positional(const zn_args *args, int i)
{
    return i >= 0 && i < args->n_positional ? args->positional[i] : NULL;
}
