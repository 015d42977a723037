/* SPDX-License-Identifier: Apache-2.0 */
/* commands.c — the table of subcommands: one extern and one row each. */
#include "cli/cli_internal.h"

#include <string.h>

extern const zn_command zn_command_train, zn_command_eval, zn_command_generate;
extern const zn_command zn_command_launch;
extern const zn_command zn_command_tokenize, zn_command_config, zn_command_lr;
extern const zn_command zn_command_plan;
extern const zn_command zn_command_export, zn_command_checkpoint, zn_command_report;
extern const zn_command zn_command_env, zn_command_bench;

/* clang-format off */
const zn_command *const zn_commands[] = {
    &zn_command_train,
    &zn_command_launch,
    &zn_command_eval,
    &zn_command_generate,
    &zn_command_tokenize,
    &zn_command_config,
    &zn_command_plan,
    &zn_command_lr,
    &zn_command_export,
    &zn_command_checkpoint,
    &zn_command_report,
    &zn_command_env,
    &zn_command_bench,
};
/* clang-format on */
const int zn_n_commands = (int)(sizeof zn_commands / sizeof zn_commands[0]);

/* What `zinc launch` starts on each host: found by its name, listed nowhere. */
extern const zn_command zn_command_agent;

const zn_command *zn_cli_find_command(const char *name)
{
    for (int i = 0; i < zn_n_commands; i++)
        if (zn_cli_same_name(name, strlen(name), zn_commands[i]->name))
            return zn_commands[i];
    return strcmp(name, zn_command_agent.name) == 0 ? &zn_command_agent : NULL;
}
