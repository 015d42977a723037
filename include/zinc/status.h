/* SPDX-License-Identifier: Apache-2.0 */
/* status.h — what every function that can fail returns, and the message that goes with it.
 *
 * The place that decides something is an error writes the message once; everybody above only
 * passes the status on. The message is thread-local and valid right after the failing call. */
#ifndef ZINC_STATUS_H
#define ZINC_STATUS_H

#include "zinc/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text). Values are pinned: they are part of the ABI. */
#define ZINC_STATUS_MAP(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(E_INVALID, -1, "invalid argument")                                                           \
    X(E_NOMEM, -2, "out of memory")                                                                \
    X(E_CONFIG, -3, "bad configuration")                                                           \
    X(E_IO, -4, "input/output failed")                                                             \
    X(E_FORMAT, -5, "malformed data")                                                              \
    X(E_COMM, -6, "communication failed")                                                          \
    X(E_DEVICE, -7, "device failed")                                                               \
    X(E_UNSUPPORTED, -8, "not supported")                                                          \
    X(E_TIMEOUT, -9, "deadline passed")                                                            \
    X(E_ABORTED, -10, "aborted")                                                                   \
    X(E_INTERNAL, -11, "internal error")

typedef enum zinc_status {
#define ZINC_STATUS_ENUM(name, value, text) ZINC_##name = value,
    ZINC_STATUS_MAP(ZINC_STATUS_ENUM)
#undef ZINC_STATUS_ENUM
} zinc_status;

/** Name of a status, such as "E_CONFIG". Not collective. Static storage. */
ZINC_API const char *zinc_status_name(zinc_status status);

/** Message of the last failing call on this thread: what, where, what to do. Not collective.
 *  Borrowed until the next failing call on this thread; "" if nothing has failed. */
ZINC_API const char *zinc_last_error(void);

/** Decide an error inside a callback that libzinc calls: `message` becomes this thread's message,
 *  and the status is returned. Not collective. `message` is copied. */
ZINC_API zinc_status zinc_fail(zinc_status status, const char *message);

/** Free a text or an array that libzinc gave as owned; NULL is fine. Not collective. */
ZINC_API void zinc_free(void *ptr);

#ifdef __cplusplus
}
#endif

#endif
