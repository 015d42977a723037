/* SPDX-License-Identifier: Apache-2.0 */
/* log.h — lines for people, on stderr.
 *
 * What is written is chosen by the environment: ZINC_LOG=warn, or ZINC_LOG=info,comm=debug with a
 * level for one module. Threads: any; a line is written whole. Nothing here is collective. */
#ifndef ZINC_LOG_H
#define ZINC_LOG_H

#include "zinc/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum zinc_log_level {
    ZINC_LOG_ERROR = 0,
    ZINC_LOG_WARN = 1,
    ZINC_LOG_INFO = 2,
    ZINC_LOG_DEBUG = 3,
    ZINC_LOG_TRACE = 4
} zinc_log_level;

/** Write one line, without a newline of its own, if `level` is on for `module`. */
ZINC_API void zinc_log(zinc_log_level level, const char *module, const char *message);

/** Whether a line of this level and module would be written: 1 or 0. */
ZINC_API int zinc_log_is_on(zinc_log_level level, const char *module);

/** Put this rank in front of the lines of the calling thread; -1, the default: none. */
ZINC_API void zinc_log_set_rank(int rank);

#ifdef __cplusplus
}
#endif

#endif
