/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun.h — start the ranks of a command with `--comm mpi`. Layer: train. */
#ifndef ZN_TRAIN_MPIRUN_H
#define ZN_TRAIN_MPIRUN_H

#include "base/mem.h"

/** Run this process's own command line on n_ranks ranks under mpirun, pass signals on, and wait.
 *  *code is then what this process must exit with: the first failing rank's code, or 128+n if
 *  signal n ended it. Call before any thread is started. Errors: E_UNSUPPORTED where there is no
 *  mpirun, E_IO, E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_train_mpirun(int n_ranks, int *code);

/** Processes of the MPI job that this one belongs to; below 1: it was not started by MPI. */
int zn_train_mpi_world(void);

#endif
