/* SPDX-License-Identifier: Apache-2.0 */
/* accelerate_launch.h — an accelerate YAML on the command line: where ranks start, and what a
 * Python program that is started finds in its environment. Layer: cli. */
#ifndef ZN_CLI_ACCELERATE_LAUNCH_H
#define ZN_CLI_ACCELERATE_LAUNCH_H

#include "config/config.h"
#include "launch/launch.h"

/* What a YAML adds to a launch; zeroed before use. */
typedef struct zn_accelerate_launch {
    zn_config *config;
    const zn_config_values *values; /* of config */
    char **exports;                 /* owned NAME=VALUE; n_exports of them */
    int n_exports;
} zn_accelerate_launch;

/** Load and resolve the YAML. Release with zn_accelerate_launch_fini, also on
 *  an error. Errors: as zn_config_load_accelerate, all of them logged. */
ZINC_MUST_CHECK zinc_status zn_accelerate_open(const char *path, zn_accelerate_launch *out);
void zn_accelerate_launch_fini(zn_accelerate_launch *launch);

/** Ranks on each machine; 0 if the YAML leaves it to an argument. */
int64_t zn_accelerate_local_ranks(const zn_config_values *values);

/** Fill what the options leave open: hosts, filters, ranks, address, port, binding. Errors:
 *  E_INVALID an option and the YAML contradict each other. */
ZINC_MUST_CHECK zinc_status zn_accelerate_fill(const zn_accelerate_launch *launch,
                                               zn_launch_options *options);

/** The environment by which accelerate in a Python program finds this configuration; an FSDP one is
 *  translated to DeepSpeed's, and the first line of the log says so. Into launch->exports. */
ZINC_MUST_CHECK zinc_status zn_accelerate_environment(zn_accelerate_launch *launch);

#endif
