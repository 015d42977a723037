/* SPDX-License-Identifier: Apache-2.0 */
/* status.h — the internal side of zinc_status: deciding, passing on, cleaning up.
 *
 *   ZN_FAIL(ZINC_E_CONFIG, "...", ...)   decides an error: writes the message, returns the code
 *   ZN_TRY(call)                         passes an error on (adds a trace frame, keeps the message)
 *   ZN_TRY_GOTO(call)                    the same, into `status`, then jumps to the label `fail`
 *   ZN_FAIL_GOTO(code, "...", ...)       decides an error inside a function with a `fail` label
 *
 * A message reads as one sentence: what was expected, what was found, where (file, line, key,
 * tensor, rank), what to do. Work threads hand status and message to the thread that waits for
 * them with zn_error_save() and zn_error_restore().
 * Layer: base. */
#ifndef ZN_BASE_STATUS_H
#define ZN_BASE_STATUS_H

#include "zinc/status.h"

#define ZN_ERROR_BYTES 4096

/* A copy of a thread's error, to carry it to another thread or rank. */
typedef struct zn_error {
    zinc_status status;
    char message[ZN_ERROR_BYTES];
} zn_error;

/** Write the message of this thread's error and return `status`. Use through ZN_FAIL. */
zinc_status zn_error_set(zinc_status status, const char *file, int line, const char *func,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));

/** Note that an error passed through here (seen with ZINC_LOG=debug). Use through ZN_TRY. */
zinc_status zn_error_trace(zinc_status status, const char *file, int line, const char *func);

/** Put `format` in front of this thread's message, e.g. the file that was being read. */
void zn_error_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Copy this thread's error out; `status` is what the failing call returned. */
void zn_error_save(zn_error *error, zinc_status status);

/** Make `error` this thread's error and return its status. */
zinc_status zn_error_restore(const zn_error *error);

#define ZN_FAIL(code, ...) return zn_error_set((code), __FILE__, __LINE__, __func__, __VA_ARGS__)

#define ZN_FAIL_GOTO(code, ...)                                                                    \
    do {                                                                                           \
        status = zn_error_set((code), __FILE__, __LINE__, __func__, __VA_ARGS__);                  \
        goto fail;                                                                                 \
    } while (0)

#define ZN_TRY(call)                                                                               \
    do {                                                                                           \
        zinc_status zn_try_status_ = (call);                                                       \
        if (zn_try_status_ != ZINC_OK)                                                             \
            return zn_error_trace(zn_try_status_, __FILE__, __LINE__, __func__);                   \
    } while (0)

#define ZN_TRY_GOTO(call)                                                                          \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != ZINC_OK) {                                                                   \
            (void)zn_error_trace(status, __FILE__, __LINE__, __func__);                            \
            goto fail;                                                                             \
        }                                                                                          \
    } while (0)

/* For a status that cannot matter any more, in a destructor say; the caller's comment says why. */
static inline void zn_ignore(zinc_status status)
{
    (void)status;
}

/* For our own invariants only, never for input, files, config or another rank. */
void zn_assert_fail(const char *expr, const char *file, int line) __attribute__((noreturn));
#ifdef NDEBUG
#define ZN_ASSERT(expr) ((void)sizeof(expr))
#else
#define ZN_ASSERT(expr) ((expr) ? (void)0 : zn_assert_fail(#expr, __FILE__, __LINE__))
#endif

#endif
