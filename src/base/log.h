/* SPDX-License-Identifier: Apache-2.0 */
/* log.h — lines for people, on stderr.
 *
 * Level and per-module overrides come from ZINC_LOG, e.g. ZINC_LOG=info,comm=debug. Lines are lower
 * case, carry the module, and the rank where several ranks run (zn_log_set_rank). Never called
 * inside kernels. Threads: any thread; a line is written whole. Layer: base. */
#ifndef ZN_BASE_LOG_H
#define ZN_BASE_LOG_H

#include <stdbool.h>

typedef enum zn_log_level {
    ZN_LOG_ERROR,
    ZN_LOG_WARN,
    ZN_LOG_INFO,
    ZN_LOG_DEBUG,
    ZN_LOG_TRACE,
} zn_log_level;

/** Write one line if `level` is on for `module`. The message needs no newline. */
void zn_log(zn_log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** Whether a line of this level and module would be written. */
bool zn_log_on(zn_log_level level, const char *module);

/** Say which rank this thread works for; -1 (the default) leaves the rank out of its lines. */
void zn_log_set_rank(int rank);

#define zn_warn(module, ...) zn_log(ZN_LOG_WARN, (module), __VA_ARGS__)
#define zn_info(module, ...) zn_log(ZN_LOG_INFO, (module), __VA_ARGS__)
#define zn_debug(module, ...) zn_log(ZN_LOG_DEBUG, (module), __VA_ARGS__)

#endif
