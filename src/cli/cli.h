/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h — the command line: one table of commands, one table of options each.
 *
 * A subcommand is one file cmd_<name>.c that defines the zn_command `zn_command_<name>`, and one
 * row in commands.c. Parsing, --help and usage errors with the nearest option all come from the
 * tables. Options take `--name value` and `--name=value`; dashes and underscores are the same; `--`
 * ends them. People read stderr, programs read stdout. SIGPIPE is ignored: a command that streams
 * rows stops when ferror(stdout); zn_cli_main reports what could not be written. Exit codes: 0
 * done, 1 bad input, 2 usage, 3 out of memory, 4 I/O, 5 hang, 6 lost host, 128+n signal n. Reading
 * order: cli.h, commands.c, cli.c, args.c, args_number.c, help.c. Layer: cli. */
#ifndef ZN_CLI_CLI_H
#define ZN_CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum zn_option_kind {
    ZN_OPTION_FLAG,     /* --x, --x=false, --x false */
    ZN_OPTION_VALUE,    /* --x V */
    ZN_OPTION_LIST,     /* --x A B C, may repeat */
    ZN_OPTION_OPTIONAL, /* --x or --x V */
} zn_option_kind;

typedef struct zn_option {
    const char *name;  /* with underscores, without the leading dashes */
    const char *alias; /* another full name, or NULL */
    zn_option_kind kind;
    const char *metavar;      /* "N", "DIR"; NULL for a flag */
    const char *default_text; /* as help prints it; NULL: none */
    const char *help;
} zn_option;

typedef struct zn_args zn_args;

typedef struct zn_command {
    const char *name;
    const char *summary;                /* one line for `zinc help` */
    const char *positional;             /* "F", "CKPT OUT"; "" for none */
    int min_positional, max_positional; /* max -1: any number */
    bool rest_is_program;               /* options end at the first positional (launch) */
    const zn_option *options;
    int n_options;
    const char *epilog;              /* examples, printed after the options; NULL: none */
    int (*run)(const zn_args *args); /* returns the exit code */
} zn_command;

/** All commands for people, in the order `zinc help` prints them. */
extern const zn_command *const zn_commands[];
extern const int zn_n_commands;

/** Value of an option: NULL if it was not given; "true"/"false" for a flag; "" for an OPTIONAL
 *  without a value; the last one if repeated. `name` is the table's. Borrowed. */
const char *zn_args_get(const zn_args *args, const char *name);
bool zn_args_given(const zn_args *args, const char *name);
/** Flag as a boolean; `fallback` if it was not given. */
bool zn_args_flag(const zn_args *args, const char *name, bool fallback);
/** Number of values of a LIST option, and the i-th. */
int zn_args_count(const zn_args *args, const char *name);
const char *zn_args_at(const zn_args *args, const char *name, int i);
int zn_args_n_positional(const zn_args *args);
const char *zn_args_positional(const zn_args *args, int i);

/** Integer and real options, with bounds; E_INVALID names option, value and bounds. Integers take
 *  2e8 and 1_000 forms; *out is untouched when the option was not given. */
ZINC_MUST_CHECK zinc_status zn_args_int(const zn_args *args, const char *name, int64_t min,
                                        int64_t max, int64_t *out);
ZINC_MUST_CHECK zinc_status zn_args_real(const zn_args *args, const char *name, double min,
                                         double max, double *out);
/** Bytes: "2GB", "512MiB", "1e9"; K, M, G, T alone are powers of 1000; a rate's "/s" may follow. */
ZINC_MUST_CHECK zinc_status zn_args_bytes(const zn_args *args, const char *name, int64_t *out);
/** Seconds: "10us", "1ms", "0.5s" or a number of seconds. */
ZINC_MUST_CHECK zinc_status zn_args_seconds(const zn_args *args, const char *name, double *out);

/** Print "zinc CMD: MESSAGE" for the last error on stderr and return the exit code for `status`. */
int zn_cli_fail(const char *command, zinc_status status);

/** Exit code of a status: INVALID 2 only for usage; CONFIG/FORMAT/UNSUPPORTED 1, NOMEM 3, IO 4,
 *  TIMEOUT 5, … */
int zn_cli_exit_code(zinc_status status);

/** Parse and run; what main() does. */
int zn_cli_main(int argc, char **argv);

#endif
