/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

static int run_env(const zn_args *args)
{
    (void)args;
    return 0;
}

static const zn_option env_options[] = {
    {.name = "json", .kind = ZN_OPTION_FLAG, .help = "one JSON object a row on stdout"},
};

extern const zn_command zn_command_env;
const zn_command zn_command_env = {
    .name = "env",
    .summary = "what this machine and build can do",
    .positional = "",
    .options = env_options,
    .n_options = sizeof env_options / sizeof env_options[0],
    .run = run_env,
};
