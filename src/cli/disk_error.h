/* SPDX-License-Identifier: Apache-2.0 */
/* disk_error.h — the end of a process that reads a mapped file which cannot be read. Layer: cli. */
#ifndef ZN_CLI_DISK_ERROR_H
#define ZN_CLI_DISK_ERROR_H

/** Let SIGBUS end this process with exit code 4 and one line that names the file whose mapping was
 *  touched: its disk fails, or it was cut while it was in use. Checkpoints are read by calls that
 *  say more; weights, token files and DeepSpeed's files are mapped. Not collective. */
void zn_cli_catch_disk_errors(void);

#endif
