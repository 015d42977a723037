/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_plan.h — `zinc plan` as `zinc config new` asks it. Layer: cli. */
#ifndef ZN_CLI_CMD_PLAN_H
#define ZN_CLI_CMD_PLAN_H

#include "cli/cli.h"
#include "config/config.h"
#include "plan/plan.h"

extern const zn_command zn_command_plan;

typedef struct zn_cli_plan_answer {
    zn_plan_search search; /* .given and .run.list are gone; .run.config borrows from the config */
    zn_buf text;           /* for people */
} zn_cli_plan_answer;

/** Plan a configuration that is loaded (borrowed; resolved here again) as `zinc plan WORDS` would.
 *  Release out->text. Errors: as the command. */
ZINC_MUST_CHECK zinc_status zn_cli_plan(int n, const char *const *words, zn_config *config,
                                        zn_cli_plan_answer *out);

#endif
