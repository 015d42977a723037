/* SPDX-License-Identifier: Apache-2.0 */
/* config_new.h — `zinc config new`. Layer: cli. */
#ifndef ZN_CLI_CONFIG_NEW_H
#define ZN_CLI_CONFIG_NEW_H

#include "cli/cli.h"

/** Ask, plan, write. Returns the exit code. */
int zn_config_new(const zn_args *args);

#endif
