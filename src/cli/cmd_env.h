/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_env.h — between cmd_env.c, one machine, and cmd_env_hosts.c, many. Layer: cli. */
#ifndef ZN_CLI_CMD_ENV_H
#define ZN_CLI_CMD_ENV_H

#include "cli/cli.h"

/** `zinc env` on every host of --hostfile; prints what differs, with --json all. Returns the exit
 *  code: 6 if a host could not be asked. */
int zn_env_hosts(const zn_args *args);

#endif
