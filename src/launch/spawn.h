/* SPDX-License-Identifier: Apache-2.0 */
/* spawn.h — start one process, alone in its process group. Layer: launch. */
#ifndef ZN_LAUNCH_SPAWN_H
#define ZN_LAUNCH_SPAWN_H

#include <sys/types.h>

#include "launch/launch_internal.h"

typedef struct zn_spawn_params {
    const zn_words *argv;
    const zn_words *env; /* the whole environment; NULL: this process's own */
    int in, out, err;    /* become 0, 1, 2; -1: inherited */
    int keep;            /* becomes 3; -1: none */
    const int *cores;    /* [n_cores] to run on; none: as this process */
    int n_cores;
    int death_signal; /* what the process gets when this one dies; 0: nothing */
} zn_spawn_params;

/** Start argv[0] (looked up in PATH) as the leader of a new process group; all signals are at
 *  their defaults in it. Descriptors stay the caller's. *exec_errno is 0, or why argv[0] could not
 *  be run (there is then no process). Errors: E_IO. */
ZINC_MUST_CHECK zinc_status zn_spawn(const zn_spawn_params *params, pid_t *pid, int *exec_errno);

/** Make this process the parent of what its descendants leave behind. */
void zn_spawn_adopt(void);
/** Append the process ids of this process's children, with spaces between. E_NOMEM, E_IO. */
ZINC_MUST_CHECK zinc_status zn_spawn_children(zn_buf *out);
/** Kill and reap all children of this process, adopted ones too, but those in `others`, a list as
 *  zn_spawn_children makes it. */
void zn_spawn_kill_leftovers(const char *others);

/** A pipe whose ends are closed in started programs. E_IO. */
ZINC_MUST_CHECK zinc_status zn_spawn_pipe(int ends[2]);

#endif
